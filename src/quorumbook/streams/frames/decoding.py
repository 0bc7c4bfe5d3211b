"""The columns of decoded records: the fields of a stream's schema, beside where records are.

A field whose name a column of records has already, in whatever case, gets ``_`` behind its name.
Records are decoded whole wherever one of their fields is wanted, so that a record is bad whichever
columns are asked for; only the columns that are wanted are made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from quorumbook.client.reading.columns import null_column, optional_binary_column
from quorumbook.streams.errors import BadRecordError
from quorumbook.streams.format.attributes import Attributes
from quorumbook.streams.frames.records import MAKERS, SCHEMA, Maker, Records, batch_of
from quorumbook.streams.reading.batches import RecordBatch
from quorumbook.streams.schemas.columns import Column, ColumnKind
from quorumbook.streams.schemas.decoder import Decoder

#: What to do about records that cannot be decoded: an error; rows that say why, with the bytes as
#: ``value`` and without the fields; nothing.
OnBad: TypeAlias = Literal["fail", "null", "drop"]
#: What beside the fields is made of bad records.
BAD_COLUMNS: Mapping[str, pa.DataType] = {"value": pa.binary(), "_error": pa.string()}
_TAKEN = {*SCHEMA.names, "event_time", "_error"}
_NOTHING = Attributes()

_TYPES: Mapping[ColumnKind, pa.DataType] = {
    ColumnKind.BOOL: pa.bool_(),
    ColumnKind.INT32: pa.int32(),
    ColumnKind.INT64: pa.int64(),
    ColumnKind.FLOAT32: pa.float32(),
    ColumnKind.FLOAT64: pa.float64(),
    ColumnKind.STRING: pa.string(),
    ColumnKind.BYTES: pa.binary(),
    ColumnKind.DATE: pa.date32(),
    ColumnKind.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    ColumnKind.JSON: pa.string(),
}


class RecordDecoding:
    """Makes Arrow batches with the fields of records.

    Args:
        decoder: What decodes.
        on_bad: What to do about records that cannot be decoded.
    """

    def __init__(self, decoder: Decoder, on_bad: OnBad = "fail") -> None:
        self._decoder = decoder
        self._on_bad = on_bad
        self.is_dropping = on_bad == "drop"
        #: By column: the field.
        self._fields = {name: field for name, (field, _) in _named(decoder.column)}
        #: The columns of the fields, in the schema's order.
        self.schema = pa.schema(
            [(name, arrow_type(column)) for name, (_, column) in _named(decoder.column)]
        )
        #: Bad records so far.
        self.bad = 0

    def batch_of(
        self, records: Records, schema: pa.Schema, makers: Mapping[str, Maker] = MAKERS
    ) -> pa.RecordBatch:
        """Return records as rows with some columns, in the schema's order.

        Raises:
            BadRecordError: one cannot be decoded, and that is to fail.
        """
        wanted = {name: field for name, field in self._fields.items() if name in schema.names}
        is_about_bad = self.is_dropping or not BAD_COLUMNS.keys().isdisjoint(schema.names)
        if not wanted and not is_about_bad:
            return batch_of(records, schema, makers)
        rows, bad = self._decoded(records)
        self.bad += len(bad)
        own: dict[str, Maker] = {
            name: lambda _, kind, field=field: pa.array(  # type: ignore[misc]
                [None if row is None else row[field] for row in rows], kind
            )
            for name, field in wanted.items()
        }
        own["value"] = lambda _, kind: _of_bad(bad, len(rows), kind, 0)
        own["_error"] = lambda _, kind: _of_bad(bad, len(rows), kind, 1)
        found = batch_of(records, schema, {**makers, **own})
        if bad and self.is_dropping:
            return found.filter(pa.array([row is not None for row in rows]))
        return found

    def _decoded(self, records: Records) -> tuple[list[Any], dict[int, tuple[bytes, str]]]:
        """Return rows, without those of bad records, and the bytes and the reason of these."""
        rows: list[Any] = []
        bad: dict[int, tuple[bytes, str]] = {}
        decode = self._decoder.row
        for batch, slot, payload in _each(records):
            try:
                rows.append(decode(payload, dict(batch.attributes.get(slot, _NOTHING).headers)))
            except BadRecordError as error:
                if self._on_bad == "fail":
                    position = batch.first_position._replace(slot=slot)
                    raise BadRecordError(
                        f"record {position} of stream {records.stream} cannot be decoded: {error}"
                    ) from error
                bad[len(rows)] = payload, str(error)
                rows.append(None)
        return rows, bad


def arrow_type(column: Column) -> pa.DataType:
    """Return the type of a column."""
    if column.kind is ColumnKind.DECIMAL:
        return pa.decimal128(*column.digits)
    if column.kind is ColumnKind.STRUCT:
        return pa.struct([(name, arrow_type(part)) for name, part in column.fields])
    if column.item is not None:
        inner = arrow_type(column.item)
        return pa.list_(inner) if column.kind is ColumnKind.LIST else pa.map_(pa.string(), inner)
    return _TYPES[column.kind]


def _named(column: Column) -> Iterator[tuple[str, tuple[str, Column]]]:
    """Yield the fields by the names of their columns, which are all different without case."""
    taken = {name.lower() for name in _TAKEN}
    for field, part in column.fields:
        name = field
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        yield name, (field, part)


def _each(records: Records) -> Iterator[tuple[RecordBatch, int, bytes]]:
    """Yield each record's batch, the slot that it has in its entry, and its payload."""
    for batch in records.batches:
        for slot, payload in enumerate(batch.payloads, batch.first_position.slot):
            yield batch, slot, payload


def _of_bad(
    bad: Mapping[int, tuple[bytes, str]], count: int, kind: pa.DataType, which: int
) -> pa.Array:
    if not bad:
        return null_column(kind, count)
    found: list[Any] = [bad[index][which] if index in bad else None for index in range(count)]
    return optional_binary_column(found) if pa.types.is_binary(kind) else pa.array(found, kind)
