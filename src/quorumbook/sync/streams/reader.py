"""The blocking readers of streams: batches come from the loop thread, records out of them here."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Generic, TypeVar, cast

from quorumbook.streams.format.position import Position
from quorumbook.streams.reading import reader as aio
from quorumbook.streams.reading.batches import Record, RecordBatch
from quorumbook.streams.reading.hand_out import HandOut
from quorumbook.streams.reading.reader import StreamItem
from quorumbook.streams.reading.seek import Start
from quorumbook.sync.declared import blocking, held
from quorumbook.sync.twin import Closing

A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")


class Taking(Closing[A], Generic[A, R]):
    """Hands out records that were fetched on the loop thread, where an interrupt loses none."""

    #: How many are fetched at least, however few are asked for.
    _at_once = 1

    def __init__(self, reader: A) -> None:
        """Wrap what was opened on the loop thread."""
        super().__init__(reader)
        self._fetched: deque[R] = deque()

    def __iter__(self) -> Iterator[R]:
        return self

    def __next__(self) -> R:
        for record in self.read(1, wait_s=None):
            return record
        raise StopIteration

    def read(self, max_records: int = 1000, *, wait_s: float | None = 0.5) -> list[R]:
        """Return the next records; see the ``read`` of the asyncio twin."""
        if not self._fetched:
            self._run(lambda: self._fetch(max(max_records, self._at_once), wait_s))
        count = min(max_records, len(self._fetched))
        return [self._fetched.popleft() for _ in range(count)]

    async def _fetch(self, max_records: int, wait_s: float | None) -> None:
        source: Any = self._aio
        self._fetched += await source.read(max_records, wait_s=wait_s)


class BaseReader(Closing[aio.BaseReader[R]]):
    """What all blocking readers of a stream do."""

    def __init__(self, reader: aio.BaseReader[R]) -> None:
        """Wrap a reader that was opened on the loop thread."""
        super().__init__(reader)
        self._hand: HandOut[R] = HandOut()
        #: Where to go on if a fetch was interrupted and what it brought is lost.
        self._interrupted_at: Position | None = None

    @property
    def caught_up(self) -> bool:
        """Whether everything that was visible has been handed out."""
        return self._aio.caught_up and self._hand.is_over

    read_ahead_bytes = held(aio.BaseReader[R], lambda it: it.read_ahead_bytes)
    """What segments behind the present one take in memory."""
    lag_s = held(aio.BaseReader[R], lambda it: it.lag_s)
    """How long ago what was read last was appended; 0 at the end, and where nobody said."""
    idle_reason = held(aio.BaseReader[R], lambda it: it.idle_reason)
    """Why no record comes, ``caught_up`` or ``unreachable``; empty while some do."""

    @property
    def position(self) -> Position:
        """Where the next record to be handed out is, or a position before it."""
        if not self._hand.is_over:
            return self._hand.place(self._hand.count)[0]
        return self._interrupted_at or self._aio.position

    @property
    def next_sequence_id(self) -> int | None:
        """The sequence id that the next record must have; None if that is not known."""
        known = -1 if self._hand.is_over else self._hand.place(self._hand.count)[1]
        return known if known >= 0 else self._aio.next_sequence_id

    def __iter__(self) -> Iterator[R]:
        return self

    def __next__(self) -> R:
        while True:
            for record, _ in self._hand.records:
                return record
            if self._hand.is_over:
                batch = self._fetch(self._next_batch)
                if batch is None:
                    raise StopIteration
                self._hand.begin(batch)
            self._hand.one_by_one(iter)

    def read_batches(self) -> Iterator[RecordBatch]:
        """Yield records as they come, those of an entry together."""
        batch = self._hand.rest()
        while batch is not None or (batch := self._fetch(self._next_batch)) is not None:
            yield batch
            batch = self._hand.rest()

    def read(
        self, max_records: int = 1000, max_bytes: int = 1 << 20, *, wait_s: float | None = 0.5
    ) -> list[R]:
        """Return the next records; see ``quorumbook.streams.StreamReader``."""
        found: list[R] = []
        size = 0
        left = self._hand.rest()
        if left is not None:
            for record, payload in zip(cast("Iterator[R]", iter(left)), left.payloads, strict=True):
                size += len(payload)
                if found and (len(found) == max_records or size > max_bytes):
                    self._hand.begin(left.part(len(found), len(left)))
                    return found
                found.append(record)
            max_records -= len(found)
            max_bytes -= size
            wait_s = 0
        if max_records > 0 and max_bytes > 0:
            found += self._fetch(lambda: self._aio.read(max_records, max_bytes, wait_s=wait_s))
        return found

    def seek(self, start: Start) -> None:
        """Go on from another place: a Position, SequenceId, TxId, datetime, or an end."""
        self._run(lambda: self._aio.seek(start))
        self._hand.begin(None)
        self._interrupted_at = None

    close = blocking(aio.BaseReader[R].close)
    """Let go of everything."""

    def _fetch(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        before = self._interrupted_at
        if before is not None and self._aio.position != before:
            self.seek(before)
        before = self._aio.position
        try:
            found = self._run(work)
        except KeyboardInterrupt:
            self._interrupted_at = before
            raise
        self._interrupted_at = None
        return found

    async def _next_batch(self) -> RecordBatch | None:
        async with contextlib.aclosing(self._aio.read_batches()) as batches:
            return await anext(batches, None)


class StreamReader(BaseReader[Record]):
    """The blocking twin of ``quorumbook.streams.StreamReader``."""


class ReportingReader(BaseReader[StreamItem]):
    """The blocking twin of ``quorumbook.streams.ReportingReader``."""
