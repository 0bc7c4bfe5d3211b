"""What follows from a list of segments: their order, and which sequence ids they hold; pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from quorumbook.streams.errors import DataLossError
from quorumbook.streams.format.gap import Gap
from quorumbook.streams.format.position import Position
from quorumbook.streams.format.segment_text import (
    UNKNOWN_SEQUENCE_ID,
    SegmentMetadata,
    Truncation,
)

#: Start sequence ids that cannot be known are far below any real one, as the peer has it.
_UNKNOWN_BASE = -(2**63)


def ordered(segments: Iterable[SegmentMetadata]) -> list[SegmentMetadata]:
    """Return segments by number; of two with the same, the one in progress first."""
    return sorted(segments, key=lambda segment: (segment.number, not segment.is_in_progress))


def unknown_start(number: int) -> int:
    """Return what stands for the start sequence id of a segment where none is known.

    So the ids of its records are below 0, and dense within it.
    """
    return _UNKNOWN_BASE + (number << 32)


def segment_of_unknown(sequence_id: int) -> int:
    """Return the number of the segment whose records have ids such as one below 0."""
    return (sequence_id - _UNKNOWN_BASE) >> 32


def start_sequence_ids(segments: Sequence[SegmentMetadata]) -> list[int]:
    """Return the sequence id of each segment's first record, segments in order.

    Below 0 where nobody knows it: before version 5, where a writer of such a version completed
    the segment, and behind a segment that is in progress or missing from the list.
    """
    starts: list[int] = []
    following: int | None = 0
    last = segments[0].number if segments else 0
    for segment in segments:
        if segment.number > last + 1:
            following = None
        last = segment.number
        start = unknown_start(segment.number)
        if segment.is_in_progress:
            if segment.is_counted and following is not None:
                start = following
            following = None
        else:
            if segment.is_counted and segment.start_sequence_id != UNKNOWN_SEQUENCE_ID:
                start = segment.start_sequence_id
            following = start + segment.record_count if segment.is_counted else 0
        starts.append(start)
    return starts


def following_start(completed: Sequence[SegmentMetadata]) -> int:
    """Return the sequence id that a segment begins with behind completed ones, in order."""
    last = completed[-1:]
    if not last or not last[0].is_counted:
        return 0
    return start_sequence_ids(last)[0] + last[0].record_count


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
    if segment.is_in_progress or not segment.is_counted or segment.start_sequence_id < 0:
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
