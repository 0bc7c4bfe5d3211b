"""Where records came to lie: what ``append`` returns, for one record and for many."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple, overload

from quorumbook.ids import EntryId, LedgerId
from quorumbook.streams.format.position import Position


class Appended(NamedTuple):
    """Where a record is; it is safe when its writer says so."""

    #: None: the record is a duplicate whose position nobody remembers any more.
    position: Position | None
    sequence_id: int
    txid: int
    ledger_id: LedgerId
    #: Whether it had been appended before, and nothing was stored now.
    duplicate: bool = False

    @property
    def entry_id(self) -> EntryId:
        """The entry of the ledger; -1 where the position is not known."""
        return -1 if self.position is None else self.position.entry


class Placement(NamedTuple):
    """Consecutive records of one append in one entry."""

    ledger_id: LedgerId
    first: Position
    records: int


class AppendedBatch(Sequence[Appended]):
    """Where the records of a batch are, in order; made of few objects however many they are."""

    __slots__ = ("_starts", "duplicates", "first_sequence_id", "placements", "txids")

    def __init__(
        self,
        placements: list[Placement],
        first_sequence_id: int,
        txids: Sequence[int],
        duplicates: Sequence[Appended] = (),
    ) -> None:
        """Take what ``append_batch`` knows; duplicates come before what was stored now."""
        self.duplicates = duplicates
        self.placements = placements
        self.first_sequence_id = first_sequence_id
        self.txids = txids
        self._starts: list[int] = []

    @property
    def last_sequence_id(self) -> int:
        """The sequence id of the last record that was stored."""
        return self.first_sequence_id + len(self.txids) - 1

    def __len__(self) -> int:
        return len(self.duplicates) + len(self.txids)

    @overload
    def __getitem__(self, index: int) -> Appended: ...
    @overload
    def __getitem__(self, index: slice) -> list[Appended]: ...
    def __getitem__(self, index: int | slice) -> Appended | list[Appended]:
        if isinstance(index, slice):
            return [self._at(each) for each in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"record {index} of a batch of {len(self)}")
        return self._at(index % len(self))

    def _at(self, index: int) -> Appended:
        if index < len(self.duplicates):
            return self.duplicates[index]
        index -= len(self.duplicates)
        if not self._starts:
            start = 0
            for placement in self.placements:
                self._starts.append(start)
                start += placement.records
        place = bisect_right(self._starts, index) - 1
        ledger_id, (segment, entry, slot), _ = self.placements[place]
        position = Position(segment, entry, slot + index - self._starts[place])
        return Appended(position, self.first_sequence_id + index, self.txids[index], ledger_id)

    def __repr__(self) -> str:
        return f"<AppendedBatch {self.first_sequence_id} to {self.last_sequence_id}>"
