"""The replication worker: takes marked ledgers off the queue, one process at a time for each.

A ledger is locked, looked at again, healed, and taken off the queue; the lock is an ephemeral node,
so a worker that dies leaves its ledgers to the others at once when its session ends.  What the
mark says is where to look, not what to do: a bookie that is back is asked what it lacks before
anything is copied to others (S67).

Three things keep it from work that helps nobody:

- A ledger whose writer may live is left to it for a while; only when the lost bookie is still in
  its last ensemble then, it is closed by recovery, and healed (S72).  The lock is held meanwhile.
- A ledger that cannot be healed is left alone for some time, twice as long after each attempt, and
  after a few it is in quarantine: its record says what stands in the way, and it is tried again
  when a bookie appears, also while it is tried, when it is marked for others, or after a long
  time (S69).
- While replication is disabled nothing is begun.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from quorumbook.autorecovery.copying.healing import Healer, HealingOutcome
from quorumbook.autorecovery.copying.pace_keeper import PaceKeeper
from quorumbook.autorecovery.options import WorkerOptions
from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_context, client_store
from quorumbook.env import logger, patience
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import (
    MetadataError,
    MetadataFormatError,
    NoSuchLedgerInMetadataError,
    QuorumbookError,
    SessionExpiredError,
)
from quorumbook.ids import BookieId, LedgerId
from quorumbook.metadata.recovery.quarantine import QUARANTINE_ATTEMPTS, FailedHealing, Quarantine
from quorumbook.metadata.recovery.queue import Mark, UnderreplicationQueue, Work
from quorumbook.metadata.recovery.switches import RecoverySwitches
from quorumbook.metadata.store import Revision

_log = logger("autorecovery.worker")
_NS = 1_000_000_000
#: A metadata store that cannot be asked is asked again after this, then ever later.
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 10.0
#: The wait after the first failure is this part of the longest one.
_FIRST_RETRY_PART = 32
#: Ledgers in quarantine are tried so many times more seldom.
_QUARANTINE_FACTOR = 12


@dataclass(frozen=True, slots=True)
class _Attempt:
    """When healing a ledger began, and how often bookies had appeared until then."""

    at_ms: int
    news: int


class _Rest(NamedTuple):
    """Until when a ledger is left alone."""

    until_ns: int
    #: Of its mark: another one ends the rest. None: nothing does.
    revision: Revision | None


@dataclass(slots=True)
class WorkerStatistics:
    """What a worker did since its start, and what it found."""

    ledgers_healed: int = 0
    ledgers_failed: int = 0
    ledgers_closed: int = 0
    entries_copied: int = 0
    bytes_copied: int = 0
    places_moved: int = 0
    #: In quarantine when there was nothing to take last.
    ledgers_quarantined: int = 0

    def count(self, outcome: HealingOutcome) -> None:
        """Add what was done for one ledger."""
        self.entries_copied += outcome.copied_entries
        self.bytes_copied += outcome.copied_bytes
        self.places_moved += outcome.moved


class ReplicationWorker:
    """One process's worker; a ``Part`` of its auto-recovery.

    Args:
        client: Started; closed by its owner after the worker has stopped.
        name: Whom its locks name, for people to read.
        options: See there.
    """

    def __init__(self, client: BookKeeper, name: str, options: WorkerOptions) -> None:
        self._context = client_context(client)
        self._store = client_store(client)
        self._options = options
        self.queue = UnderreplicationQueue(client_store(client), name)
        self._switches = RecoverySwitches(client_store(client))
        self.quarantine = Quarantine(client_store(client))
        self.statistics = WorkerStatistics()
        self._healer = Healer(client_context(client))
        self._pace = PaceKeeper(client_context(client), options.idle_io_rate_bytes)
        self._slots = asyncio.Semaphore(options.ledgers_at_a_time)
        self._bell = asyncio.Event()
        self._resting: dict[LedgerId, _Rest] = {}
        #: Damaged marks that the log has.
        self._told: set[str] = set()
        self._known: frozenset[BookieId] | None = None
        #: How often bookies appeared, and when last: what began before is tried again.
        self._news = 0
        self._news_ms = 0
        self._runner: asyncio.Task[None] | None = None
        self._jobs: dict[asyncio.Task[None], Work] = {}
        self._remove_callback: Callable[[], None] | None = None

    def start(self) -> None:
        """Begin to take work."""
        self._remove_callback = self._context.bookies.on_change(self._on_registrations)
        self._runner = asyncio.get_running_loop().create_task(self._run())
        self._pace.start()

    async def stop(self) -> None:
        """Give work back, and end."""
        if self._remove_callback is not None:
            self._remove_callback()
        runner, self._runner = self._runner, None
        if runner is not None:
            await cancel_and_wait([runner])
        await self._pace.stop()
        jobs = dict(self._jobs)
        await cancel_and_wait(list(jobs))
        for work in jobs.values():
            if self.queue.is_held(work):
                with contextlib.suppress(MetadataError):  # the lock goes with the session as well
                    await self.queue.release(work)
        self.queue.close()

    # Taking work ---------------------------------------------------------------------------

    async def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                await self._take_work()
                pause_s = _FIRST_PAUSE_S
                continue
            except SessionExpiredError:
                # Whatever was locked is somebody else's now; those jobs notice by themselves.
                with contextlib.suppress(MetadataError):
                    await self._store.renew_session()
                    continue
            except QuorumbookError as error:
                _log.warning("no work can be taken: %s", error)
            except Exception:
                _log.exception("no work can be taken")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _take_work(self) -> None:
        """Take one ledger, or wait until there may be one."""
        self._bell.clear()
        await self._slots.acquire()
        work = None
        try:
            if await self._switches.is_enabled(self._bell.set):
                await self._note_registrations()
                damaged: list[MetadataFormatError] = []
                work = await self.queue.take(self._bell.set, self._skipped(), damaged)
                self._tell_damaged(damaged)
            if work is not None:
                job = asyncio.get_running_loop().create_task(self._job(work))
                self._jobs[job] = work
                job.add_done_callback(self._jobs.pop)
                return
            await self._forget_healed()
        finally:
            if work is None:
                self._slots.release()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._next_retry_s()):
                await self._bell.wait()

    def _tell_damaged(self, damaged: Collection[MetadataFormatError]) -> None:
        """Say each damaged mark once; nobody tells when another one is written in its place."""
        for error in damaged:
            if str(error) not in self._told:
                _log.error("a ledger cannot be taken up: %s", error)
            if error.ledger_id is not None:
                self._rest(error.ledger_id, _LONGEST_PAUSE_S)
        self._told |= set(map(str, damaged))

    async def _forget_healed(self) -> None:
        """Drop the records of ledgers that others took off the queue; count who is left."""
        quarantined = 0
        async for failure in self.quarantine.list():
            try:
                mark = await self.queue.read(failure.ledger_id)
            except MetadataFormatError:
                continue  # said already
            if mark is None:
                await self.quarantine.remove(failure.ledger_id)
            else:
                quarantined += failure.is_quarantined
        self.statistics.ledgers_quarantined = quarantined

    def _skipped(self) -> Mapping[LedgerId, Revision | None]:
        now_ns = self._context.env.clock.now_ns()
        for ledger_id in [i for i, rest in self._resting.items() if rest.until_ns <= now_ns]:
            del self._resting[ledger_id]
        return {ledger_id: rest.revision for ledger_id, rest in self._resting.items()}

    def _next_retry_s(self) -> float | None:
        if not self._resting:
            return None
        until_ns = min(rest.until_ns for rest in self._resting.values())
        return max(0.0, (until_ns - self._context.env.clock.now_ns()) / _NS)

    async def _note_registrations(self) -> None:
        await self._context.bookies.writable()
        if self._known is None:
            self._known = self._context.bookies.registered

    def _on_registrations(self) -> None:
        bookies = self._context.bookies.registered
        if self._known is not None and bookies - self._known:
            self._news += 1
            self._news_ms = self._context.env.clock.wall_ms()
            self._resting.clear()
        self._known = bookies
        self._bell.set()

    # One ledger ----------------------------------------------------------------------------

    async def _job(self, work: Work) -> None:
        """Heal a ledger, in the slot that was taken for it."""
        ledger_id = work.ledger_id
        is_in_slot = True
        attempt = self._attempt()
        try:
            if await self._is_to_rest(work):
                await self.queue.release(work)
                return
            outcome = await self._heal(work)
            if outcome.open_on and not outcome.problems:
                # Others are healed while its writer has its time.
                self._slots.release()
                is_in_slot = False
                await self._wait_for_writer(work, outcome.open_on)
                await self._slots.acquire()
                is_in_slot = True
                attempt = self._attempt()
                outcome = await self._heal(work, may_close=True)
            await self._finish(work, outcome, attempt)
        except SessionExpiredError as error:
            _log.warning("ledger %d: %s", ledger_id, error)
        except QuorumbookError as error:
            await self._finish(work, HealingOutcome(ledger_id, problems=[str(error)]), attempt)
        except Exception as error:
            _log.exception("ledger %d could not be healed", ledger_id)
            outcome = HealingOutcome(ledger_id, problems=[f"a bug: {error!r}"])
            await self._finish(work, outcome, attempt)
        finally:
            if is_in_slot:
                self._slots.release()
            self._bell.set()

    def _attempt(self) -> _Attempt:
        return _Attempt(self._context.env.clock.wall_ms(), self._news)

    async def _is_to_rest(self, work: Work) -> bool:
        """Tell whether somebody failed at this ledger lately, and nothing has changed since."""
        failure = await self.quarantine.read(work.ledger_id)
        if failure is None or failure.at_ms <= self._news_ms:
            return False
        left_ms = failure.retry_at_ms - self._context.env.clock.wall_ms()
        if left_ms <= 0 or failure.replicas != work.mark.replicas:
            return False
        self._rest(work.ledger_id, left_ms / 1000, work.revision)
        return True

    def _rest(self, ledger_id: LedgerId, seconds: float, revision: Revision | None = None) -> None:
        until_ns = self._context.env.clock.now_ns() + int(seconds * _NS)
        self._resting[ledger_id] = _Rest(until_ns, revision)

    async def _heal(self, work: Work, *, may_close: bool = False) -> HealingOutcome:
        """Look who is there, and heal what the others hold no longer."""
        try:
            leave, mend = await self._sides(work.mark)
            if may_close:
                metadata, _ = await self._context.ledgers.read(work.ledger_id)
                if not metadata.is_closed and set(metadata.ensemble) & leave:
                    _log.warning(
                        "ledger %d is closed by recovery: its writer did not replace %s",
                        work.ledger_id,
                        ", ".join(sorted(set(metadata.ensemble) & leave)),
                    )
                    await self._healer.close_ledger(work.ledger_id)
                    self.statistics.ledgers_closed += 1
        except NoSuchLedgerInMetadataError:
            return HealingOutcome(work.ledger_id, is_gone=True)
        with self._pace.healing(work.ledger_id):
            outcome = await self._healer.heal(
                work.ledger_id,
                leave=leave,
                mend=mend,
                adhere=not work.mark.replicas,
                may_go_on=lambda: self.queue.is_held(work),
            )
        self.statistics.count(outcome)
        return outcome

    async def _sides(self, mark: Mark) -> tuple[set[BookieId], set[BookieId]]:
        """Return which bookies are to leave a ledger, and which may lack something of it.

        Where a mark names nobody, all its bookies may, and they may stand in the wrong places.
        """
        metadata, _ = await self._context.ledgers.read(mark.ledger_id)
        members = {bookie for fragment in metadata.fragments for bookie in fragment.ensemble}
        suspects = members & set(mark.replicas) if mark.replicas else members
        bookies = self._context.bookies
        there = await bookies.writable() | await bookies.read_only()
        return suspects - there, suspects & there

    async def _wait_for_writer(self, work: Work, lost: Iterable[BookieId]) -> None:
        """Give a writer its time; less if it replaces the lost bookies, or the ledger is closed."""
        changed = asyncio.Event()
        ring = changed.set  # one object, by which the watch can be forgotten
        with contextlib.suppress(TimeoutError, NoSuchLedgerInMetadataError):
            async with patience.timeout(self._options.open_ledger_grace_s):
                while self.queue.is_held(work):
                    changed.clear()
                    metadata, _ = await self._context.ledgers.read(work.ledger_id, ring)
                    if metadata.is_closed or not set(lost) & set(metadata.ensemble):
                        break
                    await changed.wait()
        self._context.unwatch(ring)

    async def _finish(self, work: Work, outcome: HealingOutcome, attempt: _Attempt) -> None:
        """Take the ledger off the queue, or say why it stays there."""
        ledger_id = work.ledger_id
        if outcome.open_on and not outcome.problems:
            outcome.problems.append(f"its writer has {', '.join(outcome.open_on)} in use again")
        pause_s = _FIRST_PAUSE_S
        failure = None
        while self.queue.is_held(work):
            try:
                if outcome.is_healed:
                    await self.quarantine.remove(ledger_id)
                    await self.queue.done(work)
                    self.statistics.ledgers_healed += 1
                    return
                # One attempt is one failure, however often it has to be written down.
                if failure is None:
                    failure = await self._failure(work, "; ".join(outcome.problems), attempt)
                await self.quarantine.write(failure)
                await self.queue.release(work)
                self.statistics.ledgers_failed += 1
            except SessionExpiredError:
                return  # the lock is gone with it
            except MetadataError as error:
                _log.warning("ledger %d is not released yet: %s", ledger_id, error)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _failure(self, work: Work, reason: str, attempt: _Attempt) -> FailedHealing:
        """Say why a ledger is not healed; let it rest, unless a bookie appeared meanwhile."""
        earlier = await self.quarantine.read(work.ledger_id)
        attempts = 1 if earlier is None else earlier.attempts + 1
        longest_s = self._options.max_retry_s
        wait_s = min(longest_s, longest_s / _FIRST_RETRY_PART * 2 ** min(attempts - 1, 20))
        if attempts >= QUARANTINE_ATTEMPTS:
            wait_s = longest_s * _QUARANTINE_FACTOR
        _log.warning(
            "ledger %d is not healed and rests for %.0f s: %s", work.ledger_id, wait_s, reason
        )
        if self._news == attempt.news:
            self._rest(work.ledger_id, wait_s, work.revision)
        retry_at_ms = self._context.env.clock.wall_ms() + int(wait_s * 1000)
        return FailedHealing(
            work.ledger_id, reason, attempts, attempt.at_ms, retry_at_ms, work.mark.replicas
        )
