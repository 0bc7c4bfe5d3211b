"""Reads a stream by a cursor: from where it is, without what was acknowledged, alone if wanted.

Whoever asks for the next record is done with the ones before.  That is what ``auto_commit_s`` goes
by: now and then, and at the end, the cursor is moved behind what is done.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from itertools import chain

from quorumbook.client.waiting.closing import Closing
from quorumbook.client.waiting.outcomes import copy_error
from quorumbook.env import logger
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import NoSuchNodeError, QuorumbookError
from quorumbook.metadata.nodes import make_below
from quorumbook.streams.cursors.cursor import Cursor, ack_gone, commit_place
from quorumbook.streams.cursors.lag import current_position, first_record
from quorumbook.streams.errors import (
    CursorBusyError,
    CursorConflictError,
    LockLostError,
    StreamNotFoundError,
    WriterBusyError,
)
from quorumbook.streams.format.position import Position
from quorumbook.streams.metadata.lock import StreamLock
from quorumbook.streams.reading.batches import Record, RecordBatch, made_at_once
from quorumbook.streams.reading.hand_out import HandOut, Place
from quorumbook.streams.reading.reader import StreamReader, has_failed
from quorumbook.streams.segments import start_sequence_ids, without_truncated
from quorumbook.streams.stream_context import StreamContext

_log = logger("streams.cursor_reader")


class Unacknowledged:
    """What a reader reads, without what a cursor says is acknowledged."""

    def __init__(self, reader: StreamReader, cursor: Cursor, *, with_refused: bool = True) -> None:
        """Take a reader that begins at the cursor.

        Args:
            reader: Reads everything.
            cursor: Says what is acknowledged.
            with_refused: Whether records that were refused come in their places.
        """
        self._reader = reader
        self._cursor = cursor
        self._with_refused = with_refused
        acks = cursor.acks
        self._expected = None if acks is None else acks.floor
        #: Taken from the reader, which does not give it twice, and not handed out yet.
        self._taken: RecordBatch | None = None

    async def read_batches(self) -> AsyncGenerator[RecordBatch, None]:
        """Yield records as they come; called again after an error it goes on where that was."""
        async with contextlib.aclosing(self._reader.read_batches()) as batches:
            while True:
                if self._taken is None:
                    self._taken = await anext(batches, None)
                batch = self._taken
                if batch is None:
                    return
                expected, first = self._expected, batch.first_sequence_id
                if expected is not None and first > expected:
                    # Truncated away, which the reader may skip, or chunks of what it handed out as
                    # one: nobody will ever acknowledge them.
                    await ack_gone(self._cursor, expected, first - 1, batch.first_position)
                self._taken = None
                acks = self._cursor.acks
                if acks is None or first < 0:
                    yield batch
                    continue
                self._expected = batch.last_sequence_id + 1
                left = acks.gaps if self._with_refused or not acks.refused else acks.unseen
                for start, stop in left(first, len(batch)):
                    yield batch.part(start, stop)


class Progress:
    """Moves a cursor behind what is done, now and then."""

    def __init__(
        self,
        cursor: Cursor,
        interval_s: float,
        on_failed: Callable[[], None],
        catch_up: Callable[[], None],
    ) -> None:
        """Begin.

        Args:
            cursor: What is moved.
            interval_s: How often; 0: never.
            on_failed: Told that it cannot be.
            catch_up: Called before it is: says what is done by now and was not said yet.
        """
        self._cursor = cursor
        self._on_failed = on_failed
        self._catch_up = catch_up
        self._interval_s = interval_s
        self._done: Place | None = None
        #: Records that were handed out again, and are done.
        self._single: list[Record] = []
        #: Whoever returns has what was done before stored, not on its way.
        self._turn = asyncio.Lock()
        self._error: QuorumbookError | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        if interval_s:
            self._task = asyncio.ensure_future(self._run())

    def on_done(self, position: Position, sequence_id: int) -> None:
        """Remember the last record that is done."""
        self._done = position, sequence_id

    def on_done_again(self, records: Iterable[Record]) -> None:
        """Remember records that were refused before and are done now."""
        self._single += records

    def fail(self, error: QuorumbookError) -> None:
        """Remember that somebody else moved the cursor."""
        self._error = error
        self._on_failed()

    @property
    def has_failed(self) -> bool:
        """Whether somebody else moved the cursor."""
        return self._error is not None

    def check(self) -> None:
        """Raise what keeps the cursor from being moved."""
        if self._error is not None:
            raise copy_error(self._error)

    async def commit(self) -> None:
        """Move the cursor behind what is done; raises as ``Cursor.commit``."""
        async with self._turn:
            self._catch_up()
            done, self._done = self._done, None
            single, self._single = self._single, []
            try:
                if single:
                    await self._cursor.ack(*single)
                if done is not None and done[0].next > self._cursor.position:
                    await commit_place(self._cursor, *done)
            except BaseException:
                self._done = self._done or done
                self._single += single
                raise

    async def stop(self, *, commits: bool) -> None:
        """Stop moving it, after a last time if that is wanted."""
        if self._task is not None:
            # Not cancelled: of a change that is under way nobody would know whether it happened.
            self._stopping.set()
            await self._task
            self.check()
            if commits:
                await self.commit()

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._stopping.wait()
                    return
            try:
                await self.commit()
            except CursorConflictError as error:
                self.fail(error)
                return
            except QuorumbookError as error:
                _log.warning("%r is not moved: %s", self._cursor, error)


class CursorReader(Closing):
    """Reads by a cursor; made by ``Stream.reader(cursor=...)``.

    Iterate over it for records, over ``read_batches()`` for many at a time, or call ``read``: one
    after the other.  If its ``async with`` block ends without an error, all records that were
    handed out count as done.
    """

    def __init__(
        self,
        reader: StreamReader,
        cursor: Cursor,
        lock: StreamLock | None,
        auto_commit_s: float,
    ) -> None:
        """Take what ``Stream.reader`` opened."""
        self._reader = reader
        self._cursor = cursor
        self._lock = lock
        self._progress = Progress(cursor, auto_commit_s, self._stop_one_by_one, self._catch_up)
        self._source = Unacknowledged(reader, cursor)
        self._batches = self._source.read_batches()
        self._pending: asyncio.Task[RecordBatch | None] | None = None
        self._hand: HandOut[Record] = HandOut()
        #: What is in the application's hands, or done.
        self._last: Place | None = None
        self._is_lost = False
        if lock is not None:
            lock.on_lost = self._on_lock_lost

    @property
    def cursor(self) -> Cursor:
        """The cursor, to commit, to acknowledge, and to store a state."""
        return self._cursor

    def __aiter__(self) -> AsyncIterator[Record]:
        return self

    async def __anext__(self) -> Record:
        for record, _ in self._hand.records:
            return record
        found = await self.read(1, wait_s=None)
        if not found:
            raise StopAsyncIteration
        self._hand.one_by_one(iter)
        return found[0]

    async def read_batches(self) -> AsyncGenerator[RecordBatch, None]:
        """Yield records as they come, those of an entry together."""
        while True:
            self._is_done()
            if not await self._is_any_left(None):
                return
            yield self._take()

    async def read(self, max_records: int = 1000, *, wait_s: float | None = 0.5) -> list[Record]:
        """Return the next records: one at least, unless none comes in time or the end is there.

        Args:
            max_records: Return no more.
            wait_s: How long to wait for the first; None: for ever.

        Raises:
            CursorConflictError: somebody else moved the cursor.
            LockLostError: the metadata session ended, and the lock with it.
        """
        self._is_done()
        found: list[RecordBatch] = []
        missing = max_records
        while missing and await self._is_any_left(0 if found else wait_s, raises=not found):
            found.append(self._take(missing))
            missing -= len(found[-1])
        return made_at_once(chain.from_iterable(found))

    async def commit(self) -> None:
        """Move the cursor past the records that were handed out before the last call."""
        await self._progress.commit()

    async def close(self, *, is_done: bool = False) -> None:
        """Let go of everything.

        Args:
            is_done: Whether the records that were handed out last count as done.

        Raises:
            CursorConflictError: somebody else moved the cursor.
        """
        if is_done:
            self._is_done()
        self._stop_one_by_one()
        try:
            if self._pending is not None:
                await cancel_and_wait([self._pending])
            await self._batches.aclose()
            await self._reader.close()
            await self._progress.stop(commits=not self._is_lost)
        finally:
            if self._lock is not None:
                await self._lock.release()

    async def _end_block(self, error: BaseException | None) -> None:
        if error is None:
            await self.close(is_done=True)
            return
        with contextlib.suppress(QuorumbookError):
            await self.close()

    # Inside --------------------------------------------------------------------------------

    def _stop_one_by_one(self) -> None:
        self._catch_up()
        self._hand.stop()

    def _catch_up(self) -> None:
        """Count what was handed out one by one: the last is in hand, those before it are done."""
        news = self._hand.news()
        if news is not None:
            done, self._last = news
            self._progress.on_done(*done)

    def _is_done(self) -> None:
        self._catch_up()
        self._progress.check()
        if self._is_lost:
            raise LockLostError(
                f"the lock of cursor {self._cursor.name} went with the metadata session"
            )
        if self._last is not None:
            self._progress.on_done(*self._last)

    def _take(self, max_records: int | None = None) -> RecordBatch:
        part = self._hand.part(max_records)
        self._last = self._hand.place(self._hand.count - 1)
        return part

    async def _is_any_left(self, wait_s: float | None, *, raises: bool = True) -> bool:
        """Tell whether something is due; not at the end, or if nothing comes in time.

        Without ``raises`` an error is left to the next call.
        """
        if self._hand.is_over:
            if self._pending is None:
                self._pending = asyncio.ensure_future(anext(self._batches, None))
            # A batch that comes too late for this call is for the next one.
            done, _ = await asyncio.wait({self._pending}, timeout=wait_s)
            if not done or (not raises and has_failed(self._pending)):
                return False
            pending, self._pending = self._pending, None
            try:
                batch = pending.result()
            except BaseException:
                # The next try begins where this one ended.
                self._batches = self._source.read_batches()
                raise
            if batch is None:
                return False
            self._hand.begin(batch)
        return True

    def _on_lock_lost(self) -> None:
        self._is_lost = True
        self._stop_one_by_one()


async def resume_position(context: StreamContext, cursor: Cursor) -> Position:
    """Return where reading by a cursor goes on.

    Behind the last record of a segment that is gone it is the next one's first, if the cursor
    knows its sequence id: a position alone does not tell whether anything was behind it.
    """
    position = await current_position(context, cursor.position, cursor.acks)
    segments = await context.nodes.segments()
    left = without_truncated(segments)
    if not left or cursor.acks is None or left[0].first_active <= position:
        return position
    first = left[0].first_active
    sequence_id = start_sequence_ids(segments)[len(segments) - len(left)]
    if first.entry or first.slot > 0:
        found = await first_record(context, first)
        sequence_id = -1 if found is None else found.first_sequence_id
    return first if 0 <= sequence_id <= cursor.acks.floor else position


async def lock_cursor(context: StreamContext, name: str, wait_s: float | None) -> StreamLock:
    """Become the only one that reads by a cursor, as DistributedLog's readers do it.

    Raises:
        CursorBusyError: somebody else is.
        StreamNotFoundError: the cursor is gone.
    """
    context.check_writable()
    path = context.nodes.paths.subscriber_lock(name)
    try:
        await make_below(context.store, path)
    except NoSuchNodeError as error:
        raise StreamNotFoundError(f"stream {context.name} has no cursor {name}") from error
    lock = context.lock_at(path)
    try:
        await lock.acquire(wait_s=wait_s)
    except WriterBusyError as error:
        raise CursorBusyError(
            f"{error.owner} reads stream {context.name} by cursor {name} alone", owner=error.owner
        ) from error
    return lock
