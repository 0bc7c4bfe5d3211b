"""One record a call, as users of streams write and read, beside confluent-kafka (librdkafka).

Ours keep three replicas, each synced before it is acknowledged.  One Kafka 4.0 broker keeps one,
in two topics: in ``synced`` it syncs every message before its acknowledgement, in ``page cache``
it leaves that to the kernel.  Both are named so in the table.

By itself: ``python bench/single_records.py --rounds 5``; ``--only write`` measures some rows.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import uvloop

import report
from other_logs import Kafka, need
from quorumbook.env.allocator import keep_freed_memory
from quorumbook.errors import BackpressureError
from quorumbook.streams import Namespace, PartitionedStream, StreamPolicy
from quorumbook.sync.streams import Namespace as BlockingNamespace
from report import Goal, Scenario
from stream_load import NAMESPACE, put_all
from systems import Missing, Own

#: Records of a size, enough for half a second of whoever is fastest.
SIZES = {100: 400_000, 1000: 120_000}
#: So many records are under way.
WINDOW = 20_000
#: A call of confluent-kafka's consumer returns so many at most, as do ours by groups.
FETCH = 10_000
PARTITIONS = 2
POLICY = StreamPolicy(roll_bytes=2**31)
#: Of the broker's topics, by what each is called in the table.
TOPICS = {"Kafka, synced": {"flush.messages": "1"}, "Kafka, page cache": {}}
SYSTEMS = ["own", "with futures", "blocking", "blocking, with futures", *TOPICS]
NOTE = (
    "one record a call: a window of 20,000 records; `own` writes by `put` and reads by `async "
    "for`, `with futures` writes by `append_nowait`, `blocking` is `quorumbook.sync`; three "
    "bookies at E3/Qw3/Qa2. `Kafka` is one broker 4.0 with one replica of every record, by "
    "confluent-kafka 2 with acks=all and else its defaults, and `consume(10000)`. A consumer is "
    "the only member of its group, and reads two partitions. Before each measurement the servers "
    "come to rest: bookies move what they acknowledged from journals to entry logs afterwards. "
    "Both clients are in one process, which keeps freed memory as commands do, and what it has "
    "imported out of its collector's sight (docs/explanation/tuning.md). Servers' processor time "
    "counts all bookies, or the broker with its JVM"
)


class Broker(Kafka):
    """One Kafka 4.0 broker, loaded by confluent-kafka."""

    def start(self) -> None:
        need("confluent_kafka")
        self.start_broker()

    def create(self, name: str, settings: dict[str, str], partitions: int) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.address})
        topic = NewTopic(name, partitions, 1, config=settings)
        admin.create_topics([topic])[name].result(30)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def produce(self, topic: str, size: int, records: int) -> float:
        """Write records; return the seconds it took until all were acknowledged."""
        from confluent_kafka import Producer

        payload, failed = os.urandom(size), []
        options = {"queue.buffering.max.messages": WINDOW, "acks": "all", "linger.ms": 5}
        producer = Producer(
            {"bootstrap.servers": self.address, "error_cb": failed.append, **options}
        )
        producer.list_topics(topic, 30)
        start = time.perf_counter()
        produce = producer.produce
        for _ in range(records):
            while True:
                try:
                    produce(topic, payload)
                    break
                except BufferError:
                    producer.poll(0.001)
        left = producer.flush(120)
        took_s = time.perf_counter() - start
        if left or failed:
            raise RuntimeError(f"Kafka: {left} of {records} records are not written, {failed}")
        return took_s

    def consume(self, topic: str, records: int, *, group: bool) -> float:
        """Read records, every payload as an object; return the seconds from the first answer."""
        from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

        consumer = Consumer(
            {"bootstrap.servers": self.address, "group.id": str(uuid.uuid4()),
             "auto.offset.reset": "earliest"}
        )  # fmt: skip
        if group:
            consumer.subscribe([topic])
        else:
            consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        first = None
        start, found = time.perf_counter(), 0
        while found < records:
            messages = consumer.consume(FETCH, 30)
            if not messages:
                raise RuntimeError(f"Kafka: {found} of {records} records were read")
            if first is None and group:  # joining took its time
                first, start = len(messages), time.perf_counter()
            for message in messages:
                message.value()
            found += len(messages)
        took_s = time.perf_counter() - start
        consumer.close()
        return took_s * records / (records - (first or 0))


async def _put(address: str, name: str, size: int, records: int, *, futures: bool) -> float:
    payload = os.urandom(size)
    async with Namespace.open(address, bind=True) as ns:
        await ns.create_stream(name, policy=POLICY, exist_ok=True)
        options = {"max_pending_records": WINDOW, "retention_interval_s": 0}
        async with ns.stream(name).writer(**options) as writer:
            await writer.append(b"first")
            call = writer.append_nowait if futures else writer.put
            return await put_all(writer, call, payload, records - 1)


def _put_blocking(address: str, name: str, size: int, records: int, *, futures: bool) -> float:
    payload = os.urandom(size)
    with BlockingNamespace.open(address, bind=True) as ns:
        ns.create_stream(name, policy=POLICY)
        options = {"max_pending_records": WINDOW, "retention_interval_s": 0}
        with ns.stream(name).writer(**options) as writer:
            writer.append(b"first")
            put = writer.append_nowait if futures else writer.put
            start = time.perf_counter()
            for _ in range(records - 1):
                while True:
                    try:
                        put(payload)
                        break
                    except BackpressureError:
                        writer.drain()
            writer.flush()
            return time.perf_counter() - start


async def _read(address: str, name: str, records: int) -> float:
    async with Namespace.open(address, bind=True) as ns:
        found, start = 0, time.perf_counter()
        async with ns.stream(name).reader(tail=False) as reader:
            async for _ in reader:
                found += 1
        took_s = time.perf_counter() - start
    if found != records:
        raise RuntimeError(f"{found} of {records} records were read")
    return took_s


def _read_blocking(address: str, name: str, records: int) -> float:
    with BlockingNamespace.open(address, bind=True) as ns:
        start = time.perf_counter()
        with ns.stream(name).reader(tail=False) as reader:
            found = sum(1 for _ in reader)
        took_s = time.perf_counter() - start
    if found != records:
        raise RuntimeError(f"{found} of {records} records were read")
    return took_s


async def fill(address: str, name: str, size: int, records: int) -> None:
    """Make a stream of two partitions, and write so many records into it."""
    payload, each = os.urandom(size), 500
    async with Namespace.open(address, bind=True) as ns:
        stream = await PartitionedStream.create(ns, name, partitions=PARTITIONS, policy=POLICY)
        for partition in stream.partitions if records else ():
            async with partition.writer(retention_interval_s=0) as writer:
                for _ in range(records // PARTITIONS // each):
                    await writer.append_batch([payload] * each)


async def _consume(address: str, name: str, records: int, *, one_by_one: bool) -> float:
    """Return the seconds from the first record, as joining takes its time."""
    async with Namespace.open(address, bind=True) as ns:
        stream = await PartitionedStream.open(ns, name)
        async with stream.consumer(f"g{uuid.uuid4()}", start="earliest") as consumer:
            first = found = len(await consumer.read(1, wait_s=30))
            start = time.perf_counter()
            if one_by_one:
                async for _ in consumer:
                    found += 1
                    if found == records:
                        break
            while found < records:
                part = await consumer.read(FETCH, wait_s=30)
                if not part:
                    raise RuntimeError(f"{found} of {records} records were read")
                found += len(part)
            took_s = time.perf_counter() - start
    return took_s * records / (records - first)


class SingleRecords:
    """What is measured, and what was found; ``start`` and ``stop`` are of broker and process."""

    def __init__(self, work: Path, own: Own) -> None:
        self.work = work
        self.own = own
        self.broker: Broker | None = None
        self.scenarios: dict[str, Scenario] = {}
        self.notes = [NOTE]

    def start(self) -> None:
        # As docs/explanation/tuning.md has it.
        keep_freed_memory()
        gc.freeze()
        try:
            self.broker = Broker(self.work / "records")
        except Missing as missing:
            self.notes.append(f"confluent-kafka is not measured: {missing}")

    def stop(self) -> None:
        if self.broker is not None:
            self.broker.stop()

    def measure(self, number: int, only: str = "") -> None:
        """Measure every row once."""
        for size, records in SIZES.items():
            for part in (self._write_and_read, self._consumers):
                if only in part.__name__:
                    part(f"one{number}-{size}", size, records)

    # Rows ----------------------------------------------------------------------------------

    def _write_and_read(self, name: str, size: int, records: int) -> None:
        address, text = f"{self.own.uri}#{NAMESPACE}", _size(size)
        goals = [
            Goal("own", "Kafka, synced", 0.8 if size < 1000 else 1.0),
            Goal("own", "Kafka, page cache", None),
            Goal("with futures", "Kafka, synced", None),
            Goal("blocking", "own", 0.7),
        ]
        write = self._row(f"write, {text}", goals)
        read = self._row(f"read, {text}", [Goal("own", "Kafka, synced", 1.2), *goals[1:2],
                                           Goal("blocking", "own", 0.7)])  # fmt: skip
        ours: dict[str, Callable[[str], float]] = {
            "own": lambda n: uvloop.run(_put(address, n, size, records, futures=False)),
            "with futures": lambda n: uvloop.run(_put(address, n, size, records, futures=True)),
            "blocking": lambda n: _put_blocking(address, n, size, records, futures=False),
            "blocking, with futures": lambda n: _put_blocking(
                address, n, size, records, futures=True
            ),
        }
        for system, work in ours.items():
            topic = f"{name}-{system.replace(', ', '-').replace(' ', '-')}"
            self._add(write, system, records, partial(work, topic))
        self._add(read, "own", records, lambda: uvloop.run(_read(address, f"{name}-own", records)))
        self._add(
            read, "blocking", records, partial(_read_blocking, address, f"{name}-own", records)
        )
        for broker, topic, system in self._topics(name, 1):
            self._add(write, system, records, partial(broker.produce, topic, size, records))
            self._add(read, system, records, partial(broker.consume, topic, records, group=False))

    def _consumers(self, name: str, size: int, records: int) -> None:
        address, text = f"{self.own.uri}#{NAMESPACE}", _size(size)
        goals = [Goal("own", "Kafka, synced", 2), Goal("own", "Kafka, page cache", None)]
        single = self._row(f"a consumer, record by record, {text}", goals)
        many = self._row(f"a consumer, by read(10000), {text}", goals)
        uvloop.run(fill(address, f"{name}-g", size, records))
        for row, one_by_one in (single, True), (many, False):
            self._add(
                row,
                "own",
                records,
                lambda o=one_by_one: uvloop.run(
                    _consume(address, f"{name}-g", records, one_by_one=o)
                ),
            )
        for broker, topic, system in self._topics(f"{name}-g", PARTITIONS):
            broker.produce(topic, size, records)
            for row in single, many:
                work = partial(broker.consume, topic, records, group=True)
                self._add(row, system, records, work)

    # Helpers -------------------------------------------------------------------------------

    def _topics(self, name: str, partitions: int) -> Iterator[tuple[Broker, str, str]]:
        if self.broker is None:
            return
        for system, settings in TOPICS.items():
            topic = f"{name}-{system.partition(', ')[2].replace(' ', '-')}"
            self.broker.create(topic, settings, partitions)
            yield self.broker, topic, system

    def _row(self, title: str, goals: list[Goal], unit: str = "records/s") -> Scenario:
        return self.scenarios.setdefault(title, Scenario(title, unit, goals))

    def _add(self, row: Scenario, system: str, records: int, work: Callable[[], float]) -> None:
        """Add a rate to a row, and to two more what a record costs client and servers."""
        servers = self.broker if system in TOPICS else self.own
        assert servers is not None
        for each in (self.own, self.broker):
            if each is not None:
                each.processes.let_rest()
        began = time.process_time(), servers.processes.processor_s()
        row.add(system, records / work())
        spent = time.process_time() - began[0], servers.processes.processor_s() - began[1]
        for who, spent_s in zip(("client", "servers"), spent, strict=True):
            title = f"{row.title}: the {who}' processor time".replace("client'", "client's")
            self._row(title, [], "µs").add(system, spent_s / records * 1e6)


def _size(size_bytes: int) -> str:
    return f"{size_bytes} B" if size_bytes < 1000 else f"{round(size_bytes / 1024)} KB"


def lines(single: SingleRecords) -> list[str]:
    """Return the part of the report."""
    found = ["", "## One record a call", "", *(f"- {note}" for note in single.notes), ""]
    return [*found, *report.table(list(single.scenarios.values()), SYSTEMS)]


@contextmanager
def running(work: Path) -> Iterator[SingleRecords]:
    """Start bookies and broker."""
    own = Own(work / "own")
    single = SingleRecords(work, own)
    try:
        own.start()
        single.start()
        yield single
    finally:
        single.stop()
        own.stop()


def main() -> int:
    """Measure these rows alone, and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="write_and_read or consumers")
    options = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="quorumbook-bench-"))
    try:
        with running(work) as single:
            for number in range(options.rounds):
                single.measure(number, options.only)
                print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
            print("\n".join([*(f"- {line}" for line in report.machine()), *lines(single)]))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
