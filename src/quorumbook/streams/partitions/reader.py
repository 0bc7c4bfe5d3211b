"""Reads partitions at the same time: each in its order, together as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from itertools import chain, repeat
from typing import NamedTuple

from quorumbook.client.waiting.closing import Closing
from quorumbook.streams.format.position import Position
from quorumbook.streams.partitions.merging import MergedBatches
from quorumbook.streams.partitions.partitioning import StreamCut
from quorumbook.streams.reading.batches import Record, RecordBatch, made, made_at_once
from quorumbook.streams.reading.hand_out import HandOut
from quorumbook.streams.reading.reader import StreamReader


class PartitionRecord(NamedTuple):
    """A record and the partition that it is in."""

    partition: int
    record: Record


def _of(number: int, batch: RecordBatch) -> Iterator[PartitionRecord]:
    return made(PartitionRecord, zip(repeat(number), batch))


class PartitionedReader(Closing):
    """Reads partitions; made by ``PartitionedStream.reader``.

    Iterate over it for records, or call ``read`` for a chunk; one after the other.
    """

    def __init__(self, readers: dict[int, StreamReader]) -> None:
        """Take the partitions' readers, opened."""
        self._readers = readers
        self._merged = MergedBatches()
        for number, reader in readers.items():
            self._merged.add(number, reader.read_batches)
        self._hand: HandOut[PartitionRecord] = HandOut()
        #: Which partition's records that hands out.
        self._number = -1

    async def close(self) -> None:
        """Let go of everything."""
        await self._merged.close()
        await asyncio.gather(*(reader.close() for reader in self._readers.values()))

    @property
    def position(self) -> StreamCut:
        """For each partition, the position of the next record, or a position before it."""
        return StreamCut((number, self._place(number)) for number in sorted(self._readers))

    def _place(self, number: int) -> Position:
        if self._number == number and not self._hand.is_over:
            return self._hand.place(self._hand.count)[0]
        waiting = self._merged.waiting(number)
        return self._readers[number].position if waiting is None else waiting.first_position

    def __aiter__(self) -> AsyncIterator[PartitionRecord]:
        return self

    async def __anext__(self) -> PartitionRecord:
        for record, _ in self._hand.records:
            return record
        found = await self.read(1, wait_s=None)
        if not found:
            raise StopAsyncIteration
        self._hand.one_by_one(partial(_of, self._number))
        return found[0]

    async def read(
        self, max_records: int = 1000, *, wait_s: float | None = 0.5
    ) -> list[PartitionRecord]:
        """Return the next records: one at least, unless none comes in time or the end is there.

        Args:
            max_records: Return no more.
            wait_s: How long to wait for the first; None: for ever.

        Raises:
            QuorumbookError: a partition cannot be read.  If that is ``retriable``, the next call
                goes on with it where it stopped.
        """
        found: list[Iterator[PartitionRecord]] = []
        missing = max_records
        while missing:
            if not self._hand.is_over:
                part = self._hand.part(missing)
                missing -= len(part)
                found.append(_of(self._number, part))
                continue
            taken = self._merged.take(raises=not found)
            if taken is not None:
                self._number, batch = taken
                self._hand.begin(batch)
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
