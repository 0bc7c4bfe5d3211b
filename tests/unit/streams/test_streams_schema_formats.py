"""Schemas and records in each format: what is decoded, and what hostile ones are refused for."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import tracemalloc
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

fastavro = pytest.importorskip("fastavro", reason="pip install 'quorumbook[schema]'")
jsonschema = pytest.importorskip("jsonschema")

from quorumbook.errors import ConfigError  # noqa: E402
from quorumbook.streams.errors import BadRecordError, SchemaNotFoundError  # noqa: E402
from quorumbook.streams.format.schemas import (  # noqa: E402
    MAX_TEXT_BYTES,
    Compatibility,
    Schema,
    SchemaKind,
    StreamSchemas,
    version_headers,
)
from quorumbook.streams.schemas import limits  # noqa: E402
from quorumbook.streams.schemas.compatibility import format_of  # noqa: E402
from quorumbook.streams.schemas.decoder import Decoder  # noqa: E402
from quorumbook.streams.schemas.json_checks import check_of, problem_of  # noqa: E402
from quorumbook.streams.schemas.limits import TooMuchError  # noqa: E402

F = descriptor_pb2.FieldDescriptorProto


def avro(schema: Any) -> Schema:
    return Schema(SchemaKind.AVRO, json.dumps(schema))


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [
        {"name": key, "type": kind, **more} for key, kind, more in fields
    ]}  # fmt: skip


def json_schema(schema: Any) -> Schema:
    return Schema(SchemaKind.JSON, json.dumps(schema))


def obj(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def proto(*fields: tuple[Any, ...], **nested: list[tuple[Any, ...]]) -> Schema:
    """Return a schema of the message ``t.M``, of (name, number, type[, label, type name])."""
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    for name, given_fields in {"M": fields, **nested}.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, *more in given_fields:
            label, type_name = (*more, None, None)[:2]
            field = message.field.add(name=field_name, number=number, type=kind)
            field.label = label or F.LABEL_OPTIONAL
            if type_name:
                field.type_name = type_name
    files = descriptor_pb2.FileDescriptorSet(file=[file])
    text = base64.b64encode(files.SerializeToString()).decode()
    return Schema(SchemaKind.PROTOBUF, text, "t.M")


def decoder(*versions: Schema, version: int | None = None) -> Decoder:
    return Decoder(StreamSchemas("s", Compatibility.NONE, versions), version)


def kinds(schema: Schema) -> dict[str, str]:
    return {name: column.kind.value for name, column in format_of(schema).column.fields}


# What is decoded ------------------------------------------------------------------------------


def test_avro_becomes_columns_of_its_types() -> None:
    schema = avro(record(
        ("i", "int", {}), ("l", "long", {}), ("s", ["null", "string"], {}), ("b", "bytes", {}),
        ("d", {"type": "int", "logicalType": "date"}, {}),
        ("t", {"type": "long", "logicalType": "timestamp-micros"}, {}),
        ("m", {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}, {}),
        ("e", {"type": "enum", "name": "E", "symbols": ["A", "B"]}, {}),
        ("a", {"type": "array", "items": "double"}, {}),
        ("p", {"type": "map", "values": "int"}, {}),
        ("u", ["null", "int", "string"], {}), ("r", record(("x", "boolean", {}), name="X"), {}),
        ("again", "X", {}),
    ))  # fmt: skip
    assert kinds(schema) == {
        "i": "int32", "l": "int64", "s": "string", "b": "binary", "d": "date32", "t": "timestamp",
        "m": "decimal128", "e": "string", "a": "list", "p": "map", "u": "json", "r": "struct",
        "again": "struct",
    }  # fmt: skip
    value = {
        "i": -1, "l": 1 << 40, "s": None, "b": b"\0", "d": date(2026, 11, 25),
        "t": datetime(2026, 11, 25, 8, tzinfo=UTC), "m": Decimal("12.34"), "e": "B",
        "a": [0.5, 1.5], "p": {"k": 3}, "u": "text", "r": {"x": True}, "again": {"x": False},
    }  # fmt: skip
    found = decoder(schema)
    payload = found.encode(value)
    assert found.value(payload) == value
    assert found.row(payload) == {**value, "p": [("k", 3)], "u": '"text"'}


def test_json_becomes_columns_of_its_types() -> None:
    schema = json_schema({
        "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "an order",
        "$defs": {"money": {"type": "number", "minimum": 0}},
        **obj(
            id={"type": "integer"}, total={"$ref": "#/$defs/money"},
            note={"type": ["string", "null"]},
            tags={"type": "array", "items": {"type": "string"}}, at=obj(x={"type": "number"}),
            prices={"type": "object", "additionalProperties": {"type": "number"}}, any={},
            either={"anyOf": [{"type": "string"}, {"type": "integer"}]}, pair={"type": "array"},
        ), "required": ["id"],
    })  # fmt: skip
    assert kinds(schema) == {
        "id": "int64", "total": "double", "note": "string", "tags": "list", "at": "struct",
        "prices": "map", "any": "json", "either": "json", "pair": "json",
    }  # fmt: skip
    found = decoder(schema)
    payload = b'{"id": 7.0, "total": 3, "any": {"\xc3\xa4": [1]}, "prices": {"a": 1}, "more": 1}'
    row = found.row(payload)
    assert row["id"] == 7
    assert isinstance(row["id"], int)
    assert isinstance(row["total"], float)
    assert row["any"] == '{"ä":[1]}'
    assert row["prices"] == [("a", 1.0)]
    assert row["note"] is None
    assert set(row) == set(kinds(schema))
    with pytest.raises(BadRecordError, match=r"\$\.id is missing"):
        found.row(b"{}")
    with pytest.raises(BadRecordError, match=r"\$\.total is -1, below 0"):
        found.row(b'{"id": 1, "total": -1}')


def test_protobuf_becomes_columns_of_its_types() -> None:
    schema = proto(
        ("id", 1, F.TYPE_UINT64), ("name", 2, F.TYPE_STRING), ("n", 3, F.TYPE_SINT32),
        ("many", 4, F.TYPE_INT32, F.LABEL_REPEATED), ("in", 5, F.TYPE_MESSAGE, None, ".t.In"),
        ("at", 6, F.TYPE_MESSAGE, None, ".google.protobuf.Timestamp"),
        In=[("x", 1, F.TYPE_BOOL)],
    )  # fmt: skip
    assert kinds(schema) == {
        "id": "decimal128", "name": "string", "n": "int32", "many": "list", "in": "struct",
        "at": "timestamp",
    }  # fmt: skip
    found = decoder(schema)
    payload = found.encode({"id": 1 << 63, "many": [1, 2], "at": "2026-11-25T08:00:00Z"})
    assert found.value(payload) == {
        "id": 1 << 63, "name": "", "n": 0, "many": [1, 2], "in": None,
        "at": datetime(2026, 11, 25, 8, tzinfo=UTC),
    }  # fmt: skip


def test_a_record_is_read_by_the_version_that_it_names() -> None:
    first = avro(record(("a", "int", {}), ("b", "int", {})))
    second = avro(record(("b", "int", {}), ("c", "long", {"default": 9})))
    both = decoder(first, second)
    old = decoder(first, second, version=1).encode({"a": 1, "b": 2})
    assert both.value(old, version_headers(1)) == {"b": 2, "c": 9}
    assert both.value(both.encode({"b": 3, "c": 4}), version_headers(2)) == {"b": 3, "c": 4}
    with pytest.raises(BadRecordError, match="names no version of the 2"):
        both.value(old)
    with pytest.raises(BadRecordError, match="no version 3"):
        both.value(old, version_headers(3))
    for header in b"", b"x", b"-1", b"9" * 30:
        with pytest.raises(BadRecordError, match="schema-version"):
            both.value(old, {"schema-version": header})
    with pytest.raises(SchemaNotFoundError, match="no version 3"):
        decoder(first, second, version=3)


def test_a_decoder_travels_to_other_processes() -> None:
    import pickle

    found = pickle.loads(pickle.dumps(decoder(avro(record(("a", "int", {}))))))
    assert found.value(found.encode({"a": 5})) == {"a": 5}


# Hostile schemas ------------------------------------------------------------------------------


def nested(depth: int, wrap: Any, inner: Any) -> Any:
    for _ in range(depth):
        inner = wrap(inner)
    return inner


def wide_names(levels: int) -> dict[str, Any]:
    """Return a record of 2**levels fields once its names are followed."""
    inner: Any = record(("x", "int", {}), name="R0")
    for level in range(1, levels):
        inner = record(("a", inner, {}), ("b", f"R{level - 1}", {}), name=f"R{level}")
    return record(("top", inner, {}), name="Top")


def wide_references(levels: int) -> dict[str, Any]:
    found: dict[str, Any] = {"d0": obj(x={"type": "string"})}
    for level in range(1, levels):
        ref = {"$ref": f"#/$defs/d{level - 1}"}
        found[f"d{level}"] = obj(a=ref, b=ref)
    return {"$defs": found, **obj(top={"$ref": f"#/$defs/d{levels - 1}"})}


def wide_messages(levels: int) -> Schema:
    more = {
        f"N{level}": [
            (name, number, F.TYPE_MESSAGE, None, f".t.N{level + 1}")
            for number, name in enumerate("ab", 1)
        ]
        for level in range(levels)
    }
    more[f"N{levels}"] = [("x", 1, F.TYPE_INT32)]
    return proto(("top", 1, F.TYPE_MESSAGE, None, ".t.N0"), **more)


ARRAY_OF_NOTHING = {"type": "array", "items": record(name="Empty")}
HOSTILE = {
    "avro: contains itself": (
        avro(record(("next", ["null", "R"], {}))), "contains itself"),
    "avro: deep": (
        avro(record(("a", nested(90, lambda x: {"type": "array", "items": x}, "int"), {}))),
        "more than 64 levels"),
    "avro: very deep": (
        Schema(SchemaKind.AVRO, '{"type":' * 20_000 + '"int"' + "}" * 20_000), "more than 64"),
    "avro: a union without end": (
        avro(record(("a", [record(name=f"N{n}") for n in range(3000)], {}))), "more than 2000"),
    "avro: names that unfold": (avro(wide_names(13)), "more than 2000 types"),
    "avro: an array of nothing": (avro(record(("a", ARRAY_OF_NOTHING, {}))), "has no end"),
    "avro: an array of nulls": (
        avro(record(("a", {"type": "array", "items": "null"}, {}))), "has no end"),
    "avro: an array of many values in one byte": (
        avro(record(("a", {"type": "array", "items": record(
            *((f"n{n}", "null", {}) for n in range(1000)), ("b", "boolean", {}), name="N")}, {}))),
        "many values in few bytes"),
    "avro: a map of many values in one byte": (
        avro(record(("a", {"type": "map", "values": ["int", record(
            *((f"n{n}", "null", {}) for n in range(20)), name="N")]}, {}))),
        "many values in few bytes"),
    "avro: a symbol that means much": (
        avro(record(("a", {"type": "enum", "name": "E", "symbols": ["x" * 256]}, {}))),
        "more than 255 characters"),
    "avro: a large fixed": (
        avro(record(("a", {"type": "fixed", "name": "F", "size": 1 << 40}, {}))), "bytes"),
    "avro: large defaults": (
        avro(record(("a", "string", {"default": "x" * 5000}))), "bytes of defaults"),
    "avro: digits": (
        avro(record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 10**9}, {}))),
        "1 to 38 digits"),
    "avro: no columns": (avro("int"), "no columns"),
    "avro: not a type": (avro(record(("a", "strin", {}))), "no type 'strin'"),
    "json: refers to itself": (json_schema({"properties": {"a": {"$ref": "#"}}, "type": "object"}),
                               "refers to itself"),
    "json: refers to others": (
        json_schema(obj(a={"$ref": "http://127.0.0.1:1/schema"})), "only #/"),
    "json: refers to a file": (json_schema(obj(a={"$ref": "file:///etc/passwd"})), "only #/"),
    "json: has an id within": (json_schema(obj(a={"$id": "http://x/"})), r"\$id"),
    "json: references that unfold": (json_schema(wide_references(30)), "more than 2000 schemas"),
    "json: deep": (
        json_schema(nested(90, lambda x: obj(a=x), {"type": "string"})), "more than 64 levels"),
    "json: many branches": (json_schema(obj(a={"anyOf": [{}] * 3000})), "more than 2000"),
    "json: a pattern that looks ahead": (
        json_schema(obj(a={"type": "string", "pattern": "^(?=a)"})), "RE2"),
    "json: a pattern that is huge": (
        json_schema(obj(a={"pattern": "(((a{100}){100}){100})"})), "RE2"),
    "json: an unknown keyword": (json_schema(obj(a={"patern": "a"})), "'patern' is not supported"),
    "json: a keyword of a wrong type": (json_schema(obj(a={"required": 5})), "list of names"),
    "json: names that are no object": (json_schema({"type": "object", "properties": [1]}),
                                       "not usable"),
    "json: no columns": (json_schema({"type": "string"}), "no columns"),
    "json: another draft": (json_schema({"$schema": "http://x", **obj(a={})}), r"\$schema"),
    "json: not JSON": (Schema(SchemaKind.JSON, "{"), "not usable"),
    "protobuf: contains itself": (proto(("a", 1, F.TYPE_MESSAGE, None, ".t.M")), "contains itself"),
    "protobuf: messages that unfold": (wide_messages(30), "more than 2000 fields"),
    "protobuf: deep": (
        proto(("a", 1, F.TYPE_MESSAGE, None, ".t.N0"), **{
            f"N{n}": [("a", 1, F.TYPE_MESSAGE, None, f".t.N{n + 1}")] if n < 90 else [
                ("a", 1, F.TYPE_INT32)] for n in range(91)}), "more than 64 levels"),
    "protobuf: no fields": (proto(), "no fields"),
    "protobuf: not a set": (Schema(SchemaKind.PROTOBUF, "AAAA", "t.M"), "not usable"),
    "protobuf: not base64": (Schema(SchemaKind.PROTOBUF, "?", "t.M"), "not usable"),
    "protobuf: another message": (
        Schema(SchemaKind.PROTOBUF, proto(("a", 1, F.TYPE_INT32)).text, "t.Other"), "t.Other"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_refused_with_the_reason(name: str) -> None:
    schema, reason = HOSTILE[name]
    with pytest.raises(ConfigError, match=reason):
        format_of(schema)


def test_wide_schemas_of_every_day_are_taken() -> None:
    optional = [(f"f{n}", ["null", "string"], {"default": None}) for n in range(300)]
    plain = [(f"p{n}", "long", {}) for n in range(40)]
    items = ["null", record(*optional, *plain, name="N")]
    format_of(avro(record(
        ("a", {"type": "array", "items": items}, {}),
        ("m", {"type": "map", "values": "N"}, {}),
        ("e", {"type": "array", "items": {"type": "map", "values": ["null", "int"]}}, {}),
    )))  # fmt: skip
    format_of(avro(record(*((f"f{n}", "int", {}) for n in range(1500)))))


def test_a_schema_has_a_size_and_protobuf_a_message() -> None:
    with pytest.raises(ConfigError, match="at most"):
        Schema(SchemaKind.JSON, " " * (MAX_TEXT_BYTES + 1))
    for kind, message in (SchemaKind.PROTOBUF, ""), (SchemaKind.AVRO, "t.M"):
        with pytest.raises(ConfigError, match="message"):
            Schema(kind, "x", message)


# Hostile records ------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    number = (number << 1 ^ number >> 63) & (1 << 64) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


LIST = decoder(avro(record(("a", {"type": "array", "items": "int"}, {}))))
TEXT = decoder(avro(record(("a", "string", {}))))
ANY = decoder(json_schema(obj(a={})))
MANY = decoder(proto(("a", 1, F.TYPE_MESSAGE, F.LABEL_REPEATED, ".t.In"), In=[
    ("x", 1, F.TYPE_INT32)]))  # fmt: skip
MAYBE = decoder(avro(record(("a", ["null", "string"], {}))))
SYMBOL = decoder(avro(record(("a", {"type": "enum", "name": "E", "symbols": ["A", "B"]}, {}))))
NUMBER = decoder(avro(record(("a", "int", {}))))
MONEY = decoder(
    avro(record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}, {})))
)
BAD: dict[str, tuple[Decoder, bytes, str | None]] = {
    "avro: nothing": (LIST, b"", None),
    "avro: a block that promises more": (LIST, varint(1 << 40) + varint(1), None),
    "avro: a block that promises less than nothing": (LIST, varint(-(1 << 62)) + varint(1), None),
    "avro: a text of a length below 0": (TEXT, varint(-1) + b"abc", None),
    "avro: a text that promises more": (TEXT, varint(1 << 50) + b"abc", None),
    "avro: not UTF-8": (TEXT, varint(1) + b"\xff", None),
    "avro: more behind": (TEXT, varint(1) + b"abc", "left behind"),
    "avro: a number without end": (LIST, b"\xff" * 100, None),
    "avro: more values than may be": (
        LIST, varint(200_000) + b"\0" * 200_000 + b"\0", "more than 100000 values"),
    "json: deep": (ANY, b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}", "more than 64 levels"),
    "json: deep behind texts": (
        ANY, b'{"a":' + b'["]]]\\"]]",' * 100 + b"1" + b"]" * 100 + b"}", "more than 64 levels"),
    "json: NaN": (ANY, b'{"a": NaN}', "NaN"),
    "json: beyond numbers": (ANY, b'{"a": 1e999}', "beyond the range"),
    "json: a number of many digits": (ANY, b'{"a": ' + b"9" * 5000 + b"}", None),
    "json: a name twice": (ANY, b'{"a": 1, "a": 2}', "stands twice"),
    "json: half a surrogate pair": (
        decoder(json_schema(obj(a={"type": "string"}))), b'{"a": "\\ud800"}', "surrogates"),
    "json: more values than may be": (
        decoder(json_schema(obj(a={"type": "array", "items": {"type": "integer"}}))),
        b'{"a": [' + b"1," * 150_000 + b"1]}", "more than 100000 values"),
    "json: a number beyond its column": (
        decoder(json_schema(obj(a={"type": "integer"}))), b'{"a": 9223372036854775808}', "int64"),
    "protobuf: not a message": (MANY, b"\xff" * 20, None),
    "protobuf: a length that promises more": (MANY, b"\x0a\xff\xff\xff\xff\x0f", None),
    "protobuf: more values than may be": (MANY, b"\x0a\x00" * 200_000, "more than 100000 values"),
    "protobuf: a time out of range": (
        decoder(proto(("at", 1, F.TYPE_MESSAGE, None, ".google.protobuf.Timestamp"))),
        b"\x0a\x0a\x08" + b"\xff" * 8 + b"\x7f", "out of range"),
    "any: a large record": (ANY, b" " * (limits.MAX_RECORD_BYTES + 1), "are decoded"),
    "avro: a branch below 0": (MAYBE, varint(-1) + b"\x02a", "not the index of a branch or symbol"),
    "avro: a branch beyond": (MAYBE, varint(2) + b"\x02a", "out of range"),
    "avro: a symbol below 0": (SYMBOL, varint(-2), "not the index of a branch or symbol"),
    "avro: a symbol beyond": (SYMBOL, varint(2), "out of range"),
    "avro: a number beyond its column": (NUMBER, varint(1 << 31), "a is out of the range of int32"),
    "avro: more digits than its decimal has": (
        MONEY, varint(3) + (1_000_000).to_bytes(3, "big"), "a has more than 6 digits"),
    "avro: a day out of range": (
        decoder(avro(record(("a", {"type": "int", "logicalType": "date"}, {})))),
        varint((1 << 31) - 1), None),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_hostile_record_is_bad_with_the_reason(name: str) -> None:
    found, payload, reason = BAD[name]
    with pytest.raises(BadRecordError, match=reason):
        found.row(payload)


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        # Each would hold a validator with backtracking, or with texts of values, for minutes.
        ({"type": "string", "pattern": "^(a+)+$"}, '"' + "a" * 900_000 + '!"', "does not match"),
        ({"patternProperties": {"(x+x+)+y": False}}, '{"' + "x" * 900_000 + '": 1}', None),
        ({"anyOf": [{"type": "string"}] * 1500}, "[" + "1," * 60_000 + "1]", "fits none"),
        ({"allOf": [{"uniqueItems": True}] * 1500},
         "[" + ",".join(map(str, range(60_000))) + "]", "more than 10000000 steps"),
        ({"items": {"enum": [[n] for n in range(20_000)]}}, "[" + "[19999]," * 20_000 + "[-1]]",
         "its enum"),
        ({"items": {"required": [f"n{n}" for n in range(20_000)]}},
         "[" + "1," * 60_000 + "{}]", "n0 is missing"),
        ({"items": {"type": "object", "dependentRequired": {f"n{n}": [] for n in range(10_000)}}},
         "[" + "{}," * 60_000 + "{}]", "more than 10000000 steps"),
    ],
)  # fmt: skip
def test_what_a_json_schema_costs_is_bounded(schema: Any, value: str, reason: str | None) -> None:
    found = decoder(json_schema(obj(a=schema)))
    payload = b'{"a": ' + value.encode() + b"}"
    if reason is None:
        found.value(payload)
        return
    with pytest.raises(BadRecordError, match=reason) as raised:
        found.value(payload)
    assert len(str(raised.value)) < 300  # and no text of the whole value


def _of_one_field() -> tuple[Decoder, bytes]:
    items = {"type": "array", "items": record(("x", "null", {}), ("y", "int", {}), name="I")}
    return decoder(avro(record(("a", items, {})))), b"".join(
        [varint(1_000_000), b"\0" * 1_000_000, b"\0"]
    )[: limits.MAX_RECORD_BYTES]  # fmt: skip


def _with_defaults() -> tuple[Decoder, bytes]:
    def version(*more: Any) -> Schema:
        items = record(("y", "int", {}), *more, name="I")
        return avro(record(("a", {"type": "array", "items": items}, {})))

    later = version(("text", "string", {"default": "d" * 4_000}))
    return decoder(version(), later), varint(30_000) + b"\0" * 30_001


def _of_messages() -> tuple[Decoder, bytes]:
    wide = [(f"f{n}", n + 1, F.TYPE_DOUBLE) for n in range(1_900)]
    found = proto(("m", 1, F.TYPE_MESSAGE, F.LABEL_REPEATED, ".t.N"), N=wide)
    return decoder(found), b"\x0a\x00" * 20_000


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (_of_one_field, "more than 100000 values"),
        (_with_defaults, "more than 16777216 bytes of texts"),
        (_of_messages, "more than 100000 values"),
    ],
    ids=["avro: items of a byte", "avro: defaults of items", "protobuf: wide messages"],
)
def test_a_record_is_refused_before_it_takes_much_memory(made: Any, reason: str) -> None:
    found, payload = made()
    found.row(b"\0" if found.schemas.versions[0].kind is SchemaKind.AVRO else b"",
              version_headers(1))  # fmt: skip
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # its peak is what it is now
    before = _resident_mb()
    tracemalloc.start()
    try:
        with pytest.raises(BadRecordError, match=reason):
            found.row(payload, version_headers(1))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 48 << 20
    assert _resident_mb() - before < 100  # Protobuf has memory of its own


def _resident_mb() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.split("VmHWM:")[1].split()[0]) >> 10


LISTS = decoder(avro(record(
    ("m", {"type": "map", "values": {"type": "array", "items": ["null", "double", "string"]}}, {}),
    ("r", {"type": "array", "items": record(("b", "bytes", {}), ("t", "boolean", {}), (
        "f", {"type": "fixed", "name": "F", "size": 3}, {}), ("n", "long", {}), name="I")}, {}),
)))  # fmt: skip


@given(
    st.dictionaries(st.text(max_size=3), st.lists(st.none() | st.floats() | st.text(max_size=3))),
    st.lists(st.fixed_dictionaries({
        "b": st.binary(max_size=3), "t": st.booleans(), "f": st.binary(min_size=3, max_size=3),
        "n": st.integers(-(2**63), 2**63 - 1),
    })),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_values_are_counted_as_they_are_decoded(m: Any, r: Any) -> None:
    payload = LISTS.encode({"m": m, "r": r})
    count = 3 + sum(2 + len(each) for each in m.values()) + 5 * len(r)
    version = format_of(LISTS.schemas.of(1))
    version._counted_from_bytes = 0  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch:
        name = "quorumbook.streams.schemas.avro_format.MAX_VALUES"
        patch.setattr(name, count)
        LISTS.value(payload)
        patch.setattr(name, count - 1)
        with pytest.raises(BadRecordError, match="values in one record"):
            LISTS.value(payload)


def test_integers_beyond_64_bits_are_decimals_where_the_bounds_say_so() -> None:
    wide = {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}
    found = decoder(json_schema(obj(a=wide, b={"type": "integer", "maximum": 2**63 - 1})))
    assert kinds(found.schemas.of(1)) == {"a": "decimal128", "b": "int64"}
    most = b'{"a": 18446744073709551615, "b": 9223372036854775807}'
    assert found.row(most) == {"a": Decimal(2**64 - 1), "b": 2**63 - 1}
    with pytest.raises(BadRecordError, match="9223372036854775807"):
        found.row(b'{"b": 9223372036854775808}')
    unsigned = decoder(proto(("a", 1, F.TYPE_UINT64)))
    assert unsigned.row(b"\x08" + b"\xff" * 9 + b"\x01") == {"a": Decimal(2**64 - 1)}


def test_a_long_record_of_messages_is_decoded_where_its_values_are_few() -> None:
    inner = [("x", 1, F.TYPE_INT32), ("s", 2, F.TYPE_STRING)]
    found = decoder(proto(("m", 1, F.TYPE_MESSAGE, F.LABEL_REPEATED, ".t.N"), N=inner))
    payload = b"\x0a\x0a\x08\x05\x12\x02ab\x1b\x20\x01\x1c" * 15_000  # with an unknown group
    assert len(found.value(payload)["m"]) == 15_000


@pytest.mark.parametrize("is_older", [False, True])
def test_an_index_below_0_is_refused_wherever_it_lies(is_older: bool) -> None:
    symbols = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
    inner = record(("x", ["null", symbols], {}), ("y", "E", {}), name="I")
    fields = [
        ("l", {"type": "array", "items": inner}, {}), ("m", {"type": "map", "values": "E"}, {}),
    ]  # fmt: skip
    versions = [avro(record(*fields)), avro(record(*fields, ("z", "int", {"default": 0})))]
    found = decoder(*versions[: 1 + is_older])

    def bytes_of(branch: int, symbol: int, named: int, value: int) -> bytes:
        items = varint(1) + b"".join(map(varint, (branch, symbol, named))) + b"\0"
        return items + varint(1) + varint(1) + b"k" + varint(value) + b"\0"

    good = found.value(bytes_of(1, 0, 1, 1), version_headers(1))
    assert (good["l"], good["m"]) == ([{"x": "A", "y": "B"}], {"k": "B"})
    for place in range(4):
        for index in -1, -2, 2:
            indexes = [1, 0, 1, 1]
            indexes[place] = index
            with pytest.raises(BadRecordError):
                found.value(bytes_of(*indexes), version_headers(1))


def test_steps_are_counted_alike_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    check = check_of({"items": {"type": "integer"}})
    monkeypatch.setattr("quorumbook.streams.schemas.json_checks.MAX_STEPS", 1000)
    assert problem_of(check, [1] * 99) is None
    with pytest.raises(TooMuchError, match="more than 1000 steps"):
        problem_of(check, [1] * 100)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_bytes_by_chance_are_decoded_or_bad(payload: bytes) -> None:
    for found in LIST, TEXT, ANY, MANY, MAYBE, SYMBOL, NUMBER, MONEY:
        with contextlib.suppress(BadRecordError):
            found.row(payload)


def test_what_is_cut_anywhere_is_bad() -> None:
    found = decoder(avro(record(("a", "string", {}), ("b", {"type": "array", "items": "int"}, {}))))
    payload = found.encode({"a": "text", "b": [1, 2, 3]})
    for size in range(len(payload)):
        with pytest.raises(BadRecordError):
            found.row(payload[:size])


# Our checks of JSON, beside jsonschema's ------------------------------------------------------

LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, "", "a", "ab"])
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=6,
)  # fmt: skip
RULES = st.recursive(
    st.sampled_from([
        {}, True, False, {"type": "integer"}, {"type": ["string", "null"]}, {"type": "number"},
        {"enum": [1, "a", [0.5], {"a": 1}]}, {"const": {"a": [1]}}, {"minimum": 0},
        {"exclusiveMaximum": 2}, {"multipleOf": 0.5}, {"minLength": 1}, {"maxLength": 1},
        {"pattern": "^a"}, {"minItems": 1}, {"maxItems": 1}, {"uniqueItems": True},
        {"required": ["a"]}, {"minProperties": 1}, {"maxProperties": 1},
        {"dependentRequired": {"a": ["b"]}}, {"propertyNames": {"pattern": "^[ab]"}},
    ]),
    lambda inner: st.one_of(
        st.builds(lambda x: {"items": x}, inner),
        st.builds(lambda x, y: {"prefixItems": [x], "items": y}, inner, inner),
        st.builds(lambda x: {"contains": x, "minContains": 1, "maxContains": 2}, inner),
        st.builds(lambda x, y: {"properties": {"a": x}, "additionalProperties": y}, inner, inner),
        st.builds(lambda x, y: {"patternProperties": {"^a": x}, "additionalProperties": y},
                  inner, inner),
        st.builds(lambda x: {"not": x}, inner),
        st.builds(lambda x, y, z: {"if": x, "then": y, "else": z}, inner, inner, inner),
        *(st.builds(lambda xs, name=name: {name: xs}, st.lists(inner, min_size=1, max_size=3))
          for name in ("allOf", "anyOf", "oneOf")),
    ),
    max_leaves=5,
)  # fmt: skip


@given(RULES, VALUES)
@settings(max_examples=400, deadline=None)
def test_our_checks_agree_with_jsonschema(schema: Any, value: Any) -> None:
    expected = jsonschema.Draft202012Validator(schema).is_valid(value)
    assert (problem_of(check_of(schema), value) is None) == expected


def test_a_record_in_a_container_file_is_not_taken_for_a_bare_one() -> None:
    data = io.BytesIO()
    fastavro.writer(data, record(("a", "string", {})), [{"a": "x"}])
    with pytest.raises(BadRecordError):
        TEXT.row(data.getvalue())
