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
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar

from quorumbook.client.waiting.again import again
from quorumbook.client.waiting.window import ENTRY_OVERHEAD_BYTES
from quorumbook.env import forks
from quorumbook.errors import (
    BackpressureError,
    ClientClosedError,
    LocalProtocolError,
    QuorumbookError,
)
from quorumbook.streams.writing import writer as aio
from quorumbook.streams.writing.options import WriterOptions

T = TypeVar("T")


class LoopFuture(Future[T]):
    """A future that the loop thread settles: in a child made by fork it is never waited for."""

    def __init__(self) -> None:
        self._generation = forks.generation
        super().__init__()

    @property
    def _condition(self) -> threading.Condition:
        """What everybody who looks at a future takes first."""
        if self._generation == forks.generation:
            return self._own_condition
        if self._state not in (CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED):
            raise forks.forked_error()
        return threading.Condition()

    @_condition.setter
    def _condition(self, condition: threading.Condition) -> None:
        self._own_condition = condition


class _Call(Generic[T]):
    """One append, before and while the writer has it."""

    __slots__ = ("count", "future", "size_bytes", "start")

    def __init__(self, start: Callable[[], asyncio.Future[T]], count: int, size_bytes: int) -> None:
        self.start = start
        self.count = count
        self.size_bytes = size_bytes
        self.future: Future[T] = LoopFuture()
        # Cancelling does not take a record back: the writer owns it.
        self.future.set_running_or_notify_cancel()

    def finish(self, outcome: asyncio.Future[T]) -> None:
        if outcome.cancelled():
            self.future.set_exception(ClientClosedError("the client is closed"))
        elif (error := outcome.exception()) is not None:
            self.future.set_exception(error)
        else:
            self.future.set_result(outcome.result())


class _Run(_Call[None]):
    """Records that joined one behind the other, and go to the writer together."""

    __slots__ = ("_begun", "_last", "_refusal", "_writer", "first_ticket", "rows")

    def __init__(self, writer: aio.StreamWriter, first_ticket: int) -> None:
        super().__init__(self._begin, 0, 0)
        self._writer = writer
        self.first_ticket = first_ticket
        #: Payloads with the rest of what ``StreamWriter.put`` takes.
        self.rows: list[tuple[bytes, dict[str, Any]]] = []
        self._begun = 0
        self._last = -1
        self._refusal: QuorumbookError | None = None

    def _begin(self) -> asyncio.Future[None]:
        """Put what was not put yet; what is refused holds up nobody else."""
        put = self._writer.put
        for payload, options in islice(self.rows, self._begun, None):
            try:
                self._last = put(payload, **options)
            except BackpressureError:
                raise
            except QuorumbookError as error:
                self._refusal = self._refusal or error
            self._begun += 1
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
        self._options = options
        self._drain = writer.drain
        self._writer = writer
        #: Runs that are not settled.
        self._runs: deque[_Run] = deque()
        self._next_ticket = 0
        #: What went wrong with a run of which nobody was told, and its first ticket.
        self._failure: tuple[int, BaseException] | None = None
        self._room = threading.Condition()
        #: Records and bytes that are not acknowledged, and those that were refused last.
        self._records = 0
        self._bytes = 0
        self._refused = (1, 0)
        self._queue: list[_Call[Any]] = []
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
                    self._refused = call.count, call.size_bytes
                    raise BackpressureError(
                        f"{self._records} records are pending: no room for {count} more with "
                        f"{size_bytes} bytes"
                    )
                self._room.wait()
            self._records += call.count
            self._bytes += call.size_bytes
            is_first = not self._queue
            self._queue.append(call)
        if is_first:
            self._loop.call_soon_threadsafe(self._take)
        return call.future

    def join(self, payload: bytes, options: dict[str, Any]) -> int:
        """Have one record appended behind all that was put before; return its ticket.

        Raises:
            BackpressureError: too much is pending.
        """
        size_bytes = len(payload) + ENTRY_OVERHEAD_BYTES
        with self._room:
            if not self._has_room(1, size_bytes):
                self._refused = 1, size_bytes
                raise BackpressureError(
                    f"{self._records} records are pending: no room for one more with "
                    f"{len(payload)} bytes"
                )
            is_first = not self._queue
            run = self._queue[-1] if self._queue else None
            if not isinstance(run, _Run):
                run = _Run(self._writer, self._next_ticket)
                self._queue.append(run)
                self._runs.append(run)
            run.rows.append((payload, options))
            run.count += 1
            run.size_bytes += size_bytes
            self._records += 1
            self._bytes += size_bytes
            ticket = self._next_ticket
            self._next_ticket += 1
        if is_first:
            self._loop.call_soon_threadsafe(self._take)
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
        """Wait until there is room for what was refused last."""
        with self._room:
            (count, size_bytes), self._refused = self._refused, (1, 0)
            while not self._has_room(count, size_bytes):
                self._room.wait()

    def _has_room(self, count: int, size_bytes: int) -> bool:
        # What is too large for any window is the writer's to refuse.
        is_in = self._bytes + size_bytes <= self._options.max_pending_bytes
        fits = is_in and self._records + count <= self._options.max_pending_records
        return fits or not self._records

    # On the loop thread

    async def handed_over(self) -> None:
        """Wait until the writer has all that was put before."""
        self._take()
        while self._pumping is not None:
            await asyncio.wait({self._pumping})

    def _take(self) -> None:
        with self._room:
            calls, self._queue = self._queue, []
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
    return again(error) if isinstance(error, QuorumbookError) else error
