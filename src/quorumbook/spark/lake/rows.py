"""Records as rows of a table: as they are, or with fields as columns, of JSON or by a schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from quorumbook.errors import ConfigError
from quorumbook.spark.lake.dead_letters import BadRecord
from quorumbook.spark.lake.upserts import DELETED
from quorumbook.streams import Decoder, Record
from quorumbook.streams.errors import BadRecordError
from quorumbook.streams.frames.decoding import RecordDecoding

#: What becomes of records that cannot be decoded: rows with their bytes, an error, nothing here.
BadRecords: TypeAlias = Literal["keep", "fail", "drop"]

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


def schema_of(fields: str, decoder: Decoder | None = None) -> pa.Schema:
    """Return a table's columns.

    Args:
        fields: Of the records' JSON, such as ``carrier string, delay int``; empty: not looked at.
        decoder: What decodes records in place of ``fields``.

    Raises:
        ConfigError: there is no such type, or a column twice.
    """
    if decoder is not None:
        return pa.schema([*_PLACE, *RecordDecoding(decoder).schema])
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

    def __init__(
        self,
        fields: str,
        decoder: Decoder | None = None,
        bad_records: BadRecords = "keep",
        *,
        upserts: bool = False,
    ) -> None:
        """Take what is decoded, as ``schema_of`` does, and what becomes of bad records.

        Args:
            fields: Of the JSON.
            decoder: What decodes in their place.
            bad_records: ``keep`` has rows with ``value`` and without the fields.
            upserts: Rows are changes: a record with a key and no payload deletes the key's.
        """
        self.schema = schema_of(fields, decoder)
        self._upserts = upserts
        self._fields = _parsed(fields)
        self._decoder = decoder
        self._names = [] if decoder is None else [name for name, _ in decoder.column.fields]
        self._width = len(self.schema) - len(_PLACE)
        if upserts:
            self.schema = self.schema.append(pa.field(DELETED, pa.bool_()))
        self._bad_records = bad_records
        #: How many could not be decoded.
        self.undecoded = 0

    def table(
        self, stream: str, partition: int, records: Sequence[Record]
    ) -> tuple[pa.Table, list[BadRecord]]:
        """Return the rows of some records of one stream, or of one of its partitions.

        Returns:
            The rows, and the records that could not be decoded.

        Raises:
            BadRecordError: one could not be decoded, and that is to fail.
        """
        rows = records
        values: list[bytes | None] = [record.payload for record in records]
        fields: list[Sequence[Any]] = []
        bad: list[BadRecord] = []
        if self._width:
            rows, values, fields = self._decoded(stream, records, bad)
        self.undecoded += len(bad)
        columns: list[Any] = [
            [stream] * len(rows),
            [None if partition < 0 else partition] * len(rows),
            [record.sequence_id for record in rows],
            [record.txid for record in rows],
            [_us(record.appended_at_ms) for record in rows],
            [_us(record.event_time_ms) for record in rows],
            [record.key for record in rows],
            values,
            [_headers(record) for record in rows],
            *(zip(*fields, strict=True) if fields else [[]] * self._width),
        ]
        if self._upserts:
            columns.append([self._deletes(record) for record in rows])
        arrays = [
            pa.array(column, field.type) for column, field in zip(columns, self.schema, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=self.schema), bad

    def _decoded(
        self, stream: str, records: Sequence[Record], bad: list[BadRecord]
    ) -> tuple[list[Record], list[bytes | None], list[Sequence[Any]]]:
        rows: list[Record] = []
        values: list[bytes | None] = []
        fields: list[Sequence[Any]] = []
        for record in records:
            if self._deletes(record):
                rows.append(record)
                values.append(None)
                fields.append((None,) * self._width)
                continue
            value, found = None, None
            try:
                found = self._decode(record)
            except BadRecordError as error:
                if self._bad_records == "fail":
                    raise BadRecordError(
                        f"record {record.position} of stream {stream} cannot be decoded: {error}"
                    ) from error
                bad.append(BadRecord(record, str(error)))
                if self._bad_records == "drop":
                    continue
                value = record.payload
            rows.append(record)
            values.append(value)
            fields.append(found or (None,) * self._width)
        return rows, values, fields

    def _deletes(self, record: Record) -> bool:
        return self._upserts and record.key is not None and not record.payload

    def _decode(self, record: Record) -> tuple[Any, ...]:
        if self._decoder is not None:
            fields = self._decoder.row(record.payload, record.headers)
            return tuple(fields[name] for name in self._names)
        try:
            found = json.loads(record.payload)
        except ValueError as error:
            raise BadRecordError(f"not JSON: {error}") from error
        if not isinstance(found, dict):
            raise BadRecordError("not an object of JSON")
        row = tuple(found.get(name) for name, _ in self._fields)
        for value, (name, kind) in zip(row, self._fields, strict=True):
            if value is not None and not _fits(value, kind):
                raise BadRecordError(f"{name} is not of type {kind}")
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
