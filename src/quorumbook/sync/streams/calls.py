"""Appends on their way from any thread to a writer on the loop thread, in the order of the calls.

Calls queue up and wake the loop thread once for all that came meanwhile.  The window that refuses
what is too much is counted here, on the calling side: a refusal needs no way to the loop and back.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED, RUNNING
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar, cast

from quorumbook.client.waiting.outcomes import copy_error
from quorumbook.client.waiting.window import ENTRY_OVERHEAD_BYTES
from quorumbook.env import forks
from quorumbook.errors import (
    BackpressureError,
    ClientClosedError,
    LocalProtocolError,
    QuorumbookError,
)
from quorumbook.streams.writing import writer as aio
from quorumbook.streams.writing.appended import Appended
from quorumbook.streams.writing.options import WriterOptions

T = TypeVar("T")

_OVER = (FINISHED, CANCELLED, CANCELLED_AND_NOTIFIED)


#: Held while a future gets its condition, or is settled without one.
_settling = threading.Lock()


class LoopFuture(Future[T]):
    """A future that the loop thread settles: in a child made by fork it is never waited for.

    It is running from the start, as cancelling takes no record back.  Most are never waited for,
    so the condition that others have from the start, and what goes with it, is made when somebody
    asks for it: a future is one object until then.
    """

    def __init__(self) -> None:
        self._generation = forks.generation
        self._state = RUNNING
        self._result: T | None = None
        self._exception: BaseException | None = None
        self._own_condition: threading.Condition | None = None

    @property
    def _condition(self) -> threading.Condition:
        """What everybody who looks at a future takes first."""
        if self._generation != forks.generation:
            if self._state not in _OVER:
                raise forks.forked_error()
            self._make_lists()
            return threading.Condition()
        with _settling:
            if self._own_condition is None:
                self._own_condition = threading.Condition()
                self._make_lists()
            return self._own_condition

    @_condition.setter
    def _condition(self, condition: threading.Condition) -> None:
        self._own_condition = condition

    def _make_lists(self) -> None:
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []

    def done(self) -> bool:
        """Tell whether the outcome is known."""
        if self._state in _OVER:
            return True
        forks.check_owner(self._generation)
        return False

    def set_result(self, result: T) -> None:
        """Settle it."""
        with _settling:
            if self._own_condition is None:  # nobody waits, and nobody is to be called
                self._result = result
                self._state = FINISHED
                return
        super().set_result(result)


class _Call(Generic[T]):
    """One append, before and while the writer has it."""

    __slots__ = ("count", "future", "size_bytes", "start")

    def __init__(self, start: Callable[[], asyncio.Future[T]], count: int, size_bytes: int) -> None:
        self.start = start
        self.count = count
        self.size_bytes = size_bytes
        self.future: Future[T] = LoopFuture()

    def finish(self, outcome: asyncio.Future[T]) -> None:
        if outcome.cancelled():
            self.future.set_exception(ClientClosedError("the client is closed"))
        elif (error := outcome.exception()) is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(outcome.result())


#: A record that joins: its payload, or with it what it carries, and its future if it has one.
_Row: TypeAlias = bytes | tuple[bytes, dict[str, Any] | None, LoopFuture[Appended] | None]


class _Run(_Call[None]):
    """Records that joined one behind the other, and go to the writer together."""

    __slots__ = ("_begun", "_last", "_refusal", "_writer", "are_plain", "first_ticket", "rows")

    def __init__(self, writer: aio.StreamWriter, first_ticket: int) -> None:
        super().__init__(self._begin, 0, 0)
        self._writer = writer
        self.first_ticket = first_ticket
        self.rows: list[_Row] = []
        #: Whether all rows are nothing but payloads.
        self.are_plain = True
        self._begun = 0
        self._last = -1
        self._refusal: Exception | None = None

    def _begin(self) -> asyncio.Future[None]:
        """Put what was not put yet; what is refused holds up nobody else."""
        while self._begun < len(self.rows):
            if self.are_plain:
                payloads = cast("list[bytes]", self.rows)
                count, last = aio.put_many(self._writer, payloads, self._begun)
                if count:
                    self._begun, self._last = self._begun + count, last
                    continue
            row, future = self.rows[self._begun], None
            try:
                if isinstance(row, bytes):
                    self._last = self._writer.put(row)
                else:
                    payload, options, future = row
                    self._last = aio.put_with(self._writer, payload, options, future)
            except BackpressureError:
                raise
            except Exception as error:
                if future is None:
                    self._refusal = self._refusal or error
                else:
                    future.set_exception(error)
            self._begun += 1
        self.rows.clear()
        return asyncio.ensure_future(self._settled())

    async def _settled(self) -> None:
        await self._writer.confirmed(self._last)
        if self._refusal is not None:
            raise self._refusal


class AppendCalls:
    """The appends of one writer."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: WriterOptions,
        writer: aio.StreamWriter,
    ) -> None:
        """Take the loop of the writer, its options, and itself."""
        self._loop = loop
        self._max_records = options.max_pending_records
        self._max_bytes = options.max_pending_bytes
        self._drain = writer.drain
        self._writer = writer
        #: Runs that are not settled.
        self._runs: deque[_Run] = deque()
        self._next_ticket = 0
        #: What went wrong with a run of which nobody was told, and its first ticket.
        self._failure: tuple[int, BaseException] | None = None
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        #: Records and bytes that are not acknowledged, and those that were refused last.
        self._records = 0
        self._bytes = 0
        self._refused = (1, 0)
        self._queue: list[_Call[Any]] = []
        #: The last of the queue, if records may still join it.
        self._joined: _Run | None = None
        #: On the loop thread: what the writer has no room for yet.
        self._waiting: deque[_Call[Any]] = deque()
        self._pumping: asyncio.Task[None] | None = None

    @property
    def pending_records(self) -> int:
        """How many records were appended and are not acknowledged."""
        return self._records

    def put(
        self,
        start: Callable[[], asyncio.Future[T]],
        count: int,
        size_bytes: int,
        *,
        waits: bool = False,
    ) -> Future[T]:
        """Have records appended, behind all that was put before.

        Raises:
            BackpressureError: too much is pending, and the caller does not want to wait.
        """
        call = _Call(start, count, size_bytes + count * ENTRY_OVERHEAD_BYTES)
        with self._room:
            while not self._has_room(call.count, call.size_bytes):
                if not waits:
                    self._check_room(call.count, call.size_bytes)
                self._room.wait()
            self._records += call.count
            self._bytes += call.size_bytes
            is_first = not self._queue
            self._queue.append(call)
            self._joined = None
        if is_first:
            self._loop.call_soon_threadsafe(self._take)
        return call.future

    def join(
        self,
        payload: bytes,
        options: dict[str, Any] | None = None,
        future: LoopFuture[Appended] | None = None,
    ) -> int:
        """Have one record appended behind all that was put before; return its ticket.

        Raises:
            BackpressureError: too much is pending.
        """
        size_bytes = len(payload) + ENTRY_OVERHEAD_BYTES
        is_plain = options is None and future is None
        with self._lock:
            if self._records >= self._max_records or self._bytes + size_bytes > self._max_bytes:
                self._check_room(1, size_bytes)
            run = self._joined
            if run is None:
                run = self._joined = _Run(self._writer, self._next_ticket)
                self._runs.append(run)
                is_first = not self._queue
                self._queue.append(run)
                if is_first:
                    self._loop.call_soon_threadsafe(self._take)
            if is_plain:
                run.rows.append(payload)
            else:
                run.are_plain = False
                run.rows.append((payload, options, future))
            run.count += 1
            run.size_bytes += size_bytes
            self._records += 1
            self._bytes += size_bytes
            ticket = self._next_ticket
            self._next_ticket = ticket + 1
        return ticket

    def confirmed(self, ticket: int) -> None:
        """Wait until a record that joined, and all that did before it, are safe."""
        with self._room:
            if ticket >= self._next_ticket:
                raise LocalProtocolError(f"no record has ticket {ticket} yet")
            waited = [run.future for run in self._runs if run.first_ticket <= ticket]
            failure = self._failure
        for future in waited:
            future.result()
        if failure is not None and failure[0] <= ticket:
            raise _again(failure[1])

    def check_failure(self) -> None:
        """Raise, once, what went wrong with records that joined."""
        with self._room:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise _again(failure[1])

    def wait_for_room(self) -> None:
        """Wait until there is room for what was refused last, and for more than that."""
        with self._room:
            (count, size_bytes), self._refused = self._refused, (1, 0)
            # Else who is woken by a few records has room for a few, and waits again.
            count = max(count, self._max_records // 8)
            size_bytes = max(size_bytes, self._max_bytes // 8)
            while not self._has_room(count, size_bytes):
                self._room.wait()

    def _check_room(self, count: int, size_bytes: int) -> None:
        if not self._has_room(count, size_bytes):
            self._refused = count, size_bytes
            raise BackpressureError(
                f"{self._records} records are pending: no room for {count} more with "
                f"{size_bytes - count * ENTRY_OVERHEAD_BYTES} bytes"
            )

    def _has_room(self, count: int, size_bytes: int) -> bool:
        # What is too large for any window is the writer's to refuse.
        is_in = self._bytes + size_bytes <= self._max_bytes
        fits = is_in and self._records + count <= self._max_records
        return fits or not self._records

    # On the loop thread

    async def handed_over(self) -> None:
        """Wait until the writer has all that was put before."""
        self._take()
        while self._pumping is not None:
            await asyncio.wait({self._pumping})

    def _take(self) -> None:
        with self._room:
            calls, self._queue, self._joined = self._queue, [], None
        self._waiting += calls
        if self._pumping is None:
            self._start()

    def _start(self) -> None:
        while self._waiting:
            call = self._waiting[0]
            try:
                outcome = call.start()
            except BackpressureError:
                self._pumping = asyncio.ensure_future(self._start_later())
                return
            except Exception as error:
                outcome = self._loop.create_future()
                outcome.set_exception(error)
            outcome.add_done_callback(partial(self._finish, call))
            self._waiting.popleft()

    async def _start_later(self) -> None:
        with contextlib.suppress(QuorumbookError):  # the next call says so itself
            await self._drain()
        self._pumping = None
        self._start()

    def _finish(self, call: _Call[Any], outcome: asyncio.Future[Any]) -> None:
        with self._room:
            self._records -= call.count
            self._bytes -= call.size_bytes
            self._room.notify_all()
        call.finish(outcome)
        if isinstance(call, _Run):
            with self._room:
                error = call.future.exception()
                if error is not None and self._failure is None:
                    self._failure = call.first_ticket, error
                self._runs.remove(call)


def _again(error: BaseException) -> BaseException:
    """Return an error that may be raised by several callers."""
    return copy_error(error) if isinstance(error, QuorumbookError) else error
