"""Which columns a sink takes, and the rows out of an Arrow batch; pure.

value      binary or string         the payload; needed, never null
key        binary or string         what the record is about
headers    array of key and value   what else goes with it
timestamp  timestamp                when what it tells of happened
stream     string                   where a row goes, unless the options say it for all; Kafka's
                                    name for it, topic, will do as well
partition  int                      which one of a partitioned stream; else the key says it
txid       long                     the record's transaction id, in order within a partition
seq        long                     null: the commit says it; a view that is written has the column

The names are those that reading has, so what was read can be written, also with compat=kafka.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from quorumbook.errors import ConfigError
from quorumbook.streams.format.attributes import Attributes
from quorumbook.streams.partitions.partitioning import partition_name, partition_of

_BYTES = (BinaryType(), StringType())
_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_TYPES: Mapping[str, tuple[DataType, ...]] = {
    "value": _BYTES,
    "key": _BYTES,
    "headers": (ArrayType(_HEADER),),
    "timestamp": (TimestampType(),),
    "stream": (StringType(),),
    "topic": (StringType(),),
    "partition": (IntegerType(),),
    "txid": (LongType(),),
    "seq": (LongType(),),
}
_NEVER_NULL = frozenset({"value", "stream", "topic", "txid"})
_CARRIED = frozenset({"key", "headers", "timestamp"})


class SinkRows(NamedTuple):
    """Rows for one stream, in order."""

    stream: str
    payloads: list[bytes]
    txids: list[int] | None = None
    #: Key, headers and event time of each; None: no row has any.
    attributes: list[Attributes | None] | None = None


def check_columns(schema: StructType, *, target: str, stream: str, is_table: bool = False) -> None:
    """Raise ConfigError, naming all that is wrong, unless a frame's columns can be written.

    Args:
        schema: The frame's.
        target: ``stream`` or ``ledger``.
        stream: Where all rows go; empty: the column says it.
        is_table: Rows of a table of one stream have the column ``stream``, too.
    """
    needed, wanted = ["value"], {"value"}
    if target == "stream":
        wanted |= {"partition", "txid", "seq", *_CARRIED}
        if not stream:
            needed.append("stream")
            wanted |= {"stream", "topic"}
        elif is_table:
            wanted |= {"stream"}
    wrong = []
    types = {field.name: field.dataType for field in schema.fields}
    if len(types) < len(schema.fields):
        wrong.append("a column stands twice")
    if {"stream", "topic"} <= types.keys():
        wrong.append("stream and topic both say where rows go")
    for name, kind in types.items():
        if name not in wanted:
            wrong.append(f"there is no place for {name!r}{_why(name, target, stream)}")
        elif not any(_is_same(kind, known) for known in _TYPES[name]):
            known = " or ".join(each.simpleString() for each in _TYPES[name])
            wrong.append(f"{name} is {kind.simpleString()}, not {known}")
    given = types.keys() | ({"stream"} if "topic" in types else set())
    wrong += [f"{name} is missing" for name in needed if name not in given]
    if wrong:
        others = ", ".join(sorted(wanted - {"topic", "seq", *needed}))
        raise ConfigError(
            f"columns cannot be written: {'; '.join(wrong)}. Select {', '.join(needed)}"
            f"{f' ({others} where wanted)' if others else ''}, for example "
            'df.selectExpr("to_json(struct(*)) AS value")'
        )


def _is_same(kind: DataType, known: DataType) -> bool:
    # Whether something could be null is looked at in the rows.
    return bool(kind.simpleString() == known.simpleString())


def _why(name: str, target: str, stream: str) -> str:
    if name in {"stream", "topic"} and stream:
        return f" (all rows go to stream {stream})"
    if name in _TYPES and target == "ledger":
        return " (target=ledger)"
    return ""


def streams_in(batch: pa.RecordBatch, stream: str) -> set[str]:
    """Return the streams that the rows of a batch name; ``stream`` if they name none.

    Raises:
        ConfigError: something is null that a row needs, or has a value that it cannot have.
    """
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name in _NEVER_NULL and column.null_count:
            raise ConfigError(f"column {name} has a null; filter such rows out before")
        if name == "seq" and column.null_count < len(column):
            raise ConfigError(
                "column seq has a value; the commit says which place a record gets: leave it out"
            )
    named = _named(batch)
    return {stream} if named is None else set(named.unique().to_pylist())


def without_stream(batch: pa.RecordBatch, stream: str) -> pa.RecordBatch:
    """Return a table's rows without the column ``stream``, which is null or says the table's.

    Raises:
        ConfigError: it says another stream.
    """
    if "stream" not in batch.schema.names:
        return batch
    others = set(batch.column("stream").unique().to_pylist()) - {None, stream}
    if others:
        raise ConfigError(
            f"a row is for the stream {sorted(others)[0]!r}; the table is of {stream!r}"
        )
    return batch.drop_columns(["stream"])


def check_times(batch: pa.RecordBatch) -> None:
    """Raise ConfigError if an event time is finer than the milliseconds that a record keeps."""
    if "timestamp" not in batch.schema.names:
        return
    times = batch.column("timestamp")
    try:
        times.cast(pa.timestamp("ms", times.type.tz))
    except pa.ArrowInvalid as error:
        raise ConfigError(
            f"column timestamp is finer than the milliseconds that records keep ({error}): select "
            "date_trunc('MILLISECOND', timestamp) AS timestamp, or cutTimestamps=true cuts it"
        ) from error


def rows_of(
    batch: pa.RecordBatch, stream: str, partitions: Mapping[str, int] = {}, turn: int = 0
) -> list[SinkRows]:
    """Return the rows of a batch by stream, in order.

    Args:
        batch: With columns that were checked, also by ``streams_in``.
        stream: Where all go; empty: the column says it, or none for ledgers of rows.
        partitions: How many partitions streams have; those that are not named have none.
        turn: Rows that neither a key nor a partition places go to this one, modulo their number.

    Raises:
        ConfigError: a partition is named that a stream does not have, or a header is null.
    """
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    payloads = columns["value"].cast(pa.binary()).to_pylist()
    txids = columns["txid"].to_pylist() if "txid" in columns else None
    attributes = _attributes(columns)
    named = _named(batch)
    is_placed = bool(partitions) or "partition" in columns
    if named is None and not is_placed:
        return [SinkRows(stream, payloads, txids, attributes)]
    names = [stream] * len(payloads) if named is None else named.to_pylist()
    if is_placed:
        names = list(map(_placer(partitions, turn), names, *_placing(columns, len(names))))
    found: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        found.setdefault(name, []).append(number)
    return [
        SinkRows(
            name,
            [payloads[number] for number in numbers],
            None if txids is None else [txids[number] for number in numbers],
            None if attributes is None else [attributes[number] for number in numbers],
        )
        for name, numbers in found.items()
    ]


def _named(batch: pa.RecordBatch) -> pa.Array | None:
    name = next((name for name in ("stream", "topic") if name in batch.schema.names), None)
    return None if name is None else batch.column(name)


def _keys(columns: Mapping[str, pa.Array]) -> list[bytes | None] | None:
    return columns["key"].cast(pa.binary()).to_pylist() if "key" in columns else None


def _placing(columns: Mapping[str, pa.Array], count: int) -> tuple[Sequence[Any], Sequence[Any]]:
    keys = _keys(columns) or [None] * count
    numbers = columns["partition"].to_pylist() if "partition" in columns else [None] * count
    return keys, numbers


def _placer(
    partitions: Mapping[str, int], turn: int
) -> Callable[[str, bytes | None, int | None], str]:
    def place(name: str, key: bytes | None, number: int | None) -> str:
        count = partitions.get(name, 1)
        if number is None:
            number = turn % count if key is None else partition_of(key, count)
        elif not 0 <= number < count:
            raise ConfigError(
                f"column partition says {number}; the last one of stream {name} is {count - 1}"
            )
        return partition_name(name, number) if name in partitions else name

    return place


def _attributes(columns: Mapping[str, pa.Array]) -> list[Attributes | None] | None:
    """Return what rows carry beside their payloads; None if no row carries anything."""
    carried = [name for name in _CARRIED & columns.keys() if len(columns[name])]
    if all(columns[name].null_count == len(columns[name]) for name in carried):
        return None
    nothing: list[None] = [None] * len(columns["value"])
    keys = _keys(columns) or nothing
    headers = columns["headers"].to_pylist() if "headers" in columns else nothing
    times = nothing
    if "timestamp" in columns:
        in_ms = columns["timestamp"].cast(pa.int64())
        times = [None if time is None else time // 1000 for time in in_ms.to_pylist()]
    return [
        Attributes(key, () if each is None else _pairs(each), time)
        for key, each, time in zip(keys, headers, times, strict=True)
    ]


def _pairs(headers: Sequence[Mapping[str, Any] | None]) -> tuple[tuple[str, bytes], ...]:
    found = []
    for each in headers:
        if each is None or each["key"] is None or each["value"] is None:
            raise ConfigError("column headers has a header whose name or value is null")
        found.append((each["key"], each["value"]))
    return tuple(found)
