"""Batches of several sources, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial

import pytest

from quorumbook.errors import NoSuchEntryError, ReadFailedError
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


async def next_of(merged: MergedBatches) -> tuple[int, int]:
    """Wait for the next batch, or for an error."""
    while (each := merged.take(raises=True)) is None:
        await merged.changed.wait()
    return each[0], each[1].first_sequence_id


async def test_sources_take_turns_and_each_keeps_its_order() -> None:
    merged = MergedBatches()
    merged.add(0, partial(source, 1, 2, 3))
    merged.add(7, partial(source, 4, 5, 6))
    found = await taken(merged)
    assert found == [(0, 1), (7, 4), (0, 2), (7, 5), (0, 3), (7, 6)]
    assert merged.is_over
    await merged.close()


async def test_nothing_comes_of_a_source_that_was_forgotten() -> None:
    merged = MergedBatches()
    gate = asyncio.Event()
    merged.add(0, partial(source, 1, 2, gate=gate))
    merged.add(1, partial(source, 9))
    await asyncio.sleep(0)
    gate.set()  # its next batch is on its way when it is forgotten
    ending = merged.forget(0)
    merged.add(0, partial(source, 5, 6))
    assert sorted(await taken(merged)) == [(0, 5), (0, 6), (1, 9)]
    await asyncio.gather(*ending, return_exceptions=True)
    assert merged.forget(3) == []
    await merged.close()


async def test_what_was_read_comes_before_what_a_source_ended_with() -> None:
    async def failing() -> AsyncGenerator[RecordBatch, None]:
        yield batch(1)
        raise RuntimeError("gone")

    merged = MergedBatches()
    merged.add(0, failing)
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

    merged.add(0, partial(counted, 1, 2, 3, 4, 5), ahead_bytes=2)
    merged.add(1, partial(counted, 6, 7), ahead_bytes=0)
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

    merged.add(2, stubborn)
    await asyncio.sleep(0)
    await merged.remove(2)
    assert merged.take(raises=True) is None
    assert merged.is_over


class Failing:
    """A source whose tries yield a batch each and fail, but for the last one, which ends."""

    def __init__(self, *errors: Exception, first: int = 1) -> None:
        self.errors = [*errors]
        self.number = first
        self.begun = 0

    async def read(self) -> AsyncGenerator[RecordBatch, None]:
        self.begun += 1
        self.number += 1
        yield batch(self.number - 1)
        if self.errors:
            raise self.errors.pop(0)


async def test_a_source_that_failed_for_a_moment_goes_on_with_the_next_take() -> None:
    failing = Failing(ReadFailedError("away"), ReadFailedError("still away"))
    merged = MergedBatches()
    merged.add(0, failing.read)
    for number, reason in (1, "^away"), (2, "still away"):
        assert await next_of(merged) == (0, number)
        with pytest.raises(ReadFailedError, match=reason):
            await next_of(merged)
        await asyncio.sleep(0)
        assert failing.begun == number, "it is tried when somebody asks, not by itself"
        assert not merged.is_over
    assert await next_of(merged) == (0, 3)
    assert await taken(merged) == []
    assert merged.is_over
    await merged.close()


@pytest.mark.parametrize("kind", [RuntimeError, NoSuchEntryError])
async def test_an_error_that_stays_is_said_each_time(kind: type[Exception]) -> None:
    failing = Failing(kind("gone"))
    merged = MergedBatches()
    merged.add(0, failing.read)
    assert await next_of(merged) == (0, 1)
    for _ in range(3):
        with pytest.raises(kind, match="gone"):
            await next_of(merged)
    assert merged.take(raises=False) is None
    assert failing.begun == 1
    # Others go on beside it, and it is nobody's any more with its source.
    merged.add(1, partial(source, 7, 8))
    await asyncio.sleep(0)
    assert [await next_of(merged), await next_of(merged)] == [(1, 7), (1, 8)]
    await merged.remove(0)
    assert await taken(merged) == []
    await merged.close()


async def test_a_source_that_failed_for_a_moment_has_its_turn_beside_one_without_end() -> None:
    async def endless() -> AsyncGenerator[RecordBatch, None]:
        while True:
            yield batch(0)

    failing = Failing(ReadFailedError("away"), first=5)
    merged = MergedBatches()
    merged.add(0, endless, ahead_bytes=2)
    merged.add(1, failing.read)
    await asyncio.sleep(0)
    found: list[object] = []
    for raises in (False, True) * 10:
        try:
            found.append(merged.take(raises=raises))
        except ReadFailedError as error:
            found.append(error)
        await asyncio.sleep(0.001)
    assert len([each for each in found if isinstance(each, ReadFailedError)]) == 1
    others = [each for each in found if isinstance(each, tuple) and each[0] == 1]
    assert [each[1].first_sequence_id for each in others] == [5, 6]
    await merged.close()


async def test_a_source_that_comes_in_place_of_one_that_failed_is_read_once() -> None:
    failing = Failing(ReadFailedError("away"))
    merged = MergedBatches()
    merged.add(0, failing.read)
    assert await next_of(merged) == (0, 1)
    with pytest.raises(ReadFailedError):
        await next_of(merged)
    await merged.remove(0)
    merged.add(0, partial(source, 4, 5))
    assert await taken(merged) == [(0, 4), (0, 5)]
    assert failing.begun == 1
    await merged.close()
