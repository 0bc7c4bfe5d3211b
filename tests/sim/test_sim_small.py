"""Every run of a small world: three bookies, one entry, a writer, a recovery, three delays."""

from __future__ import annotations

import pytest

from sim.mutants.planting import all_mutants, planted
from sim.small_model import Shape, explore


@pytest.mark.parametrize("quorums", [(3, 3, 2), (2, 2, 2)])
def test_no_run_within_three_delays_breaks_a_promise(quorums):
    explored = explore(Shape(quorums), 3)
    assert explored.broken is None, (explored.how, explored.broken)
    # Fewer were not all of them.
    assert explored.runs > 10_000


def test_one_denial_too_few_is_found_by_three_delays():
    mutant = next(each for each in all_mutants() if "one bookie without the entry" in each.what)
    with planted(mutant):
        explored = explore(Shape(), 3)
    assert explored.how == "BrokenError: the ledger ends at -1, but 0 was acknowledged"
