"""Namespaces: create, list, describe, delete, rename, and policies that streams inherit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quorumbook.client.context import client_store
from quorumbook.errors import ConfigError, MetadataVersionConflict
from quorumbook.metadata.nodes import set_alike
from quorumbook.streams import Namespace, StreamPolicy
from quorumbook.streams import stream_context as stream_context_module
from quorumbook.streams.errors import (
    AccessDeniedError,
    NamespaceNotBoundError,
    PolicyConflictError,
    StreamExistsError,
    StreamNotFoundError,
)
from quorumbook.streams.format.binding import AccessControl
from quorumbook.streams.metadata.stream_nodes import StreamNodes
from quorumbook.streams.stream_context import namespace_store, stream_context
from quorumbook.testing import LocalCluster

GOLDEN = Path(__file__).parents[1] / "golden" / "streams"


async def test_a_new_stream_has_the_peers_nodes(ns: Namespace) -> None:
    await ns.create_stream("life")
    golden = json.loads((GOLDEN / "live_streams.json").read_text())
    step = next(s for s in golden["steps"] if s["step"] == "stream created, never written")
    store = client_store(ns.client)
    for node in step["znodes"]:
        path = node["path"].replace("/messaging/distributedlog", ns.path)
        if "life" in path:
            found = await store.get(path)
            assert found.data.hex() == node["data_hex"], path
            assert found.version == 0


async def test_streams_are_listed_with_nested_ones_and_deleted_one_by_one(ns: Namespace) -> None:
    for name in "b", "a/x/y", "a", "a/z":
        await ns.create_stream(name)
    assert [name async for name in ns.streams()] == ["a", "a/x/y", "a/z", "b"]
    assert [name async for name in ns.streams(recursive=False)] == ["a", "b"]
    assert [name async for name in ns.streams("a/")] == ["a/x/y", "a/z"]
    with pytest.raises(StreamExistsError, match="below it"):
        await ns.delete_stream("a")
    for name in "a/x/y", "a/z", "a":
        await ns.delete_stream(name)
    assert [name async for name in ns.streams()] == ["b"]
    # Not even the parents of nested names are left behind.
    assert await client_store(ns.client).exists(f"{ns.path}/a") is None


async def test_a_stream_is_created_once(ns: Namespace) -> None:
    await ns.create_stream("s")
    with pytest.raises(StreamExistsError):
        await ns.create_stream("s")
    assert (await ns.create_stream("s", exist_ok=True)).name == "s"
    with pytest.raises(StreamNotFoundError, match="quorumbook stream create"):
        await ns.stream("t").info()
    with pytest.raises(StreamNotFoundError):
        await ns.delete_stream("t")
    await ns.delete_stream("t", missing_ok=True)


async def test_a_stream_inherits_what_it_does_not_say_itself(ns: Namespace) -> None:
    await ns.set_policy(StreamPolicy(ensemble_size=5, compression="lz4"))
    info = await ns.create_stream("s", policy=StreamPolicy(ensemble_size=4))
    assert info.policy.ensemble_size == 4
    assert info.policy.compression == "lz4"
    assert info.policy.ack_quorum_size == 2
    await ns.set_policy(StreamPolicy())
    assert (await ns.stream("s").info()).policy.compression == "none"
    with pytest.raises(ConfigError, match="did you mean compression"):
        StreamPolicy.of({"compresion": "lz4"})


async def test_a_stream_is_renamed_with_what_it_holds(ns: Namespace) -> None:
    await ns.create_stream("old", policy=StreamPolicy(roll_entries=7))
    store = client_store(ns.client)
    paths = stream_context(ns.stream("old")).nodes.paths
    await store.create(paths.subscribers)
    await store.create(paths.subscriber("sub1"), b"AQ==")
    await ns.create_stream("taken")
    with pytest.raises(StreamExistsError):
        await ns.rename_stream("old", "taken")
    await ns.rename_stream("old", "new/name")
    assert [name async for name in ns.streams()] == ["new/name", "taken"]
    assert (await ns.stream("new/name").info()).policy.roll_entries == 7
    moved = stream_context(ns.stream("new/name")).nodes.paths.subscriber("sub1")
    assert (await store.get(moved)).data == b"AQ=="


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_policy_that_is_set_while_its_stream_is_renamed_is_not_lost(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """It goes along, or whoever was later is told."""
    await ns.create_stream("old", policy=StreamPolicy(roll_entries=7))
    await ns.create_stream("old/nested")  # the node stays
    new = StreamPolicy(roll_entries=8)
    if is_first:
        change = StreamNodes.change

        async def set_before(nodes: StreamNodes, *how: Any) -> None:
            monkeypatch.undo()
            await other.stream("old").set_policy(new)
            await change(nodes, *how)

        monkeypatch.setattr(StreamNodes, "change", set_before)
        with pytest.raises(MetadataVersionConflict):
            await ns.rename_stream("old", "new")
        await ns.rename_stream("old", "new")
        assert (await ns.stream("new").info()).policy.roll_entries == 8
    else:

        async def renamed_before(*how: Any) -> int:
            monkeypatch.undo()
            await ns.rename_stream("old", "new")
            return await set_alike(*how)

        monkeypatch.setattr(stream_context_module, "set_alike", renamed_before)
        with pytest.raises(PolicyConflictError):
            await other.stream("old").set_policy(new)
        assert (await ns.stream("new").info()).policy.roll_entries == 7


async def test_what_access_control_denies_is_denied(cluster: LocalCluster) -> None:
    address = f"{cluster.metadata_uri}#/guarded"
    await Namespace.bind(address, acl_root=".acl")
    with pytest.raises(StreamExistsError):
        await Namespace.bind(address)
    async with Namespace.open(address) as ns:
        await ns.create_stream("s")
        store = client_store(ns.client)
        await store.create(f"{ns.path}/.acl", AccessControl(denies_delete=True).encode())
        with pytest.raises(AccessDeniedError):
            await ns.delete_stream("s")
        await store.create(f"{ns.path}/.acl/s", b"")
        await ns.delete_stream("s")


async def test_a_node_that_is_no_namespace_says_what_to_do(cluster: LocalCluster) -> None:
    address = f"{cluster.metadata_uri}#/nothing/here"
    with pytest.raises(NamespaceNotBoundError, match=r"Namespace\.bind"):
        await Namespace.open(address)
    await Namespace.bind(address)
    async with Namespace.open(address):
        pass
    await Namespace.unbind(address)
    with pytest.raises(NamespaceNotBoundError):
        await Namespace.open(address)


async def test_the_address_of_the_peer_opens_the_same_namespace(
    cluster: LocalCluster, ns: Namespace
) -> None:
    await ns.create_stream("s")
    if not cluster.metadata_uri.startswith("zk://"):
        with pytest.raises(ConfigError):
            await Namespace.open("distributedlog://nowhere")
        return
    server, _, rest = cluster.metadata_uri.removeprefix("zk://").partition("/")
    root = rest.partition("chroot=")[2]
    async with Namespace.open(f"distributedlog://{server}{root}{ns.path}") as same:
        assert [name async for name in same.streams()] == ["s"]


async def test_a_damaged_policy_can_be_replaced(ns: Namespace) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    node = stream_context(stream).nodes.paths.stream
    await namespace_store(ns).set(node, b'{"version": 1, "roll_bytes": -5}')
    with pytest.raises(ConfigError, match="roll_bytes"):
        await stream.policy()
    with pytest.raises(ConfigError, match="roll_bytes"):
        await stream.set_policy(StreamPolicy(roll_entries=7), expected=StreamPolicy())
    await stream.set_policy(StreamPolicy(roll_entries=7))
    assert (await stream.policy()).given() == {"roll_entries": 7}


async def test_a_policy_is_judged_as_a_whole_before_it_is_stored(ns: Namespace) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    beyond = StreamPolicy(ack_quorum_size=9)
    for store in (stream.set_policy, ns.set_policy, lambda it: ns.create_stream("t", policy=it)):
        with pytest.raises(ConfigError, match=r"ack_quorum_size.*9 <= 3"):
            await store(beyond)
    assert (await stream.policy()).given() == (await ns.policy()).given() == {}
    assert [name async for name in ns.streams()] == ["s"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("roll_bytes=1M", 1 << 20), ("retain_time_s=7d", 604_800.0), ("roll_interval_s=500ms", 0.5)],
)
def test_a_policy_understands_texts_with_units(text: str, value: object) -> None:
    name, _, said = text.partition("=")
    assert StreamPolicy.parse({name: said}, "--policy").given() == {name: value}
    with pytest.raises(ConfigError, match=rf"policy\.{name}: '1X' \(--policy\)"):
        StreamPolicy.parse({name: "1X"}, "--policy")
