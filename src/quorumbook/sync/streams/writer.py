"""The blocking writer of a stream."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, cast

from quorumbook.client.waiting.window import ENTRY_OVERHEAD_BYTES
from quorumbook.client.writing.pending import frozen
from quorumbook.env import forks
from quorumbook.errors import BackpressureError, ClientClosedError, LocalProtocolError
from quorumbook.loop_thread import LoopFuture
from quorumbook.streams.writing import writer as aio
from quorumbook.streams.writing.appended import Appended
from quorumbook.streams.writing.options import WriterOptions
from quorumbook.sync.appending import Appending
from quorumbook.sync.declared import TwinMethod, blocking, described_as, held
from quorumbook.sync.futures import Call, again

P = ParamSpec("P")
T = TypeVar("T")

#: What a record that joins others (``AppendCalls.join``) may have beside its payload.
_CARRIED: dict[str, Any] = {"key": None, "headers": None, "event_time_ms": None}


def _appending(method: Callable[Concatenate[Any, P], Awaitable[T]]) -> TwinMethod[P, T]:
    """Return a method that appends as one of asyncio does, in the order of all calls, and waits."""
    is_batch = "batch" in method.__name__

    def call(self: StreamWriter, payload: Any, **options: Any) -> Any:
        return self._append(payload, options, is_batch=is_batch, waits=True).result()

    return cast("TwinMethod[P, T]", described_as(method)(call))


def _appending_nowait(
    method: Callable[Concatenate[Any, P], asyncio.Future[T]],
) -> TwinMethod[P, Future[T]]:
    """Return a method that appends as one of asyncio does, and returns a future."""
    is_batch = "batch" in method.__name__

    def call(self: StreamWriter, payload: Any, **options: Any) -> Any:
        if is_batch or not _CARRIED.keys() >= options.keys():
            return self._append(payload, options, is_batch=is_batch, waits=False)
        return self._joined_with_future(payload, _CARRIED | options if options else None)

    return cast("TwinMethod[P, Future[T]]", described_as(method)(call))


class _Call(Call, Generic[T]):
    """An append with a future of its own."""

    __slots__ = ("_begin", "future")

    def __init__(self, begin: Callable[[], asyncio.Future[T]], count: int, size_bytes: int) -> None:
        super().__init__(count, size_bytes)
        self._begin = begin
        self.future: Future[T] = LoopFuture()

    def start(self) -> asyncio.Future[T]:
        return self._begin()

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

    __slots__ = (
        "_begun", "_bytes_before", "_last", "_refusal", "_writer", "are_plain", "first_ticket",
        "rows",
    )  # fmt: skip

    def __init__(self, writer: aio.StreamWriter, first_ticket: int, bytes_before: int) -> None:
        super().__init__(self._begin_rows, 0, 0)
        self._writer = writer
        self.first_ticket = first_ticket
        self._bytes_before = bytes_before
        self.rows: list[_Row] = []
        #: Whether all rows are nothing but payloads.
        self.are_plain = True
        self._begun = 0
        self._last = -1
        self._refusal: Exception | None = None

    def end(self, next_ticket: int, bytes_until: int) -> None:
        """Learn how much was appended by when nothing more joins."""
        self.count = next_ticket - self.first_ticket
        self.size_bytes = bytes_until - self._bytes_before

    def _begin_rows(self) -> asyncio.Future[None]:
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


class StreamWriter(Appending[aio.StreamWriter, _Run]):
    """The blocking twin of ``quorumbook.streams.StreamWriter``, for any number of threads.

    What ``append_nowait`` and ``append_batch_nowait`` refuse for another reason than that too much
    is pending, their futures say.
    """

    def __init__(self, writer: aio.StreamWriter, options: WriterOptions) -> None:
        """Wrap a writer that was opened on the loop thread."""
        super().__init__(writer, options.max_pending_records, options.max_pending_bytes)
        #: Runs that are not settled.
        self._runs: deque[_Run] = deque()
        #: What went wrong with a run of which nobody was told, and its first ticket.
        self._failure: tuple[int, BaseException] | None = None

    @property
    def next_sequence_id(self) -> int:
        """The sequence id that the next record gets."""
        return self._known(lambda it: it.next_sequence_id)

    epoch = held(aio.StreamWriter, lambda it: it.epoch)
    """Greater than that of every writer before: a fencing token for other systems."""

    @property
    def last_txid(self) -> int:
        """The largest transaction id so far; -1 if there is none."""
        return self._known(lambda it: it.last_txid)

    def last_number(self) -> int:
        """Return the last number of this writer's producer, stored or pending, or -1."""
        return self._known(aio.StreamWriter.last_number)

    last_position = held(aio.StreamWriter, lambda it: it.last_position)
    """Where the last acknowledged record of the present segment is; None if there is none."""

    @property
    def pending_records(self) -> int:
        """How many records were appended and are not acknowledged."""
        return self._count

    append = _appending(aio.StreamWriter.append)
    """Append a record and wait until it is safe."""
    append_nowait = _appending_nowait(aio.StreamWriter.append_nowait)
    """Append a record and return a future of where it is."""
    append_batch = _appending(aio.StreamWriter.append_batch)
    """Append many records and wait until all are safe."""
    append_batch_nowait = _appending_nowait(aio.StreamWriter.append_batch_nowait)
    """Append many records and return one future for them."""

    def put(
        self,
        payload: bytes,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        event_time_ms: int | None = None,
        producer_seq: int | None = None,
    ) -> int:
        """Append a record without a future of its own, the fastest way for one record a call.

        Returns:
            A ticket for ``confirmed``, larger than the last.  A record that is refused has one
            too: ``confirmed`` of it says why, and the next ``drain``, ``flush`` or ``close``.

        Raises:
            BackpressureError: too much is pending; call ``drain`` and try again.
        """
        if self._process_generation != forks.generation:
            self._check_process()
        is_plain = key is None and headers is None and event_time_ms is None
        if is_plain and producer_seq is None and type(payload) is bytes:
            # As ``_join`` does, without a call: nothing costs a record as much as these lines.
            with self._lock:
                ticket = self._appended
                bytes_until = self._appended_bytes + len(payload) + ENTRY_OVERHEAD_BYTES
                run = self._joined
                if run is not None and ticket < self._limit and bytes_until <= self._limit_bytes:
                    run.rows.append(payload)
                    self._appended = ticket + 1
                    self._appended_bytes = bytes_until
                    return ticket
        kept = frozen(payload)
        if is_plain and producer_seq is None:
            return self._join(kept)
        options: dict[str, Any] = {"key": key, "headers": headers, "event_time_ms": event_time_ms}
        if producer_seq is not None:
            options["producer_seq"] = producer_seq
        return self._join(kept, options)

    def confirmed(self, sequence_id: int | None = None) -> None:
        """Wait until the record with a ticket of ``put``, and all before it, are safe.

        Args:
            sequence_id: The ticket; everything appended so far if not given.

        Raises:
            LocalProtocolError: none has it yet.
            StreamError: it is not safe, and why.
        """
        self._check_process()
        if sequence_id is not None:
            self._confirmed(sequence_id)
            return
        self._after_calls(self._aio.confirmed)
        self._check_failure()

    def drain(self) -> None:
        """Wait until there is room for the append that was refused last."""
        self._check_process()
        with self._lock:
            self._wait_for_room()
        self._check_failure()

    def flush(self) -> None:
        """Wait until everything appended so far is safe, and tailing readers can see it."""
        self._after_calls(self._aio.flush)
        self._check_failure()

    def roll(self) -> None:
        """Complete the present segment; the next record begins another one."""
        self._after_calls(self._aio.roll)

    truncate = blocking(aio.StreamWriter.truncate)
    """Cut off what lies before a record."""

    def seal(self) -> None:
        """End the stream permanently: readers come to its end, and nobody appends again."""
        self._after_calls(self._aio.seal)

    def close(self) -> None:
        """Wait for what is pending, complete the segment, and give the lock back."""
        self._after_calls(self._aio.close)
        self._check_failure()

    abort = blocking(aio.StreamWriter.abort)
    """Stop at once: pending appends fail, and the next writer completes the segment."""

    def _joined_with_future(self, payload: Any, options: dict[str, Any] | None) -> Future[Any]:
        self._check_process()
        future: LoopFuture[Any] = LoopFuture()
        kept = payload if type(payload) is bytes else frozen(payload)
        self._join(kept, options, future)
        return future

    def _append(
        self, payload: Any, options: dict[str, Any], *, is_batch: bool, waits: bool
    ) -> Future[Any]:
        self._check_process()
        if is_batch:
            many = [frozen(each) for each in payload]
            append_many = self._aio.append_batch_nowait
            size_bytes = sum(map(len, many))
            return self._put(
                lambda: append_many(many, **options), len(many), size_bytes, waits=waits
            )
        kept, append = frozen(payload), self._aio.append_nowait
        return self._put(lambda: append(kept, **options), 1, len(kept), waits=waits)

    def _put(
        self, begin: Callable[[], asyncio.Future[T]], count: int, size_bytes: int, *, waits: bool
    ) -> Future[T]:
        """Have records appended, behind all that was put before."""
        call = _Call(begin, count, size_bytes + count * ENTRY_OVERHEAD_BYTES)
        with self._lock:
            while not self._has_room(call.count, call.size_bytes):
                if not waits:
                    self._check_room(call.count, call.size_bytes)
                self._room.wait()
            self._enqueue(call)
            self._appended += call.count
            self._appended_bytes += call.size_bytes
        return call.future

    def _join(
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
            bytes_until = self._appended_bytes + size_bytes
            if self._appended >= self._limit or bytes_until > self._limit_bytes:
                self._check_room(1, size_bytes)
            run = self._joined
            if run is None:
                run = _Run(self._aio, self._appended, self._appended_bytes)
                self._runs.append(run)
                self._enqueue(run)
                self._joined = run
            if is_plain:
                run.rows.append(payload)
            else:
                run.are_plain = False
                run.rows.append((payload, options, future))
            ticket = self._appended
            self._appended = ticket + 1
            self._appended_bytes = bytes_until
        return ticket

    def _end_joined(self) -> None:
        if self._joined is not None:
            self._joined.end(self._appended, self._appended_bytes)
        super()._end_joined()

    def _confirmed(self, ticket: int) -> None:
        """Wait until a record that joined, and all that did before it, are safe."""
        with self._lock:
            if ticket >= self._appended:
                raise LocalProtocolError(f"no record has ticket {ticket} yet")
            waited = [run.future for run in self._runs if run.first_ticket <= ticket]
            failure = self._failure
        for future in waited:
            future.result()
        if failure is not None and failure[0] <= ticket:
            raise again(failure[1])

    def _check_failure(self) -> None:
        """Raise, once, what went wrong with records that joined."""
        with self._lock:
            failure, self._failure = self._failure, None
        if failure is not None:
            raise again(failure[1])

    def _known(self, value: Callable[[aio.StreamWriter], T]) -> T:
        """Return what the writer knows behind all that was appended before."""

        async def known() -> T:
            return value(self._aio)

        return self._after_calls(known)

    def _finish(self, call: Call, outcome: asyncio.Future[Any]) -> None:
        super()._finish(call, outcome)
        if isinstance(call, _Run):
            with self._lock:
                error = call.future.exception()
                if error is not None and self._failure is None:
                    self._failure = call.first_ticket, error
                self._runs.remove(call)
