"""The columns of records, and what makes them of batches as a reader hands them out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from quorumbook.client.reading.columns import (
    binary_column,
    constant_text_column,
    null_column,
    number_column,
    optional_binary_column,
)
from quorumbook.streams.format.attributes import Attributes
from quorumbook.streams.reading.batches import RecordBatch

#: What Kafka's source says of a time that the broker did not set.
_CREATE_TIME = 0

#: What a table of records has; the names and kinds are those of Spark's ``stream:``.
SCHEMA = pa.schema(
    [
        ("stream", pa.string()), ("partition", pa.int32()), ("seq", pa.int64()),
        ("segment", pa.int64()), ("ledger_id", pa.int64()), ("entry_id", pa.int64()),
        ("slot", pa.int32()), ("txid", pa.int64()), ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()), ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)  # fmt: skip


class Records(NamedTuple):
    """Records of one stream that become one Arrow batch."""

    stream: str
    #: Which one of a partitioned stream; below 0: it has none.
    partition: int
    batches: list[RecordBatch]


def batch_of(
    records: Records, schema: pa.Schema, makers: Mapping[str, Maker] | None = None
) -> pa.RecordBatch:
    """Return records as rows with some columns, in the schema's order; no others are made."""
    rows = _Gathered(records)
    known = MAKERS if makers is None else makers
    return pa.RecordBatch.from_arrays(
        [known[field.name](rows, field.type) for field in schema], schema=schema
    )


class _Gathered:
    """Records of one stream that become one Arrow batch."""

    def __init__(self, records: Records) -> None:
        self.name, self.partition, self.batches = records
        self.counts = np.array([len(batch) for batch in self.batches])
        self.count = int(self.counts.sum())

    def _repeated(self, values: list[int], kind: pa.DataType) -> pa.Array:
        """Return a column in which all records of a batch have one number."""
        return number_column(np.repeat(np.array(values, np.int64), self.counts), kind)

    def _ascending(self, firsts: list[int], kind: pa.DataType) -> pa.Array:
        """Return a column in which the records of a batch count up."""
        before = np.cumsum(self.counts) - self.counts
        starts = np.repeat(np.array(firsts, np.int64) - before, self.counts)
        return number_column(starts + np.arange(self.count), kind)

    def names(self, kind: pa.DataType) -> pa.Array:
        return constant_text_column(self.name, self.count)

    def sequence_ids(self, kind: pa.DataType) -> pa.Array:
        known = self._ascending([batch.first_sequence_id for batch in self.batches], kind)
        if all(batch.first_sequence_id >= 0 for batch in self.batches):
            return known
        unknown = np.repeat([batch.first_sequence_id < 0 for batch in self.batches], self.counts)
        return pa.array(known.to_numpy(), mask=unknown)

    def segments(self, kind: pa.DataType) -> pa.Array:
        return self._repeated([batch.first_position.segment for batch in self.batches], kind)

    def ledger_ids(self, kind: pa.DataType) -> pa.Array:
        return self._repeated([batch.ledger_id for batch in self.batches], kind)

    def entry_ids(self, kind: pa.DataType) -> pa.Array:
        return self._repeated([batch.entry_id for batch in self.batches], kind)

    def slots(self, kind: pa.DataType) -> pa.Array:
        return self._ascending([batch.first_position.slot for batch in self.batches], kind)

    def txids(self, kind: pa.DataType) -> pa.Array:
        parts = [np.array(batch.txids, np.int64) for batch in self.batches]
        return number_column(np.concatenate(parts), kind)

    def _carried(self, value: Callable[[Attributes], Any]) -> list[Any] | None:
        """Return something of what records carry, by row; None if none carries anything."""
        if not any(batch.attributes for batch in self.batches):
            return None
        found: list[Any] = [None] * self.count
        before = 0
        for batch in self.batches:
            first, behind = batch.first_position.slot, batch.last_position.slot
            for slot, attributes in batch.attributes.items():
                if first <= slot <= behind:
                    found[before + slot - first] = value(attributes)
            before += len(batch)
        return found

    def keys(self, kind: pa.DataType) -> pa.Array:
        found = self._carried(lambda carried: carried.key)
        return null_column(kind, self.count) if found is None else optional_binary_column(found)

    def headers(self, kind: pa.DataType) -> pa.Array:
        found = self._carried(
            lambda carried: (
                [{"key": name, "value": value} for name, value in carried.headers] or None
            )
        )
        return null_column(kind, self.count) if found is None else pa.array(found, kind)

    def timestamps(self, kind: pa.DataType) -> pa.Array:
        """Return when what records tell of happened, else when they were appended."""
        appended = self._appended(kind)
        happened = self._carried(lambda carried: carried.event_time_ms)
        if happened is None:
            return appended
        import pyarrow.compute as pc  # noqa: PLC0415 - slow, and few records say it

        in_us = [None if time_ms is None else time_ms * 1000 for time_ms in happened]
        return pc.coalesce(pa.array(in_us, pa.int64()).view(kind), appended)

    def _appended(self, kind: pa.DataType) -> pa.Array:
        times = [batch.appended_at_ms for batch in self.batches]
        if None not in times:
            return self._repeated([1000 * time for time in times if time is not None], kind)
        unknown = np.repeat([time is None for time in times], self.counts)
        values = np.repeat([1000 * (time or 0) for time in times], self.counts)
        return pa.array(values, mask=unknown).view(kind)

    def values(self, kind: pa.DataType) -> pa.Array:
        return binary_column([payload for batch in self.batches for payload in batch.payloads])

    def partitions(self, kind: pa.DataType) -> pa.Array:
        return self.nothing(kind) if self.partition < 0 else self.kafka_partitions(kind)

    def kafka_partitions(self, kind: pa.DataType) -> pa.Array:
        return self._repeated([max(self.partition, 0)] * len(self.batches), kind)

    def timestamp_types(self, kind: pa.DataType) -> pa.Array:
        return self._repeated([_CREATE_TIME] * len(self.batches), kind)

    def nothing(self, kind: pa.DataType) -> pa.Array:
        return null_column(kind, self.count)


Maker: TypeAlias = Callable[[_Gathered, pa.DataType], pa.Array]
MAKERS: Mapping[str, Maker] = {
    "stream": _Gathered.names,
    "partition": _Gathered.partitions,
    "seq": _Gathered.sequence_ids,
    "segment": _Gathered.segments,
    "ledger_id": _Gathered.ledger_ids,
    "entry_id": _Gathered.entry_ids,
    "slot": _Gathered.slots,
    "txid": _Gathered.txids,
    "timestamp": _Gathered.timestamps,
    "key": _Gathered.keys,
    "value": _Gathered.values,
    "headers": _Gathered.headers,
    "_error": _Gathered.nothing,
}
KAFKA_MAKERS: Mapping[str, Maker] = {
    **MAKERS,
    "topic": _Gathered.names,
    "partition": _Gathered.kafka_partitions,
    "offset": _Gathered.sequence_ids,
    "timestampType": _Gathered.timestamp_types,
}
