"""What bookies do of themselves, beside those of the other side: take no more, give space back."""

from __future__ import annotations

import asyncio

import pytest

from doubles.raw_client import RawClient
from interop.peer_driver import PeerError, expected
from interop.sides import SIDES, Shape, refusal
from quorumbook.errors import NotEnoughBookiesError, QuorumbookError
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.protocol.digest import DigestType, digester, master_key
from quorumbook.protocol.status import V2_CODE, Status
from quorumbook.protocol.v2 import packets as v2

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


def _of_a_stranger(ledger_id: int) -> bytes:
    entry = digester(DigestType.CRC32C, b"theirs").seal(ledger_id, 0, -1, 1, b"x")
    return b"".join(v2.encode_adds(master_key(b"theirs"), 0, [entry]))


async def test_an_id_that_a_stranger_takes_is_given_up_where_one_of_our_bookies_is_asked(
    connect, cluster_of, monkeypatch
):
    """Only ours are told a key before there is an entry: one of Java would end its readers."""
    cluster = await cluster_of("mixed")
    side = await connect("own", cluster.uri)
    shape = Shape(ensemble=len(cluster.own) + len(cluster.java))
    port = int(next(iter(cluster.own)).rpartition(":")[2])
    stranger = await RawClient.connect(port)
    create, taken = LedgerManager.create, []

    async def watched(self, metadata):
        made = await create(self, metadata)
        if not taken:
            taken.append(metadata.ledger_id)
            stranger.send(_of_a_stranger(metadata.ledger_id))
            assert await stranger.add_codes(1) == [(0, 0)]
        return made

    monkeypatch.setattr(LedgerManager, "create", watched)
    ledger = await side.create(shape)
    assert taken
    assert ledger.id not in taken
    codes = {name: await read_of(side, name, ledger.id) for name in (*cluster.own, *cluster.java)}
    knowing = {name for name, code in codes.items() if code == V2_CODE[Status.NO_ENTRY]}
    assert knowing == set(cluster.own)
    stranger.send(_of_a_stranger(ledger.id))
    assert await stranger.add_codes(1) == [(0, V2_CODE[Status.UNAUTHORIZED])]
    stranger.close()
    # A reader of Java follows the ledger from before its first entry on.
    reading = await (await connect("java-v3", cluster.uri)).open(ledger.id, shape, recover=False)
    await ledger.append("ours", [100] * 5)
    await ledger.close()
    while await reading.read_last_add_confirmed() < 4:
        await asyncio.sleep(0.05)
    assert await reading.read(0, 4) == expected("ours", [100] * 5)
    await reading.close()
