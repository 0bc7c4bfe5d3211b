"""The peer's placement policies beside ours: the same verdicts, and never a better choice."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

import quorumbook
from interop import sides
from interop.clusters import Cluster as RunningCluster
from interop.peer_driver import Peer, expected, payload
from quorumbook.errors import NotEnoughBookiesError
from quorumbook.ledger.placement.choice import KnownBookies, judge, new_ensemble
from quorumbook.ledger.placement.policy import Adherence, Policy, Shape
from quorumbook.ledger.placement.racks import RackAware
from quorumbook.ledger.placement.regions import RegionAware
from quorumbook.ledger.placement.zones import ZoneAware
from quorumbook.metadata.bookies.racks import RackTable
from quorumbook.metadata.uri import open_store

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "placement.json").read_text())
CLIENT = "org.apache.bookkeeper.client"
#: The peer's class and options, ours, shapes it takes, and where its bookies may stand.
KINDS: dict[str, tuple[str, dict[str, object], Policy, list[Shape], list[str | None]]] = {
    "racks": (
        "Rackaware",
        {},
        RackAware(),
        [Shape(3, 3, 2), Shape(4, 2, 2), Shape(5, 3, 2)],
        ["/r1", "/r2", "/r3", None],
    ),
    "racks enforced": (
        "Rackaware",
        {"enforceMinNumRacksPerWriteQuorum": "true"},
        RackAware(is_enforced=True),
        [Shape(3, 3, 2), Shape(4, 2, 2), Shape(5, 3, 2)],
        ["/r1", "/r2", "/r3", None],
    ),
    "zones": (
        "Zoneaware",
        {},
        ZoneAware(),
        [Shape(3, 3, 2), Shape(6, 3, 2), Shape(4, 4, 3)],
        [f"/z{zone}/u{domain}" for zone in (1, 2, 3) for domain in (1, 2)],
    ),
    "regions": (
        "RegionAware",
        {"reppRegionsToWrite": "west;east;north", "reppMinimumRegionsForDurability": 2},
        RegionAware(regions=("west", "east", "north"), min_regions=2),
        [Shape(4, 4, 3), Shape(3, 3, 3)],
        [f"/{region}/{rack}" for region in ("west", "east", "north") for rack in (1, 2)],
    ),
}


async def test_the_peer_still_says_what_its_golden_verdicts_are(peer: Peer) -> None:
    for case in GOLDEN["ensembles"]:
        request = {key: value for key, value in case.items() if key != "verdicts"}
        assert (await peer.call("judge_placement", **request))["verdicts"] == case["verdicts"]
    for case in GOLDEN["weights"]:
        request = {key: value for key, value in case.items() if key != "weights"}
        answer = await peer.call("placement_weights", **request)
        assert answer["weights"] == pytest.approx(case["weights"], rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_peer_never_chooses_better(peer: Peer, kind: str) -> None:
    name, conf, policy, shapes, places = KINDS[kind]
    random = Random(kind)
    for _ in range(12):
        shape = random.choice(shapes)
        count = random.randint(shape.ensemble_size, shape.ensemble_size + 4)
        bookies = {f"127.0.1.{i}:3181": random.choice(places) for i in range(1, count + 1)}
        known = {b: place for b, place in bookies.items() if place is not None}
        cluster = KnownBookies(frozenset(bookies), known)
        quorums = {"write_quorum": shape.write_quorum_size, "ack_quorum": shape.ack_quorum_size}
        try:
            ours = list(new_ensemble(policy, shape, cluster, {}, (), random))
        except NotEnoughBookiesError:
            ours = []
        answer = await peer.call(
            "judge_placement",
            policy=f"{CLIENT}.{name}EnsemblePlacementPolicy",
            conf={"ignoreLocalNodeInPlacementPolicy": "true", **conf},
            bookies=bookies,
            ensembles=[{"bookies": ours, **quorums}] if ours else [],
            new={"ensemble_size": shape.ensemble_size, "times": 10, **quorums},
        )
        verdicts = [
            judge(policy, shape, chosen, cluster, {})
            for chosen in answer["chosen"]
            if chosen is not None
        ]
        if not ours:
            # Refused here; the peer may go on with what it has, and breaks the rule.
            assert all(verdict is Adherence.FAIL for verdict in verdicts)
            continue
        own = judge(policy, shape, ours, cluster, {})
        assert own >= max(verdicts, default=Adherence.FAIL)
        if not isinstance(policy, RegionAware):  # the peer takes any for adhering there
            assert answer["verdicts"][0][0] == own


async def test_labels_and_racks_are_in_no_java_clients_way(connect, new_cluster) -> None:
    cluster: RunningCluster = await new_cluster()
    await cluster.start(java=2)
    fast = [await cluster.start_own(tier="ssd") for _ in range(2)]
    store = await open_store(cluster.uri)
    try:
        await RackTable(store).set(dict(zip(fast, ("/r1", "/r2"), strict=True)))
    finally:
        await store.close()
    java = await connect("java-v3", cluster.uri)
    async with quorumbook.connect(cluster.uri, bookie_labels={"tier": "ssd"}) as bk:
        writer = await bk.create_ledger(
            ensemble_size=2,
            write_quorum_size=2,
            ack_quorum_size=2,
            password=sides.PASSWORD.encode(),
        )
        assert set(writer.metadata.ensemble) == set(fast)
        await writer.append(payload("labels", 0, 100))
        # The peer's client takes the ledger over, and keeps what it does not know.
        shape = sides.Shape(2, 2, 2)
        other = await java.open(writer.id, shape)
        assert await other.read(0, 0) == expected("labels", [100])
        await other.close()
        metadata = await bk.ledger_metadata(writer.id)
        assert metadata.is_closed
        assert metadata.custom_metadata == {"quorumbook.placement.labels": b"tier=ssd"}
        assert set(metadata.ensemble) == set(fast)
        await writer.abort()
    # Its own ledgers go anywhere, and it lists all.
    made = await java.create(shape)
    await made.append("java", [10])
    await made.close()
    assert {writer.id, made.id} <= set(await java.list())
    assert set(fast) <= (await java.bookies())[0]
