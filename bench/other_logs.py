"""Other logs on this machine, by their asyncio clients: Redis streams, NATS JetStream, Kafka.

Each is one server, one copy of every record, synced before it is acknowledged.  One that is not
installed, server or client library, raises ``Missing`` with what would mend it.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import importlib.util
import os
import shutil
import subprocess
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvloop

from stream_load import BATCH_BYTES, IN_FLIGHT, PER_SECOND, child, delays, records_in_entry
from systems import HERE, Missing, Processes, answers, find_jars, free_port, wait_until

#: What one fetch of a reader takes.
FETCH = 5000


def need(library: str, program: str = "", package: str = "") -> None:
    """Raise Missing unless a library and a program are here."""
    if program and shutil.which(program) is None:
        raise Missing(f"{program} is not installed: {package}")
    if importlib.util.find_spec(library) is None:
        names = {"nats": "nats-py", "confluent_kafka": "confluent-kafka"}
        raise Missing(
            f"its client library is not installed: pip install {names.get(library, library)}"
        )


class OtherLog:
    """One server; ``connect``, ``send``, ``fetch`` and ``follow`` are what they differ in."""

    name = ""
    #: Of the records that others write it gets one in so many, as it takes longer.
    share = 10

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.processes = Processes(directory)
        self.port = free_port()
        self.start()
        wait_until(lambda: answers(self.port), self.name)

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        self.processes.stop_all()

    async def send(self, topic: str, payloads: list[bytes], calls: int) -> None:
        """Have so many calls append the payloads, ``IN_FLIGHT`` of them under way."""
        raise NotImplementedError

    async def fetch(self, topic: str, count: int) -> int:
        """Read so many records; return how many there were."""
        raise NotImplementedError

    async def append_steadily(self, topic: str, count: int) -> None:
        """Append records that say when, and then an empty one."""
        raise NotImplementedError

    async def write(self, topic: str, size: int, records: int) -> float:
        """Return records per second."""
        payloads = [os.urandom(size) for _ in range(records_in_entry(size))]
        calls = records // len(payloads)
        start = time.perf_counter()
        await self.send(topic, payloads, calls)
        return calls * len(payloads) / (time.perf_counter() - start)

    async def read(self, topic: str, size: int, records: int) -> float:
        """Return records per second."""
        count = records // records_in_entry(size) * records_in_entry(size)
        start = time.perf_counter()
        found = await self.fetch(topic, count)
        if found < count:
            raise RuntimeError(f"{self.name}: {found} of {count} records")
        return found / (time.perf_counter() - start)

    async def tail(self, topic: str, seconds: float) -> list[float]:
        """Return the delays of records at a reader in another process, in ms, sorted."""
        follower = await child(self.name, str(self.port), topic, script=__file__)
        await self.append_steadily(topic, int(seconds * PER_SECOND))
        return await delays(follower)


async def paced(count: int) -> AsyncIterator[bytes]:
    """Yield records at a fixed rate, each with its time; an empty one ends them."""
    start = time.monotonic()
    for number in range(count):
        await asyncio.sleep(start + number / PER_SECOND - time.monotonic())
        yield b"%d" % time.monotonic_ns()
    yield b""


class Redis(OtherLog):
    """Redis streams; every command is in a synced append-only file before it is answered."""

    name = "Redis"

    def start(self) -> None:
        need("redis", "redis-server", "apt-get install redis-server")
        words = f"--port {self.port} --save --appendonly yes --appendfsync always --dir"
        self.processes.start("redis", ["redis-server", *words.split(), str(self.directory)])

    def client(self) -> Any:
        return self.connect(self.port)

    @staticmethod
    def connect(port: int) -> Any:
        import redis.asyncio

        return redis.asyncio.Redis(port=port, protocol=2)

    async def send(self, topic: str, payloads: list[bytes], calls: int) -> None:
        # One pipeline at a time is what keeps the order; so it takes what others have in flight.
        async with self.client() as client:
            while calls:
                pipe = client.pipeline(transaction=False)
                for _ in range(min(calls, IN_FLIGHT // 4)):
                    calls -= 1
                    for payload in payloads:
                        pipe.xadd(topic, {b"p": payload})
                await pipe.execute()

    async def fetch(self, topic: str, count: int) -> int:
        found, last = 0, b"-"
        async with self.client() as client:
            while found < count:
                rows = await client.xrange(topic, last, "+", FETCH)
                if not rows:
                    break
                found += len([row[b"p"] for _, row in rows])
                last = b"(" + rows[-1][0]
        return found

    async def append_steadily(self, topic: str, count: int) -> None:
        queue: asyncio.Queue[bytes] = asyncio.Queue()

        async def send() -> None:
            # One connection keeps the order: what comes meanwhile waits and goes together.
            payload: bytes | None = None
            async with self.client() as client:
                while payload != b"":
                    pipe = client.pipeline(transaction=False)
                    pipe.xadd(topic, {b"p": (payload := await queue.get())})
                    while not queue.empty():
                        pipe.xadd(topic, {b"p": (payload := queue.get_nowait())})
                    await pipe.execute()

        sending = asyncio.create_task(send())
        async for payload in paced(count):
            queue.put_nowait(payload)
        await sending

    @classmethod
    async def follow(cls, port: int, topic: str) -> AsyncIterator[bytes]:
        async with cls.connect(port) as client:
            print("ready", flush=True)
            last: Any = "0"
            while True:
                for _, rows in await client.xread({topic: last}, FETCH, block=60_000):
                    for _, row in rows:
                        yield row[b"p"]
                    last = rows[-1][0]


class Nats(OtherLog):
    """NATS JetStream; its files are synced with every message."""

    name = "NATS"
    share = 100

    def start(self) -> None:
        need("nats", "nats-server", "nats-server 2.10 or later, from github.com/nats-io")
        version = subprocess.run(
            ["nats-server", "--version"], capture_output=True, text=True, check=True
        ).stdout
        if tuple(map(int, version.rpartition("v")[2].split(".")[:2])) < (2, 10):
            raise Missing(f"{version.strip()} cannot sync every message; 2.10 can")
        config = self.directory / "nats.conf"
        config.write_text(
            f"port: {self.port}\nhost: 127.0.0.1\nmax_payload: 1MB\n"
            f'jetstream {{ store_dir: "{self.directory}", sync_interval: always }}\n'
        )
        self.processes.start("nats", ["nats-server", "-c", str(config)])

    @staticmethod
    async def connect(port: int, topic: str) -> tuple[Any, Any]:
        import nats
        from nats.js.errors import BadRequestError

        client = await nats.connect(f"nats://127.0.0.1:{port}")
        stream = client.jetstream(publish_async_max_pending=IN_FLIGHT * 1000)
        with contextlib.suppress(BadRequestError):  # the other process made it
            await stream.add_stream(name=topic, subjects=[topic])
        return client, stream

    async def send(self, topic: str, payloads: list[bytes], calls: int) -> None:
        client, stream = await self.connect(self.port, topic)
        waiting: deque[list[Any]] = deque()
        for _ in range(calls):
            waiting.append([await stream.publish_async(topic, payload) for payload in payloads])
            if len(waiting) == IN_FLIGHT:
                await asyncio.gather(*waiting.popleft())
        for futures in waiting:
            await asyncio.gather(*futures)
        await client.close()

    async def fetch(self, topic: str, count: int) -> int:
        client, stream = await self.connect(self.port, topic)
        from nats.js.api import AckPolicy, ConsumerConfig

        config = ConsumerConfig(ack_policy=AckPolicy.NONE)
        puller = await stream.pull_subscribe(topic, config=config)
        found = 0
        while found < count:
            messages = await puller.fetch(min(FETCH, count - found), timeout=30)
            found += len([message.data for message in messages])
        await client.close()
        return found

    async def append_steadily(self, topic: str, count: int) -> None:
        client, stream = await self.connect(self.port, topic)
        async for payload in paced(count):
            await stream.publish_async(topic, payload)
        await stream.publish_async_completed()
        await client.close()

    @classmethod
    async def follow(cls, port: int, topic: str) -> AsyncIterator[bytes]:
        _, stream = await cls.connect(port, topic)
        subscription = await stream.subscribe(topic, ordered_consumer=True)
        print("ready", flush=True)
        while True:
            message = await subscription.next_msg(timeout=60)
            yield message.data


def _cluster_id() -> str:
    # One that begins with "-" is taken for an option.
    return base64.urlsafe_b64encode(b"q" + uuid.uuid4().bytes[1:]).decode().rstrip("=")


class Kafka(OtherLog):
    """Kafka without ZooKeeper; its log is flushed with every batch."""

    name = "Kafka"

    def start(self) -> None:
        need("aiokafka")
        self.start_broker("log.flush.interval.messages=1")

    def start_broker(self, *settings: str) -> None:
        jars = find_jars(HERE / "peer" / "kafka.xml")
        controller = free_port()
        config = self.directory / "kafka.properties"
        config.write_text(
            "process.roles=broker,controller\nnode.id=1\n"
            f"controller.quorum.voters=1@127.0.0.1:{controller}\n"
            f"listeners=PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}\n"
            "controller.listener.names=CONTROLLER\n"
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{self.port}\n"
            f"log.dirs={self.directory}/log\ngroup.initial.rebalance.delay.ms=0\n"
            "offsets.topic.replication.factor=1\ntransaction.state.log.replication.factor=1\n"
            "transaction.state.log.min.isr=1\nauto.create.topics.enable=true\n"
            + "\n".join(settings)
        )
        java = ["java", "-Xmx1g", "-cp", jars]
        subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "-c", str(config), "-t", _cluster_id()],
            check=True,
            capture_output=True,
        )
        self.processes.start("kafka", [*java, "kafka.Kafka", str(config)])

    async def send(self, topic: str, payloads: list[bytes], calls: int) -> None:
        async with self.producer() as producer:
            await producer.send_and_wait(topic, b"first")
            waiting: deque[Any] = deque()
            for _ in range(calls):
                batch = producer.create_batch()
                for payload in payloads:
                    batch.append(key=None, value=payload, timestamp=None)
                waiting.append(await producer.send_batch(batch, topic, partition=0))
                if len(waiting) == IN_FLIGHT:
                    await waiting.popleft()
            await asyncio.gather(*waiting)

    def producer(self) -> Any:
        from aiokafka import AIOKafkaProducer

        return AIOKafkaProducer(
            bootstrap_servers=f"127.0.0.1:{self.port}",
            acks="all",
            max_batch_size=2 * BATCH_BYTES,
        )

    @staticmethod
    def consumer(port: int, topic: str) -> Any:
        from aiokafka import AIOKafkaConsumer

        return AIOKafkaConsumer(
            topic,
            bootstrap_servers=f"127.0.0.1:{port}",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            max_partition_fetch_bytes=8 * 1024 * 1024,
        )

    async def fetch(self, topic: str, count: int) -> int:
        found = 0
        async with self.consumer(self.port, topic) as consumer:
            while found < count:
                parts = await consumer.getmany(timeout_ms=30_000, max_records=FETCH)
                if not parts:
                    break
                found += sum(len([record.value for record in rows]) for rows in parts.values())
        return found

    async def append_steadily(self, topic: str, count: int) -> None:
        async with self.producer() as producer:
            async for payload in paced(count):
                await producer.send(topic, payload)

    @classmethod
    async def follow(cls, port: int, topic: str) -> AsyncIterator[bytes]:
        async with cls.consumer(port, topic) as consumer:
            print("ready", flush=True)
            async for record in consumer:
                yield record.value


LOGS: dict[str, type[OtherLog]] = {log.name: log for log in (Redis, Nats, Kafka)}


async def follow(log: Any, port: int, topic: str) -> None:
    """Print how long each record took to arrive, in ms."""
    async for payload in log.follow(port, topic):
        if not payload:
            return
        print((time.monotonic_ns() - int(payload)) / 1e6)


def main() -> None:
    """Be the reader of a tail."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("log", choices=LOGS)
    parser.add_argument("port", type=int)
    parser.add_argument("topic")
    options = parser.parse_args()
    uvloop.run(follow(LOGS[options.log], options.port, options.topic))


if __name__ == "__main__":
    main()
