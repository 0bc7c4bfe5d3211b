"""Threads that use a session which another one made: where Spark looks for the data source."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage

from quorumbook.spark import activate, spark_session
from quorumbook.spark.demo.queries import PARTITIONS, STREAM, Lake
from quorumbook.streams import PartitionedStream


def in_thread(work: Callable[[], Any]) -> Any:
    """Do something in a thread of its own; raises what that raises."""
    came: list[Any] = []

    def run() -> None:
        try:
            came.append(work())
        except BaseException as error:
            came.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if isinstance(came[0], BaseException):
        raise came[0]
    return came[0]


@pytest.fixture
def name(streams: Any) -> str:
    name = f"threads/{uuid4().hex[:8]}"
    streams.run(streams.namespace.create_stream(name))
    return name


def batch(spark: Any, uri: str, name: str, where: Any) -> None:
    del where
    rows = spark.range(3).selectExpr("concat('row ', id) AS value").coalesce(1)
    rows.write.format("quorumbook").mode("append").option("metadataServiceUri", uri).save(
        f"stream:{name}"
    )


def query(spark: Any, uri: str, name: str, where: Any) -> None:
    (where / "input").mkdir()
    (where / "input" / "lines").write_text("row 0\nrow 1\nrow 2\n")
    lines = spark.readStream.format("text").load(str(where / "input"))
    writer = lines.writeStream.format("quorumbook").option("metadataServiceUri", uri)
    writer = writer.option("checkpointLocation", str(where / "checkpoint"))
    writer.trigger(availableNow=True).start(f"stream:{name}").awaitTermination()


@pytest.mark.parametrize("write", [batch, query])
@pytest.mark.parametrize("how", ["activate", "spark_session"])
def test_a_thread_that_did_not_make_the_session_writes_by_it(
    spark: Any, cluster: Any, name: str, tmp_path: Any, write: Any, how: str
) -> None:
    def work() -> list[Any]:
        if how == "activate":
            activate(spark)
        else:
            # Spark has no other way there.
            assert spark_session("quorumbook tests")._jsparkSession.equals(spark._jsparkSession)
        write(spark, cluster.metadata_uri, name, tmp_path)
        found = spark.read.format("quorumbook").option("metadataServiceUri", cluster.metadata_uri)
        return [bytes(row.value) for row in found.load(f"stream:{name}").orderBy("seq").collect()]

    assert in_thread(work) == [b"row 0", b"row 1", b"row 2"]


# When this fails, Spark was mended, and nobody has to activate a session any more.
def test_spark_finds_no_source_for_the_writes_of_a_thread_without_an_active_session(
    spark: Any,
) -> None:
    class Nowhere(DataSource):
        """A source of somebody else, which takes rows and does nothing."""

        @classmethod
        def name(cls) -> str:
            return "nowhere"

        def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
            class Writer(DataSourceWriter):
                def write(self, iterator: Any) -> WriterCommitMessage:
                    for _ in iterator:
                        pass
                    return WriterCommitMessage()

            return Writer()

    spark.dataSource.register(Nowhere)

    def write() -> None:
        spark.range(1).write.format("nowhere").mode("append").save()

    write()
    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        in_thread(write)


def test_workers_talk_by_sockets_that_may_be_closed_early(spark: Any) -> None:
    """Over Unix sockets each query that stops early has a worker print a trace."""
    assert spark.conf.get("spark.python.unix.domain.socket.enabled", "false") == "false"


def test_the_demo_s_query_is_started_in_any_thread(
    spark: Any, cluster: Any, streams: Any, tmp_path: Any
) -> None:
    streams.run(PartitionedStream.create(streams.namespace, STREAM, partitions=PARTITIONS))
    lake = Lake(spark, cluster.metadata_uri, str(tmp_path))
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "flights.jsonl").write_text('{"carrier": "AA"}\n{"carrier": "UA"}\n')
    in_thread(lake.ingest).awaitTermination()
    assert lake.fingerprint(of_input=False).lines == 2
