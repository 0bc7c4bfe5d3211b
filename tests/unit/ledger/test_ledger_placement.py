"""The choice of ensembles."""

from __future__ import annotations

from random import Random

import pytest

from quorumbook.errors import NotEnoughBookiesError
from quorumbook.ledger.placement.policy import RandomPlacement

BOOKIES = [f"b{i}:3181" for i in range(6)]


def test_an_ensemble_has_different_bookies_and_none_that_is_excluded() -> None:
    for seed in range(50):
        chosen = RandomPlacement().new_ensemble(3, BOOKIES, {"b0:3181"}, Random(seed))
        assert len(set(chosen)) == 3
        assert set(chosen) <= set(BOOKIES[1:])


def test_every_bookie_gets_its_turn() -> None:
    placement = RandomPlacement()
    seen = {b for seed in range(50) for b in placement.new_ensemble(1, BOOKIES, (), Random(seed))}
    assert seen == set(BOOKIES)


def test_a_seed_repeats_the_choice_whatever_the_order_of_the_candidates() -> None:
    placement = RandomPlacement()
    one = placement.new_ensemble(3, BOOKIES, (), Random(7))
    assert one == placement.new_ensemble(3, BOOKIES[::-1], (), Random(7))


def test_too_few_bookies_raise_an_error_that_counts_them() -> None:
    with pytest.raises(
        NotEnoughBookiesError, match="3 bookies is wanted, 3 are writable, 1 of them failed lately"
    ):
        RandomPlacement().new_ensemble(3, BOOKIES[:3], {BOOKIES[0]}, Random(0))


def test_a_replacement_is_neither_a_member_nor_failed_nor_excluded() -> None:
    ensemble = BOOKIES[:3]
    for seed in range(50):
        chosen = RandomPlacement().replace(
            {0: BOOKIES[0]}, ensemble, BOOKIES, {BOOKIES[3]}, Random(seed)
        )
        assert set(chosen) == {0}
        assert chosen[0] in BOOKIES[4:]


def test_as_many_positions_are_replaced_as_there_are_bookies() -> None:
    failed = {0: BOOKIES[0], 2: BOOKIES[2]}
    chosen = RandomPlacement().replace(failed, BOOKIES[:3], BOOKIES[:4], (), Random(0))
    assert list(chosen.values()) == [BOOKIES[3]]
    assert set(chosen) < set(failed)


def test_two_failed_positions_never_get_the_same_bookie() -> None:
    failed = {0: BOOKIES[0], 1: BOOKIES[1]}
    for seed in range(50):
        chosen = RandomPlacement().replace(failed, BOOKIES[:3], BOOKIES, (), Random(seed))
        assert len(set(chosen.values())) == 2


def test_no_replacement_at_all_raises() -> None:
    with pytest.raises(NotEnoughBookiesError, match="b1:3181"):
        RandomPlacement().replace({1: BOOKIES[1]}, BOOKIES[:3], BOOKIES[:3], (), Random(0))
