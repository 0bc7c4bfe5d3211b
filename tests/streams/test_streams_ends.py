"""What a stream has: its first and last record, how many, a range of them; what a namespace has."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest

from doubles.clusters import STORES, local_cluster
from quorumbook.errors import LedgerClosedError
from quorumbook.streams import Namespace, Position, RecordBatch, SequenceId, StreamPolicy
from quorumbook.streams.errors import UnsupportedFormatError
from quorumbook.streams.format.segment_text import SegmentMetadata, Truncation
from quorumbook.streams.stream_context import stream_context

PATIENCE_S = 60.0


cluster = local_cluster(STORES, scope="module")


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


async def test_records_are_counted_from_and_to_places_within_entries_and_at_their_ends(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    stream, seen = ns.stream("s"), other.stream("s")
    writer = await stream.writer()
    places: list[Position] = []
    for _ in range(3):
        for _ in range(2):
            batch = await writer.append_batch([b"x"] * 4)
            places += [each.position for each in batch if each.position is not None]
        await writer.flush()
        for is_open in True, False:
            ends = [*places, places[-1].next, Position(places[-1].segment, 99, 0)]
            for start in 0, 2, 4, len(places) - 3:
                counted = [await seen.count(places[start], end) for end in ends[start:]]
                rest = len(places) - start
                assert counted == [*range(rest + 1), rest]
            if is_open:
                await writer.roll()
    assert await seen.count(places[5], Position(4, 0, 0)) == await seen.count(places[5]) == 19
    with pytest.raises(UnsupportedFormatError):
        await seen.count(places[5], Position(5, 0, 0))
    assert (await seen.lag(places[6])).records == 18
    await writer.close()


async def test_records_of_an_old_layout_have_ids_of_their_segment_and_are_counted(
    ns: Namespace, other: Namespace
) -> None:
    """Java's older writers leave it out how many records come before a segment."""
    await ns.create_stream("s")
    stream, seen = ns.stream("s"), other.stream("s")
    nodes = stream_context(stream).nodes
    for number in range(1, 5):
        async with stream.writer() as writer:
            await writer.append_batch([b"%d.%d" % (number, n) for n in range(5)])
        path = nodes.paths.segment(number, is_in_progress=False)
        node = await nodes.store.get(path)
        text = SegmentMetadata.decode(node.data.decode())
        if number in (2, 3):
            text = replace(text, version=4)
        if number == 4:
            # It goes on behind one that is not counted.
            assert text.start_sequence_id == 0
        await nodes.store.set(path, text.encode().encode(), node.version)
    records = await seen.read_range("earliest")
    old = [-(2**63) + (number << 32) + n for number in (2, 3) for n in range(5)]
    assert [each.sequence_id for each in records] == [*range(5), *old, *range(5)]
    assert await seen.count() == (await seen.lag(Position(1, 0, 0))).records == 20
    for n, each in enumerate(records):
        assert await seen.count(each.position) == 20 - n
        assert (await seen.lag(each.position)).records == 20 - n
    for each in records[5:]:
        assert await seen.find(sequence_id=each.sequence_id) == each.position
        assert (await seen.get(SequenceId(each.sequence_id))).payload == each.payload
    async with seen.reader(records[7].position, tail=False) as reader:
        batches = [batch async for batch in reader.read_batches()]
    ids = [sequence_id for batch in batches for sequence_id in ids_of(batch)]
    assert ids == [each.sequence_id for each in records[7:]]


def ids_of(batch: RecordBatch) -> list[int]:
    return [batch.sequence_id(index) for index in range(len(batch))]


@pytest.mark.parametrize("pending", [0, 20])
async def test_readers_see_what_an_aborted_writer_acknowledged_last(
    ns: Namespace, other: Namespace, pending: int
) -> None:
    """Nobody follows it, and no later entry tells of its last one."""
    await ns.create_stream("s")
    writer = await ns.stream("s").writer(batch_bytes=1, visibility_delay_s=3600)
    for number in range(5):
        await writer.append(b"%d" % number)
    futures = [writer.append_nowait(b"pending") for _ in range(pending)]
    await writer.abort()
    assert all(isinstance(future.exception(), LedgerClosedError) for future in futures)
    seen = await other.stream("s").read_range("earliest")
    assert [each.payload for each in seen[:5]] == [b"%d" % number for number in range(5)]
    # It is left to the next writer.
    assert [each.metadata.is_in_progress for each in await other.stream("s").segments()] == [True]


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
        # Each of three chunks has a sequence id, and the record is one.
        assert (cursor.acks.floor, await stream.count()) == (4, 2)
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
