"""The choice of bookies: who is left out, who is preferred, and what people are told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random

import pytest

from quorumbook.errors import ConfigError, LocalProtocolError, NotEnoughBookiesError
from quorumbook.ledger.placement import choice
from quorumbook.ledger.placement.choice import (
    KnownBookies,
    judge,
    new_ensemble,
    repaired,
    replacements,
)
from quorumbook.ledger.placement.labels import (
    labels_of_ledger,
    labels_of_properties,
    labels_to_properties,
    parse_labels,
    show_labels,
)
from quorumbook.ledger.placement.location import check_location, nearness, region_of
from quorumbook.ledger.placement.options import PlacementOptions
from quorumbook.ledger.placement.policy import Adherence, Policy, Shape
from quorumbook.ledger.placement.racks import RackAware
from quorumbook.ledger.placement.regions import RegionAware
from quorumbook.ledger.placement.weights import shuffled, weights
from quorumbook.ledger.placement.zones import ZoneAware

BOOKIES = [f"b{i}:3181" for i in range(6)]
THREE = Shape(3, 3, 2)


def one(
    policy: Policy, shape: Shape, cluster: KnownBookies, seed: int = 0, **more
) -> tuple[str, ...]:
    labels, excluded = more.get("labels", {}), more.get("excluded", ())
    return new_ensemble(policy, shape, cluster, labels, excluded, Random(seed))


def swap(policy, shape, ensemble, failed, cluster, seed=0, **more) -> dict[int, str]:
    labels, excluded = more.get("labels", {}), more.get("excluded", ())
    return replacements(policy, shape, ensemble, failed, cluster, labels, excluded, Random(seed))


def placed(**places: str) -> KnownBookies:
    """Return bookies ``a1``, ``a2`` … at each place: ``a="/r1 2"`` is two of them."""
    locations = {
        f"{name}{number}": place.split()[0]
        for name, place in places.items()
        for number in range(1, int(place.split()[1]) + 1)
    }
    return KnownBookies(frozenset(locations), locations)


def outcome(of: Callable[[], object]) -> object:
    try:
        return of()
    except NotEnoughBookiesError as error:
        return str(error)


@pytest.mark.parametrize("seed", range(40))
def test_where_all_stand_alike_the_choice_is_what_the_search_would_make(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice = Random(seed)
    size = dice.randrange(1, 6)
    shape = Shape(size, dice.randrange(1, size + 1), 1)
    bookies = frozenset(BOOKIES[: dice.randrange(size, 7)])
    place = dice.choice(({}, dict.fromkeys(bookies, "/r1"), {"b0:3181": "/r2"}))
    machines = dict.fromkeys(bookies, "m") if dice.random() < 0.3 else {}
    cluster = KnownBookies(
        bookies, place, machines=machines, first_bookie=dice.choice(("", "b0:3181"))
    )
    policy = dice.choice((Policy(), RackAware(), RackAware(is_enforced=True)))
    members = sorted(bookies)[:size]
    made = [
        (
            outcome(lambda: one(policy, shape, cluster, seed)),
            outcome(lambda: swap(policy, shape, members, {0: members[0]}, cluster, seed)),
        )
        for _ in monkeypatched(monkeypatch)
    ]
    assert made[0] == made[1]


def monkeypatched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Go on once as it is, and once where every choice is searched for."""
    yield
    # Without the search that takes a turn for those that stand alike.
    monkeypatch.setattr(choice._Search, "_take_in_turn", lambda search: None)
    yield


@pytest.mark.parametrize("seed", range(40))
def test_bookies_that_are_alike_make_any_ensemble(seed: int) -> None:
    dice = Random(seed)
    size = dice.randrange(1, 5)
    shape = Shape(size, dice.randrange(1, size + 1), 1)
    bookies = frozenset(BOOKIES[: dice.randrange(size, 7)])
    place = dice.choice(({}, dict.fromkeys(bookies, "/r1"), {"b0:3181": "/r2"}))
    machines = dice.choice(({}, dict.fromkeys(bookies, "m")))
    policy = dice.choice(
        (Policy(), RackAware(), RackAware(is_enforced=True), Policy(are_ack_domains_enforced=True))
    )
    cluster = KnownBookies(bookies, place, machines=machines)
    wanted = outcome(lambda: one(policy, shape, cluster, seed))
    if choice.are_alike(policy, shape, cluster):
        assert wanted == choice.any_ensemble(shape, bookies, Random(seed))
    else:
        assert place or machines or policy != Policy()


def test_bookies_that_someone_prefers_are_not_alike() -> None:
    alike = KnownBookies(frozenset(BOOKIES))
    assert choice.are_alike(Policy(), THREE, alike)
    assert choice.are_alike(RackAware(), THREE, alike)
    assert not choice.are_alike(Policy(), THREE, replace(alike, first_bookie=BOOKIES[0]))
    assert not choice.are_alike(Policy(), THREE, replace(alike, weights={BOOKIES[0]: 0.5}))
    assert not choice.are_alike(Policy(), THREE, KnownBookies(frozenset()))


def test_where_all_stand_alike_few_costs_are_counted() -> None:
    asked: list[object] = []

    class Counting(Policy):
        def costs(self, shape, reachable, *, is_replacement=False):
            cost = super().costs(shape, reachable, is_replacement=is_replacement)
            return lambda locations: (asked.append(locations), cost(locations))[1]

    one(Counting(), Shape(6, 3, 2), KnownBookies(frozenset(BOOKIES)))
    assert len(asked) == 2


# Without a rule --------------------------------------------------------------------------------


def test_an_ensemble_has_different_bookies_and_none_that_is_excluded() -> None:
    for seed in range(50):
        chosen = one(Policy(), THREE, KnownBookies(BOOKIES), seed, excluded={"b0:3181"})
        assert len(set(chosen)) == 3
        assert set(chosen) <= set(BOOKIES[1:])


def test_every_bookie_gets_its_turn() -> None:
    shape = Shape(1, 1, 1)
    seen = {b for seed in range(50) for b in one(Policy(), shape, KnownBookies(BOOKIES), seed)}
    assert seen == set(BOOKIES)


def test_a_seed_repeats_the_choice_whatever_the_order_of_the_candidates() -> None:
    assert one(Policy(), THREE, KnownBookies(BOOKIES), 7) == one(
        Policy(), THREE, KnownBookies(BOOKIES[::-1]), 7
    )


def test_too_few_bookies_raise_an_error_that_counts_them() -> None:
    with pytest.raises(
        NotEnoughBookiesError, match="3 bookies is wanted, 3 are writable, 1 of them failed lately"
    ):
        one(Policy(), THREE, KnownBookies(BOOKIES[:3]), excluded={BOOKIES[0]})


def test_a_replacement_is_neither_a_member_nor_failed_nor_excluded() -> None:
    failed = {0: BOOKIES[0]}
    for seed in range(50):
        cluster = KnownBookies(BOOKIES)
        chosen = swap(Policy(), THREE, BOOKIES[:3], failed, cluster, seed, excluded={BOOKIES[3]})
        assert set(chosen) == {0}
        assert chosen[0] in BOOKIES[4:]


def test_as_many_positions_are_replaced_as_there_are_bookies() -> None:
    failed = {0: BOOKIES[0], 2: BOOKIES[2]}
    chosen = swap(Policy(), THREE, BOOKIES[:3], failed, KnownBookies(BOOKIES[:4]))
    assert list(chosen.values()) == [BOOKIES[3]]
    assert set(chosen) < set(failed)


def test_two_failed_positions_never_get_the_same_bookie() -> None:
    failed = {0: BOOKIES[0], 1: BOOKIES[1]}
    for seed in range(50):
        chosen = swap(Policy(), THREE, BOOKIES[:3], failed, KnownBookies(BOOKIES), seed)
        assert len(set(chosen.values())) == 2


def test_no_replacement_at_all_raises() -> None:
    with pytest.raises(NotEnoughBookiesError, match="b1:3181"):
        swap(Policy(), THREE, BOOKIES[:3], {1: BOOKIES[1]}, KnownBookies(BOOKIES[:3]))


def test_the_local_bookie_comes_first_while_it_can_be_chosen() -> None:
    cluster = KnownBookies(BOOKIES, first_bookie=BOOKIES[4])
    for seed in range(20):
        assert one(Policy(), THREE, cluster, seed)[0] == BOOKIES[4]
        assert BOOKIES[4] not in one(Policy(), THREE, cluster, seed, excluded={BOOKIES[4]})


# Racks -----------------------------------------------------------------------------------------


def test_write_sets_span_racks_around_the_end_too() -> None:
    cluster = placed(a="/r1 5", b="/r2 2")
    policy, shape = RackAware(), Shape(4, 2, 2)
    for seed in range(50):
        ensemble = one(policy, shape, cluster, seed)
        assert judge(policy, shape, ensemble, cluster, {}) is Adherence.STRICT


def test_one_rack_is_as_good_as_none_unless_racks_are_enforced() -> None:
    cluster = placed(a="/r1 5")
    ensemble = one(RackAware(), THREE, cluster)
    assert judge(RackAware(), THREE, ensemble, cluster, {}) is Adherence.FAIL
    with pytest.raises(
        NotEnoughBookiesError, match="every write set in 2 racks; 5 writable bookies in 1 racks"
    ):
        one(RackAware(is_enforced=True), THREE, cluster)


def test_enforced_racks_leave_bookies_out_whose_rack_is_not_known() -> None:
    known = placed(a="/r1 2", b="/r2 1")
    cluster = KnownBookies({*known.writable, "stray"}, known.locations)
    for seed in range(20):
        assert "stray" not in one(RackAware(is_enforced=True), THREE, cluster, seed)
    with pytest.raises(NotEnoughBookiesError, match="1 of them where the placement policy writes"):
        one(RackAware(is_enforced=True), Shape(4, 3, 2), cluster)


def test_a_replacement_comes_from_the_same_rack_or_a_new_one() -> None:
    cluster = placed(a="/r1 2", b="/r2 2", c="/r3 1", d="/r4 1")
    for seed in range(20):
        args = RackAware(), THREE, ["a1", "b1", "c1"]
        assert swap(*args, {0: "a1"}, cluster, seed) == {0: "a2"}
        # No other is in c1's rack; r4 is new to the ensemble.
        assert swap(*args, {2: "c1"}, cluster, seed) == {2: "d1"}


def test_a_failed_bookie_is_replaced_even_where_that_lessens_the_spread() -> None:
    cluster = placed(a="/r1 4", b="/r2 1")
    chosen = swap(RackAware(), THREE, ["a1", "a2", "b1"], {2: "b1"}, cluster)
    assert chosen[2] in ("a3", "a4")
    with pytest.raises(NotEnoughBookiesError, match="every write set in 2 racks is left"):
        swap(RackAware(is_enforced=True), THREE, ["a1", "a2", "b1"], {2: "b1"}, cluster)


def test_what_was_broken_before_is_not_the_replacements_fault() -> None:
    cluster = placed(a="/r1 4", b="/r2 1")
    args = RackAware(is_enforced=True), Shape(4, 2, 2), ["a1", "a2", "a3", "b1"]
    assert swap(*args, {0: "a1"}, cluster) == {0: "a4"}
    with pytest.raises(NotEnoughBookiesError):
        swap(*args, {3: "b1"}, cluster)


def test_the_nearest_rack_comes_first() -> None:
    near = placed(a="/r1 2", b="/r2 2", c="/r3 2")
    cluster = KnownBookies(near.writable, near.locations, local="/r2")
    for seed in range(20):
        assert one(RackAware(), THREE, cluster, seed)[0] in ("b1", "b2")


def test_a_large_ensemble_that_cannot_be_spread_is_found_all_the_same() -> None:
    cluster = placed(a="/r1 40", b="/r2 6", c="/r3 3")
    shape = Shape(40, 3, 2)
    ensemble = one(RackAware(min_racks=3), shape, cluster)
    assert len(set(ensemble)) == 40
    assert {"b1", "c1"} <= set(ensemble)


def test_a_broken_ensemble_is_mended_by_one_change() -> None:
    cluster = placed(a="/r1 4", b="/r2 1")
    after = repaired(RackAware(), THREE, ["a1", "a2", "a3"], cluster, {}, (), Random(0))
    assert after is not None
    assert "b1" in after
    assert len({"a1", "a2", "a3"} & set(after)) == 2
    assert repaired(RackAware(), THREE, after, cluster, {}, (), Random(0)) is None
    # A member that is not to stay is replaced whatever the policy says.
    moved = repaired(RackAware(), THREE, ["a1", "a2", "b1"], cluster, {}, {"a2"}, Random(0))
    assert moved is not None
    assert "a2" not in moved


# Regions ---------------------------------------------------------------------------------------


def test_an_ensemble_is_even_over_regions_and_spread_over_their_racks() -> None:
    cluster = placed(
        a="/west/1 3", b="/west/2 3", c="/east/1 3", d="/east/2 3", e="/north/1 3", f="/north/2 3"
    )
    for seed in range(30):
        ensemble = one(RegionAware(), Shape(6, 6, 4), cluster, seed)
        regions = Counter(region_of(cluster.locations[b]) for b in ensemble)
        assert set(regions.values()) == {2}
        assert len({cluster.locations[b] for b in ensemble}) == 6


def test_no_ack_quorum_fits_into_fewer_regions_than_entries_are_to_survive_in() -> None:
    cluster = placed(a="/west/1 9", b="/east/1 2", c="/north/1 1")
    policy = RegionAware(regions=("west", "east", "north"), min_regions=2)
    shape = Shape(4, 4, 3)
    for seed in range(30):
        ensemble = one(policy, shape, cluster, seed)
        regions = Counter(region_of(cluster.locations[b]) for b in ensemble)
        assert max(regions.values()) < 3
    alone = placed(a="/west/1 9")
    with pytest.raises(NotEnoughBookiesError, match="no ack quorum of a write set in fewer than 2"):
        one(policy, shape, alone)


def test_quorums_that_cannot_survive_the_loss_of_regions_are_refused() -> None:
    policy = RegionAware(regions=("west", "east"), min_regions=2)
    with pytest.raises(LocalProtocolError, match="ack quorum of at least 3 with a write quorum"):
        one(policy, Shape(4, 4, 2), placed(a="/west/1 4", b="/east/1 4"))
    with pytest.raises(ConfigError, match="1 regions to write to are fewer than the 2"):
        RegionAware(regions=("west",), min_regions=2)


def test_only_regions_that_are_written_to_get_copies() -> None:
    cluster = placed(a="/west/1 3", b="/east/1 3", c="/north/1 3")
    policy = RegionAware(regions=("west", "east", "north"), disallowed_regions=("north",))
    for seed in range(20):
        assert not {"c1", "c2", "c3"} & set(one(policy, Shape(4, 4, 3), cluster, seed))
    outside = RegionAware(regions=("west", "east"))
    assert judge(outside, THREE, ("a1", "b1", "c1"), cluster, {}) is Adherence.FAIL


def test_a_replacement_keeps_entries_in_their_regions_as_far_as_that_is_asked_for() -> None:
    cluster = placed(a="/west/1 9", b="/east/1 2")
    shape, ensemble = Shape(4, 4, 3), ["a1", "a2", "b1", "b2"]
    strict = RegionAware(regions=("west", "east"), min_regions=2)
    with pytest.raises(NotEnoughBookiesError):
        swap(strict, shape, ensemble, {3: "b2"}, cluster)
    lax = RegionAware(regions=("west", "east"), min_regions=2, is_enforced_in_replacement=False)
    assert swap(lax, shape, ensemble, {3: "b2"}, cluster)[3].startswith("a")


# Zones -----------------------------------------------------------------------------------------


def test_zones_are_kept_apart_and_upgrade_domains_within_them() -> None:
    cluster = placed(a="/z1/u1 2", b="/z1/u2 2", c="/z2/u1 2", d="/z2/u2 2", e="/z3/u1 2")
    policy, shape = ZoneAware(), Shape(6, 3, 2)
    for seed in range(20):
        ensemble = one(policy, shape, cluster, seed)
        assert judge(policy, shape, ensemble, cluster, {}) is Adherence.STRICT
    # A zone is gone: what is left is two zones, softly, and two upgrade domains in each.
    left = placed(a="/z1/u1 2", b="/z1/u2 2", c="/z2/u1 2", d="/z2/u2 2")
    for seed in range(20):
        ensemble = one(policy, shape, left, seed)
        assert judge(policy, shape, ensemble, left, {}) is Adherence.SOFT
    with pytest.raises(NotEnoughBookiesError, match="in 2 zones"):
        one(policy, shape, placed(a="/z1/u1 4", b="/z1/u2 4"))
    with pytest.raises(LocalProtocolError, match="multiple of the write quorum"):
        one(policy, Shape(4, 3, 2), cluster)
    with pytest.raises(LocalProtocolError, match="a write quorum above the 2 zones"):
        one(policy, Shape(4, 2, 2), cluster)


# Weights, places, labels -----------------------------------------------------------------------


def test_free_space_weighs_up_to_a_multiple_of_the_median() -> None:
    free = {"a": 100, "b": 100, "c": 100, "d": 10_000, "e": 0}
    found = weights(free, 3)
    total = sum(free.values())
    assert found == {
        "a": 100 / total,
        "b": 100 / total,
        "c": 100 / total,
        "d": 300 / total,  # three times the median
        "e": 100 / total,  # nothing is known: as little as the least
    }
    assert weights({"a": 0, "b": 0}, 3) == {"a": 0.5, "b": 0.5}
    firsts = Counter(shuffled(free, found, Random(seed))[0] for seed in range(7000))
    assert 0.36 < firsts["d"] / 7000 < 0.50  # 3 of 7


def test_where_we_are_tells_how_near_others_are() -> None:
    assert nearness("/west/1", "/west/1") == 0
    assert nearness("/west/2", "/west/1") == 1
    assert nearness("/east/1", "/west/1") == 2
    assert nearness("/r2", "/r1") == 2
    assert check_location(" /west/1/ ") == "/west/1"
    for bad in ("", "/", "west/1", "/we st", "//1", "/~1"):
        with pytest.raises(ConfigError):
            check_location(bad)


def test_labels_confine_ledgers_and_the_message_counts_who_fits() -> None:
    labels = {"b0:3181": {"tier": "ssd"}, "b1:3181": {"tier": "ssd", "site": "a"}, "b2:3181": {}}
    cluster = KnownBookies(BOOKIES[:4], labels=labels)
    ssd = {"tier": "ssd"}
    pair = Shape(2, 2, 2)
    assert set(one(Policy(), pair, cluster, labels=ssd)) == {"b0:3181", "b1:3181"}
    with pytest.raises(
        NotEnoughBookiesError,
        match="3 bookies with the labels tier=ssd is wanted, 2 of 4 writable bookies carry them: "
        "b0:3181, b1:3181",
    ):
        one(Policy(), THREE, cluster, labels=ssd)
    with pytest.raises(NotEnoughBookiesError, match="no bookie with the labels tier=ssd is left"):
        swap(Policy(), pair, BOOKIES[:2], {0: BOOKIES[0]}, cluster, labels=ssd)
    assert judge(Policy(), pair, ("b0:3181", "b1:3181"), cluster, ssd) is Adherence.STRICT
    assert judge(Policy(), pair, ("b0:3181", "b2:3181"), cluster, ssd) is Adherence.FAIL
    # Of b3 nothing is known, it may be down: that is somebody else's to judge.
    assert judge(Policy(), pair, ("b0:3181", "b3:3181"), cluster, ssd) is Adherence.STRICT
    mended = repaired(Policy(), pair, ("b0:3181", "b2:3181"), cluster, ssd, (), Random(0))
    assert mended == ("b0:3181", "b1:3181")


def test_labels_are_text_that_is_read_back() -> None:
    labels = parse_labels(["tier=ssd", "site=a/b"], "here")
    assert labels == {"tier": "ssd", "site": "a/b"}
    assert show_labels(labels) == "site=a/b,tier=ssd"
    assert labels_of_properties({**labels_to_properties(labels), "other": "1"}) == labels
    custom = {"quorumbook.placement.labels": b"site=a/b,tier=ssd"}
    assert labels_of_ledger(custom) == labels
    assert labels_of_ledger({}) == {}
    for bad in ("tier", "=ssd", "tier=a b", "tier=a,b", "ti er=x"):
        with pytest.raises(ConfigError, match="here"):
            parse_labels([bad], "here")
    with pytest.raises(ConfigError, match="given twice"):
        parse_labels(["tier=a", "tier=b"], "here")
    with pytest.raises(ConfigError):
        labels_of_ledger({"quorumbook.placement.labels": b"\xff"})


def test_options_make_the_policy_they_name() -> None:
    assert PlacementOptions().make_policy() == RackAware()
    regions = PlacementOptions(policy="region-aware", regions=("a", "b"), min_racks=1)
    assert regions.make_policy() == RegionAware(regions=("a", "b"), min_regions=2, min_racks=1)
    assert PlacementOptions(policy="zone-aware", enforce_zones=False).make_policy() == ZoneAware(
        is_strict=False
    )
    for bad in (
        {"policy": "best"},
        {"min_zones": 4},
        {"rack_script": "/a", "rack_class": "b:C"},
        {"policy": "local-bookie"},
        {"local_location": "here"},
    ):
        with pytest.raises(ConfigError):
            PlacementOptions(**bad)
