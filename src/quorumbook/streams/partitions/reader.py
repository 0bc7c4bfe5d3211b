"""Reads partitions at the same time: each in its order, together as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from itertools import chain, islice, repeat
from typing import NamedTuple

from quorumbook.client.waiting.closing import Closing
from quorumbook.streams.format.position import Position
from quorumbook.streams.partitions.merging import MergedBatches
from quorumbook.streams.partitions.partitioning import StreamCut
from quorumbook.streams.reading.batches import Record, RecordBatch, made_at_once
from quorumbook.streams.reading.reader import StreamReader


class PartitionRecord(NamedTuple):
    """A record and the partition that it is in."""

    partition: int
    record: Record


# There are many of them: made without a call of Python's for each.
_record: Callable[[tuple[int, Record]], PartitionRecord] = partial(tuple.__new__, PartitionRecord)


class PartitionedReader(Closing):
    """Reads partitions; made by ``PartitionedStream.reader``.

    Iterate over it for records, or call ``read`` for a chunk; one after the other.
    """

    def __init__(self, readers: dict[int, StreamReader]) -> None:
        """Take the partitions' readers, opened."""
        self._readers = readers
        self._merged = MergedBatches()
        for number, reader in readers.items():
            self._merged.add(number, reader.read_batches())
        #: What is being handed out.
        self._current: tuple[int, RecordBatch] | None = None
        self._handed_out = 0
        self._records: Iterator[PartitionRecord] = iter(())

    async def close(self) -> None:
        """Let go of everything."""
        await self._merged.close()
        await asyncio.gather(*(reader.close() for reader in self._readers.values()))

    @property
    def position(self) -> StreamCut:
        """Where the next record of each partition is, or a position before it."""
        return StreamCut((number, self._place(number)) for number in sorted(self._readers))

    def _place(self, number: int) -> Position:
        if self._current is not None and self._current[0] == number:
            batch = self._current[1]
            if self._handed_out < len(batch):
                return batch.part(self._handed_out, len(batch)).first_position
        waiting = self._merged.waiting(number)
        return self._readers[number].position if waiting is None else waiting.first_position

    def __aiter__(self) -> AsyncIterator[PartitionRecord]:
        return self

    async def __anext__(self) -> PartitionRecord:
        for record in self._records:
            self._handed_out += 1
            return record
        found = await self.read(1, wait_s=None)
        if not found:
            raise StopAsyncIteration
        return found[0]

    async def read(
        self, max_records: int = 1000, *, wait_s: float | None = 0.5
    ) -> list[PartitionRecord]:
        """Return the next records: one at least, unless none comes in time or the end is there.

        Args:
            max_records: Return no more.
            wait_s: How long to wait for the first; None: for ever.
        """
        found: list[Iterator[PartitionRecord]] = []
        missing = max_records
        while missing:
            left = 0 if self._current is None else len(self._current[1]) - self._handed_out
            if left:
                count = min(left, missing)
                found.append(islice(self._records, count))
                self._handed_out += count
                missing -= count
                continue
            current = self._merged.take(raises=not found)
            if current is not None:
                number, batch = current
                self._current, self._handed_out = current, 0
                self._records = map(_record, zip(repeat(number), batch))
            elif found or not await self._wait(wait_s):
                break
        return made_at_once(chain.from_iterable(found))

    async def _wait(self, wait_s: float | None) -> bool:
        """Wait for news; False: there will be none, or not in time."""
        if self._merged.is_over:
            return False
        try:
            async with asyncio.timeout(wait_s):
                await self._merged.changed.wait()
        except TimeoutError:
            return False
        return True
