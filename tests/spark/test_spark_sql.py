"""Streams in SQL: views that are read and written, and names that outlive the session."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from spark_helpers import in_namespace

from quorumbook.errors import ConfigError
from quorumbook.spark import register_streams
from quorumbook.streams import Namespace
from quorumbook.streams.partitions.partitioning import partition_of
from quorumbook.streams.partitions.stream import PartitionedStream
from quorumbook.testing import LocalCluster


@pytest.fixture
def prefix(cluster: LocalCluster) -> str:
    """Return the prefix of two streams, ``plain`` and ``parted``."""
    prefix = f"sql/{uuid4().hex[:8]}"

    async def make(namespace: Namespace) -> None:
        await namespace.create_stream(f"{prefix}/plain")
        await PartitionedStream.create(namespace, f"{prefix}/parted", partitions=2)

    in_namespace(cluster, "/streams", make, bind=True)
    return prefix


def rows(spark: Any, query: str) -> list[tuple[Any, ...]]:
    return [
        tuple(bytes(each) if isinstance(each, bytearray) else each for each in row)
        for row in spark.sql(query).collect()
    ]


def test_a_stream_is_a_view_that_sql_reads_and_writes(
    spark: Any, cluster: LocalCluster, prefix: str
) -> None:
    (view,) = register_streams(spark, cluster.metadata_uri, f"{prefix}/plain")
    assert view == f"bk.`{prefix}/plain`"
    spark.sql(f"INSERT INTO {view} (key, value) VALUES (X'01', CAST('one' AS BINARY))")
    spark.sql(
        f"INSERT INTO {view} (value, timestamp, headers) SELECT CAST('two' AS BINARY), "
        "timestamp_millis(5), array(named_struct('key', 'h', 'value', X'02'))"
    )
    frame = spark.sql(f"SELECT * FROM {view}").limit(0)
    spark.sql("SELECT CAST('three' AS BINARY) AS value").createOrReplaceTempView("more")
    spark.sql(f"INSERT INTO {view} BY NAME SELECT value FROM more")
    one = spark.createDataFrame([(None, None, None, b"k", b"four", None)], frame.schema)
    one.writeTo(view).append()
    # A view has settled what it shows; made again, it looks again.
    register_streams(spark, cluster.metadata_uri, f"{prefix}/plain")
    assert rows(spark, f"SELECT seq, key, value, size(headers) FROM {view} ORDER BY seq") == [
        (0, b"\x01", b"one", None), (1, None, b"two", 1), (2, None, b"three", None),
        (3, b"k", b"four", None),
    ]  # fmt: skip
    described = [name for name, kind, _ in rows(spark, f"DESCRIBE {view}")]
    assert described == ["partition", "seq", "timestamp", "key", "value", "headers"]
    assert f"{prefix}/plain" in {name for _, name, *_ in rows(spark, "SHOW TABLES IN bk")}


def test_an_insert_that_fails_writes_nothing(
    spark: Any, cluster: LocalCluster, prefix: str
) -> None:
    (view,) = register_streams(spark, cluster.metadata_uri, f"{prefix}/plain")
    with pytest.raises(Exception, match="no more"):
        spark.sql(
            f"INSERT INTO {view} (value) SELECT CAST(if(id = 90, raise_error('no more'), 'x') AS "
            "BINARY) FROM range(0, 100, 1, 2)"
        )
    with pytest.raises(Exception, match="seq has a value"):
        spark.sql(f"INSERT INTO {view} (seq, value) VALUES (7, X'00')")
    assert rows(spark, f"SELECT count(*) FROM {view}") == [(0,)]


def test_a_partitioned_stream_is_one_view(spark: Any, cluster: LocalCluster, prefix: str) -> None:
    (view,) = register_streams(spark, cluster.metadata_uri, f"{prefix}/parted")
    spark.sql(
        f"INSERT INTO {view} (key, value) SELECT CAST(concat('k', id) AS BINARY), "
        "CAST(concat('v', id) AS BINARY) FROM range(10)"
    )
    spark.sql(f"INSERT INTO {view} (partition, value) VALUES (1, X'FF')")
    found = rows(spark, f"SELECT partition, value FROM {view}")
    expected = [(partition_of(b"k%d" % n, 2), b"v%d" % n) for n in range(10)]
    assert sorted(found) == sorted([*expected, (1, b"\xff")])


def test_a_stream_named_as_a_metadata_table_is_refused(spark: Any) -> None:
    with pytest.raises(ConfigError, match="segments is a metadata table"):
        register_streams(spark, "sqlite:///m.db", "orders", "segments")


def test_names_of_sparks_catalog_lead_to_streams(
    spark: Any, cluster: LocalCluster, prefix: str, tmp_path: Path
) -> None:
    database = f"db{uuid4().hex[:8]}"
    place = f"(metadataServiceUri = '{cluster.metadata_uri}', path = 'stream:{prefix}/plain')"
    spark.sql(f"CREATE DATABASE {database} LOCATION '{tmp_path}'")
    spark.sql(
        f"CREATE TABLE {database}.records (seq BIGINT, key BINARY, value BINARY) USING quorumbook"
    )
    spark.sql(f"CREATE VIEW {database}.orders AS SELECT * FROM {database}.records WITH {place}")
    assert rows(spark, f"SELECT * FROM {database}.orders") == []
    spark.sql(f"INSERT INTO {database}.records WITH {place} (value) VALUES (X'07')")
    # A view of the catalog looks anew for each query.
    assert rows(spark, f"SELECT * FROM {database}.orders") == [(0, None, b"\x07")]
    with pytest.raises(Exception, match="nothing says what is read"):
        rows(spark, f"SELECT * FROM {database}.records")
    with pytest.raises(Exception, match="keeps them"):
        spark.sql(f"CREATE TABLE {database}.t USING quorumbook TBLPROPERTIES ('stream' = 's')")
    create = f"CREATE TABLE {database}.t (value BINARY) USING quorumbook"
    for words in "OPTIONS (path 'stream:s')", "LOCATION 'stream:s'":
        with pytest.raises(Exception, match="Relative path in absolute URI: stream:s"):
            spark.sql(f"{create} {words}")
    spark.sql(f"{create} LOCATION 'stream:/{prefix}/plain'")  # which Spark forgets
    with pytest.raises(Exception, match="nothing says what is read"):
        rows(spark, f"SELECT * FROM {database}.t")
    spark.sql(f"DROP DATABASE {database} CASCADE")
