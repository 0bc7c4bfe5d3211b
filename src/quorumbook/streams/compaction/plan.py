"""Which segments become one, and what the stream's segments are then; pure.

    before   1 large   2 3 4 5 small   6 large   7 in progress
    after              4 large   5 merged   6 large   7 in progress

Only nodes that are there are used again, so each changes by version, and a reader that knows an
old position finds nothing earlier in its place.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from quorumbook.ids import LedgerId
from quorumbook.streams.format.segment_text import (
    COMPACTED,
    SegmentMetadata,
    Truncation,
)

#: Java counts records of a segment in an int.
_MAX_RECORDS = 2**31 - 1
#: The step also deletes the attempt's node and makes garbage of the ledgers.
_OTHER_CHANGES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What is merged.

    Attributes:
        target_bytes: A merged segment is not larger.
        small_bytes: Only smaller segments are merged.
        min_segments: So many at least become one.
        max_changes: What the metadata store changes in one step.
        end: The number of the first segment that stays where it is, whatever it is.
        completed_before_ms: Only segments that were completed before.
    """

    target_bytes: int
    small_bytes: int
    min_segments: int = 2
    max_changes: int
    end: int
    completed_before_ms: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A segment, and what else is to be known of it."""

    segment: SegmentMetadata
    size_bytes: int
    #: Whether its number may change: nothing in its entries, and no file, says it.
    is_movable: bool
    #: Whether its entries may go into another ledger.
    is_mergeable: bool


@dataclass(frozen=True, slots=True)
class Merge:
    """One step."""

    #: What becomes one segment; two at least.
    run: Sequence[SegmentMetadata]
    #: All segments before it, which only get other numbers.
    before: Sequence[SegmentMetadata]
    size_bytes: int

    @property
    def number(self) -> int:
        """What the merged segment will have."""
        return self.run[-1].number

    @property
    def record_count(self) -> int:
        """How many records it will have."""
        return sum(segment.record_count for segment in self.run)

    def moved(self) -> list[SegmentMetadata]:
        """Return the segments before the run with their new numbers."""
        by = len(self.run) - 1
        return [
            replace(segment, number=segment.number + by, status=segment.status | COMPACTED)
            for segment in self.before
        ]

    def merged(self, ledger_id: LedgerId, last_entry: int) -> SegmentMetadata:
        """Return the merged segment.

        Args:
            ledger_id: Its ledger.
            last_entry: In which the run's last record is now.
        """
        first, last = self.run[0], self.run[-1]
        return replace(
            last,
            ledger_id=ledger_id,
            first_txid=first.first_txid,
            record_count=self.record_count,
            last_entry=last_entry,
            min_active_entry=first.min_active_entry,
            min_active_slot=first.min_active_slot,
            start_sequence_id=first.start_sequence_id,
            status=first.status | COMPACTED,
        )


def plan_merge(candidates: Sequence[Candidate], rules: Rules) -> Merge | None:
    """Return the first run that is worth it; None if there is none.

    Args:
        candidates: A stream's segments from the first on, in order.
        rules: What is merged.
    """
    settled = list(itertools.takewhile(lambda each: _is_settled(each.segment, rules), candidates))
    # Each segment is one change, whether its node stays or goes.
    most = rules.max_changes - _OTHER_CHANGES
    for start, behind in _runs(settled, rules):
        if any(not each.is_movable for each in settled[:start]):
            return None
        end = min(behind, most)
        if end - start >= rules.min_segments:
            run = settled[start:end]
            return Merge(
                [each.segment for each in run],
                [each.segment for each in settled[:start]],
                sum(each.size_bytes for each in run),
            )
    return None


def _is_settled(segment: SegmentMetadata, rules: Rules) -> bool:
    return (
        not segment.is_in_progress
        and segment.number < rules.end
        and segment.completed_at_ms < rules.completed_before_ms
        # Somebody is about to delete it by its number.
        and segment.truncation is not Truncation.TRUNCATED
    )


def _runs(settled: Sequence[Candidate], rules: Rules) -> Iterator[tuple[int, int]]:
    """Yield where runs begin, and behind which segments they end."""
    start = size = records = 0
    for index, each in enumerate(settled):
        segment = each.segment
        is_small = each.is_mergeable and each.size_bytes < rules.small_bytes
        fits = (
            size + each.size_bytes <= rules.target_bytes
            and records + segment.record_count <= _MAX_RECORDS
            and (index == start or _follows(settled[index - 1].segment, segment))
        )
        if not is_small or not fits:
            yield start, index
            start, size, records = index if is_small else index + 1, 0, 0
        size += each.size_bytes if is_small else 0
        records += segment.record_count if is_small else 0
    yield start, len(settled)


def _follows(before: SegmentMetadata, segment: SegmentMetadata) -> bool:
    return (
        segment.start_sequence_id == before.start_sequence_id + before.record_count
        and segment.truncation is Truncation.ACTIVE
        and segment.version == before.version
        and segment.number == before.number + 1
    )
