"""Records handed out one by one from a batch: what is done, and what is in hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from doubles.clusters import STORES, local_cluster
from doubles.sessions import end_session_of
from doubles.waiting import until
from quorumbook.streams import (
    Delivery,
    Namespace,
    PartitionedStream,
    PartitionRecord,
    Record,
    Stream,
)
from quorumbook.streams.errors import CursorConflictError, LockLostError
from quorumbook.streams.stream_context import stream_context

COUNT = 20
PATIENCE_S = 60.0


cluster = local_cluster(STORES, scope="module")


async def one_batch(stream: Stream) -> None:
    """Write records that readers get in two batches, of 15 and of 5."""
    async with stream.writer() as writer:
        numbers = [b"%d" % n for n in range(COUNT)]
        await writer.append_batch(numbers[:15], atomic=True)
        await writer.append_batch(numbers[15:], atomic=True)


async def written(ns: Namespace) -> Stream:
    await ns.create_stream("s")
    await one_batch(ns.stream("s"))
    return ns.stream("s")


async def taken(
    records: AsyncIterator[Record] | AsyncIterator[Delivery] | AsyncIterator[PartitionRecord],
    count: int,
) -> list[int]:
    """Take so many as an application does; return their numbers."""
    found = []
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(count):
            each = await anext(records)
            record = each if isinstance(each, Record) else each.record
            found.append(int(record.payload))
    return found


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 14, 15, 16, 20])
async def test_a_cursor_is_behind_what_is_done(ns: Namespace, count: int, is_done: bool) -> None:
    stream = await written(ns)
    reader = await stream.reader(cursor="c", tail=False, auto_commit_s=1000)
    assert await taken(reader, count) == list(range(count))
    await reader.close(is_done=is_done)
    async with stream.reader(cursor="c", tail=False) as again:
        left = [int(record.payload) async for record in again]
    assert left == list(range(count if is_done else count - 1, COUNT))


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3, 14, 15, 16, 20])
async def test_a_group_is_behind_what_is_done(ns: Namespace, count: int, is_done: bool) -> None:
    stream = await PartitionedStream.create(ns, "s", partitions=1)
    await one_batch(stream.partitions[0])
    consumer = await stream.consumer("g", auto_commit_s=1000, release_timeout_s=1000)
    assert await taken(consumer, count) == list(range(count))
    async with asyncio.timeout(PATIENCE_S):
        await consumer.close(is_done=is_done)
    first = count if is_done else count - 1
    cursor = await stream.partitions[0].cursor("g")
    if first < COUNT:
        async with stream.consumer("g") as again:
            assert await taken(again, COUNT - first) == list(range(first, COUNT))
    async with stream.partitions[0].reader(cursor.position, tail=False) as rest:
        assert [int(record.payload) async for record in rest] == list(range(first, COUNT))


async def test_a_commit_in_the_middle_of_a_batch_leaves_out_what_is_in_hand(ns: Namespace) -> None:
    stream = await written(ns)
    async with stream.reader(cursor="c", tail=False, auto_commit_s=1000) as reader:
        for count in range(1, COUNT + 1):
            (number,) = await taken(reader, 1)
            await reader.commit()
            cursor = await stream.cursor("c")
            async with stream.reader(cursor.position, tail=False) as rest:
                assert int((await anext(rest)).payload) == number == count - 1


async def test_it_is_committed_now_and_then_without_being_asked(ns: Namespace) -> None:
    stream = await PartitionedStream.create(ns, "s", partitions=1)
    await one_batch(stream.partitions[0])
    async with stream.consumer("g", auto_commit_s=0.01) as consumer:
        await taken(consumer, 10)
        async with asyncio.timeout(PATIENCE_S):
            while (await stream.partitions[0].cursor("g")).position.slot < 9:
                await asyncio.sleep(0.01)
        rest = await stream.partitions[0].reader(
            (await stream.partitions[0].cursor("g")).position, tail=False
        )
        async with rest:
            assert await taken(rest, 1) == [9]


async def test_ways_to_take_records_go_together(ns: Namespace) -> None:
    stream = await written(ns)
    async with stream.reader(tail=False) as plain:
        found = await taken(plain, 3)
        found += [int(record.payload) for record in await plain.read(4)]
        found += await taken(plain, 2)
        found += [int(record.payload) for record in await plain.read(100, max_bytes=8)]
        async for batch in plain.read_batches():
            found += map(int, batch.payloads)
        assert found == list(range(COUNT))
    async with stream.reader(cursor="c", tail=False, auto_commit_s=1000) as reader:
        found = await taken(reader, 3)
        found += [int(record.payload) for record in await reader.read(4)]
        found += await taken(reader, 2)
        async for batch in reader.read_batches():
            found += map(int, batch.payloads)
        assert found == list(range(COUNT))
    parts = await PartitionedStream.create(ns, "p", partitions=1)
    await one_batch(parts.partitions[0])
    async with parts.consumer("g", auto_commit_s=1000) as consumer:
        found = await taken(consumer, 3)
        found += [int(each.record.payload) for each in await consumer.read(4, wait_s=None)]
        found += await taken(consumer, 7)
        while len(found) < COUNT:
            found += [int(each.record.payload) for each in await consumer.read(100, wait_s=None)]
        assert found == list(range(COUNT))
    async with parts.reader(tail=False) as merged:
        found = await taken(merged, 3)
        found += [int(each.record.payload) for each in await merged.read(4)]
        assert merged.position[0].slot == (await merged.read(1))[0].record.position.slot
        found += [7, *await taken(merged, 12)]
        assert found == list(range(COUNT))
        with pytest.raises(StopAsyncIteration):
            await anext(merged)


async def test_who_loses_the_lock_in_a_batch_gets_nothing_more_of_it(ns: Namespace) -> None:
    stream = await written(ns)
    reader = await stream.reader(cursor="c", tail=False, exclusive=True, auto_commit_s=1000)
    await taken(reader, 5)
    await end_session_of(stream_context(stream).store)
    async with asyncio.timeout(PATIENCE_S):
        while not reader._is_lost:  # that the lock was lost shows with the next record only
            await asyncio.sleep(0.01)
    with pytest.raises(LockLostError):
        await anext(reader)
    await reader.close()


async def test_who_is_moved_away_in_a_batch_is_told(ns: Namespace, other: Namespace) -> None:
    stream = await written(ns)
    reader = await stream.reader(cursor="c", tail=False, auto_commit_s=0.01)
    await taken(reader, 5)
    theirs = await other.stream("s").cursor("c")
    while True:  # the reader is moving it as well
        try:
            await theirs.reset((await stream.segments())[0].metadata.first_active)
            break
        except CursorConflictError:
            await theirs.refresh()
    # With another one in hand there is something to commit.
    assert await taken(reader, 1) == [5]
    # It is told at the end of the batch anyhow, which this is not.
    await until(lambda: reader._progress.has_failed)
    with pytest.raises(CursorConflictError):
        await anext(reader)
    with pytest.raises(CursorConflictError):
        await reader.close()


async def test_whose_session_ends_in_a_batch_gets_nothing_more_of_it(
    ns: Namespace, other: Namespace
) -> None:
    mine = await PartitionedStream.create(ns, "s", partitions=1)
    await one_batch(mine.partitions[0])
    consumer = await mine.consumer("g", auto_commit_s=1000)
    generation = consumer.member
    assert await taken(consumer, 5) == list(range(5))
    await end_session_of(stream_context(mine.partitions[0]).store)
    async with asyncio.timeout(PATIENCE_S):
        while consumer.member == generation or not consumer.assignment:
            await asyncio.sleep(0.01)
    # Nothing of it was committed: all of it comes again, after it has the partition again.
    assert await taken(consumer, COUNT) == list(range(COUNT))
    await consumer.close(is_done=True)
    theirs = await PartitionedStream.open(other, "s")
    assert (await theirs.partitions[0].cursor("g")).position.entry > 0
