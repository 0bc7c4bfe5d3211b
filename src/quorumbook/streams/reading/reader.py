"""Hands a stream's records out: one by one, in batches, or in chunks that were waited for.

``scanner`` reads them.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from itertools import accumulate, chain
from typing import Any, Generic, TypeAlias, TypeVar, cast

from quorumbook.client.waiting.closing import Closing
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import LedgerClosedError
from quorumbook.streams.format.gap import Gap
from quorumbook.streams.format.position import Position
from quorumbook.streams.reading.batches import Record, RecordBatch, made_at_once
from quorumbook.streams.reading.hand_out import HandOut
from quorumbook.streams.reading.notices import ControlRecord
from quorumbook.streams.reading.options import ReaderOptions
from quorumbook.streams.reading.scanner import StreamScanner
from quorumbook.streams.reading.seek import Start, start_position
from quorumbook.streams.stream_context import StreamContext

R = TypeVar("R")


class BaseReader(Closing, Generic[R]):
    """What all readers of a stream do."""

    def __init__(
        self, context: StreamContext, start: Position | None, options: ReaderOptions
    ) -> None:
        """Begin at a position; None: at the first record that is there."""
        self._context = context
        self._scanner = StreamScanner(context, start, options)
        self._stream: AsyncGenerator[RecordBatch, None] | None = None
        self._hand: HandOut[R] = HandOut()
        self._pending: asyncio.Task[RecordBatch] | None = None
        self._is_closed = False
        self._numbers = context.numbers()
        self._numbers.readers.add(self)

    # Life ----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Let go of everything."""
        self._is_closed = True
        self._numbers.readers.discard(self)
        await self._reset()

    async def _reset(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            await cancel_and_wait([pending])
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()
        self._hand.begin(None)
        await self._scanner.stop()

    # Reading -------------------------------------------------------------------------------

    @property
    def caught_up(self) -> bool:
        """Whether everything that was visible has been handed out."""
        return self._scanner.at_tail.is_set() and self._hand.batch is None

    @property
    def read_ahead_bytes(self) -> int:
        """What segments behind the present one take in memory."""
        return self._scanner.read_ahead_bytes

    @property
    def lag_s(self) -> float:
        """How long ago what was read last was appended; 0 at the end, and where nobody said."""
        if self._scanner.at_tail.is_set() or self._scanner.appended_at_ms is None:
            return 0.0
        now_ms = self._context.store.env.clock.wall_ms()
        return max(0, now_ms - self._scanner.appended_at_ms) / 1000

    @property
    def idle_reason(self) -> str:
        """Why no record comes, ``caught_up`` or ``unreachable``; empty while some do."""
        if self._scanner.unreachable is not None:
            return "unreachable"
        return "caught_up" if self._scanner.at_tail.is_set() else ""

    @property
    def position(self) -> Position:
        """Where the next record to be handed out is, or a position before it."""
        if self._hand.batch is None:
            return self._scanner.position
        return self._hand.place(self._hand.count)[0]

    @property
    def next_sequence_id(self) -> int | None:
        """The sequence id that the next record must have; None if that is not known."""
        batch = self._hand.batch
        if batch is not None and batch.first_sequence_id >= 0:
            return batch.sequence_id(self._hand.count)
        return self._scanner.expected

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._context.name} at {self.position}>"

    def __aiter__(self) -> AsyncIterator[R]:
        return self

    async def __anext__(self) -> R:
        while True:
            for record, _ in self._hand.records:
                return record
            batch = await self._take(None)
            if batch is None:
                raise StopAsyncIteration
            self._hand.begin(batch)
            self._hand.one_by_one(iter)

    async def read_batches(self) -> AsyncGenerator[RecordBatch, None]:
        """Yield records as they come, those of an entry together."""
        while True:
            batch = await self._take(None)
            if batch is None:
                return
            yield batch

    async def read(
        self, max_records: int = 1000, max_bytes: int = 1 << 20, *, wait_s: float | None = 0.5
    ) -> list[R]:
        """Return the next records: one at least, unless none comes in time or the end is there.

        Args:
            max_records: Return no more …
            max_bytes: … and no more bytes; one record is returned however large it is.
            wait_s: How long to wait for the first; None: for ever.  What is visible behind it is
                returned too.
        """
        found: list[RecordBatch] = []
        count = size = 0
        while count < max_records and size < max_bytes:
            batch = await (self._take(wait_s) if not found else self._take_ready())
            if batch is None:
                break
            ends = list(accumulate(map(len, batch.payloads[: max_records - count]), initial=size))
            fitting = bisect_right(ends, max_bytes) - 1
            taken = fitting if found else max(fitting, 1)
            if taken < len(batch):
                self._hand.begin(batch.part(taken, len(batch)) if taken else batch)
            if not taken:
                break
            found.append(batch.part(0, taken))
            count, size = count + taken, ends[taken]
        records = cast("Iterable[R]", chain.from_iterable(found))
        return made_at_once(records)

    async def seek(self, start: Start) -> None:
        """Go on from another place: a Position, SequenceId, TxId, datetime, or an end."""
        position = await start_position(self._context, start)
        await self._reset()
        self._scanner.seek(position or Position(0, 0, 0))

    async def _take_ready(self) -> RecordBatch | None:
        """Return the next batch; None if there is none that is visible by now."""
        if self._pending is None and self._hand.batch is None:
            batch = await self._take(0, raises=False)
            if batch is not None or self._pending is None or self._pending.done():
                return batch
        elif self._pending is None:
            return await self._take(0, raises=False)
        tail = asyncio.ensure_future(self._scanner.at_tail.wait())
        await asyncio.wait({self._pending, tail}, return_when=asyncio.FIRST_COMPLETED)
        tail.cancel()
        return await self._take(0, raises=False) if self._pending.done() else None

    async def _take(self, wait_s: float | None, *, raises: bool = True) -> RecordBatch | None:
        """Return the next batch; None at the end, or if none comes in time.

        Without ``raises`` an error is left to the next call.
        """
        left = self._hand.rest()
        if left is not None:
            return left
        if self._is_closed:
            raise LedgerClosedError("this reader is closed")
        if self._pending is None:
            if self._stream is None:
                self._stream = self._scanner.batches()
            if wait_s is None:
                try:
                    batch = await anext(self._stream, None)
                except BaseException:
                    self._stream = None  # whoever tries again begins where this ended
                    raise
                return self._scanner.rest() if batch is None else batch
            self._pending = asyncio.ensure_future(anext(self._stream))
        # A batch that comes too late for this call is for the next one.
        done, _ = await asyncio.wait({self._pending}, timeout=wait_s)
        if not done or (not raises and has_failed(self._pending)):
            return None
        pending, self._pending = self._pending, None
        try:
            return pending.result()
        except StopAsyncIteration:
            return self._scanner.rest()
        except BaseException:
            self._stream = None
            raise


def has_failed(pending: asyncio.Task[Any]) -> bool:
    """Tell whether a task that is done has an error, not a batch or the end."""
    if pending.cancelled():
        return True
    return not isinstance(pending.exception(), StopAsyncIteration | None)


class StreamReader(BaseReader[Record]):
    """Reads a stream; made by ``Stream.reader``.

    Iterate over it for records, over ``read_batches()`` for many at a time, or call ``read`` for a
    chunk; one after the other, not at the same time.
    """


StreamItem: TypeAlias = Record | ControlRecord | Gap
"""What a reader hands out that was asked for more than records."""


class ReportingReader(BaseReader[StreamItem]):
    """Reads a stream and says more; made by ``Stream.reader`` with ``on_gap="report"``.

    Among the records are gaps, each in the place of what is missing, and control records, if they
    were asked for (``include_control``).  In ``read_batches()`` each of these is a ``Notice``.
    """
