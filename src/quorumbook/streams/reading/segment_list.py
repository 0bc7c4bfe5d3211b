"""The segments that a reader has before it, as last listed, and whether they changed since."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from quorumbook.streams.format.gap import Gap
from quorumbook.streams.format.position import Position
from quorumbook.streams.format.segment_text import SegmentMetadata, Truncation
from quorumbook.streams.segments import gap_between, next_sequence_id, start_sequence_ids
from quorumbook.streams.stream_context import StreamContext

#: So many segments are listed at a time: a stream may have many thousands.
_WINDOW = 64


class Listed(NamedTuple):
    """A segment as it was listed."""

    segment: SegmentMetadata
    #: The sequence id of its first record; below 0 where it is not known.
    start: int

    def gap_without_ledger(self, stream: str, read_to: Position) -> Gap:
        """Return what a reader of a stream does not find behind a position: the ledger is gone."""
        number, ledger_id = self.segment.number, self.segment.ledger_id
        begin, behind = Position(number, 0, 0), next_sequence_id(self.segment)
        return Gap(
            start=max(begin, read_to),
            end=Position(number + 1, 0, 0),
            first_sequence_id=max(self.start, -1) if read_to <= begin else -1,
            next_sequence_id=-1 if behind is None else behind,
            reason=f"the ledger {ledger_id} of segment {number} of stream {stream} is gone",
            ledger_id=ledger_id,
        )


class SegmentList:
    """What a reader knows of its stream's segments; metadata is read by ``refresh`` alone."""

    def __init__(self, context: StreamContext, *, allows_gap: bool = False) -> None:
        """Know nothing yet; segments may be missing in between if the reader says what is."""
        self._context = context
        self._allows_gap = allows_gap
        self._holes: dict[int, Gap] = {}
        self._listed: deque[Listed] = deque()
        self._changed = asyncio.Event()
        self._on_change = self._changed.set  # one object, by which the watch can be forgotten
        self._changed.set()

    @property
    def is_stale(self) -> bool:
        """Whether something changed since the segments were listed."""
        return self._changed.is_set()

    def __iter__(self) -> Iterator[Listed]:
        return iter(self._listed)

    def of(self, number: int) -> SegmentMetadata | None:
        """Return the segment of this number; of two, the one in progress."""
        return next((each for each, _ in self._listed if each.number == number), None)

    async def refresh(self, first: int) -> None:
        """List some segments from this number on; one before them may be there too.

        Of those that are not truncated away at least the first is among them.
        """
        while True:
            self.forget()
            self._changed.clear()
            segments = await self._context.nodes.segments(
                first=first,
                limit=_WINDOW,
                watch=self._on_change,
                allows_gap=self._allows_gap,
            )
            is_all = len(segments) < _WINDOW
            if is_all or any(each.truncation is not Truncation.TRUNCATED for each in segments):
                break
            first = segments[-1].number + 1
        self._holes = {
            after.number: gap_between(before, after)
            for before, after in pairwise(segments)
            if after.number > before.number + 1
        }
        starts = start_sequence_ids(segments)
        self._listed = deque(map(Listed, segments, starts))

    def hole_before(self, number: int) -> Gap | None:
        """Return what is missing where the segments right before one are."""
        return self._holes.get(number)

    def drop_before(self, number: int) -> None:
        """Have done with the segments of lower numbers."""
        while self._listed and self._listed[0].segment.number < number:
            self._listed.popleft()

    async def wait_for_change(self, timeout_s: float) -> None:
        """Wait for one, but not for ever: a watch may be lost with a session."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        self._changed.set()

    def forget(self) -> None:
        """Know nothing, and watch nothing."""
        self._listed.clear()
        self._context.store.unwatch(self._on_change)
        self._changed.set()
