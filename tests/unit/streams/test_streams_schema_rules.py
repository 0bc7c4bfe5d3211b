"""Which version of a schema may follow which: by rule, by format, with the field named."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

pytest.importorskip("fastavro", reason="pip install 'quorumbook[schema]'")

from quorumbook.streams.errors import SchemaIncompatibleError
from quorumbook.streams.format.schemas import Compatibility, Schema, SchemaKind
from quorumbook.streams.schemas.compatibility import check_follows

BACKWARD, FORWARD, FULL, NONE = Compatibility
F = descriptor_pb2.FieldDescriptorProto


def avro(*fields: Any, name: str = "R") -> Schema:
    made = [{"name": key, "type": kind, **more} for key, kind, more in fields]
    return Schema(SchemaKind.AVRO, json.dumps({"type": "record", "name": name, "fields": made}))


def obj(required: tuple[str, ...] = (), more: Any = None, **properties: Any) -> Schema:
    schema = {"type": "object", "properties": {"id": {"type": "integer"}, **properties}}
    if required:
        schema["required"] = list(required)
    if more is not None:
        schema["additionalProperties"] = more
    return Schema(SchemaKind.JSON, json.dumps(schema))


def proto(*fields: tuple[str, int, Any, Any], syntax: str = "proto2") -> Schema:
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax=syntax)
    message = file.message_type.add(name="M")
    for name, number, kind, label in fields:
        message.field.add(name=name, number=number, type=kind, label=label)
    data = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    return Schema(SchemaKind.PROTOBUF, base64.b64encode(data).decode(), "t.M")


ONE, MANY, MUST = F.LABEL_OPTIONAL, F.LABEL_REPEATED, F.LABEL_REQUIRED
ID: Any = ("id", "long", {})
E1 = {"type": "enum", "name": "E", "symbols": ["A"]}
E2 = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
INNER = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "int"}]}
INNER2 = {"type": "record", "name": "I", "fields": [{"name": "y", "type": "int"}]}
S, N = {"type": "string"}, {"type": "number"}

#: Old, new, whether new reads old, whether old reads new, and what is named.
CASES: dict[str, tuple[Schema, Schema, bool, bool, str]] = {
    "avro: a field with a default": (
        avro(ID), avro(ID, ("x", "int", {"default": 1})), True, True, ""),
    "avro: a field without": (avro(ID), avro(ID, ("x", "int", {})), False, True, "the field x"),
    "avro: a field goes": (avro(ID, ("x", "int", {})), avro(ID), True, False, "the field x"),
    "avro: int to long": (
        avro(("x", "int", {})), avro(("x", "long", {})), True, False, "the field x"),
    "avro: long to string": (
        avro(("x", "long", {})), avro(("x", "string", {})), False, False, "the field x was long"),
    "avro: string to bytes": (avro(("x", "string", {})), avro(("x", "bytes", {})), True, True, ""),
    "avro: may be null": (
        avro(("x", "int", {})), avro(("x", ["null", "int"], {})), True, False, "the field x"),
    "avro: a symbol more": (avro(("x", E1, {})), avro(("x", E2, {})), True, False, "symbol B"),
    "avro: another name with an alias": (
        avro(("x", "int", {})), avro(("y", "int", {"aliases": ["x"]})), True, False, "the field x"),
    "avro: within a list": (
        avro(("l", {"type": "array", "items": INNER}, {})),
        avro(("l", {"type": "array", "items": INNER2}, {})), False, False, "l.items.y"),
    "avro: another record": (avro(ID), avro(ID, name="Q"), False, False, "the record"),
    "avro: digits": (
        avro(("x", {"type": "bytes", "logicalType": "decimal", "precision": 4}, {})),
        avro(("x", {"type": "bytes", "logicalType": "decimal", "precision": 5}, {})),
        False, False, "the field x has other digits"),
    "json: a field that need not be": (obj(), obj(x=S), True, True, ""),
    "json: a field that must be": (obj(), obj(("x",), x=S), False, True, "the field x is required"),
    "json: a field need not be any more": (
        obj(("x",), x=S), obj(x=S), True, False, "the field x is required"),
    "json: number to integer": (
        obj(x=N), obj(x={"type": "integer"}), False, True, "the field x was number"),
    "json: may be null": (
        obj(x=S), obj(x={"type": ["string", "null"]}), True, False, "the field x"),
    "json: a value more": (
        obj(x={"enum": ["a"]}), obj(x={"enum": ["a", "b"]}), True, False, "the field x has lost"),
    "json: tighter": (
        obj(x={**S, "maxLength": 9}), obj(x={**S, "maxLength": 8}), False, True,
        "the field x has a tighter maxLength"),
    "json: a minimum of 0 characters": (obj(x=S), obj(x={**S, "minLength": 0}), True, True, ""),
    "json: another pattern": (
        obj(x={**S, "pattern": "a"}), obj(x={**S, "pattern": "b"}), False, False,
        "the field x has another pattern"),
    "json: nothing beside": (obj(x=S), obj(more=False), False, True, "the field x may not be"),
    "json: nothing beside, and a field": (
        obj(more=False), obj(more=False, x=S), True, False, "the field x may not be"),
    "json: within a list": (
        obj(l={"type": "array", "items": S}), obj(l={"type": "array", "items": N}), False, False,
        r"the field l\[\]"),
    "json: within a field": (
        obj(f={"type": "object", "properties": {"x": S}}),
        obj(f={"type": "object", "properties": {"x": N}}), False, False, "the field f.x"),
    "protobuf: a field": (
        proto(("a", 1, F.TYPE_INT32, ONE)),
        proto(("a", 1, F.TYPE_INT32, ONE), ("b", 2, F.TYPE_STRING, ONE)), True, True, ""),
    "protobuf: a required field": (
        proto(("a", 1, F.TYPE_INT32, ONE)),
        proto(("a", 1, F.TYPE_INT32, ONE), ("b", 2, F.TYPE_STRING, MUST)), False, True,
        "the field b is new and required"),
    "protobuf: another name": (
        proto(("a", 1, F.TYPE_INT32, ONE)), proto(("z", 1, F.TYPE_INT64, ONE)), True, True, ""),
    "protobuf: another number": (
        proto(("a", 1, F.TYPE_INT32, ONE)), proto(("a", 2, F.TYPE_INT32, ONE)), False, False,
        "the field a had the number 1 and has 2"),
    "protobuf: another type": (
        proto(("a", 1, F.TYPE_INT32, ONE)), proto(("a", 1, F.TYPE_STRING, ONE)), False, False,
        "the field a was int32 and is string"),
    "protobuf: repeated": (
        proto(("a", 1, F.TYPE_INT32, ONE)), proto(("a", 1, F.TYPE_INT32, MANY)), False, False,
        "the field a is repeated and was single"),
    "another language": (avro(ID), obj(), False, False, "version 1 is avro"),
}  # fmt: skip


@pytest.mark.parametrize("rule", Compatibility)
@pytest.mark.parametrize("case", CASES)
def test_a_version_follows_if_its_rule_is_kept(case: str, rule: Compatibility) -> None:
    old, new, reads_old, read_by_old, named = CASES[case]
    is_kept = {
        BACKWARD: reads_old, FORWARD: read_by_old, FULL: reads_old and read_by_old, NONE: True,
    }[rule]  # fmt: skip
    if is_kept:
        check_follows("s", new, [old], rule)
        return
    with pytest.raises(SchemaIncompatibleError) as raised:
        check_follows("s", new, [old], rule)
    assert "of stream s" in str(raised.value)
    assert rule.value in str(raised.value)
    assert "version 1" in str(raised.value)
    if rule is (FORWARD if reads_old else BACKWARD):
        assert raised.match(named)


def test_a_version_is_compared_with_all_before_it() -> None:
    first, second = avro(ID, ("x", "int", {})), avro(ID)
    again = avro(ID, ("x", "string", {"default": ""}))
    check_follows("s", second, [first], BACKWARD)
    check_follows("s", again, [second], BACKWARD)
    with pytest.raises(SchemaIncompatibleError, match="with version 1: the field x was int"):
        check_follows("s", again, [first, second], BACKWARD)
