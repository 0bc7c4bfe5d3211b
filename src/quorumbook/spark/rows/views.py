"""What a stream or a ledger holds at one moment, and the pieces between two places in it; pure.

A ledger by itself is seen as a stream of one segment, number 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from quorumbook.ids import LedgerId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.spark.request.offsets import Offset, is_same_stream
from quorumbook.spark.request.planning import Piece
from quorumbook.spark.rows.open_ledgers import OpenLedgers, Sizes
from quorumbook.streams.format.position import Position
from quorumbook.streams.partitions.partitioning import bare_name


class Extent(NamedTuple):
    """The entries of one segment that are confirmed and not truncated."""

    segment: int
    ledger_id: LedgerId
    first_entry: int
    #: Records before this slot of the first entry are truncated.
    first_slot: int
    #: Behind the last confirmed entry.
    end_entry: int
    #: Whether nothing is ever added to it.
    is_complete: bool
    #: Of the whole segment; -1 while it is not known.
    records: int = -1
    start_sequence_id: int = -1
    is_enveloped: bool = True
    #: Why its ledger is not with the bookies, where that is known.
    gone: str = ""


class View(NamedTuple):
    """One stream or ledger at one moment."""

    name: str
    #: Which one of its name; see ``Offset``.
    birth: int
    extents: tuple[Extent, ...]
    #: Where the next segment will begin.
    next_segment: int = 1
    #: Which one of a partitioned stream; below 0: it is none.
    partition: int = -1
    #: Segments up to this one have other numbers than they had, since some were merged; 0: none.
    last_moved: int = 0
    #: Whether numbers are left out between segments, as between the ledgers of a Pulsar topic.
    is_sparse: bool = False
    #: What it is called where all partitions are meant; empty: its name says it.
    bare: str = ""

    @property
    def title(self) -> str:
        """What it is called where all partitions of a stream are meant."""
        return self.bare or bare_name(self.name, self.partition)

    @property
    def first(self) -> Offset:
        """Return where the first record is, or will be."""
        if not self.extents:
            return Offset(self.birth, self.next_segment, 0)
        first = self.extents[0]
        return Offset(self.birth, first.segment, first.first_entry, first.first_slot)

    @property
    def end(self) -> Offset:
        """Return the offset behind the last record."""
        if not self.extents:
            return self.first
        last = self.extents[-1]
        return self.at(last.segment, last.end_entry)

    def at(self, segment: int, entry: int) -> Offset:
        """Return an offset; behind a complete segment that is the beginning of the next."""
        if self.is_sparse:
            return self._at_of_sparse(segment, entry)
        for extent in self.extents if self.birth else ():
            if extent.segment == segment and extent.is_complete and entry >= extent.end_entry:
                return Offset(self.birth, segment + 1, 0)
        return Offset(self.birth, segment, entry)

    def _at_of_sparse(self, segment: int, entry: int) -> Offset:
        """Return the same where nobody knows what the next segment will be called."""
        ended = False
        for extent in self.extents:
            if ended:
                return Offset(self.birth, extent.segment, 0)
            ended = extent.segment == segment and extent.is_complete and entry >= extent.end_entry
        return Offset(self.birth, segment, entry)

    def lost_before(self, start: Offset) -> str:
        """Say what is gone of what should follow an offset; empty if nothing is."""
        if not is_same_stream(start.birth, self.birth):
            return f"{self.name} was deleted and made again since"
        if start.birth != self.birth and start.segment <= self.last_moved:
            return (
                f"segments of {self.name} up to {self.last_moved} were merged since, so what was "
                f"at {Position(*start.place)} is elsewhere; a cursor holds merging up for a query "
                "that is so far behind"
            )
        first = self.first
        # Our writers begin an entry with a note, which is no record: slot 1 is the first one's.
        kept_from = first.place if first.slot > 1 else (first.segment, first.entry, 0)
        if self.is_sparse and start.place < kept_from and self.extents:
            return (
                f"ledger {start.segment} of {self.name}, which was read up to entry {start.entry}, "
                f"is deleted, and with it perhaps what came after; the first message that is left "
                f"is at {first.segment}:{first.entry}"
            )
        if start.place < kept_from and not self._is_end_of(start, first):
            return (
                f"records of {self.name} from {Position(*start.place)} on were truncated away; "
                f"the first that is left is at {Position(*first.place)}"
            )
        if start.segment > self.end.segment + 1:
            return f"{self.name} ends at segment {self.end.segment}, before {start.segment}"
        return ""

    def _is_end_of(self, start: Offset, first: Offset) -> bool:
        # A query that had read all of it stands behind the last record of its segment.
        return not self.extents and start.segment + 1 == first.segment

    def between(self, start: Offset, end: Offset) -> list[tuple[Extent, int, int, int, int]]:
        """Return extents with first and last entry, first slot, and the slot before which it ends.

        The last is 0 where all of the last entry is wanted.
        """
        found = []
        for extent in self.extents:
            segment = extent.segment
            if segment < start.segment or segment > end.segment:
                continue
            first, slot = extent.first_entry, extent.first_slot
            if segment == start.segment and start[2:4] > (first, slot):
                first, slot = start.entry, start.slot
            behind, end_slot = extent.end_entry, 0
            if segment == end.segment and end.entry < behind:
                behind, end_slot = end.entry + bool(end.slot), end.slot
            if first < behind:
                found.append((extent, first, behind - 1, slot, end_slot))
        return found

    def up_to(self, segment: int, entry: int) -> View:
        """Return it without what is from an entry on."""
        extents = []
        for extent in self.extents:
            if extent.segment < segment:
                extents.append(extent)
            elif extent.segment == segment and extent.first_entry < entry:
                extents.append(extent._replace(end_entry=entry, is_complete=False))
        return self._replace(extents=tuple(extents), next_segment=segment)

    def confirmed_up_to(self, end: Offset) -> View:
        """Return it with what somebody else knows to be confirmed of the segment being written."""
        return self._replace(
            extents=tuple(
                extent._replace(end_entry=max(extent.end_entry, end.entry))
                if extent.segment == end.segment and not extent.is_complete
                else extent
                for extent in self.extents
            )
        )

    def entries_between(self, start: Offset, end: Offset) -> int:
        """Return how many entries lie between two offsets."""
        return sum(last - first + 1 for _, first, last, _, _ in self.between(start, end))

    def after_entries(self, start: Offset, count: int) -> Offset:
        """Return the offset so many entries behind another, or the end."""
        here = start
        for extent, first, last, _, _ in self.between(start, self.end):
            if not count:
                break
            step = min(count, last - first + 1)
            here = self.at(extent.segment, first + step)
            count -= step
        return here


def pieces_of(
    view: View, start: Offset, end: Offset, sizes: Mapping[LedgerId, Sizes], name: str = ""
) -> list[Piece]:
    """Return what lies between two offsets, for the planner."""
    found = []
    for extent, first, last, slot, end_slot in view.between(start, end):
        count = last - first + 1
        records = count
        if extent.records >= 0:
            records = extent.records * count // max(extent.end_entry, 1)
        found.append(
            Piece(
                name, extent.ledger_id, first, last, sizes[extent.ledger_id].of(count), records,
                extent.segment, extent.start_sequence_id, extent.is_enveloped, slot, end_slot,
                view.partition, sizes[extent.ledger_id].fragment_starts,
            )
        )  # fmt: skip
    return found


class Views(Protocol):
    """Looks at the streams or ledgers that are selected, now and again later."""

    @property
    def open_ledgers(self) -> OpenLedgers:
        """The ledgers that are looked into."""
        ...

    def look_again(self, name: str) -> None:
        """Forget what was read of one."""
        ...

    async def names(self) -> Sequence[str]:
        """Return what there is now."""
        ...

    def title(self, name: str) -> str:
        """Return what one is called where all partitions of a stream are meant."""
        ...

    async def view(self, name: str) -> View | None:
        """Return what one holds now; None if it is not there any more."""
        ...

    async def metadata(self, ledger_id: LedgerId) -> LedgerMetadata:
        """Return what the metadata say of a ledger, or said while bookies had it.

        Raises:
            NoSuchLedgerInMetadataError: the ledger is gone.
        """
        ...

    def made_ms(self, extent: Extent, payload: bytes) -> int | None:
        """Return when an entry was made, in ms since 1970; None if it does not say."""
        ...

    async def sizes(self, ledger_id: LedgerId, end_entry: int) -> Sizes:
        """Return how large the entries before one are.

        Raises:
            NoSuchLedgerInMetadataError: the ledger is gone.
        """
        ...
