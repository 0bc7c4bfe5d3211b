"""One Spark session and one cluster for all tests of Spark, in one test process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from spark_helpers import Query, Streams, let_go, read_tasks

from doubles.clusters import local_cluster
from doubles.s3_server import CREDENTIALS, Bucket, S3Server
from doubles.spark import local_session, need_spark
from quorumbook.testing import LocalCluster
from quorumbook.zookeeper_server import ZooKeeperServer


@pytest.hookimpl(tryfirst=True)  # before files become groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep what shares the session in one process, and give it time on a busy machine."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.xdist_group("spark"))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return the session; a missing Java skips, except in CI."""
    need_spark()
    session = local_session(
        "quorumbook tests",
        tmp_path_factory.mktemp("spark"),
        {
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
            "spark.sql.streaming.metricsEnabled": "false",
            # A Spark Connect server in the same process; `remote` says where.
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            **{f"spark.executorEnv.{name}": value for name, value in CREDENTIALS.items()},
        },
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def remote(spark: Any) -> str:
    """Return the address of the session's Spark Connect server."""
    # Spark has no other way there.
    service = getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    return f"sc://127.0.0.1:{getattr(service, 'MODULE$').localPort()}"


@pytest.fixture(scope="session")
def spark_ends_first(spark: Any, zookeeper: ZooKeeperServer) -> Iterator[None]:
    """Stop Spark, whose processes keep sessions, before ZooKeeper."""
    yield
    spark.stop()


#: Every test makes ledgers and streams of its own.
cluster = local_cluster(scope="session", before_its_end=let_go)


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Return an S3 server; without moto it skips, except in CI."""
    server = S3Server(tmp_path_factory.mktemp("s3"))
    yield server
    server.stop()


@pytest.fixture
def bucket(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """Return an empty bucket that this process may use; executors may as well."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return s3.bucket()


@pytest.fixture(scope="session")
def streams(cluster: LocalCluster) -> Iterator[Streams]:
    """Return a writer of streams in the cluster's usual namespace."""
    with Streams(cluster) as opened:
        yield opened


@pytest.fixture
def read(cluster: LocalCluster) -> Any:
    """Return ``read(path, columns=None, **options)``: the rows, read in this process.

    Planner and tasks are what Spark would run; a task is pickled between them as Spark does.
    """

    def call(path: str | None = None, columns: Any = None, **options: Any) -> list[dict[str, Any]]:
        return [row for task in read_tasks(cluster, path, columns, **options) for row in task]

    return call


@pytest.fixture
def load(spark: Any, cluster: LocalCluster) -> Any:
    """Return ``load(path, schema=None, **options)`` for the cluster."""

    def call(path: str | None = None, *, schema: Any = None, **options: Any) -> Any:
        reader = spark.read.format("quorumbook").options(
            **{"metadataServiceUri": cluster.metadata_uri, **options}
        )
        if schema is not None:
            reader = reader.schema(schema)
        return reader.load(path) if path is not None else reader.load()

    return call


@pytest.fixture
def query(cluster: LocalCluster) -> Any:
    """Return ``query(path, ...)``, which begins a ``Query`` on the cluster."""
    return lambda *args, **options: Query(cluster, *args, **options)
