"""ZooKeeper killed, its leader killed, sessions ended: what stores and clusters make of it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from doubles.zookeeper import end_session, fresh_root, start_ensemble, start_zookeeper
from doubles.zookeeper_proxy import nonsense
from quorumbook.errors import MetadataError, MetadataUnavailableError, SessionExpiredError
from quorumbook.metadata.bookies.registration import BookieRegistration
from quorumbook.metadata.uri import open_store
from quorumbook.testing import LocalCluster

PROCESS = Path(__file__).with_name("metadata_process.py")


@pytest.fixture
def own_zookeeper(zookeeper_classpath, tmp_path):
    """Return a server that may be killed."""
    server = start_zookeeper(str(tmp_path / "zookeeper"), zookeeper_classpath)
    yield server
    server.kill()


@pytest.fixture
def ensemble(zookeeper_classpath, tmp_path):
    servers = start_ensemble(str(tmp_path / "ensemble"), zookeeper_classpath)
    yield servers
    for server in servers:
        server.kill()


def uri_of(*servers, root="/ledgers"):
    return f"zk://{','.join(server.address for server in servers)}{root}"


async def restart(server):
    server.start()
    await asyncio.to_thread(server.wait_ready)


async def gone(store, path):
    async with asyncio.timeout(60):
        while True:
            event = asyncio.Event()
            if await store.exists(path, event.set) is None:
                return
            await event.wait()


async def insist(operation):
    """Do what the store may not be able to do for a while."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await operation()
            except MetadataUnavailableError:
                await asyncio.sleep(0.05)


async def test_a_server_that_was_killed_and_comes_back_has_ended_no_session(own_zookeeper):
    store = await open_store(uri_of(own_zookeeper), session_timeout_s=30)
    other = await open_store(uri_of(own_zookeeper), session_timeout_s=30)
    told = []
    store.on_session_expired(lambda: told.append("expired"))
    await store.create("/e", ephemeral=True)
    await store.create("/a", b"old")
    rung = asyncio.Event()
    await other.get("/a", rung.set)
    before = store.session_id
    own_zookeeper.kill()
    waiting = asyncio.ensure_future(store.set("/a", b"new", 0))
    await restart(own_zookeeper)
    assert await waiting == 1
    await asyncio.wait_for(rung.wait(), 20)
    assert (await other.get("/e")).owner == before == await store.renew_session()
    assert told == []
    await store.close()
    await gone(other, "/e")
    await other.close()


async def test_while_the_server_is_away_operations_fail_after_a_session_timeout(own_zookeeper):
    store = await open_store(uri_of(own_zookeeper), session_timeout_s=0.5)
    own_zookeeper.kill()
    for operation in (store.get("/"), store.create("/a"), store.renew_session()):
        with pytest.raises(MetadataUnavailableError, match="no ZooKeeper at"):
            await operation
    await restart(own_zookeeper)
    assert await insist(lambda: store.children("/")) == ["zookeeper"]
    await store.close()


async def test_a_server_that_freezes_is_left_and_found_again(own_zookeeper):
    store = await open_store(uri_of(own_zookeeper), session_timeout_s=1)
    own_zookeeper.pause()
    with pytest.raises(MetadataUnavailableError, match="no ZooKeeper at"):
        await store.create("/a")
    own_zookeeper.resume()
    assert await insist(lambda: store.children("/"))
    await store.close()


async def test_an_ensemble_whose_leader_is_killed_goes_on_with_all_sessions(ensemble):
    stores = [await open_store(uri_of(*ensemble), session_timeout_s=30) for _ in range(6)]
    for number, store in enumerate(stores):
        await store.create(f"/e{number}", ephemeral=True)
    await stores[0].create("/counter", b"0")
    leader = next(server for server in ensemble if server.mode() == "leader")
    increments = [asyncio.ensure_future(count_up(store)) for store in stores]
    leader.kill()
    done = await asyncio.gather(*increments)
    # A server may be behind what another one has acknowledged, but not behind a write through it.
    await insist(lambda: stores[0].create("/behind-all", sequential=True))
    node = await stores[0].get("/counter")
    assert node.version == int(node.data) >= sum(done)
    for number, store in enumerate(stores):
        assert (await store.get(f"/e{number}")).owner == store.session_id
    await restart(leader)
    for store in stores:
        await store.close()


async def count_up(store):
    """Increment twenty times; return how often it is known to have happened."""
    done = 0
    async with asyncio.timeout(90):
        while done < 20:
            try:
                node = await store.get("/counter")
                await store.set("/counter", b"%d" % (int(node.data) + 1), node.version)
                done += 1
            except MetadataError:
                await asyncio.sleep(0)
    return done


async def test_r31_a_paused_process_loses_its_zookeeper_session_and_is_told_before_it_writes(
    zookeeper,
):
    root = fresh_root()
    plain = await open_store(f"zk://{zookeeper.address}/ledgers")
    await plain.create(root)
    uri = f"zk://{zookeeper.address}/ledgers?chroot={root}"
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(PROCESS), "hold", uri, "0.5",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip

    async def line():
        return (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip()

    try:
        session_id = int(await line())
        assert (await plain.get(f"{root}/held")).owner == session_id
        os.kill(process.pid, signal.SIGSTOP)
        await gone(plain, f"{root}/held")
        os.kill(process.pid, signal.SIGCONT)
        process.stdin.write(b"/after\n")
        assert await line() == "expired"
        assert await line() == "SessionExpiredError"
        process.stdin.write(b"renew\n/after\n")
        assert int(await line()) != session_id
        assert await line() == "created"
        process.stdin.close()
        await process.wait()
        assert await plain.children(root) == []
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await plain.close()


async def test_writes_under_way_when_the_session_ends_are_told_so(zookeeper):
    root = fresh_root()
    store = await open_store(f"zk://{zookeeper.address}/ledgers")
    await store.create(root)
    writes = [
        asyncio.ensure_future(store.create(f"{root}/e{number}", ephemeral=True))
        for number in range(200)
    ]
    await writes[20]
    await end_session(store)
    results = await asyncio.gather(*writes, return_exceptions=True)
    failed = [each for each in results if isinstance(each, Exception)]
    assert all(isinstance(each, SessionExpiredError) for each in failed)
    assert await store.children(root) == []
    await store.close()


# Clusters


@pytest.fixture
def opened(monkeypatch):
    """Return the stores that clusters open, in this order."""
    stores = []

    async def open_and_keep(*arguments, **options):
        stores.append(await open_store(*arguments, **options))
        return stores[-1]

    monkeypatch.setattr("quorumbook.testing.open_store", open_and_keep)
    return stores


@pytest.fixture
async def on_own_zookeeper(own_zookeeper, opened):
    async with LocalCluster(bookies=3, metadata_uri=uri_of(own_zookeeper)) as cluster:
        yield cluster


async def all_registered(store, ids):
    async with asyncio.timeout(60):
        while True:
            changed = asyncio.Event()
            if (await BookieRegistration(store).bookies(changed.set)).writable == ids:
                return
            await changed.wait()


async def test_adds_go_on_while_zookeeper_is_away_and_everything_is_there_afterwards(
    on_own_zookeeper, own_zookeeper
):
    async with on_own_zookeeper.connect() as bk:
        writer = await bk.create_ledger()
        await writer.append(b"before")
        own_zookeeper.kill()
        for number in range(100):
            await writer.append(b"%d" % number)
        await restart(own_zookeeper)
        await insist(writer.close)
        async with bk.open_ledger(writer.id) as reader:
            assert reader.last_add_confirmed == 100
        store = await open_store(on_own_zookeeper.metadata_uri)
        await all_registered(store, frozenset(on_own_zookeeper.bookie_ids))
        await store.close()


async def test_r31_bookies_whose_zookeeper_sessions_were_ended_come_back_under_their_ids(
    on_own_zookeeper, opened
):
    ids = frozenset(on_own_zookeeper.bookie_ids)
    store = await open_store(on_own_zookeeper.metadata_uri)
    before = {each: await store.get(f"/ledgers/available/{each}") for each in ids}
    for bookie_store in opened[-len(ids) :]:
        await end_session(bookie_store)
    await all_registered(store, ids)
    for each in ids:
        node = await store.get(f"/ledgers/available/{each}")
        assert node.owner != before[each].owner
        assert node.data == before[each].data
    await store.close()


@pytest.mark.parametrize(
    ("hosts", "says"),
    [
        ("127.0.0.1:1", "nobody listens at 127.0.0.1:1"),
        ("localhost:1", "nobody listens at localhost:1"),
        ("127.0.0.1:1,127.0.0.1:2,localhost:3", "nobody listens at"),
        ("no-such-host.invalid:2181", "no-such-host.invalid:2181: "),
    ],
)
async def test_where_nobody_ever_listened_that_is_said_at_once(hosts, says):
    async with asyncio.timeout(100):
        with pytest.raises(MetadataUnavailableError, match=f"no ZooKeeper at .*{says}") as caught:
            await open_store(f"zk://{hosts}/ledgers", session_timeout_s=3600)
    assert "\n" not in str(caught.value)


async def test_a_server_that_may_yet_answer_is_waited_for(zookeeper):
    async with nonsense(b"") as silent:
        hosts = f"127.0.0.1:1,127.0.0.1:{silent}"
        with pytest.raises(MetadataUnavailableError, match="does not answer within"):
            await open_store(f"zk://{hosts}/ledgers", session_timeout_s=0.5)


async def test_a_store_that_was_connected_waits_for_its_server_to_come_back(own_zookeeper):
    store = await open_store(uri_of(own_zookeeper), session_timeout_s=30)
    own_zookeeper.kill()
    reads = [asyncio.ensure_future(store.children("/")) for _ in range(3)]
    await restart(own_zookeeper)
    assert await asyncio.gather(*reads) == [["zookeeper"]] * 3
    await store.close()


async def test_a_name_with_several_addresses_is_absent_at_all_of_them(monkeypatch):
    resolved = [(2, 1, 6, "", (f"127.0.0.{number}", 1)) for number in (1, 2)]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_words, **_options: resolved)
    async with asyncio.timeout(100):
        with pytest.raises(MetadataUnavailableError, match="nobody listens at zk-test:2181"):
            await open_store("zk://zk-test/ledgers", session_timeout_s=3600)
