"""The row of ``spark.py`` beside Spark's own Kafka connector, on one broker 4.0 of this machine.

The same records are read and written through both: in two partitions, by two tasks at once.  Ours
keep three replicas, each synced before it is acknowledged, and write each batch exactly once and
in one step.  The broker keeps one; the connector writes at least once.  A topic is ``synced``
where the broker syncs each message before its acknowledgement, else it is in the page cache.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import uvloop

import spark_load as load
from report import Figure
from single_records import PARTITIONS, TOPICS, Broker, fill
from spark_measure import KB, Bench, compared, said, text
from systems import HERE, Missing, find_jars

#: Records of each size: some seconds of whoever is slower.
RECORDS = {100: 2_000_000, KB: 400_000}
READ_GOAL, WRITE_GOAL = 1.5, 1.0
_SYNCED, _CACHED = TOPICS
#: Until the JVM has compiled what a query runs through.
_WARM = 2


def connector_jars() -> str:
    """Return the connector and what it needs, as ``spark.jars`` takes them.

    Raises:
        Missing: Maven, or the jars, could not be had.
    """
    return find_jars(HERE / "peer" / "spark-kafka.xml").replace(":", ",")


class _Beside:
    """A stream and two topics of the same records, and frames of them."""

    def __init__(self, bench: Bench, broker: Broker, size: int) -> None:
        self.bench = bench
        self.broker = broker
        self.size = size
        self.count = RECORDS[size]
        self.stream = bench.name("parts")
        uvloop.run(fill(load.address(bench.uri), self.stream, size, self.count))
        self.topic = self.new_topic(_CACHED)
        broker.produce(self.topic, size, self.count)

    def new_topic(self, kind: str) -> str:
        topic = self.bench.name("topic")
        self.broker.create(topic, TOPICS[kind], PARTITIONS)
        return topic

    def readers(self, session_reader: Any) -> tuple[Any, Any]:
        """Return the frames of both, of a batch's or of a query's reader."""
        own = (
            session_reader()
            .format("quorumbook")
            .options(metadataServiceUri=self.bench.uri, startingOffsets="earliest")
        )
        kafka = session_reader().format("kafka").options(
            subscribe=self.topic, startingOffsets="earliest",
            **{"kafka.bootstrap.servers": self.broker.address},
        )  # fmt: skip
        return own.load(f"stream:{self.stream}"), kafka.load()

    def query_s(self, frame: Any) -> float:
        """Run a query over all that is there into nothing; return seconds."""
        checkpoint = self.bench.work / self.bench.name("checkpoint")
        query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        seconds = load.timed(lambda: query.trigger(availableNow=True).start().awaitTermination())
        shutil.rmtree(checkpoint)
        return seconds

    def write_own_s(self, frame: Any) -> float:
        name = self.bench.name("sink")
        uvloop.run(fill(load.address(self.bench.uri), name, self.size, 0))
        writer = frame.write.format("quorumbook").mode("append")
        writer = writer.option("metadataServiceUri", self.bench.uri)
        return load.timed(lambda: writer.save(f"stream:{name}"))

    def write_kafka_s(self, frame: Any, kind: str) -> float:
        writer = frame.write.format("kafka").options(
            topic=self.new_topic(kind), **{"kafka.bootstrap.servers": self.broker.address}
        )
        return load.timed(writer.save)


def kafka(bench: Bench) -> Iterator[Figure]:
    """Read, follow and write the same records through both connectors."""
    try:
        connector_jars()
        broker = Broker(bench.work / "kafka")
    except Missing as missing:
        yield said("beside Spark's Kafka connector", f"not measured: {missing}")
        return
    try:
        for size in RECORDS:
            yield from _figures(_Beside(bench, broker, size))
    finally:
        broker.stop()


def _figures(of: _Beside) -> Iterator[Figure]:
    spark, named = of.bench.spark, f"{of.count:,} records of {text(of.size)}"
    own, other = of.readers(lambda: spark.read)
    yield _read(of, f"batch read of {named}", load.into_nothing, own, other)
    yield _read(
        of, "the same, values alone", load.into_nothing, own.select("value"), other.select("value")
    )
    own, other = of.readers(lambda: spark.readStream)
    yield _read(of, f"an `availableNow` query of {named}", of.query_s, own, other)
    with load.cached_frame(spark, of.size, of.count, PARTITIONS) as frame:
        write_own, write_kafka = partial(of.write_own_s, frame), partial(of.write_kafka_s, frame)
        kinds: dict[str, float | None] = {_SYNCED: WRITE_GOAL, _CACHED: None}
        for kind, goal in kinds.items():
            title = f"write of {named}, beside Spark's connector into {kind}"
            yield _rates(of, title, goal, write_own, partial(write_kafka, kind))


def _read(of: _Beside, title: str, run_s: Callable[[Any], float], own: Any, other: Any) -> Figure:
    title = f"{title}, beside Spark's Kafka connector"
    return _rates(of, title, READ_GOAL, partial(run_s, own), partial(run_s, other))


def _rates(
    of: _Beside,
    title: str,
    goal: float | None,
    own_s: Callable[[], float],
    other_s: Callable[[], float],
) -> Figure:
    for _ in range(_WARM):
        own_s(), other_s()
    pairs = [(of.count / own_s(), of.count / other_s()) for _ in range(of.bench.rounds)]
    return compared(title, "records/s", goal, pairs)
