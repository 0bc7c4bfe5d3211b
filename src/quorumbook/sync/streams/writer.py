"""The blocking writer of a stream."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Literal, TypeVar

from quorumbook.client.writing.writer import frozen
from quorumbook.streams.format.attributes import Attributes
from quorumbook.streams.format.position import Position
from quorumbook.streams.retention.truncation import Cut, TruncatedSegment
from quorumbook.streams.writing import writer as aio
from quorumbook.streams.writing.appended import Appended, AppendedBatch
from quorumbook.streams.writing.options import WriterOptions
from quorumbook.sync.loop import ClosingQuietly
from quorumbook.sync.streams.calls import AppendCalls

T = TypeVar("T")


class StreamWriter(ClosingQuietly):
    """The blocking twin of ``quorumbook.streams.StreamWriter``, for any number of threads.

    What ``append_nowait`` and ``append_batch_nowait`` refuse for another reason than that too much
    is pending, their futures say.
    """

    def __init__(self, writer: aio.StreamWriter, options: WriterOptions) -> None:
        """Wrap a writer that was opened on the loop thread."""
        super().__init__()
        self._aio = writer
        self._calls = AppendCalls(self.loop_thread.loop, options, writer)

    @property
    def next_sequence_id(self) -> int:
        """The sequence id that the next record gets."""
        return self._after_calls(self._next_sequence_id)

    @property
    def epoch(self) -> int:
        """Greater than that of every writer before: a fencing token for other systems."""
        return self._aio.epoch

    @property
    def last_txid(self) -> int:
        """The largest transaction id so far; -1 if there is none."""
        return self._after_calls(self._last_txid)

    def last_number(self) -> int:
        """Return the last number of this writer's producer, stored or on its way; -1: none."""
        return self._after_calls(self._last_number)

    @property
    def last_position(self) -> Position | None:
        """Where the last acknowledged record of the present segment is; None if there is none."""
        return self._aio.last_position

    @property
    def pending_records(self) -> int:
        """How many records were appended and are not acknowledged."""
        return self._calls.pending_records

    def append(
        self,
        payload: bytes,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        event_time_ms: int | None = None,
        txid: int | None = None,
        producer_seq: int | None = None,
        expected_sequence: int | None = None,
    ) -> Appended:
        """Append a record and wait until it is safe; see ``quorumbook.streams.StreamWriter``."""
        options = {
            "key": key, "headers": headers, "event_time_ms": event_time_ms, "txid": txid,
            "producer_seq": producer_seq, "expected_sequence": expected_sequence,
        }  # fmt: skip
        return self._append(payload, options, waits=True).result()

    def append_nowait(
        self,
        payload: bytes,
        *,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | None = None,
        event_time_ms: int | None = None,
        txid: int | None = None,
        producer_seq: int | None = None,
        expected_sequence: int | None = None,
    ) -> Future[Appended]:
        """Append a record and return a future of where it is.

        Raises:
            BackpressureError: too much is pending; call ``drain`` and try again.
        """
        options = {
            "key": key, "headers": headers, "event_time_ms": event_time_ms, "txid": txid,
            "producer_seq": producer_seq, "expected_sequence": expected_sequence,
        }  # fmt: skip
        return self._append(payload, options, waits=False)

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
            A ticket for ``confirmed``, one more than the last.  A record that is refused has one
            too: ``confirmed`` of it says why, and the next ``drain``, ``flush`` or ``close``.

        Raises:
            BackpressureError: too much is pending; call ``drain`` and try again.
        """
        self.check_process()
        options: dict[str, Any] = {}
        if key is not None or headers is not None or event_time_ms is not None:
            options = {"key": key, "headers": headers, "event_time_ms": event_time_ms}
        if producer_seq is not None:
            options["producer_seq"] = producer_seq
        return self._calls.join(payload if type(payload) is bytes else frozen(payload), options)

    def confirmed(self, sequence_id: int | None = None) -> None:
        """Wait until the record with a ticket of ``put``, and all before it, are safe.

        Args:
            sequence_id: The ticket; everything appended so far if not given.

        Raises:
            LocalProtocolError: none has it yet.
            StreamError: it is not safe, and why.
        """
        self.check_process()
        if sequence_id is not None:
            self._calls.confirmed(sequence_id)
            return
        self._after_calls(self._aio.confirmed)
        self._calls.check_failure()

    def append_batch(
        self,
        payloads: Iterable[bytes],
        *,
        attributes: Sequence[Attributes | None] | None = None,
        txids: Sequence[int] | None = None,
        producer_seq: int | None = None,
        atomic: bool | Literal["set"] = False,
        expected_sequence: int | None = None,
    ) -> AppendedBatch:
        """Append many records and wait until all are safe; see the asyncio twin."""
        options = {"attributes": attributes, "txids": txids, "producer_seq": producer_seq,
                   "atomic": atomic, "expected_sequence": expected_sequence}  # fmt: skip
        return self._append_batch(payloads, options, waits=True).result()

    def append_batch_nowait(
        self,
        payloads: Iterable[bytes],
        *,
        attributes: Sequence[Attributes | None] | None = None,
        txids: Sequence[int] | None = None,
        producer_seq: int | None = None,
        atomic: bool | Literal["set"] = False,
        expected_sequence: int | None = None,
    ) -> Future[AppendedBatch]:
        """Append many records and return one future for them.

        Raises:
            BackpressureError: too much is pending; call ``drain`` and try again.
        """
        options = {"attributes": attributes, "txids": txids, "producer_seq": producer_seq,
                   "atomic": atomic, "expected_sequence": expected_sequence}  # fmt: skip
        return self._append_batch(payloads, options, waits=False)

    def drain(self) -> None:
        """Wait until there is room again for what was refused last."""
        self.check_process()
        self._calls.wait_for_room()
        self._calls.check_failure()

    def flush(self) -> None:
        """Wait until everything appended so far is safe, and tailing readers can see it."""
        self._after_calls(self._aio.flush)
        self._calls.check_failure()

    def roll(self) -> None:
        """Complete the present segment; the next record begins another one."""
        self._after_calls(self._aio.roll)

    def truncate(self, before: Cut) -> list[TruncatedSegment]:
        """Cut off what lies before a record; see ``Stream.truncate``."""
        return self.run(lambda: self._aio.truncate(before))

    def seal(self) -> None:
        """End the stream for ever: readers come to its end, and nobody appends again."""
        self._after_calls(self._aio.seal)

    def close(self) -> None:
        """Wait for what is pending, complete the segment, and give the lock back."""
        self._after_calls(self._aio.close)
        self._calls.check_failure()

    def abort(self) -> None:
        """Stop at once: fail what is pending, and leave the segment for the next writer."""
        self.run(self._aio.abort)

    def __repr__(self) -> str:
        return f"<sync {self._aio!r}>"

    def _append(self, payload: bytes, options: dict[str, Any], *, waits: bool) -> Future[Appended]:
        self.check_process()
        kept = frozen(payload)

        def start() -> Any:
            return self._aio.append_nowait(kept, **options)

        return self._calls.put(start, 1, len(kept), waits=waits)

    def _append_batch(
        self, payloads: Iterable[bytes], options: dict[str, Any], *, waits: bool
    ) -> Future[AppendedBatch]:
        self.check_process()
        kept = [frozen(payload) for payload in payloads]

        def start() -> Any:
            return self._aio.append_batch_nowait(kept, **options)

        return self._calls.put(start, len(kept), sum(map(len, kept)), waits=waits)

    def _after_calls(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run something behind all that was appended before."""

        async def run() -> T:
            await self._calls.handed_over()
            return await work()

        return self.run(run)

    async def _next_sequence_id(self) -> int:
        return self._aio.next_sequence_id

    async def _last_txid(self) -> int:
        return self._aio.last_txid

    async def _last_number(self) -> int:
        return self._aio.last_number()
