"""Spark beside Java's clients on a real ZooKeeper: what is decisive once more, not on SQLite."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from inline import do_units, follow
from spark_helpers import Streams, let_go
from test_spark_jobs_moving import (
    test_a_lost_bookie_is_rereplicated_while_a_writer_goes_on_then_forgotten as lose_a_bookie,
)

from doubles.zookeeper import made_root
from interop.peer_driver import Peer, expected, seen
from interop.peer_java import Missing, find_java
from interop.sides import JavaSide, Shape
from interop.stream_sides import JavaStreams
from quorumbook.spark.connection import Connection
from quorumbook.spark.jobs.data import xcluster_verify
from quorumbook.spark.jobs.data.xcluster import CrossCluster
from quorumbook.spark.pool import connected
from quorumbook.streams import Namespace, StreamPolicy
from quorumbook.streams.transactions import Application, Identity, Place, collect_orphans
from quorumbook.testing import LocalCluster
from quorumbook.zookeeper_server import ZooKeeperServer

ROWS = 60
_JAVA_CONF = {"lockTimeoutSeconds": "0", "logSegmentCacheEnabled": "false"}


class Joint:
    """A cluster on ZooKeeper, and the peer's clients of it."""

    def __init__(self, cluster: LocalCluster, root: str, zookeeper: str, peer: Peer) -> None:
        self.cluster, self.peer = cluster, peer
        self.options = {
            "metadataServiceUri": cluster.metadata_uri, "namespace": f"{root}/messaging",
        }  # fmt: skip
        self.address = f"{cluster.metadata_uri}#{root}/messaging"
        self._zookeeper_uri = f"distributedlog://{zookeeper}"
        self.java = JavaStreams(peer, f"{self._zookeeper_uri}{root}/messaging", **_JAVA_CONF)

    def beside(self, name: str) -> tuple[Connection, JavaStreams]:
        """Make another namespace; return how we see it, and how Java does."""
        path = self.options["namespace"].replace("messaging", name)
        asyncio.run(Namespace.bind(f"{self.cluster.metadata_uri}#{path}"))
        uri = self._zookeeper_uri + path
        connection = Connection(metadata_uri=self.cluster.metadata_uri, namespace_path=path)
        return connection, JavaStreams(self.peer, uri, **_JAVA_CONF)

    def with_namespace(self, work: Any) -> Any:
        async def call() -> Any:
            async with Namespace.open(self.address) as namespace:
                return await work(namespace)

        return asyncio.run(call())

    def java_writes(self, name: str, numbers: range) -> None:
        async def work() -> None:
            await self.java.open(name)
            for number in numbers:
                await self.java.write(name, [b"java %d" % number], number + 1)
            await self.java.close(name)

        asyncio.run(work())


@pytest.fixture(scope="module")
def joint(
    spark_ends_first: None, zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Joint]:
    try:
        java = find_java()
    except Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(str(missing))
        pytest.skip(str(missing))
    root = asyncio.run(made_root(zookeeper))
    uri = f"zk://{zookeeper.address}{root}/ledgers"
    with LocalCluster(bookies=5, metadata_uri=uri) as cluster:
        peer = Peer(java, tmp_path_factory.mktemp("peer"))
        try:
            joint = Joint(cluster, root, zookeeper.address, peer)
            asyncio.run(Namespace.bind(joint.address))
            yield joint
            asyncio.run(joint.java.call("close_namespaces"))
        finally:
            peer.stop()
            let_go(cluster)


def copy(spark: Any, joint: Joint, names: tuple[str, str], checkpoint: Path) -> None:
    """Have a query copy what is there."""
    source, target = names
    frame = (
        spark.readStream.format("quorumbook").schema("value binary").options(**joint.options)
        .options(startingOffsets="earliest", maxRecordsPerTrigger=ROWS // 2, minPartitions=2)
        .load(f"stream:{source}")
    )  # fmt: skip
    query = (
        frame.writeStream.format("quorumbook").options(**joint.options)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True).start(f"stream:{target}")
    )  # fmt: skip
    try:
        query.awaitTermination()
    finally:
        query.stop()


def forget_last_commit(checkpoint: Path) -> None:
    """Be as if the driver had died after the sink's commit, before Spark wrote its own."""
    commits = checkpoint / "commits"
    last = max(int(each.name) for each in commits.iterdir() if each.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)


def test_a_query_copies_what_java_wrote_once_to_where_java_reads_it(
    spark: Any, joint: Joint, tmp_path: Path
) -> None:
    names = f"in-{uuid4().hex[:8]}", f"out-{uuid4().hex[:8]}"

    async def make(namespace: Namespace) -> None:
        for name in names:
            await namespace.create_stream(name)

    async def orphans(namespace: Namespace) -> list[Any]:
        return await collect_orphans(Place(namespace.client, namespace, attempt_ttl_s=0))

    joint.with_namespace(make)
    joint.java_writes(names[0], range(ROWS))
    rows = spark.read.format("quorumbook").options(**joint.options).load(f"stream:{names[0]}")
    assert [(r.seq, r.txid, bytes(r.value)) for r in rows.collect()] == [
        (number, number + 1, b"java %d" % number) for number in range(ROWS)
    ]
    copy(spark, joint, names, tmp_path)
    forget_last_commit(tmp_path)
    joint.java_writes(names[0], range(ROWS, ROWS + 10))
    copy(spark, joint, names, tmp_path)
    found = asyncio.run(joint.java.read(names[1], ROWS + 10))
    assert [each.payload for each in found] == [b"java %d" % n for n in range(ROWS + 10)]
    assert [each.sequence_id for each in found] == list(range(ROWS + 10))
    assert joint.with_namespace(orphans) == []
    joint.java_writes(names[1], range(2**42, 2**42 + 1))  # behind what Spark wrote
    assert len(asyncio.run(joint.java.read(names[1], ROWS + 11))) == ROWS + 11


def test_java_reads_what_was_copied_to_another_cluster(
    joint: Joint, cluster: LocalCluster, streams: Streams
) -> None:
    name, of_java = f"ours-{uuid4().hex[:8]}", f"javas-{uuid4().hex[:8]}"
    here = Connection(metadata_uri=cluster.metadata_uri, namespace_path="/streams")
    there = Connection(
        metadata_uri=joint.options["metadataServiceUri"],
        namespace_path=joint.options["namespace"],
    )
    beyond, javas = joint.beside("copies")

    def copy(source: Connection, target: Connection, stream: str) -> None:
        one, two = connected(source), connected(target)
        follow(source, CrossCluster(one, two, [stream], job_id="job", max_bytes=1 << 30))
        plan = one.run(lambda: xcluster_verify.plan_verify(one, two, [stream]))
        results, errors = do_units(source, plan)
        assert (errors, sum(result["findings"] for result in results.values())) == ({}, 0)

    # Ours, compressed and in several segments, of which some come later.
    policy = StreamPolicy(compression="lz4")
    streams.run(streams.namespace.create_stream(name, policy=policy))
    rows = [b"row %d " % number * 20 for number in range(ROWS)]
    for first in 0, ROWS // 2:
        half = rows[first : first + ROWS // 2]
        streams.write(name, half[:7], half[7:])
        copy(here, there, name)
    found = asyncio.run(joint.java.read(name, ROWS))
    assert [each.payload for each in found] == rows
    assert [each.sequence_id for each in found] == list(range(ROWS))
    # Java's own.
    joint.with_namespace(lambda namespace: namespace.create_stream(of_java))
    joint.java_writes(of_java, range(10))
    copy(there, beyond, of_java)
    original = asyncio.run(joint.java.read(of_java, 10))
    found = asyncio.run(javas.read(of_java, 10))
    assert [each[1:] for each in found] == [each[1:] for each in original]
    assert [each.payload for each in found] == [b"java %d" % number for number in range(10)]


def test_ledgers_of_java_are_rows_and_rows_are_ledgers_of_javas(spark: Any, joint: Joint) -> None:
    shape, sizes = Shape(password=""), [0, 1, 1000, 70_000, *[100] * ROWS]

    async def write() -> int:
        side = await JavaSide.connect(joint.peer, joint.cluster.metadata_uri)
        ledger = await side.create(shape)
        await ledger.append("spark", sizes)
        await ledger.close()
        await side.close()
        return ledger.id

    async def read(ledger_id: int) -> list[Any]:
        side = await JavaSide.connect(joint.peer, joint.cluster.metadata_uri)
        ledger = await side.open(ledger_id, shape)
        found = await ledger.read(0, len(sizes) - 1)
        await ledger.close()
        await side.close()
        return found

    async def committed(namespace: Namespace) -> list[int]:
        app = Application(Place(namespace.client), app_id, Identity("", ""))
        return [each.ledger_id async for each in app.ledgers()]

    of_java = asyncio.run(write())
    frame = (
        spark.read.format("quorumbook").schema("entry_id long, value binary")
        .options(**joint.options).load(f"ledger:{of_java}")
    )  # fmt: skip
    rows = [seen(row.entry_id, bytes(row.value)) for row in frame.collect()]
    assert rows == expected("spark", sizes)
    app_id = f"rows {uuid4().hex}"
    (
        frame.select("value").coalesce(1).write.format("quorumbook").mode("append")
        .options(**joint.options, target="ledger", txnAppId=app_id, txnVersion="1").save()
    )  # fmt: skip
    (of_spark,) = joint.with_namespace(committed)
    assert asyncio.run(read(of_spark)) == rows


def test_a_lost_bookie_is_rereplicated_under_zookeepers_locks(
    spark: Any, joint: Joint, tmp_path: Path
) -> None:
    lose_a_bookie(spark, joint.cluster, tmp_path)
