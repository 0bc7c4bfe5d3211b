"""Walks through a stream: from a position on, across segments, to an end or for ever.

The list of segments is read at the start, and again when a watch rings; while a segment is written
its reader waits at bookies with long polls, and the metadata store has no traffic from it.
Completed segments that follow are read ahead (``read_ahead``).  What is missing is an error that
says what, never skipped (G1); or, if that is wanted, a gap that is handed out in its place, as one
however many entries and segments it is made of.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable, Iterator

from quorumbook.env import logger
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import NoSuchLedgerInMetadataError, QuorumbookError
from quorumbook.ids import EntryId
from quorumbook.streams.errors import DataLossError, PositionTruncatedError, ReaderIdleError
from quorumbook.streams.format.gap import Gap
from quorumbook.streams.format.position import Position
from quorumbook.streams.format.records import END_TXID
from quorumbook.streams.format.segment_text import SegmentMetadata, Truncation
from quorumbook.streams.reading.batches import RecordBatch
from quorumbook.streams.reading.chunks import Chunks
from quorumbook.streams.reading.notices import Notice
from quorumbook.streams.reading.options import ReaderOptions
from quorumbook.streams.reading.read_ahead import ReadAhead
from quorumbook.streams.reading.segment_list import Listed, SegmentList
from quorumbook.streams.reading.segment_reader import SegmentReader
from quorumbook.streams.segments import next_sequence_id
from quorumbook.streams.stream_context import StreamContext

_log = logger("streams.reader")


class StreamScanner:
    """The way of one reader through its stream."""

    def __init__(
        self, context: StreamContext, start: Position | None, options: ReaderOptions
    ) -> None:
        """Begin at a position; None: at the first record that is there."""
        self._context = context
        self._options = options
        self._next = start or Position(0, 0, 0)
        # What a reader from there says as long as it has read nothing.
        self._is_from_earliest = self._next == Position(0, 0, 0)
        self._list = SegmentList(context, allows_gap=options.on_gap == "report")
        self._ahead = ReadAhead(context, options.read_ahead_bytes)
        self._chunks = Chunks()
        #: What is missing right before the next record, if that is to be handed out.
        self._gap: Gap | None = None
        #: The same, when it is known where it ends.
        self._ended: Notice | None = None
        #: The sequence id that the next record must have, once one was read.
        self.expected = options.next_sequence_id
        #: Set while everything that is visible was read.
        self.at_tail = asyncio.Event()
        #: What bookies or the metadata store failed with when they were asked why nothing comes.
        self.unreachable: QuorumbookError | None = None
        self.appended_at_ms: int | None = None
        self._numbers = context.numbers()

    @property
    def position(self) -> Position:
        """Where the next record is, or a position before it."""
        if self._gap is not None:
            return self._gap.start
        return self._chunks.start or self._next

    @property
    def read_ahead_bytes(self) -> int:
        """What segments behind the present one take in memory."""
        return self._ahead.used_bytes

    async def stop(self) -> None:
        """Let go of everything, until it goes on."""
        await self._ahead.close()
        self._list.forget()

    def seek(self, position: Position) -> None:
        """Go on from another position."""
        self._next = position
        self._chunks.forget()
        self._gap = self._ended = None
        self._is_from_earliest = position == Position(0, 0, 0)
        self.expected = None

    def rest(self) -> RecordBatch | None:
        """Return what is missing at the end, behind all batches."""
        return None if self._gap is None else self._end_gap(self._next, self.expected)

    async def batches(self) -> AsyncGenerator[RecordBatch, None]:
        """Yield everything due."""
        while True:
            listed = await self._due_segment()
            if listed is None:
                if await self._is_over():
                    return
                if self._gap is not None:
                    yield self._end_gap(self._next, self.expected)
                await self._wait_for_change()
                continue
            segment = listed.segment
            opened = await self._ahead.take(listed)
            self._ahead.plan(self._following(segment))
            if opened is None:
                await self._explain_missing_ledger(listed)
                continue
            opened.is_lenient = self._options.on_gap == "report"
            opened.with_control = self._options.include_control
            has_end = self._options.end is not None
            try:
                async with contextlib.aclosing(self._read_segment(opened)) as runs:
                    async for run in runs:
                        for batch in run:
                            due = self._due(batch, is_compacted=segment.is_compacted)
                            if self._ended is not None:
                                ended, self._ended = self._ended, None
                                yield ended
                            if due is not None:
                                yield due
                            if has_end and self._is_beyond(max(self._next, batch.first_position)):
                                return
            except NoSuchLedgerInMetadataError:
                # It was truncated as a whole, or merged into another, while it was read.
                await self._explain_missing_ledger(listed)
                continue
            finally:
                await opened.close()
                self._ahead.done()
            following = Position(segment.number, opened.next_entry, 0)
            if opened.is_end_of_stream or self._is_beyond(following):
                return
            if not await self._is_finished(opened):
                return

    # From segment to segment ---------------------------------------------------------------

    async def _due_segment(self) -> Listed | None:
        """Return the segment in which the next record is, or will be; None: there is none yet."""
        if self._is_at_end:
            return None
        listed = None if self._list.is_stale else self._choose()
        if listed is None:
            await self._list.refresh(self._next.segment)
            listed = self._choose()
        return listed

    async def _is_over(self) -> bool:
        if self._is_at_end or not self._options.tail:
            return True
        return await self._context.nodes.max_txid() == END_TXID

    @property
    def _end(self) -> Position | None:
        """Where to stop, but for a record that began before."""
        return None if self._chunks.start is not None else self._options.end

    @property
    def _is_at_end(self) -> bool:
        return self._end is not None and self._next >= self._end

    def _is_beyond(self, position: Position) -> bool:
        return self._end is not None and position >= self._end

    def _choose(self) -> Listed | None:
        self._list.drop_before(self._next.segment)
        for listed in self._list:
            if listed.segment.truncation is not Truncation.TRUNCATED:
                self._note_hole(listed.segment.number)
                if listed.segment.first_active > self._next:
                    self._skip_to(listed)
                return listed._replace(start=self._start_of(listed))
        return None

    def _following(self, segment: SegmentMetadata) -> Iterator[Listed]:
        """Yield the completed segments behind one that are due and have no surprise in them."""
        for listed in self._list:
            other = listed.segment
            if other.number <= segment.number:
                continue
            is_whole = not other.is_in_progress and other.truncation is Truncation.ACTIVE
            if not is_whole or self._is_beyond(Position(other.number, 0, 0)):
                return
            yield listed

    def _skip_to(self, listed: Listed) -> None:
        first = listed.segment.first_active
        is_whole = first == Position(listed.segment.number, 0, 0)
        is_known = is_whole and self.expected is not None and listed.start >= 0
        if is_known and self._is_due_in(listed):
            self._next = first
            return
        is_any_due = self._is_from_earliest and self._options.next_sequence_id is None
        if not is_any_due and self._options.on_truncated == "raise":
            raise PositionTruncatedError(
                f"position {self._next} of stream {self._context.name} was truncated away; what is "
                f"left begins at {first}",
                first=first,
            )
        self._next = first
        self._chunks.forget()
        self.expected = None

    def _is_due_in(self, listed: Listed) -> bool:
        """Tell whether the record that is expected is in a segment, or behind merged ones."""
        expected = self.expected
        if expected is None or not listed.segment.is_compacted:
            return listed.start == expected
        return listed.start <= expected

    def _start_of(self, listed: Listed) -> int:
        """Return the sequence id of a segment's first record, as far as that can be known.

        Behind a segment that is in progress it can, for who has read all of that.
        """
        segment = listed.segment
        is_first = self._next <= Position(segment.number, 0, 0)
        may_follow = segment.is_in_progress and segment.is_counted
        if listed.start < 0 and may_follow and is_first and self.expected is not None:
            return self.expected
        return listed.start

    async def _read_segment(
        self, opened: SegmentReader
    ) -> AsyncGenerator[Iterable[RecordBatch], None]:
        segment = opened.segment
        first = 0
        if self._next.segment == segment.number:
            first = max(self._next.entry, segment.min_active_entry)
        if segment.is_in_progress and not self._options.tail:
            await opened.ledger.read_last_add_confirmed()
        last = self._last_due(segment)
        while True:
            try:
                async with contextlib.aclosing(opened.confirmed(first, last)) as runs:
                    async for run in runs:
                        yield run
                if last is None or self._chunks.start is None:
                    break
                first, last = last + 1, None  # a record goes on behind the end
            except DataLossError as error:
                first = self._pass_over(opened, error)
        if not segment.is_in_progress:
            return
        if self._options.tail or await self._has_successor(segment):
            async with contextlib.aclosing(self._tail(opened)) as added:
                async for each in added:
                    yield each

    def _last_due(self, segment: SegmentMetadata) -> EntryId | None:
        """Return the entry behind which nothing of a completed segment is read; None: none is.

        What is missing in front of the end is told by what comes behind it, so where that is not
        an error but a ``Gap``, it is read.
        """
        end = self._options.end
        is_in_it = end is not None and end.segment == segment.number
        if end is None or not is_in_it or segment.is_in_progress:
            return None
        return None if self._options.on_gap == "report" else end.entry

    async def _has_successor(self, segment: SegmentMetadata) -> bool:
        """Tell whether a segment is done for, although it was in progress when it was listed."""
        await self._list.refresh(self._next.segment)
        return any(
            other.number > segment.number
            or (other.number == segment.number and not other.is_in_progress)
            for other, _ in self._list
        )

    async def _tail(self, opened: SegmentReader) -> AsyncGenerator[Iterable[RecordBatch], None]:
        """Yield what a writer adds until the ledger is closed; look around when nothing comes."""
        idle_s = 0.0
        stream = opened.tail(opened.next_entry)
        pending: asyncio.Task[Iterable[RecordBatch]] | None = None
        try:
            while True:
                if self._is_beyond(Position(opened.segment.number, opened.next_entry, 0)):
                    return
                if opened.next_entry > opened.ledger.last_add_confirmed:
                    if self._gap is not None:
                        # What follows it may come at any time, or never.
                        behind = Position(opened.segment.number, opened.next_entry, 0)
                        yield [self._end_gap(behind)]
                    self.at_tail.set()
                if pending is None:
                    pending = asyncio.ensure_future(anext(stream))
                done, _ = await asyncio.wait({pending}, timeout=self._options.idle_warn_s)
                if done:
                    finished, pending, idle_s = pending, None, 0.0
                    self.at_tail.clear()
                    self.unreachable = None
                    try:
                        run = finished.result()
                    except StopAsyncIteration:
                        return
                    except DataLossError as error:
                        stream = opened.tail(self._pass_over(opened, error))
                        continue
                    yield run
                    continue
                idle_s += self._options.idle_warn_s
                idle_s = await self._look_around(opened, idle_s)
        finally:
            if pending is not None:
                await cancel_and_wait([pending])
            await stream.aclose()

    async def _look_around(self, opened: SegmentReader, idle_s: float) -> float:
        """Find out why nothing comes; return for how long that could not be told (L1)."""
        name = self._context.name
        try:
            before = opened.ledger.last_add_confirmed
            last = await opened.ledger.read_last_add_confirmed()
            await self._list.refresh(self._next.segment)
        except QuorumbookError as error:
            self.unreachable = error
            _log.warning("stream %s: no record for %g s: %s", name, idle_s, error)
            if idle_s >= self._options.idle_error_s:
                raise ReaderIdleError(
                    f"no record of stream {name} came for {idle_s:g} s, and whether there are any "
                    f"cannot be told: {error}"
                ) from error
            return idle_s
        self.unreachable = None
        if last > before:
            _log.warning("stream %s: polls brought nothing, but entry %d is there", name, last)
        return 0.0

    async def _is_finished(self, opened: SegmentReader) -> bool:
        """Wait until a segment whose ledger was read to its end is completed; False: stop here."""
        segment = opened.segment
        while True:
            if segment.is_in_progress:
                await self._list.refresh(self._next.segment)
            now = self._list.of(segment.number)
            if now is None or now.ledger_id != segment.ledger_id:
                # It was empty and was dropped, or it was truncated as a whole.
                if opened.count <= 0:
                    return True
                break
            if not now.is_in_progress:
                missing = opened.missing(now)
                if missing is not None:
                    self._lose(missing)
                    opened.count = now.record_count
                break
            if not opened.ledger.is_closed and not self._options.tail:
                return False
            if not self._options.tail:
                # Closed, and its writer is about to say so, or is gone.
                break
            await self._wait_for_change()
        expected = opened.next_sequence_id
        if expected is None and self._gap is not None and now is not None:
            expected = next_sequence_id(now)
        if expected is not None:
            self.expected = expected
        self._next = Position(segment.number + 1, 0, 0)
        return True

    # What is missing -------------------------------------------------------------------------

    def _due(self, batch: RecordBatch, *, is_compacted: bool) -> RecordBatch | None:
        """Return what is complete with what was read; None: nothing is."""
        if not is_compacted and self._is_plainly_next(batch):
            self._chunks.forget()
            self._pass(batch)
            return batch
        is_notice = isinstance(batch, Notice)
        if isinstance(batch, Notice) and isinstance(batch.item, Gap):
            return batch
        before = self._next
        due = batch.between(before, self._end)
        if due is None:
            return None
        expected = self.expected
        if is_compacted and expected is not None and due.first_sequence_id >= 0:
            # What is known by an old position lies at a later one: what comes before it was read.
            had = min(max(expected - due.first_sequence_id, 0), len(due))
            self._next = due.next_position
            if had == len(due):
                return None
            due = due.part(had, len(due))
        if not is_notice:
            self._check_dense(due, before)
        if self._gap is not None:
            if due.chunk is not None and due.chunk.number:
                # The rest of a record whose beginning is missing.
                self._next = due.next_position
                return None
            self._ended = self._end_gap(due.first_position, due.first_sequence_id)
        if is_notice:
            self._next = due.next_position
            return due
        self._pass(due)
        whole = self._chunks.feed(due)
        return whole and whole.between(Position(0, 0, 0), self._options.end)

    def _is_plainly_next(self, batch: RecordBatch) -> bool:
        """Tell whether a batch is what nearly all are: the next records, as a whole and whole."""
        return (
            batch.first_sequence_id == self.expected
            and type(batch) is RecordBatch
            and batch.chunk is None
            and self._gap is None
            and self._options.end is None
            and self._next <= batch.first_position
        )

    def _pass(self, batch: RecordBatch) -> None:
        """Go on behind records that are handed out."""
        count = len(batch.payloads)
        first = batch.first_sequence_id
        self._next = batch.next_position
        self.expected = first + count if first >= 0 else None
        self._is_from_earliest = False
        self._numbers.records_read += count
        self._numbers.batches_read += 1
        self.appended_at_ms = batch.appended_at_ms

    def _check_dense(self, batch: RecordBatch, before: Position) -> None:
        expected, found = self.expected, batch.first_sequence_id
        if found == expected or expected is None or found < 0 or self._gap is not None:
            return
        reason = (
            f"sequence ids {expected} to {found - 1} of stream {self._context.name} are "
            f"missing before position {batch.first_position}"
        )
        if found < expected:
            raise DataLossError(reason, ledger_id=batch.ledger_id)
        gap = Gap(before, batch.first_position, expected, found, reason, batch.ledger_id)
        self._lose(gap)

    def _lose(self, gap: Gap, entry_id: EntryId | None = None) -> None:
        """Raise because of what is missing, or go on behind it and remember it."""
        if self.expected is not None and self._gap is None:
            gap = gap._replace(first_sequence_id=self.expected)
        if self._options.on_gap == "raise":
            raise DataLossError(gap.reason, gap=gap, ledger_id=gap.ledger_id, entry_id=entry_id)
        _log.warning("stream %s: %s", self._context.name, gap.reason)
        part = self._chunks.first
        if part is not None and self._gap is None:
            # The record that lacks a chunk is missing as a whole.
            start, first = part.first_position, part.first_sequence_id
            gap = gap._replace(start=start, first_sequence_id=first)
        self._gap = self._gap or gap
        self._chunks.forget()
        self._next = max(self._next, gap.end)
        self._is_from_earliest = False
        self.expected = gap.next_sequence_id if gap.next_sequence_id >= 0 else None

    def _end_gap(self, position: Position, sequence_id: int | None = None) -> Notice:
        """Return what was missing, which ends at a record, or where there is none yet."""
        gap, self._gap = self._gap, None
        assert gap is not None
        behind = max(gap.start, position)
        self._next = max(self._next, behind)
        known = -1 if sequence_id is None else sequence_id
        return Notice.of_gap(gap._replace(end=behind, next_sequence_id=known))

    def _pass_over(self, opened: SegmentReader, error: DataLossError) -> EntryId:
        """Go on behind an entry that is missing on every bookie."""
        if error.gap is None or error.entry_id is None:
            raise error
        self._lose(error.gap, error.entry_id)
        opened.count = -1
        return error.entry_id + 1

    def _note_hole(self, number: int) -> None:
        """Notice that the segments before one are missing."""
        hole = self._list.hole_before(number)
        if hole is not None and self._next < hole.end:
            if self._next > hole.start:
                hole = hole._replace(start=self._next, first_sequence_id=-1)
            self._lose(hole)

    async def _explain_missing_ledger(self, listed: Listed) -> None:
        """Find out why a segment has no ledger: it was truncated, dropped, or it is lost."""
        segment = listed.segment
        await self._list.refresh(self._next.segment)
        for other, _ in self._list:
            if (
                other.ledger_id == segment.ledger_id
                and other.truncation is not Truncation.TRUNCATED
            ):
                self._lose(listed.gap_without_ledger(self._context.name, self._next))
                return

    async def _wait_for_change(self) -> None:
        self.at_tail.set()
        await self._list.wait_for_change(self._options.idle_warn_s)
        self.at_tail.clear()
