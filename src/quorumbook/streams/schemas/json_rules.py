"""Whether what is valid by one JSON Schema is valid by another, as far as can be shown; pure.

What cannot be shown is a conflict: a rule such as ``pattern`` must be the same in both.  A field
that a version does not name is taken for one that its writers did not send, although most schemas
let them; without that no field could ever be added.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from quorumbook.streams.schemas.json_checks import TYPES, canonical
from quorumbook.streams.schemas.json_format import JsonFormat

_LOW = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_HIGH = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_LOOKED_AT = {"type", "enum", "const", "properties", "required", "additionalProperties", "items",
              *_LOW, *_HIGH}  # fmt: skip


def conflict(reader: JsonFormat, writer: JsonFormat) -> str | None:
    """Return which field may be refused and why; None: none."""
    return next(_conflicts(reader.schema, writer.schema, ""), None)


def _conflicts(reader: Any, writer: Any, where: str) -> Iterator[str]:
    if reader is True or reader == {} or writer is False:
        return
    if reader is False:
        yield f"{_field(where)} may not be there any more"
        return
    writer = {} if writer is True else writer
    yield from _of_types(reader, writer, where)
    yield from _of_bounds(reader, writer, where)
    for name in sorted(set(reader) - _LOOKED_AT):
        if name not in writer or canonical(reader[name]) != canonical(writer[name]):
            yield f"{_field(where)} has another {name}"
    yield from _of_objects(reader, writer, where)
    if "items" in reader:
        yield from _conflicts(reader["items"], writer.get("items", True), f"{where}[]")


def _of_types(reader: Any, writer: Any, where: str) -> Iterator[str]:
    allowed, sent = _types(reader), _types(writer)
    if "number" in allowed:
        allowed = allowed | {"integer"}
    lost = sorted(sent - allowed)
    if lost:
        yield f"{_field(where)} was {_said(sent)} and is {_said(_types(reader))}"
    known, written = _values(reader), _values(writer)
    if known is not None and (written is None or not written <= known):
        yield f"{_field(where)} has lost values of its enum"


def _of_bounds(reader: Any, writer: Any, where: str) -> Iterator[str]:
    for names, none, sign in ((_LOW, -math.inf, 1), (_HIGH, math.inf, -1)):
        for name in names:
            if name in reader and sign * reader[name] > sign * writer.get(name, none):
                if name in ("minLength", "minItems", "minProperties") and not reader[name]:
                    continue
                yield f"{_field(where)} has a tighter {name}: {reader[name]}"


def _of_objects(reader: Any, writer: Any, where: str) -> Iterator[str]:
    for name in reader.get("required", ()):
        if name not in writer.get("required", ()):
            yield f"{_field(f'{where}.{name}')} is required, and was not"
    known, written = reader.get("properties", {}), writer.get("properties", {})
    others, sent = reader.get("additionalProperties", True), writer.get("additionalProperties")
    for name in written:
        yield from _conflicts(known.get(name, others), written[name], f"{where}.{name}")
    if sent is not None:
        yield from _conflicts(others, sent, f"{where}.*")
        for name in known:
            if name not in written:
                yield from _conflicts(known[name], sent, f"{where}.{name}")


def _types(schema: Any) -> set[str]:
    found = schema.get("type", list(TYPES))
    return set(found) if isinstance(found, list) else {found}


def _values(schema: Any) -> set[str] | None:
    if "const" in schema:
        return {canonical(schema["const"])}
    return {canonical(each) for each in schema["enum"]} if "enum" in schema else None


def _said(types: set[str]) -> str:
    return "anything" if types == set(TYPES) else " or ".join(sorted(types))


def _field(where: str) -> str:
    return f"the field {where.lstrip('.')}" if where else "the record"
