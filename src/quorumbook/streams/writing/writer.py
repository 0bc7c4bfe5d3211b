"""The writer of a stream: one at a time, across segments, with dense sequence ids.

What is appended in one turn of the loop is packed into entries together (``packing``), and a call
that appends many records has one future for all of them.  ``pump`` moves them to bookies and from
segment to segment; here is what the caller sees.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from quorumbook.client.waiting.closing import ClosingQuietly
from quorumbook.client.waiting.outcomes import copy_error
from quorumbook.client.writing.pending import frozen
from quorumbook.env import patience
from quorumbook.errors import (
    BackpressureError,
    LedgerClosedError,
    LocalProtocolError,
    QuorumbookError,
)
from quorumbook.streams.errors import StreamSealedError
from quorumbook.streams.format.attributes import Attributes, attributes_of
from quorumbook.streams.format.position import Position
from quorumbook.streams.format.records import HEADER_SIZE_BYTES
from quorumbook.streams.metadata.lock import StreamLock
from quorumbook.streams.retention.truncation import Cut, TruncatedSegment, truncate
from quorumbook.streams.stream_context import StreamContext
from quorumbook.streams.writing.appended import Appended, AppendedBatch
from quorumbook.streams.writing.intake import FutureLike
from quorumbook.streams.writing.opening import WriterParts, open_parts
from quorumbook.streams.writing.options import WriterOptions
from quorumbook.streams.writing.pending import PendingAppend, all_frozen, single
from quorumbook.streams.writing.tenure import Tenure

#: Bookies that do not answer must not hold up a writer that is aborted.
_LAST_WORD_S = 1.0


class StreamWriter(ClosingQuietly):
    """Appends to a stream; made by ``Stream.writer``.

    Use it as an async context manager: leaving it waits for what is pending and completes the
    segment.  Cancelling an awaited ``append`` does not take the record back: the writer owns it.
    """

    def __init__(
        self, context: StreamContext, options: WriterOptions, lock: StreamLock, parts: WriterParts
    ) -> None:
        """Begin to write a stream that was taken over; see ``open_writer``."""
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._epoch = parts.epoch
        self._policy = parts.policy
        self._intake = parts.intake
        self._pump = parts.pump
        self._numbering = parts.numbering
        self._tenure = Tenure(context, options, lock, parts)

    # Life ----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Wait for what is pending, complete the segment, and give the lock back.

        Raises:
            StreamError: something that was appended is not safe.
        """
        self._pump.check_owner()
        if self._pump.is_closing:
            await self._tenure.ended()
            return
        try:
            if self._pump.error is None:
                await self._pump.settled()
            self._pump.is_closing = True
            if self._pump.error is None:
                self._pump.is_roll_wanted = True
                self._pump.wake()
                await self._pump.settled()
        finally:
            self._pump.is_closing = True
            await self._tenure.end()
        if self._pump.error is not None and not isinstance(self._pump.error, StreamSealedError):
            raise copy_error(self._pump.error)

    async def abort(self) -> None:
        """Stop at once: pending appends fail, and the next writer completes the segment.

        Readers see the acknowledged records, unless no bookie can be reached to tell it.
        """
        self._pump.check_owner()
        pump, error = self._pump, LedgerClosedError("the writer was aborted")
        pump.is_closing = True
        is_sound = pump.error is None
        pump.give_up(error)
        try:
            if is_sound:
                with contextlib.suppress(QuorumbookError, TimeoutError):
                    async with patience.timeout(_LAST_WORD_S):
                        await pump.segments.publish_confirmed()
        finally:
            pump.segments.stop(error)
            await self._tenure.end()

    @property
    def next_sequence_id(self) -> int:
        """The sequence id that the next record gets."""
        return self._pump.state.next_sequence_id + self._intake.gathered

    @property
    def epoch(self) -> int:
        """Greater than that of every writer before: a fencing token for other systems."""
        return self._epoch

    @property
    def last_txid(self) -> int:
        """The largest transaction id so far; -1 if there is none."""
        self._intake.take()
        return self._pump.state.last_txid

    def last_number(self) -> int:
        """Return the last number of this writer's producer, stored or pending, or -1."""
        self._intake.take()
        return -1 if self._numbering is None else self._numbering.last

    @property
    def last_position(self) -> Position | None:
        """Where the last acknowledged record of the present segment is; None if there is none."""
        tail = self._pump.state.tail
        if tail is None or tail.confirmed_entry < 0:
            return None
        return Position(tail.number, tail.confirmed_entry, tail.confirmed_slot)

    @property
    def pending_records(self) -> int:
        """How many records were appended and are not acknowledged."""
        return self._pump.pending_records

    # Appending -----------------------------------------------------------------------------

    async def append(
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
        """Append a record and wait until it is safe.

        A record that is larger than an entry is stored in chunks, each with a sequence id; the
        record has that of its first chunk.

        Args:
            payload: The record; anything but ``bytes`` is copied.
            key: The record's key; readers get it beside the payload.
            headers: The record's headers; together with the key 64 KiB at most.
            event_time_ms: The event time, since 1970.
            txid: The record's transaction id, not below the last one; by default the next id.
            producer_seq: The record's number, if the writer has a producer; by default the next
                number.  If the number is not above the producer's last one, the record is a
                duplicate: nothing is stored, and the result says where the original is, if that is
                still known.
            expected_sequence: Append it only if it gets this sequence id.

        Raises:
            RecordTooLargeError: it is larger than the policy's ``max_record_bytes``.
            TxidOutOfOrderError: its transaction id is below the one before.
            SequenceConflictError: it would have another sequence id.
            WriterFencedError: another writer took the stream over; the record's fate is unknown.
            StreamSealedError: the stream was sealed.
            QuotaExceededError: the stream has reached the policy's ``max_total_bytes``.
        """
        while True:
            try:
                future = self.append_nowait(
                    payload,
                    key=key,
                    headers=headers,
                    event_time_ms=event_time_ms,
                    txid=txid,
                    producer_seq=producer_seq,
                    expected_sequence=expected_sequence,
                )
            except BackpressureError:
                await self._pump.window.wait()
            else:
                return await future

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
    ) -> asyncio.Future[Appended]:
        """Append a record and return a future of where it is; see ``append``.

        Raises:
            BackpressureError: too much is pending; ``await drain()`` and try again.
        """
        future: asyncio.Future[Appended] = self._loop.create_future()
        if (
            key is None
            and headers is None
            and event_time_ms is None
            and txid is None
            and producer_seq is None
            and expected_sequence is None
            and type(payload) is bytes
            and self._intake.join(payload, future)
        ):
            return future
        payload = payload if type(payload) is bytes else frozen(payload)
        carried = attributes_of(key, headers, event_time_ms)
        is_known = self._intake.is_known(producer_seq)
        if txid is None and expected_sequence is None and not is_known:
            self._put(payload, carried, producer_seq, future)
            return future
        first, duplicates = self._intake.first_new(producer_seq, 1)
        if duplicates:
            return self._loop.create_task(self._known_one(first))
        pending = single(payload, future, number=first, attributes=carried)
        self._append(pending, None if txid is None else (txid,), expected_sequence)
        return future

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
            A sequence id for ``confirmed``: the record's; of a record in chunks that of the last
            chunk; of a duplicate that of a record that was appended after the original.  An error
            that happens later is raised by ``confirmed``, ``drain``, ``flush``, ``close`` and the
            next call.

        Raises:
            BackpressureError: too much is pending; ``await drain()`` and try again.
            StreamError: as ``append`` says.
        """
        intake = self._intake
        if (
            key is None
            and headers is None
            and event_time_ms is None
            and producer_seq is None
            and type(payload) is bytes
        ):
            room_bytes = intake.room_bytes - len(payload) - HEADER_SIZE_BYTES
            payloads = intake.payloads
            before = len(payloads)
            if room_bytes >= 0 and before < intake.max_records:
                intake.room_bytes = room_bytes
                payloads.append(payload)
                return intake.first_sequence_id + before
        if intake.is_known(producer_seq):
            return self.next_sequence_id - 1
        carried = attributes_of(key, headers, event_time_ms)
        kept = payload if type(payload) is bytes else frozen(payload)
        return self._put(kept, carried, producer_seq, None)

    def _put(
        self,
        payload: bytes,
        attributes: Attributes | None,
        number: int | None,
        future: FutureLike | None,
    ) -> int:
        self._check_open()
        first = self.next_sequence_id
        sequence_id = self._intake.put(payload, attributes, number, future)
        self._began(first)
        return sequence_id

    async def confirmed(self, sequence_id: int | None = None) -> None:
        """Wait until the record with a sequence id, and all before it, are safe.

        Args:
            sequence_id: Which; everything appended so far if not given.

        Raises:
            LocalProtocolError: none has it yet.
            StreamError: it is not safe, and why.
        """
        self._pump.check_owner()
        if sequence_id is None:
            sequence_id = self.next_sequence_id - 1
        elif sequence_id >= self.next_sequence_id:
            raise LocalProtocolError(
                f"no record has sequence id {sequence_id} yet; the next one gets "
                f"{self.next_sequence_id}"
            )
        await self._pump.confirmed(sequence_id)

    async def append_batch(
        self,
        payloads: Iterable[bytes],
        *,
        attributes: Sequence[Attributes | None] | None = None,
        txids: Sequence[int] | None = None,
        producer_seq: int | None = None,
        atomic: bool | Literal["set"] = False,
        expected_sequence: int | None = None,
    ) -> AppendedBatch:
        """Append many records and wait until all are safe; see ``append``.

        Args:
            payloads: The records, one at least.
            attributes: Key, headers and event time of each.
            txids: Their transaction ids.
            producer_seq: The number of the first record; the others follow.
            atomic: All of them become one entry, so that readers see all or none; ``"set"``: one
                record set of DistributedLog's, with one transaction id for all.
            expected_sequence: Append them only if the first gets this sequence id.
        """
        kept = all_frozen(payloads)
        while True:
            try:
                future = self.append_batch_nowait(
                    kept,
                    attributes=attributes,
                    txids=txids,
                    producer_seq=producer_seq,
                    atomic=atomic,
                    expected_sequence=expected_sequence,
                )
            except BackpressureError:
                await self._pump.window.wait()
            else:
                return await future

    def append_batch_nowait(
        self,
        payloads: Iterable[bytes],
        *,
        attributes: Sequence[Attributes | None] | None = None,
        txids: Sequence[int] | None = None,
        producer_seq: int | None = None,
        atomic: bool | Literal["set"] = False,
        expected_sequence: int | None = None,
    ) -> asyncio.Future[AppendedBatch]:
        """Append many records and return one future for them; see ``append_batch``.

        Raises:
            BackpressureError: too much is pending; ``await drain()`` and try again.
            LocalProtocolError: they are more than can be pending at all.
        """
        kept = all_frozen(payloads)
        carried = None
        if attributes is not None:
            if len(attributes) != len(kept):
                raise LocalProtocolError(f"{len(attributes)} attributes for {len(kept)} records")
            carried = [b"" if each is None else each.encode() for each in attributes]
        future: asyncio.Future[AppendedBatch] = self._loop.create_future()
        if not kept:
            future.set_result(AppendedBatch([], self.next_sequence_id, ()))
            return future
        first, duplicates = self._intake.first_new(producer_seq, len(kept))
        if duplicates == len(kept):
            return self._loop.create_task(self._known_batch(first, duplicates, None))
        if duplicates:
            kept, txids = kept[duplicates:], None if txids is None else txids[duplicates:]
            carried = None if carried is None else carried[duplicates:]
        number = first + duplicates if first >= 0 else -1
        codec = self._policy.codec if atomic == "set" else None
        pending = PendingAppend(
            kept, future, is_atomic=bool(atomic), first_number=number, attributes=carried,
            set_codec=codec,
        )  # fmt: skip
        self._append(pending, txids, expected_sequence)
        if duplicates:
            return self._loop.create_task(self._known_batch(first, duplicates, future))
        return future

    async def _known_one(self, number: int) -> Appended:
        assert self._numbering is not None
        return (await self._numbering.known(number, 1))[0]

    async def _known_batch(
        self, first: int, count: int, rest: asyncio.Future[AppendedBatch] | None
    ) -> AppendedBatch:
        assert self._numbering is not None
        known = await self._numbering.known(first, count)
        if rest is None:
            return AppendedBatch([], self._pump.state.next_sequence_id, (), known)
        stored = await rest
        return AppendedBatch(stored.placements, stored.first_sequence_id, stored.txids, known)

    def _append(
        self, pending: PendingAppend, txids: Sequence[int] | None, expected_sequence: int | None
    ) -> None:
        self._check_open()
        self._intake.append(pending, txids, expected_sequence)
        self._began(pending.first_sequence_id)

    def _began(self, sequence_id: int) -> None:
        """Have what was appended from a record on sent when the turn is over."""
        if not self._pump.is_scheduled:
            self._pump.begin_turn(sequence_id)

    async def drain(self) -> None:
        """Wait until there is room for the append that was refused last."""
        self._check_open()
        await self._pump.window.drained()
        self._check_open()

    async def flush(self) -> None:
        """Wait until everything appended so far is safe, and tailing readers can see it.

        Raises:
            StreamError: it is not, and why.
        """
        await self._pump.settled()
        await self._pump.segments.publish()

    async def roll(self) -> None:
        """Complete the present segment; the next record begins another one."""
        self._check_open()
        await self._pump.settled()
        self._pump.is_roll_wanted = True
        self._pump.wake()
        await self._pump.settled()

    async def truncate(self, before: Cut) -> list[TruncatedSegment]:
        """Cut off what lies before a record; see ``Stream.truncate``."""
        return await truncate(self._context, before)

    async def seal(self) -> None:
        """End the stream permanently: readers come to its end, and nobody appends again.

        Raises:
            StreamError: something that was appended is not safe.
        """
        self._check_open()
        self._pump.is_closing = True
        try:
            await self._pump.settled()
            await self._pump.seal()
        finally:
            await self._tenure.end()
        self._pump.error = StreamSealedError(f"stream {self._context.name} is sealed")

    def _check_open(self) -> None:
        if self._pump.error is not None:
            raise copy_error(self._pump.error)
        if self._pump.is_closing:
            raise LedgerClosedError(f"the writer of stream {self._context.name} is closed")

    def __repr__(self) -> str:
        return f"<StreamWriter {self._context.name}, next {self._pump.state.next_sequence_id}>"


async def open_writer(context: StreamContext, options: WriterOptions) -> StreamWriter:
    """Take the lock of a stream and the stream itself; ``Stream.writer`` does it."""
    lock = context.lock()
    return StreamWriter(context, options, lock, await open_parts(context, options, lock))


def put_many(writer: StreamWriter, payloads: Sequence[bytes], start: int) -> tuple[int, int]:
    """Append, from one on, those of these that need no more than ``put`` does in the quick case.

    Returns:
        How many that were, often none; and the last one's sequence id.
    """
    intake = writer._intake  # noqa: SLF001 - of this module
    count = intake.gather(payloads, start)
    return count, intake.first_sequence_id + len(intake.payloads) - 1


def put_with(
    writer: StreamWriter,
    payload: bytes,
    options: Mapping[str, Any] | None,
    future: FutureLike | None,
) -> int:
    """Append as ``put`` does, with what its options say; tell a future where the record is.

    With a future the record has no number of a producer.
    """
    if future is None:
        return writer.put(payload, **(options or {}))
    carried = None if options is None else attributes_of(**options)
    return writer._put(payload, carried, None, future)  # noqa: SLF001 - of this module
