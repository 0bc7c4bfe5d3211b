"""Schemas of streams in the metadata store: versions, rivals, lost answers, and what sees them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("fastavro", reason="pip install 'quorumbook[schema]'")

from quorumbook.errors import (
    ConfigError,
    LocalProtocolError,
    MetadataFateUnknownError,
    MetadataUnavailableError,
)
from quorumbook.metadata.uri import open_store
from quorumbook.streams import (
    Compatibility,
    Namespace,
    PartitionedStream,
    Schema,
    SchemaKind,
    Stream,
    version_headers,
)
from quorumbook.streams.errors import (
    CorruptRecordsError,
    SchemaConflictError,
    SchemaIncompatibleError,
    SchemaNotFoundError,
    StreamNotFoundError,
    UnsupportedFormatError,
)
from quorumbook.streams.schemas.registering import SchemaNodes
from quorumbook.streams.stream_context import stream_context
from quorumbook.sync.streams import Namespace as BlockingNamespace
from quorumbook.testing import LocalCluster


def schema(*names: str) -> Schema:
    fields = [{"name": name, "type": "int", "default": 0} for name in names]
    return Schema(SchemaKind.AVRO, json.dumps({"type": "record", "name": "R", "fields": fields}))


@pytest.fixture
async def stream(ns: Namespace) -> Stream:
    await ns.create_stream("a/s")
    return ns.stream("a/s")


async def test_versions_are_added_and_read(stream: Stream, other: Namespace) -> None:
    with pytest.raises(SchemaNotFoundError, match="stream schema set a/s FILE"):
        await stream.schemas()
    with pytest.raises(SchemaNotFoundError):
        await stream.set_schema(compatibility=Compatibility.FULL)
    assert (await stream.set_schema(schema("a"))).last == 1
    assert (await stream.set_schema(schema("a"))).last == 1  # it is set already
    assert (await stream.set_schema(schema("a", "b"))).last == 2
    found = await other.stream("a/s").schemas()
    assert found.versions == (schema("a"), schema("a", "b"))
    assert found.compatibility is Compatibility.BACKWARD
    assert await stream.schema() == schema("a", "b")
    assert await stream.schema(1) == schema("a")
    with pytest.raises(SchemaNotFoundError, match="no version 3"):
        await stream.schema(3)
    with pytest.raises(SchemaNotFoundError, match="no version 0"):
        await stream.schema(0)


async def test_a_version_that_breaks_the_rule_is_refused(stream: Stream) -> None:
    await stream.set_schema(schema("a"), compatibility=Compatibility.FULL)
    bad = Schema(SchemaKind.AVRO, schema("a").text.replace('"int"', '"string"').replace("0", '""'))
    with pytest.raises(SchemaIncompatibleError, match="the field a was int and is string"):
        await stream.set_schema(bad)
    with pytest.raises(ConfigError, match="not usable"):
        await stream.set_schema(Schema(SchemaKind.AVRO, '"nothing"'))
    assert (await stream.schemas()).last == 1
    now = await stream.set_schema(bad, compatibility=Compatibility.NONE)
    assert (now.last, now.compatibility) == (2, Compatibility.NONE)
    now = await stream.set_schema(compatibility=Compatibility.FORWARD)
    assert (now.last, now.compatibility) == (2, Compatibility.FORWARD)
    assert await stream.schemas() == now


async def test_expected_is_the_last_version(stream: Stream) -> None:
    await stream.set_schema(schema("a"), expected=0)
    with pytest.raises(SchemaConflictError, match="at version 1, not 0"):
        await stream.set_schema(schema("b"), expected=0)
    await stream.set_schema(schema("a", "b"), expected=1)


@pytest.mark.parametrize("is_same", [True, False])
async def test_rivals_get_one_version_each_or_share_one(
    stream: Stream, other: Namespace, is_same: bool
) -> None:
    rival = other.stream("a/s")
    for turn in range(5):
        mine = schema("a", f"m{turn}")
        theirs = mine if is_same else schema("a", f"t{turn}")
        before = 0 if turn == 0 else (await stream.schemas()).last
        await asyncio.gather(
            *(each.set_schema(one) for each, one in ((stream, mine), (rival, theirs)) * 2)
        )
        found = await stream.schemas()
        assert set(found.versions[before:]) >= {mine, theirs}
        if is_same:
            assert found.last == before + 1
        assert await rival.schemas() == found


@pytest.mark.parametrize("was_done", [True, False])
@pytest.mark.parametrize("rival", ["nobody", "same", "other"])
@pytest.mark.parametrize("rule", [None, Compatibility.FULL])
@pytest.mark.parametrize("has_one", [True, False])
async def test_a_lost_answer_sets_a_version_once(
    stream: Stream, other: Namespace, monkeypatch: pytest.MonkeyPatch, was_done: bool, rival: str,
    has_one: bool, rule: Compatibility | None,
) -> None:  # fmt: skip
    if has_one:
        await stream.set_schema(schema("first"))
    mine = schema("first", "mine")
    store = stream_context(stream).store
    multi, lost = store.multi, 0

    async def losing(operations: Any) -> Any:
        nonlocal lost
        lost += 1
        if lost > 1:
            return await multi(operations)
        if was_done:
            await multi(operations)
        if rival != "nobody":
            theirs = mine if rival == "same" else schema("first", "theirs")
            theirs_too = Compatibility.FORWARD if rule else None
            await other.stream("a/s").set_schema(theirs, compatibility=theirs_too)
        raise MetadataFateUnknownError("the answer is lost")

    monkeypatch.setattr(store, "multi", losing)
    last_before = int(has_one)
    sets = stream.set_schema(mine, compatibility=rule, expected=last_before)
    if rival == "other" and not was_done:  # theirs is the version that ours was to be
        with pytest.raises(SchemaConflictError, match=f"at version {last_before + 1}, not"):
            await sets
        monkeypatch.undo()
        sets = stream.set_schema(mine, compatibility=rule)
    found = await sets
    monkeypatch.undo()
    assert lost >= 1
    now = await stream.schemas()
    assert now.versions[found.last - 1] == mine or found == now
    assert now.versions.count(mine) == 1
    assert now.last == last_before + 1 + (rival == "other")
    assert now.compatibility is found.compatibility is (rule or Compatibility.BACKWARD)


async def test_a_store_that_is_away_sets_nothing(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any) -> Any:
        raise MetadataUnavailableError("away")

    monkeypatch.setattr("quorumbook.metadata.nodes._PATIENCE_S", 0)
    monkeypatch.setattr(stream_context(stream).store, "multi", away)
    with pytest.raises(MetadataUnavailableError):
        await stream.set_schema(schema("a"))
    monkeypatch.undo()
    with pytest.raises(SchemaNotFoundError):
        await stream.schemas()


async def test_partitions_have_the_schema_of_the_whole(ns: Namespace) -> None:
    whole = await PartitionedStream.create(ns, "parts", partitions=2)
    await whole.set_schema(schema("a"))
    await whole.partitions[1].set_schema(schema("a", "b"))
    for each in whole, *whole.partitions:
        assert (await each.schemas()).last == 2
        assert (await each.schemas()).stream == "parts"
    assert await stream_context(whole.partitions[0]).store.exists(f"{whole.node}/schemas")
    await ns.create_stream("alone/p0")
    await ns.stream("alone/p0").set_schema(schema("a"))
    assert (await ns.stream("alone/p0").schemas()).stream == "alone/p0"
    await whole.delete()
    with pytest.raises(StreamNotFoundError):
        await whole.partitions[0].schemas()


async def test_schemas_go_with_their_stream(ns: Namespace, stream: Stream) -> None:
    await stream.set_schema(schema("a"))
    await ns.rename_stream("a/s", "b")
    assert (await ns.stream("b").schemas()).last == 1
    with pytest.raises(StreamNotFoundError):
        await stream.schemas()
    with pytest.raises(StreamNotFoundError):
        await stream.set_schema(schema("a"))
    await ns.delete_stream("b")
    await ns.create_stream("b")
    with pytest.raises(SchemaNotFoundError):
        await ns.stream("b").schemas()


async def test_other_nodes_of_the_stream_are_as_before(stream: Stream) -> None:
    context = stream_context(stream)
    before = {
        name: await context.store.get(f"{context.nodes.paths.root}/{name}")
        for name in await context.store.children(context.nodes.paths.root)
    }
    top = await context.store.get(context.nodes.paths.stream)
    await stream.set_schema(schema("a"))
    for name, node in before.items():
        now = await context.store.get(f"{context.nodes.paths.root}/{name}")
        assert (now.data, now.revision) == (node.data, node.revision), name
    assert await context.store.get(context.nodes.paths.stream) == top


async def test_damaged_and_newer_nodes_are_named(stream: Stream) -> None:
    await stream.set_schema(schema("a"))
    context = stream_context(stream)
    path = context.nodes.paths.schemas
    for where in path, f"{path}/0000000001":
        good = (await context.store.get(where)).data
        for data, error in (
            (b"{", CorruptRecordsError), (b"[]", CorruptRecordsError),
            (b'{"version": 1}', CorruptRecordsError), (b'{"version": 2}', UnsupportedFormatError),
        ):  # fmt: skip
            await context.store.set(where, data)
            with pytest.raises(error, match=where):
                await stream.schemas()
        await context.store.set(where, good)
    await context.store.delete(f"{path}/0000000001")
    with pytest.raises(CorruptRecordsError, match="lacks a version"):
        await stream.schemas()


async def test_a_namespace_that_is_read_only_sets_no_schema(
    cluster: LocalCluster, ns: Namespace, stream: Stream
) -> None:
    address = f"{cluster.metadata_uri}#{ns.path}"
    async with Namespace.open(address, read_only=True) as reading:
        with pytest.raises(LocalProtocolError, match="read-only"):
            await reading.stream("a/s").set_schema(schema("a"))


async def test_records_are_decoded_by_the_version_they_name(stream: Stream) -> None:
    await stream.set_schema(schema("a"))
    await stream.set_schema(schema("a", "b"))
    old, new = await stream.decoder(1), await stream.decoder()
    async with stream.writer() as writer:
        await writer.append(old.encode({"a": 1}), headers=version_headers(old.version))
        await writer.append(new.encode({"a": 2, "b": 3}), headers=version_headers(new.version))
    found = await stream.read_range("earliest")
    values = [new.value(each.payload, each.headers) for each in found]
    assert values == [{"a": 1, "b": 0}, {"a": 2, "b": 3}]
    assert [old.value(each.payload, each.headers) for each in found] == [{"a": 1}, {"a": 2}]


def test_the_blocking_twin_has_them(standing_cluster: LocalCluster) -> None:
    address = f"{standing_cluster.metadata_uri}#/blocking-schemas"
    with BlockingNamespace.open(address, bind=True) as ns:
        ns.create_stream("s")
        stream = ns.stream("s")
        assert stream.set_schema(schema("a")).last == 1
        assert stream.schemas().of() == stream.schema() == schema("a")
        decoder = stream.decoder()
        assert decoder.value(decoder.encode({"a": 4})) == {"a": 4}


async def test_memory_keeps_them_as_well() -> None:
    store = await open_store("memory://schemas")
    try:
        await store.create("/s", b"")
        nodes = SchemaNodes(store, "s", "/s/schemas")
        assert (await nodes.set(schema("a"), None, None)).last == 1
        assert (await nodes.set(schema("b"), None, 1)).last == 2
        assert (await nodes.read()).versions == (schema("a"), schema("b"))
    finally:
        await store.close()
