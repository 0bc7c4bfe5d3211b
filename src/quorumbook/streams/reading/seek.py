"""Finds where in a stream a reader begins: by sequence id, transaction id, time, or at an end.

Segments are chosen by their metadata.  Within a segment entries are in order of all three, so a
few single reads find the entry, and what is in it is looked through.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from quorumbook.ids import EntryId
from quorumbook.streams.errors import PositionTruncatedError
from quorumbook.streams.format.position import FIRST_POSITION, Position
from quorumbook.streams.reading.batches import RecordBatch
from quorumbook.streams.reading.entries import entry_time_ms
from quorumbook.streams.reading.segment_reader import (
    SegmentReader,
    before_unfinished,
    open_segment,
    records_before_entry,
)
from quorumbook.streams.segments import (
    is_truncated,
    segment_of_unknown,
    start_sequence_ids,
    without_truncated,
)
from quorumbook.streams.stream_context import StreamContext

#: Where the record is not in the segment it should be in, so many more are listed at a time.
_WINDOW = 8


class SequenceId(int):
    """A record by its place in the stream, from 0."""


class TxId(int):
    """A record by its transaction id: the first with this one or a larger one."""


@runtime_checkable
class Time(Protocol):
    """A point in time, such as a ``datetime`` that knows its zone."""

    def timestamp(self) -> float:
        """Return the seconds since 1970."""
        ...


Start: TypeAlias = Position | SequenceId | TxId | Time | Literal["earliest", "latest"]


async def start_position(context: StreamContext, start: Start) -> Position | None:
    """Return where a reader begins; None: at the first record that is there.

    Raises:
        PositionTruncatedError: that record was truncated away.
    """
    if start == "earliest":
        return None
    if isinstance(start, Position):
        return start
    if start == "latest":
        return await end_position(context)
    if isinstance(start, SequenceId):
        return await find_sequence_id(context, start)
    if isinstance(start, TxId):
        return await find_txid(context, start)
    if isinstance(start, Time):
        return await find_time(context, start)
    raise TypeError(
        f"{start!r} is not a place to begin: use a Position, SequenceId, TxId, datetime, "
        "'earliest' or 'latest'"
    )


async def end_position(context: StreamContext) -> Position:
    """Return the position behind the last record that is known to be confirmed as a whole."""
    segments = await context.nodes.segments(for_writer=True)
    if not segments:
        state = await context.nodes.read_state()
        return Position(max(state.max_segment, context.first_segment), 0, 0)
    last = segments[-1]
    end = Position(last.number + 1, 0, 0)
    if last.is_in_progress:
        opened = await open_segment(context, last, -1)
        if opened is None:
            return Position(last.number, 0, 0)
        try:
            lac = await opened.ledger.read_last_add_confirmed()
        finally:
            await opened.close()
        end = Position(last.number, lac + 1, 0)
    return await before_unfinished(context, segments, end)


async def find_sequence_id(context: StreamContext, sequence_id: int) -> Position:
    """Return where the record of a sequence id is, or will be if it is the next.

    Raises:
        PositionTruncatedError: it was truncated away.
    """
    first = await _segment_with(context, sequence_id)
    segments = await context.nodes.segments(first=first, limit=1)
    for segment, start in zip(segments, start_sequence_ids(segments), strict=True):
        if segment.number == first and 0 <= sequence_id < start:
            raise PositionTruncatedError(
                f"sequence id {sequence_id} of stream {context.name} was truncated away; the "
                f"first that is left is {start}",
                first=segment.first_active,
            )

    async def is_before(opened: SegmentReader, entry_id: EntryId) -> bool:
        count, _ = await records_before_entry(opened, entry_id)
        return opened.start_sequence_id + count <= sequence_id

    def place(batch: RecordBatch) -> int:
        return max(0, sequence_id - batch.first_sequence_id)

    return await _find(context, first, is_before, place)


async def _segment_with(context: StreamContext, sequence_id: int) -> int:
    """Return the number of the segment that has a sequence id, or would have it."""
    if sequence_id < 0:
        return segment_of_unknown(sequence_id)
    return await context.nodes.first_number(
        lambda segment: (
            is_truncated(segment)
            or not segment.is_counted
            or (
                not segment.is_in_progress
                and segment.start_sequence_id + segment.record_count <= sequence_id
            )
        )
    )


async def find_txid(context: StreamContext, txid: int) -> Position:
    """Return where the first record with a transaction id, or a larger one, is or will be.

    Streams of other writers may have transaction ids out of order within a segment; then it is
    the first in one of the entries that a search among ordered ones leads to.
    """
    first_number = await context.nodes.first_number(
        lambda segment: (
            is_truncated(segment) or (not segment.is_in_progress and segment.last_txid < txid)
        )
    )

    async def is_before(opened: SegmentReader, entry_id: EntryId) -> bool:
        _, first = await records_before_entry(opened, entry_id)
        return first < txid

    def place(batch: RecordBatch) -> int:
        return next((n for n, each in enumerate(batch.txids) if each >= txid), len(batch))

    return await _find(context, first_number, is_before, place)


async def find_time(context: StreamContext, time: Time) -> Position:
    """Return where the first record is that was appended at a time or later.

    Exact where our writers wrote it; of a segment of another writer only its completion is known,
    so all of it counts as appended then.
    """
    wanted_ms = int(time.timestamp() * 1000)
    first = await context.nodes.first_number(
        lambda segment: (
            is_truncated(segment)
            or (not segment.is_in_progress and segment.completed_at_ms < wanted_ms)
        )
    )

    async def is_before(opened: SegmentReader, entry_id: EntryId) -> bool:
        entry = await opened.ledger.read_entry(entry_id)
        found = entry_time_ms(entry.payload, is_enveloped=opened.segment.is_enveloped)
        return found is not None and found < wanted_ms

    def place(batch: RecordBatch) -> int:
        time_ms = batch.appended_at_ms
        return 0 if time_ms is None or time_ms >= wanted_ms else len(batch)

    return await _find(context, first, is_before, place)


async def _find(
    context: StreamContext,
    first: int,
    is_before: Callable[[SegmentReader, EntryId], Awaitable[bool]],
    place: Callable[[RecordBatch], int],
) -> Position:
    """Look through segments until a record is due.

    Args:
        context: The stream's.
        first: The number of the segment that has the record, unless it is in the next ones.
        is_before: Whether an entry begins before the record that is looked for, or with it.
        place: Where in a batch that record is; its length: it is further on.
    """
    while True:
        segments = await context.nodes.segments(first=first, limit=_WINDOW)
        for segment, start in zip(segments, start_sequence_ids(segments), strict=True):
            if segment.number < first or is_truncated(segment):
                continue
            opened = await open_segment(context, segment, start)
            if opened is None:
                continue
            try:
                found = await _find_within(opened, is_before, place)
            finally:
                await opened.close()
            if found is not None:
                return found
            if segment is segments[-1] and segment.is_in_progress:
                return Position(segment.number, opened.next_entry, 0)
        if segments and segments[-1].number >= first:
            first = segments[-1].number + 1
            continue
        end = await end_position(context)
        # A segment that began meanwhile may have the record, before what is its end by now.
        segments = await context.nodes.segments(first=first, limit=1)
        if not segments or segments[-1].number < first:
            return end


async def _find_within(
    opened: SegmentReader,
    is_before: Callable[[SegmentReader, EntryId], Awaitable[bool]],
    place: Callable[[RecordBatch], int],
) -> Position | None:
    """Return where in a segment the record is; None if it is further on."""
    if opened.segment.is_in_progress:
        await opened.ledger.read_last_add_confirmed()
    low, high = 0, opened.ledger.last_add_confirmed
    while low < high:
        middle = (low + high + 1) // 2
        if await is_before(opened, middle):
            low = middle
        else:
            high = middle - 1
    async with contextlib.aclosing(opened.confirmed(low)) as runs:
        async for run in runs:
            for batch in run:
                found = place(batch)
                if found < len(batch):
                    segment, entry, slot = batch.first_position
                    return Position(segment, entry, slot + found)
    return None


async def place(context: StreamContext, start: Start) -> Position:
    """Return the position that a start stands for; the earliest is the first that is left."""
    position = await start_position(context, start)
    if position is not None:
        return position
    first = await context.nodes.first_number(is_truncated)
    left = without_truncated(await context.nodes.segments(first=first, limit=1))
    return left[0].first_active if left else FIRST_POSITION
