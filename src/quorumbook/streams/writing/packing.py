"""Packs appended records into entries, and knows which are where; pure.

What one call appended waits in a queue until its records are packed into entries of the present
segment; an entry is in flight until it is confirmed.  When a segment fails, what it provably does
not hold goes back to the head of the queue, in order, for the next segment: so sequence ids and
transaction ids are given when records are appended, and positions when they are packed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import repeat

from quorumbook.ids import EntryId, LedgerId
from quorumbook.streams.errors import TxidOutOfOrderError
from quorumbook.streams.format.compression import Codec
from quorumbook.streams.format.control import (
    MAGIC_SIZE_BYTES,
    Chunk,
    EntryNote,
    ProducerState,
    encode_attributes_field,
    encode_chunk_field,
    encode_further_chunks_field,
    encode_time_note,
)
from quorumbook.streams.format.envelope import encode_entry_of
from quorumbook.streams.format.plain_entries import (
    encode_lone_record,
    encode_plain_entries,
    plain_entry_size,
)
from quorumbook.streams.format.position import Position
from quorumbook.streams.format.records import (
    CONTROL,
    END_OF_STREAM,
    END_PAYLOAD,
    END_TXID,
    HEADER_SIZE_BYTES,
    MAX_USER_TXID,
    RECORD_SET,
    encode_record,
    encode_user_records,
)
from quorumbook.streams.writing.pending import (
    MAX_ATOMIC_SIZE_BYTES,
    PackedPart,
    PackedRun,
    PendingAppend,
    SegmentTail,
    check_txids,
    new_placement,
    new_position,
    row_size,
)
from quorumbook.streams.writing.producers import SNAPSHOT_EVERY, Producers, runs_of

#: What the control record at the head of an entry usually takes.
_HEAD_SIZE_BYTES = 64
_INLINE_SNAPSHOT_BYTES = 1024
#: Appends of a producer's in one entry; the note says of each which numbers it has.
_MAX_NOTED_APPENDS = 128
#: Entries of more records are not made together: it would be no faster.
_MOST_RECORDS_EACH = 64


class PackState:
    """The records of one writer, from append to confirmation."""

    def __init__(
        self,
        *,
        next_sequence_id: int,
        last_txid: int,
        codec: Codec,
        batch_bytes: int,
        checks_txids: bool = True,
        producer: str | None = None,
        producers: Producers | None = None,
    ) -> None:
        """Begin where the stream ends.

        Args:
            next_sequence_id: What the next record gets.
            last_txid: The largest so far; -1 if there is none.
            codec: How entries are compressed.
            batch_bytes: An entry takes no further record when it has so many bytes.
            checks_txids: Refuse transaction ids below the one before.
            producer: Whose numbers records have.
            producers: What is known of all producers; None: not all is, so no snapshot is made.
        """
        self._producer = producer
        self._producers = producers
        self.next_sequence_id = next_sequence_id
        self.last_txid = last_txid
        #: Of the record that was appended last, which may be below the largest.
        self._appended_txid = last_txid
        self._codec = codec
        self.batch_bytes = min(batch_bytes, MAX_ATOMIC_SIZE_BYTES)
        self._checks_txids = checks_txids
        #: Whoever has a lower sequence id is stored.
        self.confirmed_to = next_sequence_id
        self._queue: deque[PendingAppend] = deque()
        self._in_flight: deque[PackedRun] = deque()
        #: How many entries are on their way, and of what size.
        self.in_flight = self.in_flight_bytes = 0
        self.queued_count = 0
        self.tail: SegmentTail | None = None

    @property
    def under_way(self) -> tuple[PackedRun, ...]:
        """What is on its way, in order."""
        return tuple(self._in_flight)

    @property
    def next_to_pack(self) -> int:
        """The sequence id of the first record that is in no entry yet."""
        return self.next_sequence_id - self.queued_count

    @property
    def first_queued_txid(self) -> int:
        """The transaction id of that record; if none waits, of the end of the stream."""
        return self._queue[0].next_txid if self._queue else END_TXID

    @property
    def txid_before_queued(self) -> int:
        """The transaction id of the record before the first that is in no entry yet; -1: none."""
        return self._queue[0].txid_before_next if self._queue else self._appended_txid

    # Appending -----------------------------------------------------------------------------

    def append(self, pending: PendingAppend, txids: Sequence[int] | None) -> None:
        """Take records in; without transaction ids they get the next ones.

        Raises:
            TxidOutOfOrderError: a transaction id is none, or below one before it.
        """
        count = len(pending.payloads)
        if pending.is_chunked or pending.host is not None:
            # They have one between them.
            if txids is not None and len({*txids}) != 1:
                raise TxidOutOfOrderError("a record set has one transaction id for all")
            txids = ((self.last_txid + 1 if txids is None else txids[0]),) * count
            self._check_txids(txids, count)
        elif txids is None:
            txids = range(self.last_txid + 1, self.last_txid + 1 + count)
            if txids[-1] > MAX_USER_TXID:
                raise TxidOutOfOrderError("the stream has used up its transaction ids")
        else:
            self._check_txids(txids, count)
        pending.txids = txids
        pending.last_txid_before, self._appended_txid = self._appended_txid, txids[-1]
        pending.first_sequence_id = self.next_sequence_id
        self.next_sequence_id += count
        self.last_txid = max(self.last_txid, txids[-1])
        self.queued_count += count
        self._queue.append(pending)

    def _check_txids(self, txids: Sequence[int], count: int) -> None:
        check_txids(txids, count, self.last_txid if self._checks_txids else None)

    # Segments ------------------------------------------------------------------------------

    def begin_segment(self, number: int, ledger_id: LedgerId) -> SegmentTail:
        """Pack into this segment from now on."""
        assert not self._in_flight
        self.tail = SegmentTail(number, ledger_id, self.txid_before_queued)
        return self.tail

    def end_segment(self) -> None:
        """Have no segment any more; nothing is in flight."""
        assert not self._in_flight
        self.tail = None

    def on_segment_failed(self, last_entry: EntryId) -> list[PendingAppend]:
        """Learn where a segment ends that no entry can be added to any more.

        What it does not hold is queued again.

        Returns:
            The appends that are complete with what it holds.
        """
        finished: list[PendingAppend] = []
        while (run := self.oldest(last_entry)) is not None:
            finished += self.on_confirmed(run)
        while self._in_flight:
            for pending, first, count, _ in reversed(self._in_flight.pop().parts):
                pending.packed = first
                self.queued_count += count
                if not self._queue or self._queue[0] is not pending:
                    self._queue.appendleft(pending)
        self.in_flight = self.in_flight_bytes = 0
        return finished

    # Packing -------------------------------------------------------------------------------

    def pack(self, now_ms: int, most: int = 1, room_bytes: int = 1) -> PackedRun | None:
        """Return what is sent next; None if nothing waits.

        Args:
            now_ms: When it is.
            most: How many entries may be packed together.
            room_bytes: No further entry is packed behind so many bytes.
        """
        tail, queue = self.tail, self._queue
        if tail is None or not queue:
            return None
        tail.latest_ms = now_ms = max(now_ms, tail.latest_ms)
        if self._has_plain_entry(queue[0]):
            if most > 1 and (run := self._pack_plain(tail, now_ms, most, room_bytes)) is not None:
                return run
            if self._is_lone():
                return self._pack_lone(tail, now_ms)
        snapshot = self._due_snapshot(now_ms)
        if snapshot is not None and len(snapshot) > _INLINE_SNAPSHOT_BYTES:
            return self._note_alone(snapshot)
        parts: list[PackedPart] = []
        pieces = [b""]
        # The note is made when it is known whose records it is about.
        size, slot, carried_size = _HEAD_SIZE_BYTES, 1, 0
        while queue:
            pending = queue[0]
            count = pending.fitting(self.batch_bytes - size - carried_size)
            if not count or pending.is_chunked:
                if slot > 1:
                    break
                # What is larger than a batch is an entry of its own.
                count = pending.count if pending.is_atomic else 1
            first, pending.packed = pending.packed, pending.packed + count
            payloads, txids = pending.payloads, pending.txids
            if pending.host is not None:
                host = encode_record(RECORD_SET, tail.record_count + slot, txids[0], pending.host)
                pieces.append(host)
                size += len(host)
            else:
                if count != len(payloads):
                    payloads, txids = payloads[first : first + count], txids[first : first + count]
                records = encode_user_records(
                    tail.record_count + slot, txids, payloads, pending.even_size_bytes
                )
                pieces += records
                size += sum(map(len, records))
            if pending.attributes is not None:
                carried_size += sum(map(row_size, pending.attributes[first : first + count]))
            parts.append((pending, first, count, slot))
            if pending.is_chunked and first == 0:
                pending.start = Position(tail.number, tail.entries, slot)
            slot += count
            if pending.packed < pending.count:
                break
            queue.popleft()
            is_noted = self._producer is None or len(parts) < _MAX_NOTED_APPENDS
            if size + carried_size >= self.batch_bytes or not is_noted or pending.is_chunked:
                break
        pieces[0] = self._head(parts, snapshot, now_ms, has_attributes=carried_size > 0)
        size += len(pieces[0]) - _HEAD_SIZE_BYTES
        entry = encode_entry_of(pieces, size, self._codec)
        tail.further_chunks += pending.is_chunked and first > 0  # alone in its entry
        return self._seal([entry], parts, slot - 1, now_ms)

    def _has_plain_entry(self, pending: PendingAppend) -> bool:
        """Tell whether nothing of the next entry takes a longer note, for all of an append."""
        assert self.tail is not None
        return not (
            pending.is_chunked
            or pending.attributes is not None
            or pending.host is not None
            or self._producer is not None
            or self._codec is not Codec.NONE
            or (self._producers is not None and not self.tail.entries % SNAPSHOT_EVERY)
            or self.tail.further_chunks
        )

    def _pack_plain(
        self, tail: SegmentTail, now_ms: int, most: int, room_bytes: int
    ) -> PackedRun | None:
        """Do what ``pack`` does, for several full entries of one append; None if there are none.

        The last of its records may share an entry with the next append's, and are left to it.
        """
        pending = self._queue[0]
        left = pending.count - pending.packed
        # Two entries, and a record that is left.
        if left < 3 or pending.even_size_bytes < 0 or pending.is_atomic:
            return None
        stride = pending.even_size_bytes + HEADER_SIZE_BYTES
        each = max((self.batch_bytes - _HEAD_SIZE_BYTES) // stride, 1)
        count = min((left - 1) // each, most)
        if self._producers is not None:
            count = min(count, SNAPSHOT_EVERY - tail.entries % SNAPSHOT_EVERY)
        count = min(count, -(-room_bytes // plain_entry_size(pending.even_size_bytes, each)))
        if count < 2 or each > _MOST_RECORDS_EACH:
            return None
        first = pending.packed
        end = pending.packed = first + count * each
        txids, payloads = pending.txids[first:end], pending.payloads[first:end]
        txid_before = pending.txid_before(first)
        entries = encode_plain_entries(
            tail.record_count, now_ms, txid_before, txids, payloads, each
        )
        return self._seal(entries, ((pending, first, count * each, 1),), each, now_ms)

    def _is_lone(self) -> bool:
        """Tell whether the next entry, a plain one, has one record."""
        pending = self._queue[0]
        left = pending.count - pending.packed
        if left > 1:
            if pending.is_atomic:
                return False
            return pending.fitting(self.batch_bytes - _HEAD_SIZE_BYTES) <= 1
        if len(self._queue) == 1:
            return True
        size = _HEAD_SIZE_BYTES + HEADER_SIZE_BYTES + len(pending.payloads[-1])
        return size >= self.batch_bytes or not self._queue[1].fitting(self.batch_bytes - size)

    def _pack_lone(self, tail: SegmentTail, now_ms: int) -> PackedRun:
        """Do what ``pack`` does for an entry with one record, which takes a third of the time."""
        pending = self._queue[0]
        index, txid_before = pending.packed, pending.txid_before_next
        pending.packed += 1
        if pending.packed == pending.count:
            self._queue.popleft()
        data = encode_lone_record(
            tail.record_count, now_ms, txid_before, pending.txids[index], pending.payloads[index]
        )
        return self._seal([data], ((pending, index, 1, 1),), 1, now_ms)

    def _head(
        self,
        parts: Sequence[PackedPart],
        snapshot: bytes | None,
        now_ms: int,
        *,
        has_attributes: bool,
    ) -> bytes:
        """Return the control record at the head of an entry.

        As with the peer its transaction id is that of the user record before it.  A search for
        the entry's own finds the record that has it, and not this one.
        """
        assert self.tail is not None
        pending, first, *_ = parts[0]
        if self._producer is None and snapshot is None:
            note = encode_time_note(now_ms)
        else:
            runs = runs_of(
                [
                    (slot - 1, *numbers)
                    for pending, first, count, slot in parts
                    if (numbers := pending.numbers(first, count))[1]
                ]
            )
            note = EntryNote(now_ms, self._producer if runs else None, runs).encode()
            if snapshot is not None:
                note += snapshot[MAGIC_SIZE_BYTES:]
        if has_attributes:
            note += encode_attributes_field(
                (slot - 1 + index, attributes)
                for pending, first, count, slot in parts
                for index, attributes in enumerate(
                    (pending.attributes or ())[first : first + count]
                )
                if attributes
            )
        if pending.is_chunked:
            note += encode_chunk_field(Chunk(first, pending.count, pending.start))
        note += encode_further_chunks_field(self.tail.further_chunks)
        return encode_record(CONTROL, self.tail.record_count, pending.txid_before(first), note)

    def _due_snapshot(self, now_ms: int) -> bytes | None:
        """Return a note that is a snapshot of all producers, if the next entry has one."""
        assert self.tail is not None
        if self._producers is None or self.tail.entries % SNAPSHOT_EVERY:
            return None
        return EntryNote(snapshot=self._producers.snapshot(now_ms, self._last_packed())).encode()

    def _last_packed(self) -> ProducerState | None:
        """Return what the producer has in flight: it is stored if a later entry is."""
        assert self.tail is not None
        if self._producer is None:
            return None
        for entry in reversed(self._in_flight):
            for pending, first, count, slot in reversed(entry.parts):
                number, numbers = pending.numbers(first, count)
                if numbers:
                    place = Position(self.tail.number, entry.last_entry_id, slot + count - 1)
                    behind = 0 if pending.is_chunked else first + count - 1
                    return ProducerState(
                        self._producer,
                        number + numbers - 1,
                        pending.start if pending.is_chunked else place,
                        pending.first_sequence_id + behind,
                        entry.packed_at_ms,
                    )
        return None

    def _note_alone(self, note: bytes) -> PackedRun:
        """Return an entry that holds nothing else than a note."""
        assert self.tail is not None
        note += encode_further_chunks_field(self.tail.further_chunks)
        record = encode_record(CONTROL, self.tail.record_count, self.txid_before_queued, note)
        return self._seal([encode_entry_of([record], len(record), self._codec)])

    def pack_end(self) -> PackedRun:
        """Return the entry that ends the stream; nothing is queued or follows."""
        assert self.tail is not None
        record = encode_record(END_OF_STREAM, self.tail.record_count, END_TXID, END_PAYLOAD)
        entry = encode_entry_of([record], len(record), self._codec)
        return self._seal([entry], is_end=True)

    def _seal(
        self,
        entries: Sequence[bytes],
        parts: Sequence[PackedPart] = (),
        last_slot: int = 0,
        now_ms: int = 0,
        *,
        is_end: bool = False,
    ) -> PackedRun:
        assert self.tail is not None
        run = PackedRun(self.tail.entries, entries, parts, last_slot, now_ms, is_end=is_end)
        self.tail.entries += len(entries)
        self.tail.record_count += run.record_count
        self.tail.size_bytes += run.size_bytes
        self._in_flight.append(run)
        self.in_flight += len(entries)
        self.in_flight_bytes += run.size_bytes
        self.queued_count -= run.record_count
        return run

    # Confirming ----------------------------------------------------------------------------

    def oldest(self, last_entry: EntryId) -> PackedRun | None:
        """Return what is oldest of what is in flight up to an entry; None: nothing of it is."""
        if not self._in_flight or self._in_flight[0].first_entry_id > last_entry:
            return None
        if self._in_flight[0].last_entry_id > last_entry:
            self._in_flight.extendleft(reversed(self._in_flight.popleft().halves(last_entry)))
        return self._in_flight[0]

    def on_confirmed(self, run: PackedRun) -> list[PendingAppend]:
        """Learn that the oldest in flight is safe; return the appends that are complete."""
        assert self.tail is not None
        assert self._in_flight[0] is run
        self._in_flight.popleft()
        entry_count = len(run.entries)
        self.in_flight -= entry_count
        self.in_flight_bytes -= run.size_bytes
        tail = self.tail
        entry_ids = range(run.first_entry_id, run.first_entry_id + entry_count)
        finished = []
        for pending, first, count, slot in run.parts:
            places = map(new_position, zip(repeat(tail.number), entry_ids, repeat(slot)))
            pending.placements += map(
                new_placement, zip(repeat(tail.ledger_id), places, repeat(count // entry_count))
            )
            if self._producer is not None:
                self._on_numbers_stored(self._producer, run, pending, first, count)
            pending.confirmed += count
            if pending.confirmed == pending.count:
                finished.append(pending)
        tail.confirmed_entry, tail.confirmed_slot = run.last_entry_id, run.last_slot
        tail.confirmed_count += run.record_count
        if run.parts:
            pending, first, count, _ = run.parts[-1]
            tail.confirmed_txid = pending.txids[first + count - 1]
            self.confirmed_to = pending.first_sequence_id + first + count
        elif run.is_end:
            tail.confirmed_txid = END_TXID
        return finished

    def _on_numbers_stored(
        self, producer: str, run: PackedRun, pending: PendingAppend, first: int, count: int
    ) -> None:
        first_number, numbers = pending.numbers(first, count)
        if numbers and self._producers is not None:
            self._producers.on_stored(
                producer,
                first_number,
                pending.first_sequence_id + (0 if pending.is_chunked else first),
                pending.placements[0 if pending.is_chunked else -1],
                run.packed_at_ms,
            )

    def fail(self) -> list[PendingAppend]:
        """Give everything up; return what was not confirmed, in order."""
        found: dict[int, PendingAppend] = {}
        for entry in self._in_flight:
            for pending, *_ in entry.parts:
                found[id(pending)] = pending
        for pending in self._queue:
            found[id(pending)] = pending
        self._in_flight.clear()
        self._queue.clear()
        self.in_flight = self.in_flight_bytes = self.queued_count = 0
        return list(found.values())
