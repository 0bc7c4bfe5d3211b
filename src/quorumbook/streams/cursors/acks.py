"""Records beyond a cursor's position that are done, or were refused, one by one; pure.

They are kept by sequence ids, which are dense: neighbours are one range, however they lie in
entries and segments.  A range also says where reading goes on behind it, so that a cursor can move
there when everything before is acknowledged.  In a cursor's JSON:

    {"floor": F, "ranges": [[gap, count, segment, entry, slot], ...],
     "refused": [[offset, deliveries, due_ms, segment, entry, slot], ...]}

where ``F`` is the sequence id of the first record that the cursor has not passed, ``gap`` how many
records since the floor or the range before are not acknowledged, ``count`` how many then are, and
the rest the position behind them.  A refused record is ``offset`` behind the floor; it was handed
out ``deliveries`` times in vain, and is to be again from ``due_ms`` on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from quorumbook.streams.errors import AckLimitError
from quorumbook.streams.format.position import Position

#: What a cursor keeps at most; about 100 KB of metadata, written with each acknowledgement.
MAX_RANGES = 4096
MAX_REFUSED = 1024


class AckedRange(NamedTuple):
    """Consecutive records."""

    first: int
    last: int
    #: Where reading goes on behind the last.
    end: Position


class Refused(NamedTuple):
    """A record that was handed out and not done; it keeps the cursor from passing it."""

    sequence_id: int
    position: Position
    #: How often it was handed out in vain.
    deliveries: int
    #: When it is to be handed out again, since 1970.
    due_ms: int


@dataclass(frozen=True, slots=True)
class Acks:
    """What was acknowledged from a floor on; the floor itself never is."""

    #: The sequence id of the first record that is not acknowledged.
    floor: int
    #: In order, with a gap before each.
    ranges: tuple[AckedRange, ...] = ()
    #: In order; none of them in a range.
    refused: tuple[Refused, ...] = ()

    @property
    def count(self) -> int:
        """How many records beyond the floor are acknowledged."""
        return self.count_from(self.floor)

    def count_from(self, sequence_id: int) -> int:
        """Return how many records from one on are acknowledged."""
        return sum(max(0, last - max(first, sequence_id) + 1) for first, last, _ in self.ranges)

    def covers(self, sequence_id: int) -> bool:
        """Tell whether a record is acknowledged, or before the floor."""
        place = bisect_right(self.ranges, sequence_id, key=lambda each: each.first)
        is_in = place > 0 and self.ranges[place - 1].last >= sequence_id
        return is_in or sequence_id < self.floor

    def gaps(self, first: int, count: int) -> list[tuple[int, int]]:
        """Return which of so many consecutive records are not acknowledged, as slices of them."""
        found = []
        start = max(0, self.floor - first)
        place = bisect_right(self.ranges, first, key=lambda each: each.first)
        for each in self.ranges[max(place - 1, 0) :]:
            if each.first - first >= count:
                break
            if each.first - first > start:
                found.append((start, each.first - first))
            start = max(start, each.last + 1 - first)
        if start < count:
            found.append((start, count))
        return found

    def unseen(self, first: int, count: int) -> list[tuple[int, int]]:
        """Return which of so many consecutive records were neither acknowledged nor refused."""
        cuts = [each.sequence_id - first for each in self.refused]
        found = []
        for start, stop in self.gaps(first, count):
            inside = [cut for cut in cuts if start <= cut < stop]
            for before, after in pairwise([start - 1, *inside, stop]):
                if before + 1 < after:
                    found.append((before + 1, after))
        return found

    def refusal(self, sequence_id: int) -> Refused | None:
        """Return what is known of a record that was refused; None of any other."""
        return next((each for each in self.refused if each.sequence_id == sequence_id), None)

    def with_acked(self, acked: Iterable[AckedRange]) -> tuple[Acks, Position | None]:
        """Return what is acknowledged with these too, and the cursor's new position if it moves.

        Raises:
            AckLimitError: there would be more ranges than a cursor keeps.
        """
        merged: list[AckedRange] = []
        for each in sorted([*self.ranges, *acked]):
            if merged and each.first <= merged[-1].last + 1:
                if each.last > merged[-1].last:
                    merged[-1] = AckedRange(merged[-1].first, each.last, each.end)
            elif each.last >= self.floor:
                merged.append(each)
        floor, position = self.floor, None
        if merged and merged[0].first <= floor:
            _, last, position = merged.pop(0)
            floor = last + 1
        if len(merged) > MAX_RANGES:
            raise AckLimitError(
                f"records are acknowledged in {len(merged)} ranges with holes between them, and a "
                f"cursor keeps {MAX_RANGES}: acknowledge the first record that is not, which has "
                f"sequence id {floor}"
            )
        done = Acks(floor, tuple(merged))
        left = (each for each in self.refused if not done.covers(each.sequence_id))
        return replace(done, refused=tuple(left)), position

    def without(self, sequence_id: int, position: Position) -> Acks:
        """Return what is acknowledged if one record, which is at a position, is not."""
        found: list[AckedRange] = []
        for each in self.ranges:
            if each.first <= sequence_id <= each.last:
                if each.first < sequence_id:
                    found.append(AckedRange(each.first, sequence_id - 1, position))
                if sequence_id < each.last:
                    found.append(AckedRange(sequence_id + 1, each.last, each.end))
            else:
                found.append(each)
        return replace(self, ranges=tuple(found))

    def with_refused(self, sequence_id: int, position: Position, due_ms: int) -> Acks:
        """Return it with one delivery more of a record counted, which was in vain.

        Raises:
            AckLimitError: there would be more of them than a cursor keeps.
        """
        known = self.refusal(sequence_id)
        deliveries = 1 if known is None else known.deliveries + 1
        others = [each for each in self.refused if each is not known]
        if len(others) >= MAX_REFUSED:
            raise AckLimitError(
                f"{len(others)} records wait to be handed out again, and a cursor keeps no more"
            )
        refused = sorted([*others, Refused(sequence_id, position, deliveries, due_ms)])
        return replace(self.without(sequence_id, position), refused=tuple(refused))

    def without_refusal(self, sequence_id: int) -> Acks:
        """Return it as if a record had not been refused."""
        left = tuple(each for each in self.refused if each.sequence_id != sequence_id)
        return replace(self, refused=left)

    def passed(self, floor: int, end: Position) -> tuple[Acks, Position | None]:
        """Return what is left when all before a record is done, except what was refused.

        Args:
            floor: The sequence id of that record.
            end: Where it is, or a position right behind the one before it.

        Returns:
            That, and the cursor's new position; None: it stays, before a refused record.
        """
        first, done = self.floor, []
        for each in self.refused:
            if each.sequence_id >= floor:
                break
            if each.sequence_id > first:
                done.append(AckedRange(first, each.sequence_id - 1, each.position))
            first = each.sequence_id + 1
        if first == self.floor:
            left, position = replace(self, floor=floor).with_acked(())
            return left, position or end
        if first < floor:
            done.append(AckedRange(first, floor - 1, end))
        return self.with_acked(done)

    def to_json(self) -> dict[str, Any]:
        """Return what is stored."""
        ranges, before = [], self.floor
        for first, last, end in self.ranges:
            ranges.append([first - before, last - first + 1, *end])
            before = last + 1
        found: dict[str, Any] = {"floor": self.floor, "ranges": ranges}
        if self.refused:
            found["refused"] = [
                [each.sequence_id - self.floor, each.deliveries, each.due_ms, *each.position]
                for each in self.refused
            ]
        return found

    @classmethod
    def from_json(cls, data: Any) -> Acks:
        """Read what is stored.

        Raises:
            ValueError: it is something else; KeyError and TypeError too.
        """
        floor = before = int(data["floor"])
        ranges = []
        for gap, count, segment, entry, slot in data["ranges"]:
            if gap < 1 or count < 1:
                raise ValueError(f"acknowledged: {count} records behind {gap}")
            first, before = before + gap, before + gap + count
            ranges.append(AckedRange(first, before - 1, Position(segment, entry, slot)))
        refused = [
            Refused(floor + offset, Position(segment, entry, slot), deliveries, due_ms)
            for offset, deliveries, due_ms, segment, entry, slot in data.get("refused", ())
        ]
        return cls(floor, tuple(ranges), tuple(refused))
