"""Takes batches of several readers as they come, one at a time, with a bounded number in memory.

Each source is read ahead by a few batches, so that a slow taker holds all of them up and a slow
source holds up nobody.  Sources come and go while batches are taken.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator

from quorumbook.env.tasks import cancel_and_wait
from quorumbook.streams.reading.batches import RecordBatch

#: Of a source; less than that is read ahead, and then one batch more.
_AHEAD_BYTES = 256 * 1024


class _Source:
    """What was read of one source and not taken."""

    def __init__(self, ahead_bytes: int) -> None:
        self.ahead_bytes = ahead_bytes
        self.ready: deque[tuple[RecordBatch, int]] = deque()
        self.size_bytes = 0
        self.taken = asyncio.Event()

    @property
    def is_full(self) -> bool:
        return bool(self.ready) and self.size_bytes >= self.ahead_bytes

    def put(self, batch: RecordBatch) -> None:
        size_bytes = batch.size_bytes
        self.ready.append((batch, size_bytes))
        self.size_bytes += size_bytes
        self.taken.clear()

    def take(self) -> RecordBatch:
        batch, size_bytes = self.ready.popleft()
        self.size_bytes -= size_bytes
        if self.size_bytes <= self.ahead_bytes // 2:
            self.taken.set()  # for several batches at a time, not for each
        return batch


class MergedBatches:
    """Batches of several sources, each of which has a number."""

    def __init__(self) -> None:
        self._pumps: dict[int, asyncio.Task[None]] = {}
        self._sources: dict[int, _Source] = {}
        #: The sources of which something was read and not taken, in the order of their turns.
        self._order: deque[int] = deque()
        self._error: BaseException | None = None
        self.changed = asyncio.Event()

    def add(
        self,
        number: int,
        batches: AsyncGenerator[RecordBatch, None],
        *,
        ahead_bytes: int = _AHEAD_BYTES,
    ) -> None:
        """Begin to read a source; with 0 bytes no batch is read before the last one is taken."""
        source = self._sources[number] = _Source(ahead_bytes)
        self._pumps[number] = asyncio.ensure_future(self._pump(number, source, batches))

    def forget(self, number: int) -> list[asyncio.Task[None]]:
        """Forget a source and what was not taken of it; return what is to be ended."""
        pump = self._pumps.pop(number, None)
        self._sources.pop(number, None)
        with contextlib.suppress(ValueError):
            self._order.remove(number)
        if pump is None:
            return []
        pump.cancel()  # at once: what it reads from now on is nobody's
        return [pump]

    async def remove(self, number: int) -> None:
        """Stop reading a source; what was not taken of it is forgotten."""
        await cancel_and_wait(self.forget(number))

    async def close(self) -> None:
        """Stop reading all sources."""
        for number in list(self._pumps):
            await self.remove(number)

    def waiting(self, number: int) -> RecordBatch | None:
        """Return the batch of a source that is taken next, if it is there."""
        source = self._sources.get(number)
        return source.ready[0][0] if source is not None and source.ready else None

    @property
    def is_over(self) -> bool:
        """Whether all sources came to their ends and everything was taken."""
        return not self._order and all(pump.done() for pump in self._pumps.values())

    def take(self, *, raises: bool) -> tuple[int, RecordBatch] | None:
        """Return the next batch of the source whose turn it is; None if there is none by now.

        Args:
            raises: Whether the caller has found nothing yet that an error would lose.

        Raises:
            BaseException: what a source ended with.
        """
        if self._order:
            number = self._order.popleft()
            source = self._sources[number]
            batch = source.take()
            if source.ready:
                self._order.append(number)
            return number, batch
        if self._error is None:
            self.changed.clear()
        elif raises:
            raise self._error
        return None

    async def _pump(
        self, number: int, source: _Source, batches: AsyncGenerator[RecordBatch, None]
    ) -> None:
        try:
            async with contextlib.aclosing(batches):
                async for batch in batches:
                    if self._sources.get(number) is not source:
                        # It was on its way when the source was forgotten.
                        return
                    if not source.ready:
                        self._order.append(number)
                    source.put(batch)
                    self.changed.set()
                    while source.is_full:
                        await source.taken.wait()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._error = error
        finally:
            self.changed.set()
