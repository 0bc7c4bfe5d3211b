"""What a reader hands out beside records, if it is asked to: control records and gaps.

On its way through the reader a notice is a batch of its own, so that its place among records is
kept however they are taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, cast

from quorumbook.ids import LedgerId
from quorumbook.streams.format.control import EntryNote
from quorumbook.streams.format.gap import Gap
from quorumbook.streams.format.position import Position
from quorumbook.streams.reading.batches import Record, RecordBatch


class ControlRecord(NamedTuple):
    """A control record: what writers tell readers, and readers don't tell applications."""

    position: Position
    txid: int
    payload: bytes
    ledger_id: LedgerId

    @property
    def note(self) -> EntryNote | None:
        """What it tells, if a writer of ours made it."""
        return EntryNote.decode(self.payload)


class Notice(RecordBatch):
    """A gap or a control record in the place of a batch; ``item`` is what it is."""

    __slots__ = ("item", "next_place")

    def __init__(
        self,
        item: Gap | ControlRecord,
        first_position: Position,
        next_position: Position,
        next_sequence_id: int,
    ) -> None:
        """Take what is handed out, where it is, and what the next record is."""
        ledger_id = -1 if item.ledger_id is None else item.ledger_id
        super().__init__(first_position, next_sequence_id, (0,), (b"",), None, ledger_id)
        self.item = item
        self.next_place = next_position

    @classmethod
    def of_control(cls, record: ControlRecord, next_sequence_id: int) -> Notice:
        """Return a control record as a batch, and the sequence id of the record behind it."""
        return cls(record, record.position, record.position.next, next_sequence_id)

    @classmethod
    def of_gap(cls, gap: Gap) -> Notice:
        """Return a gap as a batch."""
        return cls(gap, gap.start, gap.end, gap.next_sequence_id)

    @property
    def next_position(self) -> Position:
        """The position right behind."""
        return self.next_place

    def place(self, index: int) -> Position:
        """Return where it is, or what is behind it."""
        return self.next_place if index else self.first_position

    def sequence_id(self, index: int) -> int:
        """Return that of the record behind it."""
        del index  # it has none of its own
        return self.first_sequence_id

    def __iter__(self) -> Iterator[Record]:
        return iter((cast("Record", self.item),))

    def part(self, start: int, stop: int) -> RecordBatch:
        """Return itself: it is one thing."""
        del start, stop
        return self

    def between(self, start: Position, end: Position | None) -> RecordBatch | None:
        """Return itself if it is between two positions."""
        is_in = start <= self.first_position and (end is None or self.first_position < end)
        return self if is_in else None

    def __repr__(self) -> str:
        return f"<Notice of {self.item!r}>"
