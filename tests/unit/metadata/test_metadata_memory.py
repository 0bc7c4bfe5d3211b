"""The memory store's own promises: leases on its clock, use from several threads."""

from __future__ import annotations

import asyncio
import threading

import pytest

from quorumbook.errors import MetadataVersionConflict, SessionExpiredError
from quorumbook.metadata.memory import forget_memory_tree
from quorumbook.metadata.uri import open_store


async def test_r31_a_part_paused_beyond_its_lease_is_refused_at_its_next_write(open_memory, clock):
    store = await open_memory(session_timeout_s=10)
    other = await open_memory(session_timeout_s=1000)
    await store.create("/e", ephemeral=True)
    clock.advance(10)
    assert await other.exists("/e") is None
    with pytest.raises(SessionExpiredError):
        await store.create("/a")


async def test_r31_a_heartbeat_never_revives_a_session(open_memory, clock):
    store = await open_memory(session_timeout_s=10)
    clock.advance(10)
    # A heartbeat at a time of our own.
    store._heartbeat.cancel()
    store._beat()
    with pytest.raises(SessionExpiredError):
        await store.create("/a")


async def test_a_heartbeat_extends_the_lease(open_memory, clock):
    store = await open_memory(session_timeout_s=10)
    for _ in range(5):
        clock.advance(9)
        # A heartbeat at a time of our own.
        store._heartbeat.cancel()
        store._beat()
    await store.create("/a")


async def test_heartbeats_come_by_themselves():
    store = await open_store("memory://beats", session_timeout_s=0.3)
    # A heartbeat at a time of our own.
    tree = store._shared
    first = tree._sessions[store.session_id].lease_end_ns
    async with asyncio.timeout(60):
        # A heartbeat at a time of our own.
        while tree._sessions[store.session_id].lease_end_ns == first:
            await asyncio.sleep(0.01)
    await store.close()
    forget_memory_tree("beats")


async def test_an_operation_does_not_happen_in_the_step_that_asks_for_it(store):
    task = asyncio.ensure_future(store.create("/a"))
    await asyncio.sleep(0)
    assert not task.done()
    assert await task == "/a"


def test_loops_of_several_threads_share_a_tree():
    errors = []
    rung = []

    async def count(number):
        store = await open_store("memory://threads")
        try:
            done = 0
            while done < 100:
                node = await store.get("/counter", lambda: rung.append(number))
                try:
                    await store.set("/counter", b"%d" % (int(node.data) + 1), node.version)
                    done += 1
                except MetadataVersionConflict:
                    pass
        finally:
            await store.close()

    async def prepare():
        store = await open_store("memory://threads")
        await store.create("/counter", b"0")
        await store.close()

    async def look():
        store = await open_store("memory://threads")
        node = await store.get("/counter")
        await store.close()
        return node.data

    def run(number):
        try:
            asyncio.run(count(number))
        except BaseException as error:
            errors.append(error)

    asyncio.run(prepare())
    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert asyncio.run(look()) == b"300"
    assert set(rung) == {0, 1, 2}
    forget_memory_tree("threads")


def test_a_loop_that_is_gone_does_not_disturb_the_others():
    async def leave():
        store = await open_store("memory://gone")
        await store.create("/a")
        await store.get("/a", lambda: None)
        store.on_session_expired(lambda: None)

    async def change():
        store = await open_store("memory://gone")
        await store.set("/a", b"")
        await store.close()

    asyncio.run(leave())
    asyncio.run(change())
    forget_memory_tree("gone")
