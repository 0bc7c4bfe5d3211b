"""Records as typed columns by the schema of their stream: batches, queries, bad records."""

from __future__ import annotations

import json
import logging
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import uuid4

import pytest
from spark_helpers import Query, read_tasks

pytest.importorskip("fastavro", reason="pip install 'quorumbook[schema]'")

from pyspark.sql.types import LongType, StructField, StructType

from quorumbook.errors import ConfigError
from quorumbook.spark.data_source import Source
from quorumbook.streams import (
    Compatibility,
    Decoder,
    PartitionedStream,
    Schema,
    SchemaKind,
    version_headers,
)
from quorumbook.streams.errors import BadRecordError, SchemaNotFoundError


def schema_of(*fields):
    made = [{"name": name, "type": kind, "default": default} for name, kind, default in fields]
    return Schema(SchemaKind.AVRO, json.dumps({"type": "record", "name": "R", "fields": made}))


ONE = schema_of(("n", "int", 0), ("key", "string", ""))
TWO = schema_of(("n", "int", 0), ("key", "string", ""), ("more", "long", 7))


def write(streams, name, *values, schema=None, bad=0):
    """Append values by the schema, which is set first if one is given, and then bad records."""

    async def work():
        stream = streams.namespace.stream(name)
        if schema is not None:
            await stream.set_schema(schema, compatibility=Compatibility.BACKWARD)
        decoder = await stream.decoder()
        headers = version_headers(decoder.version)
        async with stream.writer() as writer:
            for value in values:
                await writer.append(decoder.encode(value), headers=headers)
            for number in range(bad):
                await writer.append(b"\xff%d" % number, headers=headers)

    streams.run(work())


@pytest.fixture
def made(streams):
    """A new stream with a schema, and its name."""
    name = f"decoded/{uuid4().hex[:8]}"
    streams.run(streams.namespace.create_stream(name))
    write(streams, name, *({"n": n, "key": f"k{n}"} for n in range(5)), schema=ONE)
    return name


def test_fields_are_columns_beside_where_records_are(read, streams, made):
    rows = read(f"stream:{made}", decode="schema")
    assert [(row["seq"], row["n"], row["key_"]) for row in rows] == [
        (n, n, f"k{n}") for n in range(5)
    ]
    assert {"value", "_error", "headers"}.isdisjoint(rows[0])
    assert rows[0]["key"] is None  # that of the record
    write(streams, made, {"n": 5, "key": "x", "more": 1}, schema=TWO)
    assert [row["more"] for row in read(f"stream:{made}", decode="schema")] == [7] * 5 + [1]
    old = read(f"stream:{made}", decode="schema", schemaVersion=1)
    assert "more" not in old[0]
    assert old[5]["n"] == 5
    with pytest.raises(SchemaNotFoundError, match="no version 3"):
        read(f"stream:{made}", decode="schema", schemaVersion=3)


@pytest.mark.parametrize("columns", [None, ("n",), ("seq",), ("n", "value", "_error")])
def test_bad_records_fail_or_are_rows_or_are_dropped(read, streams, made, columns, caplog):
    write(streams, made, {"n": 9, "key": ""}, bad=2)
    options = {"path": f"stream:{made}", "columns": columns, "decode": "schema"}
    if columns != ("seq",):  # of which nothing is decoded
        with pytest.raises(BadRecordError, match=r"record 2:\d+:\d+ of stream decoded/"):
            read(**options)
    caplog.set_level(logging.WARNING, "quorumbook.spark")
    assert len(read(**options, onBadRecord="drop")) == 6
    assert "2 of 8 records of stream" in caplog.text
    rows = read(**options, onBadRecord="null")
    assert len(rows) == 8
    if columns is None or "value" in columns:
        assert [row["value"] for row in rows] == [None] * 6 + [b"\xff0", b"\xff1"]
        assert [row["_error"] is None for row in rows] == [True] * 6 + [False] * 2
    if columns != ("seq",):
        assert [row["n"] for row in rows][5:] == [9, None, None]


def test_columns_that_are_not_wanted_are_not_decoded(read, made, monkeypatch):
    def never(*_):
        raise AssertionError("decoded")

    monkeypatch.setattr(Decoder, "row", never)
    assert len(read(f"stream:{made}", ("seq", "txid"), decode="schema")) == 5
    with pytest.raises(AssertionError):
        read(f"stream:{made}", ("seq", "n"), decode="schema")


def test_a_partitioned_stream_is_decoded_by_the_schema_of_the_whole(read, streams, cluster):
    async def work():
        whole = await PartitionedStream.create(streams.namespace, "decoded/parts", partitions=2)
        await whole.set_schema(ONE)
        decoder = await whole.decoder()
        async with whole.writer() as writer:
            for n in range(6):
                await writer.append(decoder.encode({"n": n, "key": ""}), key=b"%d" % n)

    streams.run(work())
    rows = read("stream:decoded/parts", decode="schema")
    assert sorted(row["n"] for row in rows) == list(range(6))
    assert {row["partition"] for row in rows} == {0, 1}
    tasks = read_tasks(cluster, "stream:decoded/parts/p1", decode="schema")
    assert {row["n"] for task in tasks for row in task} == {
        row["n"] for row in rows if row["partition"] == 1
    }


def test_what_cannot_be_decoded_is_refused_before_anything_is_read(read, cluster, made, streams):
    streams.run(streams.namespace.create_stream("decoded/none"))
    with pytest.raises(SchemaNotFoundError, match="stream schema set decoded/none"):
        read("stream:decoded/none", decode="schema")
    for options, what in (
        ({"path": "ledger:1"}, "one stream"),
        ({"path": f"stream:{made},other"}, "load each by itself"),
        ({"path": f"stream:{made}", "compat": "kafka"}, "compat=kafka"),
    ):
        with pytest.raises(ConfigError, match=what):
            read(**options, decode="schema")
    with pytest.raises(ConfigError, match="onBadRecord needs decode=schema"):
        read(f"stream:{made}", onBadRecord="drop")
    given = {"metadataServiceUri": cluster.metadata_uri, "path": f"stream:{made}"}
    source = Source({**given, "decode": "schema"})
    with pytest.raises(ConfigError, match="by version 1 of its schema has no column 'nn'"):
        source.reader(StructType([StructField("nn", LongType())]))


@pytest.mark.parametrize("on_bad", ["null", "drop"])
def test_a_query_decodes_new_versions_as_its_own_and_replays_the_same(
    cluster, streams, made, on_bad
):
    options = {"startingOffsets": "earliest", "decode": "schema", "onBadRecord": on_bad}
    query = Query(cluster, f"stream:{made}", **options)
    assert [row["n"] for row in query.step()] == list(range(5))
    # A version that came after the query, without one of its fields, and records that are none.
    without_key = schema_of(("n", "int", 0), ("more", "long", 7))
    write(streams, made, {"n": 5, "more": 3}, schema=without_key, bad=3)
    rows = query.until(9 if on_bad == "null" else 6)[5:]
    assert len(query.batches) == 2
    assert [row["n"] for row in rows if row["n"] is not None] == [5]
    assert "more" not in rows[0]
    assert rows[0]["key_"] == ""
    assert len(rows) == (4 if on_bad == "null" else 1)
    # The same tasks again, as after a kill: the same rows, bad ones as well.
    start, end = query.checkpoint[-2:]
    write(streams, made, {"n": 6, "more": 4}, bad=1)
    assert query.rows_between(start, end) == rows
    again = Query(cluster, f"stream:{made}", checkpoint=query.checkpoint, **options)
    replayed = again.rows_between(start, end)
    if on_bad == "null":
        assert [row["value"] for row in replayed] == [row["value"] for row in rows]
    assert [row["n"] for row in replayed] == [row["n"] for row in rows]
    assert replayed[0]["more"] == 3  # a query that begins now has the columns of now


def test_spark_has_the_types(spark, load, streams):
    everything = {
        "type": "record", "name": "R", "fields": [
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "price",
             "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "counts", "type": {"type": "map", "values": "int"}},
            {"name": "inner", "type": {"type": "record", "name": "I", "fields": [
                {"name": "x", "type": "float"}, {"name": "y", "type": ["null", "boolean"]}]}},
        ],
    }  # fmt: skip
    streams.run(streams.namespace.create_stream("decoded/types"))
    value = {
        "at": datetime(2026, 11, 25, 8, tzinfo=UTC), "day": date(2026, 11, 25),
        "price": Decimal("12.34"), "tags": ["a", "b"], "counts": {"k": 3},
        "inner": {"x": 0.5, "y": True},
    }  # fmt: skip
    schema = Schema(SchemaKind.AVRO, json.dumps(everything))
    write(streams, "decoded/types", value, schema=schema, bad=1)
    frame = load("stream:decoded/types", decode="schema", onBadRecord="null")
    good, bad = frame.orderBy("seq").select(*value, "value", "_error").collect()
    assert good.asDict(recursive=True) == {
        **value, "at": good["at"], "value": None, "_error": None,
    }  # fmt: skip
    assert good["at"].timestamp() == value["at"].timestamp()
    assert (bad["value"], bad["tags"]) == (b"\xff0", None)
    assert "not a record" in bad["_error"]
    assert frame.where("price > 12 AND inner.y").count() == 1


def test_bad_records_go_to_a_stream_of_their_own_in_the_same_transaction(
    spark, cluster, streams, made, tmp_path
):
    """Run a query, with the end of its last batch forgotten as by a kill; then more records."""
    write(streams, made, bad=3)
    good, bad = f"{made}-good", f"{made}-bad"

    def run():
        options = {"metadataServiceUri": cluster.metadata_uri}
        decoded = spark.readStream.format("quorumbook").options(
            **options, startingOffsets="earliest", decode="schema", onBadRecord="null"
        )
        routed = decoded.load(f"stream:{made}").selectExpr(
            f"if(_error IS NULL, '{good}', '{bad}') AS stream",
            "coalesce(value, cast(n AS string)) AS value",
            "if(_error IS NULL, NULL, array(named_struct('key', 'reason', 'value', "
            "cast(_error AS binary)))) AS headers",
        )
        query = (
            routed.writeStream.format("quorumbook")
            .options(**options, createStream="true", checkpointLocation=str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    async def records_of(name):
        async with streams.namespace.stream(name).reader(tail=False) as reader:
            return [record async for record in reader]

    run()
    for name in "0", ".0.crc":
        (tmp_path / "commits" / name).unlink()
    write(streams, made, {"n": 5, "key": ""}, bad=1)
    run()
    assert [each.payload for each in streams.run(records_of(good))] == [b"%d" % n for n in range(6)]
    letters = streams.run(records_of(bad))
    assert [each.payload for each in letters] == [b"\xff0", b"\xff1", b"\xff2", b"\xff0"]
    assert all(b"not a record" in each.headers["reason"] for each in letters)
