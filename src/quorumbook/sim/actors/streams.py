"""Who uses the stream of a cluster: producers who take it from each other, readers who follow it.

A producer's records have numbers, so that it can send again what it does not know the fate of:
each is in the stream once.  Payloads are its name and the number.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Literal, TypeVar

from quorumbook.errors import QuorumbookError
from quorumbook.sim.actors.ledgers import ActorsLife, insist, read_at_last, started, tried
from quorumbook.sim.histories.calls import BOUND_OF_STREAMS_S
from quorumbook.sim.process import Process
from quorumbook.sim.search.sometimes import TRUNCATED
from quorumbook.streams import (
    Appended,
    Namespace,
    Record,
    SequenceId,
    Stream,
    StreamPolicy,
    StreamWriter,
    TxId,
)

T = TypeVar("T")

NAMESPACE = "memory://simulated#/streams"
NAME = "events"
_WINDOW = 16


def under_way(
    life: ActorsLife, process: Process, what: str
) -> contextlib.AbstractContextManager[None]:
    """Note that a process calls something of a stream, for as long as a block lasts."""
    return life.history.calls.under_way(process, f"stream: {what}", BOUND_OF_STREAMS_S)


@contextlib.asynccontextmanager
async def made(
    life: ActorsLife, process: Process, make: Callable[[Namespace, StreamPolicy], Awaitable[T]]
) -> AsyncIterator[T]:
    """Have the namespace, and in it what a function makes, however often that takes."""
    async with started(life, process) as client:
        plan = life.plan
        ensemble, write_quorum, ack_quorum = plan.quorums
        policy = StreamPolicy(
            ensemble_size=ensemble,
            write_quorum_size=write_quorum,
            ack_quorum_size=ack_quorum,
            roll_entries=8,
            compression="lz4" if plan.has("small_frames") else "none",
            txid="timestamp" if plan.has("wrong_clocks") else "monotonic",
        )
        namespace = await insist(lambda: Namespace.open(NAMESPACE, client=client))
        yield await insist(lambda: make(namespace, policy))


@contextlib.asynccontextmanager
async def stream_of(life: ActorsLife, process: Process) -> AsyncIterator[Stream]:
    """Open the stream, made if it is not there."""

    async def make(namespace: Namespace, policy: StreamPolicy) -> Stream:
        await namespace.create_stream(NAME, policy=policy, exist_ok=True)
        return namespace.stream(NAME)

    async with made(life, process, make) as stream:
        yield stream


async def produce(life: ActorsLife, process: Process) -> None:
    """Write the stream whenever it can be had."""
    async with stream_of(life, process) as stream:
        while life.is_rough:
            with tried(life, process):
                await _produce_once(life, process, stream)
            await asyncio.sleep(life.tape.between(0, life.plan.pace))


async def _produce_once(life: ActorsLife, process: Process, stream: Stream) -> None:
    tape, history, who = life.tape, life.streams, process.name
    takeover: Literal["if_expired", "force"] = "force" if tape.chance(0.5) else "if_expired"
    with under_way(life, process, "opening a writer"):
        writer = await stream.writer(takeover=takeover, producer=who, retention_interval_s=0)
    try:
        number = writer.last_number() + 1
        for _ in range(1 + tape.below(6)):
            count = 1 + tape.below(life.plan.burst_max)
            batch = range(number, number + count)
            number += count
            await asyncio.gather(*[_append(life, process, writer, each) for each in batch])
            await asyncio.sleep(tape.between(0, 0.3 * life.plan.pace))
            if not life.is_rough:
                break
        if tape.chance(0.2) and history.end > 4:
            before = tape.below(history.end)
            history.truncated = max(history.truncated, before)
            with under_way(life, process, "truncating it"):
                await stream.truncate(SequenceId(before))
            life.history.sightings[TRUNCATED] += 1
    finally:
        with under_way(life, process, "closing a writer"):
            if tape.chance(0.7):
                with contextlib.suppress(QuorumbookError):
                    await writer.close()
            else:
                await writer.abort()


async def _append(life: ActorsLife, process: Process, writer: StreamWriter, number: int) -> None:
    who = process.name.replace(" ", "_")
    payload = f"{who} {number}".encode()
    with under_way(life, process, f"appending record {number}"):
        appended: Appended = await writer.append(payload, producer_seq=number)
    if appended.sequence_id >= 0:
        life.streams.acked(who, appended.sequence_id, appended.txid, payload)


async def follow(life: ActorsLife, process: Process) -> None:
    """Read the stream from its beginning, again and again."""
    async with stream_of(life, process) as stream:
        while life.is_rough:
            with contextlib.suppress(QuorumbookError, TimeoutError):
                async with asyncio.timeout(life.tape.between(1, 8)):
                    await _follow_once(life, process.name, stream)
            await asyncio.sleep(life.tape.between(0.1, 1) * life.plan.pace)


async def _follow_once(life: ActorsLife, who: str, stream: Stream) -> None:
    before = None
    async with stream.reader() as reader:
        async for record in reader:
            life.streams.read(who, before, record.sequence_id, record.txid, record.payload)
            before = record.sequence_id


async def seek(life: ActorsLife, process: Process) -> None:
    """Look for the last record by its transaction id, again and again."""
    history = life.streams
    async with stream_of(life, process) as stream:
        while life.is_rough:
            txid = history.last_txid
            if txid is not None:
                with contextlib.suppress(QuorumbookError, TimeoutError):
                    async with asyncio.timeout(1.0), stream.reader(TxId(txid)) as reader:
                        history.led(process.name, txid, (await anext(reader)).sequence_id)
            await asyncio.sleep(life.tape.between(0, 0.08))


async def read_to_the_end(life: ActorsLife, process: Process) -> None:
    """When all is well again: have one more record taken, and read all there is."""
    history = life.streams
    async with stream_of(life, process) as stream:

        async def read() -> None:
            await stream.recover()
            await write()
            records: list[Record] = []
            before = None
            async with stream.reader(tail=False) as reader:
                async for each in reader:
                    history.read(process.name, before, each.sequence_id, each.txid, each.payload)
                    before = each.sequence_id
                    records.append(each)
            first = records[0].sequence_id if records else 0
            history.read_all(process.name, first, [each.payload for each in records])
            # Of records with the first one's id some may be cut off.
            behind = [each.txid for each in records if each.txid > records[0].txid]
            if behind:
                await seek(first, life.tape.pick(behind))

        async def write() -> None:
            # Whatever the writers before it have left, this one can go on (S93).
            async with await stream.writer(
                takeover="force", producer=process.name, retention_interval_s=0
            ) as writer:
                await _append(life, process, writer, writer.last_number() + 1)

        async def seek(first: int, txid: int) -> None:
            async with stream.reader(TxId(txid), tail=False) as reader:
                history.sought(process.name, first, txid, (await anext(reader)).sequence_id)

        await read_at_last(life, process, read)
