"""What follows from a list of segments: their order, and which sequence ids they hold; pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from quorumbook.streams.errors import DataLossError
from quorumbook.streams.format.gap import Gap
from quorumbook.streams.format.position import Position
from quorumbook.streams.format.segment_text import SegmentMetadata, Truncation

#: Start sequence ids that cannot be known are far below any real one, as the peer has it.
_UNKNOWN_BASE = -(2**63)
#: From this version on segments say the sequence id that they begin with.
_COUNTED = 5


def ordered(segments: Iterable[SegmentMetadata]) -> list[SegmentMetadata]:
    """Return segments by number; of two with the same, the one in progress first."""
    return sorted(segments, key=lambda segment: (segment.number, not segment.is_in_progress))


def unknown_start(number: int) -> int:
    """Return what stands for the start sequence id of a segment where none is known."""
    return _UNKNOWN_BASE + (number << 32)


def start_sequence_ids(segments: Sequence[SegmentMetadata]) -> list[int]:
    """Return the sequence id of each segment's first record, segments in order.

    Below 0 where nobody knows it: before version 5, and behind a segment that is in progress.
    """
    starts: list[int] = []
    before: SegmentMetadata | None = None
    for segment in segments:
        if not segment.is_in_progress:
            known = segment.version >= 5
            start = segment.start_sequence_id if known else unknown_start(segment.number)
        elif before is None:
            start = 0
        elif before.is_in_progress:
            start = unknown_start(segment.number)
        elif before.version < 5:
            start = 0
        else:
            start = max(0, before.start_sequence_id + before.record_count)
        starts.append(start)
        before = segment
    return starts


def check_no_gap(segments: Sequence[SegmentMetadata]) -> None:
    """Raise DataLossError if a number is missing between two segments, in order."""
    for before, after in itertools.pairwise(segments):
        if after.number > before.number + 1:
            gap = gap_between(before, after)
            raise DataLossError(gap.reason, gap=gap)


def gap_between(before: SegmentMetadata, after: SegmentMetadata) -> Gap:
    """Return what is missing where segments are missing between two."""
    first = next_sequence_id(before)
    return Gap(
        start=Position(before.number + 1, 0, 0),
        end=Position(after.number, 0, 0),
        first_sequence_id=-1 if first is None else first,
        next_sequence_id=max(after.start_sequence_id, -1),
        reason=f"segments {before.number + 1} to {after.number - 1} are missing: the stream goes "
        f"from segment {before.number} to {after.number}",
    )


def next_sequence_id(segment: SegmentMetadata) -> int | None:
    """Return the sequence id behind a segment's last record; None if it is not known."""
    if segment.is_in_progress or segment.version < _COUNTED or segment.start_sequence_id < 0:
        return None
    return segment.start_sequence_id + segment.record_count


def is_truncated(segment: SegmentMetadata) -> bool:
    """Tell whether nothing of a segment is left for readers."""
    return segment.truncation is Truncation.TRUNCATED


def without_truncated(segments: Sequence[SegmentMetadata]) -> list[SegmentMetadata]:
    """Return the segments behind those that are truncated as a whole."""
    start = 0
    while start < len(segments) and is_truncated(segments[start]):
        start += 1
    return list(segments[start:])
