"""Which sequence ids segments hold, as follows from their list."""

from __future__ import annotations

import pytest

from quorumbook.streams.format.segment_text import SegmentMetadata
from quorumbook.streams.segments import (
    following_start,
    segment_of_unknown,
    start_sequence_ids,
    unknown_start,
)


def segment(number: int, count: int | None, start: int = -1, version: int = 5) -> SegmentMetadata:
    """Return a segment; one without a count is in progress."""
    return SegmentMetadata(
        number=number, ledger_id=number, first_txid=0, record_count=count or 0,
        start_sequence_id=start, is_in_progress=count is None, version=version,
    )  # fmt: skip


def test_the_ids_behind_what_an_old_writer_completed_go_on_below_zero() -> None:
    """It leaves the start out of the metadata of a new segment."""
    first = unknown_start(1)
    assert start_sequence_ids([segment(1, 5), segment(2, None)]) == [first, first + 5]
    completed = [segment(1, 5), segment(2, 3, first + 5)]
    assert start_sequence_ids([*completed, segment(3, None)]) == [first, first + 5, first + 8]
    assert [following_start(completed[:n]) for n in range(3)] == [0, first + 5, first + 8]


@pytest.mark.parametrize("version", [2, 3, 4])
def test_a_segment_of_an_old_layout_in_progress_has_no_ids_of_the_stream(version: int) -> None:
    segments = [segment(1, 5, 0), segment(2, None, version=version)]
    assert start_sequence_ids(segments) == [0, unknown_start(2)]
    assert start_sequence_ids(segments[1:]) == [unknown_start(2)]


def test_behind_a_segment_in_progress_nobody_knows_and_a_completed_one_tells() -> None:
    segments = [segment(1, None), segment(2, None), segment(3, 2, 9), segment(4, None)]
    assert start_sequence_ids(segments) == [0, unknown_start(2), 9, 11]


def test_an_id_below_zero_tells_its_segment() -> None:
    for number in 1, 2, 70_000:
        for place in 0, 1, 2**32 - 1:
            assert segment_of_unknown(unknown_start(number) + place) == number
