"""What every metadata store promises about sessions and watches, over all drivers."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from metadata_bells import Bell, settle

from quorumbook.errors import LocalProtocolError, NoSuchNodeError, SessionExpiredError
from quorumbook.metadata.store import Create, Delete, Set

# Sessions and ephemeral nodes


async def test_an_ephemeral_node_belongs_to_its_session_and_goes_with_it(store, other):
    await store.create("/a")
    await store.create("/a/e", b"mine", ephemeral=True)
    await store.create("/a/s-", ephemeral=True, sequential=True)
    node = await other.get("/a/e")
    assert node.is_ephemeral
    assert node.owner == store.session_id != other.session_id
    await store.close()
    assert await other.children("/a") == []
    assert (await other.get("/a")).child_version == 4


async def test_an_ephemeral_node_has_no_children(store):
    await store.create("/e", ephemeral=True)
    with pytest.raises(LocalProtocolError):
        await store.create("/e/child")


async def test_everybody_may_set_and_delete_an_ephemeral_node(store, other):
    await store.create("/e", ephemeral=True)
    await other.set("/e", b"changed")
    assert (await store.get("/e")).owner == store.session_id
    await other.delete("/e")
    await store.create("/e", b"again", ephemeral=True)


async def test_a_session_whose_lease_is_over_loses_its_ephemeral_nodes(driver, store, other):
    await store.create("/a")
    await store.create("/a/e", ephemeral=True)
    await store.create("/a/p")
    bell = Bell()
    await other.children("/a", bell)
    await driver.end_lease(store)
    await bell.wait()
    assert await other.children("/a") == ["p"]


async def test_a_reader_is_never_shown_the_nodes_of_a_session_that_is_over(driver, store, other):
    await store.create("/e", ephemeral=True)
    await driver.end_lease(store)
    assert await other.exists("/e") is None


async def test_every_write_of_a_session_that_is_over_is_refused(driver, store, other):
    await store.create("/a", b"old")
    await driver.end_lease(store)
    for _ in range(2):
        for write in (
            store.create("/b"),
            store.set("/a", b"new"),
            store.delete("/a"),
            store.replace("/a", b"new", False),
            store.multi([Set("/a", b"new")]),
            store.multi([]),
        ):
            with pytest.raises(SessionExpiredError):
                await write
    assert (await other.get("/a")).data == b"old"
    assert await other.children("/") == ["a"]


async def test_reads_go_on_without_a_session(driver, store, other):
    await store.create("/a", b"old")
    await driver.end_lease(store)
    await other.set("/a", b"new")
    assert (await store.get("/a")).data == b"new"


async def test_the_end_of_a_session_is_told_before_the_error_it_causes(driver, store):
    told = []
    store.on_session_expired(lambda: told.append("expired"))
    await driver.end_lease(store)
    with contextlib.suppress(SessionExpiredError):
        await store.create("/a")
    assert told == ["expired"]
    with contextlib.suppress(SessionExpiredError):
        await store.create("/a")
    assert told == ["expired"]


async def test_the_end_of_a_session_is_told_without_a_write(driver, store):
    told = Bell()
    store.on_session_expired(told)
    other = await driver.open(session_timeout_s=0.3)
    other_told = Bell()
    other.on_session_expired(other_told)
    await driver.end_lease(other)
    await other_told.wait()
    assert told.count == 0


async def test_a_removed_callback_is_not_told(driver, store):
    told = Bell()
    store.on_session_expired(told)()
    await driver.end_lease(store)
    with contextlib.suppress(SessionExpiredError):
        await store.create("/a")
    assert told.count == 0


async def test_a_renewed_session_is_another_one(driver, store, other):
    await store.create("/e", ephemeral=True)
    before = store.session_id
    await driver.end_lease(store)
    assert await store.renew_session() == store.session_id != before
    assert await other.exists("/e") is None
    await store.create("/e", b"again", ephemeral=True)
    assert (await other.get("/e")).owner == store.session_id
    told = Bell()
    store.on_session_expired(told)
    await driver.end_lease(store)
    with pytest.raises(SessionExpiredError):
        await store.set("/e", b"x")
    assert told.count == 1


async def test_renewing_a_living_session_changes_nothing(store):
    await store.create("/e", ephemeral=True)
    before = store.session_id
    assert await store.renew_session() == before == store.session_id
    assert await store.exists("/e") is not None


# Watches


async def test_a_node_watch_rings_when_the_node_is_set(store, other):
    await store.create("/a")
    bell = Bell()
    await other.get("/a", bell)
    await store.set("/a", b"")
    await bell.wait()


async def test_a_node_watch_rings_when_the_node_is_deleted(store, other):
    await store.create("/a")
    bells = [Bell(), Bell()]
    await other.get("/a", bells[0])
    await other.exists("/a", bells[1])
    await store.delete("/a")
    for bell in bells:
        await bell.wait()


async def test_an_exists_watch_rings_when_the_node_is_created(store, other):
    bell = Bell()
    assert await other.exists("/a", bell) is None
    await store.create("/a")
    await bell.wait()


async def test_a_children_watch_rings_for_creation_and_deletion(store, other):
    await store.create("/a")
    for change in (store.create("/a/b"), store.delete("/a/b"), store.delete("/a")):
        bell = Bell()
        await other.children("/a", bell)
        await change
        await bell.wait()


async def test_own_changes_ring_too(store):
    await store.create("/a")
    bells = [Bell(), Bell()]
    await store.get("/a", bells[0])
    await store.children("/a", bells[1])
    await store.set("/a", b"")
    await store.create("/a/b")
    for bell in bells:
        await bell.wait()


async def test_a_watch_rings_once(driver, store, other):
    await store.create("/a")
    bell = Bell()
    await other.get("/a", bell)
    await store.set("/a", b"1")
    await bell.wait()
    await store.set("/a", b"2")
    await settle(driver, other)
    assert bell.count == 1


async def test_a_watch_left_twice_rings_once(driver, store, other):
    await store.create("/a")
    bell = Bell()
    await other.get("/a", bell)
    await other.get("/a", bell)
    await store.set("/a", b"1")
    await settle(driver, other)
    assert bell.count == 1


async def test_a_watch_is_not_rung_by_changes_of_something_else(driver, store, other):
    await store.create("/a")
    await store.create("/a/b")
    bells = [Bell(), Bell()]
    await other.get("/a", bells[0])
    await other.children("/a", bells[1])
    await store.create("/c")
    await store.set("/a/b", b"")
    await store.create("/a/b/deep")
    await settle(driver, other)
    assert [bell.count for bell in bells] == [0, 0]
    await store.set("/a", b"")
    await bells[0].wait()
    assert bells[1].count == 0


async def test_a_failed_read_leaves_no_watch(driver, store, other):
    bell = Bell()
    with pytest.raises(NoSuchNodeError):
        await other.get("/a", bell)
    with pytest.raises(NoSuchNodeError):
        await other.children("/a", bell)
    await store.create("/a")
    await settle(driver, other)
    assert bell.count == 0


async def test_a_node_deleted_and_created_again_in_between_is_noticed(store, other):
    await store.create("/a", b"same")
    await store.create("/p")
    await store.create("/p/c")
    bells = [Bell(), Bell()]
    await other.get("/a", bells[0])
    await other.children("/p", bells[1])
    await store.multi([Delete("/a"), Create("/a", b"same"), Delete("/p/c"), Create("/p/c")])
    for bell in bells:
        await bell.wait()


async def test_a_change_between_read_and_the_next_read_of_the_same_watch_is_not_missed(
    store, other
):
    await store.create("/a")
    bell = Bell()
    await other.get("/a", bell)
    await asyncio.gather(store.set("/a", b""), other.get("/a", bell), other.get("/a", bell))
    await bell.wait()


async def test_a_watch_that_fails_does_not_silence_the_others(store):
    def fail():
        raise RuntimeError("on purpose")

    await store.create("/a")
    bell = Bell()
    await store.get("/a", fail)
    await store.get("/a", bell)
    await store.set("/a", b"")
    await bell.wait()
    assert (await store.get("/a")).version == 1


async def test_an_unwatched_callback_does_not_ring(driver, store):
    await store.create("/a")
    bell, kept = Bell(), Bell()
    await store.get("/a", bell)
    await store.children("/a", bell)
    await store.get("/a", kept)
    store.unwatch(bell)
    await store.set("/a", b"")
    await store.create("/a/b")
    await kept.wait()
    await settle(driver, store)
    assert bell.count == 0


async def test_a_watch_rings_after_its_session_was_renewed(driver, store, other):
    await store.create("/a")
    bell = Bell()
    await store.get("/a", bell)
    await driver.end_lease(store)
    await store.renew_session()
    await other.set("/a", b"")
    await bell.wait()
