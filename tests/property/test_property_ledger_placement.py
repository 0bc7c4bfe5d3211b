"""Placement, against every ensemble there could be."""

from __future__ import annotations

from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumbook.errors import LocalProtocolError, NotEnoughBookiesError
from quorumbook.ledger.placement.choice import (
    KnownBookies,
    judge,
    new_ensemble,
    repaired,
    replacements,
)
from quorumbook.ledger.placement.domains import AckDomains
from quorumbook.ledger.placement.policy import Adherence, Policy, Shape
from quorumbook.ledger.placement.racks import RackAware
from quorumbook.ledger.placement.regions import RegionAware
from quorumbook.ledger.placement.zones import ZoneAware

SHAPES = [
    Shape(size, quorum, acks)
    for size in range(1, 6)
    for quorum in range(1, size + 1)
    for acks in range(1, quorum + 1)
]
#: Three regions, one of them with one rack; and what is not known.
PLACES = ["/a/1", "/a/2", "/b/1", "/b/2", "/c/1", None]


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    enforced = draw(st.booleans())
    acks_enforced = draw(st.booleans())
    kind = draw(st.sampled_from(["random", "racks", "regions", "zones"]))
    if kind == "racks":
        return RackAware(
            min_racks=draw(st.integers(1, 3)),
            is_enforced=enforced,
            are_ack_domains_enforced=acks_enforced,
        )
    if kind == "regions":
        return RegionAware(
            regions=draw(st.sampled_from([(), ("a", "b"), ("a", "b", "c")])),
            disallowed_regions=draw(st.sampled_from([(), ("c",)])),
            min_regions=draw(st.integers(0, 2)),
            is_enforced_in_replacement=enforced,
            is_rack_enforced=draw(st.booleans()),
            are_ack_domains_enforced=acks_enforced,
        )
    if kind == "zones":
        return ZoneAware(is_strict=enforced)
    return Policy()


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Policy, Shape, KnownBookies, int]:
    places = draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=7))
    bookies = [f"b{number}" for number in range(len(places))]
    locations = {b: place for b, place in zip(bookies, places, strict=True) if place is not None}
    cluster = KnownBookies(
        frozenset(bookies),
        locations,
        local=draw(st.sampled_from(["", "/a/1"])),
        weights=draw(st.sampled_from([{}, {b: 1.0 + i for i, b in enumerate(bookies)}])),
    )
    return draw(policies()), draw(st.sampled_from(SHAPES)), cluster, draw(st.integers(0, 1 << 32))


def usable(policy: Policy, cluster: KnownBookies) -> list[str]:
    at = cluster.locations
    return [
        b for b in sorted(cluster.writable) if policy.may_hold(at.get(b, policy.default_location))
    ]


def lack(policy: Policy, shape: Shape, cluster: KnownBookies, ensemble: tuple[str, ...]) -> int:
    """Return how many racks the write sets lack altogether."""
    places = [cluster.locations.get(b, policy.default_location) for b in ensemble]
    wanted = policy.min_domains(shape.write_quorum_size)
    size, quorum = shape.ensemble_size, shape.write_quorum_size
    # Write sets begin at every position, and where all are alike they count once.
    windows = [[(start + i) % size for i in range(quorum)] for start in range(size)]
    return sum(
        max(0, wanted - len({policy.domain(places[i]) for i in window}))
        for window in windows[: 1 if size == quorum else None]
    )


def is_as_good(policy: Policy, found: Adherence, best: Adherence) -> bool:
    # Regions come before the racks in them: spread evenly, an ensemble may have fewer racks.
    if isinstance(policy, RegionAware):
        return (found is Adherence.FAIL) == (best is Adherence.FAIL)
    return found == best


@settings(max_examples=400, deadline=None)
@given(worlds())
def test_a_new_ensemble_is_as_good_as_any_could_be(
    world: tuple[Policy, Shape, KnownBookies, int],
) -> None:
    policy, shape, cluster, seed = world
    try:
        policy.check(shape)
    except LocalProtocolError:
        with pytest.raises(LocalProtocolError):
            new_ensemble(policy, shape, cluster, {}, (), Random(seed))
        return
    every = list(permutations(usable(policy, cluster), shape.ensemble_size))
    try:
        chosen = new_ensemble(policy, shape, cluster, {}, (), Random(seed))
    except NotEnoughBookiesError:
        # Refused only if every ensemble breaks what is enforced.
        for ensemble in every:
            is_spread = not lack(policy, shape, cluster, ensemble)
            broken = judge(policy, shape, ensemble, cluster, {}) is Adherence.FAIL
            assert broken or (policy.are_ack_domains_enforced and not is_spread)
            assert policy.enforced(shape)
        return
    assert chosen in every
    assert len(set(chosen)) == shape.ensemble_size
    assert chosen == new_ensemble(policy, shape, cluster, {}, (), Random(seed))
    if policy.are_ack_domains_enforced:
        assert not lack(policy, shape, cluster, chosen)
    if isinstance(policy, RackAware):
        assert lack(policy, shape, cluster, chosen) == min(
            lack(policy, shape, cluster, ensemble) for ensemble in every
        )
    best = max(judge(policy, shape, ensemble, cluster, {}) for ensemble in every)
    if not policy.are_ack_domains_enforced:
        assert is_as_good(policy, judge(policy, shape, chosen, cluster, {}), best)


@settings(max_examples=400, deadline=None)
@given(worlds(), st.data())
def test_a_replacement_makes_nothing_worse_than_it_has_to_be(
    world: tuple[Policy, Shape, KnownBookies, int], data: st.DataObject
) -> None:
    policy, shape, cluster, seed = world
    bookies = sorted(cluster.writable)
    if len(bookies) < shape.ensemble_size:
        return
    ensemble = tuple(data.draw(st.permutations(bookies))[: shape.ensemble_size])
    index = data.draw(st.integers(0, shape.ensemble_size - 1))
    others = [b for b in usable(policy, cluster) if b not in ensemble]
    every = [(*ensemble[:index], b, *ensemble[index + 1 :]) for b in others]
    verdicts = [judge(policy, shape, each, cluster, {}) for each in every]
    failed = {index: ensemble[index]}
    try:
        chosen = replacements(policy, shape, ensemble, failed, cluster, {}, (), Random(seed))
    except NotEnoughBookiesError:
        assert not every or (policy.enforced(shape) and min(verdicts) is Adherence.FAIL)
        return
    after = (*ensemble[:index], chosen[index], *ensemble[index + 1 :])
    assert set(chosen) == {index}
    assert after in every
    if isinstance(policy, RackAware):
        assert lack(policy, shape, cluster, after) == min(
            lack(policy, shape, cluster, each) for each in every
        )
    if not policy.are_ack_domains_enforced:
        assert is_as_good(policy, judge(policy, shape, after, cluster, {}), max(verdicts))


@settings(max_examples=200, deadline=None)
@given(worlds(), st.data())
def test_a_repaired_ensemble_keeps_to_its_policy_with_the_fewest_changes(
    world: tuple[Policy, Shape, KnownBookies, int], data: st.DataObject
) -> None:
    policy, shape, cluster, seed = world
    bookies = sorted(cluster.writable)
    if len(bookies) < shape.ensemble_size or policy.are_ack_domains_enforced:
        return
    ensemble = tuple(data.draw(st.permutations(bookies))[: shape.ensemble_size])
    after = repaired(policy, shape, ensemble, cluster, {}, (), Random(seed))
    before = judge(policy, shape, ensemble, cluster, {})
    if after is None:
        if before is Adherence.FAIL:
            allowed = {*usable(policy, cluster)}
            for each in permutations(bookies, shape.ensemble_size):
                new = {b for b, old in zip(each, ensemble, strict=True) if b != old}
                if new <= allowed - set(ensemble):
                    assert judge(policy, shape, each, cluster, {}) is Adherence.FAIL
        return
    assert before is Adherence.FAIL
    assert judge(policy, shape, after, cluster, {}) is not Adherence.FAIL
    assert len(set(after)) == shape.ensemble_size
    changed = sum(a != b for a, b in zip(after, ensemble, strict=True))
    for one in range(shape.ensemble_size if changed > 1 else 0):
        for b in usable(policy, cluster):
            if b not in ensemble:
                each = (*ensemble[:one], b, *ensemble[one + 1 :])
                assert judge(policy, shape, each, cluster, {}) is Adherence.FAIL


@given(
    st.sampled_from(SHAPES),
    st.lists(st.sampled_from("abc"), min_size=5, max_size=5),
    st.integers(1, 3),
    st.lists(st.integers(0, 255), min_size=5, max_size=5),
    st.integers(0, 31),
)
def test_acks_count_by_where_they_come_from(
    shape: Shape, places: list[str], least: int, acks: list[int], failed: int
) -> None:
    size = shape.ensemble_size
    domains = AckDomains(shape, places[:size], least)
    enough = domains.enough(acks[:size])
    for entry in range(8):
        acked = {places[i] for i in range(size) if acks[i] >> entry & 1}
        assert bool(enough >> entry & 1) == (len(acked) >= least)
    left = [{places[i] for i in w if not failed >> i & 1} for w in shape.write_sets()]
    assert domains.can_reach(failed) == all(len(each) >= least for each in left)
