"""Reads a stream: from a position on, across segments, to an end or for ever.

The list of segments is read at the start, and again when a watch rings; while a segment is written
its reader waits at bookies with long polls, and the metadata store has no traffic from it.
Completed segments that follow are read ahead (``read_ahead``).  What is missing is an error that
says what, never skipped (G1).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Literal

from quorumbook.client.closing import Closing
from quorumbook.env import logger
from quorumbook.env.tasks import end
from quorumbook.errors import (
    LedgerClosedError,
    NoSuchLedgerInMetadataError,
    QuorumbookError,
)
from quorumbook.streams.errors import (
    DataLossError,
    PositionTruncatedError,
    ReaderIdleError,
)
from quorumbook.streams.format.position import Position
from quorumbook.streams.format.records import END_TXID
from quorumbook.streams.format.segment_text import SegmentMetadata, Truncation
from quorumbook.streams.reading.batches import Record, RecordBatch
from quorumbook.streams.reading.chunks import Chunks
from quorumbook.streams.reading.read_ahead import ReadAhead
from quorumbook.streams.reading.segment_list import Listed, SegmentList
from quorumbook.streams.reading.segment_reader import SegmentReader
from quorumbook.streams.stream_context import StreamContext

_log = logger("streams.reader")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions:
    """How a reader works.

    Attributes:
        end: The position before which to stop; None: no such.
        tail: At the end, wait for more.
        on_truncated: What to do where records that are due were truncated away.
        next_sequence_id: The sequence id that the first record must have, where the caller knows
            it.  A position right behind a segment that is gone is then not taken for a hole.
        idle_warn_s: After so long without a record look at metadata and bookies again.
        idle_error_s: After so long in which those could not be asked, raise ReaderIdleError.
        read_ahead_bytes: What completed segments behind the present one may take in memory; the
            present one has the client's option of the same name for itself.
    """

    end: Position | None = None
    tail: bool = True
    on_truncated: Literal["raise", "skip"] = "raise"
    next_sequence_id: int | None = None
    idle_warn_s: float = 120.0
    idle_error_s: float = 600.0
    read_ahead_bytes: int = 16 * 1024 * 1024


class StreamReader(Closing):
    """Reads a stream; made by ``Stream.reader``.

    Iterate over it for records, over ``batches()`` for many at a time, or call ``read`` for a
    chunk; one after the other, not at the same time.
    """

    def __init__(
        self, context: StreamContext, start: Position | None, options: ReaderOptions
    ) -> None:
        """Begin at a position; None: at the first record that is there."""
        self._context = context
        self._options = options
        self._next = start or Position(0, 0, 0)
        # What a reader from there says as long as it has read nothing.
        self._is_from_earliest = self._next == Position(0, 0, 0)
        self._list = SegmentList(context)
        self._ahead = ReadAhead(context, options.read_ahead_bytes)
        self._chunks = Chunks()
        #: The sequence id that the next record must have, once one was read.
        self._expected = options.next_sequence_id
        self._stream: AsyncGenerator[RecordBatch, None] | None = None
        #: What was read and is being handed out record by record.
        self._batch: RecordBatch | None = None
        self._handed_out = 0
        self._records: Iterator[Record] | None = None
        self._pending: asyncio.Task[RecordBatch] | None = None
        self._is_closed = False
        #: Set while everything that is visible was read.
        self._at_tail = asyncio.Event()
        #: What bookies or the metadata store failed with when they were asked why nothing comes.
        self._unreachable: QuorumbookError | None = None
        self._appended_at_ms: int | None = None
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
            await end([pending])
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()
        self._hold(None, 0)
        await self._ahead.close()
        self._list.forget()

    # Reading -------------------------------------------------------------------------------

    @property
    def caught_up(self) -> bool:
        """Whether everything that was visible has been handed out."""
        return self._at_tail.is_set() and self._batch is None

    @property
    def read_ahead_bytes(self) -> int:
        """What segments behind the present one take in memory."""
        return self._ahead.used_bytes

    @property
    def lag_s(self) -> float:
        """How long ago what was read last was appended; 0 at the end, and where nobody said."""
        if self._at_tail.is_set() or self._appended_at_ms is None:
            return 0.0
        now_ms = self._context.store.env.clock.wall_ms()
        return max(0, now_ms - self._appended_at_ms) / 1000

    @property
    def idle_reason(self) -> str:
        """Why no record comes, ``caught_up`` or ``unreachable``; empty while some do."""
        if self._unreachable is not None:
            return "unreachable"
        return "caught_up" if self._at_tail.is_set() else ""

    @property
    def position(self) -> Position:
        """Where the next record to be handed out is, or a position before it."""
        if self._batch is None:
            return self._chunks.start or self._next
        segment, entry, slot = self._batch.first_position
        return Position(segment, entry, slot + self._handed_out)

    @property
    def next_sequence_id(self) -> int | None:
        """The sequence id that the next record must have; None if that is not known."""
        if self._batch is not None and self._batch.first_sequence_id >= 0:
            return self._batch.first_sequence_id + self._handed_out
        return self._expected

    def __aiter__(self) -> AsyncIterator[Record]:
        return self

    async def __anext__(self) -> Record:
        while True:
            if self._records is not None:
                for record in self._records:
                    self._handed_out += 1
                    return record
            batch = await self._take(None)
            if batch is None:
                raise StopAsyncIteration
            self._hold(batch, 0)

    def _hold(self, batch: RecordBatch | None, handed_out: int) -> None:
        """Keep what of a batch was not handed out."""
        self._batch, self._handed_out = batch, handed_out
        self._records = None if batch is None else iter(batch)

    async def batches(self) -> AsyncGenerator[RecordBatch, None]:
        """Yield records as they come, those of an entry together."""
        while True:
            batch = await self._take(None)
            if batch is None:
                return
            yield batch

    async def read(
        self, max_records: int = 1000, max_bytes: int = 1 << 20, *, wait_s: float | None = 0.5
    ) -> list[Record]:
        """Return the next records: one at least, unless none comes in time or the end is there.

        Args:
            max_records: Return no more …
            max_bytes: … and no more bytes; one record is returned however large it is.
            wait_s: How long to wait for the first; None: for ever.  What is visible behind it is
                returned too.
        """
        found: list[Record] = []
        size = 0
        while len(found) < max_records and size < max_bytes:
            batch = await (self._take(wait_s) if not found else self._take_ready())
            if batch is None:
                break
            for number, record in enumerate(batch):
                if found and (len(found) == max_records or size + len(record.payload) > max_bytes):
                    self._hold(batch.part(number, len(batch)), 0)
                    return found
                found.append(record)
                size += len(record.payload)
        return found

    async def seek(self, position: Position) -> None:
        """Go on from another position."""
        await self._reset()
        self._next = position
        self._chunks.forget()
        self._is_from_earliest = position == Position(0, 0, 0)
        self._expected = None

    async def _take_ready(self) -> RecordBatch | None:
        """Return the next batch; None if there is none that is visible by now."""
        if self._pending is None and self._batch is None:
            batch = await self._take(0)
            if batch is not None or self._pending is None:
                return batch
        elif self._pending is None:
            return await self._take(0)
        tail = asyncio.ensure_future(self._at_tail.wait())
        await asyncio.wait({self._pending, tail}, return_when=asyncio.FIRST_COMPLETED)
        tail.cancel()
        return await self._take(0) if self._pending.done() else None

    async def _take(self, wait_s: float | None) -> RecordBatch | None:
        """Return the next batch; None at the end, or if none comes in time."""
        batch, handed_out = self._batch, self._handed_out
        self._hold(None, 0)
        if batch is not None and handed_out < len(batch):
            return batch.part(handed_out, len(batch))
        if self._is_closed:
            raise LedgerClosedError("this reader is closed")
        if self._pending is None:
            if self._stream is None:
                self._stream = self._read()
            if wait_s is None:
                try:
                    return await anext(self._stream, None)
                except BaseException:
                    self._stream = None  # whoever tries again begins where this ended
                    raise
            self._pending = asyncio.ensure_future(anext(self._stream))
        # A batch that comes too late for this call is for the next one.
        done, _ = await asyncio.wait({self._pending}, timeout=wait_s)
        if not done:
            return None
        pending, self._pending = self._pending, None
        try:
            return pending.result()
        except StopAsyncIteration:
            return None
        except BaseException:
            self._stream = None
            raise

    # Inside: from segment to segment -------------------------------------------------------

    async def _read(self) -> AsyncGenerator[RecordBatch, None]:
        """Yield everything due."""
        while True:
            listed = await self._due_segment()
            if listed is None:
                return
            segment = listed.segment
            opened = await self._ahead.take(listed)
            self._ahead.plan(self._following(segment))
            if opened is None:
                await self._explain_missing_ledger(segment)
                continue
            try:
                async with contextlib.aclosing(self._read_segment(opened)) as batches:
                    async for batch in batches:
                        due = self._due_part(batch, is_compacted=segment.is_compacted)
                        if due is not None:
                            yield due
                        if self._is_at_end or self._is_beyond(batch.first_position):
                            return
            except NoSuchLedgerInMetadataError:
                # It was truncated as a whole, or merged into another, while it was read.
                await self._explain_missing_ledger(segment)
                continue
            finally:
                await opened.close()
                self._ahead.done()
            following = Position(segment.number, opened.next_entry, 0)
            if opened.is_end_of_stream or self._is_beyond(following):
                return
            if not await self._is_finished(opened):
                return

    async def _due_segment(self) -> Listed | None:
        """Return the segment in which the next record is, or will be; None at the end."""
        while not self._is_at_end:
            listed = None if self._list.is_stale else self._choose()
            if listed is None:
                await self._list.refresh(self._next.segment)
                listed = self._choose()
            if listed is not None:
                return listed
            if await self._context.nodes.max_txid() == END_TXID or not self._options.tail:
                return None
            await self._wait_for_change()
        return None

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
        is_known = is_whole and self._expected is not None and listed.start >= 0
        if is_known and self._is_due_in(listed):
            self._next = first
            return
        is_any_due = self._is_from_earliest and self._options.next_sequence_id is None
        if not is_any_due and self._options.on_truncated == "raise":
            raise PositionTruncatedError(
                f"position {self._next} of stream {self._context.name} was truncated away; what is "
                f"left begins at {first}"
            )
        self._next = first
        self._chunks.forget()
        self._expected = None

    def _is_due_in(self, listed: Listed) -> bool:
        """Tell whether the record that is expected is in a segment, or behind merged ones."""
        expected = self._expected
        if expected is None or not listed.segment.is_compacted:
            return listed.start == expected
        return listed.start <= expected

    def _start_of(self, listed: Listed) -> int:
        is_first = self._next <= Position(listed.segment.number, 0, 0)
        if listed.start < 0 and is_first and self._expected is not None:
            return self._expected
        return listed.start

    async def _read_segment(self, opened: SegmentReader) -> AsyncGenerator[RecordBatch, None]:
        segment = opened.segment
        first = 0
        if self._next.segment == segment.number:
            first = max(self._next.entry, segment.min_active_entry)
        if segment.is_in_progress and not self._options.tail:
            await opened.ledger.read_last_add_confirmed()
        async with contextlib.aclosing(opened.confirmed(first)) as batches:
            async for batch in batches:
                yield batch
        if not segment.is_in_progress:
            return
        if self._options.tail or await self._has_successor(segment):
            async with contextlib.aclosing(self._tail(opened)) as batches:
                async for batch in batches:
                    yield batch

    async def _has_successor(self, segment: SegmentMetadata) -> bool:
        """Tell whether a segment is done for, although it was in progress when it was listed."""
        await self._list.refresh(self._next.segment)
        return any(
            other.number > segment.number
            or (other.number == segment.number and not other.is_in_progress)
            for other, _ in self._list
        )

    async def _tail(self, opened: SegmentReader) -> AsyncGenerator[RecordBatch, None]:
        """Yield what a writer adds until the ledger is closed; look around when nothing comes."""
        idle_s = 0.0
        stream = opened.tail(opened.next_entry)
        pending: asyncio.Task[RecordBatch] | None = None
        try:
            while True:
                if self._is_beyond(Position(opened.segment.number, opened.next_entry, 0)):
                    return
                if pending is None:
                    pending = asyncio.ensure_future(anext(stream))
                if opened.next_entry > opened.ledger.last_add_confirmed:
                    self._at_tail.set()
                done, _ = await asyncio.wait({pending}, timeout=self._options.idle_warn_s)
                if done:
                    finished, pending, idle_s = pending, None, 0.0
                    self._at_tail.clear()
                    self._unreachable = None
                    try:
                        batch = finished.result()
                    except StopAsyncIteration:
                        return
                    yield batch
                    continue
                idle_s += self._options.idle_warn_s
                idle_s = await self._look_around(opened, idle_s)
        finally:
            if pending is not None:
                await end([pending])
            await stream.aclose()

    async def _look_around(self, opened: SegmentReader, idle_s: float) -> float:
        """Find out why nothing comes; return for how long that could not be told (L1)."""
        name = self._context.name
        try:
            before = opened.ledger.last_add_confirmed
            last = await opened.ledger.read_last_add_confirmed()
            await self._list.refresh(self._next.segment)
        except QuorumbookError as error:
            self._unreachable = error
            _log.warning("stream %s: no record for %g s: %s", name, idle_s, error)
            if idle_s >= self._options.idle_error_s:
                raise ReaderIdleError(
                    f"no record of stream {name} came for {idle_s:g} s, and whether there are any "
                    f"cannot be told: {error}"
                ) from error
            return idle_s
        self._unreachable = None
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
                opened.check_complete(now)
                break
            if not opened.ledger.is_closed and not self._options.tail:
                return False
            if not self._options.tail:
                # Closed, and its writer is about to say so, or is gone.
                break
            await self._wait_for_change()
        expected = opened.next_sequence_id
        if expected is not None:
            self._expected = expected
        self._next = Position(segment.number + 1, 0, 0)
        return True

    # Inside: checks ------------------------------------------------------------------------

    def _due_part(self, batch: RecordBatch, *, is_compacted: bool) -> RecordBatch | None:
        """Return what is complete with what was read; None: nothing is."""
        due = batch.between(self._next, self._end)
        if due is None:
            return None
        if is_compacted and self._expected is not None and due.first_sequence_id >= 0:
            # What is known by an old position lies at a later one: what comes before it was read.
            had = min(max(self._expected - due.first_sequence_id, 0), len(due))
            self._next = due.next_position
            if had == len(due):
                return None
            due = due.part(had, len(due))
        self._check_dense(due)
        self._next = due.next_position
        self._numbers.records_read += len(due)
        self._numbers.batches_read += 1
        self._appended_at_ms = due.appended_at_ms
        whole = self._chunks.feed(due)
        return whole and whole.between(Position(0, 0, 0), self._options.end)

    def _check_dense(self, batch: RecordBatch) -> None:
        expected, found = self._expected, batch.first_sequence_id
        if expected is not None and found >= 0 and found != expected:
            raise DataLossError(
                f"sequence ids {expected} to {found - 1} of stream {self._context.name} are "
                f"missing before position {batch.first_position}",
                ledger_id=batch.ledger_id,
            )
        self._expected = batch.last_sequence_id + 1 if found >= 0 else None
        self._is_from_earliest = False

    async def _explain_missing_ledger(self, segment: SegmentMetadata) -> None:
        """Find out why a segment has no ledger: it was truncated, dropped, or it is lost."""
        await self._list.refresh(self._next.segment)
        for other, _ in self._list:
            if (
                other.ledger_id == segment.ledger_id
                and other.truncation is not Truncation.TRUNCATED
            ):
                raise DataLossError(
                    f"the ledger {segment.ledger_id} of segment {segment.number} of stream "
                    f"{self._context.name} is gone",
                    ledger_id=segment.ledger_id,
                )

    async def _wait_for_change(self) -> None:
        self._at_tail.set()
        await self._list.wait_for_change(self._options.idle_warn_s)
        self._at_tail.clear()
