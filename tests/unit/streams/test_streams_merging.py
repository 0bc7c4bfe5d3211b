"""Batches of several sources, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from quorumbook.streams.format.position import Position
from quorumbook.streams.partitions.merging import MergedBatches
from quorumbook.streams.reading.batches import RecordBatch


def batch(number: int) -> RecordBatch:
    return RecordBatch(Position(1, number, 0), number, [0], [b"%d" % number], None, 1)


async def source(
    *numbers: int, gate: asyncio.Event | None = None
) -> AsyncGenerator[RecordBatch, None]:
    for number in numbers:
        if gate is not None:
            await gate.wait()
        yield batch(number)


async def taken(merged: MergedBatches) -> list[tuple[int, int]]:
    """Take everything that comes by itself."""
    found = []
    for _ in range(50):
        while (each := merged.take(raises=True)) is not None:
            found.append((each[0], each[1].first_sequence_id))
        await asyncio.sleep(0)
    return found


async def test_sources_take_turns_and_each_keeps_its_order() -> None:
    merged = MergedBatches()
    merged.add(0, source(1, 2, 3))
    merged.add(7, source(4, 5, 6))
    found = await taken(merged)
    assert found == [(0, 1), (7, 4), (0, 2), (7, 5), (0, 3), (7, 6)]
    assert merged.is_over
    await merged.close()


async def test_nothing_comes_of_a_source_that_was_forgotten() -> None:
    merged = MergedBatches()
    gate = asyncio.Event()
    merged.add(0, source(1, 2, gate=gate))
    merged.add(1, source(9))
    await asyncio.sleep(0)
    gate.set()  # its next batch is on its way when it is forgotten
    ending = merged.forget(0)
    merged.add(0, source(5, 6))
    assert sorted(await taken(merged)) == [(0, 5), (0, 6), (1, 9)]
    await asyncio.gather(*ending, return_exceptions=True)
    assert merged.forget(3) == []
    await merged.close()


async def test_what_was_read_comes_before_what_a_source_ended_with() -> None:
    async def failing() -> AsyncGenerator[RecordBatch, None]:
        yield batch(1)
        raise RuntimeError("gone")

    merged = MergedBatches()
    merged.add(0, failing())
    with pytest.raises(RuntimeError, match="gone"):
        found = []
        for _ in range(20):
            each = merged.take(raises=True)
            if each is None:
                await merged.changed.wait()
            else:
                found.append(each[1].first_sequence_id)
    assert found == [1]
    await merged.close()


async def test_a_source_is_read_ahead_by_so_many_bytes_and_not_more() -> None:
    merged = MergedBatches()
    begun: list[int] = []

    async def counted(*numbers: int) -> AsyncGenerator[RecordBatch, None]:
        for number in numbers:
            begun.append(number)
            yield batch(number)

    merged.add(0, counted(1, 2, 3, 4, 5), ahead_bytes=2)
    merged.add(1, counted(6, 7), ahead_bytes=0)
    await asyncio.sleep(0.01)
    assert begun == [1, 2, 6]
    assert merged.take(raises=True) is not None
    await asyncio.sleep(0.01)
    assert begun == [1, 2, 6, 3]
    assert merged.take(raises=True) is not None
    await asyncio.sleep(0.01)
    assert begun == [1, 2, 6, 3, 7]
    assert len(await taken(merged)) == 5
    await merged.close()


async def test_what_was_on_its_way_when_a_source_was_forgotten_is_nobodys() -> None:
    merged = MergedBatches()

    async def stubborn() -> AsyncGenerator[RecordBatch, None]:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            # As one that has to close something first, and has a batch already.
            yield batch(1)

    merged.add(2, stubborn())
    await asyncio.sleep(0)
    await merged.remove(2)
    assert merged.take(raises=True) is None
    assert merged.is_over
