"""When scrub reads what, and what it does about what it finds.

A cycle reads every run that the index knows, log by log, at a set rate; its position is kept, so
that a restart goes on where it was.  A run that is wrong is judged entry by entry
(``decisions``), and entries that cannot be believed are put on record in the index before
anybody is told: from then on they answer an I/O error and are missing from lists of entries,
until somebody adds them again.

What readers and compaction stumble over comes here as well (``suspect``) and is judged first.
At the end of a cycle the index itself is read as a whole.

Marking the ledger, and copying its entries back, are left to whoever knows the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quorumbook.env import Env, logger
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import StorageError
from quorumbook.ids import EntryId, LedgerId
from quorumbook.protocol.digest import Digester
from quorumbook.storage.index.stored_run import StoredRun
from quorumbook.storage.index.tables import DamagedIndexError
from quorumbook.storage.options import Damage, ScrubOptions
from quorumbook.storage.scrub.decisions import ScrubPosition, damaged_entries
from quorumbook.storage.scrub.scrub_storage import ScrubStorage

_log = logger("storage.scrub")
_SECOND = 1_000_000_000
_STEP_BYTES = 1024 * 1024
#: The position is remembered each time that many bytes were read.
_REMEMBER_BYTES = 64 * _STEP_BYTES
_SUSPECTS_MAX = 10_000
_RETRY_S = 60.0


@dataclass(slots=True)
class ScrubStatistics:
    """Counters since the start."""

    cycles: int = 0
    failed_cycles: int = 0
    checked_runs: int = 0
    checked_bytes: int = 0
    damaged_entries: int = 0
    redeemed_entries: int = 0
    runtime_ns: int = 0


@dataclass(frozen=True, slots=True)
class ScrubProgress:
    """How far a cycle is, and when the next one is due."""

    is_running: bool
    #: What this cycle has read so far, of all that lies in the entry logs now.
    done_bytes: int
    total_bytes: int
    #: Wall time of the end of the last whole cycle.
    finished_at_ms: int | None
    #: None: no other is due.
    next_in_s: float | None


class Scrubber:
    """Scrubs one bookie's storage; used on the event loop.

    Args:
        storage: Reads and records.
        options: How often and how fast.
        env: Its clock keeps the rate, within its budget for background I/O.
        digester: Gives what verifies the entries of a ledger, None where nobody knows how.
        on_damage: Told of entries that are newly on record.
        on_index_damaged: Told that the index cannot be believed any more.
    """

    def __init__(
        self,
        storage: ScrubStorage,
        options: ScrubOptions,
        env: Env,
        *,
        digester: Callable[[LedgerId], Awaitable[Digester | None]],
        on_damage: Callable[[Damage], None],
        on_index_damaged: Callable[[StorageError], None],
    ) -> None:
        self._storage = storage
        self._options = options
        self._clock = env.clock
        self._budget = env.background
        self._digester = digester
        self._on_damage = on_damage
        self._on_index_damaged = on_index_damaged
        self._suspects: dict[tuple[LedgerId, EntryId, EntryId], None] = {}
        self._wake = asyncio.Event()
        self._is_triggered = False
        self._is_cycling = False
        #: Where the cycle under way is, once that is known.
        self._at: ScrubPosition | None = None
        self._task: asyncio.Task[None] | None = None
        self.statistics = ScrubStatistics()

    # Life

    def start(self) -> None:
        """Begin to scrub."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End, between two steps; the next start goes on about here."""
        task, self._task = self._task, None
        if task is not None:
            await cancel_and_wait([task])

    def trigger(self) -> None:
        """Begin a cycle soon."""
        self._is_triggered = True
        self._wake.set()

    async def progress(self) -> ScrubProgress:
        """Tell how far it is.

        Raises:
            StorageError: The index cannot be read.
        """
        # Before the position is read: a cycle that ends meanwhile still counts as under way, not as
        # one that never was.
        is_running = self._is_triggered or self._is_cycling
        position = self._at or await self._storage.read_position()
        sizes = await self._storage.sizes()
        done = sum(size for log, size in sizes.items() if log < position.entry_log_id)
        done += min(position.position, sizes.get(position.entry_log_id, 0))
        interval_s = self._options.interval_s
        return ScrubProgress(
            is_running=is_running,
            done_bytes=done,
            total_bytes=sum(sizes.values()),
            finished_at_ms=position.finished_ms or None,
            next_in_s=(
                position.wait_s(self._clock.wall_ms(), interval_s)
                if (interval_s or position.is_within) and not is_running
                else None
            ),
        )

    def suspect(self, damage: Damage) -> None:
        """Have entries judged soon that somebody could not read."""
        if len(self._suspects) < _SUSPECTS_MAX:
            key = (damage.ledger_id, damage.first_entry_id, damage.last_entry_id)
            self._suspects[key] = None
            self._wake.set()

    async def _run(self) -> None:
        retry_s = 0.0
        while True:
            try:
                await self._sleep(max(await self._wait_s(), retry_s))
                retry_s = 0.0
                await self.settle_suspects()
                if self._is_triggered or await self._wait_s() <= 0:
                    if self._is_triggered:
                        await self._begin_anew()
                    await self.cycle()
            except StorageError as error:
                _log.error("scrub goes on later: %s", error)
            except Exception:
                _log.exception("scrub goes on later")
            else:
                continue
            self.statistics.failed_cycles += 1
            retry_s = _RETRY_S

    async def _sleep(self, wait_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
        self._wake.clear()

    async def _wait_s(self) -> float:
        if self._is_triggered:
            return 0.0
        position = await self._storage.read_position()
        if not self._options.interval_s and not position.is_within:
            return _RETRY_S
        return position.wait_s(self._clock.wall_ms(), self._options.interval_s)

    # A cycle

    async def _begin_anew(self) -> None:
        """Have the next cycle read everything, even after a restart."""
        position = await self._storage.read_position()
        await self._storage.write_position(ScrubPosition(0, 0, position.finished_ms))
        self._is_triggered = False

    async def cycle(self) -> None:
        """Read everything that is left of a cycle.

        Raises:
            StorageError: The index failed; the next attempt goes on where this one was.
        """
        started = self._clock.now_ns()
        self._is_cycling = True
        try:
            position = await self._storage.read_position()
            for entry_log_id in await self._storage.entry_log_ids():
                if entry_log_id < position.entry_log_id:
                    continue
                begin = position.position if entry_log_id == position.entry_log_id else 0
                await self._read_log(entry_log_id, begin, position.finished_ms)
            await self._storage.check_index()
            await self._storage.write_position(ScrubPosition(finished_ms=self._clock.wall_ms()))
            self.statistics.cycles += 1
        except DamagedIndexError as error:
            self._on_index_damaged(error)
            raise
        finally:
            self._at, self._is_cycling = None, False
            self.statistics.runtime_ns += self._clock.now_ns() - started

    async def _read_log(self, entry_log_id: int, position: int, finished_ms: int) -> None:
        unsaved = 0
        while position >= 0:
            started = self._clock.now_ns()
            self._at = ScrubPosition(entry_log_id, position, finished_ms)
            step = await self._storage.check_some(entry_log_id, position, _STEP_BYTES)
            self.statistics.checked_runs += step.checked_runs
            self.statistics.checked_bytes += step.checked_bytes
            for row in step.doubtful:
                await self._settle(row)
            await self.settle_suspects()
            position = step.position
            unsaved += step.checked_bytes
            if unsaved >= _REMEMBER_BYTES:
                unsaved = 0
                await self._storage.write_position(
                    ScrubPosition(entry_log_id, max(position, 0), finished_ms)
                )
            await self._keep_pace(step.checked_bytes, started)
        if unsaved:
            await self._storage.write_position(ScrubPosition(entry_log_id + 1, 0, finished_ms))

    async def _keep_pace(self, size_bytes: int, started_ns: int) -> None:
        await self._budget.take(size_bytes, "scrub")
        rate = self._options.rate_bytes
        if rate:
            spent_s = (self._clock.now_ns() - started_ns) / _SECOND
            await asyncio.sleep(max(size_bytes / rate - spent_s, 0))

    # Judging

    async def settle_suspects(self) -> None:
        """Judge what readers and compaction could not read."""
        while self._suspects:
            key = next(iter(self._suspects))
            del self._suspects[key]
            for row in await self._storage.runs(*key):
                await self._settle(row)

    async def _settle(self, row: StoredRun) -> None:
        if row.is_damaged:
            return
        if row.checksum is not None:
            # On record before the cluster is asked what else can be believed.
            parts = await self._storage.judge(row, None)
            if parts == [row] or not await self._storage.record([(row, parts)]):
                return
            row = parts[0]
        for part in await self.redeem(row):
            if part.is_damaged:
                self._tell(part)

    def _tell(self, part: StoredRun) -> None:
        self.statistics.damaged_entries += part.entry_count
        first, last = part.first_entry_id, part.last_entry_id
        place = f"entry log {part.entry_log_id:x}, byte {part.position}"
        _log.error(
            "entries %d to %d of ledger %d are damaged (%s)", first, last, part.ledger_id, place
        )
        self._on_damage(Damage(part.ledger_id, first, last, place))

    async def redeem(self, row: StoredRun) -> list[StoredRun]:
        """Judge a run by the digests of its entries, and record the verdict.

        Returns:
            What the index says in its place now; nothing if it had changed meanwhile.
        """
        parts = await self._storage.judge(row, await self._digester(row.ledger_id))
        if row.is_damaged and parts != [row]:
            # What readers have open may be what was there before, a disk that is gone.
            await self._storage.reopen(row.entry_log_id)
        if parts != [row] and not await self._storage.record([(row, parts)]):
            return []
        if row.is_damaged:
            self.statistics.redeemed_entries += row.entry_count - damaged_entries(parts)
        return parts
