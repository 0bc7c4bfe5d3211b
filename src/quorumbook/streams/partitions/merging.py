"""Takes batches of several readers as they come, one at a time, with a bounded number in memory.

Each source is read ahead by one batch, so that a slow taker holds all of them up and a slow source
holds up nobody.  Sources come and go while batches are taken.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator

from quorumbook.env.tasks import end
from quorumbook.streams.reading.batches import RecordBatch


class MergedBatches:
    """Batches of several sources, each of which has a number."""

    def __init__(self) -> None:
        self._pumps: dict[int, asyncio.Task[None]] = {}
        #: Batches that were read and not taken, by source; the oldest first.
        self._ready: dict[int, RecordBatch] = {}
        self._order: deque[int] = deque()
        self._taken: dict[int, asyncio.Event] = {}
        self._error: BaseException | None = None
        self.changed = asyncio.Event()

    def add(self, number: int, batches: AsyncGenerator[RecordBatch, None]) -> None:
        """Begin to read a source."""
        self._taken[number] = asyncio.Event()
        self._pumps[number] = asyncio.ensure_future(self._pump(number, batches))

    def forget(self, number: int) -> list[asyncio.Task[None]]:
        """Forget a source and what was not taken of it; return what is to be ended."""
        pump = self._pumps.pop(number, None)
        self._ready.pop(number, None)
        with contextlib.suppress(ValueError):
            self._order.remove(number)
        if pump is None:
            return []
        pump.cancel()  # at once: what it reads from now on is nobody's
        return [pump]

    async def remove(self, number: int) -> None:
        """Stop reading a source; what was not taken of it is forgotten."""
        await end(self.forget(number))

    async def close(self) -> None:
        """Stop reading all sources."""
        for number in list(self._pumps):
            await self.remove(number)

    def waiting(self, number: int) -> RecordBatch | None:
        """Return the batch of a source that is taken next, if it is there."""
        return self._ready.get(number)

    @property
    def is_over(self) -> bool:
        """Whether all sources came to their ends and everything was taken."""
        return not self._order and all(pump.done() for pump in self._pumps.values())

    def take(self) -> tuple[int, RecordBatch] | None:
        """Return the oldest batch and its source; None if there is none by now.

        Raises:
            BaseException: what a source ended with.
        """
        if self._order:
            number = self._order.popleft()
            self._taken[number].set()
            return number, self._ready.pop(number)
        if self._error is not None:
            raise self._error
        self.changed.clear()
        return None

    async def _pump(self, number: int, batches: AsyncGenerator[RecordBatch, None]) -> None:
        taken = self._taken[number]
        try:
            async with contextlib.aclosing(batches):
                async for batch in batches:
                    taken.clear()
                    self._ready[number] = batch
                    self._order.append(number)
                    self.changed.set()
                    await taken.wait()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._error = error
        finally:
            self.changed.set()
