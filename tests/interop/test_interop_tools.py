"""The peer's shell commands and its auto-recovery at work on bookies of ours."""

from __future__ import annotations

import asyncio
import re
import sys

import pytest

from interop.peer_driver import expected
from interop.sides import SIDES, OwnSide, Shape
from quorumbook.testing import LocalCluster, _Process

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

SIZES = [10, 20, 30]


@pytest.fixture
async def written(connect, cluster_of):
    """Return a cluster of our bookies and a closed ledger in it."""
    cluster = await cluster_of("own")
    ours = await connect("own", cluster.uri)
    ledger = await ours.create(Shape(custom={"application": "shell"}))
    await ledger.append("shell", SIZES)
    await ledger.close()
    return cluster, ledger.id


async def test_the_peers_shell_lists_our_bookies(written):
    cluster, _ = written
    for words in (["-rw"], ["-a"]):
        said = await cluster.shell("listbookies", *words)
        assert set(re.findall(r"BookieID:([\d.:]+)", said)) == set(cluster.own)
    assert "free=" in await cluster.shell("bookieinfo")
    assert re.search(r"[0-9a-f]{8}-[0-9a-f-]{27}", await cluster.shell("whatisinstanceid"))


async def test_the_peers_shell_knows_where_a_bookie_of_ours_is(written):
    cluster, _ = written
    bookie = next(iter(cluster.own))
    said = await cluster.shell("endpointinfo", "-b", bookie)
    assert "bookie-rpc" in said
    assert bookie.partition(":")[2] in said


async def test_the_peers_shell_shows_metadata_and_entries(written):
    cluster, ledger_id = written
    said = await cluster.shell("ledgermetadata", "-ledgerid", str(ledger_id))
    assert "state=CLOSED" in said
    assert f"length={sum(SIZES)}, lastEntryId={len(SIZES) - 1}" in said
    said = await cluster.shell("readledger", "-ledgerid", str(ledger_id), "-r")
    found = re.findall(r"entryId=(\d+), entrySize=(\d+)", said)
    # What it calls the size of an entry is the length of the ledger up to it.
    assert found == [("0", "10"), ("1", "30"), ("2", "60")]
    bookie = next(iter(cluster.own))
    said = await cluster.shell("listledgers", "-bookieid", bookie)
    assert f"{{ledgerId={ledger_id}}}" in said


async def test_the_peers_shell_writes_and_reads_through_our_bookies(written):
    cluster, _ = written
    sizes = ["-ensemble", "3", "-writeQuorum", "3", "-ackQuorum", "2", "-numEntries", "100"]
    assert "100 entries written" in await cluster.shell("simpletest", *sizes)
    # This one writes to, and reads from, the bookie that its configuration says it is.
    host, _, port = next(iter(cluster.own)).partition(":")
    said = await cluster.shell("bookiesanity", bookiePort=port, advertisedAddress=host)
    assert "Bookie sanity test succeeded" in said


async def test_the_peers_auto_recovery_copies_ledgers_between_our_bookies(connect, new_cluster):
    cluster = await new_cluster()
    await cluster.start(own=3)
    ours = await connect("own", cluster.uri)
    shape = Shape()
    closed, open_one = await ours.create(shape), await ours.create(shape)
    for ledger in (closed, open_one):
        await ledger.append("copied", [100] * 50)
    await closed.close()
    first, second, third = (await ours.metadata(closed.id)).ensembles[0]
    async with cluster.auto_recovery():
        await cluster.kill(first)
        # Nobody can take its place yet, so its ledgers wait.
        waiting = ""
        while not {str(closed.id), str(open_one.id)} <= set(re.findall(r"ledgerId=(\d+)", waiting)):
            waiting = await cluster.shell("listunderreplicated")
    spare = await cluster.start_own()
    # A worker may forget a lock (docs/divergence.md), which ends with its session.
    async with cluster.auto_recovery():
        for ledger in (closed, open_one):
            while first in str((await ours.metadata(ledger.id)).ensembles):
                await asyncio.sleep(0.1)
    async with cluster.auto_recovery():
        while "count=0" not in await cluster.shell("listunderreplicated"):
            await asyncio.sleep(0.1)
    # The open ledger's writer was fenced, and the newcomer alone has all of both.
    assert (await ours.metadata(open_one.id)).state == "CLOSED"
    assert spare in (await ours.metadata(closed.id)).ensembles[0]
    await cluster.kill(second)
    await cluster.kill(third)
    for name in SIDES:
        reading = await connect(name, cluster.uri)
        for ledger in (closed, open_one):
            other = await reading.open(ledger.id, shape)
            assert await other.read(0, 49) == expected("copied", [100] * 50)
            await other.close()


async def test_a_cluster_that_moved_from_sqlite_to_zookeeper_is_the_peers_too(
    connect, zookeeper, tmp_path
):
    uri = f"zk+hierarchical://{zookeeper.address}/moved"
    async with LocalCluster(3, processes=True, data_dir=str(tmp_path)) as before:
        async with before.connect() as bk:
            shape = Shape(custom={"application": "moving"})
            closed, left_open = await OwnSide(bk).create(shape), await OwnSide(bk).create(shape)
            for ledger in (closed, left_open):
                await ledger.append("moved", [100] * 20)
            await closed.close()
    done = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "quorumbook", "metadata", "copy", before.metadata_uri, uri
    )
    assert await done.wait() == 0
    bookies = [_Process(uri, str(tmp_path / f"bookie-{number}"), {}) for number in (1, 2, 3)]
    for bookie, name in zip(bookies, before.bookie_ids, strict=True):
        bookie._port = int(name.partition(":")[2])  # the bookie has to come where the other one was
    try:
        await asyncio.gather(*(bookie.start() for bookie in bookies))
        assert [bookie.bookie_id for bookie in bookies] == before.bookie_ids
        peers = await connect("java-v3", uri)
        assert await peers.list() == [closed.id, left_open.id]
        for ledger in (closed, left_open):
            other = await peers.open(ledger.id, shape)
            assert await other.read(0, 19) == expected("moved", [100] * 20)
            assert (await peers.metadata(ledger.id)).custom == shape.custom
            await other.close()
        new = await peers.create(shape)
        assert new.id > left_open.id
        await new.append("moved", [100])
        await new.close()
    finally:
        for bookie in bookies:
            await bookie.stop()
