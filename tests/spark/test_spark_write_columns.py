"""What a sink makes of a frame's columns; no Spark session needed."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from quorumbook.errors import ConfigError
from quorumbook.spark.sink.columns import check_columns, check_times, rows_of, streams_in
from quorumbook.streams.format.attributes import Attributes
from quorumbook.streams.partitions.partitioning import partition_of

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TIME = pa.timestamp("us", "UTC")


def batch(**columns):
    kinds = {"headers": _HEADERS, "timestamp": _TIME, "partition": pa.int32()}
    return pa.RecordBatch.from_pydict(
        {name: pa.array(values, kinds.get(name)) for name, values in columns.items()}
    )


_TYPES = {
    "binary": BinaryType(),
    "string": StringType(),
    "timestamp": TimestampType(),
    "bigint": LongType(),
    "int": IntegerType(),
    "map": MapType(StringType(), BinaryType()),
    "headers": ArrayType(
        StructType([StructField("key", StringType(), False), StructField("value", BinaryType())]),
        False,
    ),
}


def check(columns, *, target="stream", stream="s"):
    fields = [column.split() for column in columns.split(", ")]
    struct = StructType([StructField(name, _TYPES[kind], False) for name, kind in fields])
    check_columns(struct, target=target, stream=stream)


def test_what_reading_gives_can_be_written():
    check("value binary, key binary, headers headers")
    check("value string, key string, timestamp timestamp, txid bigint, partition int")
    check("value binary, stream string", stream="")
    check("value binary, topic string, partition int", stream="")
    check("value binary", target="ledger", stream="")


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("value string, topic string", {}, "no place for 'topic'.*all rows go to stream s"),
        ("value string, topic string, stream string", {"stream": ""}, "both say where rows go"),
        ("value string, headers map", {}, "headers is map.*not array<struct<key"),
        ("value string, timestamp bigint", {}, "timestamp is bigint, not timestamp"),
        ("value string, partition bigint", {}, "partition is bigint, not int"),
        ("value string, offset bigint", {}, "no place for 'offset'.*key, partition, timestamp"),
        ("key string", {}, "value is missing"),
        ("value string", {"stream": ""}, "stream is missing"),
        ("value string, key string", {"target": "ledger", "stream": ""}, "'key' .target=ledger"),
    ],
)
def test_a_frame_of_other_columns_is_refused_and_says_which(columns, options, message):
    with pytest.raises(ConfigError, match=message):
        check(columns, **options)


def test_keys_headers_and_event_times_go_with_their_rows():
    moment = datetime(2013, 1, 1, 5, 0, 0, 999_999, tzinfo=UTC)
    found = rows_of(
        batch(
            value=["a", "b", "c"],
            key=["k", None, ""],
            headers=[[{"key": "h", "value": b"1"}, {"key": "h", "value": b"2"}], [], None],
            timestamp=[moment, None, None],
        ),
        "s",
    )
    (rows,) = found
    assert rows.payloads == [b"a", b"b", b"c"]
    assert rows.txids is None
    assert rows.attributes == [
        Attributes(b"k", (("h", b"1"), ("h", b"2")), 1357016400999),
        Attributes(),
        Attributes(b""),
    ]
    # What is null in every row costs nothing.
    (plain,) = rows_of(batch(value=["a"], key=pa.nulls(1, pa.string()), headers=[None]), "s")
    assert plain.attributes is None


def test_a_time_finer_than_milliseconds_is_refused_unless_it_may_be_cut():
    fine, whole = datetime(2013, 1, 1, microsecond=999_999), datetime(2013, 1, 1)
    check_times(batch(value=["a"]))
    check_times(batch(value=["a", "b"], timestamp=[whole.replace(tzinfo=UTC), None]))
    with pytest.raises(ConfigError, match=r"finer.*date_trunc.*cutTimestamps=true"):
        check_times(batch(value=["a", "b"], timestamp=[None, fine.replace(tzinfo=UTC)]))


def test_rows_go_to_the_partition_that_is_named_else_to_that_of_their_key_else_in_turn():
    rows = batch(
        topic=["t", "t", "t", "plain", "t"],
        value=["named", "keyed", "loose", "p", "keyed too"],
        key=["k", "k", None, "k", "k"],
        partition=[2, None, None, 0, None],
        txid=[1, 2, 3, 4, 5],
    )
    assert streams_in(rows, "") == {"t", "plain"}
    keyed = f"t/p{partition_of(b'k', 3)}"
    found = rows_of(rows, "", {"t": 3}, turn=5)
    where = {payload: each.stream for each in found for payload in each.payloads}
    assert where[b"named"] == "t/p2"
    assert where[b"keyed"] == where[b"keyed too"] == keyed
    assert where[b"loose"] == "t/p2"
    assert where[b"p"] == "plain"
    assert rows_of(rows, "", {"t": 3}, turn=6)[0].stream == "t/p2"
    txids = {payload: each.txids[n] for each in found for n, payload in enumerate(each.payloads)}
    assert txids == {b"named": 1, b"keyed": 2, b"loose": 3, b"p": 4, b"keyed too": 5}
    for count in ({"t": 2}, {}):
        with pytest.raises(ConfigError, match=r"partition says 2; the last one of stream t"):
            rows_of(rows, "", count)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"value": ["a", None]}, "value has a null"),
        ({"value": ["a", "b"], "stream": ["s", None]}, "stream has a null"),
    ],
)
def test_a_null_where_a_row_needs_something_is_refused(columns, message):
    with pytest.raises(ConfigError, match=message):
        streams_in(batch(**columns), "s")


def test_the_place_of_a_record_is_given_by_the_commit():
    schema = StructType([StructField("value", StringType()), StructField("seq", LongType())])
    check_columns(schema, target="stream", stream="s")
    rows = batch(value=["a", "b"], seq=pa.nulls(2, pa.int64()))
    assert streams_in(rows, "s") == {"s"}
    assert rows_of(rows, "s") == [("s", [b"a", b"b"], None, None)]
    with pytest.raises(ConfigError, match="seq has a value"):
        streams_in(batch(value=["a", "b"], seq=[None, 7]), "s")
    with pytest.raises(ConfigError, match="no place for 'seq'"):
        check_columns(schema, target="ledger", stream="")


def test_a_header_without_a_value_is_refused():
    with pytest.raises(ConfigError, match="name or value is null"):
        rows_of(batch(value=["a"], headers=[[{"key": "h", "value": None}]]), "s")
