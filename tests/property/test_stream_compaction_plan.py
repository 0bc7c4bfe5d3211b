"""Which segments are merged: nothing is lost, moved back or too large, whatever there is."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from quorumbook.streams.compaction.plan import Candidate, Rules, plan_merge
from quorumbook.streams.format.envelope import codec_of, decode_entry, encode_entry
from quorumbook.streams.format.records import (
    decode_records,
    encode_record,
    shift_positions,
)
from quorumbook.streams.format.segment_text import SegmentMetadata, Truncation

TARGET, SMALL = 100, 40


@st.composite
def candidates(draw):
    """A stream's segments, of which the last may be in progress."""
    found = []
    sequence_id = 0
    first = draw(st.integers(1, 5))
    count = draw(st.integers(0, 30))
    for number in range(first, first + count):
        records = draw(st.integers(1, 9))
        status = Truncation.PARTIALLY_TRUNCATED if number == first and draw(st.booleans()) else 0
        segment = SegmentMetadata(
            number=number,
            ledger_id=1000 + number,
            first_txid=sequence_id,
            last_txid=sequence_id + records - 1,
            completed_at_ms=number,
            record_count=records,
            last_entry=records - 1,
            last_slot=0,
            start_sequence_id=sequence_id,
            is_in_progress=number == first + count - 1 and draw(st.booleans()),
            status=status,
        )
        sequence_id += records
        movable = draw(st.sampled_from([True, True, True, False]))
        mergeable = draw(st.sampled_from([True, True, True, False]))
        found.append(Candidate(segment, draw(st.integers(1, 60)), movable, mergeable))
    return found


rules = st.builds(
    Rules,
    target_bytes=st.just(TARGET),
    small_bytes=st.just(SMALL),
    min_segments=st.integers(2, 4),
    max_changes=st.integers(3, 20),
    end=st.integers(1, 40),
    completed_before_ms=st.integers(1, 40),
)


@given(candidates(), rules)
def test_a_step_keeps_records_and_moves_nothing_back(given_candidates, given_rules):
    merge = plan_merge(given_candidates, given_rules)
    if merge is None:
        return
    segments = [each.segment for each in given_candidates]
    merged = merge.merged(7, 99)
    after = [*merge.moved(), merged, *segments[len(merge.before) + len(merge.run) :]]
    # No gap, and what lies behind the run is as it was.
    numbers = [segment.number for segment in after]
    assert numbers == list(range(numbers[0], segments[-1].number + 1))
    assert merged.number == merge.run[-1].number
    # Sequence ids and the count are the same, and no record's position is earlier.
    assert sum(s.record_count for s in after) == sum(s.record_count for s in segments)
    for before, behind in itertools.pairwise(after):
        assert behind.start_sequence_id == before.start_sequence_id + before.record_count
    assert all(new.number >= old.number for old, new in zip(merge.before, after, strict=False))
    # Only what may be touched was.
    size = {each.segment.number: each for each in given_candidates}
    assert all(size[s.number].is_mergeable for s in merge.run)
    assert all(size[s.number].is_movable for s in merge.before)
    assert sum(size[s.number].size_bytes for s in merge.run) <= TARGET
    assert all(size[s.number].size_bytes < SMALL for s in merge.run)
    assert len(merge.run) >= given_rules.min_segments
    assert len(merge.run) + len(merge.before) + 2 <= given_rules.max_changes
    assert all(s.number < given_rules.end and not s.is_in_progress for s in merge.run)
    assert merged.first_active.entry == merge.run[0].first_active.entry


def test_small_segments_between_large_ones_are_found():
    def make(number, size):
        segment = SegmentMetadata(
            number=number, ledger_id=number, first_txid=0, record_count=1, last_entry=0,
            last_slot=0, start_sequence_id=number - 1, is_in_progress=False,
        )  # fmt: skip
        return Candidate(segment, size, is_movable=True, is_mergeable=True)

    found = [make(number, size) for number, size in enumerate([90, 5, 5, 5, 90, 5], 1)]
    given_rules = Rules(
        target_bytes=TARGET, small_bytes=SMALL, max_changes=100, end=99, completed_before_ms=1
    )
    merge = plan_merge(found, given_rules)
    assert merge is not None
    assert [s.number for s in merge.run] == [2, 3, 4]
    assert [s.number for s in merge.moved()] == [3]
    assert merge.merged(7, 2).number == 4


@given(
    st.lists(
        st.tuples(st.integers(0, 7), st.integers(0, 1000), st.binary(max_size=20)), min_size=1
    ),
    st.integers(0, 2**30),
)
def test_shifting_changes_positions_and_nothing_else(records, by):
    data = b"".join(encode_record(flags, p, -p, payload) for flags, p, payload in records)
    before, after = decode_records(data), decode_records(shift_positions(data, by))
    assert [r._replace(position=r.position + by) for r in before] == after
    entry = encode_entry(shift_positions(data, by), codec_of(encode_entry(data)))
    assert decode_records(decode_entry(entry)) == after
