"""A ZooKeeper that loses its leader, goes away, or gives sessions up, under both sides at once."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from doubles.zookeeper import end_session, start_ensemble, start_zookeeper
from interop.clusters import Cluster
from interop.peer_driver import Peer, PeerError, expected
from interop.sides import Shape
from quorumbook.client.context import client_store
from quorumbook.errors import NotEnoughBookiesError

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop"), pytest.mark.timeout(300)]

WRITERS = ("own", "java-v3")
#: The peer's default session and a minute of absence, or both in small.
SESSION_S, AWAY_S = (10.0, 60.0) if os.environ.get("INTEROP") == "full" else (2.0, 5.0)


@pytest.fixture
def short_sessions(monkeypatch):
    """Give every bookie of ours and client of ours a short session, and name the peer's option."""
    monkeypatch.setenv("QUORUMBOOK_METADATA_SESSION_TIMEOUT_S", str(SESSION_S))
    return {"zkTimeout": int(SESSION_S * 1000)}


@pytest.fixture
def servers():
    """Return a list for the test's ZooKeeper servers; they are killed after the bookies."""
    servers = []
    yield servers
    for server in servers:
        server.kill()


@pytest.fixture
def peer(java, servers, tmp_path):
    """Return a Java of the test's own: its clients storm servers that went, without a pause."""
    peer = Peer(java, tmp_path / "peer")
    yield peer
    peer.kill()


@pytest.fixture
def java_clients():
    """Keep no client for other tests; all of them end with ``peer``."""
    return {}


@pytest.fixture
async def cluster_at(java, peer, tmp_path, short_sessions, servers):
    """Return what makes a cluster of two bookies of each kind at a ZooKeeper of the test's own."""
    made = []

    async def make(address: str, *, is_mortal: bool = False) -> Cluster:
        cluster = Cluster(java, peer, address, "ledgers", tmp_path / "bookies")
        made.append(cluster)
        await cluster.start(own=2)
        for _ in range(2):
            await cluster.start_java(is_mortal=is_mortal, **short_sessions)
        return cluster

    yield make
    for cluster in made:
        await cluster.stop()


async def writers(connect, cluster, short_sessions):
    """Return a ledger of each side, with some entries, on all four bookies."""
    ledgers = {}
    for name in WRITERS:
        own = {"session_timeout_s": SESSION_S}
        side = await connect(name, cluster.uri, **(own if name == "own" else short_sessions))
        ledger = await side.create(Shape(4))
        await ledger.append("zookeeper", [100] * 10)
        ledgers[side] = ledger
    return ledgers


async def all_is_well(cluster, ledgers, count: int) -> None:
    """Close what was written, read it with the other side, and write something new."""
    everybody = {*cluster.java, *cluster.own}
    for side in ledgers:
        while (await side.bookies())[0] != everybody:
            await asyncio.sleep(0.05)
    one, other = ledgers
    for writing, reading in ((one, other), (other, one)):
        await ledgers[writing].close()
        new = await created(writing)
        await new.append("zookeeper", [100] * 5)
        await new.close()
        for ledger_id, entries in ((ledgers[writing].id, count), (new.id, 5)):
            ledger = await reading.open(ledger_id, Shape(4))
            assert await ledger.read(0, entries - 1) == expected("zookeeper", [100] * entries)
            await ledger.close()


async def created(side):
    """Create a ledger on all four; a registration seen above may have been an ended session's."""
    while True:
        try:
            return await side.create(Shape(4))
        except (NotEnoughBookiesError, PeerError) as error:
            if "NotEnoughBookies" not in f"{type(error).__name__} {error}":
                raise
        await asyncio.sleep(0.05)


async def test_the_loss_of_zookeepers_leader_is_noticed_by_no_writer(
    connect, cluster_at, short_sessions, servers, zookeeper_classpath, tmp_path
):
    servers += start_ensemble(str(tmp_path / "zookeeper"), zookeeper_classpath)
    cluster = await cluster_at(";".join(server.address for server in servers))
    ledgers = await writers(connect, cluster, short_sessions)
    leader = next(server for server in servers if server.mode() == "leader")
    leader.kill()
    count = 10
    while not any(server.mode() == "leader" for server in servers):
        for ledger in ledgers.values():
            await ledger.append("zookeeper", [100])
        count += 1
    await all_is_well(cluster, ledgers, count)


async def test_adds_go_on_while_zookeeper_is_away_and_all_register_again(
    connect, cluster_at, short_sessions, servers, zookeeper_classpath, tmp_path
):
    server = start_zookeeper(str(tmp_path / "zookeeper"), zookeeper_classpath)
    servers.append(server)
    cluster = await cluster_at(server.address)
    ledgers = await writers(connect, cluster, short_sessions)
    server.kill()
    count, back = 10, time.monotonic() + AWAY_S
    while time.monotonic() < back:
        for ledger in ledgers.values():
            await ledger.append("zookeeper", [100])
        count += 1
        await asyncio.sleep(0.01)
    server.start()
    server.wait_ready()
    await all_is_well(cluster, ledgers, count)


async def test_a_bookie_whose_session_expired_registers_again(
    connect, cluster_at, short_sessions, servers, zookeeper_classpath, tmp_path
):
    server = start_zookeeper(str(tmp_path / "zookeeper"), zookeeper_classpath)
    servers.append(server)
    cluster = await cluster_at(server.address, is_mortal=True)
    ledgers = await writers(connect, cluster, short_sessions)
    watching = next(iter(ledgers))
    for victim in (next(iter(cluster.own)), next(iter(cluster.java))):
        os.kill(cluster.pid(victim), signal.SIGSTOP)
        try:
            while victim in (await watching.bookies())[0]:
                await asyncio.sleep(0.05)
        finally:
            os.kill(cluster.pid(victim), signal.SIGCONT)
        while victim not in (await watching.bookies())[0]:
            await asyncio.sleep(0.05)
        for ledger in ledgers.values():
            await ledger.append("zookeeper", [100] * 5)
    await all_is_well(cluster, ledgers, 20)


@pytest.mark.parametrize("whose", WRITERS)
async def test_a_client_whose_session_expired_goes_on_beside_the_other_sides(
    connect, cluster_at, short_sessions, servers, zookeeper_classpath, tmp_path, whose
):
    server = start_zookeeper(str(tmp_path / "zookeeper"), zookeeper_classpath)
    servers.append(server)
    cluster = await cluster_at(server.address)
    ledgers = await writers(connect, cluster, short_sessions)
    ours, peers = ledgers
    if whose == "own":
        await end_session(client_store(ours.bk))
    else:
        await peers.call("expire_session", uri=cluster.uri)
    for ledger in ledgers.values():
        await ledger.append("zookeeper", [100] * 5)
    await all_is_well(cluster, ledgers, 15)
