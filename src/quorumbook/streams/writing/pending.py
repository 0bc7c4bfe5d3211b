"""What one call appended and is not safe yet, and what it is packed into; pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, repeat
from operator import add
from typing import Any, TypeAlias

from quorumbook.client.writing.pending import frozen
from quorumbook.ids import EntryId, LedgerId
from quorumbook.streams.errors import RecordTooLargeError, TxidOutOfOrderError
from quorumbook.streams.format.attributes import ROW_SIZE_BYTES, Attributes
from quorumbook.streams.format.compression import Codec
from quorumbook.streams.format.control import CHUNK_SIZE_BYTES
from quorumbook.streams.format.envelope import MAX_RECORDS_SIZE_BYTES
from quorumbook.streams.format.position import Position
from quorumbook.streams.format.record_sets import encode_record_set
from quorumbook.streams.format.records import (
    HEADER_SIZE_BYTES,
    MAX_PAYLOAD_SIZE_BYTES,
    MAX_USER_TXID,
    sizes_of,
)
from quorumbook.streams.writing.appended import Appended, AppendedBatch, Placement

#: What the control record at the head of an entry takes at most, without attributes.
_MAX_HEAD_SIZE_BYTES = 4096
MAX_ATOMIC_SIZE_BYTES = MAX_RECORDS_SIZE_BYTES - _MAX_HEAD_SIZE_BYTES
_NOWHERE = Position(0, 0, 0)
#: Made from rows; the classes' own way is three times as slow.
new_position = partial(tuple.__new__, Position)
new_placement = partial(tuple.__new__, Placement)
_appended = partial(tuple.__new__, Appended)


def row_size(attributes: bytes) -> int:
    """Return what a record's attributes take in the note of its entry."""
    return len(attributes) + ROW_SIZE_BYTES if attributes else 0


def single(
    payload: bytes, future: Any, *, number: int = -1, attributes: Attributes | None = None
) -> PendingAppend:
    """Return the append of one record, in chunks if it fits into no entry."""
    carried: tuple[bytes, ...] = () if attributes is None else (attributes.encode(),)
    if len(payload) + sum(map(row_size, carried)) <= MAX_PAYLOAD_SIZE_BYTES:
        return PendingAppend((payload,), future, first_number=number, attributes=carried or None)
    starts = range(0, len(payload), CHUNK_SIZE_BYTES)
    chunks = tuple(payload[start : start + CHUNK_SIZE_BYTES] for start in starts)
    carried = (*carried, *(b"",) * (len(chunks) - 1)) if carried else ()
    return PendingAppend(
        chunks, future, is_chunked=True, first_number=number, attributes=carried or None
    )


#: Which records of an append are in an entry: append, first index, count, first slot.
PackedPart: TypeAlias = "tuple[PendingAppend, int, int, int]"


class PendingAppend:
    """Records that one call appended; they share a future, and may be split over entries."""

    __slots__ = (
        "_ends",
        "attributes",
        "confirmed",
        "count",
        "even_size_bytes",
        "first_number",
        "first_sequence_id",
        "future",
        "futures",
        "host",
        "is_atomic",
        "is_chunked",
        "last_txid_before",
        "packed",
        "payloads",
        "placements",
        "size_bytes",
        "start",
        "txids",
    )

    def __init__(
        self,
        payloads: Sequence[bytes],
        future: Any,
        *,
        is_atomic: bool = False,
        is_chunked: bool = False,
        first_number: int = -1,
        attributes: Sequence[bytes] | None = None,
        set_codec: Codec | None = None,
        futures: Sequence[Any] = (),
    ) -> None:
        """Take records, one at least.

        Args:
            payloads: The records.
            future: What only the driver knows.
            is_atomic: They must be in one entry.
            is_chunked: They are one record, in parts of which each is alone in an entry.
            first_number: What their producer numbers them from; -1: it does not.
            attributes: What each carries beside its payload, encoded; None: nothing.
            set_codec: They are the members of one record set, compressed so; None: no set.
            futures: Of the records, as far as each has its own; None where it has none.
        """
        #: The payload of the record that hosts them.
        self.host = None if set_codec is None else encode_record_set(payloads, set_codec)
        self.attributes = attributes
        self.first_number = first_number
        self.payloads = payloads
        #: How many records there are.
        self.count = len(payloads)
        self.future = future
        self.futures = futures
        self.is_atomic = is_atomic
        self.is_chunked = is_chunked
        #: Where the first one was packed to.
        self.start = _NOWHERE
        self.txids: Sequence[int] = ()
        #: Of the record that was appended before; -1: none was.
        self.last_txid_before = -1
        self.first_sequence_id = 0
        self.packed = 0
        self.confirmed = 0
        self.placements: list[Placement] = []
        #: What all records have together, and each of them; -1 if they differ.
        self.size_bytes, self.even_size_bytes = sizes_of(payloads)
        if attributes is not None:
            self.size_bytes += sum(map(row_size, attributes))
        self._ends: list[int] | None = None

    @property
    def number_count(self) -> int:
        """How many numbers of its producer it uses."""
        return 1 if self.is_chunked else len(self.payloads)

    def result(self) -> Appended | AppendedBatch:
        """Return what its future is told: all of it is confirmed."""
        if type(self.payloads) is tuple:
            ledger_id, position, _ = self.placements[0]
            return Appended(position, self.first_sequence_id, self.txids[0], ledger_id)
        return AppendedBatch(self.placements, self.first_sequence_id, self.txids)

    def each(self) -> Iterator[Appended]:
        """Yield where each of the records is that are confirmed."""
        at = 0
        for ledger_id, (segment, entry, slot), count in self.placements:
            slots = zip(repeat(segment), repeat(entry), range(slot, slot + count))
            first, txids = self.first_sequence_id + at, self.txids[at : at + count]
            yield from map(
                _appended,
                zip(map(new_position, slots), range(first, first + count), txids,
                    repeat(ledger_id), repeat(False)),
            )  # fmt: skip
            at += count

    def size_of(self, first: int, count: int) -> int:
        """Return how many bytes some of the records have, with what they carry."""
        carried = (self.attributes or ())[first : first + count]
        return sum(map(len, self.payloads[first : first + count])) + sum(map(row_size, carried))

    def numbers(self, first: int, count: int) -> tuple[int, int]:
        """Return the first number of its producer's and how many that some records use up.

        A record in chunks uses its number with the last one.
        """
        if self.first_number < 0:
            return -1, 0
        if self.is_chunked:
            return self.first_number, int(first + count == len(self.payloads))
        return self.first_number + first, count

    def txid_before(self, index: int) -> int:
        """Return the transaction id of the record before one of these; -1 if there is none."""
        return self.txids[index - 1] if index else self.last_txid_before

    @property
    def next_txid(self) -> int:
        """The transaction id of the first record that is not packed; there is one."""
        return self.txids[self.packed]

    @property
    def txid_before_next(self) -> int:
        """That of the record before; -1 if there is none."""
        return self.txid_before(self.packed)

    def check_size(self, max_record_bytes: int = MAX_PAYLOAD_SIZE_BYTES) -> None:
        """Raise RecordTooLargeError if a record is too large, or what must be one entry."""
        together = self.size_bytes + len(self.payloads) * HEADER_SIZE_BYTES
        if together <= min(max_record_bytes, MAX_ATOMIC_SIZE_BYTES) and self.host is None:
            return  # all of them are smaller than one may be
        sizes = map(len, self.payloads)
        if self.attributes is not None:
            sizes = map(add, sizes, map(row_size, self.attributes))
        largest = self.size_bytes if self.is_chunked else max(sizes)
        if largest > max_record_bytes:
            raise RecordTooLargeError(
                f"a record of {largest} bytes is larger than the {max_record_bytes} that the "
                "stream takes (max_record_bytes in its policy)"
            )
        if largest > MAX_PAYLOAD_SIZE_BYTES and not self.is_chunked:
            raise RecordTooLargeError(
                f"a record of {largest} bytes is larger than the {MAX_PAYLOAD_SIZE_BYTES} that a "
                "batch takes; append it alone"
            )
        if self.host is not None and len(self.host) > MAX_PAYLOAD_SIZE_BYTES:
            raise RecordTooLargeError(
                f"a record set of {len(self.host)} bytes is larger than the "
                f"{MAX_PAYLOAD_SIZE_BYTES} that a record holds"
            )
        if self.is_atomic and together > MAX_ATOMIC_SIZE_BYTES:
            raise RecordTooLargeError(
                f"{self.count} records take {together} bytes; an entry, which they must be, holds "
                f"{MAX_ATOMIC_SIZE_BYTES}"
            )

    def fitting(self, room_bytes: int) -> int:
        """Return how many of the records that are not packed fit into an entry's room."""
        count = len(self.payloads)
        if not self.packed and self.size_bytes + count * HEADER_SIZE_BYTES <= room_bytes:
            return count
        if self.is_atomic or count == 1:
            return 0
        if self.even_size_bytes >= 0 and self.attributes is None:
            most = room_bytes // (self.even_size_bytes + HEADER_SIZE_BYTES)
            return max(0, min(most, count - self.packed))
        if self._ends is None:
            sizes: Iterable[int] = map(len, self.payloads)
            if self.attributes is not None:
                sizes = map(add, sizes, map(row_size, self.attributes))
            self._ends = list(accumulate(map(HEADER_SIZE_BYTES.__add__, sizes)))
        before = self._ends[self.packed - 1] if self.packed else 0
        return max(0, bisect_right(self._ends, before + room_bytes) - self.packed)


class PackedRun:
    """Consecutive entries on their way to the bookies that were packed together; mostly one."""

    __slots__ = (
        "appended_ns",
        "entries",
        "first_entry_id",
        "is_end",
        "last_slot",
        "packed_at_ms",
        "parts",
        "size_bytes",
    )

    def __init__(
        self,
        first_entry_id: EntryId,
        entries: Sequence[bytes],
        parts: Sequence[PackedPart],
        last_slot: int,
        packed_at_ms: int,
        *,
        is_end: bool = False,
    ) -> None:
        """Hold entries.

        Args:
            first_entry_id: Of the first.
            entries: Their bytes.
            parts: Which records are in them; one part where they are several.
            last_slot: Of each: how many records it has.
            packed_at_ms: When that was.
            is_end: Whether it ends the stream.
        """
        self.first_entry_id = first_entry_id
        self.entries = entries
        self.parts = parts
        self.last_slot = last_slot
        self.packed_at_ms = packed_at_ms
        self.is_end = is_end
        self.size_bytes = sum(map(len, entries))
        #: When the first of the records was appended, on the monotonic clock; the driver's.
        self.appended_ns = 0

    @property
    def last_entry_id(self) -> EntryId:
        """The last of its entries."""
        return self.first_entry_id + len(self.entries) - 1

    @property
    def record_count(self) -> int:
        """How many records are in all of it."""
        return self.last_slot * len(self.entries)

    def halves(self, last_entry_id: EntryId) -> tuple[PackedRun, PackedRun]:
        """Return the entries up to one that is not the last, and those behind it."""
        count = last_entry_id - self.first_entry_id + 1
        ((pending, first, records, slot),) = self.parts
        before_count = count * self.last_slot
        common = self.last_slot, self.packed_at_ms
        part = pending, first, before_count, slot
        before = PackedRun(self.first_entry_id, self.entries[:count], (part,), *common)
        part = pending, first + before_count, records - before_count, slot
        behind = PackedRun(last_entry_id + 1, self.entries[count:], (part,), *common)
        before.appended_ns = behind.appended_ns = self.appended_ns
        return before, behind


class SegmentTail:
    """What is in the segment that is being written."""

    __slots__ = (
        "confirmed_count",
        "confirmed_entry",
        "confirmed_slot",
        "confirmed_txid",
        "entries",
        "further_chunks",
        "latest_ms",
        "ledger_id",
        "number",
        "record_count",
        "size_bytes",
    )

    def __init__(self, number: int, ledger_id: LedgerId, txid_before: int) -> None:
        self.number = number
        self.ledger_id = ledger_id
        #: What was packed into it.
        self.entries = 0
        self.record_count = self.further_chunks = 0
        self.size_bytes = 0
        #: When its last entry was made; does not go back with the clock, or searches by time fail.
        self.latest_ms = 0
        #: What is known to be stored in it.
        self.confirmed_count = 0
        self.confirmed_entry: EntryId = -1
        self.confirmed_slot = -1
        self.confirmed_txid = txid_before


def check_txids(txids: Sequence[int], count: int, before: int | None) -> None:
    """Check the transaction ids of records.

    Args:
        txids: One for each.
        count: How many records there are.
        before: That of the record before, below which none may be; None: they are in any order.

    Raises:
        TxidOutOfOrderError: one is none, or below one before it.
    """
    if len(txids) != count:
        raise TxidOutOfOrderError(f"{len(txids)} transaction ids for {count} records")
    for txid in txids:
        if not 0 <= txid <= MAX_USER_TXID:
            raise TxidOutOfOrderError(f"transaction id {txid} is not between 0 and 2^63 - 2")
        if before is not None:
            if txid < before:
                raise TxidOutOfOrderError(
                    f"transaction id {txid} is below {before}, which was appended before it"
                )
            before = txid


def all_frozen(payloads: Iterable[bytes]) -> list[bytes]:
    """Return payloads, those copied that could change."""
    kept = list(payloads)
    if set(map(type, kept)) <= {bytes}:
        return kept
    return [item if type(item) is bytes else frozen(item) for item in kept]
