"""A writer's side of exactly-once appends: which of its producer's numbers are new."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from enum import Enum
from typing import Any

from quorumbook.client.reading.reader import LedgerReader
from quorumbook.env import logger
from quorumbook.errors import LocalProtocolError
from quorumbook.streams.format.names import TRANSACTION_COMPONENT
from quorumbook.streams.format.position import Position
from quorumbook.streams.format.segment_text import SegmentMetadata, Truncation
from quorumbook.streams.reading.entries import decode_user_records
from quorumbook.streams.reading.segment_reader import SegmentReader, open_segment
from quorumbook.streams.segments import start_sequence_ids
from quorumbook.streams.stream_context import StreamContext
from quorumbook.streams.writing.appended import Appended
from quorumbook.streams.writing.producers import SNAPSHOT_EVERY, Producers

_log = logger("streams.producers")
_MAX_NAME_BYTES = 200
#: Segments of other writers than ours are passed over on the way to the last snapshot.
_MAX_FOREIGN = 64


class _Found(Enum):
    """What a segment tells of producers."""

    NOTHING = "nothing"
    #: Nothing either, whoever wrote before: however many follow each other, they are passed over.
    TRANSACTION = "transaction"
    SNAPSHOT = "snapshot"


class Numbering:
    """The numbers of one producer, as its writer appends."""

    def __init__(self, producer: str, producers: Producers) -> None:
        """Begin where the producer stopped.

        Raises:
            LocalProtocolError: no producer is called that.
        """
        if not 0 < len(producer.encode()) <= _MAX_NAME_BYTES:
            raise LocalProtocolError(
                f"a producer's name must have 1 to {_MAX_NAME_BYTES} bytes, not {producer!r}"
            )
        self._producer = producer
        self._producers = producers
        #: The number of the last record that was appended, stored or not.
        self.last = producers.last_number(producer)
        #: First and last number and future of what is on its way, ascending.
        self._in_flight: deque[tuple[int, int, asyncio.Future[Any]]] = deque()

    def first_new(self, number: int | None, count: int) -> tuple[int, int]:
        """Return the number of the first of so many records, and how many are duplicates."""
        if number is None:
            return self.last + 1, 0
        if number < 0:
            raise LocalProtocolError(f"a producer's number must not be negative: {number}")
        return number, max(0, min(count, self.last + 1 - number))

    def on_appended(self, first: int, count: int, future: asyncio.Future[Any]) -> None:
        """Note that so many records are on their way."""
        self.last = first + count - 1
        while self._in_flight and self._in_flight[0][2].done():
            self._in_flight.popleft()
        self._in_flight.append((first, self.last, future))

    async def known(self, first: int, count: int) -> list[Appended]:
        """Return where duplicates are, as soon as the originals are stored."""
        last = first + count - 1
        for first_in_flight, last_in_flight, future in list(self._in_flight):
            if first_in_flight <= last <= last_in_flight:
                await asyncio.shield(future)
                break
        return [self._known(number) for number in range(first, first + count)]

    def _known(self, number: int) -> Appended:
        placement, sequence_id = self._producers.where(self._producer, number)
        if placement is None:
            return Appended(None, -1, -1, -1, duplicate=True)
        return Appended(placement.first, sequence_id, -1, placement.ledger_id, duplicate=True)


async def load_producers(context: StreamContext, next_number: int) -> Producers:
    """Read what the end of a stream, with nothing in progress, tells of producers.

    Args:
        context: The stream's.
        next_number: Of the segment that comes next.
    """
    producers = Producers()
    passed_over, back, looked_from = 0, _MAX_FOREIGN, next_number
    while True:
        segments = await context.nodes.segments(first=next_number - back)
        starts = start_sequence_ids(segments)
        due = [row for row in zip(segments, starts, strict=True) if row[0].number < looked_from]
        for segment, start in reversed(due):
            if segment.truncation is Truncation.TRUNCATED:
                return producers
            found = await _load(context, segment, start, producers)
            passed_over += found is _Found.NOTHING
            if found is _Found.SNAPSHOT or passed_over == _MAX_FOREIGN:
                return producers
            looked_from = segment.number
        if not due:
            return producers
        back *= 2


async def _load(
    context: StreamContext, segment: SegmentMetadata, start: int, producers: Producers
) -> _Found:
    """Read from the last snapshot of a segment on."""
    opened = await open_segment(context, segment, start)
    if opened is None:
        return _Found.NOTHING
    try:
        if isinstance(opened.ledger, LedgerReader):
            custom = opened.ledger.metadata.custom_metadata
            if custom.get("component") == TRANSACTION_COMPONENT:
                return _Found.TRANSACTION
        first = opened.ledger.last_add_confirmed // SNAPSHOT_EVERY * SNAPSHOT_EVERY
        if first < 0 or not await _has_snapshot(opened, first):
            return _Found.NOTHING
        async with contextlib.aclosing(opened.ledger.read_batches(first)) as batches:
            async for entries in batches:
                for entry in entries:
                    found = decode_user_records(
                        entry.payload, is_enveloped=segment.is_enveloped, count_before=-1
                    )
                    for note in found.notes:
                        slot = found.runs[0].first_slot if found.runs else 0
                        count = found.runs[0].first_position - 1 if found.runs else 0
                        where = Position(segment.number, entry.entry_id, slot)
                        producers.on_note(note, segment.ledger_id, where, start + count)
    finally:
        await opened.close()
    return _Found.SNAPSHOT


async def _has_snapshot(opened: SegmentReader, entry_id: int) -> bool:
    entry = await opened.ledger.read_entry(entry_id)
    found = decode_user_records(
        entry.payload, is_enveloped=opened.segment.is_enveloped, count_before=-1
    )
    return any(note.snapshot is not None for note in found.notes)
