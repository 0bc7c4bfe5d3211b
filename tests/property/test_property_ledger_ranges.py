"""Sets of ledgers as ranges, compared with Python's own sets."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from quorumbook.storage.gc.ledger_ranges import LedgerRanges, in_batches

#: Close to each other, so that ranges touch and overlap; and far apart, below 0 too.
IDS = st.sets(st.integers(-2, 20) | st.integers(-(2**63), 2**63 - 2))


@given(IDS, IDS)
@example({0, 2, 4}, {0, 1, 2, 3, 4})  # one range beside several
@example({0, 1, 2, 3, 4}, {0, 2, 4})
def test_they_are_combined_as_sets_are(one: set[int], other: set[int]) -> None:
    first, second = LedgerRanges.of(one), LedgerRanges.of(other)
    assert list(first & second) == sorted(one & other)
    assert list(first | second) == sorted(one | other)
    assert list(first - second) == sorted(one - other)
    assert (first == second) == (one == other)
    assert len(first) == len(one)
    assert bool(first) == bool(one)


@given(IDS, st.integers(-3, 22))
def test_parts_of_them_are_those_of_the_ascending_list(ids: set[int], at: int) -> None:
    ranges = LedgerRanges.of(ids)
    assert list(ranges.from_id(at)) == [each for each in sorted(ids) if each >= at]
    assert list(ranges.first(at)) == sorted(ids)[: max(at, 0)]
    assert [each for batch in in_batches(ranges, 3) for each in batch] == sorted(ids)


@given(st.lists(IDS))
def test_equal_sets_are_equal_ranges_however_they_were_made(parts: list[set[int]]) -> None:
    whole = LedgerRanges.of(set().union(*parts))
    together = LedgerRanges.union(map(LedgerRanges.of, parts))
    assert together == whole
    assert hash(together) == hash(whole)
    assert all(first[1] + 1 < second[0] for first, second in pairwise(whole.pairs()))
    assert LedgerRanges(whole.pairs()) == whole
