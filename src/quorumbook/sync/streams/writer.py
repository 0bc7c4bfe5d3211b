"""The blocking writer of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from quorumbook.client.writing.pending import frozen
from quorumbook.env import forks
from quorumbook.streams.writing import writer as aio
from quorumbook.streams.writing.options import WriterOptions
from quorumbook.sync.declared import TwinMethod, blocking, described_as, held
from quorumbook.sync.loop import ClosingQuietly
from quorumbook.sync.streams.calls import AppendCalls, LoopFuture

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
        return self._join(payload, _CARRIED | options if options else None)

    return cast("TwinMethod[P, Future[T]]", described_as(method)(call))


class StreamWriter(ClosingQuietly[aio.StreamWriter]):
    """The blocking twin of ``quorumbook.streams.StreamWriter``, for any number of threads.

    What ``append_nowait`` and ``append_batch_nowait`` refuse for another reason than that too much
    is pending, their futures say.
    """

    def __init__(self, writer: aio.StreamWriter, options: WriterOptions) -> None:
        """Wrap a writer that was opened on the loop thread."""
        super().__init__(writer)
        self._calls = AppendCalls(self._loop_thread.loop, options, writer)

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
        """Return the last number of this writer's producer, stored or on its way; -1: none."""
        return self._known(aio.StreamWriter.last_number)

    last_position = held(aio.StreamWriter, lambda it: it.last_position)
    """Where the last acknowledged record of the present segment is; None if there is none."""

    @property
    def pending_records(self) -> int:
        """How many records were appended and are not acknowledged."""
        return self._calls.pending_records

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
        kept = payload if type(payload) is bytes else frozen(payload)
        if key is None and headers is None and event_time_ms is None and producer_seq is None:
            return self._calls.join(kept)
        options: dict[str, Any] = {"key": key, "headers": headers, "event_time_ms": event_time_ms}
        if producer_seq is not None:
            options["producer_seq"] = producer_seq
        return self._calls.join(kept, options)

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
            self._calls.confirmed(sequence_id)
            return
        self._after_calls(self._aio.confirmed)
        self._calls.check_failure()

    def drain(self) -> None:
        """Wait until there is room again for what was refused last."""
        self._check_process()
        self._calls.wait_for_room()
        self._calls.check_failure()

    def flush(self) -> None:
        """Wait until everything appended so far is safe, and tailing readers can see it."""
        self._after_calls(self._aio.flush)
        self._calls.check_failure()

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
        self._calls.check_failure()

    abort = blocking(aio.StreamWriter.abort)
    """Stop at once: fail what is pending, and leave the segment for the next writer."""

    def _join(self, payload: Any, options: dict[str, Any] | None) -> Future[Any]:
        self._check_process()
        future: LoopFuture[Any] = LoopFuture()
        kept = payload if type(payload) is bytes else frozen(payload)
        self._calls.join(kept, options, future)
        return future

    def _append(
        self, payload: Any, options: dict[str, Any], *, is_batch: bool, waits: bool
    ) -> Future[Any]:
        self._check_process()
        if is_batch:
            many = [frozen(each) for each in payload]
            append_many = self._aio.append_batch_nowait
            size_bytes = sum(map(len, many))
            return self._calls.put(
                lambda: append_many(many, **options), len(many), size_bytes, waits=waits
            )
        kept, append = frozen(payload), self._aio.append_nowait
        return self._calls.put(lambda: append(kept, **options), 1, len(kept), waits=waits)

    def _after_calls(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run something behind all that was appended before."""

        async def run() -> T:
            await self._calls.handed_over()
            return await work()

        return self._run(run)

    def _known(self, value: Callable[[aio.StreamWriter], T]) -> T:
        """Return what the writer knows behind all that was appended before."""

        async def known() -> T:
            return value(self._aio)

        return self._after_calls(known)
