"""Records as a reader hands them out: single, or those of an entry together."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, repeat
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast

from quorumbook.client.reading.entries import short
from quorumbook.ids import EntryId, LedgerId
from quorumbook.streams.format.attributes import Attributes
from quorumbook.streams.format.control import Chunk
from quorumbook.streams.format.position import Position
from quorumbook.streams.format.segment_text import UNKNOWN_SEQUENCE_ID

T = TypeVar("T")

_NOTHING = Attributes()
_NO_ATTRIBUTES: Mapping[int, Attributes] = MappingProxyType({})


class Record(NamedTuple):
    """One record of a stream."""

    position: Position
    #: Dense, from 0, over the whole stream; below 0, and dense within the segment, where that
    #: cannot be known.
    sequence_id: int
    txid: int
    payload: bytes
    #: When its entry was made, by the writer's clock; None of other writers than ours.
    appended_at_ms: int | None
    ledger_id: LedgerId
    attributes: Attributes = _NOTHING

    def __repr__(self) -> str:
        """Say where it is, and how its payload begins."""
        key = "" if self.key is None else f"key {short(self.key)}, "
        where = f"{self.sequence_id} at {self.position}"
        return f"<Record {where}, {key}{len(self.payload)} bytes, {short(self.payload)}>"

    @property
    def key(self) -> bytes | None:
        """The record's key; None if the program that appended it gave none."""
        return self.attributes.key

    @property
    def headers(self) -> dict[str, bytes]:
        """What its appender gave along."""
        return dict(self.attributes.headers)

    @property
    def event_time_ms(self) -> int | None:
        """The event time, if the program that appended the record gave one."""
        return self.attributes.event_time_ms


def made(kind: type[T], rows: Iterable[tuple[Any, ...]]) -> Iterator[T]:
    """Yield named tuples, which are made of rows without a call of Python's for each."""
    new = cast("Callable[[type[T], tuple[Any, ...]], T]", tuple.__new__)
    return map(new, repeat(kind), rows)


def made_at_once(rows: Iterable[T]) -> list[T]:
    """Return a list of rows that are made by no code of Python's.

    The garbage collector does not look through them again and again while they become more; that
    would take longer than to make them.
    """
    if not gc.isenabled():
        return list(rows)
    gc.disable()
    try:
        return list(rows)
    finally:
        gc.enable()


class RecordBatch:
    """Records with consecutive positions in one entry; few objects however many they are."""

    __slots__ = (
        "appended_at_ms",
        "attributes",
        "chunk",
        "first_position",
        "first_sequence_id",
        "further_chunks",
        "ledger_id",
        "payloads",
        "txids",
    )

    def __init__(
        self,
        first_position: Position,
        first_sequence_id: int,
        txids: Sequence[int],
        payloads: Sequence[bytes],
        appended_at_ms: int | None,
        ledger_id: LedgerId,
        attributes: Mapping[int, Attributes] = _NO_ATTRIBUTES,
        chunk: Chunk | None = None,
        further_chunks: int = 0,
    ) -> None:
        """Take what a reader found."""
        self.first_position = first_position
        self.first_sequence_id = first_sequence_id
        self.txids = txids
        self.payloads = payloads
        self.appended_at_ms = appended_at_ms
        self.ledger_id = ledger_id
        #: What records carry beside their payloads, by their slots.
        self.attributes = attributes
        #: Which part of a larger record the only one is; None where they are whole.
        self.chunk = chunk
        #: How many sequence ids the only one takes beside its own: it was put together of chunks.
        self.further_chunks = further_chunks

    @property
    def entry_id(self) -> EntryId:
        """The entry they are in."""
        return self.first_position.entry

    @property
    def last_position(self) -> Position:
        """Where the last one is."""
        segment, entry, slot = self.first_position
        return Position(segment, entry, slot + len(self.payloads) - 1)

    @property
    def next_position(self) -> Position:
        """The position right behind."""
        segment, entry, slot = self.first_position
        return Position(segment, entry, slot + len(self.payloads))

    def place(self, index: int) -> Position:
        """Return the position of the record with this index in the batch."""
        segment, entry, slot = self.first_position
        return Position(segment, entry, slot + index)

    @property
    def last_sequence_id(self) -> int:
        """The sequence id of the last record; below 0 if it cannot be known."""
        return self.sequence_id(len(self.payloads) - 1)

    @property
    def next_sequence_id(self) -> int:
        """The sequence id of the record after these; below 0 if it cannot be known."""
        return self.sequence_id(len(self.payloads) + self.further_chunks)

    def sequence_id(self, index: int) -> int:
        """Return the sequence id of the record with this index in the batch."""
        first = self.first_sequence_id
        return -1 if first == UNKNOWN_SEQUENCE_ID else first + index

    @property
    def size_bytes(self) -> int:
        """How many bytes the payloads have."""
        return sum(map(len, self.payloads))

    def __len__(self) -> int:
        return len(self.payloads)

    def __iter__(self) -> Iterator[Record]:
        if len(self.payloads) == 1:
            return iter((self._only(),))
        segment, entry, slot = self.first_position
        slots = range(slot, slot + len(self.payloads))
        positions = made(Position, zip(repeat(segment), repeat(entry), slots))
        first = self.first_sequence_id
        sequence_ids = repeat(-1) if first == UNKNOWN_SEQUENCE_ID else count(first)
        attributes: Iterable[Attributes] = repeat(_NOTHING)
        if self.attributes:
            attributes = map(self.attributes.get, slots, repeat(_NOTHING))
        rows = zip(
            positions, sequence_ids, self.txids, self.payloads,
            repeat(self.appended_at_ms), repeat(self.ledger_id), attributes,
        )  # fmt: skip
        return made(Record, rows)

    def _only(self) -> Record:
        position = self.first_position
        carried = self.attributes.get(position.slot, _NOTHING) if self.attributes else _NOTHING
        return Record(
            position, self.sequence_id(0), self.txids[0], self.payloads[0],
            self.appended_at_ms, self.ledger_id, carried,
        )  # fmt: skip

    def record(self, index: int) -> Record:
        """Return the record with this index in the batch."""
        return next(iter(self.part(index, index + 1)))

    def part(self, start: int, stop: int) -> RecordBatch:
        """Return some of the records, by their indexes in the batch."""
        if start <= 0 and stop >= len(self.payloads):
            return self
        segment, entry, slot = self.first_position
        return RecordBatch(
            Position(segment, entry, slot + start),
            self.sequence_id(start),
            self.txids[start:stop],
            self.payloads[start:stop],
            self.appended_at_ms,
            self.ledger_id,
            self.attributes,
        )

    def between(self, start: Position, end: Position | None) -> RecordBatch | None:
        """Return the records from one position to before another; None if there are none."""
        if end is None and start <= self.first_position:
            return self
        segment, entry, slot = self.first_position
        first = slot
        stop = slot + len(self.payloads)
        if start > self.first_position:
            first = start.slot if start[:2] == (segment, entry) else stop
        if end is not None and end <= self.last_position:
            stop = end.slot if end[:2] == (segment, entry) else slot
        if first >= stop:
            return None
        return self.part(first - slot, stop - slot)

    def __repr__(self) -> str:
        return f"<RecordBatch {self.first_position} to {self.last_position}>"
