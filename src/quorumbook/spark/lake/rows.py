"""Records as rows of a table: as they are, or with the fields of their JSON as columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from quorumbook.errors import ConfigError
from quorumbook.streams import Record

_TIME = pa.timestamp("us", tz="UTC")
_PLACE = [
    ("stream", pa.string()),
    ("partition", pa.int32()),
    ("seq", pa.int64()),
    ("txid", pa.int64()),
    ("timestamp", _TIME),
    ("event_time", _TIME),
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
]
_TYPES: Mapping[str, tuple[pa.DataType, type | tuple[type, ...]]] = {
    "string": (pa.string(), str),
    "boolean": (pa.bool_(), bool),
    "int": (pa.int32(), int),
    "bigint": (pa.int64(), int),
    "double": (pa.float64(), (int, float)),
}


def schema_of(fields: str) -> pa.Schema:
    """Return a table's columns.

    Args:
        fields: Of the records' JSON, such as ``carrier string, delay int``; empty: not looked at.

    Raises:
        ConfigError: there is no such type, or a column twice.
    """
    return pa.schema([*_PLACE, *((name, _TYPES[kind][0]) for name, kind in _parsed(fields))])


def _parsed(fields: str) -> list[tuple[str, str]]:
    found = []
    taken = {name for name, _ in _PLACE}
    for word in filter(None, map(str.strip, fields.split(","))):
        name, _, kind = word.partition(" ")
        kind = {"long": "bigint", "integer": "int"}.get(kind.strip().lower(), kind.strip().lower())
        if kind not in _TYPES:
            raise ConfigError(
                f"--decode {word!r}: NAME TYPE, where TYPE is one of {', '.join(_TYPES)}"
            )
        if name in taken:
            raise ConfigError(f"--decode {word!r}: there is a column {name} already")
        taken.add(name)
        found.append((name, kind))
    return found


class LakeRows:
    """Makes tables of records."""

    def __init__(self, fields: str) -> None:
        """Take the fields of the JSON; see ``schema_of``."""
        self.schema = schema_of(fields)
        self._fields = _parsed(fields)
        #: Records that were no such JSON: they are rows with ``value``, and without the fields.
        self.undecoded = 0

    def table(self, stream: str, partition: int, records: Sequence[Record]) -> pa.Table:
        """Return the rows of some records of one stream, or of one of its partitions."""
        values: list[bytes | None] = [record.payload for record in records]
        decoded: list[Sequence[Any]] = []
        if self._fields:
            nothing = (None,) * len(self._fields)
            for index, record in enumerate(records):
                found = self._decode(record.payload)
                if found is not None:
                    values[index] = None
                else:
                    self.undecoded += 1
                decoded.append(found or nothing)
        columns: list[Any] = [
            [stream] * len(records),
            [None if partition < 0 else partition] * len(records),
            [record.sequence_id for record in records],
            [record.txid for record in records],
            [_us(record.appended_at_ms) for record in records],
            [_us(record.event_time_ms) for record in records],
            [record.key for record in records],
            values,
            [_headers(record) for record in records],
            *zip(*decoded, strict=True),
        ]
        arrays = [
            pa.array(column, field.type) for column, field in zip(columns, self.schema, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def _decode(self, payload: bytes) -> tuple[Any, ...] | None:
        try:
            found = json.loads(payload)
        except ValueError:
            return None
        if not isinstance(found, dict):
            return None
        row = tuple(found.get(name) for name, _ in self._fields)
        for value, (_, kind) in zip(row, self._fields, strict=True):
            if value is not None and not _fits(value, kind):
                return None
        return row


def _fits(value: Any, kind: str) -> bool:
    if not isinstance(value, _TYPES[kind][1]) or (isinstance(value, bool) and kind != "boolean"):
        return False
    bits = {"int": 31, "bigint": 63}.get(kind)
    return bits is None or -(2**bits) <= value < 2**bits


def _headers(record: Record) -> list[dict[str, Any]] | None:
    found = [{"key": name, "value": value} for name, value in record.attributes.headers]
    return found or None


def _us(time_ms: int | None) -> int | None:
    return None if time_ms is None else time_ms * 1000
