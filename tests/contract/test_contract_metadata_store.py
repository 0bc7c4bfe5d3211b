"""What every metadata store promises about nodes and operations, over all drivers."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from metadata_bells import Bell, settle

from quorumbook.errors import (
    LocalProtocolError,
    MetadataVersionConflict,
    NodeExistsError,
    NodeNotEmptyError,
    NoSuchNodeError,
)
from quorumbook.metadata.store import MAX_DATA_SIZE_BYTES, Check, Create, Delete, Set

# Nodes


async def test_the_root_exists_and_is_empty(store):
    assert await store.children("/") == []
    assert (await store.get("/")).data == b""


async def test_a_created_node_has_its_data_and_version_zero(store):
    assert await store.create("/a", b"data") == "/a"
    node = await store.get("/a")
    assert (node.data, node.version, node.child_version, node.children_count) == (b"data", 0, 0, 0)
    assert node.owner == 0
    assert not node.is_ephemeral
    assert node.ctime_ms == node.mtime_ms > 0


async def test_a_node_is_created_once(store):
    await store.create("/a", b"first")
    with pytest.raises(NodeExistsError):
        await store.create("/a", b"second")
    assert (await store.get("/a")).data == b"first"
    with pytest.raises(NodeExistsError):
        await store.create("/")


@pytest.mark.parametrize("name", ["set", "delete", "check"])
async def test_an_operation_that_names_its_node_leaves_one_made_after_it_alone(store, name):
    await store.create("/a", b"first")
    first = (await store.get("/a")).creation_id
    await store.delete("/a")
    await store.create("/a", b"second")
    second = (await store.get("/a")).creation_id
    assert second > first

    async def write(creation_id):
        await {
            "set": lambda: store.set("/a", b"mine", 0, creation_id=creation_id),
            "delete": lambda: store.delete("/a", 0, creation_id=creation_id),
            "check": lambda: store.multi(
                [Check("/a", 0, creation_id), Set("/a", b"mine", 0, creation_id)]
            ),
        }[name]()

    with pytest.raises(MetadataVersionConflict, match="made again"):
        await write(first)
    assert (await store.get("/a")).data == b"second"
    await write(second)
    node = await store.exists("/a")
    assert node is None if name == "delete" else (node.data, node.version) == (b"mine", 1)
    if name == "delete":
        with pytest.raises(NoSuchNodeError):
            await write(second)


async def test_a_parent_must_exist(store):
    with pytest.raises(NoSuchNodeError):
        await store.create("/a/b")
    assert await store.exists("/a") is None


async def test_a_missing_node_is_told_apart_from_an_empty_one(store):
    assert await store.exists("/a") is None
    for operation in (store.get("/a"), store.children("/a"), store.delete("/a")):
        with pytest.raises(NoSuchNodeError):
            await operation
    with pytest.raises(NoSuchNodeError):
        await store.set("/a", b"")


async def test_set_raises_the_version_by_one(store):
    await store.create("/a")
    assert await store.set("/a", b"1") == 1
    assert await store.set("/a", b"2", 1) == 2
    node = await store.get("/a")
    assert (node.data, node.version) == (b"2", 2)


async def test_set_and_delete_refuse_another_version_and_change_nothing(store):
    await store.create("/a", b"0")
    await store.set("/a", b"1")
    for version in (0, 2):
        with pytest.raises(MetadataVersionConflict):
            await store.set("/a", b"x", version)
        with pytest.raises(MetadataVersionConflict):
            await store.delete("/a", version)
    assert (await store.get("/a")).data == b"1"
    await store.delete("/a", 1)
    assert await store.exists("/a") is None


async def test_a_node_with_children_is_not_deleted(store):
    await store.create("/a")
    await store.create("/a/b")
    with pytest.raises(NodeNotEmptyError):
        await store.delete("/a")
    await store.delete("/a/b")
    await store.delete("/a")


async def test_the_root_is_not_deleted(store):
    with pytest.raises(LocalProtocolError):
        await store.delete("/")


async def test_children_are_sorted_and_direct(store):
    await store.create("/a")
    for name in ("b", "a", "B", "10", "9"):
        await store.create(f"/a/{name}")
    await store.create("/a/b/deep")
    await store.create("/ab")
    assert await store.children("/a") == ["10", "9", "B", "a", "b"]
    assert await store.children("/") == ["a", "ab"]


async def test_the_child_version_counts_creations_and_deletions(store):
    await store.create("/a")
    await store.create("/a/b")
    await store.create("/a/c")
    await store.delete("/a/b")
    await store.set("/a/c", b"not counted")
    node = await store.get("/a")
    assert (node.child_version, node.children_count, node.version) == (3, 1, 0)


async def test_a_node_created_again_has_a_larger_creation_id_and_version_zero(store):
    await store.create("/a")
    await store.set("/a", b"")
    first = await store.get("/a")
    await store.delete("/a")
    await store.create("/a")
    second = await store.get("/a")
    assert second.creation_id > first.creation_id
    assert second.version == 0


async def test_data_may_be_any_bytes_up_to_the_limit(store):
    data = bytes(range(256)) * 4 + b"\0" * (MAX_DATA_SIZE_BYTES - 1024)
    await store.create("/a", data)
    assert (await store.get("/a")).data == data
    with pytest.raises(LocalProtocolError):
        await store.set("/a", data + b"x")
    with pytest.raises(LocalProtocolError):
        await store.create("/b", data + b"x")


async def test_names_may_be_any_text(driver, store):
    for name in ("127.0.0.1:3181", "a b", "%", "_", "*?[", "'; --", driver.strange_name):
        await store.create(f"/{name}", name.encode())
        assert (await store.get(f"/{name}")).data == name.encode()


@pytest.mark.parametrize("path", ["", "a", "//", "/a/", "/a//b", "/.", "/a/../b", "/a\0"])
async def test_a_path_that_is_not_absolute_and_clean_is_refused(store, path):
    for operation in (store.create(path), store.get(path), store.exists(path), store.delete(path)):
        with pytest.raises(LocalProtocolError):
            await operation


# Sequential nodes


async def test_sequential_names_count_all_children_ever_created(store):
    await store.create("/a")
    assert await store.create("/a/x-", sequential=True) == "/a/x-0000000000"
    await store.delete("/a/x-0000000000")
    await store.create("/a/plain")
    assert await store.create("/a/y-", sequential=True) == "/a/y-0000000002"
    assert await store.create("/a/", sequential=True) == "/a/0000000003"


# ZooKeeper's own server does this; nothing from outside sets its counter.
@pytest.mark.parametrize("driver", ["etcd", "memory", "sqlite"], indirect=True)
async def test_sequential_names_wrap_around_as_signed_32_bits(driver, store):
    await store.create("/a")
    await driver.set_counter("/a", 2**31 - 1)
    assert await store.create("/a/x-", sequential=True) == "/a/x-2147483647"
    assert await store.create("/a/x-", sequential=True) == "/a/x--2147483648"


async def test_sequential_names_of_two_sessions_differ(store, other):
    await store.create("/a")
    creations = [
        each.create("/a/x-", sequential=True) for _ in range(20) for each in (store, other)
    ]
    paths = await asyncio.gather(*creations)
    assert len(set(paths)) == 40
    assert await store.children("/a") == [f"x-{number:010d}" for number in range(40)]


# Replace and multi


async def test_replace_makes_a_new_node_in_one_step(store):
    await store.create("/a", b"old")
    await store.set("/a", b"older")
    before = await store.get("/a")
    await store.replace("/a", b"new", ephemeral=True)
    after = await store.get("/a")
    assert (after.data, after.version, after.owner) == (b"new", 0, store.session_id)
    assert after.creation_id > before.creation_id


async def test_replace_of_a_missing_node_creates_it(store):
    await store.replace("/a", b"new", ephemeral=False)
    assert (await store.get("/a")).owner == 0


async def test_replace_refuses_a_node_with_children(store):
    await store.create("/a", b"old")
    await store.create("/a/b")
    with pytest.raises(NodeNotEmptyError):
        await store.replace("/a", b"new", ephemeral=False)
    assert (await store.get("/a")).data == b"old"


async def test_a_replaced_node_does_not_go_with_its_former_session(driver, store, other):
    await store.create("/a", b"old", ephemeral=True)
    await other.replace("/a", b"new", ephemeral=True)
    await store.close()
    assert (await other.get("/a")).data == b"new"


async def test_multi_carries_out_all_operations_in_order(store):
    await store.create("/a")
    results = await store.multi(
        [
            Create("/b", b"b"),
            Create("/b/c-", sequential=True),
            Set("/b", b"B", 0),
            Check("/b", 1),
            Delete("/a", 0),
            Create("/a", ephemeral=True),
        ]
    )
    assert results == ["/b", "/b/c-0000000000", 1, None, None, "/a"]
    assert await store.children("/b") == ["c-0000000000"]
    assert (await store.get("/a")).owner == store.session_id


@pytest.mark.parametrize(
    ("last", "error"),
    [
        (Create("/a"), NodeExistsError),
        (Create("/x/y"), NoSuchNodeError),
        (Set("/a", b"", 7), MetadataVersionConflict),
        (Delete("/a", 7), MetadataVersionConflict),
        (Delete("/missing"), NoSuchNodeError),
        (Check("/a", 7), MetadataVersionConflict),
        (Check("/missing"), NoSuchNodeError),
    ],
)
async def test_multi_does_nothing_if_one_operation_fails(store, other, last, error):
    await store.create("/a", b"old")
    await store.create("/gone")
    before = await store.get("/")
    with pytest.raises(error):
        await store.multi([Create("/b"), Set("/a", b"new"), Delete("/gone"), last])
    for each in (store, other):
        assert await each.children("/") == ["a", "gone"]
        assert (await each.get("/a")).data == b"old"
        assert await each.get("/") == before


async def test_multi_rings_no_watch_if_it_fails(driver, store):
    await store.create("/a")
    bell = Bell()
    await store.get("/a", bell)
    with pytest.raises(NodeExistsError):
        await store.multi([Set("/a", b"new"), Create("/a")])
    await settle(driver, store)
    assert bell.count == 0


async def test_multi_states_its_limit(store):
    assert await store.multi([]) == []
    await store.multi([Create(f"/n{number}") for number in range(100)])
    with pytest.raises(LocalProtocolError):
        await store.multi([Check("/")] * (store.multi_limit + 1))


# Together


async def test_a_store_reads_what_it_wrote(store):
    await store.create("/a")
    for number in range(50):
        await store.set("/a", b"%d" % number)
        assert (await store.get("/a")).data == b"%d" % number


async def test_many_nodes_are_read_at_once_and_none_stands_for_one_that_is_not_there(store):
    for number in range(0, 300, 2):
        await store.create(f"/n{number}", b"%d" % number)
    nodes = await store.get_many([f"/n{number}" for number in reversed(range(300))])
    assert nodes[1::2] == [await store.get(f"/n{number}") for number in range(298, -1, -2)]
    assert nodes[::2] == [None] * 150
    assert await store.get_many([]) == []


async def test_operations_of_one_store_happen_in_the_order_asked_for(store):
    results = await asyncio.gather(
        store.create("/a"),
        *(store.set("/a", b"%d" % number, number) for number in range(50)),
        store.get("/a"),
    )
    assert results[1:-1] == list(range(1, 51))
    assert results[-1].data == b"49"


async def test_a_failing_operation_does_not_disturb_its_neighbours(store):
    results = await asyncio.gather(
        store.create("/a"),
        store.create("/a"),
        store.create("/missing/b"),
        store.set("/a", b"kept"),
        return_exceptions=True,
    )
    assert results[0] == "/a"
    assert isinstance(results[1], NodeExistsError)
    assert isinstance(results[2], NoSuchNodeError)
    assert results[3] == 1
    assert (await store.get("/a")).data == b"kept"


async def test_compare_and_set_loses_no_increment(driver, store):
    await store.create("/counter", b"0")

    async def increment():
        each = await driver.open()
        done = 0
        while done < 10:
            node = await each.get("/counter")
            with contextlib.suppress(MetadataVersionConflict):
                await each.set("/counter", b"%d" % (int(node.data) + 1), node.version)
                done += 1

    await asyncio.gather(*(increment() for _ in range(4)))
    node = await store.get("/counter")
    assert (node.data, node.version) == (b"40", 40)


async def test_a_cancelled_operation_leaves_the_store_usable(store):
    task = asyncio.ensure_future(store.create("/a"))
    await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await store.create("/b")
    assert "b" in await store.children("/")


async def test_a_closed_store_says_so_and_may_be_closed_again(store):
    await store.close()
    await store.close()
    for operation in (store.get("/"), store.create("/a"), store.renew_session()):
        with pytest.raises(LocalProtocolError, match="closed"):
            await operation


async def test_a_closed_store_rings_no_watch(driver, store, other):
    bell, told = Bell(), Bell()
    await store.create("/e", ephemeral=True)
    await store.exists("/e", bell)
    store.on_session_expired(told)
    await store.close()
    await settle(driver, other)
    assert bell.count == told.count == 0


async def test_what_was_written_outlives_its_session(driver, store):
    await store.create("/a", b"kept")
    await store.close()
    again = await driver.open()
    assert (await again.get("/a")).data == b"kept"
