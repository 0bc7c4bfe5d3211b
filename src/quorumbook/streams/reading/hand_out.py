"""A batch while a reader hands its records out: one by one, some at a time, or all that are left.

A record in the middle of a batch is a step of an iterator, and nothing is counted for it: how many
are left is asked of the iterator when somebody wants to know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from operator import length_hint
from typing import Any, Generic, TypeAlias, TypeVar

from quorumbook.streams.format.position import Position
from quorumbook.streams.reading.batches import RecordBatch

R = TypeVar("R")

#: Where a record is, and its sequence id.
Place: TypeAlias = tuple[Position, int]

_NONE_LEFT: repeat[None] = repeat(None, 0)
_NO_RECORDS: Iterator[Any] = iter(())


class HandOut(Generic[R]):
    """The batch that a reader is at; for each reader one, with one batch after the other."""

    __slots__ = ("_left", "_taken", "_told", "batch", "records")

    def __init__(self) -> None:
        """Begin without a batch."""
        self.begin(None)

    def begin(self, batch: RecordBatch | None) -> None:
        """Go on with a batch, or without one; nothing more of the last one is handed out."""
        self.batch = batch
        self._told = 0
        #: So many were taken; as many as ``_left`` has are still in ``records``.
        self._taken = 0
        self._left: repeat[None] = _NONE_LEFT
        #: What is handed out one by one: whoever takes the next of it has it handed out.
        self.records: Iterator[tuple[R, None]] = _NO_RECORDS

    def _set(self, taken: int) -> None:
        self._taken = taken
        self._left, self.records = _NONE_LEFT, _NO_RECORDS

    @property
    def count(self) -> int:
        """How many of the batch were handed out."""
        return self._taken - length_hint(self._left)

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to hand out."""
        return self.batch is None or self.count >= len(self.batch)

    def place(self, index: int) -> Place:
        """Return where the record of the batch is that has so many of them before it."""
        assert self.batch is not None
        return self.batch.place(index), self.batch.sequence_id(index)

    def one_by_one(self, rows: Callable[[RecordBatch], Iterator[Any]]) -> None:
        """Have what is left in ``records``, made of a batch by ``rows`` one after the other."""
        if self.batch is not None:
            taken, whole = self.count, len(self.batch)
            left = self.batch.part(taken, whole) if taken else self.batch
            self._taken = whole
            self._left = repeat(None, whole - taken)
            self.records = zip(rows(left), self._left, strict=True)

    def stop(self) -> None:
        """Hand out nothing more one by one."""
        self._set(self.count)

    def part(self, max_records: int | None = None) -> RecordBatch:
        """Hand out what is left, together; no more than so many, if that is said."""
        assert self.batch is not None
        start = self.count
        stop = len(self.batch) if max_records is None else start + max_records
        part = self.batch.part(start, stop)
        self._set(start + len(part))
        self._told = self._taken
        return part

    def rest(self) -> RecordBatch | None:
        """Hand out all that is left, and forget the batch; None: nothing is."""
        if self.batch is None:
            return None
        left = None if self.is_over else self.part()
        self.begin(None)
        return left

    def news(self) -> tuple[Place, Place] | None:
        """Tell what was handed out one by one since this was asked last.

        Returns:
            Where the last record is that is done, as another was asked for, and where the one is
            that is in hand; None if none was handed out.
        """
        count = self.count
        if count == self._told:
            return None
        self._told = count
        return self.place(count - 2), self.place(count - 1)
