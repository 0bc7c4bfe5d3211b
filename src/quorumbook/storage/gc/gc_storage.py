"""What the collector asks of a storage, as coroutines over the storage's workers.

Counting reads the whole index, so it has a worker of its own; everything that changes something
is a job between two checkpoints on the flush worker.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from quorumbook.env import Env, Worker, run_job
from quorumbook.ids import LedgerId
from quorumbook.storage.checkpoint.visible_ledgers import VisibleLedgers
from quorumbook.storage.gc.decisions import LogUsage
from quorumbook.storage.gc.hold import Hold, read_hold, write_hold
from quorumbook.storage.gc.logs import CompactionStep, EntryLogKeeper, log_usages
from quorumbook.storage.index.reader import IndexReader
from quorumbook.storage.index.stored_run import StoredExtent

T = TypeVar("T")
#: So much of the index is read before others have the worker.
_LOGS_A_JOB = 16
#: Ledgers that are named at a time.
_LEDGERS_AT_A_TIME = 10_000


class GcStorage:
    """Counts, removes and compacts; used on the event loop.

    Args:
        env: The outside world.
        directories: The ledger directories.
        index: The index; it is closed with this.
        keeper: What is done on the flush worker.
        flush_worker: That worker.
        visible: Knows what is under way.
        forget: Forgets ledgers; the next flush makes that durable.
        empty: Forgets their entries only.
        forget_logs: Closes removed logs wherever they are open.
    """

    def __init__(
        self,
        env: Env,
        directories: Sequence[str],
        index: IndexReader,
        keeper: EntryLogKeeper,
        flush_worker: Worker,
        *,
        visible: VisibleLedgers,
        forget: Callable[[Iterable[LedgerId]], None],
        empty: Callable[[Iterable[LedgerId]], None],
        forget_logs: Callable[[Iterable[int]], None],
    ) -> None:
        self._env = env
        self._directories = list(directories)
        self._index = index
        self._keeper = keeper
        self._flush_worker = flush_worker
        self._worker = env.threads.start_worker("storage-gc")
        self._visible = visible
        self._forget = forget
        self._empty = empty
        self._forget_logs = forget_logs

    def close(self) -> None:
        """Stop; the flush worker has stopped before."""
        self._worker.stop()
        self._index.close()
        self._keeper.close()

    # Ledgers

    async def decide(self, decision: Callable[[], T]) -> T:
        """Make a decision over sets of ledgers on the worker: they may be millions."""
        return await run_job(self._worker, decision)

    async def ledger_ids(self) -> AsyncIterator[list[LedgerId]]:
        """Yield the ledgers that are in the index, ascending, some at a time: they may be many."""
        last: LedgerId | None = None
        while page := await run_job(
            self._worker, partial(self._index.ledger_ids_above, last, _LEDGERS_AT_A_TIME)
        ):
            yield page
            last = page[-1]

    @property
    def checkpoints(self) -> int:
        """How many checkpoints were cut since the start."""
        return self._visible.checkpoints

    def forget_ledgers(self, ledger_ids: Sequence[LedgerId], checkpoints: int) -> list[LedgerId]:
        """Forget those ledgers of which nothing came since ``checkpoints``; return them.

        What came is under way to the journal, or in a write cache unless a checkpoint took it;
        so after another checkpoint none is forgotten.  The next flush makes it durable.
        """
        quiet = self._quiet(ledger_ids, checkpoints)
        self._forget(quiet)
        return quiet

    def empty_ledgers(self, ledger_ids: Sequence[LedgerId], checkpoints: int) -> list[LedgerId]:
        """The same for their entries alone: the ledgers stay known, fenced from now on."""
        quiet = self._quiet(ledger_ids, checkpoints)
        self._empty(quiet)
        return quiet

    def _quiet(self, ledger_ids: Sequence[LedgerId], checkpoints: int) -> list[LedgerId]:
        if self._visible.checkpoints != checkpoints:
            return []
        return [ledger_id for ledger_id in ledger_ids if self._visible.is_settled(ledger_id)]

    async def forget_deletions(self, before_ms: int, count_max: int) -> int:
        """Forget which ledgers were deleted before a wall time, and the oldest beyond a number."""
        return await run_job(
            self._flush_worker, lambda: self._keeper.forget_deletions(before_ms, count_max)
        )

    async def read_hold(self) -> Hold:
        """Return what waits for an operator's word, as the first ledger directory has it."""
        directory = self._directories[0]
        return await run_job(self._worker, lambda: read_hold(self._env.disk, directory))

    async def write_hold(self, hold: Hold) -> None:
        """Write it down; calls are done in their order."""
        directory = self._directories[0]
        await run_job(self._worker, lambda: write_hold(self._env.disk, directory, hold))

    async def extents(self, ledger_ids: Sequence[LedgerId]) -> dict[LedgerId, StoredExtent]:
        """Return what is stored of those ledgers that have entries."""
        return await run_job(self._worker, lambda: self._index.extents(ledger_ids))

    # Entry logs

    async def usages(self) -> list[LogUsage]:
        """Return every entry log with what lives in it; whoever waits may give up half-way."""
        open_ids = self._keeper.open_ids
        live: dict[int, tuple[int, int, int]] = {}
        last = -1
        while page := await run_job(
            self._worker, partial(self._index.live_bytes, last, _LOGS_A_JOB)
        ):
            live |= page
            last = max(page)
        found = await run_job(
            self._worker, lambda: log_usages(self._env, self._directories, live, open_ids)
        )
        stuck = self._keeper.stuck
        return [usage._replace(is_stuck=usage.entry_log_id in stuck) for usage in found]

    async def remove_unused(self) -> dict[int, int]:
        """Delete the logs in which no run lies; return the size of each."""
        removed = await run_job(self._flush_worker, self._keeper.remove_unused)
        self._forget_logs(removed)
        return removed

    async def compact_some(self, entry_log_id: int, size_bytes: int) -> CompactionStep:
        """Move some runs out of a log."""
        return await run_job(
            self._flush_worker, lambda: self._keeper.compact_some(entry_log_id, size_bytes)
        )

    async def begin_compaction(self) -> None:
        """Have logs tried again that could not be read the last time."""
        await run_job(self._flush_worker, self._keeper.begin)

    async def finish_compaction(self) -> None:
        """Complete the log that compaction wrote."""
        await run_job(self._flush_worker, self._keeper.finish)

    async def keep_reserve(self, size_bytes: int) -> None:
        """Take the space that compaction needs on a full disk."""
        await run_job(self._flush_worker, lambda: self._keeper.keep_reserve(size_bytes))

    async def give_reserve(self) -> bool:
        """Give it to compaction; tell whether that is new."""
        return await run_job(self._flush_worker, self._keeper.give_reserve)
