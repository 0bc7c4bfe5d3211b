"""Making a cluster, and the tree that a cluster has, against the peer's own."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from quorumbook.errors import (
    ClusterExistsError,
    ClusterNotInitializedError,
    MetadataFormatError,
    SessionExpiredError,
)
from quorumbook.ledger.metadata import LedgerMetadata, LedgerState
from quorumbook.ledger.metadata_format import decode
from quorumbook.metadata.bookies.cookies import Cookie, CookieStore
from quorumbook.metadata.bookies.registration import BookieRegistration, BookieServiceInfo
from quorumbook.metadata.cluster import Layout, init_cluster, read_instance_id, read_layout
from quorumbook.metadata.ids import LedgerIdGenerator
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.nodes import create_with_parents
from quorumbook.metadata.paths import LayoutKind, TreePaths

GOLDEN = Path(__file__).parents[2] / "golden"
LAYOUTS = json.loads((GOLDEN / "zookeeper.json").read_text())["layouts"]
LIVE = {
    name: json.loads((GOLDEN / f"live_zookeeper_{name}.json").read_text())
    for name in ("db", "sorted")
}


async def dump(store, path="/ledgers"):
    """Return the tree as the recordings have it."""
    node = await store.get(path)
    nodes = [(path, node.is_ephemeral, node.data, node.version)]
    for name in await store.children(path):
        nodes += await dump(store, f"{path}/{name}")
    return sorted(nodes)


def recorded(nodes):
    return sorted(
        (
            node["path"],
            node["ephemeral"],
            node["data_utf8"].encode()
            if node["data_hex"] is None
            else bytes.fromhex(node["data_hex"]),
            node["version"],
        )
        for node in nodes
    )


def data_of(nodes, path):
    return next(data for name, _, data, _ in recorded(nodes) if name.startswith(path))


@pytest.mark.parametrize("live", LIVE.values(), ids=LIVE)
async def test_a_new_cluster_is_the_peers_node_for_node(store, live):
    nodes = live["after_initnewcluster"]
    instance_id = data_of(nodes, "/ledgers/INSTANCEID").decode()
    assert await init_cluster(store, instance_id=instance_id) == instance_id
    assert await dump(store) == recorded(nodes)


async def start_bookie(store, nodes):
    """Do what a bookie does to the tree when it starts; return the registration."""
    cookie = Cookie.decode(data_of(nodes, "/ledgers/cookies/"))
    await CookieStore(store).write(
        Cookie(
            cookie.bookie_id,
            ("/DATA/journal",),
            ("/DATA/ledgers",),
            instance_id=await read_instance_id(store),
        )
    )
    host, port = cookie.bookie_id.split(":")
    registration = BookieRegistration(store)
    await registration.register(cookie.bookie_id, BookieServiceInfo.of_bookie(host, int(port)))
    return registration


@pytest.mark.parametrize("live", LIVE.values(), ids=LIVE)
async def test_a_started_bookie_leaves_the_peers_tree_byte_for_byte(store, live):
    nodes = live["after_bookie_start"]
    await init_cluster(store, instance_id=data_of(nodes, "/ledgers/INSTANCEID").decode())
    registration = await start_bookie(store, nodes)
    assert await dump(store) == recorded(nodes)
    await registration.close()


async def write_up_to(manager, end, versions):
    """Create a ledger and write its metadata until the node has the recorded version."""
    opened = replace(end, state=LedgerState.OPEN, last_entry_id=-1, length=0, creator_token=None)
    _, version = await manager.create(opened)
    for number in range(1, versions + 1):
        version = await manager.write(end if number == versions else opened, version)


async def test_ledgers_leave_the_peers_tree_byte_for_byte(store):
    nodes = LIVE["db"]["at_end"]
    await init_cluster(store, instance_id=data_of(nodes, "/ledgers/INSTANCEID").decode())
    registration = await start_bookie(store, LIVE["db"]["after_bookie_start"])
    await registration.unregister()
    await registration.close()
    manager, generator = LedgerManager(store), LedgerIdGenerator(store)
    for expected_id in range(4):
        ledger_id = await generator.next_id()
        assert ledger_id == expected_id
        path = f"/ledgers/00/0000/L{ledger_id:04d}"
        found = [(data, version) for name, _, data, version in recorded(nodes) if name == path]
        if found:
            ((data, version),) = found
            await write_up_to(manager, decode(ledger_id, data), version)
        else:
            # Number 1 was deleted while the recording was made.
            metadata = decode(ledger_id, data_of(nodes, "/ledgers/00/0000/L0000"))
            await write_up_to(manager, metadata, 1)
            await manager.delete(ledger_id)
    await generator.close()
    assert await dump(store) == recorded(nodes)


@pytest.mark.parametrize("vector", LAYOUTS, ids=lambda vector: vector["factory"].split(".")[-1])
def test_layouts_are_the_peers(vector):
    data = bytes.fromhex(vector["hex"])
    layout = Layout.decode(data)
    assert layout.kind.factory == vector["factory"]
    assert layout.encode() == data


def test_every_layout_has_a_vector():
    assert {Layout.decode(bytes.fromhex(each["hex"])).kind for each in LAYOUTS} == set(LayoutKind)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"2",
        b"3\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1",
        b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:2",
        b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory",
        b"2\norg.example.OtherFactory:1",
        b"\xff\xfe",
    ],
)
def test_another_layout_is_refused(data):
    with pytest.raises(MetadataFormatError):
        Layout.decode(data)


async def test_a_cluster_is_made_once(store):
    instance_id = await init_cluster(store)
    with pytest.raises(ClusterExistsError, match="already holds a cluster"):
        await init_cluster(store)
    assert await read_instance_id(store) == instance_id


async def test_a_root_with_nothing_below_it_is_no_cluster_and_one_with_something_is_not_touched(
    store,
):
    await create_with_parents(store, store.ledgers_root)
    instance_id = await init_cluster(store)
    assert await read_instance_id(store) == instance_id
    await store.delete(TreePaths(store.ledgers_root).layout)
    with pytest.raises(ClusterExistsError, match="already holds a cluster"):
        await init_cluster(store)
    assert await read_instance_id(store) == instance_id


async def test_a_cluster_is_made_in_one_step(store, monkeypatch):
    async def refuse(*_arguments, **_options):
        raise AssertionError("a second step")

    for step in ("create", "set", "replace"):
        monkeypatch.setattr(store, step, refuse)
    await init_cluster(store)
    assert await store.children("/ledgers") == ["INSTANCEID", "LAYOUT", "available"]


async def test_every_cluster_has_an_id_of_its_own(open_memory, tmp_path, env):
    store = await open_memory()
    first = await init_cluster(store)
    assert str(uuid.UUID(first)) == first
    assert uuid.UUID(first).version == 4
    for path in ("available/readonly", "available", "LAYOUT", "INSTANCEID"):
        await store.delete(f"/ledgers/{path}")
    await store.delete("/ledgers")
    assert await init_cluster(store) != first


async def test_a_cluster_may_have_another_layout_and_root(store):
    store.ledgers_root = "/bk/one"
    await init_cluster(store, layout=Layout(LayoutKind.FLAT))
    assert (await read_layout(store)).kind is LayoutKind.FLAT
    assert await store.children("/bk/one") == ["INSTANCEID", "LAYOUT", "available"]


async def test_a_store_without_a_cluster_says_how_to_make_one(store):
    for read in (read_layout, read_instance_id):
        with pytest.raises(ClusterNotInitializedError) as caught:
            await read(store)
        assert f"quorumbook cluster init --metadata {store.uri}" in str(caught.value)


async def test_s78_managers_refuse_a_store_without_a_cluster(store):
    registration = BookieRegistration(store)
    manager = LedgerManager(store)
    metadata = LedgerMetadata(
        ledger_id=0,
        ensemble_size=1,
        write_quorum_size=1,
        ack_quorum_size=1,
        fragments=decode(0, data_of(LIVE["db"]["at_end"], "/ledgers/00/0000/L0000")).fragments,
    )

    async def listed():
        return [each async for each in manager.list()]

    for operation in (
        registration.register("b:1", BookieServiceInfo.of_bookie("b", 1)),
        registration.bookies(),
        CookieStore(store).read("b:1"),
        CookieStore(store).write(Cookie("b:1", ("/j",), ("/l",))),
        CookieStore(store).list(),
        manager.create(metadata),
        manager.read(0),
        manager.exists(0),
        listed(),
        LedgerIdGenerator(store).next_id(),
    ):
        with pytest.raises(ClusterNotInitializedError):
            await operation
    assert await store.children("/") == []
    await registration.close()


async def test_a_session_that_is_over_makes_no_cluster(store, clock):
    clock.advance(100)
    with pytest.raises(SessionExpiredError):
        await init_cluster(store)
