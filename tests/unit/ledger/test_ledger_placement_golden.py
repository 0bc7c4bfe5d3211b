"""Verdicts of the peer's own policies, and the weights it chooses by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quorumbook.ledger.placement.choice import KnownBookies, judge
from quorumbook.ledger.placement.domains import AckDomains
from quorumbook.ledger.placement.policy import Policy, Shape
from quorumbook.ledger.placement.racks import RackAware
from quorumbook.ledger.placement.weights import weights
from quorumbook.ledger.placement.zones import ZoneAware

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "placement.json").read_text())


def policy_of(case: dict) -> Policy:
    conf = case["conf"]
    if "Rackaware" in case["policy"]:
        return RackAware(
            min_racks=conf["minNumRacksPerWriteQuorum"],
            is_enforced=conf["enforceMinNumRacksPerWriteQuorum"] == "true",
        )
    return ZoneAware(
        min_zones=conf["minNumZonesPerWriteQuorum"],
        desired_zones=conf["desiredNumZonesPerWriteQuorum"],
    )


@pytest.mark.parametrize("case", GOLDEN["ensembles"])
def test_ensembles_and_acks_are_judged_as_the_peer_judges_them(case: dict) -> None:
    policy = policy_of(case)
    known = {b: place for b, place in case["bookies"].items() if place is not None}
    cluster = KnownBookies(frozenset(case["bookies"]), known)
    for each, (number, is_enough) in zip(case["ensembles"], case["verdicts"], strict=True):
        bookies, writes, acks = each["bookies"], each["write_quorum"], each["ack_quorum"]
        shape = Shape(len(bookies), writes, acks)
        assert judge(policy, shape, bookies, cluster, {}) == number
        places = [policy.domain(known.get(b, policy.default_location)) for b in bookies]
        domains = AckDomains(shape, places, policy.min_domains(writes))
        bits = [int(index < acks) for index in range(len(bookies))]
        assert bool(domains.enough(bits)) == is_enough


@pytest.mark.parametrize("case", GOLDEN["weights"])
def test_free_space_weighs_as_much_as_at_the_peer(case: dict) -> None:
    ours = weights(case["free"], case["max_multiple"])
    assert ours == pytest.approx(case["weights"], rel=1e-6, abs=1e-12)
