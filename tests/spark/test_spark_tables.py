"""Tables of Spark's catalog over streams, ledgers and metadata, and table functions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from spark_helpers import in_namespace, let_go

from quorumbook.cli.main import main
from quorumbook.spark import register_tables, register_views
from quorumbook.spark.tables import register
from quorumbook.streams import Namespace, PartitionedStream, Schema, SchemaKind
from quorumbook.testing import LocalCluster

pytest.importorskip("fastavro", reason="pip install 'quorumbook[schema]'")


class NamedTables:
    """Two streams in a namespace of their own, and a database of tables over it."""

    def __init__(self, spark: Any, cluster: LocalCluster) -> None:
        self.spark, self.cluster = spark, cluster
        self.path = f"/tables-{uuid4().hex[:8]}"
        self.database = f"db{uuid4().hex[:8]}"
        self.run(self._make)

    async def _make(self, namespace: Namespace) -> None:
        await namespace.create_stream("eu/orders")
        await PartitionedStream.create(namespace, "parted", partitions=2)

    def run(self, work: Any) -> Any:
        return in_namespace(self.cluster, self.path, work, bind=True)

    def register(self, *names: str) -> Any:
        return register(
            self.spark, self.cluster.metadata_uri, *names,
            database=self.database, namespace=self.path,
        )  # fmt: skip

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        found = self.spark.sql(query.replace("DB", self.database)).collect()
        return [
            tuple(bytes(each) if isinstance(each, bytearray) else each for each in row)
            for row in found
        ]


@pytest.fixture(scope="module")
def open_cluster(spark: Any) -> Iterator[LocalCluster]:
    """A cluster whose ledgers all have the same password: a table has the payloads of all."""
    with LocalCluster(bookies=3) as cluster:
        yield cluster
        let_go(cluster)


@pytest.fixture
def named(spark: Any, open_cluster: LocalCluster, tmp_path: Path) -> Any:
    made = NamedTables(spark, open_cluster)
    spark.sql(f"CREATE DATABASE {made.database} LOCATION '{tmp_path}'")
    yield made
    spark.sql(f"DROP DATABASE {made.database} CASCADE")


def test_tables_are_read_and_written_by_name_alone(named: NamedTables) -> None:
    names = register_tables(
        named.spark, named.cluster.metadata_uri,
        database=named.database, namespace=named.path,
    )  # fmt: skip
    assert {f"{named.database}.eu_orders", f"{named.database}.parted"} <= set(names)
    named.rows("INSERT INTO DB.eu_orders (key, value) VALUES (X'01', CAST('one' AS BINARY))")
    named.rows("INSERT INTO DB.eu_orders BY NAME SELECT CAST('two' AS BINARY) AS value")
    whole = named.spark.sql(f"SELECT * FROM {named.database}.eu_orders WHERE seq = 0")
    columns = [name for name in whole.columns if name != "seq"]
    # Names and types are the table's already, and still Spark says which table it is.
    whole.selectExpr("CAST(NULL AS BIGINT) AS seq", *columns).select(whole.columns).writeTo(
        f"{named.database}.eu_orders"
    ).append()
    named.spark.sql("SELECT CAST('four' AS BINARY) AS value").writeTo(
        f"{named.database}.eu_orders"
    ).append()
    named.rows("INSERT INTO DB.parted (partition, value) VALUES (1, X'FF')")
    assert named.rows("SELECT stream, seq, key, value FROM DB.eu_orders ORDER BY seq") == [
        ("eu/orders", 0, b"\x01", b"one"), ("eu/orders", 1, None, b"two"),
        ("eu/orders", 2, b"\x01", b"one"), ("eu/orders", 3, None, b"four"),
    ]  # fmt: skip
    assert named.rows("SELECT partition, value FROM DB.parted") == [(1, b"\xff")]
    assert named.rows("SELECT stream, records FROM DB.meta_streams WHERE stream = 'eu/orders'") == [
        ("eu/orders", 4)
    ]
    (count,) = named.rows("SELECT count(*) FROM DB.meta_payloads p JOIN DB.meta_segments s "
                          "ON p.ledger_id = s.ledger_id WHERE s.stream = 'eu/orders'")  # fmt: skip
    assert count[0] >= 4


def test_a_statement_that_may_run_again_is_there_once(named: NamedTables) -> None:
    named.register()
    statement = (
        "INSERT INTO DB.eu_orders WITH (txnAppId = 'nightly', txnVersion = '7') (value) "
        "VALUES (X'01'), (X'02')"
    )
    named.rows(statement)
    named.rows(statement)
    frame = named.spark.sql("SELECT X'03' AS value")
    for _ in range(2):
        frame.writeTo(f"{named.database}.eu_orders").option("txnAppId", "hourly").option(
            "txnVersion", "1"
        ).append()
    assert named.rows("SELECT count(*) FROM DB.eu_orders") == [(3,)]
    with pytest.raises(Exception, match="the table is of 'eu/orders'"):
        named.rows("INSERT INTO DB.eu_orders (stream, value) VALUES ('parted', X'01')")
    assert named.rows("SELECT count(*) FROM DB.eu_orders") == [(3,)]
    assert named.rows("SELECT count(*) FROM DB.parted") == [(0,)]


def test_tables_follow_the_streams(named: NamedTables) -> None:
    first = named.register()
    assert {"eu_orders", "parted", "meta_ledgers", "meta_payloads"} <= set(first.made)
    again = named.register()
    assert (again.made, again.changed, again.dropped) == ([], [], [])
    assert sorted(again.kept) == sorted(first.made)
    named.rows("CREATE TABLE DB.of_others (a INT) USING parquet")

    def avro(*names: str) -> Schema:
        fields = [{"name": name, "type": "int", "default": 0} for name in names]
        return Schema(
            SchemaKind.AVRO, json.dumps({"type": "record", "name": "R", "fields": fields})
        )

    async def change(namespace: Namespace) -> None:
        await namespace.create_stream("new")
        await namespace.stream("new").set_schema(avro("a"))
        await (await PartitionedStream.open(namespace, "parted")).delete()
        decoder = await namespace.stream("new").decoder()
        async with namespace.stream("new").writer() as writer:
            await writer.append(decoder.encode({"a": 5}))

    named.run(change)
    third = named.register()
    assert (sorted(third.made), third.dropped) == (["new", "new_fields"], ["parted"])
    assert named.rows("SELECT seq, a FROM DB.new_fields") == [(0, 5)]
    assert named.rows("SHOW TABLES IN DB LIKE 'of_others'")

    async def widen(namespace: Namespace) -> None:
        await namespace.stream("new").set_schema(avro("a", "b"))

    named.run(widen)
    assert named.register().changed == ["new_fields"]
    assert [name for name, *_ in named.rows("DESCRIBE DB.new_fields")][-1] == "b"


def test_names_that_meet_are_refused(named: NamedTables) -> None:
    async def make(namespace: Namespace) -> None:
        await namespace.create_stream("eu-orders")

    named.run(make)
    with pytest.raises(Exception, match="would both be the table eu_orders"):
        named.register()
    with pytest.raises(Exception, match="not auth_settings"):
        register_tables(named.spark, "sqlite:///x.db", "parted", auth_settings="a secret")
    named.rows("CREATE TABLE DB.parted (a INT) USING parquet")
    with pytest.raises(Exception, match="parted is not of Quorumbook"):
        named.register("parted")


def test_a_table_is_a_stream_of_batches_too(named: NamedTables, tmp_path: Path) -> None:
    named.register("eu/orders")
    named.rows("INSERT INTO DB.eu_orders (value) VALUES (X'01'), (X'02')")
    query = (
        named.spark.readStream.option("startingOffsets", "earliest")
        .table(f"{named.database}.eu_orders").selectExpr("seq", "value")
        .writeStream.format("memory").queryName(f"q{named.database}")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(120)
    assert sorted(named.rows(f"SELECT * FROM q{named.database}")) == [(0, b"\x01"), (1, b"\x02")]


def test_functions_read_what_their_arguments_say(named: NamedTables) -> None:
    async def fill(namespace: Namespace) -> None:
        async with namespace.stream("eu/orders").writer() as writer:
            for number in range(5):
                await writer.append(b"%d" % number, txid=10 * number, key=b"k")

    named.run(fill)
    register_views(named.spark, named.cluster.metadata_uri, namespace=named.path)
    read = "SELECT seq, value FROM read_stream('eu/orders'{}) ORDER BY seq"
    every = [(number, b"%d" % number) for number in range(5)]
    assert named.rows(read.format("")) == every
    assert named.rows(read.format(", first => 1, last => 3")) == every[1:4]
    assert named.rows(read.format(", until => TIMESTAMP '2001-01-01'")) == []
    assert named.rows(read.format(", since => TIMESTAMP '2001-01-01'")) == every
    with pytest.raises(Exception, match="and not several"):
        named.rows(read.format(", first => 1, since => TIMESTAMP '2001-01-01'"))
    assert named.rows(read.format(", first_txid => 11, last_txid => 30")) == every[2:4]
    found = named.rows("SELECT stream, segment FROM stream_metadata('eu/orders')")
    assert found == [("eu/orders", 1)]
    assert named.rows("SELECT DISTINCT stream FROM stream_metadata('parted')") == []
    with pytest.raises(Exception, match="there is no stream nowhere"):
        named.rows("SELECT * FROM stream_metadata('nowhere')")


OUTLIVED = """
import sys
from pyspark.sql import SparkSession
from quorumbook.cli.main import main
for _ in range(2):
    assert main(sys.argv[1:]) == 0
spark = SparkSession.builder.enableHiveSupport().getOrCreate()
spark.sql("INSERT INTO events.eu_orders (value) VALUES (X'02')")
found = spark.sql("SELECT seq, hex(value) AS value FROM events.eu_orders ORDER BY seq").collect()
print("found", [tuple(row) for row in found])
"""


@pytest.mark.timeout(900)  # a metastore is made
def test_tables_registered_by_a_command_outlive_it(cluster: LocalCluster, tmp_path: Path) -> None:
    """The catalog is a Hive metastore's, in files of its own."""
    path = f"/command-{uuid4().hex[:8]}"

    async def fill(namespace: Namespace) -> None:
        await namespace.create_stream("eu/orders")
        async with namespace.stream("eu/orders").writer() as writer:
            await writer.append(b"\x01")

    in_namespace(cluster, path, fill, bind=True)
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.sql.catalogImplementation hive\n"
        "spark.master local[1]\n"
        "spark.ui.enabled false\n"
        f"spark.sql.warehouse.dir {tmp_path}/warehouse\n"
        "spark.hadoop.javax.jdo.option.ConnectionURL "
        f"jdbc:derby:;databaseName={tmp_path}/metastore;create=true\n"
    )
    environment = {**os.environ, "SPARK_CONF_DIR": str(tmp_path), "PYSPARK_PYTHON": sys.executable}
    words = ["spark", "register", "--metadata", cluster.metadata_uri, "--namespace", path,
             "--database", "events", "-o", "jsonl"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", OUTLIVED, *words],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    outcomes = [each["outcome"] for each in told if each["table"] == "events.eu_orders"]
    assert outcomes == ["made", "kept"], done.stderr
    assert "found [(0, '01'), (1, '02')]" in done.stdout, done.stderr


def test_a_catalog_in_memory_is_no_place_for_the_command(
    spark: Any, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark is not None
    assert main(["spark", "register", "--metadata", cluster.metadata_uri]) == 2
    assert "keeps its catalog in memory" in capsys.readouterr().err
