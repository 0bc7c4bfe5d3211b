"""Several bookies on one machine: no entry is there twice, whatever else is wanted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from random import Random

import pytest

from quorumbook.errors import NotEnoughBookiesError
from quorumbook.ledger.placement.choice import (
    KnownBookies,
    judge,
    new_ensemble,
    repaired,
    replacements,
)
from quorumbook.ledger.placement.machines import (
    machine_of_properties,
    machine_to_properties,
    repeated,
    shared,
)
from quorumbook.ledger.placement.policy import Adherence, Policy, Shape
from quorumbook.ledger.placement.racks import RackAware
from quorumbook.ledger.placement.regions import RegionAware
from quorumbook.ledger.placement.zones import ZoneAware

POLICIES = {
    "none": Policy(),
    "racks": RackAware(),
    "enforced-racks": RackAware(is_enforced=True),
    "regions": RegionAware(min_regions=0),
    "zones": ZoneAware(is_strict=False),
}


def hosts(machines: int, processes: int, policy: str = "none") -> KnownBookies:
    """Return so many bookies on each machine; racks and zones have several."""
    names = {f"m{m}:{3181 + p}": f"m{m}" for m in range(machines) for p in range(processes)}
    place = "/z{}/d{}" if policy in ("regions", "zones") else "/r{}"
    at = {name: place.format(int(m[1:]) % 3, int(m[1:])) for name, m in names.items()}
    return KnownBookies(frozenset(names), at, machines=shared(names))


def has_repeats(shape: Shape, ensemble: tuple[str, ...]) -> bool:
    machines = [bookie_id.partition(":")[0] for bookie_id in ensemble]
    return any(
        max(Counter(machines[i] for i in window).values()) > 1 for window in shape.write_sets()
    )


_CLUSTERS = [*product((3, 4, 6), (2, 3)), (3, 1), (12, 4)]
_SHAPES = [Shape(3, 3, 2), Shape(3, 2, 2), Shape(2, 2, 1), Shape(6, 3, 2)]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("machines", "processes", "shape"),
    [(m, p, shape) for m, p in _CLUSTERS for shape in _SHAPES if shape.ensemble_size <= m * p],
)
def test_no_entry_is_on_a_machine_twice(
    policy: str, machines: int, processes: int, shape: Shape
) -> None:
    cluster = hosts(machines, processes, policy)
    for seed in range(10):
        ensemble = new_ensemble(POLICIES[policy], shape, cluster, {}, (), Random(seed))
        assert not has_repeats(shape, ensemble)
        failed = {0: ensemble[0]}
        try:
            found = replacements(
                POLICIES[policy], shape, ensemble, failed, cluster, {}, (), Random(seed)
            )
        except NotEnoughBookiesError:
            continue
        assert not has_repeats(shape, (found[0], *ensemble[1:]))


def test_every_bookie_of_a_machine_is_drawn() -> None:
    cluster = hosts(3, 3)
    drawn = Counter(
        bookie_id
        for seed in range(300)
        for bookie_id in new_ensemble(Policy(), Shape(3, 3, 2), cluster, {}, (), Random(seed))
    )
    assert set(drawn) == set(cluster.writable)
    assert max(drawn.values()) < 2 * min(drawn.values())


def test_too_few_machines_refuse_the_ensemble_and_say_so() -> None:
    cluster = hosts(2, 3)
    with pytest.raises(
        NotEnoughBookiesError,
        match=r"with no two replicas of an entry on one machine; 6 writable bookies on 2 machines "
        "do not allow that",
    ):
        new_ensemble(Policy(), Shape(3, 3, 2), cluster, {}, (), Random(1))
    with pytest.raises(NotEnoughBookiesError, match="in 2 racks and on 2 machines do not"):
        new_ensemble(RackAware(is_enforced=True), Shape(3, 3, 2), cluster, {}, (), Random(1))


def test_a_failed_bookie_gives_its_place_to_a_neighbour_or_another_machine_only() -> None:
    shape, ensemble = Shape(3, 3, 2), ("m0:3181", "m1:3181", "m2:3181")
    found = replacements(Policy(), shape, ensemble, {2: "m2:3181"}, hosts(3, 2), {}, (), Random(1))
    assert found == {2: "m2:3182"}
    with pytest.raises(NotEnoughBookiesError, match="that leaves no two replicas of an entry on"):
        replacements(
            Policy(), shape, ensemble, {2: "m2:3181"}, hosts(3, 2), {}, {"m2:3182"}, Random(1)
        )


def test_an_ensemble_with_a_repeat_fails_its_check_and_is_mended() -> None:
    shape, cluster = Shape(3, 3, 2), hosts(4, 2)
    wrong = "m0:3181", "m0:3182", "m1:3181"
    assert judge(Policy(), shape, wrong, cluster, {}) is Adherence.FAIL
    mended = repaired(Policy(), shape, wrong, cluster, {}, (), Random(1))
    assert mended is not None
    assert not has_repeats(shape, mended)
    assert len(set(mended) & set(wrong)) == 2
    # Written in turn, the two are never asked to hold the same entry.
    turns = "m0:3181", "m1:3181", "m0:3182", "m1:3182"
    assert judge(Policy(), Shape(4, 2, 2), turns, cluster, {}) is Adherence.STRICT


def test_a_bookie_that_names_no_machine_is_alone() -> None:
    shape, cluster = Shape(3, 3, 2), hosts(1, 3)
    silent = replace(cluster, machines={})
    assert set(new_ensemble(Policy(), shape, silent, {}, (), Random(1))) == set(cluster.writable)
    assert shared({"a": "m", "b": "m", "c": "n", "d": "", "e": ""}) == {"a": "m", "b": "m"}
    assert repeated(shape, ["", "", ""]) == 0
    assert repeated(shape, ["m", "m", "m"]) == 2


def test_the_machine_is_a_property_of_the_registration() -> None:
    assert machine_of_properties(machine_to_properties("host-7")) == "host-7"
    assert machine_to_properties("") == {}
    assert machine_of_properties({"label.machine": "x"}) == ""
