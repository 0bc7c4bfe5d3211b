"""One stream: what can be done with it, each thing in a room of its own.

``writing`` has appending, ``reading`` reading, ``cursors`` who is how far, ``retention`` the end
that is cut off, ``metadata`` what all of them go by.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any, Literal, Unpack, overload

from quorumbook.client.waiting.opening import Opening
from quorumbook.errors import LocalProtocolError, NoSuchEntryError
from quorumbook.metadata.store import Watch
from quorumbook.options import takes
from quorumbook.streams.cursors.cursor import Cursor, list_cursors, open_cursor
from quorumbook.streams.cursors.lag import Lag, last_record_of, measure_lag, records_between
from quorumbook.streams.cursors.reader import CursorReader, lock_cursor, resume_position
from quorumbook.streams.errors import StreamError, StreamSealedError, UnsupportedFormatError
from quorumbook.streams.format.position import Position
from quorumbook.streams.format.records import END_TXID
from quorumbook.streams.format.segment_text import SegmentMetadata
from quorumbook.streams.frames.parts import FramePart
from quorumbook.streams.frames.tabular import Tabular
from quorumbook.streams.metadata.policy import DEFAULTS, StreamPolicy
from quorumbook.streams.reading.batches import Record, RecordBatch
from quorumbook.streams.reading.options import ReaderOptions, ReadingKeywords, check_plain
from quorumbook.streams.reading.reader import ReportingReader, StreamReader
from quorumbook.streams.reading.seek import (
    SequenceId,
    Start,
    Time,
    end_position,
    find_sequence_id,
    find_time,
    find_txid,
    start_position,
)
from quorumbook.streams.reading.snapshot import Split, StreamSnapshot, read_split, take_snapshot
from quorumbook.streams.retention.retention import Retention, RetentionReport
from quorumbook.streams.retention.truncation import Cut, TruncatedSegment, truncate
from quorumbook.streams.schemas.having import HasSchemas
from quorumbook.streams.schemas.registering import SchemaNodes, schema_nodes
from quorumbook.streams.segments import start_sequence_ids
from quorumbook.streams.stream_context import StreamContext
from quorumbook.streams.writing.options import WriterOptions
from quorumbook.streams.writing.takeover import take_over
from quorumbook.streams.writing.writer import StreamWriter, open_writer


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One segment of a stream, as people want to see it."""

    metadata: SegmentMetadata
    #: The sequence id of its first record; below 0 if it cannot be known.
    start_sequence_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInfo:
    """What the metadata say of a stream."""

    name: str
    policy: StreamPolicy
    segments: list[Segment]
    #: Who holds the lock; empty if nobody writes.
    writer: str
    is_sealed: bool
    max_txid: int

    @property
    def record_count(self) -> int:
        """Records of the completed segments, truncated ones included."""
        return sum(segment.metadata.record_count for segment in self.segments)


class Stream(Tabular, HasSchemas):
    """A stream by its name; made by ``Namespace.stream``."""

    def __init__(self, context: StreamContext) -> None:
        """Take what it shares with its writers and readers."""
        self._context = context

    def __repr__(self) -> str:
        return f"<Stream {self.name}>"

    @property
    def name(self) -> str:
        """The stream's name, in normal form."""
        return self._context.name

    def _table_parts(self) -> list[FramePart]:
        """Return what is in a table of it: itself."""
        return [FramePart(self._context, self.name)]

    async def _schema_nodes(self) -> tuple[StreamContext, SchemaNodes]:
        """Return where its schemas are: a partition has those of its whole."""
        return self._context, await schema_nodes(self._context)

    async def info(self, on_damaged: Callable[[StreamError], None] | None = None) -> StreamInfo:
        """Return what the metadata say.

        Args:
            on_damaged: Told of each segment that cannot be read, by an error that names its node;
                the others are returned, to be shown.  None: the first such error is raised.

        Raises:
            StreamNotFoundError: there is no such stream.
        """
        nodes = self._context.nodes
        state = await nodes.read_state()
        return StreamInfo(
            name=self.name,
            policy=await self._context.policy(),
            segments=await (
                self.segments() if on_damaged is None else self.readable_segments(on_damaged)
            ),
            writer=await self._context.lock().owner(),
            is_sealed=state.max_txid == END_TXID,
            max_txid=state.max_txid,
        )

    async def policy(self) -> StreamPolicy:
        """Return the policy set for this stream alone; ``info`` has it with inherited values."""
        return await self._context.own_policy()

    async def set_policy(
        self, policy: StreamPolicy, *, expected: StreamPolicy | None = None
    ) -> None:
        """Replace the stream's own policy.

        Args:
            policy: The new policy; writers that are opened later use it.
            expected: The policy that the stream or namespace must still have; None: replace any.

        Raises:
            PolicyConflictError: somebody else changed it.
            LocalProtocolError: an application keeps data of its own in the stream's node.
            ConfigError: it contradicts what the stream inherits.
        """
        policy.over((await self._context.namespace_policy()).over(DEFAULTS))
        await self._context.set_policy(policy, expected)

    @takes(WriterOptions)
    def writer(self, **options: Any) -> Opening[StreamWriter]:
        """Become the writer: ``async with stream.writer() as writer``, or await it.

        Args:
            options: Those of ``WriterOptions``.

        Raises:
            StreamNotFoundError: there is no such stream.
            WriterBusyError: somebody else writes it.
            StreamSealedError: it was sealed.
            ConfigError: there is no such option, or its value is out of bounds.
        """
        writer_options = WriterOptions.of(options)

        return Opening(lambda: open_writer(self._context, writer_options))

    @overload
    def reader(
        self, start: Start | Cursor = ..., *, end: Position | None = ..., tail: bool = ...,
        cursor: None = ..., on_gap: Literal["raise"] = ..., include_control: Literal[False] = ...,
        **options: Unpack[ReadingKeywords],
    ) -> Opening[StreamReader]: ...  # fmt: skip
    @overload
    def reader(
        self, start: Start | Cursor = ..., *, end: Position | None = ..., tail: bool = ...,
        cursor: None = ..., on_gap: Literal["report"], include_control: bool = ...,
        **options: Unpack[ReadingKeywords],
    ) -> Opening[ReportingReader]: ...  # fmt: skip
    @overload
    def reader(
        self, start: Start | Cursor = ..., *, end: Position | None = ..., tail: bool = ...,
        cursor: None = ..., on_gap: Literal["raise"] = ..., include_control: Literal[True],
        **options: Unpack[ReadingKeywords],
    ) -> Opening[ReportingReader]: ...  # fmt: skip
    @overload
    def reader(
        self, start: Start = ..., *, end: Position | None = ..., tail: bool = ...,
        cursor: str, exclusive: bool = ..., wait_for_lock_s: float | None = ...,
        auto_commit_s: float = ..., **options: Unpack[ReadingKeywords],
    ) -> Opening[CursorReader]: ...  # fmt: skip
    def reader(
        self,
        start: Start | Cursor = "earliest",
        *,
        end: Position | None = None,
        tail: bool = True,
        on_gap: Literal["raise", "report"] = "raise",
        include_control: bool = False,
        cursor: str | None = None,
        exclusive: bool = False,
        wait_for_lock_s: float | None = 0,
        auto_commit_s: float = 0,
        **options: Unpack[ReadingKeywords],
    ) -> Opening[StreamReader] | Opening[ReportingReader] | Opening[CursorReader]:
        """Read: ``async with stream.reader() as reader``, or await it.

        Args:
            start: A Position, SequenceId, TxId or datetime, a Cursor (begin at its position),
                ``"earliest"`` or ``"latest"``.
            end: The position before which to stop.
            tail: Wait for more at the end, instead of stopping there.
            on_gap: What to do if records are missing: raise an error, or hand out a ``Gap`` that
                says which, and go on after them; not for readers with a cursor.
            include_control: Hand out control records, too; not for readers by a cursor.
            cursor: Begin at the cursor of this name, and leave out records that were acknowledged
                one by one; a new cursor begins at ``start``.
            exclusive: Be the only exclusive reader of the cursor; others wait, or get
                ``CursorBusyError``.
            wait_for_lock_s: How long to wait for another exclusive reader; None: without limit.
            auto_commit_s: How often to move the cursor past the records that are done: those that
                were handed out before the last call.  0: call ``reader.commit``, or use the cursor.
            options: Others of ``ReaderOptions``.

        Raises:
            StreamNotFoundError: there is no such stream.
            PositionTruncatedError: the record to start with was truncated.
            CursorBusyError: another reader uses the cursor exclusively.
            DataLossError: reading comes to where records are missing; its ``gap`` says which.
        """
        reader_options = ReaderOptions.of(
            {"end": end, "tail": tail, "on_gap": on_gap, "include_control": include_control}
            | options
        )
        context = self._context

        async def begin() -> Position | None:
            await context.nodes.max_txid()  # says so if there is no such stream
            if isinstance(start, Cursor):
                return await resume_position(context, start)
            return await start_position(context, start)

        async def open_reader() -> StreamReader:
            return StreamReader(context, await begin(), reader_options)

        async def open_reporting() -> ReportingReader:
            return ReportingReader(context, await begin(), reader_options)

        async def open_by_cursor(name: str) -> CursorReader:
            place = start.position if isinstance(start, Cursor) else start
            await self.cursor(name, start=place)
            lock = await lock_cursor(context, name, wait_for_lock_s) if exclusive else None
            try:
                found = await self.cursor(name)  # as whoever had the lock left it
                first = await resume_position(context, found)
            except BaseException:
                if lock is not None:
                    await lock.release()
                raise
            reader = StreamReader(context, first, reader_options)
            return CursorReader(reader, found, lock, auto_commit_s)

        if cursor is not None:
            check_plain("a reader by a cursor", reader_options.keywords())
            return Opening(lambda: open_by_cursor(cursor))
        if reader_options.has_notices:
            return Opening(open_reporting)
        return Opening(open_reader)

    async def find(
        self,
        *,
        sequence_id: int | None = None,
        txid: int | None = None,
        time: Time | None = None,
    ) -> Position:
        """Return where the first record is, or will be, that is not before the given place."""
        context = self._context
        if sequence_id is not None:
            return await find_sequence_id(context, sequence_id)
        if txid is not None:
            return await find_txid(context, txid)
        if time is not None:
            return await find_time(context, time)
        raise LocalProtocolError("give one of sequence_id, txid and time")

    async def get(self, where: Position | SequenceId) -> Record:
        """Return one record.

        Raises:
            NoSuchEntryError: there is none, or not yet.
            PositionTruncatedError: it was truncated away.
        """
        async with self.reader(where, tail=False) as reader:
            found = await reader.read(1, wait_s=None)
        if found:
            record = found[0]
            if where in (record.position, record.sequence_id):
                return record
        raise NoSuchEntryError(f"stream {self.name} has no record at {where}")

    async def first(self) -> Record | None:
        """Return the first record that is left; None if there is none."""
        async with self.reader(tail=False, on_truncated="skip") as reader:
            found = await reader.read(1, wait_s=None)
        return found[0] if found else None

    async def last(self, *, recover: bool = False) -> Record | None:
        """Return the last record that readers can see; None if there is none.

        Args:
            recover: First complete a segment that a writer left, so that the record stays the last
                one; see ``recover``.
        """
        if recover:
            await self.recover()
        return await last_record_of(self._context)

    async def count(self, start: Position | None = None, end: Position | None = None) -> int:
        """Return how many records there are, without reading most of them.

        A record in chunks counts once, except in some segments; see ``lag``.

        Args:
            start: Count from here; by default from the first record that is left.
            end: Count up to here; by default up to the last record that readers can see.

        Raises:
            UnsupportedFormatError: that cannot be known, of segments that are gone.
        """
        if start is None:
            first = await self.first()
            if first is None:
                return 0
            start = first.position
        end = await end_position(self._context) if end is None else end
        found = await records_between(self._context, start, end)
        if found is None:
            raise UnsupportedFormatError(
                f"how many records of stream {self.name} are between {start} and {end} cannot be "
                "known: a segment is gone"
            )
        return found

    async def read_range(
        self, start: Start, end: Position | None = None, *, max_bytes: int = 1 << 24
    ) -> list[Record]:
        """Return the records from one place up to another, or to the last that is there.

        Args:
            start: As for ``reader``.
            end: The position before which to stop.
            max_bytes: Return no more bytes than this, but one record at least; to get more, call
                again with the place after the last record.
        """
        async with self.reader(start, end=end, tail=False) as reader:
            return await reader.read(sys.maxsize, max_bytes, wait_s=None)

    async def lag(self, position: Position) -> Lag:
        """Return what lies between a position (for example a reader's) and the last record.

        Chunks of large records are counted as records in segments of a release that did not say
        how many there are, and in merged ones.
        """
        return await measure_lag(self._context, position)

    async def truncate(self, before: Cut, *, dry_run: bool = False) -> list[TruncatedSegment]:
        """Remove all records before a record: readers do not get them any more (T1).

        Args:
            before: The first record that stays: a Position, SequenceId, TxId or datetime.
            dry_run: Say what would be done, and do nothing.

        Returns:
            The segments that changed.
        """
        return await truncate(self._context, before, dry_run=dry_run)

    async def snapshot(self) -> StreamSnapshot:
        """Return what the stream holds now, for readers that share the work.

        Raises:
            DataLossError: a segment's ledger is gone.
        """
        return await take_snapshot(self._context)

    def read_split(self, split: Split) -> AsyncGenerator[RecordBatch, None]:
        """Yield the records of one split of a snapshot, in any process.

        Raises:
            DataLossError: something of it is gone.
        """
        return read_split(self._context, split)

    async def enforce_retention(
        self, *, dry_run: bool = False, forget_files: bool = False
    ) -> RetentionReport:
        """Delete the segments that neither the policy nor a cursor keeps, with their ledgers (T2).

        Writers do this by themselves now and then; call it for streams that nobody writes.

        Args:
            dry_run: Say what would be done, and do nothing.
            forget_files: Go on without files that are out of reach; these files may stay.

        Raises:
            AccessDeniedError: nobody may truncate the stream.
            FilesUnavailableError: some files cannot be removed; everything else was.
        """
        return await Retention(self._context).enforce(dry_run=dry_run, forget_files=forget_files)

    async def cursor(
        self, name: str, *, start: Start = "earliest", holds_retention: bool | None = None
    ) -> Cursor:
        """Return a durable named position, made if there is none.

        Args:
            name: Its name; a subscription of DistributedLog's is called so too.
            start: Where a new one is.
            holds_retention: Whether retention keeps the records that the cursor has not passed;
                None: leave it as it is (in a new cursor: no).

        Raises:
            StreamNotFoundError: there is no such stream.
            CursorConflictError: others change it at the same time.
        """
        return await open_cursor(self._context, name, start, holds_retention=holds_retention)

    async def cursors(self) -> list[Cursor]:
        """Return all cursors by name, DistributedLog's subscriptions included.

        A cursor whose node is damaged is listed with its ``damage``, and retention deletes nothing
        until it is deleted.
        """
        return await list_cursors(self._context)

    async def recover(self) -> None:
        """Fence a writer out, and complete the segment that it left, without writing anything.

        Raises:
            WriterBusyError: somebody has the lock.
        """
        lock = self._context.lock()
        await lock.acquire()
        try:
            with contextlib.suppress(StreamSealedError):
                await take_over(self._context)
        finally:
            await lock.release()

    async def watch_segments(self) -> AsyncGenerator[list[Segment], None]:
        """Yield all segments, and again whenever one is begun, completed, truncated or deleted."""
        changed = asyncio.Event()
        try:
            while True:
                changed.clear()
                yield await self._segments(changed.set)
                await changed.wait()
                self._context.store.unwatch(changed.set)
        finally:
            self._context.store.unwatch(changed.set)

    async def segments(self) -> list[Segment]:
        """Return all segments in order, truncated ones that are still there included."""
        return await self._segments(None)

    async def readable_segments(self, on_damaged: Callable[[StreamError], None]) -> list[Segment]:
        """Return the segments whose nodes can be read, to be shown.

        Args:
            on_damaged: Told of each of the others, by an error that names its node.
        """
        return _with_starts(await self._context.nodes.readable(on_damaged))

    async def _segments(self, watch: Watch | None) -> list[Segment]:
        return _with_starts(await self._context.nodes.segments(watch=watch))


def _with_starts(found: list[SegmentMetadata]) -> list[Segment]:
    return [
        Segment(metadata=metadata, start_sequence_id=start)
        for metadata, start in zip(found, start_sequence_ids(found), strict=True)
    ]
