"""A topic that a real broker of Apache Pulsar writes, read by Spark and without it meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String

import quorumbook
from brokers.pulsar_cluster import PulsarCluster, wait_until
from brokers.topics import payload
from doubles.spark import local_session, need_spark
from quorumbook.pulsar import Topic
from quorumbook.pulsar.topic import list_topics

pytestmark = [
    pytest.mark.interop,
    pytest.mark.xdist_group("pulsar"),
    # Pulsar's jars may have to be fetched first.
    pytest.mark.timeout(600),
]
CODECS = [
    pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4, pulsar.CompressionType.ZLib,
    pulsar.CompressionType.ZSTD, pulsar.CompressionType.SNAPPY,
]  # fmt: skip
#: More than an entry takes.
LARGE = 6_000_000


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session of its own: that of the tests of Spark is in another process."""
    need_spark()
    directory = tmp_path_factory.mktemp("spark")
    session = local_session("quorumbook brokers", directory, {"spark.driver.memory": "512m"})
    yield session
    session.stop()


class Producers:
    """One for each compression, in turns; some send batches, and some may send chunks."""

    def __init__(self, client: pulsar.Client, topic: str) -> None:
        self._results: list[Any] = []
        self._producers = [
            client.create_producer(
                topic, compression_type=codec, block_if_queue_full=True,
                batching_enabled=number % 2 == 0, batching_max_messages=7,
                chunking_enabled=number % 2 == 1,
            )
            for number, codec in enumerate(CODECS)
        ]  # fmt: skip
        self.sent = 0

    def send(self, count: int, size: int = 100) -> None:
        for number in range(self.sent, self.sent + count):
            self._producers[number % len(CODECS)].send_async(
                payload(number, size), lambda result, _: self._results.append(result),
                properties={"number": str(number)}, partition_key=f"k{number % 11}",
                event_timestamp=1_000_000 + number,
            )  # fmt: skip
        self.sent += count

    def finish(self) -> None:
        for producer in self._producers:
            producer.flush()
            producer.close()
        assert self._results == [pulsar.Result.Ok] * self.sent


def make_topic(cluster: PulsarCluster) -> str:
    """Return a topic of two partitions, which nobody subscribes to."""
    topic = f"{cluster.make_namespace('tables')}/orders"
    admin = cluster.brokers[0].admin
    # Otherwise a ledger would be deleted as soon as the next one begins.
    kept = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    admin("namespaces/t/tables/retention", "POST", kept)
    admin(f"{topic.replace('://', '/')}/partitions", "PUT", 2)
    return topic


def test_spark_reads_a_topic_while_its_broker_writes_it(
    pulsar_cluster: PulsarCluster, spark: Any, tmp_path: Path
) -> None:
    topic, client = make_topic(pulsar_cluster), pulsar_cluster.client()
    bare = topic.removeprefix("persistent://")
    producers = Producers(client, topic)
    producers.send(1000)
    how = {
        "metadataServiceUri": pulsar_cluster.uri, "client.max_frame_bytes": "5253120",
        "maxBatchBytes": "8M",
    }  # fmt: skip
    query = (
        spark.readStream.format("quorumbook")
        .options(startingOffsets="earliest", **how)
        .load(f"pulsar:{bare}")
        .writeStream.format("memory")
        .queryName("messages")
        .option("checkpointLocation", f"{tmp_path}/checkpoint")
        .start()
    )
    read = spark.table("messages")

    def is_read(count: int) -> bool:
        assert query.exception() is None
        return bool(read.count() >= count)

    wait_until(lambda: is_read(500), "the first messages in Spark")
    # The broker goes on as it was: nobody has taken its ledgers from it.
    producers.send(1001)
    producers.send(1, LARGE)  # by the second producer, which may send chunks
    producers.finish()
    wait_until(lambda: is_read(producers.sent), "all messages in Spark")
    query.stop()

    rows = sorted(read.collect(), key=lambda row: (row.partition, *place_of(row)))
    expected = [message for number in range(2) for message in read_by_pulsar(client, topic, number)]
    assert [shown(row) for row in rows] == expected
    assert {row.topic for row in rows} == {bare}
    assert len({row.ledger_id for row in rows}) > 4, "every 200 entries begin a new ledger"
    batch = spark.read.format("quorumbook").options(**how).load(f"pulsar:{bare}")
    assert batch.count() == producers.sent
    asyncio.run(read_without_spark(pulsar_cluster, bare, expected))


class Order(Record):  # type: ignore[misc]
    """What messages with a schema hold."""

    customer = String()
    total = Integer()


def test_the_schema_of_a_topic_is_that_of_its_producers(pulsar_cluster: PulsarCluster) -> None:
    namespace = pulsar_cluster.make_namespace("schemas")
    for kind in AvroSchema, JsonSchema:
        schema = kind(Order)
        topic = f"{namespace}/{kind.__name__}"
        producer = pulsar_cluster.client().create_producer(topic, schema=schema)
        producer.send(Order(customer="a", total=7))
        producer.close()
        found, message = asyncio.run(schema_of(pulsar_cluster, topic))
        assert found.version == message.schema_version == 0
        assert found.kind == kind.__name__.removesuffix("Schema").upper()
        assert [field["name"] for field in json.loads(found.definition)["fields"]] == [
            "customer", "total",
        ]  # fmt: skip
        assert schema.decode(message.value).total == 7


async def schema_of(cluster: PulsarCluster, name: str) -> tuple[Any, Any]:
    """Return a topic's schema and its first message, once that is confirmed."""
    async with quorumbook.connect(cluster.uri) as bk:
        topic = Topic(bk, name)
        while True:
            async for message in topic.read():
                return await topic.schema(message.schema_version), message
            await asyncio.sleep(0.1)


def place_of(row: Any) -> tuple[int, int, int]:
    index = row.batch_index
    return row.ledger_id, row.entry_id, -1 if index is None else index


def shown(row: Any) -> tuple[Any, ...]:
    """Return what both sides know of a message."""
    happened = row.event_time
    return (
        row.partition, *place_of(row), bytes(row.value), row.properties,
        (row.key or b"").decode(), round(row.publish_time.timestamp() * 1000),
        0 if happened is None else round(happened.timestamp() * 1000), row.producer_name,
    )  # fmt: skip


def read_by_pulsar(client: pulsar.Client, topic: str, number: int) -> list[tuple[Any, ...]]:
    """Return the same of the messages of a partition, as Pulsar's own reader has them."""
    reader = client.create_reader(f"{topic}-partition-{number}", pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        message = reader.read_next(60_000)
        place = message.message_id()
        found.append((
            number, place.ledger_id(), place.entry_id(), place.batch_index(), message.data(),
            message.properties(), message.partition_key(), message.publish_timestamp(),
            message.event_timestamp(), message.producer_name(),
        ))  # fmt: skip
    reader.close()
    return found


async def read_without_spark(
    cluster: PulsarCluster, bare: str, expected: list[tuple[Any, ...]]
) -> None:
    async with quorumbook.connect(cluster.uri, max_frame_bytes=5_253_120) as bk:
        partitions = [f"{bare}-partition-{number}" for number in range(2)]
        assert [name for name in await list_topics(bk, "t/tables") if bare in name] == partitions
        topic = Topic(bk, bare)
        assert [m.value async for m in topic.read()] == [each[4] for each in expected]
        messages = [m async for m in topic.read()]
        # The broker is set up to count messages and to say when it took them in.
        assert all(m.broker_index is not None and m.broker_time_ms is not None for m in messages)
