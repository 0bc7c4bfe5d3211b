"""Schemas of a registry that answers as Confluent's: imported, and records of its serializers."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

pytest.importorskip("fastavro", reason="pip install 'quorumbook[schema]'")

from google.protobuf import descriptor_pb2

from doubles.schema_registry import Registered, SchemaRegistryDouble, schema_registry
from quorumbook.errors import ConfigError, ConnectFailedError, RemoteProtocolError
from quorumbook.metadata.uri import open_store
from quorumbook.streams import Compatibility, Schema, SchemaKind, version_headers
from quorumbook.streams.errors import (
    BadRecordError,
    SchemaIncompatibleError,
    SchemaNotFoundError,
)
from quorumbook.streams.schemas import registry as module
from quorumbook.streams.schemas.having import HasSchemas
from quorumbook.streams.schemas.registering import SchemaNodes
from quorumbook.streams.schemas.registry import SchemaRegistry, import_schemas

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "confluent.json").read_text())
SUBJECT = "eu/orders-value"
ORDER = {"type": "record", "name": "Order", "fields": [{"name": "total", "type": "long"}]}


@pytest.fixture
def registry() -> Iterator[SchemaRegistryDouble]:
    with schema_registry() as double:
        yield double


class Stream(HasSchemas):
    """A stream of which there are schemas alone."""

    def __init__(self, nodes: SchemaNodes) -> None:
        self.nodes = nodes

    async def _schema_nodes(self) -> tuple[Any, SchemaNodes]:
        return SimpleNamespace(check_writable=lambda: None), self.nodes


@pytest.fixture
async def stream() -> Stream:
    store = await open_store(f"memory://registry-{uuid4().hex}", create=True)
    await store.create("/s")
    return Stream(SchemaNodes(store, "eu/orders", "/s/schemas"))


def order(**defaults: Any) -> str:
    """Return an Avro schema with more fields than a total."""
    more = [{"name": name, "type": "int", "default": value} for name, value in defaults.items()]
    return json.dumps(ORDER | {"fields": ORDER["fields"] + more})


def filled(registry: SchemaRegistryDouble, *schemas: str, first_id: int = 7) -> SchemaRegistry:
    registry.subjects[SUBJECT] = {
        number: Registered(first_id + number, "AVRO", schema)
        for number, schema in enumerate(schemas, 1)
    }
    return SchemaRegistry(registry.url)


def of_golden(registry: SchemaRegistryDouble) -> None:
    for record in GOLDEN["records"]:
        is_protobuf = record["schemaType"] == "PROTOBUF"
        registry.subjects.setdefault(record["schemaType"], {})[record["version"]] = Registered(
            record["id"], record["schemaType"],
            "message Order { … }" if is_protobuf else record["schema"],
            record["schema"] if is_protobuf else "",
        )  # fmt: skip


@pytest.mark.parametrize("record", GOLDEN["records"], ids=lambda each: each["payload"])
async def test_records_of_confluents_serializers_are_decoded(
    stream: Stream, registry: SchemaRegistryDouble, record: dict[str, Any]
) -> None:
    of_golden(registry)
    schemas = await import_schemas(
        stream, SchemaRegistry(registry.url), record["schemaType"], message=record["message"]
    )
    decoder = await stream.decoder()
    payload = bytes.fromhex(record["payload"])
    found = decoder.value(payload)
    assert record["value"].items() <= found.items()
    assert decoder.row(payload).keys() == dict(decoder.column.fields).keys()
    # What we write names the version in a header, and is not framed.
    assert decoder.value(decoder.encode(found), version_headers(schemas.last)) == found
    # As one of the first version, too.
    assert "note" not in (await stream.decoder(1)).value(payload)


async def test_a_record_that_names_nothing_known_is_bad(
    stream: Stream, registry: SchemaRegistryDouble
) -> None:
    of_golden(registry)
    await import_schemas(stream, SchemaRegistry(registry.url), "PROTOBUF", message="shop.Order")
    decoder = await stream.decoder()
    for payload, message in (
        (b"", "not framed"),
        (b"\0\0\0\0", "not framed"),
        (b"\1\0\0\0\4\2\2\x08\7", "begins with"),
        (b"\0\0\0\0\x09\0", "schema 9 of a registry.*stream schema import eu/orders brings"),
        (b"\0\0\0\0\4\0\x08\7", r"another message of its file than shop.Order, by the path \[0\]"),
        (b"\0\0\0\0\4\4\2\2", r"by the path \[1, 1\], not \[1\]"),
        (b"\0\0\0\0\4\1", "below 0"),
        (b"\0\0\0\0\4\x83\x80\x80\x80\x01", "below 0"),
        (b"\0\0\0\0\4", "does not end"),
        (b"\0\0\0\0\4\2", "does not end"),
        (b"\0\0\0\0\4" + b"\x80" * 9 + b"\0\x08\7", "does not end"),
        (b"\0\0\0\0\4\xfe\xff\xff\xff\x0f" + b"\0" * 99, "a path of 2147483647 indexes"),
        (b"\0\0\0\0\4\2\2\x08", "not a message shop.Order"),
    ):
        with pytest.raises(BadRecordError, match=message):
            decoder.value(payload)
    with pytest.raises(BadRecordError, match="no version 5"):
        decoder.value(b"\0\0\0\0\4\2\2", version_headers(5))


async def test_versions_are_imported_once_and_new_ones_follow(
    stream: Stream, registry: SchemaRegistryDouble
) -> None:
    where = filled(registry, order(), order(a=1))
    del registry.subjects[SUBJECT][1]  # as one that was deleted there
    found = await import_schemas(stream, where, SUBJECT)
    assert [each.registry_id for each in found.versions] == [9]
    assert await import_schemas(stream, where, SUBJECT) == found
    registry.subjects[SUBJECT][3] = Registered(4, "AVRO", order(a=1, b=2))
    registry.subjects[SUBJECT][5] = Registered(9, "AVRO", order(a=1))  # registered again
    found = await import_schemas(stream, where, SUBJECT, compatibility=Compatibility.FULL)
    assert [each.registry_id for each in found.versions] == [9, 4]
    assert found.compatibility is Compatibility.FULL
    assert found.by_registry_id == {9: 1, 4: 2}
    decoder = await stream.decoder()
    assert decoder.value(b"\0\0\0\0\x09\x0e\x02") == {"total": 7, "a": 1, "b": 2}


@pytest.mark.parametrize("rival", ["nobody", "all", "some", "another"])
async def test_several_who_import_add_each_version_once(
    stream: Stream, registry: SchemaRegistryDouble, rival: str
) -> None:
    """Somebody else sets versions between our look at the registry and what we set."""
    texts = [order(**{f"f{n}": 0 for n in range(count)}) for count in range(5)]
    where = filled(registry, *texts)
    some = {number: each for number, each in registry.subjects[SUBJECT].items() if number < 4}
    registry.subjects["some"] = some
    others = Schema(SchemaKind.AVRO, texts[0])

    async def meanwhile() -> None:
        if rival == "another":
            await stream.set_schema(others)
        elif rival != "nobody":
            await import_schemas(Stream(stream.nodes), where, SUBJECT if rival == "all" else "some")

    loop, due = asyncio.get_running_loop(), [meanwhile]

    class Slow(SchemaRegistry):
        def schema(self, *words: Any) -> Schema | None:
            found = super().schema(*words)
            if due:
                asyncio.run_coroutine_threadsafe(due.pop()(), loop).result()
            return found

    found = await import_schemas(stream, Slow(registry.url), SUBJECT)
    ids = [8, 9, 10, 11, 12]
    assert [each.registry_id for each in found.versions] == ([0] * (rival == "another") + ids)
    assert await stream.schemas() == found


async def test_a_version_that_breaks_the_rule_is_refused_behind_those_before_it(
    stream: Stream, registry: SchemaRegistryDouble
) -> None:
    other = json.dumps(ORDER | {"fields": [{"name": "more", "type": "string"}]})
    where = filled(registry, order(), other, order(a=1))
    with pytest.raises(SchemaIncompatibleError, match="the field more"):
        await import_schemas(stream, where, SUBJECT)
    assert (await stream.schemas()).last == 1
    found = await import_schemas(stream, where, SUBJECT, compatibility=Compatibility.NONE)
    assert found.last == 3


async def test_a_protobuf_file_comes_with_what_it_imports(
    stream: Stream, registry: SchemaRegistryDouble
) -> None:
    main = descriptor_pb2.FileDescriptorProto(
        name="default", package="shop", syntax="proto3",
        dependency=["money.proto", "google/protobuf/timestamp.proto"],
    )  # fmt: skip
    message = main.message_type.add(name="Order")
    message.field.add(name="price", number=1, type=11, label=1, type_name=".cash.Money")
    message.field.add(name="at", number=2, type=11, label=1,
                      type_name=".google.protobuf.Timestamp")  # fmt: skip
    money = descriptor_pb2.FileDescriptorProto(name="x", package="cash", syntax="proto3")
    money.message_type.add(name="Money").field.add(name="cents", number=1, type=3, label=1)
    to_money = [{"name": "money.proto", "subject": "money", "version": 1}]

    def as_text(file: Any) -> str:
        return base64.b64encode(file.SerializeToString()).decode()

    registry.subjects = {
        SUBJECT: {1: Registered(3, "PROTOBUF", "…", as_text(main), to_money)},
        "money": {1: Registered(2, "PROTOBUF", "…", as_text(money))},
    }
    where = SchemaRegistry(registry.url)
    assert (await import_schemas(stream, where, SUBJECT)).of().message == "shop.Order"
    decoder = await stream.decoder()
    assert decoder.value(b"\0\0\0\0\3\0\x0a\x02\x08\x07")["price"] == {"cents": 7}
    # Files that import each other end, and are refused for what they are.
    registry.subjects["money"][1].references = [
        {"name": f"{SUBJECT}.proto", "subject": SUBJECT, "version": 1}
    ]
    assert (await import_schemas(stream, where, SUBJECT)).last == 1


@pytest.mark.parametrize(
    ("path", "body", "error", "message"),
    [
        ("versions", b"<html>", RemoteProtocolError, "is not JSON"),
        ("versions", b"[" * 100_000, RemoteProtocolError, "is not JSON"),
        ("versions", b'{"a": 1}', RemoteProtocolError, "lists no versions"),
        ("versions", b"[true]", RemoteProtocolError, "lists no versions"),
        ("versions", b"[-1]", RemoteProtocolError, "lists no versions"),
        ("versions", b'["../../x"]', RemoteProtocolError, "lists no versions"),
        ("versions", json.dumps([*range(1, 2000)]).encode(), ConfigError, "1000 are most"),
        ("versions", b"[]", SchemaNotFoundError, "has no versions"),
        ("versions/1", b"[]", RemoteProtocolError, "answers no version 1"),
        ("versions/1", b'{"id": "7", "schema": "x"}', RemoteProtocolError, "answers no version"),
        ("versions/1", b'{"id": 7, "schema": 8}', RemoteProtocolError, "answers no version"),
        ("versions/1", b'{"id": 7, "schema": "", "references": 3}', RemoteProtocolError, "no vers"),
        ("versions/1", b'{"id": 7, "schema": "{}", "schemaType": "XML"}', ConfigError, "XML"),
        ("versions/1", b'{"id": 7, "schema": "{}", "references": [{}]}', ConfigError, "refers to"),
        ("versions/1", b'{"id": 7, "schema": "{}"}', ConfigError, "not usable"),
        ("versions/1", b'{"id": 8, "schema": "", "schemaType": "PROTOBUF"}', ConfigError,
         "has no message"),
        ("versions/1", b'{"id": 9, "schema": "", "schemaType": "PROTOBUF"}', SchemaNotFoundError,
         "Schema not found"),
        ("versions/1", b'{"id": 8, "schema": "", "schemaType": "PROTOBUF", "references": [3]}',
         RemoteProtocolError, "has no files"),
    ],
)  # fmt: skip
async def test_an_answer_that_is_none_is_an_error_and_sets_nothing(
    stream: Stream,
    registry: SchemaRegistryDouble,
    path: str,
    body: bytes,
    error: type,
    message: str,
) -> None:
    where = filled(registry, order())
    url = f"/subjects/eu%2Forders-value/{path}"
    registry.instead[url] = 200, {}, lambda: iter([body])
    with pytest.raises(error, match=message):
        await import_schemas(stream, where, SUBJECT)
    with pytest.raises(SchemaNotFoundError):
        await stream.schemas()


async def test_a_registry_is_bounded_in_bytes_and_time_and_leads_nowhere_else(
    stream: Stream, registry: SchemaRegistryDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = filled(registry, order())
    url = "/subjects/eu%2Forders-value/versions"
    registry.instead[url] = 200, {}, lambda: itertools.repeat(b" " * 65_536)
    with pytest.raises(RemoteProtocolError, match="more than 2097152 bytes"):
        await import_schemas(stream, where, SUBJECT)
    monkeypatch.setattr(module, "_ANSWER_S", -1)
    registry.instead[url] = 200, {}, lambda: iter([b"[1]"])
    with pytest.raises(ConnectFailedError, match="not answered whole"):
        await import_schemas(stream, where, SUBJECT)
    monkeypatch.undo()
    registry.instead[url] = 302, {"Location": f"{registry.url}/stolen"}, lambda: iter([b""])
    with pytest.raises(ConnectFailedError, match="answers 302"):
        await import_schemas(stream, SchemaRegistry(registry.url, "me:secret"), SUBJECT)
    assert registry.requests[-1] == (url, "Basic bWU6c2VjcmV0")
    registry.instead[url] = 401, {}, lambda: iter([b'{"error_code": 401, "message": "Who?"}'])
    with pytest.raises(ConnectFailedError, match=r"answers 401: Who\?"):
        await import_schemas(stream, where, SUBJECT)
    with pytest.raises(SchemaNotFoundError, match="Subject 'none' not found"):
        await import_schemas(stream, where, "none")


async def test_an_address_that_is_none_is_refused(stream: Stream) -> None:
    for url in "localhost:8081", "ftp://h/x", "http://", "http://h/?x=1":
        with pytest.raises(ConfigError, match="not the address of a registry"):
            SchemaRegistry(url)
    with pytest.raises(ConfigError, match="no login in it"):
        SchemaRegistry("http://me:secret@h")
    assert "secret" not in repr(SchemaRegistry("http://h", "me:secret"))
    with pytest.raises(ConfigError, match="not the name of a subject"):
        await import_schemas(stream, SchemaRegistry("http://127.0.0.1:1"), "..")
    with pytest.raises(
        ConnectFailedError, match=r"no answer from http://127\.0\.0\.1:1/subjects/x"
    ):
        await import_schemas(stream, SchemaRegistry("http://127.0.0.1:1"), "x")


def test_an_id_survives_the_metadata_store_and_a_wrong_one_is_refused() -> None:
    schema = Schema(SchemaKind.AVRO, order(), registry_id=0xFFFFFFFF)
    assert Schema.decode(schema.encode(), "/x") == schema
    assert b"registry_id" not in Schema(SchemaKind.AVRO, order()).encode()
    with pytest.raises(ConfigError, match="32 bits"):
        Schema(SchemaKind.AVRO, order(), registry_id=1 << 32)
