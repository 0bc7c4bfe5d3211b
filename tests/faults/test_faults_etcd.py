"""A cluster whose metadata is in a real etcd that is killed, paused and started again."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from doubles.etcd_server import EtcdServer
from doubles.moved_cluster import move_cluster
from quorumbook.errors import MetadataUnavailableError
from quorumbook.metadata.bookies.registration import BookieRegistration
from quorumbook.metadata.uri import open_store
from quorumbook.testing import LocalCluster

pytestmark = pytest.mark.faults


@pytest.fixture
def etcd(tmp_path):
    directory = tmp_path / "etcd"
    directory.mkdir()
    server = EtcdServer(directory)
    yield server
    server.kill()


@pytest.fixture
async def open_etcd(etcd):
    async with contextlib.AsyncExitStack() as stack:

        async def open_one(**options):
            store = await open_store(etcd.uri(), **options)
            stack.push_async_callback(store.close)
            return store

        yield open_one


async def rung(event):
    await asyncio.wait_for(event.wait(), 60)


async def test_a_store_outlives_a_crash_of_etcd(etcd, open_etcd):
    """Its session, its ephemeral nodes and its watches with it."""
    store, other = await open_etcd(), await open_etcd()
    told = asyncio.Event()
    store.on_session_expired(told.set)
    await store.create("/a", b"1")
    await store.create("/e", ephemeral=True)
    events = [asyncio.Event() for _ in range(2)]
    await store.get("/a", events[0].set)
    await store.children("/", events[1].set)
    session_id = store.session_id
    etcd.kill()
    writing = [asyncio.ensure_future(other.set("/a", b"%d" % number)) for number in range(50)]
    await asyncio.sleep(0)
    etcd.start()
    assert await asyncio.gather(*writing) == list(range(1, 51))
    await other.create("/b")
    for event in events:
        await rung(event)
    assert (await store.get("/e")).owner == session_id == store.session_id
    await store.create("/c", ephemeral=True)
    assert not told.is_set()


async def test_every_write_that_was_answered_outlives_crashes_and_none_is_done_twice(
    etcd, open_etcd
):
    store = await open_etcd()
    await store.create("/counter", b"0")
    for _ in range(4):
        writing = [asyncio.ensure_future(store.create("/n-", sequential=True)) for _ in range(300)]
        await writing[0]
        await asyncio.to_thread(etcd.kill)
        await asyncio.to_thread(etcd.start)
        await asyncio.gather(*writing)
    names = await store.children("/")
    assert names == ["counter", *(f"n-{number:010d}" for number in range(1, 1201))]


async def test_an_etcd_that_is_away_for_longer_than_patience_ends_no_session(
    etcd, open_etcd, monkeypatch
):
    monkeypatch.setattr("quorumbook.metadata.etcd.store._PATIENCE_S", 0.5)
    store = await open_etcd(session_timeout_s=30)
    told = asyncio.Event()
    store.on_session_expired(told.set)
    await store.create("/e", ephemeral=True)
    etcd.kill()
    for _ in range(2):
        with pytest.raises(MetadataUnavailableError):
            await store.set("/e", b"")
    etcd.start()
    assert await store.exists("/e") is not None
    assert not told.is_set()


async def test_an_etcd_that_hangs_is_not_waited_for_without_end(etcd, open_etcd, monkeypatch):
    monkeypatch.setattr("quorumbook.metadata.etcd.store._PATIENCE_S", 0.5)
    store = await open_etcd(session_timeout_s=30)
    await store.create("/a")
    etcd.pause()
    try:
        with pytest.raises(MetadataUnavailableError):
            await store.set("/a", b"1")
    finally:
        etcd.go_on()
    # What had no answer may have happened; it happened once at most.
    assert (await store.get("/a")).version in (0, 1)


async def test_a_session_that_ended_while_etcd_was_away_is_told_and_its_bookie_comes_back(
    etcd, open_etcd
):
    from quorumbook.metadata.bookies.service_info import BookieServiceInfo
    from quorumbook.metadata.cluster import init_cluster

    store, other = await open_etcd(session_timeout_s=1), await open_etcd()
    await init_cluster(store)
    registration = BookieRegistration(store)
    changes = asyncio.Queue()
    await registration.register("b:1", BookieServiceInfo(()))
    registration.on_changed = changes.put_nowait
    first = store.session_id
    etcd.kill()
    etcd.start()
    etcd.call("lease/revoke", ID=first)
    assert [await asyncio.wait_for(changes.get(), 60) for _ in range(2)] == [False, True]
    assert store.session_id != first
    assert (await BookieRegistration(other).bookies()).writable == {"b:1"}
    await registration.close()


async def test_a_cluster_on_etcd_writes_on_while_etcd_is_away_and_goes_on_afterwards(etcd):
    async with LocalCluster(bookies=4, processes=True) as cluster:
        async with cluster.connect() as bk:
            async with bk.create_ledger() as ledger:
                await ledger.append(b"before the move")
        await move_cluster(cluster, etcd.uri())
        async with cluster.connect() as bk:
            writer = await bk.create_ledger()
            await writer.append(b"0")
            etcd.kill()
            # Nothing on the way of an entry asks for metadata.
            for number in range(1, 200):
                await writer.append(b"%d" % number)
            etcd.start()
            # A change of the ensemble, a close, a new ledger and a recovery do.
            await cluster.kill(writer.metadata.ensemble[0])
            count = 200
            async with asyncio.timeout(60):
                while len(writer.metadata.fragments) == 1:
                    await writer.append(b"%d" % count)
                    count += 1
            await writer.close()
            unclosed = await bk.create_ledger()
            await unclosed.append(b"acknowledged")
            await unclosed.abort()
        async with cluster.connect() as bk:
            for ledger_id, payloads in {
                ledger.id: [b"before the move"],
                writer.id: [b"%d" % number for number in range(count)],
                unclosed.id: [b"acknowledged"],
            }.items():
                async with bk.open_ledger(ledger_id) as reader:
                    assert [entry.payload async for entry in reader.read()] == payloads
