"""Keeps a writer's records moving: packs, sends, resolves, and changes segments.

Sending is done in turns of the loop.  Everything that changes metadata is done by one task, the
conductor, one thing after the other: taking a ledger, starting and completing a segment, getting
over a ledger that failed.  Meanwhile what is appended waits in the queue.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from heapq import heappop, heappush
from typing import Any

from quorumbook.client.waiting.outcomes import copy_error
from quorumbook.client.waiting.window import ENTRY_OVERHEAD_BYTES
from quorumbook.env import Complaint, logger
from quorumbook.env.forks import watch
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import (
    ClientClosedError,
    InternalError,
    LedgerFencedError,
    LocalProtocolError,
    MetadataError,
    QuorumbookError,
)
from quorumbook.ids import EntryId
from quorumbook.streams.errors import (
    LockLostError,
    StreamError,
    WriterBusyError,
    WriterFencedError,
)
from quorumbook.streams.metadata.lock import StreamLock
from quorumbook.streams.metadata.policy import StreamPolicy, known
from quorumbook.streams.stream_context import StreamContext
from quorumbook.streams.writing.intake import Intake
from quorumbook.streams.writing.limits import RateLimit
from quorumbook.streams.writing.options import WriterOptions
from quorumbook.streams.writing.pending import PackedRun, PendingAppend
from quorumbook.streams.writing.segment_writer import SegmentWriter

_log = logger("streams.writer")
#: Bookies or metadata that are missing are waited for this long.
_PATIENCE_NS = 60_000_000_000
_RETRY_S = 0.2
#: Entries on their way take so many bytes at most, and those of one more.
_IN_FLIGHT_BYTES = 32 * 1024 * 1024
#: Bookies begin with so much while the rest is packed.
_TURN_BYTES = 256 * 1024
#: How often the age of a segment is looked at, as a part of what it may be.
_ROLL_LOOKS = 8


class Pump:
    """What moves the records of one writer."""

    def __init__(
        self,
        context: StreamContext,
        options: WriterOptions,
        policy: StreamPolicy,
        intake: Intake,
        segments: SegmentWriter,
    ) -> None:
        self._context = context
        self._options = options
        self._policy = policy
        self._loop = asyncio.get_running_loop()
        self.intake = intake
        self.state = intake.state
        self.window = intake.window
        self.segments = segments
        self._limit: RateLimit | None = None
        rates = known(policy.max_records_per_s), known(policy.max_bytes_per_s)
        if any(rates):
            self._limit = RateLimit(*rates, context.store.env.clock.now_ns())
        #: What ended the writer.
        self.error: QuorumbookError | None = None
        #: Why nothing is sent to the present segment any more.
        self.ledger_error: BaseException | None = None
        self.is_roll_wanted = False
        self.is_closing = False
        self.is_scheduled = False
        #: From which sequence id on records were appended since when; by turns of the loop.
        self._turns: deque[tuple[int, int]] = deque()
        self._numbers = context.numbers()
        self._numbers.writers.add(self)
        self._conductor: asyncio.Task[None] | None = None
        self._roll_timer: asyncio.TimerHandle | None = None
        self._idle: list[asyncio.Future[None]] = []
        #: Who waits for which sequence id, the lowest first.
        self._awaited: list[tuple[int, int, asyncio.Future[None]]] = []
        self._tickets = itertools.count()
        #: What a child made by fork is told.
        self._forked: LocalProtocolError | None = None
        watch(self, Pump.abandon)

    @property
    def pending_records(self) -> int:
        """How many records were appended and are not acknowledged."""
        return self.window.used_entries + self.intake.gathered

    def abandon(self, error: LocalProtocolError, *, may_act: bool) -> None:
        """In a child made by fork: take nothing more; see ``env.forks``."""
        self._forked = error
        if may_act:
            self.fail(error)
        self.error = self.error or error
        self.window.is_over = True

    def check_owner(self) -> None:
        """Raise LocalProtocolError in a child made by fork, where nothing of it ever ends."""
        if self._forked is not None:
            raise copy_error(self._forked)

    async def stop(self) -> None:
        """Change segments no more, and have whoever waits for room go on."""
        self._numbers.writers.discard(self)
        self.window.is_over = True
        self.window.wake()
        if self._roll_timer is not None:
            self._roll_timer.cancel()
        if self._conductor is not None:
            await cancel_and_wait([self._conductor])

    # Inside: sending -----------------------------------------------------------------------

    def begin_turn(self, first_sequence_id: int) -> None:
        """Note when the records from one on were appended, and send them later."""
        self._turns.append((first_sequence_id, self._context.store.env.clock.now_ns()))
        self.schedule()

    def schedule(self) -> None:
        """Send what is queued when the turn of the loop, or the linger, is over."""
        self.is_scheduled = True
        if self._options.linger_s and not self.state.in_flight:
            self._loop.call_later(self._options.linger_s, self._send)
        else:
            self._loop.call_soon(self._send)

    def _send(self) -> None:
        self.is_scheduled = False
        if self.error is not None:
            return
        self.intake.take()
        segments, state = self.segments, self.state
        if not segments.is_open or self.ledger_error is not None or self.is_roll_wanted:
            if state.queued_count or self.is_roll_wanted:
                self.wake()
            return
        now_ms = self._context.store.env.clock.wall_ms()
        runs: list[PackedRun] = []
        room_bytes = _TURN_BYTES
        try:
            while (
                state.in_flight < self._options.max_in_flight_entries
                and state.in_flight_bytes < _IN_FLIGHT_BYTES
            ):
                if room_bytes <= 0:
                    self.schedule()
                    break
                if self._is_too_fast():
                    break
                run = state.pack(now_ms, *self._room(room_bytes))
                if run is None:
                    break
                run.appended_ns = self._appended_ns(run)
                runs.append(run)
                room_bytes -= run.size_bytes
                if self._limit is not None:
                    self._limit.take(run.record_count, run.size_bytes)
                if segments.is_full(state):
                    self.is_roll_wanted = True
                    self.wake()
                    break
            if runs:
                segments.append_all(runs, self)
        except QuorumbookError as error:
            self._on_ledger_failed(error)
        except Exception as error:
            # A bug must end the writer loudly, not leave its callers waiting.
            failure = InternalError(f"sending failed: {error!r}")
            failure.__cause__ = error
            self.fail(failure)

    def _room(self, room_bytes: int) -> tuple[int, int]:
        """Return how many entries may be packed together, and behind how many bytes no more."""
        state = self.state
        if self._limit is not None:
            return 1, room_bytes
        entries, size_bytes = self.segments.room(state)
        return (
            min(entries, self._options.max_in_flight_entries - state.in_flight),
            min(size_bytes, room_bytes, _IN_FLIGHT_BYTES - state.in_flight_bytes),
        )

    def _appended_ns(self, run: PackedRun) -> int:
        """Return when the first record of a run was appended, and forget earlier ones."""
        turns = self._turns
        if run.parts:
            pending, first, _, _ = run.parts[0]
            sequence_id = pending.first_sequence_id + first
            while len(turns) > 1 and turns[1][0] <= sequence_id:
                turns.popleft()
        return turns[0][1] if turns else self._context.store.env.clock.now_ns()

    def _count(self, run: PackedRun, now_ns: int) -> None:
        if run.record_count:
            took_ns = now_ns - run.appended_ns
            self._numbers.on_stored(len(run.entries), run.record_count, run.size_bytes, took_ns)

    def _is_too_fast(self) -> bool:
        """Tell whether the policy's rate has entries wait; they are sent later."""
        if self._limit is None or not self.state.queued_count:
            return False
        wait_s = self._limit.wait_s(self._context.store.env.clock.now_ns())
        if wait_s:
            self.is_scheduled = True
            self._loop.call_later(wait_s, self._send)
        return wait_s > 0

    def on_entries_confirmed(self, last_entry_id: EntryId) -> None:
        """Resolve what is safe, and send what waited for it."""
        if self.error is not None or self.ledger_error is not None:
            return
        self._resolve(self._confirm(last_entry_id))
        if self.state.queued_count:
            if not self.is_scheduled:
                self.schedule()
        elif not self.state.in_flight:
            self._wake_idle()

    def _confirm(self, last_entry_id: EntryId) -> list[PendingAppend]:
        """Count what is safe up to an entry; return the appends that are complete with it."""
        now_ns = self._context.store.env.clock.now_ns()
        finished: list[PendingAppend] = []
        while (run := self.state.oldest(last_entry_id)) is not None:
            self._count(run, now_ns)
            finished += self.state.on_confirmed(run)
        return finished

    def _resolve(self, finished: list[PendingAppend]) -> None:
        count = size_bytes = 0
        for pending in finished:
            count += pending.count
            size_bytes += pending.size_bytes
            if not pending.future.done():
                pending.future.set_result(pending.result())
            _tell_each(pending)
        if count:
            self.window.give_back(count, size_bytes + count * ENTRY_OVERHEAD_BYTES, 0)
        confirmed_to = self.state.confirmed_to
        while self._awaited and self._awaited[0][0] < confirmed_to:
            future = heappop(self._awaited)[2]
            if not future.done():
                future.set_result(None)

    # Inside: segments ----------------------------------------------------------------------

    def wake(self) -> None:
        """Have the conductor look for what is to be done."""
        if self._conductor is None and self.error is None:
            self._conductor = self._loop.create_task(self._conduct())

    async def _conduct(self) -> None:
        clock = self._context.store.env.clock
        failing_since_ns: int | None = None
        complaint = Complaint(_log)
        try:
            while self.error is None:
                try:
                    if not await self._do_next():
                        break
                    failing_since_ns = None
                except QuorumbookError as error:
                    now_ns = clock.now_ns()
                    if failing_since_ns is None:
                        failing_since_ns = now_ns
                    if not error.retriable or now_ns - failing_since_ns > _PATIENCE_NS:
                        raise
                    complaint.say(f"stream {self._context.name}: {error}; trying again", now_ns)
                    await asyncio.sleep(_RETRY_S)
        except asyncio.CancelledError:
            raise
        except QuorumbookError as error:
            self.fail(error)
        except Exception as error:
            failure = InternalError(f"changing segments failed: {error!r}")
            failure.__cause__ = error
            self.fail(failure)
        finally:
            self._conductor = None
        if self.state.queued_count and not self.is_scheduled:
            self.schedule()
        elif not self.state.in_flight:
            self._wake_idle()

    async def _do_next(self) -> bool:
        """Do the next thing that changes segments; False if there is none."""
        state, segments = self.state, self.segments
        if self.ledger_error is not None:
            await self._get_over(self.ledger_error)
        elif self.is_roll_wanted:
            if segments.is_open:
                await segments.drained()
                if self.ledger_error is not None:
                    return True
                try:
                    await segments.complete(state)
                except StreamError:
                    raise
                except QuorumbookError as error:
                    # Its ledger could not be closed as it should: others had a hand in it.
                    self.ledger_error = error
                    return True
                self._numbers.segments_completed += 1
            self.is_roll_wanted = False
        elif state.queued_count and not segments.is_open:
            await segments.ensure(state)
            self._watch_age()
        else:
            return False
        return True

    async def _get_over(self, error: BaseException) -> None:
        """Find out what a failed ledger holds, and go on with the next one."""
        if isinstance(error, ClientClosedError) or not isinstance(error, QuorumbookError):
            raise error
        if await self.segments.is_taken_over(error):
            raise WriterFencedError(
                f"another writer took stream {self._context.name} over"
            ) from error
        if self._options.on_segment_error == "fail":
            self.fail(error)
            return
        _log.warning("stream %s: %s; going on in another segment", self._context.name, error)
        last = await self.segments.end_after_failure()
        self._resolve(self._confirm(last))
        for run in reversed(self.state.under_way):
            if run.parts:
                self._numbers.records_reappended += run.record_count
                pending, first, _, _ = run.parts[0]
                self._turns.appendleft((pending.first_sequence_id + first, run.appended_ns))
        self.state.on_segment_failed(last)
        await self.segments.after_failure(self.state)
        self.ledger_error = None
        self.is_roll_wanted = False

    def on_entries_failed(self, error: QuorumbookError) -> None:
        """Find out what the ledger holds, unless the writer is over."""
        if self.error is None:
            self._on_ledger_failed(error)

    def _on_ledger_failed(self, error: BaseException) -> None:
        if self.ledger_error is None:
            self.ledger_error = error
            self.wake()

    def _watch_age(self) -> None:
        interval_s = known(self._policy.roll_interval_s)
        if self._roll_timer is not None:
            self._roll_timer.cancel()
            self._roll_timer = None
        if interval_s and self.segments.is_open and self.error is None:
            look_s = max(interval_s / _ROLL_LOOKS, 0.01)
            self._roll_timer = self._loop.call_later(look_s, self._look_at_age)

    def _look_at_age(self) -> None:
        if not self.is_closing and self.segments.is_old(known(self._policy.roll_interval_s)):
            tail = self.state.tail
            if tail is not None and tail.record_count and not self.is_roll_wanted:
                self.is_roll_wanted = True
                self.wake()
        self._watch_age()

    # The lock ------------------------------------------------------------------------------

    async def lock_again(self, lock: StreamLock) -> None:
        """Take the lock again that went with its session, or fail if somebody else has it.

        Appending goes on meanwhile: the fence and the nodes' versions are what keeps it safe.
        """
        delay_s = 0.1
        while self.error is None:
            try:
                await lock.acquire(wait_s=0)
                break
            except WriterBusyError as error:
                lost = LockLostError(
                    f"the lock of stream {self._context.name} went with the metadata session, and "
                    f"{error.owner} has it now"
                )
                lost.__cause__ = error
                self.fail(lost)
            except MetadataError as error:
                _log.warning("stream %s: its lock: %s", self._context.name, error)
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, 5.0)

    # Inside: waiting and the end -----------------------------------------------------------

    async def seal(self) -> None:
        """Complete the segment by an entry that says that nothing comes any more."""
        try:
            await self.segments.ensure(self.state)
            entry = self.state.pack_end()
            await self.segments.append(entry)
            self.state.on_confirmed(entry)
            await self.segments.complete(self.state)
        except LedgerFencedError as error:
            fenced = WriterFencedError(f"another writer took stream {self._context.name} over")
            self.fail(fenced)
            raise fenced from error
        except QuorumbookError as error:
            self.fail(error)
            raise

    def fail(self, error: QuorumbookError) -> None:
        """Be over: what is pending gets this error, and nothing is sent any more."""
        if self.error is None:
            self.give_up(error)
            self.segments.stop(error)

    def give_up(self, error: QuorumbookError) -> None:
        """Be over: what is pending gets this error, unless something ended the writer before."""
        if self.error is not None:
            return
        self.error = error
        self._numbers.writers_fenced += isinstance(error, WriterFencedError | LockLostError)
        self.intake.take()
        lost: list[asyncio.Future[Any] | None] = [future for *_, future in self._awaited]
        for pending in self.state.fail():
            _tell_each(pending)  # those whose entries are safe
            lost += [pending.future, *pending.futures]
        for future in lost:
            if future is not None and not future.done():
                future.set_exception(copy_error(error))
                # Who does not look at the future learns of it from flush and close.
                future.exception()
        self._awaited.clear()
        self.window.clear()
        self._wake_idle()

    async def confirmed(self, sequence_id: int) -> None:
        """Wait until a record, and all before it, are safe; raises what prevents it."""
        if sequence_id < self.state.confirmed_to:
            return
        if self.error is not None:
            raise copy_error(self.error)
        future: asyncio.Future[None] = self._loop.create_future()
        heappush(self._awaited, (sequence_id, next(self._tickets), future))
        await future

    async def settled(self) -> None:
        """Wait until nothing is on its way or waits to be sent; raises what prevents it."""
        self.intake.take()
        while self.error is None and self._is_busy:
            future: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(future)
            await future
        if self.error is not None:
            raise copy_error(self.error)

    @property
    def _is_busy(self) -> bool:
        state = self.state
        return bool(
            self.intake.gathered
            or state.in_flight
            or state.queued_count
            or self._conductor
            or self.ledger_error
        )

    def _wake_idle(self) -> None:
        if self.error is None and self._is_busy:
            return
        idle, self._idle = self._idle, []
        for future in idle:
            if not future.done():
                future.set_result(None)


def _tell_each(pending: PendingAppend) -> None:
    """Tell those who wait for single records of an append where they are, as far as it is known."""
    if pending.futures:
        for future, appended in zip(pending.futures, pending.each(), strict=False):
            if future is not None and not future.done():
                future.set_result(appended)
