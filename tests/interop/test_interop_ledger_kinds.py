"""Ledgers of special kinds between the two sides: chosen ids, deferred sync, limits of reads."""

from __future__ import annotations

import asyncio

import pytest

import quorumbook
from interop.peer_driver import expected, payload, seen
from interop.sides import Shape

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

SHAPE = Shape()
PASSWORD = SHAPE.password.encode()
SIZES = [0, 1, 1000, 65_536, 7]
PATIENCE_S = 60.0


@pytest.fixture
async def own(cluster_of):
    """Our client of the peer's bookies."""
    cluster = await cluster_of("java")
    async with quorumbook.connect(cluster.uri) as bk:
        yield bk, cluster.uri


async def test_deferred_sync_is_forced_on_the_peers_bookies(own, connect):
    bk, uri = own
    java = await connect("java-v3", uri)
    ledger = await bk.create_ledger(password=PASSWORD, deferred_sync=True)
    for i, size in enumerate(SIZES):
        await ledger.append(payload("deferred", i, size))
    watching = await java.open(ledger.id, SHAPE, recover=False)
    assert await watching.read_last_add_confirmed() == -1
    assert await ledger.force() == len(SIZES) - 1
    async with asyncio.timeout(PATIENCE_S):
        while await watching.read_last_add_confirmed() < len(SIZES) - 1:
            await asyncio.sleep(0.05)  # published when the writer is idle
    await ledger.append(payload("deferred", len(SIZES), 5))
    await ledger.close()
    closed = await java.open(ledger.id, SHAPE)
    assert await closed.read(0, len(SIZES)) == expected("deferred", [*SIZES, 5])
    await watching.close()
    await closed.close()


async def test_chosen_ids_and_a_wide_ledger_id_on_the_peers_bookies(own, connect):
    bk, uri = own
    java = await connect("java-v2", uri)
    ledger_id = 2**33 + 3
    ledger = await bk.create_ledger(password=PASSWORD, ledger_id=ledger_id, explicit_entry_ids=True)
    order = [3, 1, 0, 4, 2]
    await asyncio.gather(*(ledger.append_at(i, payload("chosen", i, SIZES[i])) for i in order))
    await ledger.close()
    closed = await java.open(ledger_id, SHAPE)
    assert await closed.state() == (4, sum(SIZES))
    assert await closed.read(0, 4) == expected("chosen", SIZES)
    await closed.close()


async def test_reads_with_limits_one_by_one_and_of_one_bookie_on_the_peers_bookies(own, connect):
    _, uri = own
    java = await connect("java-v3", uri)
    written = await java.create(SHAPE)
    sizes = [200] * 300
    await written.append("limits", sizes)
    await written.close()
    wanted = expected("limits", sizes)
    for options in ({}, {"batch_reads": False}, {"sticky_reads": True}):
        async with (
            quorumbook.connect(uri, **options) as client,
            client.open_ledger(written.id, password=PASSWORD) as reader,
        ):
            got = [seen(entry.entry_id, entry.payload) async for entry in reader.read()]
            assert got == wanted
            batch = await reader.read_batch(100, max_count=20, max_size_bytes=10_000)
            assert 1 <= len(batch) <= 20
            assert batch.size_bytes <= 10_000
            assert [seen(e.entry_id, e.payload) for e in batch] == wanted[100 : 100 + len(batch)]
            last = await reader.read_last_entry()
            assert seen(last.entry_id, last.payload) == wanted[-1]


async def test_a_tail_believes_the_explicit_last_add_confirmed_of_the_peers_writer(own, connect):
    bk, uri = own
    java = await connect("java-v3", uri, explicitLacInterval=50)
    written = await java.create(SHAPE)
    async with bk.open_ledger(written.id, password=PASSWORD, recover=False) as reader:
        got = []

        async def tail() -> None:
            async for entry in reader.tail():
                got.append(seen(entry.entry_id, entry.payload))  # noqa: PERF401 - seen as it goes

        tailing = asyncio.create_task(tail())
        await written.append("tail", SIZES)
        async with asyncio.timeout(PATIENCE_S):
            while len(got) < len(SIZES):
                await asyncio.sleep(0.02)
        assert got == expected("tail", SIZES)
        await written.close()
        async with asyncio.timeout(PATIENCE_S):
            await tailing
