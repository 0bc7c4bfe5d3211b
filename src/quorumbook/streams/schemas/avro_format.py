"""Records of Avro's binary encoding, without a file's header, by an Avro schema.

The top level is a record, whose fields are the columns.  A record is read by the schema that it
was written with and becomes one of the schema that is asked for, as Avro's resolution has it.

fastavro decodes.  What it would believe is looked at before: a schema that contains itself has no
columns; items that take no bytes, or few beside how many values they are, make a small record a
large list, so their lists are refused, and so are very long symbols; a branch or a symbol below 0
would be counted from the end.  A value takes a few hundred bytes of memory, so those of a record
are counted before they are made, unless it is too short for so many.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from quorumbook.client.reading.tabular import needs_extra
from quorumbook.errors import ConfigError
from quorumbook.streams.schemas.columns import Column, ColumnKind, shaped
from quorumbook.streams.schemas.limits import (
    MAX_DEFAULT_BYTES,
    MAX_TYPES,
    MAX_VALUES,
    StepBudget,
    check_depth,
    parse_json,
)

_PRIMITIVES = {
    "null": ColumnKind.JSON,
    "boolean": ColumnKind.BOOL,
    "int": ColumnKind.INT32,
    "long": ColumnKind.INT64,
    "float": ColumnKind.FLOAT32,
    "double": ColumnKind.FLOAT64,
    "bytes": ColumnKind.BYTES,
    "string": ColumnKind.STRING,
}
#: What a logical type is made of, and the column it has; others are read as what they are made of.
_LOGICAL = {
    ("int", "date"): ColumnKind.DATE,
    ("long", "timestamp-millis"): ColumnKind.TIMESTAMP,
    ("long", "timestamp-micros"): ColumnKind.TIMESTAMP,
    ("bytes", "decimal"): ColumnKind.DECIMAL,
    ("fixed", "decimal"): ColumnKind.DECIMAL,
}
_FIXED_SIZES = {"null": 0, "float": 4, "double": 8}
_KEPT = ("type", "name", "namespace", "aliases", "fields", "items", "values", "symbols", "size",
         "default")  # fmt: skip
_MAX_FIXED_BYTES = 1 << 16
#: Of a type or a symbol, which an item of one byte may stand for.
_MAX_NAME_CHARACTERS = 255
#: An item of a list may be so many values, and two more for each byte that it takes at least.
_FREE_VALUES = 4


class AvroFormat:
    """One version of an Avro schema, compiled."""

    def __init__(self, text: str) -> None:
        """Compile it.

        Raises:
            ConfigError: it is not an Avro schema, asks for too much, or has no columns.
        """
        with needs_extra("'quorumbook[schema]'"):
            import fastavro  # noqa: PLC0415
        try:
            walk = _SchemaWalk()
            #: The schema with what matters for decoding, and with every name's full form.
            self.schema = walk.cleaned(parse_json(text.encode()), "", 0)
            self.names = walk.names
            self.column = _column(self.schema, self.names)
            self._parsed = fastavro.parse_schema(self.schema)
            self._written = _with_checked_indexes(self._parsed)
        except ConfigError:
            raise
        except Exception as error:  # whatever the package makes of a hostile schema
            raise ConfigError(f"the Avro schema is not usable: {error}") from error
        if self.column.kind is not ColumnKind.STRUCT or not self.column.fields:
            raise ConfigError(
                "the Avro schema is not usable: its top level is not a record with fields, so it "
                "has no columns"
            )
        self._is_shaped = not self.column.needs_shaping()
        #: A shorter record has not too many values.
        self._counted_from_bytes = self._shortest_of_many()

    def _shortest_of_many(self) -> float:
        rate = max(values_of_a_byte(self.schema, self.names), default=0.0)
        return (MAX_VALUES - values_of(self.schema, self.names)) / rate if rate else math.inf

    def check_values(self, payload: bytes) -> None:
        """Raise ValueError where a record of this version has more than ``MAX_VALUES`` values."""
        if len(payload) > self._counted_from_bytes:
            _ValueWalk(payload, self.names).go(self.schema)

    def decode(self, payload: bytes, written: AvroFormat) -> Any:
        """Return the record that was written with a version, as one of this version.

        Raises:
            ValueError: the bytes are not such a record, or it does not become one of this.
        """
        import fastavro  # noqa: PLC0415

        written.check_values(payload)
        data = io.BytesIO(payload)
        reader = None if written is self else self._parsed
        try:
            value = fastavro.schemaless_reader(data, written._written, reader)
        except Exception as error:  # whatever the package makes of hostile bytes
            found = str(error) or type(error).__name__
            raise ValueError(f"not a record of its schema: {found}") from error
        rest = len(payload) - data.tell()
        if rest:
            raise ValueError(f"{rest} bytes are left behind the record")
        return value

    def row(self, value: Any) -> Any:
        """Return a decoded value as its columns hold it; ValueError: it does not fit them."""
        return value if self._is_shaped else shaped(self.column, value)

    def encode(self, value: Any) -> bytes:
        """Return the record of a value; ValueError: it does not fit the schema."""
        import fastavro  # noqa: PLC0415

        data = io.BytesIO()
        try:
            fastavro.schemaless_writer(data, self._parsed, value, strict=True)
        except Exception as error:
            raise ValueError(f"not a value of its schema: {error}") from error
        return data.getvalue()


class _SchemaWalk:
    """Goes through a schema once, by what it means: names are followed where they are used."""

    def __init__(self) -> None:
        #: What each full name stands for.
        self.names: dict[str, dict[str, Any]] = {}
        self._open: set[str] = set()
        self._budget = StepBudget(MAX_TYPES, "types in one Avro schema, with what they refer to")
        self._defaults = StepBudget(MAX_DEFAULT_BYTES, "bytes of defaults in one Avro schema")

    def cleaned(self, schema: Any, namespace: str, depth: int) -> Any:
        """Return a schema as it is kept."""
        self._budget.take()
        check_depth(depth)
        if isinstance(schema, str):
            return schema if schema in _PRIMITIVES else self._referred(schema, namespace, depth)
        if isinstance(schema, list):
            branches = [self.cleaned(each, namespace, depth + 1) for each in schema]
            if not branches:
                raise ValueError("a union must have branches")
            return branches
        if not isinstance(schema, dict) or "type" not in schema:
            raise ValueError("a type must be a name, a list, or an object with a type")
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.cleaned(kind, namespace, depth + 1)
        kept = {name: schema[name] for name in _KEPT if name in schema}
        if (kind, schema.get("logicalType")) in _LOGICAL:
            kept["logicalType"] = schema["logicalType"]
            if schema["logicalType"] == "decimal":
                kept["precision"], kept["scale"] = _digits(schema)
        return self._of_kind(kind, kept, namespace, depth)

    def _of_kind(self, kind: str, kept: dict[str, Any], namespace: str, depth: int) -> Any:
        if kind in ("record", "error", "enum", "fixed"):
            return self._defined(kind, kept, namespace, depth)
        if kind == "array":
            kept["items"] = self.cleaned(kept.get("items"), namespace, depth + 1)
            if not min_size(kept["items"], self.names):
                raise ValueError("items of an array take no bytes, so it has no end")
            self._check_items(kept["items"])
            return kept
        if kind == "map":
            kept["values"] = self.cleaned(kept.get("values"), namespace, depth + 1)
            self._check_items(kept["values"])
            return kept
        if kind in _PRIMITIVES:
            return kept if "logicalType" in kept else kind
        return self._referred(kind, namespace, depth)

    def _check_items(self, schema: Any) -> None:
        if surplus_values(schema, self.names) > _FREE_VALUES:
            raise ValueError("an item of an array or a map would be many values in few bytes")

    def _defined(self, kind: str, kept: dict[str, Any], namespace: str, depth: int) -> Any:
        name, space = kept.get("name"), kept.pop("namespace", namespace)
        if not isinstance(name, str) or not isinstance(space, str):
            raise ValueError(f"a type of kind {kind} must have a name")
        full = name if "." in name or not space else f"{space}.{name}"
        for each in (full, *(kept.get("symbols") or ())):
            if len(each) > _MAX_NAME_CHARACTERS:
                raise ValueError(f"a name of more than {_MAX_NAME_CHARACTERS} characters")
        if full in self.names:
            raise ValueError(f"the name {full} is given twice")
        kept["name"] = full
        self.names[full] = kept
        if kind == "fixed" and not 0 < int(kept.get("size", 0)) <= _MAX_FIXED_BYTES:
            raise ValueError(f"{full} must have 1 to {_MAX_FIXED_BYTES} bytes")
        if kind in ("record", "error"):
            self._open.add(full)
            kept["fields"] = [
                self._field(each, full.rpartition(".")[0], depth) for each in kept["fields"]
            ]
            self._open.discard(full)
        return kept

    def _field(self, field: Any, namespace: str, depth: int) -> Any:
        if not isinstance(field, dict) or not isinstance(field.get("name"), str):
            raise ValueError("a field must have a name")
        kept = {name: field[name] for name in ("name", "default", "aliases") if name in field}
        if "default" in kept:
            self._defaults.take(len(json.dumps(kept["default"])))
        inner = {name: value for name, value in field.items() if name not in kept}
        return kept | {"type": self.cleaned(inner["type"], namespace, depth + 1)}

    def _referred(self, name: str, namespace: str, depth: int) -> str:
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        if full not in self.names:
            full = name
        if full not in self.names:
            raise ValueError(f"there is no type {name[:80]!r}")
        if full in self._open:
            raise ValueError(f"{full} contains itself, so it has no columns")
        self._count(self.names[full], depth)
        return full

    def _count(self, schema: Any, depth: int) -> None:
        """Count again what a name stands for, with all that lies in it."""
        self._budget.take()
        check_depth(depth)
        if isinstance(schema, str) and schema in self.names:
            self._count(self.names[schema], depth)
        elif isinstance(schema, list):
            for each in schema:
                self._count(each, depth + 1)
        elif isinstance(schema, dict):
            inner = [field["type"] for field in schema.get("fields", ())]
            inner += [schema[name] for name in ("items", "values") if name in schema]
            for each in inner:
                self._count(each, depth + 1)


class _Indexed(list[Any]):
    """Branches or symbols, which have no index below 0.

    Compiled code adds the length to such an index before it asks for the item.
    """

    def __getitem__(self, index: Any) -> Any:
        if index < 0:
            raise ValueError(f"{index} is not the index of a branch or symbol")
        return super().__getitem__(index)

    def __len__(self) -> int:
        return 0


def _with_checked_indexes(parsed: Any) -> Any:
    """Return a schema as fastavro has it, for records that were written with it."""
    if isinstance(parsed, list):
        return _Indexed(map(_with_checked_indexes, parsed))
    if not isinstance(parsed, dict):
        return parsed
    found = dict(parsed)
    for name in found.keys() & {"type", "items", "values"}:
        found[name] = _with_checked_indexes(found[name])
    if "fields" in found:
        found["fields"] = list(map(_with_checked_indexes, found["fields"]))
    if "symbols" in found:
        found["symbols"] = _Indexed(found["symbols"])
    if "__named_schemas" in found:
        known = found["__named_schemas"].items()
        found["__named_schemas"] = {name: _with_checked_indexes(each) for name, each in known}
    return found


def _digits(schema: Mapping[str, Any]) -> tuple[int, int]:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not (isinstance(precision, int) and isinstance(scale, int)):
        raise ValueError("a decimal must have a precision")
    if not 0 <= scale <= precision <= 38 or not precision:
        raise ValueError(
            f"a decimal must have 1 to 38 digits, not {precision} with {scale} of them last"
        )
    return precision, scale


def min_size(schema: Any, names: Mapping[str, Any]) -> int:
    """Return how many bytes a value takes at least."""
    if isinstance(schema, str) and schema in names:
        return min_size(names[schema], names)
    if isinstance(schema, list):
        return 1
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "fixed":
        return int(schema["size"])
    if kind in ("record", "error"):
        return sum(min_size(field["type"], names) for field in schema["fields"])
    return _FIXED_SIZES.get(kind, 1)


def surplus_values(schema: Any, names: Mapping[str, Any]) -> int:
    """Return how many values more than two for each of its bytes a value may be.

    Those in it count, but for what is in a list, which is looked at by itself.
    """
    if isinstance(schema, str) and schema in names:
        return surplus_values(names[schema], names)
    if isinstance(schema, list):
        return max(surplus_values(each, names) for each in schema) - 2
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind in ("record", "error"):
        return 1 + sum(surplus_values(field["type"], names) for field in schema["fields"])
    return 1 - 2 * min_size(schema, names)


def values_of(schema: Any, names: Mapping[str, Any]) -> int:
    """Return how many values a value is at most, but for what is in lists."""
    if isinstance(schema, str) and schema in names:
        return values_of(names[schema], names)
    if isinstance(schema, list):
        return max(values_of(each, names) for each in schema)
    if isinstance(schema, str) or schema["type"] not in ("record", "error"):
        return 1
    return 1 + sum(values_of(field["type"], names) for field in schema["fields"])


def values_of_a_byte(schema: Any, names: Mapping[str, Any]) -> Iterator[float]:
    """Yield of each list in a value how many values there are at most in a byte of its items."""
    if isinstance(schema, str) and schema in names:
        yield from values_of_a_byte(names[schema], names)
    elif isinstance(schema, list):
        for each in schema:
            yield from values_of_a_byte(each, names)
    elif isinstance(schema, dict):
        for field in schema.get("fields", ()):
            yield from values_of_a_byte(field["type"], names)
        for name in schema.keys() & {"items", "values"}:
            is_map = name == "values"
            inner = schema[name]
            yield (values_of(inner, names) + is_map) / (min_size(inner, names) + is_map)
            yield from values_of_a_byte(inner, names)


class _ValueWalk:
    """Goes through a record as its schema has it, and counts its values; makes none."""

    def __init__(self, data: bytes, names: Mapping[str, Any]) -> None:
        self._data = data
        self._names = names
        self._at = 0
        self._budget = StepBudget(MAX_VALUES, "values in one record")

    def go(self, schema: Any) -> None:
        """Pass one value; ValueError: there are too many, or they are not as the schema has it."""
        if isinstance(schema, str) and schema in self._names:
            schema = self._names[schema]
        if isinstance(schema, list):
            index = self._number()
            if not 0 <= index < len(schema):
                raise ValueError(f"{index} is not the index of a branch or symbol")
            self.go(schema[index])
            return
        self._budget.take()
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind in ("record", "error"):
            for field in schema["fields"]:
                self.go(field["type"])
        elif kind in ("array", "map"):
            self._list(schema)
        elif kind in ("int", "long", "enum"):
            self._number()
        elif kind in ("bytes", "string"):
            self._skip(self._number())
        else:
            self._skip(schema["size"] if kind == "fixed" else _FIXED_SIZES.get(kind, 1))

    def _list(self, schema: Any) -> None:
        is_map = schema["type"] == "map"
        inner = schema["values" if is_map else "items"]
        while count := self._number():
            if count < 0:
                self._number()  # the size of the block
            for _ in range(abs(count)):
                if is_map:
                    self._budget.take()
                    self._skip(self._number())
                self.go(inner)

    def _number(self) -> int:
        found = shift = 0
        while True:
            byte = self._data[self._at] if self._at < len(self._data) else -1
            if byte < 0 or shift > 63:
                raise ValueError("not a record of its schema: it ends in its middle")
            self._at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (found >> 1) ^ -(found & 1)
            shift += 7

    def _skip(self, size: int) -> None:
        self._at += size
        if size < 0 or self._at > len(self._data):
            raise ValueError("not a record of its schema: it ends in its middle")


def _column(schema: Any, names: Mapping[str, Any]) -> Column:
    if isinstance(schema, str) and schema in names:
        return _column(names[schema], names)
    if isinstance(schema, list):
        branches = [each for each in schema if each != "null"]
        return _column(branches[0], names) if len(branches) == 1 else Column(ColumnKind.JSON)
    kind = schema if isinstance(schema, str) else schema["type"]
    logical = "" if isinstance(schema, str) else schema.get("logicalType", "")
    if (kind, logical) in _LOGICAL:
        found = _LOGICAL[kind, logical]
        if found is ColumnKind.DECIMAL:
            return Column(found, digits=(schema["precision"], schema["scale"]))
        return Column(found)
    if kind in _PRIMITIVES:
        return Column(_PRIMITIVES[kind])
    if kind == "enum":
        return Column(ColumnKind.STRING)
    if kind == "fixed":
        return Column(ColumnKind.BYTES)
    if kind in ("array", "map"):
        inner = _column(schema["items" if kind == "array" else "values"], names)
        return Column(ColumnKind.LIST if kind == "array" else ColumnKind.MAP, inner)
    fields = tuple((field["name"], _column(field["type"], names)) for field in schema["fields"])
    return Column(ColumnKind.STRUCT, fields=fields)
