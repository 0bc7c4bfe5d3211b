"""Frames written to streams and ledgers through Spark: each row once, in order, or an error."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from quorumbook.streams import Namespace
from quorumbook.streams.partitions.partitioning import partition_of
from quorumbook.streams.partitions.stream import PartitionedStream
from quorumbook.streams.stream_context import namespace_store
from quorumbook.streams.transactions import Application, Identity, Place, collect_orphans


class Streams:
    """Streams of the tests' cluster, as a program that is not Spark sees them."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster

    def run(self, work: Any) -> Any:
        async def call() -> Any:
            address = f"{self._cluster.metadata_uri}#/streams"
            async with Namespace.open(address) as namespace:
                return await work(namespace)

        return asyncio.run(call())

    def make(self, *names: str) -> str:
        """Make streams of names that nobody has; return the prefix."""
        prefix = f"w{uuid4().hex[:8]}"

        async def work(namespace: Namespace) -> None:
            for name in names:
                await namespace.create_stream(f"{prefix}/{name}")

        self.run(work)
        return prefix

    def read(self, name: str) -> list[bytes]:
        async def work(namespace: Namespace) -> list[bytes]:
            async with namespace.stream(name).reader(tail=False) as reader:
                return [record.payload async for record in reader]

        return self.run(work)


@pytest.fixture(scope="session")
def streams(cluster: Any) -> Streams:
    async def bind() -> None:
        address = f"{cluster.metadata_uri}#/streams"
        await Namespace.bind(address, exist_ok=True)

    asyncio.run(bind())
    return Streams(cluster)


@pytest.fixture
def save(cluster: Any, streams: Streams) -> Any:
    """Return ``save(frame, path, **options)``."""

    def call(frame: Any, path: str | None = None, **options: Any) -> None:
        writer = frame.write.format("quorumbook").mode(options.pop("mode", "append"))
        writer = writer.options(metadataServiceUri=cluster.metadata_uri, **options)
        writer.save(path) if path else writer.save()

    return call


def test_rows_of_a_partition_stay_in_order_and_partitions_too(spark, save, streams):
    prefix = streams.make("s")
    frame = spark.range(0, 1000, 1, 4).selectExpr("concat('row ', id) AS value")
    save(frame, f"stream:{prefix}/s")
    assert streams.read(f"{prefix}/s") == [b"row %d" % n for n in range(1000)]
    # Nothing is left of an application that nobody named.
    assert streams.run(lambda ns: collect_orphans(Place(ns.client, ns))) == []
    assert not [
        name
        for name in streams.run(lambda ns: namespace_store(ns).children("/streams/.transactions"))
        if name.startswith("batch-")
    ]


def test_rows_go_where_their_column_says_and_missing_streams_are_made_if_told(spark, save, streams):
    prefix = streams.make("even", "odd")
    frame = spark.range(100).selectExpr(
        f"concat('{prefix}/', if(id % 2 = 0, 'even', 'odd')) AS stream",
        "cast(cast(id AS string) AS binary) AS value",
        "id AS txid",
    )
    save(frame.coalesce(1))
    assert streams.read(f"{prefix}/even") == [b"%d" % n for n in range(0, 100, 2)]
    assert streams.read(f"{prefix}/odd") == [b"%d" % n for n in range(1, 100, 2)]
    with pytest.raises(Exception, match="there is no stream"):
        save(spark.createDataFrame([("x",)], "value string"), stream=f"{prefix}/new")
    save(
        spark.createDataFrame([("x",)], "value string"), stream=f"{prefix}/new", createStream="true"
    )
    assert streams.read(f"{prefix}/new") == [b"x"]


@pytest.mark.parametrize(
    ("query", "options", "message"),
    [
        ("SELECT 1 AS value", {}, "value is int, not binary or string"),
        ("SELECT 'x' AS v", {}, "no place for 'v'.*value is missing"),
        ("SELECT 'x' AS value, 's' AS stream", {}, r"no place for 'stream' \(all rows go to"),
        ("SELECT 'x' AS value", {"mode": "overwrite"}, "only ever appended"),
        ("SELECT 'x' AS value", {"txnAppID": "a"}, "both txnAppId and txnVersion"),
        ("SELECT 'x' AS value", {"lokWait": "1"}, "nearest are lockWait"),
        ("SELECT 'x' AS value", {"startingOffsets": "latest"}, "there is no option|is for read"),
        ("SELECT 'x' AS value", {"txnRoot": "/ledgers/x"}, "outside of /ledgers"),
        ("SELECT CAST(NULL AS STRING) AS value", {}, "value has a null"),
    ],
)
def test_what_cannot_be_written_is_one_clear_error(spark, save, streams, query, options, message):
    prefix = streams.make("s")
    with pytest.raises(Exception, match=message) as found:
        save(spark.sql(query), f"stream:{prefix}/s", **options)
    assert len(str(found.value).strip().splitlines()) <= 2
    assert streams.read(f"{prefix}/s") == []


def test_what_was_read_as_from_kafka_can_be_written_to_partitions(spark, save, streams, load):
    prefix = streams.make("in")

    async def make(namespace: Namespace) -> None:
        await PartitionedStream.create(namespace, f"{prefix}/out", partitions=3)

    streams.run(make)
    frame = spark.range(0, 60, 1, 2).selectExpr(
        "concat('v', id) AS value",
        "if(id % 4 = 0, NULL, concat('k', id % 5)) AS key",
        "array(named_struct('key', 'h', 'value', cast(cast(id AS string) AS binary))) AS headers",
        "timestamp_millis(id) AS timestamp",
    )
    save(frame, f"stream:{prefix}/in")
    read = load(f"stream:{prefix}/in", compat="kafka", includeHeaders="true")
    rows = read.orderBy("offset").collect()
    assert [bytes(row.value) for row in rows] == [b"v%d" % n for n in range(60)]
    assert [row.key and bytes(row.key) for row in rows] == [
        None if n % 4 == 0 else b"k%d" % (n % 5) for n in range(60)
    ]
    assert [[(h.key, bytes(h.value)) for h in row.headers] for row in rows] == [
        [("h", b"%d" % n)] for n in range(60)
    ]
    assert [row.timestamp.timestamp() for row in rows] == [n / 1000 for n in range(60)]

    again = read.selectExpr(
        f"'{prefix}/out' AS topic", "key", "value", "headers", "timestamp",
        "if(key IS NULL, cast(offset % 3 AS int), NULL) AS partition",
    )  # fmt: skip
    save(again.coalesce(1))
    for number in range(3):
        expected = [
            b"v%d" % n
            for n in range(60)
            if (n % 3 if n % 4 == 0 else partition_of(b"k%d" % (n % 5), 3)) == number
        ]
        assert streams.read(f"{prefix}/out/p{number}") == expected
    # The bare name alone is enough; rows without a key are spread over tasks.
    save(spark.range(0, 9, 1, 3).selectExpr("'x' AS value"), f"stream:{prefix}/out")
    assert [streams.read(f"{prefix}/out/p{n}")[-3:] for n in range(3)] == [[b"x"] * 3] * 3


def test_a_batch_that_is_run_again_is_written_once(spark, save, streams):
    prefix = streams.make("s")
    for version in (0, 0, 1, 0, 1):
        frame = spark.createDataFrame([(f"v{version}",)], "value string")
        save(frame, f"stream:{prefix}/s", txnAppId=f"{prefix} nightly", txnVersion=str(version))
    assert streams.read(f"{prefix}/s") == [b"v0", b"v1"]


def test_rows_become_entries_of_ledgers_of_their_own(spark, save, streams, load):
    app_id = f"rows {uuid4().hex}"
    frame = spark.range(0, 300, 1, 3).selectExpr("cast(id AS string) AS value")
    save(frame, target="ledger", txnAppId=app_id, txnVersion="7")

    async def ledgers(ns: Namespace) -> list[int]:
        app = Application(Place(ns.client), app_id, Identity("", ""))
        return [each.ledger_id async for each in app.ledgers()]

    found = streams.run(ledgers)
    assert len(found) == 3
    rows = load(f"ledger:{','.join(map(str, found))}").orderBy("ledger_id", "entry_id").collect()
    in_order = {ledger: [bytes(r.value) for r in rows if r.ledger_id == ledger] for ledger in found}
    assert [value for ledger in found for value in in_order[ledger]] == [
        b"%d" % n for n in range(300)
    ]


class Query:
    """A streaming query over files, each of which is a batch."""

    def __init__(self, spark: Any, uri: str, directory: Path) -> None:
        self._spark = spark
        self._uri = uri
        self.input = directory / "input"
        self.input.mkdir()
        self.checkpoint = directory / "checkpoint"
        self.count = 0

    def add(self, *rows: str) -> None:
        """Add a batch's rows."""
        self.count += 1
        path = self.input / f"{self.count:04d}.txt"
        path.write_text("\n".join(rows))
        os.utime(path, (self.count, self.count))  # by which Spark orders files

    def run(self, path: str, *, checkpoint: Path | None = None, **options: Any) -> None:
        """Run until all is written."""
        frame = (
            self._spark.readStream.format("text").option("maxFilesPerTrigger", 1)
            .load(str(self.input))
        )  # fmt: skip
        query = (
            frame.writeStream.format("quorumbook").outputMode("append")
            .option("metadataServiceUri", self._uri)
            .option("checkpointLocation", str(checkpoint or self.checkpoint))
            .options(**options).trigger(availableNow=True).start(path)
        )  # fmt: skip
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def forget_last(self, what: str = "commits") -> None:
        """Be as if the driver had died after the sink's commit, before Spark wrote its own."""
        log = self.checkpoint / what
        last = max(int(each.name) for each in log.iterdir() if each.name.isdigit())
        (log / str(last)).unlink()
        (log / f".{last}.crc").unlink(missing_ok=True)


def test_a_batch_that_spark_runs_again_is_there_once(spark, cluster, streams, tmp_path):
    prefix = streams.make("s")
    path = f"stream:{prefix}/s"
    query = Query(spark, cluster.metadata_uri, tmp_path)
    query.add("a", "b")
    query.add("c")
    query.run(path)
    assert streams.read(f"{prefix}/s") == [b"a", b"b", b"c"]
    query.forget_last()
    query.add("d")
    query.run(path)
    assert streams.read(f"{prefix}/s") == [b"a", b"b", b"c", b"d"]
    # A checkpoint that lost its end: the batch that it plans has a number that was committed.
    query.forget_last()
    query.forget_last("offsets")
    query.add("e")
    with pytest.raises(Exception, match=r"batch 2 comes again.*from other offsets") as found:
        query.run(path)
    assert "batch 2 comes again" in str(found.value).splitlines()[0]
    assert streams.read(f"{prefix}/s") == [b"a", b"b", b"c", b"d"]
    assert streams.run(lambda ns: collect_orphans(Place(ns.client, ns, attempt_ttl_s=0))) == []


def test_a_new_checkpoint_with_an_old_application_is_an_error_and_goes_on_if_told(
    spark, cluster, streams, tmp_path
):
    prefix = streams.make("s")
    path = f"stream:{prefix}/s"
    query = Query(spark, cluster.metadata_uri, tmp_path)
    query.add("a")
    query.run(path, txnAppId=prefix)
    other = tmp_path / "other"
    with pytest.raises(Exception, match="choose another txnAppId"):
        query.run(path, checkpoint=other, txnAppId=prefix)
    assert streams.read(f"{prefix}/s") == [b"a"]
    query.run(path, checkpoint=other, txnAppId=prefix, txnReset="true")
    assert streams.read(f"{prefix}/s") == [b"a", b"a"]
