"""Messages of Pulsar as Arrow columns: only those that are asked for are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from quorumbook.client.reading.columns import constant_text_column
from quorumbook.pulsar.entries import Message
from quorumbook.pulsar.names import TopicName

_TIME = pa.timestamp("us", tz="UTC")

#: What a table of messages has; the names and kinds are those of Spark's ``pulsar:``.
SCHEMA = pa.schema(
    [
        ("topic", pa.string()), ("partition", pa.int32()), ("ledger_id", pa.int64()),
        ("entry_id", pa.int64()), ("batch_index", pa.int32()), ("publish_time", _TIME),
        ("event_time", _TIME), ("producer_name", pa.string()), ("sequence_id", pa.int64()),
        ("key", pa.binary()), ("ordering_key", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())), ("schema_version", pa.int64()),
        ("replicated_from", pa.string()), ("broker_index", pa.int64()), ("broker_time", _TIME),
        ("value", pa.binary()), ("_error", pa.string()),
    ]
)  # fmt: skip


def batch_of(name: TopicName, messages: Sequence[Message], schema: pa.Schema) -> pa.RecordBatch:
    """Return the messages of one topic as rows with some columns, in the schema's order."""
    arrays = [_MAKERS[field.name](name, messages, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _topics(name: TopicName, messages: Sequence[Message], _: pa.DataType) -> pa.Array:
    return constant_text_column(str(name.bare), len(messages))


def _partitions(name: TopicName, messages: Sequence[Message], kind: pa.DataType) -> pa.Array:
    return pa.array([name.partition if name.partition >= 0 else None] * len(messages), kind)


Maker: TypeAlias = Callable[[TopicName, Sequence[Message], pa.DataType], pa.Array]


def _of(value: Callable[[Message], Any]) -> Maker:
    return lambda _, messages, kind: pa.array([value(each) for each in messages], kind)


def _in_us(time_ms: int | None) -> int | None:
    return None if time_ms is None else time_ms * 1000


_MAKERS: Mapping[str, Maker] = {
    "topic": _topics,
    "partition": _partitions,
    "ledger_id": _of(lambda m: m.ledger_id),
    "entry_id": _of(lambda m: m.entry_id),
    "batch_index": _of(lambda m: m.batch_index),
    "publish_time": _of(lambda m: _in_us(m.publish_time_ms)),
    "event_time": _of(lambda m: _in_us(m.event_time_ms)),
    "producer_name": _of(lambda m: m.producer_name),
    "sequence_id": _of(lambda m: m.sequence_id),
    "key": _of(lambda m: m.key),
    "ordering_key": _of(lambda m: m.ordering_key),
    "properties": _of(lambda m: [*m.properties.items()]),
    "schema_version": _of(lambda m: m.schema_version),
    "replicated_from": _of(lambda m: m.replicated_from),
    "broker_index": _of(lambda m: m.broker_index),
    "broker_time": _of(lambda m: _in_us(m.broker_time_ms)),
    "value": _of(lambda m: m.value),
    "_error": _of(lambda m: m.error),
}
