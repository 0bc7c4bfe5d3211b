"""Reads the records of one segment, and checks that none is missing."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence

from quorumbook.client.reading.entries import EntryBatch
from quorumbook.client.reading.reader import LedgerReader
from quorumbook.errors import NoSuchEntryError, NoSuchLedgerInMetadataError
from quorumbook.ids import EntryId
from quorumbook.streams.errors import CorruptRecordsError, DataLossError
from quorumbook.streams.format.gap import Gap
from quorumbook.streams.format.plain_entries import decode_plain_entry
from quorumbook.streams.format.position import Position
from quorumbook.streams.format.segment_text import UNKNOWN_SEQUENCE_ID, SegmentMetadata
from quorumbook.streams.reading.batches import RecordBatch
from quorumbook.streams.reading.entries import (
    DecodedEntry,
    control_records,
    decode_user_records,
    records_before,
)
from quorumbook.streams.reading.notices import ControlRecord, Notice
from quorumbook.streams.stream_context import StreamContext
from quorumbook.streams.tier.manifest import is_restoring
from quorumbook.streams.tier.nodes import TierNodes
from quorumbook.streams.tier.reader import PartsReader


class SegmentReader:
    """One segment, from an entry on."""

    def __init__(
        self,
        context: StreamContext,
        ledger: LedgerReader | PartsReader,
        segment: SegmentMetadata,
        start_sequence_id: int,
    ) -> None:
        """Take an open ledger; see ``open_segment``."""
        self._context = context
        self.ledger = ledger
        self.segment = segment
        #: The sequence id of its first record; below 0 if it does not tell how many come before.
        self.start_sequence_id = start_sequence_id
        #: User records before the next entry; -1 if that is not known yet.
        self.count = -1
        #: Whether the end of the stream was read.
        self.is_end_of_stream = False
        self.next_entry: EntryId = 0
        #: Whether control records are wanted, too.
        self.with_control = False
        #: Whether the reader notices by sequence ids that records are missing, and goes on.
        self.is_lenient = False
        #: Everything from the first active entry on, where it was read ahead.
        self._whole: deque[EntryBatch] | None = None

    @property
    def next_sequence_id(self) -> int | None:
        """The sequence id that the next record must have; None if that is not known."""
        if self.count < 0 or self.start_sequence_id < 0:
            return None
        return self.start_sequence_id + self.count

    async def close(self) -> None:
        """Let go of the ledger."""
        await self.ledger.close()

    async def read_whole(self) -> None:
        """Read all of a completed segment that was not truncated, for ``confirmed`` to yield."""
        first = self.segment.min_active_entry
        found: deque[EntryBatch] = deque()
        if first <= self.ledger.last_add_confirmed:
            async with contextlib.aclosing(self.ledger.read_batches(first)) as batches:
                async for batch in batches:
                    found.append(batch)
        self._whole = found

    async def _from_memory(self, whole: deque[EntryBatch]) -> AsyncGenerator[EntryBatch, None]:
        while whole:
            yield whole.popleft()

    async def confirmed(
        self, first: EntryId, last: EntryId | None = None
    ) -> AsyncGenerator[Iterator[RecordBatch], None]:
        """Yield the records of entries that are known to be confirmed.

        Args:
            first: The first entry.
            last: The last one; the last that is confirmed if not given.

        Yields:
            Those of some entries at a time, which are taken apart one by one.
        """
        confirmed = self.ledger.last_add_confirmed
        last = confirmed if last is None else min(last, confirmed)
        self._begin(first)
        if first <= last:
            whole, self._whole = self._whole, None
            if whole is not None and first == self.segment.min_active_entry:
                found = self._from_memory(whole)
            else:
                found = self.ledger.read_batches(first, last)
            async with contextlib.aclosing(found) as batches:
                async for run in self._records(batches):
                    yield run
        self.next_entry = max(self.next_entry, last + 1)

    async def tail(self, first: EntryId) -> AsyncGenerator[Iterator[RecordBatch], None]:
        """Yield likewise those from an entry on, until the ledger is closed."""
        self._begin(first)
        async with contextlib.aclosing(self.ledger.tail_batches(first)) as batches:
            async for run in self._records(batches):
                yield run

    def _begin(self, first: EntryId) -> None:
        self.next_entry = first
        if first == 0:
            self.count = 0

    async def _records(
        self, batches: AsyncGenerator[EntryBatch, None]
    ) -> AsyncGenerator[Iterator[RecordBatch], None]:
        try:
            async for entries in batches:
                yield self._taken_apart(entries)
        except NoSuchEntryError as error:
            raise self._loss_of(error) from error

    def _taken_apart(self, entries: EntryBatch) -> Iterator[RecordBatch]:
        number, ledger_id = self.segment.number, self.segment.ledger_id
        start = self.start_sequence_id
        may_be_plain = self.segment.is_enveloped and not self.with_control
        for entry_id, payload in zip(entries.entry_ids, entries.payloads, strict=True):
            plain = decode_plain_entry(payload) if may_be_plain else None
            if plain is None or self.count not in (plain.count_before, -1):
                yield from self._decode(number, ledger_id, entry_id, payload)
                continue
            before, time_ms, txids, records = plain
            self.count = before + len(records)
            self.next_entry = entry_id + 1
            sequence_id = -1 if start == UNKNOWN_SEQUENCE_ID else start + before
            position = Position(number, entry_id, 1)
            yield RecordBatch(position, sequence_id, txids, records, time_ms, ledger_id)

    def _loss_of(self, error: NoSuchEntryError) -> DataLossError:
        """Return what it means that no bookie has an entry."""
        number, ledger_id = self.segment.number, self.segment.ledger_id
        entry_id = self.next_entry if error.entry_id is None else error.entry_id
        first = self.next_sequence_id
        gap = Gap(
            start=Position(number, entry_id, 0),
            end=Position(number, entry_id + 1, 0),
            first_sequence_id=-1 if first is None else first,
            next_sequence_id=-1,
            reason=f"entry {entry_id} of segment {number} of stream {self._context.name} is "
            f"missing on every bookie: {error}",
            ledger_id=ledger_id,
        )
        return DataLossError(gap.reason, gap=gap, ledger_id=ledger_id, entry_id=entry_id)

    def _decode(
        self, number: int, ledger_id: int, entry_id: EntryId, payload: bytes
    ) -> list[RecordBatch]:
        try:
            found = self._decoded(payload)
            attributes, chunk = found.attributes, found.chunk
        except CorruptRecordsError as error:
            raise CorruptRecordsError(
                f"entry {entry_id} of segment {number} of stream {self._context.name}: {error}",
                ledger_id=ledger_id,
                entry_id=entry_id,
            ) from error
        self.count = found.count_after
        self.next_entry = entry_id + 1
        self.is_end_of_stream = self.is_end_of_stream or found.is_end_of_stream
        time_ms = found.notes[0].appended_at_ms if found.notes else None
        start = self.start_sequence_id
        batches = [
            RecordBatch(
                Position(number, entry_id, run.first_slot),
                -1 if start == UNKNOWN_SEQUENCE_ID else start + run.first_position - 1,
                run.txids,
                run.payloads,
                time_ms,
                ledger_id,
                attributes,
                chunk,
            )
            for run in found.runs
        ]
        if self.with_control:
            for slot, record in control_records(payload, is_enveloped=self.segment.is_enveloped):
                position = Position(number, entry_id, slot)
                control = ControlRecord(position, record.txid, record.payload, ledger_id)
                following = -1 if start == UNKNOWN_SEQUENCE_ID else start + record.position
                batches.append(Notice.of_control(control, following))
            batches.sort(key=lambda batch: batch.first_position)
        return batches

    def _decoded(self, payload: bytes) -> DecodedEntry:
        is_enveloped = self.segment.is_enveloped
        try:
            return decode_user_records(payload, is_enveloped=is_enveloped, count_before=self.count)
        except CorruptRecordsError:
            if not self.is_lenient or self.count < 0 or self.start_sequence_id < 0:
                raise
            return decode_user_records(payload, is_enveloped=is_enveloped, count_before=-1)

    def missing(self, completed: SegmentMetadata) -> Gap | None:
        """Return what is missing if the segment ends before the record it is said to end with."""
        if not 0 <= self.count < completed.record_count:
            return None
        start = max(completed.start_sequence_id, 0)
        first, behind = start + self.count, start + completed.record_count
        return Gap(
            start=Position(completed.number, self.next_entry, 0),
            end=Position(completed.number + 1, 0, 0),
            first_sequence_id=first,
            next_sequence_id=behind,
            reason=f"segment {completed.number} of stream {self._context.name} ends after "
            f"{self.count} records of {completed.record_count}: sequence ids {first} to "
            f"{behind - 1} are missing",
            ledger_id=completed.ledger_id,
        )


async def open_segment(
    context: StreamContext, segment: SegmentMetadata, start_sequence_id: int
) -> SegmentReader | None:
    """Open a segment for reading, from its files if its ledger is gone; None if both are."""
    client = context.client
    try:
        ledger = await client.open_ledger(
            segment.ledger_id, password=context.password, recover=False
        )
        if is_restoring(ledger.metadata):
            await ledger.close()
            return await _open_files(context, segment, start_sequence_id)
        if not segment.is_in_progress and not ledger.is_closed:
            await ledger.close()
            ledger = await client.open_ledger(segment.ledger_id, password=context.password)
    except NoSuchLedgerInMetadataError:
        return await _open_files(context, segment, start_sequence_id)
    return SegmentReader(context, ledger, segment, start_sequence_id)


async def _open_files(
    context: StreamContext, segment: SegmentMetadata, start_sequence_id: int
) -> SegmentReader | None:
    stored = await TierNodes(context.nodes).read(segment.number)
    if stored is None or not stored.manifest.is_readable:
        return None
    if stored.manifest.ledger_id != segment.ledger_id:
        return None  # another segment has the number since this one was merged
    files = PartsReader(context.store.env, stored.manifest)
    return SegmentReader(context, files, segment, start_sequence_id)


async def records_before_entry(reader: SegmentReader, entry_id: EntryId) -> tuple[int, int]:
    """Return how many user records precede an entry in its segment, and its first txid."""
    entry = await reader.ledger.read_entry(entry_id)
    return records_before(entry.payload, is_enveloped=reader.segment.is_enveloped)


async def before_unfinished(
    context: StreamContext, segments: Sequence[SegmentMetadata], end: Position
) -> Position:
    """Return where the chunks of a record begin that is not complete at an end, or that end."""
    for segment in reversed(segments):
        opened = await open_segment(context, segment, -1)
        if opened is None:
            return end
        try:
            last = await opened.ledger.read_last_add_confirmed()
            for entry_id in range(last, -1, -1):
                entry = await opened.ledger.read_entry(entry_id)
                found = decode_user_records(
                    entry.payload, is_enveloped=segment.is_enveloped, count_before=-1
                )
                if found.runs:
                    chunk = found.chunk
                    if chunk is None or chunk.number + 1 == chunk.total:
                        return end
                    return min(end, chunk.first)
        finally:
            await opened.close()
    return end
