"""Every run of a small world: three bookies, one entry, a writer, a recovery, three delays."""

from __future__ import annotations

import pytest

from sim.mutants.planting import all_mutants, planted
from sim.small_model import Places, Shape, explore, runs_within


class _Everywhere(Places):
    """Nobody is told that somebody was there before."""

    def enter(self, place: object, left: int) -> None:
        pass


@pytest.mark.parametrize(
    ("quorums", "delays", "places"), [((3, 3, 2), 3, 20_000), ((2, 2, 2), 2, 5_000)]
)
def test_no_run_within_some_delays_breaks_a_promise(quorums, delays, places):
    explored = explore(Shape(quorums), delays)
    assert explored.broken is None, (explored.how, explored.broken)
    # Fewer were not all of them.
    assert explored.places > places


@pytest.mark.parametrize("quorums", [(3, 3, 2), (2, 2, 2)])
def test_what_is_run_once_only_ends_no_other_way(quorums):
    ends = [
        {
            (repr(world.metadata), repr(world.bookies), world.acknowledged)
            for world, _, _ in runs_within(Shape(quorums), 2, places)
            if world.is_over
        }
        for places in (Places(), _Everywhere())
    ]
    assert ends[0] == ends[1]
    assert len(ends[0]) > 5


def test_one_denial_too_few_is_found_by_three_delays():
    mutant = next(each for each in all_mutants() if "one bookie without the entry" in each.what)
    with planted(mutant):
        explored = explore(Shape(), 3)
    assert explored.how == "BrokenError: the ledger ends at -1, but 0 was acknowledged"
