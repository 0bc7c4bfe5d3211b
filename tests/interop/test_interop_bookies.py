"""What bookies do of themselves, beside those of the other side: take no more, give space back."""

from __future__ import annotations

import asyncio

import pytest

from interop.peer_driver import PeerError, expected
from interop.sides import SIDES, Shape, refusal
from quorumbook.errors import NotEnoughBookiesError, QuorumbookError
from quorumbook.protocol.status import V2_CODE, Status

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]


async def read_of(side, bookie_id: str, ledger_id: int) -> int:
    """Ask one bookie for the first entry of a ledger and return the code of its answer."""
    # One channel to one bookie, without the choice of another.
    channel = side.bk._running().bookies.fast(bookie_id)
    return (await channel.read_run(ledger_id, 0, 1, 10_000)).code


async def refused_soon(side, create):
    """Return what something ends with in the end: the peer places by news later than it lists."""
    while True:
        try:
            await (await create).close()
        except (PeerError, QuorumbookError) as error:
            return error.code
        await asyncio.sleep(0.05)
        create = side.create(Shape(4))


@pytest.mark.parametrize("kind", ["own", "java"])
async def test_a_read_only_bookie_is_seen_avoided_and_read_by_both_sides(
    connect, new_cluster, peer, kind
):
    cluster = await new_cluster()
    await cluster.start(own=2, java=2)
    written = {}
    for name in SIDES:
        side = await connect(name, cluster.uri)
        written[name] = ledger = await side.create(Shape(4, 4))
        await ledger.append("full", [100] * 20)
        await ledger.close()
    full = next(iter(cluster.own if kind == "own" else cluster.java))
    await cluster.make_read_only(full)
    for name in SIDES:
        side = await connect(name, cluster.uri)
        while await side.bookies() != ({*cluster.own, *cluster.java} - {full}, {full}):
            await asyncio.sleep(0.05)
        create = side.create(Shape(4))
        refused = refusal(create) if name == "own" else refused_soon(side, create)
        assert await refused == NotEnoughBookiesError.code
        ledger = await side.create(Shape())
        await ledger.append("full", [100])
        await ledger.close()
        assert full not in (await side.metadata(ledger.id)).ensembles[0]
        # What it holds already is read from it as before.
        for other in written.values():
            opened = await side.open(other.id, Shape())
            assert await opened.read(0, 19) == expected("full", [100] * 20)
            await opened.close()
    ours = await connect("own", cluster.uri)
    assert await read_of(ours, full, written["java-v3"].id) == Status.OK
    said = await cluster.shell("listbookies", "-ro")
    assert full in said


@pytest.mark.parametrize("deleter", ["own", "java-v3"])
async def test_what_one_side_deletes_leaves_the_bookies_of_both(
    connect, new_cluster, monkeypatch, deleter
):
    soon = {"GC_INTERVAL_S": "0.2", "GC_CONFIRM_INTERVAL_S": "0", "STORAGE_FLUSH_INTERVAL_S": "0.3"}
    for name, value in soon.items():
        monkeypatch.setenv(f"QUORUMBOOK_{name}", value)
    cluster = await new_cluster()
    await cluster.start(own=2)
    await cluster.start_java(gcWaitTime=500, gcInitialWaitTime=500)
    ours = await connect("own", cluster.uri)
    ledgers = {}
    for name in ("own", "java-v3"):
        for fate in ("stays", "goes"):
            side = await connect(name, cluster.uri)
            ledgers[name, fate] = ledger = await side.create(Shape())
            await ledger.append("garbage", [100] * 10)
            await ledger.close()
    deleting = await connect(deleter, cluster.uri)
    for (_, fate), ledger in ledgers.items():
        if fate == "goes":
            await deleting.delete(ledger.id)
    for bookie_id in (*cluster.own, *cluster.java):
        for (_, fate), ledger in ledgers.items():
            if fate == "stays":
                assert await read_of(ours, bookie_id, ledger.id) == Status.OK
                continue
            while (code := await read_of(ours, bookie_id, ledger.id)) == Status.OK:
                await asyncio.sleep(0.1)
            assert code == V2_CODE[Status.NO_LEDGER]
