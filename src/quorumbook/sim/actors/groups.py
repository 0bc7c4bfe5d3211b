"""Who uses a partitioned stream: producers, and the members of a consumer group.

Members commit what they have in hand now and then, by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from quorumbook.errors import QuorumbookError
from quorumbook.sim.actors.ledgers import ActorsLife, read_at_last, tried
from quorumbook.sim.actors.streams import made, under_way
from quorumbook.sim.process import Process
from quorumbook.streams import (
    Consumer,
    Delivery,
    Namespace,
    PartitionedStream,
    PartitionedWriter,
    StreamPolicy,
)

NAME = "orders"
GROUP = "billing"
_PARTITIONS = 3
_WAIT_S = 0.3


@contextlib.asynccontextmanager
async def _orders(life: ActorsLife, process: Process) -> AsyncIterator[PartitionedStream]:
    async def make(namespace: Namespace, policy: StreamPolicy) -> PartitionedStream:
        return await PartitionedStream.create(
            namespace, NAME, partitions=_PARTITIONS, policy=policy, exist_ok=True
        )

    async with made(life, process, make) as orders:
        yield orders


async def produce(life: ActorsLife, process: Process) -> None:
    """Append to all partitions whenever they can be had."""
    tape, count = life.tape, 0
    async with _orders(life, process) as orders:
        while life.is_rough:
            with tried(life, process):
                # Nobody else writes it, but a life before this one.
                async with orders.writer(takeover="force", retention_interval_s=0) as writer:
                    for _ in range(1 + tape.below(6)):
                        burst = range(count, count + 1 + tape.below(life.plan.burst_max))
                        count += len(burst)
                        await asyncio.gather(*[_append(life, process, writer, i) for i in burst])
                        await asyncio.sleep(tape.between(0, 0.3 * life.plan.pace))
                        if not life.is_rough:
                            break
            await asyncio.sleep(tape.between(0, life.plan.pace))


async def _append(
    life: ActorsLife, process: Process, writer: PartitionedWriter, number: int
) -> None:
    payload = f"{process.name} {process.number} {number}".encode()
    with under_way(life, process, f"appending record {number}"):
        partition, appended = await writer.append(payload, partition=number % _PARTITIONS)
    life.groups.acked(process.name, partition, appended.sequence_id, payload)


async def consume(life: ActorsLife, process: Process) -> None:
    """Be a member of the group, again and again."""
    tape, lives = life.tape, 0
    async with _orders(life, process) as orders:
        while life.is_rough:
            lives += 1
            member = f"{process.name}.{process.number}.{lives}"
            with tried(life, process):
                async with _joined(life, orders, member) as consumer:
                    for _ in range(1 + tape.below(30)):
                        with under_way(life, process, "reading as a member"):
                            deliveries = await consumer.read(1 + tape.below(8), wait_s=_WAIT_S)
                        for each in deliveries:
                            _take(life, member, each)
                        await asyncio.sleep(tape.between(0, 0.2 * life.plan.pace))
                        if deliveries and tape.chance(0.6):
                            with under_way(life, process, "committing as a member"):
                                await _commit(life, consumer, member, tape.pick(deliveries))
                        if not life.is_rough:
                            break
            await asyncio.sleep(tape.between(0, 0.5 * life.plan.pace))


@contextlib.asynccontextmanager
async def _joined(
    life: ActorsLife, orders: PartitionedStream, member: str
) -> AsyncIterator[Consumer]:
    async with orders.consumer(
        GROUP,
        auto_commit_s=0,
        release_timeout_s=2.0,
        on_assigned=lambda partition: life.groups.assigned(member, partition),
    ) as consumer:
        yield consumer


def _take(life: ActorsLife, member: str, delivery: Delivery) -> None:
    record = delivery.record
    life.groups.handed(member, delivery.partition, record.sequence_id, record.payload)


async def _commit(life: ActorsLife, consumer: Consumer, member: str, delivery: Delivery) -> None:
    partition, sequence_id = delivery.partition, delivery.record.sequence_id
    before = life.groups.committing(partition, sequence_id)
    await consumer.commit(delivery)
    life.groups.committed(member, partition, sequence_id, before)


async def consume_the_rest(life: ActorsLife, process: Process) -> None:
    """When all is well again, and no other member is there: get all that is left."""
    async with _orders(life, process) as orders:
        for partition in orders.partitions:
            while True:
                with contextlib.suppress(QuorumbookError):
                    await partition.recover()
                    break
                await asyncio.sleep(1)

        async def read() -> None:
            async with _joined(life, orders, process.name) as consumer:
                while True:
                    deliveries = await consumer.read(wait_s=_WAIT_S)
                    if not deliveries and life.groups.is_read():
                        return
                    for each in deliveries:
                        sequence_id = each.record.sequence_id
                        life.groups.judged(process.name, each.partition, sequence_id)
                        _take(life, process.name, each)

        await read_at_last(life, process, read)
