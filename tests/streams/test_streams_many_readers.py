"""A thousand readers at the end of one stream."""

from __future__ import annotations

import asyncio

from doubles.mortal import Mortal, mortal_namespace
from quorumbook.streams import Namespace, Record, StreamReader
from quorumbook.testing import LocalCluster

READERS = 1000
#: How long bookies hold a poll.
POLL_S = 1.0
#: A poll is out at so many bookies that one of them has every confirmed entry: 3 - 2 + 1.
POLLED = 2
#: Metadata reads of one reader when a segment follows another: the list, the segments, ledgers.
READS_A_ROLL = 10


async def test_a_thousand_readers_that_wait_leave_the_metadata_store_alone(
    cluster: LocalCluster, ns: Namespace
) -> None:
    await ns.create_stream("s")
    address = f"{cluster.metadata_uri}#{ns.path}"
    async with (
        ns.stream("s").writer() as writer,
        mortal_namespace(address, long_poll_timeout_s=POLL_S) as (many, process),
    ):
        await writer.append(b"first")
        stream = many.stream("s")
        readers = [await stream.reader() for _ in range(READERS)]

        async def each_reads(payload: bytes) -> None:
            found = await asyncio.gather(*map(next_record, readers))
            assert {(record.payload, record.position) for record in found} == {
                (payload, found[0].position)
            }

        await each_reads(b"first")
        waiting = [asyncio.ensure_future(next_record(reader)) for reader in readers]
        # All of them have asked bookies by now, and then wait until they are answered.
        await idle_rounds(process, 2)
        began_s, reads, writes = asyncio.get_running_loop().time(), process.reads, process.steps
        asked = process.bookie_requests
        await idle_rounds(process, 2)
        rounds = (asyncio.get_running_loop().time() - began_s) / POLL_S
        assert process.reads == reads
        # Steps are what changes metadata, and what goes to bookies.
        requests = process.bookie_requests - asked
        assert process.steps - writes <= requests
        assert requests <= READERS * POLLED * (rounds + 2)
        assert not any(task.done() for task in waiting)
        reads = process.reads
        await writer.append(b"second")
        assert {record.payload for record in await asyncio.gather(*waiting)} == {b"second"}
        assert process.reads == reads
        await writer.roll()
        await writer.append(b"third")
        await each_reads(b"third")
        assert process.reads - reads <= READERS * READS_A_ROLL
        await asyncio.gather(*(reader.close() for reader in readers))


async def next_record(reader: StreamReader) -> Record:
    return await anext(reader)


async def idle_rounds(process: Mortal, count: int) -> None:
    """Wait until each reader has asked bookies so often."""
    wanted = process.bookie_requests + count * READERS
    async with asyncio.timeout(100):
        while process.bookie_requests < wanted:
            await asyncio.sleep(0.05)
