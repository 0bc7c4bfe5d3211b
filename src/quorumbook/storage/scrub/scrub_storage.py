"""What scrub asks of a storage, as coroutines over the storage's workers.

Reading has a worker, a connection and open files of its own, so that nobody waits behind it.
What the index should say instead is written between two checkpoints on the flush worker, and
only where the row is still the one that was judged: entries that were added again, moved or
deleted meanwhile stay as they are.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from google_crc32c import value as crc32c

from quorumbook.env import Env, Worker, run_job
from quorumbook.errors import StorageError
from quorumbook.ids import EntryId, LedgerId
from quorumbook.protocol.digest import Digester
from quorumbook.storage.entrylog.reader import EntryLogReader
from quorumbook.storage.index.stored_run import StoredRun
from quorumbook.storage.index.tables import Index
from quorumbook.storage.scrub.decisions import ScrubPosition, judge

T = TypeVar("T")
POSITION_KEY = "scrub"
_ROWS = 256


@dataclass(slots=True)
class ScrubStep:
    """What one step read; ``position`` is -1 when the log is read to its end."""

    position: int = -1
    checked_bytes: int = 0
    checked_runs: int = 0
    #: Runs that are wrong, cannot be read, or have no checksum.
    doubtful: list[StoredRun] = field(default_factory=list)


class ScrubStorage:
    """Reads, judges and records; used on the event loop.

    Args:
        env: The outside world.
        directories: The ledger directories.
        index: The writer, for jobs of the flush worker.
        flush_worker: That worker.
        on_changed: Called when entries of the index changed their places.
        reopen: Has readers open a log anew that they have open.
    """

    def __init__(
        self,
        env: Env,
        directories: Sequence[str],
        index: Index,
        flush_worker: Worker,
        *,
        on_changed: Callable[[], None],
        reopen: Callable[[int], Awaitable[None]],
    ) -> None:
        self._writer = index
        self._flush_worker = flush_worker
        self._on_changed = on_changed
        self.reopen = reopen
        self._index = index.another()
        self._logs = EntryLogReader(env, directories, open_files_max=2)
        self._worker = env.threads.start_worker("storage-scrub")

    def close(self) -> None:
        """Stop; the flush worker has stopped before."""
        self._worker.stop()
        self._logs.close()
        self._index.close()

    async def entry_log_ids(self) -> list[int]:
        """Return the entry logs, ascending."""
        return sorted(await run_job(self._worker, self._index.entry_logs))

    async def sizes(self) -> dict[int, int]:
        """Return the bytes of the runs in each entry log that has some."""
        usage = await run_job(self._worker, self._index.live_bytes)
        return {entry_log_id: size_bytes for entry_log_id, (size_bytes, _, _) in usage.items()}

    async def check_some(self, entry_log_id: int, position: int, size_bytes: int) -> ScrubStep:
        """Read some runs of a log, about so many bytes, from a position on."""
        return await run_job(
            self._worker, lambda: self._check_some(entry_log_id, position, size_bytes)
        )

    async def check_index(self) -> None:
        """Read the whole index.

        Raises:
            DamagedIndexError: It is damaged.
        """
        await run_job(self._worker, self._index.check_whole)

    async def runs(
        self, ledger_id: LedgerId, first_entry_id: EntryId, last_entry_id: EntryId
    ) -> list[StoredRun]:
        """Return the runs that hold some entries."""
        return await run_job(
            self._worker, lambda: self._index.runs(ledger_id, first_entry_id, last_entry_id)
        )

    async def damaged_runs(self, ledger_id: LedgerId | None = None) -> list[StoredRun]:
        """Return the runs on record as damaged, of one ledger or of all."""
        return await run_job(self._worker, lambda: self._index.damaged_runs(ledger_id))

    async def ledgers_in_limbo(self) -> list[LedgerId]:
        """Return the ledgers in limbo."""
        return await run_job(self._worker, self._index.ledgers_in_limbo)

    async def run(self, job: Callable[[], T]) -> T:
        """Run some other job that takes its time."""
        return await run_job(self._worker, job)

    async def judge(self, row: StoredRun, digester: Digester | None) -> list[StoredRun]:
        """Read a run once more, and return what the index should say in its place."""
        return await run_job(self._worker, lambda: self._judge(row, digester))

    async def record(self, changes: Iterable[tuple[StoredRun, Sequence[StoredRun]]]) -> int:
        """Put parts in the place of runs, durably; return how many were still the same."""
        count = await run_job(self._flush_worker, lambda: self._writer.divide(changes))
        if count:
            self._on_changed()
        return count

    async def read_position(self) -> ScrubPosition:
        """Return how far scrub has come."""
        return ScrubPosition.decode(
            await run_job(self._worker, lambda: self._index.meta(POSITION_KEY))
        )

    async def write_position(self, position: ScrubPosition) -> None:
        """Remember how far scrub has come."""
        meta = [(POSITION_KEY, position.encode())]
        await run_job(self._flush_worker, lambda: self._writer.commit(meta=meta))

    # On the worker

    def _check_some(self, entry_log_id: int, position: int, size_bytes: int) -> ScrubStep:
        step = ScrubStep()
        while step.checked_bytes < size_bytes:
            rows = self._index.runs_behind(entry_log_id, position, _ROWS)
            for row in rows:
                if not row.is_damaged:
                    data = self._read(row)
                    if data is None or row.checksum is None or crc32c(data) != row.checksum:
                        step.doubtful.append(row)
                    step.checked_runs += 1
                    step.checked_bytes += row.size_bytes
                position = row.position + 1
                if step.checked_bytes >= size_bytes:
                    break
            else:
                if len(rows) < _ROWS:
                    self._logs.forget(entry_log_id)
                    return step
        step.position = position
        return step

    def _read(self, row: StoredRun) -> bytes | None:
        try:
            return self._logs.read(row.entry_log_id, row.position, row.size_bytes)
        except StorageError:
            return None

    def _judge(self, row: StoredRun, digester: Digester | None) -> list[StoredRun]:
        def read_entry(entry_id: EntryId) -> bytes | None:
            try:
                return self._logs.read(
                    row.entry_log_id, row.position_of(entry_id), row.size_of(entry_id) + 4
                )
            except StorageError:
                return None

        try:
            return judge(row, self._read(row), read_entry, digester)
        finally:
            # A log that is removed while it is open does not give its space back.
            self._logs.forget(row.entry_log_id)
