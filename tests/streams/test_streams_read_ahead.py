"""Segments that follow are read at the same time, in bounded memory, and come out in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from doubles.inside import read_ahead_line_of, read_ahead_of
from quorumbook.client.reading.entries import EntryBatch
from quorumbook.client.reading.reader import LedgerReader
from quorumbook.streams import Namespace, Position, StreamPolicy, StreamReader
from quorumbook.streams.stream_context import stream_context

SEGMENTS = 12
SIZE_BYTES = 5000


async def fill(ns: Namespace, segments: int = SEGMENTS) -> list[bytes]:
    """Write segments of two entries each; return the payloads."""
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=2))
    payloads = [bytes([number]) * SIZE_BYTES for number in range(2 * segments)]
    async with ns.stream("s").writer() as writer:
        for payload in payloads:
            await writer.append(payload)
    return payloads


def in_memory(reader: StreamReader) -> list[int]:
    """Return what each segment that was read ahead has in memory, in bytes."""
    found = []
    for item in read_ahead_line_of(reader):
        if item.task.done() and item.task.exception() is None:
            opened = item.task.result()
            assert opened is not None
            batches: Any = opened._whole or ()  # what was read ahead shows in no other way
            found.append(sum(len(b.buffer) + sum(map(len, b.payloads)) for b in batches))
    return found


async def settled(reader: StreamReader, segments: int) -> None:
    """Wait until so many segments were read ahead, and for any that should not be."""
    async with asyncio.timeout(60):
        while sum(item.task.done() for item in read_ahead_line_of(reader)) < segments:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)


async def test_segments_are_read_at_the_same_time_and_come_out_in_order(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    payloads = await fill(ns)
    read_batches = LedgerReader.read_batches
    waiting: set[int] = set()
    together = asyncio.Event()

    async def in_reverse(
        self: LedgerReader, first: int = 0, last: int | None = None
    ) -> AsyncGenerator[EntryBatch, None]:
        # Nobody answers before four are asked for, and then the last one is the first to.
        waiting.add(self.id)
        if len(waiting) == 4:
            together.set()
        if len(waiting) > 1:
            async with asyncio.timeout(60):
                await together.wait()
            for _ in range(1000 // self.id):
                await asyncio.sleep(0)
        async for batch in read_batches(self, first, last):
            yield batch

    monkeypatch.setattr(LedgerReader, "read_batches", in_reverse)
    async with other.stream("s").reader(tail=False) as reader:
        found = [record async for record in reader]
    assert together.is_set()
    assert [record.payload for record in found] == payloads
    assert [record.sequence_id for record in found] == list(range(len(payloads)))
    assert read_ahead_of(reader).used_bytes == 0


async def test_what_is_read_ahead_keeps_within_its_bound(ns: Namespace, other: Namespace) -> None:
    payloads = await fill(ns)
    bound = 3 * 2 * 2 * (SIZE_BYTES + 500)  # three segments of two entries, each twice
    async with other.stream("s").reader(tail=False, read_ahead_bytes=bound) as reader:
        for number, payload in enumerate(payloads):
            assert (await anext(reader)).payload == payload
            if number == 2:
                # The one that it is in the middle of is the third.
                await settled(reader, 2)
                kept = in_memory(reader)
                assert len(kept) == 2
                assert sum(kept) * 3 // 2 <= read_ahead_of(reader).used_bytes <= bound
            assert read_ahead_of(reader).used_bytes <= bound
        assert await reader.read() == []
        assert read_ahead_of(reader).used_bytes == 0
    # What does not fit is opened ahead and read when its turn comes.
    async with other.stream("s").reader(tail=False, read_ahead_bytes=SIZE_BYTES) as reader:
        assert (await anext(reader)).payload == payloads[0]
        assert read_ahead_of(reader).used_bytes == 0
        assert [record.payload async for record in reader] == payloads[1:]


async def test_a_reader_reads_no_further_ahead_than_it_may_go(
    ns: Namespace, other: Namespace
) -> None:
    payloads = await fill(ns)
    async with other.stream("s").reader(end=Position(3, 0, 0)) as reader:
        assert (await anext(reader)).payload == payloads[0]
        assert [item.listed.segment.number for item in read_ahead_line_of(reader)] == [2]
        assert [record.payload async for record in reader] == payloads[1:4]
    # Who goes elsewhere, or away, lets go of what was read for it.
    async with other.stream("s").reader() as reader:
        await anext(reader)
        await reader.seek(Position(10, 0, 0))
        assert (read_ahead_of(reader).used_bytes, len(read_ahead_line_of(reader))) == (0, 0)
        assert (await anext(reader)).payload == payloads[18]
    assert (read_ahead_of(reader).used_bytes, len(read_ahead_line_of(reader))) == (0, 0)


async def test_what_was_read_ahead_and_truncated_then_is_not_handed_out(
    ns: Namespace, other: Namespace
) -> None:
    payloads = await fill(ns)
    async with other.stream("s").reader(on_truncated="skip") as reader:
        assert (await anext(reader)).payload == payloads[0]
        await settled(reader, 8)
        await ns.stream("s").truncate(Position(4, 1, 0))
        async with asyncio.timeout(60):
            while not reader._scanner._list.is_stale:  # what was read ahead shows in no other way
                await asyncio.sleep(0.01)
        assert (await anext(reader)).payload == payloads[1]
        assert [(await anext(reader)).payload for _ in range(5)] == payloads[7:12]


async def test_segments_are_listed_once_however_many_are_read(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    payloads = await fill(ns)
    stream = other.stream("s")
    segments, lists = stream_context(stream).nodes.segments, 0

    async def counted(**arguments: Any) -> Any:
        nonlocal lists
        lists += 1
        return await segments(**arguments)

    monkeypatch.setattr(stream_context(stream).nodes, "segments", counted)
    async with stream.reader() as reader:
        assert [(await anext(reader)).payload for _ in payloads] == payloads
        assert lists == 1
