"""Where a stream ends, and how far a position is behind that: in records, bytes and time."""

from __future__ import annotations

import asyncio
import contextlib
from typing import NamedTuple

from quorumbook.client.reading.entries import Entry
from quorumbook.errors import NoSuchLedgerInMetadataError
from quorumbook.ids import EntryId
from quorumbook.streams.cursors.acks import Acks
from quorumbook.streams.errors import PositionTruncatedError
from quorumbook.streams.format.control import CHUNK_SIZE_BYTES
from quorumbook.streams.format.position import Position
from quorumbook.streams.format.segment_text import SegmentMetadata
from quorumbook.streams.reading.batches import Record, RecordBatch
from quorumbook.streams.reading.entries import DecodedEntry, decode_user_records, last_record
from quorumbook.streams.reading.options import ReaderOptions
from quorumbook.streams.reading.reader import StreamReader
from quorumbook.streams.reading.seek import find_sequence_id
from quorumbook.streams.reading.segment_reader import before_unfinished, open_segment
from quorumbook.streams.segments import start_sequence_ids, without_truncated
from quorumbook.streams.stream_context import StreamContext


class Lag(NamedTuple):
    """The records that were appended and not passed yet, and that still exist."""

    #: As they were appended: a record larger than an entry, which is stored in chunks, is one.
    records: int
    #: Of the entries that the records are in, as stored.
    size_bytes: int
    #: Since the first of them was appended; None if its writer did not say when, or there is none.
    age_s: float | None


async def measure_lag(context: StreamContext, position: Position, acks: Acks | None = None) -> Lag:
    """Return what is between a position and the last record that readers can see.

    Records that are acknowledged one by one are not counted; their bytes are.

    Segments count chunks of large records as DistributedLog does, as records.  How many of them
    are no records to who appended them is in the entries behind them.  Segments of writers that
    did not say so are counted as they are, and so are merged ones; of those that lie whole behind
    the first one the end is looked at only where chunks may be a hundredth of the records.
    """
    position = await current_position(context, position, acks)
    first = await first_record(context, position)
    if first is None:
        return Lag(0, 0, None)
    segments = await context.nodes.segments(first=first.first_position.segment)
    left = [segment for segment in segments if segment.number >= first.first_position.segment]
    extents = await asyncio.gather(*(segment_extent(context, segment) for segment in left))
    size_bytes = sum(size for size, _ in extents)
    size_bytes -= await _bytes_before(context, left[0], first.entry_id)
    chunks = await asyncio.gather(
        *(
            _further_chunks(context, segment, *extent, is_sought=segment is left[0])
            for segment, extent in zip(left, extents, strict=True)
        )
    )
    records = sum(count for _, count in extents) - sum(chunks)
    records -= await _records_before(context, left[0], first.first_position)
    if acks is not None:
        records -= acks.count_from(first.first_sequence_id)
    age_s = None
    if first.appended_at_ms is not None:
        age_s = max(0, context.store.env.clock.wall_ms() - first.appended_at_ms) / 1000
    # Of a large record that is acknowledged by itself each chunk is.
    return Lag(max(0, records), size_bytes, age_s)


async def current_position(
    context: StreamContext, position: Position, acks: Acks | None
) -> Position:
    """Return where a cursor's next record is now: segments may have been merged since it moved.

    Merging gives other numbers to segments up to the last one that it made, so from there on a
    cursor's position may be an earlier record's; which one is next is told by its sequence id.
    """
    if acks is None:
        return position
    segments = without_truncated(await context.nodes.segments(first=position.segment))
    if not any(each.is_compacted for each in segments if each.number >= position.segment):
        return position
    with contextlib.suppress(PositionTruncatedError):
        return await find_sequence_id(context, acks.floor)
    return position


async def first_record(context: StreamContext, position: Position) -> RecordBatch | None:
    """Return the first record at a position or behind it, maybe with others of its entry."""
    options = ReaderOptions(tail=False, on_truncated="skip")
    async with StreamReader(context, position, options) as reader:
        async for batch in reader.read_batches():
            return batch
    return None


async def sequence_id_at(context: StreamContext, position: Position) -> int | None:
    """Return the sequence id of the first record that is, or will be, at a position or behind it.

    Returns:
        None where that cannot be known: its segment is gone, or of an old writer.
    """
    segments = await context.nodes.segments(first=position.segment)
    starts = list(zip(segments, start_sequence_ids(segments), strict=True))
    known = [each for each in starts if each[0].number <= position.segment]
    if not known:
        return None
    segment, start = known[-1]
    if start < 0 or position < segment.first_active:
        return None
    if segment.number < position.segment:
        is_end = segment is segments[-1] and not segment.is_in_progress
        is_end = is_end and position == Position(segment.number + 1, 0, 0)
        return start + segment.record_count if is_end else None
    end: int | None = None
    while True:
        found = await first_record(context, position)
        if found is not None:
            return found.first_sequence_id if found.first_sequence_id >= 0 else None
        if end is not None:  # and nothing came since it was counted
            return end
        end = start + (await segment_extent(context, segment))[1]
        last = Position(segment.number + 1, 0, 0)
        if await before_unfinished(context, [segment], last) != last:
            return None  # chunks were counted of a record that may still be completed


async def records_between(context: StreamContext, start: Position, end: Position) -> int | None:
    """Return how many records are from one position up to another; see ``measure_lag``.

    Returns:
        None where that cannot be known: a segment is gone.
    """
    if end <= start:
        return 0
    segments = await context.nodes.segments(first=start.segment)
    by_number = {each.number: each for each in segments if each.number >= start.segment}
    if not by_number or start < by_number.get(start.segment, segments[-1]).first_active:
        return None
    if end.segment not in by_number and end != Position(segments[-1].number + 1, 0, 0):
        return None
    first = by_number.get(start.segment)
    found = 0 if first is None else -await _records_before(context, first, start)
    for number, segment in by_number.items():
        if number < end.segment:
            found += await _record_count(context, segment)
        elif number == end.segment:
            found += await _records_before(context, segment, end)
    return max(0, found)


async def last_record_of(context: StreamContext) -> Record | None:
    """Return the last record that readers can see as a whole; None if there is none."""
    for segment in reversed(without_truncated(await context.nodes.segments())):
        opened = await open_segment(context, segment, -1)
        if opened is None:
            continue
        try:
            last_id = await opened.ledger.read_last_add_confirmed()
        finally:
            await opened.close()
        for entry_id in range(last_id, segment.min_active_entry - 1, -1):
            start = Position(segment.number, entry_id, 0)
            options = ReaderOptions(tail=False, on_truncated="skip")
            async with StreamReader(context, start, options) as reader:
                found = [batch async for batch in reader.read_batches()]
            if found:
                return list(found[-1])[-1]
    return None


async def segment_extent(context: StreamContext, segment: SegmentMetadata) -> tuple[int, int]:
    """Return the stored bytes and the records of a segment that readers can see."""
    if not segment.is_in_progress:
        try:
            metadata = await context.client.ledger_metadata(segment.ledger_id)
        except NoSuchLedgerInMetadataError:
            return 0, segment.record_count
        return metadata.length, segment.record_count
    opened = await open_segment(context, segment, -1)
    if opened is None:
        return 0, 0
    try:
        last_id = await opened.ledger.read_last_add_confirmed()
        if last_id < 0:
            return 0, 0
        entry = await opened.ledger.read_entry(last_id)
    finally:
        await opened.close()
    last = last_record(entry.payload, is_enveloped=segment.is_enveloped)
    return entry.length, 0 if last is None else last.position


async def _records_before(
    context: StreamContext, segment: SegmentMetadata, position: Position
) -> int:
    """Return how many records of a segment readers can see before a position in it."""
    if position <= Position(segment.number, 0, 0):
        return 0
    opened = await open_segment(context, segment, -1)
    if opened is not None:
        try:
            if position.entry <= await opened.ledger.read_last_add_confirmed():
                entry = await opened.ledger.read_entry(position.entry)
                found = _decoded(segment, entry)
                ends = [run.first_slot + len(run.payloads) for run in found.runs]
                behind = zip(found.runs, ends, strict=True)
                count = found.count_after - sum(
                    max(0, end - max(run.first_slot, position.slot)) for run, end in behind
                )
                return count if segment.is_compacted else count - found.chunks_before
        finally:
            await opened.close()
    return await _record_count(context, segment)


async def _record_count(context: StreamContext, segment: SegmentMetadata) -> int:
    size_bytes, count = await segment_extent(context, segment)
    return count - await _further_chunks(context, segment, size_bytes, count, is_sought=True)


async def _further_chunks(
    context: StreamContext,
    segment: SegmentMetadata,
    size_bytes: int,
    count: int,
    *,
    is_sought: bool,
) -> int:
    """Return how many of a segment's records that readers can see are no records of their own.

    Args:
        context: The stream's.
        segment: Which.
        size_bytes: Of what readers can see of it.
        count: How many records that is with chunks.
        is_sought: Look also where few of them can be chunks.
    """
    most = size_bytes // CHUNK_SIZE_BYTES
    if segment.is_compacted or not (most if is_sought else most * 100 >= count):
        return 0
    found = await _records_at_end(context, segment)
    if found is None:
        return 0
    chunk = found.chunk
    # What a writer left of a record when it crashed is no record, nor is one that it still writes.
    is_left = chunk is not None and chunk.number + 1 < chunk.total
    is_left = is_left and not await _goes_on(context, segment.number + 1)
    return found.chunks_after + is_left


async def _records_at_end(context: StreamContext, segment: SegmentMetadata) -> DecodedEntry | None:
    """Return the last entry with records that readers can see of a segment."""
    opened = await open_segment(context, segment, -1)
    if opened is None:
        return None
    try:
        for entry_id in range(await opened.ledger.read_last_add_confirmed(), -1, -1):
            found = _decoded(segment, await opened.ledger.read_entry(entry_id))
            if found.runs:
                return found
    finally:
        await opened.close()
    return None


async def _goes_on(context: StreamContext, number: int) -> bool:
    """Tell whether a segment begins with a further chunk of the last record before it."""
    for segment in await context.nodes.segments(first=number):
        opened = await open_segment(context, segment, -1) if segment.number == number else None
        if opened is None:
            continue
        try:
            for entry_id in range(await opened.ledger.read_last_add_confirmed() + 1):
                found = _decoded(segment, await opened.ledger.read_entry(entry_id))
                if found.runs:
                    return found.chunk is not None and found.chunk.number > 0
        finally:
            await opened.close()
    return False


def _decoded(segment: SegmentMetadata, entry: Entry) -> DecodedEntry:
    return decode_user_records(entry.payload, is_enveloped=segment.is_enveloped, count_before=-1)


async def _bytes_before(context: StreamContext, segment: SegmentMetadata, entry_id: EntryId) -> int:
    """Return how many stored bytes of a segment are before an entry."""
    opened = None if entry_id == 0 else await open_segment(context, segment, -1)
    if opened is None:
        return 0
    try:
        await opened.ledger.read_last_add_confirmed()
        return (await opened.ledger.read_entry(entry_id - 1)).length
    finally:
        await opened.close()


async def acks_at(context: StreamContext, position: Position) -> Acks | None:
    """Return what goes with a position, so that reading goes on there without its segment too."""
    floor = await sequence_id_at(context, position)
    return None if floor is None else Acks(floor)
