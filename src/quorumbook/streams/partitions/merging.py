"""Takes batches of several readers as they come, one at a time, with a bounded number in memory.

Each source is read ahead by a few batches, so that a slow taker holds all of them up and a slow
source holds up nobody.  Sources come and go while batches are taken.  One that failed for a moment
goes on when the taker, who heard of it, asks for more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable

from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import QuorumbookError
from quorumbook.streams.reading.batches import RecordBatch

#: Of a source; less than that is read ahead, and then one batch more.
_AHEAD_BYTES = 256 * 1024


def is_passing(error: BaseException) -> bool:
    """Tell whether whoever tries again later may have more luck."""
    return isinstance(error, QuorumbookError) and error.retriable


class _Source:
    """What was read of one source and not taken."""

    def __init__(
        self, read: Callable[[], AsyncGenerator[RecordBatch, None]], ahead_bytes: int
    ) -> None:
        self.read = read
        #: What came behind all that was read.
        self.error: BaseException | None = None
        self.ahead_bytes = ahead_bytes
        self.ready: deque[tuple[RecordBatch, int]] = deque()
        self.size_bytes = 0
        self.taken = asyncio.Event()

    @property
    def has_turn(self) -> bool:
        """Whether something is due: a batch, or an error that is raised once."""
        return bool(self.ready) or (self.error is not None and is_passing(self.error))

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
        #: The sources of which something is due, in the order of their turns.
        self._order: deque[int] = deque()
        #: Those that failed for a moment, of which the taker has heard.
        self._to_resume: set[int] = set()
        self.changed = asyncio.Event()

    def add(
        self,
        number: int,
        read: Callable[[], AsyncGenerator[RecordBatch, None]],
        *,
        ahead_bytes: int = _AHEAD_BYTES,
    ) -> None:
        """Begin to read a source.

        Args:
            number: The source's.
            read: Reads it; called again after an error that passes, it goes on where that came.
            ahead_bytes: With 0 no batch is read before the last one is taken.
        """
        self._sources[number] = _Source(read, ahead_bytes)
        self._begin(number)

    def forget(self, number: int) -> list[asyncio.Task[None]]:
        """Forget a source and what was not taken of it; return what is to be ended."""
        pump = self._pumps.pop(number, None)
        self._sources.pop(number, None)
        self._to_resume.discard(number)
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
        is_any_due = self._order or self._to_resume
        return not is_any_due and all(pump.done() for pump in self._pumps.values())

    def take(self, *, raises: bool) -> tuple[int, RecordBatch] | None:
        """Return the next batch of the source whose turn it is; None if there is none by now.

        Args:
            raises: Whether the caller has found nothing yet that an error would lose.

        Raises:
            BaseException: what a source ended with: once in its turn if it is passing, and by each
                call that finds no batch if it is not.
        """
        while self._to_resume:
            self._begin(self._to_resume.pop())
        if self._order:
            number = self._order[0]
            source = self._sources[number]
            if not source.ready and not raises:
                return None
            self._order.popleft()
            if not source.ready:
                error, source.error = source.error, None
                self._to_resume.add(number)
                assert error is not None
                raise error
            batch = source.take()
            if source.has_turn:
                self._order.append(number)
            return number, batch
        errors = [each.error for each in self._sources.values() if each.error is not None]
        if not errors:
            self.changed.clear()
        elif raises:
            raise errors[0]
        return None

    def _begin(self, number: int) -> None:
        pump = self._pump(number, self._sources[number])
        self._pumps[number] = asyncio.ensure_future(pump)

    async def _pump(self, number: int, source: _Source) -> None:
        try:
            async with contextlib.aclosing(source.read()) as batches:
                async for batch in batches:
                    if self._sources.get(number) is not source:
                        # It was on its way when the source was forgotten.
                        return
                    if not source.has_turn:
                        self._order.append(number)
                    source.put(batch)
                    self.changed.set()
                    while source.is_full:
                        await source.taken.wait()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            is_in_turn, source.error = source.has_turn, error
            if source.has_turn and not is_in_turn and self._sources.get(number) is source:
                self._order.append(number)
        finally:
            self.changed.set()
