"""The blocking member of a consumer group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from quorumbook.streams.partitions import consumer as aio
from quorumbook.sync.declared import blocking, held
from quorumbook.sync.loop import Closing
from quorumbook.sync.streams.cursor import Cursor


class Consumer(Closing[aio.Consumer]):
    """The blocking twin of ``quorumbook.streams.Consumer``."""

    def __init__(self, consumer: aio.Consumer) -> None:
        """Wrap a member that joined on the loop thread."""
        super().__init__(consumer)
        #: What was fetched on the loop thread: an interrupt of who waits for it loses nothing.
        self._found: list[aio.Delivery] = []

    group = held(aio.Consumer, lambda it: it.group)
    """The group's name, which its cursors have too."""
    member = held(aio.Consumer, lambda it: it.member)
    """By which name this member is known in the group."""
    generation = held(aio.Consumer, lambda it: it.generation)
    """The generation of the group that this member knows of."""
    assignment = held(aio.Consumer, lambda it: it.assignment)
    """The partitions whose records it hands out now."""

    def __iter__(self) -> Iterator[aio.Delivery]:
        return self

    def __next__(self) -> aio.Delivery:
        return self.read(1, wait_s=None)[0]

    def read(self, max_records: int = 1000, *, wait_s: float | None = 0.5) -> list[aio.Delivery]:
        """Return the next records; see ``quorumbook.streams.Consumer``."""
        if not self._found:
            self._run(lambda: self._find(max_records, wait_s))
        found, self._found = self._found[:max_records], self._found[max_records:]
        return found

    async def _find(self, max_records: int, wait_s: float | None) -> None:
        self._found = await self._aio.read(max_records, wait_s=wait_s)

    commit = blocking(aio.Consumer.commit)
    """Store that a record and all before it in its partition are done."""
    nack = blocking(aio.Consumer.nack)
    """Refuse records that are in hand: they are handed out again."""
    ack = blocking(aio.Consumer.ack)
    """Store that single records are done, in any order."""

    def cursor(self, partition: int) -> Cursor:
        """Return the group's cursor in a partition that this member has."""
        return Cursor(self._aio.cursor(partition))

    close = blocking(aio.Consumer.close)
    """Leave the group, and let the others have the partitions."""

    def _end_block(self, error: BaseException | None) -> None:
        self.close(is_done=error is None)


def on_thread(function: Callable[[int], None]) -> Callable[[int], Awaitable[None]]:
    """Have a function of a blocking application called where it may block."""

    async def call(partition: int) -> None:
        await asyncio.to_thread(function, partition)

    return call
