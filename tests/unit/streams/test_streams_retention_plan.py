"""Which segments go: every limit, every hold, and what must never happen, for any stream."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quorumbook.streams.format.position import Position
from quorumbook.streams.metadata.policy import DEFAULTS, StreamPolicy
from quorumbook.streams.retention.plan import (
    DeletionReason,
    RetentionHold,
    SegmentFacts,
    plan_retention,
)

NOW_MS = 1_000_000


def facts(number: int, age_s: int = 0, **more: object) -> SegmentFacts:
    """Return a completed segment of ten records and 100 bytes."""
    made = SegmentFacts(number, False, False, NOW_MS - age_s * 1000, 10, 100,
                        Position(number, 0, 9))  # fmt: skip
    return made._replace(**more)


def plan(
    segments: list[SegmentFacts], *holds: RetentionHold, **policy: object
) -> list[tuple[int, str]]:
    filled = StreamPolicy(**policy).over(DEFAULTS)  # type: ignore[arg-type]
    return [(n, str(why)) for n, why in plan_retention(segments, filled, holds, NOW_MS).segments]


def test_each_limit_lets_go_at_its_edge():
    segments = [facts(n, age_s=100 - 10 * n) for n in range(1, 5)]
    assert plan(segments) == []
    assert plan(segments, retain_time_s=81) == [(1, "time")]
    assert plan(segments, retain_time_s=80) == [(1, "time"), (2, "time")]
    assert plan(segments, retain_bytes=201) == [(1, "bytes")]
    assert plan(segments, retain_bytes=200) == [(1, "bytes"), (2, "bytes")]
    assert plan(segments, retain_records=30) == [(1, "records")]
    assert plan(segments, retain_hard_bytes=300) == [(1, "hard bytes")]
    assert plan(segments, retain_hard_bytes=299) == [(1, "hard bytes"), (2, "hard bytes")]
    assert plan(segments, retain_hard_time_s=85) == [(1, "hard time")]
    # The last completed one stays, whatever is asked.
    assert [n for n, _ in plan(segments, retain_time_s=0.001)] == [1, 2, 3]


def test_what_is_written_counts_and_stays():
    last = facts(3, is_in_progress=True, completed_at_ms=0)
    assert plan([facts(1, 50), facts(2, 50), last], retain_time_s=1) == [(1, "time")]
    assert plan([facts(1), facts(2), last], retain_bytes=200) == [(1, "bytes")]
    assert plan([facts(1, 9), last._replace(number=2)], retain_time_s=1) == []


def test_a_clock_that_goes_back_keeps_more():
    segments = [facts(1, age_s=-500), facts(2, age_s=90), facts(3)]
    assert plan(segments, retain_time_s=60) == []


@given(
    segments=st.lists(
        st.tuples(st.booleans(), st.integers(-5, 100), st.integers(0, 9), st.integers(0, 999)),
        max_size=8,
    ),
    open_last=st.booleans(),
    positions=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 10)), max_size=3),
    limits=st.lists(st.integers(0, 100), min_size=5, max_size=5),
    unconsumed=st.booleans(),
)
def test_nothing_goes_that_must_stay(segments, open_last, positions, limits, unconsumed):
    made = [
        facts(n, age_s=age, is_truncated=gone, record_count=count, size_bytes=size,
              last_position=Position(n, 0, count))
        for n, (gone, age, count, size) in enumerate(segments, 1)
    ]  # fmt: skip
    if made and open_last:
        made[-1] = made[-1]._replace(is_in_progress=True, is_truncated=False)
    time_s, size_bytes, records, hard_time_s, hard_bytes = limits
    policy = StreamPolicy(
        retain_time_s=time_s, retain_bytes=10 * size_bytes, retain_records=records,
        retain_hard_time_s=hard_time_s, retain_hard_bytes=10 * hard_bytes,
        retain_unconsumed=unconsumed,
    )  # fmt: skip
    holds = [RetentionHold(str(n), Position(s, 0, slot)) for n, (s, slot) in enumerate(positions)]
    found = plan_retention(made, policy.over(DEFAULTS), holds, NOW_MS)
    going = [number for number, _ in found.segments]
    # From the oldest on, without a gap; of the completed ones at least the last stays.
    assert going == [*range(1, len(going) + 1)]
    completed = [each for each in made if not each.is_in_progress]
    assert len(going) <= max(0, len(completed) - 1)
    reasons = dict(found.segments)
    hard = {DeletionReason.HARD_BYTES, DeletionReason.HARD_TIME, DeletionReason.TRUNCATED}
    for hold in holds:
        lost = [each for each in made if each.number in reasons and not each.is_truncated
                and hold.position <= each.last_position]  # fmt: skip
        assert all(reasons[each.number] in hard for each in lost)
        assert (hold.name in found.overrun) == bool(lost)
    if not any(limits) and not (unconsumed and holds):
        assert set(reasons.values()) <= {DeletionReason.TRUNCATED}
