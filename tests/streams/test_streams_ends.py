"""What a stream has: its first and last record, how many, a range of them; what a namespace has."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from quorumbook.streams import Namespace, Position, StreamPolicy
from quorumbook.streams.errors import UnsupportedFormatError
from quorumbook.streams.format.segment_text import Truncation
from quorumbook.testing import LocalCluster

PATIENCE_S = 60.0


@pytest.fixture
def cluster(standing_cluster: LocalCluster) -> LocalCluster:
    return standing_cluster


async def test_the_ends_of_a_stream_and_what_is_between(ns: Namespace, other: Namespace) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=3))
    stream, seen = ns.stream("s"), other.stream("s")
    assert (await seen.first(), await seen.last(), await seen.count()) == (None, None, 0)
    assert await seen.read_range("earliest") == []
    writer = await stream.writer(batch_bytes=1, retention_interval_s=0)
    where = [(await writer.append(b"%d" % n)).position for n in range(7)]
    await writer.flush()
    first, last = await seen.first(), await seen.last()
    assert first is not None
    assert last is not None
    assert (first.payload, last.payload, await seen.count()) == (b"0", b"6", 7)
    assert await seen.count(where[2]) == 5
    assert await seen.count(where[2], where[6]) == await seen.count(where[1], where[5]) == 4
    assert await seen.count(where[5], where[2]) == 0
    assert [each.payload for each in await seen.read_range(where[1], where[4])] == [
        b"1", b"2", b"3",
    ]  # fmt: skip
    assert len(await seen.read_range("earliest", max_bytes=3)) == 3
    assert len(await seen.read_range("earliest", max_bytes=1)) == 1
    async with seen.reader() as reader:
        await reader.read(3)
        assert (await seen.lag(reader.position)).records == 4
    await stream.truncate(where[4])
    first = await seen.first()
    assert first is not None
    assert (first.sequence_id, await seen.count()) == (4, 3)
    with pytest.raises(UnsupportedFormatError):
        await seen.count(where[0])
    await writer.abort()
    # With `recover` it is the last for good: what the writer left is completed.
    assert await seen.last(recover=True) == last
    assert not any(each.metadata.is_in_progress for each in await seen.segments())
    assert (await seen.last(), await seen.count()) == (last, 3)
    await stream.truncate(Position(last.position.segment + 1, 0, 0))
    assert (await seen.first(), await seen.last(), await seen.count()) == (None, None, 0)


async def test_the_last_record_may_be_in_chunks_or_not_complete(ns: Namespace) -> None:
    await ns.create_stream("s", policy=StreamPolicy(max_record_bytes=1 << 23))
    stream = ns.stream("s")
    large = b"x" * (5 << 19)
    async with stream.writer() as writer:
        await writer.append(b"small")
        await writer.append(large)
        await writer.flush()
        last = await stream.last()
        assert last is not None
        assert (last.sequence_id, last.payload) == (1, large)
        cursor = await stream.cursor("c", start="latest")
        assert cursor.acks is not None
        assert cursor.acks.floor == await stream.count() == 4  # three of them are chunks
        await writer.append(b"next")
        await writer.flush()
        async with stream.reader(cursor="c", tail=False) as reader:
            assert [record.payload async for record in reader] == [b"next"]


async def test_a_namespace_tells_what_is_created_and_deleted(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("a")
    async with asyncio.timeout(PATIENCE_S), aclosing(other.watch()) as events:
        assert await anext(events) == ("a", False)
        await ns.create_stream("b/c")
        assert await anext(events) == ("b/c", False)
        await ns.create_stream("b")
        assert await anext(events) == ("b", False)
        await ns.rename_stream("a", "d")
        assert {await anext(events), await anext(events)} == {("a", True), ("d", False)}
        await ns.delete_stream("b/c")
        assert await anext(events) == ("b/c", True)


async def test_segments_are_watched(ns: Namespace, other: Namespace) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    async with asyncio.timeout(PATIENCE_S), aclosing(other.stream("s").watch_segments()) as news:
        assert await anext(news) == []
        async with stream.writer(retention_interval_s=0) as writer:
            last = await writer.append(b"one")
            (segment,) = await anext(news)
            assert segment.metadata.is_in_progress
            await writer.roll()
            while segment.metadata.is_in_progress:
                (segment,) = await anext(news)
            assert last.position is not None
            await stream.truncate(last.position.next)
            while segment.metadata.truncation is Truncation.ACTIVE:
                (segment,) = await anext(news)
