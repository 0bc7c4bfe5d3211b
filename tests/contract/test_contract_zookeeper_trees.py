"""What we write into a real ZooKeeper is what the peer writes, and what we are told of it."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from doubles.zookeeper import fresh_root
from quorumbook.errors import (
    ConfigError,
    CookieMismatchError,
    LedgerIdOverflowError,
    MetadataFormatError,
    MetadataUnauthorizedError,
    NoSuchLedgerInMetadataError,
)
from quorumbook.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from quorumbook.metadata.bookies.registration import BookieRegistration, BookieServiceInfo
from quorumbook.metadata.cluster import Layout, init_cluster, read_layout
from quorumbook.metadata.ids import LedgerIdGenerator
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.paths import LayoutKind
from quorumbook.metadata.store import Create
from quorumbook.metadata.uri import named_layout, open_store
from quorumbook.testing import LocalCluster

GOLDEN = Path(__file__).parents[1] / "golden"
PATHS = json.loads((GOLDEN / "zookeeper.json").read_text())["paths_relative_to_ledgers_root"]
LIVE = json.loads((GOLDEN / "live_zookeeper_db.json").read_text())
INSTANCE_ID = LIVE["after_initnewcluster"][1]["data_utf8"]


@pytest.fixture
def uri(zookeeper):
    """Return a URI whose root nobody uses, without the scheme."""
    return f"{zookeeper.address}{fresh_root()}/ledgers"


@pytest.fixture
def kazoo(zookeeper):
    client = KazooClient(zookeeper.address)
    client.start()
    yield client
    client.stop()
    client.close()


def ledger(ledger_id):
    return LedgerMetadata(
        ledger_id=ledger_id, ensemble_size=1, write_quorum_size=1, ack_quorum_size=1,
        fragments=(Fragment(0, ("a:1",)),), password=b"",
    )  # fmt: skip


def dump(kazoo, path):
    """Return a tree as the golden files have it."""
    data, stat = kazoo.get(path)
    found = [{"path": path, "data": data, "is_ephemeral": bool(stat.ephemeralOwner)}]
    for name in sorted(kazoo.get_children(path)):
        found += dump(kazoo, f"{path}/{name}")
    return found


def root_of(uri):
    return uri[uri.index("/") :]


def golden(nodes, root, **instead):
    """Return a golden tree under another root, with bytes that differ on every machine replaced."""
    found = []
    for node in nodes:
        data = node["data_utf8"].encode() if node["data_utf8"] else b""
        if node["data_hex"]:
            data = bytes.fromhex(node["data_hex"])
        path = root + node["path"].removeprefix("/ledgers")
        for old, new in instead.items():
            path = path.replace(old, new)
        found.append({"path": path, "data": data, "is_ephemeral": node["ephemeral"]})
    return sorted(found, key=lambda node: node["path"].split("/"))


async def test_a_new_cluster_is_the_peers_node_for_node(uri, kazoo):
    store = await open_store(f"zk://{uri}")
    await init_cluster(store, instance_id=INSTANCE_ID)
    await store.close()
    assert dump(kazoo, root_of(uri)) == golden(LIVE["after_initnewcluster"], root_of(uri))


async def test_a_bookie_registers_as_the_peers_does(uri, kazoo):
    async with LocalCluster(bookies=1, metadata_uri=f"zk://{uri}") as cluster:
        (bookie_id,) = cluster.bookie_ids
        ours = dump(kazoo, root_of(uri))
    instead = {"127.0.0.1:41041": bookie_id}
    theirs = golden(LIVE["after_bookie_start"], root_of(uri), **instead)
    # Ports, directories and ids differ; that their bytes are the peer's is tested elsewhere.
    assert [(node["path"], node["is_ephemeral"]) for node in ours] == [
        (node["path"], node["is_ephemeral"]) for node in theirs
    ]


@pytest.mark.parametrize("kind", LayoutKind, ids=lambda kind: kind.value)
async def test_ledgers_of_every_id_lie_where_the_peers_lie(uri, kazoo, kind):
    name = {LayoutKind.LEGACY_HIERARCHICAL: "legacy_hierarchical",
            LayoutKind.LONG_HIERARCHICAL: "long_hierarchical"}.get(kind, kind.value)  # fmt: skip
    store = await open_store(f"zk+{kind.value}://{uri}")
    await init_cluster(store, layout=Layout(named_layout(store.uri)))
    manager = LedgerManager(store)
    ids = []
    for vector in PATHS:
        ledger_id = vector["ledger_id"]
        try:
            await manager.create(ledger(ledger_id))
        except LedgerIdOverflowError:
            assert kind is LayoutKind.LEGACY_HIERARCHICAL
            continue
        ids.append(ledger_id)
        assert kazoo.exists(root_of(uri) + vector[name]) is not None
        metadata, version = await manager.read(ledger_id)
        assert (metadata.ledger_id, version) == (ledger_id, 0)
    assert [each async for each in manager.list()] == sorted(ids)
    for ledger_id in ids:
        await manager.delete(ledger_id)
    assert [each async for each in manager.list()] == []
    await store.close()


@pytest.mark.parametrize("kind", LayoutKind, ids=lambda kind: kind.value)
async def test_ids_are_taken_where_the_peer_takes_them(uri, kazoo, kind):
    store = await open_store(f"zk://{uri}")
    await init_cluster(store, layout=Layout(kind))
    generator = LedgerIdGenerator(store)
    first, second = await generator.next_id(), await generator.next_id()
    await generator.close()
    assert second == first + 1
    _, stat = kazoo.get(root_of(uri) + ("" if kind is LayoutKind.FLAT else "/idgen"))
    # The next sequential node of anybody gets the id behind.
    assert (stat.cversion + stat.numChildren) // 2 == second + 1
    await store.close()


async def test_a_bookie_refuses_a_cluster_with_another_instance_id_and_changes_nothing(uri, kazoo):
    async with LocalCluster(bookies=1, metadata_uri=f"zk://{uri}") as cluster:
        (bookie_id,) = cluster.bookie_ids
        await cluster.stop(bookie_id)
        own_id, _ = kazoo.get(f"{root_of(uri)}/INSTANCEID")
        kazoo.set(f"{root_of(uri)}/INSTANCEID", INSTANCE_ID.encode())
        before = dump(kazoo, root_of(uri))
        with pytest.raises(CookieMismatchError, match=INSTANCE_ID) as caught:
            await cluster.restart(bookie_id)
        assert own_id.decode() in str(caught.value)
        assert dump(kazoo, root_of(uri)) == before
        assert bookie_id not in kazoo.get_children(f"{root_of(uri)}/available")
        kazoo.set(f"{root_of(uri)}/INSTANCEID", own_id)
        await cluster.restart(bookie_id)
        assert bookie_id in kazoo.get_children(f"{root_of(uri)}/available")


async def test_a_bookie_is_marked_read_only_where_the_peer_looks_and_puts_it(uri, kazoo):
    store, other = await open_store(f"zk://{uri}"), await open_store(f"zk://{uri}")
    await init_cluster(store)
    root, bookie_id, theirs = f"{root_of(uri)}/available", "192.0.2.1:3181", "192.0.2.2:3181"
    ours, observer = BookieRegistration(store), BookieRegistration(other)
    await ours.register(bookie_id, BookieServiceInfo.of_bookie("192.0.2.1", 3181))
    await ours.set_read_only()
    assert kazoo.get_children(root) == ["readonly"]
    _, stat = kazoo.get(f"{root}/readonly/{bookie_id}")
    assert stat.ephemeralOwner == store.session_id
    # The peer's older bookies say nothing about themselves.
    kazoo.create(f"{root}/readonly/{theirs}", b"", ephemeral=True)
    async with asyncio.timeout(60):
        while await observer.bookies() != (frozenset(), {bookie_id, theirs}):
            await asyncio.sleep(0.01)
    await ours.set_writable()
    assert sorted(kazoo.get_children(root)) == [bookie_id, "readonly"]
    assert kazoo.get_children(f"{root}/readonly") == [theirs]
    await ours.close()
    await observer.close()
    await store.close()
    await other.close()


async def test_long_ids_begin_where_somebody_began_with_them(uri, kazoo):
    store = await open_store(f"zk://{uri}")
    await init_cluster(store)
    kazoo.create(f"{root_of(uri)}/idgen-long/HOB-0000000005", makepath=True)
    generator = LedgerIdGenerator(store)
    assert await generator.next_id() == 5 << 32
    await generator.close()
    await store.close()


async def test_listing_a_hundred_thousand_ledgers_takes_no_more_memory_than_one_parent(uri):
    store = await open_store(f"zk://{uri}")
    await init_cluster(store)
    root = root_of(uri)
    await store.create(f"{root}/00")
    for high in range(10):
        parent = f"{root}/00/{high:04d}"
        await store.create(parent)
        for start in range(0, 10_000, 1000):
            await store.multi([Create(f"{parent}/L{start + low:04d}") for low in range(1000)])
    manager = LedgerManager(store)
    tracemalloc.start()
    count, last = 0, -1
    async for ledger_id in manager.list():
        assert ledger_id == last + 1
        last, count = ledger_id, count + 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 100_000
    # Ten parents of ten thousand names each, one of them at a time.
    assert peak < 6_000_000
    await store.close()


async def test_listing_a_flat_layout_goes_beyond_a_megabyte(uri):
    store = await open_store(f"zk+flat://{uri}")
    await init_cluster(store, layout=Layout(LayoutKind.FLAT))
    root = root_of(uri)
    for start in range(0, 80_000, 1000):
        await store.multi([Create(f"{root}/L{start + low:010d}") for low in range(1000)])
    assert [each async for each in LedgerManager(store).list()] == list(range(80_000))
    await store.close()


# What bad input gets


async def test_a_uri_that_names_another_layout_is_refused(uri):
    store = await open_store(f"zk://{uri}")
    await init_cluster(store, layout=Layout(LayoutKind.LONG_HIERARCHICAL))
    await store.close()
    for scheme in ("zk", "zk+null", "zk+longhierarchical"):
        store = await open_store(f"{scheme}://{uri}")
        assert (await read_layout(store)).kind is LayoutKind.LONG_HIERARCHICAL
        await store.close()
    with pytest.raises(ConfigError, match="layout is longhierarchical, not flat"):
        await open_store(f"zk+flat://{uri}")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not of format 1 or 2"),
        (b"3\nx:1", "not of format 1 or 2"),
        (b"2\norg.example.MyLedgerManagerFactory:1", "unknown ledger manager"),
        (b"\xff\xfe", "not of format 1 or 2"),
    ],
)
async def test_a_layout_that_cannot_be_read_is_told(uri, kazoo, data, says):
    store = await open_store(f"zk://{uri}")
    await init_cluster(store)
    kazoo.set(f"{root_of(uri)}/LAYOUT", data)
    with pytest.raises(MetadataFormatError, match=says):
        await LedgerManager(store).read(0)
    with pytest.raises(MetadataFormatError, match=says):
        await open_store(f"zk+flat://{uri}")
    await store.close()


async def test_metadata_that_cannot_be_read_is_told_with_the_ledger(uri, kazoo):
    store = await open_store(f"zk://{uri}")
    await init_cluster(store)
    manager = LedgerManager(store)
    kazoo.create(f"{root_of(uri)}/00/0000/L0007", b"garbage", makepath=True)
    with pytest.raises(MetadataFormatError, match="ledger 7"):
        await manager.read(7)
    assert [each async for each in manager.list()] == [7]
    with pytest.raises(NoSuchLedgerInMetadataError):
        await manager.read(8)
    await store.close()


async def test_what_is_created_for_its_creator_alone_is_closed_to_others(uri, kazoo, tmp_path):
    file = tmp_path / "auth"
    file.write_text("writer:hush\n")
    file.chmod(0o600)
    store = await open_store(f"zk://{uri}?acl=creator&auth_file={file}")
    await init_cluster(store)
    manager = LedgerManager(store)
    await manager.create(ledger(1))
    kazoo.add_auth("digest", "writer:hush")
    acls, _ = kazoo.get_acls(f"{root_of(uri)}/00/0000/L0001")
    assert [(acl.perms, acl.id.scheme, acl.id.id.split(":")[0]) for acl in acls] == [
        (31, "digest", "writer")
    ]
    stranger = await open_store(f"zk://{uri}")
    for operation in (LedgerManager(stranger).read(1), stranger.delete(f"{root_of(uri)}/LAYOUT")):
        with pytest.raises(MetadataUnauthorizedError, match="auth_file=FILE") as caught:
            await operation
        assert "hush" not in str(caught.value)
    await stranger.close()
    friend = await open_store(f"zk://{uri}?auth_file={file}")
    metadata, _ = await LedgerManager(friend).read(1)
    assert metadata.state is LedgerState.OPEN
    await friend.close()
    await store.close()
