"""The garbage collector of a bookie: pass after pass, one step at a time.

    1. ledgers     those of the index that the cluster positively denies are forgotten (R27),
                   unless they wait for an operator's word (``hold``)
    2. surplus     copies that other bookies keep are dropped, once a day (R28, ``surplus``)
    3. entry logs  those in which no run lies any more are deleted
    4. compaction  what lives in mostly dead logs is moved, every hour a little, every day more

A ledger is deleted when all of this holds: a whole listing of the right cluster lacks it, its own
node was asked for and is not there, both of that in two passes with some time and no end of a
session between them, and nothing of it came to this bookie since the last question.  Whatever
fails on the way ends the pass with nothing deleted that was not proven, and with every suspicion
dropped where the metadata store was what failed.

What is asked of the metadata store stands behind ``KnownLedgers``; the bookie supplies it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, TypeVar

from quorumbook.env import Env, logger
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import DiskFullError, MetadataError, QuorumbookError, StorageError
from quorumbook.ids import LedgerId
from quorumbook.storage.collection.surplus import Owners, SurplusCopies
from quorumbook.storage.gc.decisions import (
    DELETIONS_MAX,
    GcPlan,
    LogUsage,
    PassWish,
    Suspicions,
    ledgers_at_a_time,
    plan,
    worth_compacting,
)
from quorumbook.storage.gc.hold import Hold, judge
from quorumbook.storage.gc.ledger_ranges import LedgerRanges, in_batches
from quorumbook.storage.options import Damage, GcOptions
from quorumbook.storage.store import LedgerStorage

T = TypeVar("T")
#: Ledgers asked for at a time; those that are gone are forgotten in one step of the loop.
_BATCH = 200
_STEP_BYTES = 256 * 1024
_SECOND = 1_000_000_000
_log = logger("storage.gc")


class KnownLedgers(Owners, Protocol):
    """What the metadata store says of ledgers; errors are ``MetadataError``."""

    def listing(self) -> AsyncIterator[LedgerId]:
        """Yield all ledgers of the cluster that this bookie belongs to, ascending, or raise."""
        ...

    async def missing(self, ledger_ids: list[LedgerId]) -> list[LedgerId]:
        """Return those of whose own node the right cluster says that it is not there."""
        ...

    async def next_ledger_id(self) -> LedgerId:
        """Return the counter of the cluster's id generator, which falls only with a backup."""
        ...

    def session(self) -> object:
        """Return what changes when a session ends."""
        ...


@dataclass(slots=True)
class GcStatistics:
    """Counters since the start."""

    passes: int = 0
    failed_passes: int = 0
    deleted_ledgers: int = 0
    suspected_ledgers: int = 0
    #: They wait for an operator's word.
    held_ledgers: int = 0
    dropped_copies: int = 0
    surplus_copies: int = 0
    deleted_logs: int = 0
    reclaimed_deletion_bytes: int = 0
    reclaimed_compaction_bytes: int = 0
    minor_compactions: int = 0
    major_compactions: int = 0
    compacted_bytes: int = 0
    active_logs: int = 0
    active_log_bytes: int = 0
    runtime_ns: int = 0


class Collector:
    """Collects one bookie's garbage; used on the event loop.

    Args:
        storage: Started.
        cluster: What it is compared with.
        options: When and how carefully.
        env: Its clock decides when something is due, its budget how fast compaction goes.
        on_damage: Told of runs that could not be moved.
    """

    def __init__(
        self,
        storage: LedgerStorage,
        cluster: KnownLedgers,
        options: GcOptions,
        env: Env,
        *,
        on_damage: Callable[[Damage], None] = lambda _: None,
    ) -> None:
        self._storage = storage
        self._gc = storage.gc
        self._cluster = cluster
        self.options = self._options = options
        self._env = env
        self._clock = env.clock
        self._on_damage = on_damage
        self._suspicions = Suspicions(int(options.confirm_interval_s * _SECOND))
        self._surplus = SurplusCopies(
            storage,
            cluster,
            env.clock,
            interval_s=options.surplus_interval_s,
            grace_s=options.surplus_grace_s,
        )
        self._hold: Hold | None = None
        #: What its note says on disk; None while nobody knows.
        self._written: Hold | None = None
        self._minor_ns = self._major_ns = self._clock.now_ns()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._asked = PassWish.NOTHING
        self._compacted: set[int] = set()
        #: Kinds of compaction that an operator holds back.
        self.is_suspended = False
        self.is_running = False
        #: Somebody has all of the index read.
        self.is_looked_at = False
        self.statistics = GcStatistics()

    # Life

    def start(self) -> None:
        """Begin to collect."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End, between two steps."""
        task, self._task = self._task, None
        if task is not None:
            await cancel_and_wait([task])

    def trigger(self, *, minor: bool = False, major: bool = False, force: bool = True) -> None:
        """Begin a pass soon; a forced one deletes all ledgers that are proven gone."""
        self._asked |= PassWish.ALL_PROVEN if force else PassWish.NOTHING
        self._asked |= PassWish.MINOR if minor else PassWish.NOTHING
        self._asked |= PassWish.MAJOR if major else PassWish.NOTHING
        self._wake.set()

    def suspend(self) -> None:
        """Compact nothing until ``resume``; a compaction under way ends after its step."""
        self.is_suspended = True

    def resume(self) -> None:
        """Compact again."""
        self.is_suspended = False

    @contextlib.asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        """Have ``plan`` or ``usages`` read all of the index for somebody; one at a time.

        Who goes on after this one was given up finds nothing of it under way any more.
        """
        self.is_looked_at = True
        try:
            yield
        finally:
            await self._gc.decide(lambda: None)
            self.is_looked_at = False

    async def usages(self) -> list[LogUsage]:
        """Return every entry log with what lives in it; reads the whole index."""
        return await self._gc.usages()

    async def plan(self, *, minor: bool = False, major: bool = False) -> GcPlan:
        """Say what a pass would do; asks and reads as it does, and changes nothing.

        Raises:
            MetadataError: the metadata store cannot say which ledgers there are.
        """
        missing, _ = await self._missing()
        threshold = 0.0
        if not self.is_suspended:
            threshold = self._options.compaction_threshold(minor=minor, major=major)
        return plan(len(missing), await self.usages(), threshold)

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s()):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self.collect()
            except Exception:
                # A disk must not fill up because of one pass.
                self.statistics.failed_passes += 1
                _log.exception("garbage collection stops until its next pass")

    def _pause_s(self) -> float:
        options = self._options
        if self._suspicions:
            return min(options.interval_s, max(options.confirm_interval_s, 1.0))
        return options.interval_s

    async def collect(self, *, is_forced: bool = False) -> None:
        """Make one pass; what fails in it is logged, and tried again in the next one."""
        started = self._clock.now_ns()
        self.is_running = True
        # All of it at once: who asks from now on wants a pass that counts anew.
        asked, self._asked = self._asked, PassWish.NOTHING
        asked |= PassWish.ALL_PROVEN if is_forced else PassWish.NOTHING
        left = asked
        try:
            await self._gc.keep_reserve(self._options.reserve_size_bytes)
            could_delete = await self._delete_ledgers(is_forced=PassWish.ALL_PROVEN in asked)
            if could_delete:
                left &= ~PassWish.ALL_PROVEN
            await self._forget_deletions()
            await self._drop_surplus()
            await self._delete_logs()
            # Else there is more to be compacted once ledgers can be deleted.
            if await self._compact(asked) and could_delete:
                left = PassWish.NOTHING
            self.statistics.passes += 1
        except QuorumbookError as error:
            self.statistics.failed_passes += 1
            _log.warning("garbage collection stops until its next pass: %s", error)
        finally:
            self._asked |= left
            self.is_running = False
            self.statistics.runtime_ns += self._clock.now_ns() - started

    # Ledgers

    async def _delete_ledgers(self, *, is_forced: bool) -> bool:
        """Delete what may go; tell whether the metadata store had its say, in one session."""
        if self._storage.needs_limbo_start:
            _log.info("no ledger is deleted before the limbo start is over")
            return False
        try:
            session = self._cluster.session()
            next_id = await self._cluster.next_ledger_id()
            missing, known = await self._missing()
            if session != self._cluster.session():
                self._suspicions.forget()
                return False
            now_ns = self._clock.now_ns()
            due = await self._gc.decide(lambda: self._suspicions.see(missing, session, now_ns))
            due = await self._released(due, missing, known, next_id)
            allowed = ledgers_at_a_time(
                len(due), known, self._options.max_ledgers_share, is_forced=is_forced
            )
            if allowed < len(due):
                _log.warning(
                    "%d of %d ledgers are gone from the metadata; %d are deleted now, the others "
                    "in later passes, or by `quorumbook bookie gc` at once",
                    len(due), known, allowed,
                )  # fmt: skip
            await self._delete_proven(due.first(allowed))
            return session == self._cluster.session()
        except MetadataError as error:
            # Two findings count only with a store in between that answered.
            self._suspicions.forget()
            _log.warning("no ledger is deleted: %s", error)
            return False
        finally:
            self.statistics.suspected_ledgers = len(self._suspicions)

    # What waits for an operator

    async def hold(self) -> Hold:
        """Return what waits for an operator's word."""
        if self._hold is None:
            found = await self._gc.read_hold()
            if self._hold is None:  # another task may have been faster, and further
                self._hold = self._written = found
            self.statistics.held_ledgers = len(self._hold.held)
        return self._hold

    async def approve(self, set_id: str) -> bool:
        """Let exactly that set of ledgers go; False if another one is held by now."""
        hold = await self.hold()
        while hold.held and hold.set_id == set_id:
            approved = hold.approve()
            # Nothing may go by a word that a restart would not find.
            await self._write(approved)
            if self._hold is hold:
                _log.warning("the operator approves of the deletion of %d ledgers", len(hold.held))
                self._keep(approved)
                self.trigger(force=False)
                return True
            hold = await self.hold()
        return False

    def _keep(self, hold: Hold) -> None:
        self._hold = hold
        self.statistics.held_ledgers = len(hold.held)

    async def _write(self, hold: Hold) -> None:
        self._written = None
        await self._gc.write_hold(hold)
        self._written = hold

    async def _released(
        self, due: LedgerRanges, missing: LedgerRanges, known: int, next_id: LedgerId
    ) -> LedgerRanges:
        """Return which of the ledgers that are due may go without a word, or have one."""
        before = await self.hold()
        now_ms = self._clock.wall_ms()

        def judged() -> tuple[Hold, LedgerRanges]:
            found, free = judge(
                before, due, missing, known=known, next_id=next_id,
                share_max=self._options.max_unapproved_share, now_ms=now_ms,
            )  # fmt: skip
            return found.named(), free

        hold, free = await self._gc.decide(judged)
        while self._hold is not before:
            # The operator spoke meanwhile.
            before = await self.hold()
            hold, free = await self._gc.decide(judged)
        if hold != before:
            self._keep(hold)
        if hold != self._written:
            try:
                await self._write(hold)
            except StorageError as error:
                # A full disk waits for deletions; what was decided holds in this process.
                _log.warning("what is held of deletions could not be written down: %s", error)
        if hold.held:
            _log.warning(
                "the deletion of %d ledgers (%d to %d) waits for the operator: %s; see `quorumbook "
                "bookie gc-hold`, and if it is right, add --approve %s",
                len(hold.held), *hold.held.ends, hold.reason, hold.set_id,
            )  # fmt: skip
        return free

    async def _missing(self) -> tuple[LedgerRanges, int]:
        """Return the ledgers that the cluster denies now, and how many are known here.

        Both lists ascend, and go by side by side.  One that is made meanwhile may be known here
        and not listed; its own node is there.
        """
        listing = self._cluster.listing()
        listed = await anext(listing, None)
        known = 0
        missing: list[LedgerRanges] = []
        async for page in self._gc.ledger_ids():
            known += len(page)
            unlisted = dict.fromkeys(page)
            while listed is not None and listed <= page[-1]:
                unlisted.pop(listed, None)
                listed = await anext(listing, None)
            found = [await self._cluster.missing(batch) for batch in in_batches(unlisted, _BATCH)]
            missing.append(LedgerRanges.of(chain.from_iterable(found)))
        async for _ in listing:
            """Only its end says that it was whole."""
        return await self._gc.decide(lambda: LedgerRanges.in_order(missing)), known

    async def _delete_proven(self, ledger_ids: LedgerRanges) -> None:
        session = self._cluster.session()
        deleted = 0
        if ledger_ids:
            # What lies in a write cache counts as new, and would keep its ledger for a pass more.
            await self._flush()
        for batch in in_batches(ledger_ids, _BATCH):
            checkpoints = self._gc.checkpoints
            missing = await self._cluster.missing(batch)
            if session != self._cluster.session():
                self._suspicions.forget()
                break
            deleted += len(self._gc.forget_ledgers(missing, checkpoints))
        if deleted:
            await self._flush()
            self.statistics.deleted_ledgers += deleted
            _log.info("%d ledgers are deleted here, as they are in the metadata", deleted)

    async def _forget_deletions(self) -> None:
        before_ms = self._clock.wall_ms() - int(self._options.deletions_remembered_s * 1000)
        await self._gc.forget_deletions(before_ms, DELETIONS_MAX)

    async def _flush(self) -> None:
        await self._with_reserve(self._storage.flush)

    async def _with_reserve(self, delete: Callable[[], Awaitable[T]]) -> T:
        try:
            return await delete()
        except DiskFullError:
            # The disk waits for this deletion, and the deletion for the disk.
            if not await self._gc.give_reserve():
                raise
            return await delete()

    async def _drop_surplus(self) -> None:
        if self._storage.needs_limbo_start:
            return
        try:
            self.statistics.dropped_copies += await self._surplus.collect()
        except MetadataError as error:
            _log.warning("no copy is dropped: %s", error)
        self.statistics.surplus_copies = len(self._surplus)

    # Entry logs

    async def _delete_logs(self) -> None:
        removed = await self._with_reserve(self._gc.remove_unused)
        statistics = self.statistics
        for entry_log_id, size in removed.items():
            _log.info("entry log %x holds nothing any more, it is removed", entry_log_id)
            statistics.deleted_logs += 1
            if entry_log_id in self._compacted:
                self._compacted.discard(entry_log_id)
                statistics.reclaimed_compaction_bytes += size
            else:
                statistics.reclaimed_deletion_bytes += size

    async def _compact(self, asked: PassWish) -> bool:
        """Compact what is due or asked for; False if an operator held it back."""
        threshold = self._due_threshold(asked)
        if threshold:
            await self._gc.begin_compaction()
        usages = await self.usages()
        self.statistics.active_logs = len(usages)
        self.statistics.active_log_bytes = sum(usage.size_bytes for usage in usages)
        if not threshold:
            return not self.is_suspended
        chosen = worth_compacting(usages, threshold)
        try:
            for usage in chosen:
                if not await self._compact_log(usage.entry_log_id):
                    return False
        finally:
            await asyncio.shield(self._gc.finish_compaction())
        return True

    def _due_threshold(self, asked: PassWish) -> float:
        """Return below which live ratio logs are compacted now, 0 for none."""
        options, now = self._options, self._clock.now_ns()
        is_major = PassWish.MAJOR in asked or (
            now - self._major_ns >= options.major_compaction_interval_s * _SECOND
        )
        is_minor = PassWish.MINOR in asked or (
            now - self._minor_ns >= options.minor_compaction_interval_s * _SECOND
        )
        if self.is_suspended or not (is_major or is_minor):
            return 0.0
        self._minor_ns = now
        if is_major and options.major_compaction_threshold:
            self._major_ns = now
            self.statistics.major_compactions += 1
        else:
            self.statistics.minor_compactions += 1
        return options.compaction_threshold(minor=is_minor, major=is_major)

    async def _compact_log(self, entry_log_id: int) -> bool:
        """Move what lives in a log, and delete it; tell whether to go on with the next one."""
        size = _STEP_BYTES
        while not self.is_suspended:
            try:
                step = await self._gc.compact_some(entry_log_id, size)
            except DiskFullError:
                if await self._gc.give_reserve():
                    # A step has to fit into what the reserve gave, beside all else that grows.
                    size = min(size, max(self._options.reserve_size_bytes // 4, 1))
                    continue
                raise
            self.statistics.compacted_bytes += step.moved_bytes
            self._surplus.note_moves(step.shifts)
            for damage in step.damages:
                self._on_damage(damage)
            if step.is_done:
                _log.debug("entry log %x is compacted", entry_log_id)
                self._compacted.add(entry_log_id)
                await self._delete_logs()
                return True
            # It was read, and written.
            await self._env.background.take(2 * step.moved_bytes, "compaction")
        return False
