"""Both sides at one queue of under-replicated ledgers, one election and one switch."""

from __future__ import annotations

import asyncio
import contextlib
import re

import pytest

from doubles.warm_command import run_command
from interop.peer_driver import Peer, expected
from interop.sides import SIDES, Shape
from quorumbook.autorecovery.audits.auditor import Auditor
from quorumbook.autorecovery.copying.worker import ReplicationWorker
from quorumbook.autorecovery.options import AuditorOptions, WorkerOptions
from quorumbook.client.context import client_store
from quorumbook.metadata.election import Election, current_leader
from quorumbook.metadata.paths import TreePaths
from quorumbook.metadata.recovery.queue import Mark, UnderreplicationQueue
from quorumbook.metadata.uri import open_store

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

#: Ids whose nodes lie in other groups of the tree.
LEDGERS = (7, 2**31 + 5, 2**63 - 1)
LOST, OTHER = "bookie-1:3181", "bookie-2:3181"


@pytest.fixture
async def place(connect, new_cluster):
    """Return a cluster without bookies, our queue in it and the peer's client."""
    cluster = await new_cluster()
    store = await open_store(cluster.uri)
    try:
        yield (
            cluster,
            UnderreplicationQueue(store, "our worker"),
            await connect(SIDES[1], cluster.uri),
        )
    finally:
        await store.close()


async def ask(side, what: str, **words: object):
    return await side.call("queue", what=what, **words)


async def ours(*words: str, uri: str) -> str:
    """Run a command of ours and return what it prints."""
    done = await asyncio.to_thread(run_command, *words, "--metadata", uri)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


async def marks(queue) -> dict[int, set[str]]:
    return {mark.ledger_id: set(mark.replicas) async for mark in queue.list()}


async def test_marks_of_either_side_are_read_and_added_to_by_the_other(place):
    cluster, queue, peers = place
    for ledger_id in LEDGERS:
        await queue.mark(ledger_id, [LOST], 1_700_000_000_000)
    said = await cluster.shell("listunderreplicated", "-printmissingreplica")
    assert {int(found) for found in re.findall(r"ledgerId=(\d+)", said)} == set(LEDGERS)
    assert said.count(LOST) == len(LEDGERS)
    for ledger_id in (*LEDGERS, 8):
        await ask(peers, "mark", ledger=ledger_id, missing=[OTHER])
    wanted = {**{ledger_id: {LOST, OTHER} for ledger_id in LEDGERS}, 8: {OTHER}}
    assert await marks(queue) == wanted
    listed = (await ask(peers, "list"))["marks"]
    assert {int(ledger_id): set(missing) for ledger_id, missing in listed.items()} == wanted
    # Who adds to a mark sets the time anew in the peer; ours keep the first one.
    before = (await queue.read(7)).ctime_ms
    assert before > 1_700_000_000_000
    await queue.mark(7, [LOST], before + 1)
    assert (await queue.read(7)).ctime_ms == before
    said = await ours("recovery", "underreplicated", "-o", "jsonl", uri=cluster.uri)
    assert said.count(OTHER) == len(wanted)


async def taken_by(peers):
    """Return the ledger that the peer takes, as soon as its cache of the queue shows it one."""
    async with asyncio.timeout(60):
        while (ledger_id := (await ask(peers, "take"))["ledger"]) == -1:
            await asyncio.sleep(0.05)
    return ledger_id


async def test_a_ledger_that_one_side_works_on_is_left_alone_by_the_other(place):
    _, queue, peers = place
    for ledger_id in (7, 8):
        await queue.mark(ledger_id, [LOST])
    taken = await taken_by(peers)
    work = await queue.take()
    assert {taken, work.ledger_id} == {7, 8}
    assert await queue.take() is None
    assert (await ask(peers, "take"))["ledger"] == -1
    worker = (await ask(peers, "worker", ledger=work.ledger_id))["worker"]
    assert worker == "our worker"
    # Given back by one side, it is the other's to take.
    await queue.release(work)
    assert await taken_by(peers) == work.ledger_id
    await ask(peers, "release", ledger=taken)
    again = await queue.take()
    assert again.mark == Mark(taken, (LOST,), again.mark.ctime_ms)
    # What was marked again meanwhile stays, what was not is off the queue.
    await ask(peers, "mark", ledger=taken, missing=[OTHER])
    assert not await queue.done(again)
    await ask(peers, "done", ledger=work.ledger_id)
    assert await marks(queue) == {taken: {LOST, OTHER}}
    assert await queue.done(await queue.take())
    assert (await ask(peers, "list"))["marks"] == {}


async def test_replication_that_one_side_switches_off_is_off_for_the_other(place):
    cluster, queue, _ = place
    changed = asyncio.Event()
    assert await queue.is_enabled(changed.set)
    await cluster.shell("autorecovery", "-disable")
    await asyncio.wait_for(changed.wait(), 60)
    assert not await queue.is_enabled()
    said = await ours("recovery", "status", "-o", "jsonl", uri=cluster.uri)
    assert '"enabled": false' in said or '"enabled":false' in said
    await cluster.shell("autorecovery", "-enable")
    assert await queue.is_enabled()
    await ours("recovery", "disable", uri=cluster.uri)
    assert "already disabled" in await cluster.shell("autorecovery", "-disable")
    await ours("recovery", "enable", uri=cluster.uri)
    assert "already enabled" in await cluster.shell("autorecovery", "-enable")


async def test_the_delay_for_a_lost_bookie_is_the_same_number_for_both(place):
    cluster, queue, peers = place
    await queue.set_lost_bookie_delay_s(120)
    assert (await ask(peers, "delay"))["seconds"] == 120
    await cluster.shell("lostbookierecoverydelay", "-set", "45")
    assert await queue.lost_bookie_delay_s() == 45


@pytest.fixture
def short_sessions(monkeypatch):
    """Have bookies of ours that are killed be missed soon."""
    monkeypatch.setenv("QUORUMBOOK_METADATA_SESSION_TIMEOUT_S", "2")


async def test_while_replication_is_off_the_peer_copies_nothing_of_ours(
    connect, new_cluster, short_sessions, java, tmp_path
):
    cluster = await new_cluster()
    await cluster.start(own=3)
    side = await connect("own", cluster.uri)
    ledger = await side.create(Shape())
    await ledger.append("off", [100] * 20)
    await ledger.close()
    lost = (await side.metadata(ledger.id)).ensembles[0][0]
    talkative = Peer(java, tmp_path / "auditor", log="info")
    try:
        async with cluster.auto_recovery(talkative):
            while "completed audit" not in talkative.log.read_text().lower():
                await asyncio.sleep(0.05)
            await ours("recovery", "disable", uri=cluster.uri)
            await cluster.kill(lost)
            await cluster.start_own()
            while "LedgerReplication is disabled" not in talkative.log.read_text():
                await asyncio.sleep(0.05)
            assert lost in (await side.metadata(ledger.id)).ensembles[0]
            await ours("recovery", "enable", uri=cluster.uri)
            while lost in (await side.metadata(ledger.id)).ensembles[0]:
                await asyncio.sleep(0.05)
    finally:
        talkative.kill()


async def test_auditors_of_both_sides_stand_in_one_election(java, new_cluster, tmp_path):
    cluster = await new_cluster()
    await cluster.start(own=1)
    stores = [await open_store(cluster.uri) for _ in range(2)]
    path = TreePaths(stores[0].ledgers_root).auditor_election
    candidates = [Election(store, path, f"ours-{n}:1") for n, store in enumerate(stores)]
    doomed = [Peer(java, tmp_path / f"auditor-{n}") for n in range(2)]

    async def leads(name: str) -> None:
        while await current_leader(stores[1], path) != name:
            await asyncio.sleep(0.05)

    try:
        short = {"zkTimeout": 2000}
        async with cluster.auto_recovery(doomed[0], **short) as first:
            await leads(first)
            candidates[0].stand()
            while len(await stores[1].children(path)) < 2:
                await asyncio.sleep(0.05)
            async with cluster.auto_recovery(doomed[1], **short) as second:
                candidates[1].stand()
                while len(await stores[1].children(path)) < 4:
                    await asyncio.sleep(0.05)
                # The one of the peer leads, and both sides say so.
                assert first in await cluster.shell("whoisauditor")
                assert first in await ours("recovery", "status", "-o", "jsonl", uri=cluster.uri)
                assert not any(candidate.is_leader for candidate in candidates)
                await asyncio.to_thread(doomed[0].kill)
                await leads("ours-0:1")
                while not candidates[0].is_leader:
                    await asyncio.sleep(0.05)
                assert (await stores[1].get(path)).data == b'bookieId: "ours-0:1"\n'
                assert "ours-0" in await cluster.shell("whoisauditor")
                await stores[0].close()
                await leads(second)
                await asyncio.to_thread(doomed[1].kill)
                await leads("ours-1:1")
    finally:
        for candidate in candidates:
            await candidate.resign()
        for store in stores:
            await store.close()
        for peer in doomed:
            peer.kill()


@pytest.mark.parametrize("newcomer", ["own", "java"])
async def test_the_peers_auto_recovery_copies_from_and_to_both_kinds_of_bookies(
    connect, new_cluster, short_sessions, newcomer
):
    cluster = await new_cluster()
    await cluster.start(own=2, java=1)
    ledgers = {}
    for name in ("own", "java-v3"):
        side = await connect(name, cluster.uri)
        ledgers[name] = ledger = await side.create(Shape())
        await ledger.append("mixed", [100] * 50)
        await ledger.close()
    side = await connect("own", cluster.uri)
    (lost, other) = tuple(cluster.own)
    async with cluster.auto_recovery():
        await cluster.kill(lost)
        start = cluster.start_own if newcomer == "own" else cluster.start_java
        spare = await start()
        for ledger in ledgers.values():
            while lost in (ensemble := (await side.metadata(ledger.id)).ensembles[0]):
                await asyncio.sleep(0.1)
            assert spare in ensemble
    await cluster.kill(other)
    for name in SIDES:
        reading = await connect(name, cluster.uri)
        for ledger in ledgers.values():
            opened = await reading.open(ledger.id, Shape())
            assert await opened.read(0, 49) == expected("mixed", [100] * 50)
            await opened.close()


@contextlib.asynccontextmanager
async def own_part(side, part: str):
    """Run our auditor or our worker on the client of a side."""
    client = side.bk
    if part == "auditor":
        running = Auditor(client_store(client), "our auditor", AuditorOptions(), settle_s=0)
    else:
        options = WorkerOptions(open_ledger_grace_s=0.5, max_retry_s=1)
        running = ReplicationWorker(client, "our worker", options)
    running.start()
    try:
        yield
    finally:
        await running.stop()


@pytest.mark.parametrize("victim", ["own", "java"])
@pytest.mark.parametrize("auditor", ["own", "java"])
async def test_what_the_auditor_of_one_side_marks_the_worker_of_the_other_heals(
    connect, new_cluster, short_sessions, auditor, victim
):
    cluster = await new_cluster()
    await cluster.start(own=2)
    await cluster.start_java(is_mortal=True, zkTimeout=2000)
    ledgers = []
    for name in ("own", "java-v3"):
        side = await connect(name, cluster.uri)
        for is_closed in (True, False):
            ledgers.append(await side.create(Shape()))
            await ledgers[-1].append("healed", [100] * 50)
            if is_closed:
                await ledgers[-1].close()
    side = await connect("own", cluster.uri)
    lost = next(iter(cluster.own if victim == "own" else cluster.java))
    ours, theirs = ("auditor", "worker") if auditor == "own" else ("worker", "auditor")
    async with own_part(side, ours):
        async with cluster.auto_recovery(part=theirs):
            await cluster.kill(lost)
            spare = await cluster.start_own()
            for ledger in ledgers:
                while lost in str((await side.metadata(ledger.id)).ensembles):
                    await asyncio.sleep(0.1)
        # The peer's worker may forget a lock (docs/divergence.md), which ends with its session.
        async with cluster.auto_recovery(part=theirs):
            queue = UnderreplicationQueue(client_store(side.bk))
            while [mark async for mark in queue.list()]:
                await asyncio.sleep(0.05)
            queue.close()
    # Each ledger is whole at the newcomer alone.
    for other in {*cluster.own, *cluster.java} - {spare}:
        await cluster.kill(other)
    for name in SIDES:
        reading = await connect(name, cluster.uri)
        for ledger in ledgers:
            assert (await reading.metadata(ledger.id)).state == "CLOSED"
            opened = await reading.open(ledger.id, Shape())
            assert await opened.read(0, 49) == expected("healed", [100] * 50)
            await opened.close()
