"""The blocking writer: appends are queued by any thread and taken over by batches."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from quorumbook.client.waiting.window import ENTRY_OVERHEAD_BYTES, check_fits
from quorumbook.client.writing import writer as aio
from quorumbook.client.writing.pending import Group, frozen
from quorumbook.env import forks
from quorumbook.errors import BackpressureError, LedgerClosedError, QuorumbookError
from quorumbook.ids import FRAME_OVERHEAD_BYTES, EntryId
from quorumbook.sync.declared import blocking, held
from quorumbook.sync.futures import AppendBatchFuture, AppendFuture, Batch
from quorumbook.sync.loop import ClosingQuietly

T = TypeVar("T")


class LedgerWriter(ClosingQuietly[aio.LedgerWriter]):
    """The blocking twin of ``quorumbook.LedgerWriter``."""

    def __init__(self, writer: aio.LedgerWriter) -> None:
        """Wrap a writer that was created on the loop thread."""
        super().__init__(writer)
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._max_entries = writer.options.max_pending_entries
        self._max_bytes = writer.options.max_pending_bytes
        self._entries = 0
        self._bytes = 0
        #: Entries and bytes that were refused last: what ``drain`` waits for.
        self._refused = (1, 0)
        self._max_size = writer.options.max_frame_bytes - FRAME_OVERHEAD_BYTES
        #: Nothing is taken any more: closed, or failed.
        self._is_over = False
        self._is_closing = False
        #: Gathers what is appended until the loop thread takes it.
        self._batch = Batch()
        #: On the loop thread: what the writer's own window has no room for yet.
        self._queue: deque[Batch] = deque()
        self._pumping: asyncio.Task[None] | None = None

    # What it knows

    id = held(aio.LedgerWriter, lambda it: it.id)
    """The ledger's id."""
    options = held(aio.LedgerWriter, lambda it: it.options)
    """The options of this writer."""
    metadata = held(aio.LedgerWriter, lambda it: it.metadata)
    """The ledger's metadata as this writer last wrote it."""

    @property
    def last_add_pushed(self) -> EntryId:
        """The id of the newest entry appended so far, confirmed or not."""
        return self._run(self._last_add_pushed)

    last_add_confirmed = held(aio.LedgerWriter, lambda it: it.last_add_confirmed)
    """The newest entry that is safe, with all before it; -1 if there is none."""
    length = held(aio.LedgerWriter, lambda it: it.length)
    """How many payload bytes are confirmed."""

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be appended any more: closed, aborted or failed."""
        return self._is_closing or self._aio.is_closed

    is_degraded = held(aio.LedgerWriter, lambda it: it.is_degraded)
    """Whether writing goes on with fewer bookies than wanted."""

    @property
    def pending_entries(self) -> int:
        """How many entries were appended and are not confirmed."""
        return self._entries

    @property
    def pending_bytes(self) -> int:
        """How many bytes the window holds."""
        return max(self._bytes, self._aio.pending_bytes)

    # Appending

    def append(self, payload: bytes) -> EntryId:
        """Append an entry and wait until it is safe; see ``quorumbook.LedgerWriter``."""
        payload = frozen(payload)
        self._check_process()
        while True:
            with self._room:
                while not self._has_room(1, len(payload)) and not self.is_closed:
                    self._room.wait()
            try:
                future = self.append_nowait(payload)
            except BackpressureError:
                continue  # another thread was quicker to take the room
            return future.result()

    def append_nowait(self, payload: bytes) -> AppendFuture:
        """Append an entry and return a future of its id.

        Raises:
            BackpressureError: the window is full; call ``drain`` and try again.
            LedgerClosedError: the writer is closed, and other errors that ended it.
        """
        if type(payload) is not bytes:
            payload = frozen(payload)
        if self._process_generation != forks.generation:
            self._check_process()  # whoever held the lock during the fork holds it for ever here
        size = len(payload) + ENTRY_OVERHEAD_BYTES
        with self._lock:
            if (
                self._entries >= self._max_entries
                or self._bytes + size > self._max_bytes
                or size > self._max_size
                or self._is_over
            ):
                self._check(payload)
            self._entries += 1
            self._bytes += size
            batch = self._batch
            index = len(batch.payloads)
            batch.payloads.append(payload)
            batch.size_bytes += size
        if not index:
            self._loop_thread.loop.call_soon_threadsafe(self._take)
        return AppendFuture(batch, index)

    def append_batch(self, payloads: Iterable[bytes]) -> range:
        """Append entries with consecutive ids, wait until all are safe, and return their ids.

        Waits for room in the window first, if need be.

        Raises:
            LocalProtocolError: they are more than the window ever holds.
            LedgerError: as ``append`` says.
        """
        kept = [frozen(payload) for payload in payloads]
        size_bytes = sum(map(len, kept))
        while True:
            try:
                return self.append_batch_nowait(kept).result()
            except BackpressureError:
                with self._room:
                    while not self._has_room(len(kept), size_bytes) and not self.is_closed:
                        self._room.wait()

    def append_batch_nowait(self, payloads: Iterable[bytes]) -> AppendBatchFuture:
        """Append entries with consecutive ids and return one future of the range of ids.

        Raises:
            BackpressureError: the window has no room for them; call ``drain`` and try again.
            LedgerClosedError: the writer is closed, and other errors that ended it.
            LocalProtocolError: they are more than the window ever holds.
        """
        copies = [frozen(payload) for payload in payloads]
        if not copies:
            self._check_open()
            return AppendBatchFuture(Batch.of_nothing(self.last_add_pushed + 1), 0, 0)
        size = sum(map(len, copies))
        for payload in copies:
            aio.check_append(self._aio, payload)
        self._check_process()
        with self._lock:
            self._check_open()
            self._check_room(len(copies), size)
            size += len(copies) * ENTRY_OVERHEAD_BYTES
            self._entries += len(copies)
            self._bytes += size
            batch = self._batch
            first = len(batch.payloads)
            batch.payloads += copies
            batch.size_bytes += size
        if not first:
            self._loop_thread.loop.call_soon_threadsafe(self._take)
        return AppendBatchFuture(batch, first, len(copies))

    append_at = blocking(aio.LedgerWriter.append_at)
    """Append an entry under an id."""

    def append_at_nowait(self, entry_id: EntryId, payload: bytes) -> AppendFuture:
        """Append an entry under an id and return a future of it."""
        batch = Batch()
        batch.first_entry_id = entry_id

        async def begin() -> None:
            future = self._aio.append_at_nowait(entry_id, payload)
            future.add_done_callback(lambda outcome: batch.finish(outcome.exception()))

        self._run(begin)
        return AppendFuture(batch, 0)

    def drain(self) -> None:
        """Wait until the window has room again for what it refused last."""
        self._check_process()
        with self._room:
            self._check_open()
            (count, size_bytes), self._refused = self._refused, (1, 0)
            while not self._has_room(count, size_bytes):
                self._room.wait()
                self._check_open()

    def confirmed(self, entry_id: EntryId | None = None) -> None:
        """Wait until an entry, and all before it, are safe; everything if no id is given."""
        self._behind(lambda: self._aio.confirmed(entry_id))

    def flush(self) -> None:
        """Wait until everything appended so far is safe, and tailing readers can see it."""
        self._behind(self._aio.flush)

    def force(self) -> EntryId:
        """Have everything appended so far synced; see ``quorumbook.LedgerWriter``."""
        return self._behind(self._aio.force)

    def close(self, *, force: bool = True) -> None:
        """Wait for pending entries, then close the ledger after the last confirmed one."""
        self._check_process()
        with self._room:
            self._is_over = self._is_closing = True
            self._room.notify_all()
        self._run(lambda: self._close(force))

    def abort(self) -> None:
        """Stop at once: fail what is pending and leave the ledger open, for recovery to close."""
        self._check_process()
        with self._room:
            self._is_over = self._is_closing = True
            self._room.notify_all()
        self._run(self._aio.abort)

    def _behind(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run something behind all that was appended before."""

        async def run() -> T:
            await self._settled()
            return await work()

        return self._run(run)

    # On the calling thread, with the lock

    def _check(self, payload: bytes) -> None:
        """Raise what stands against an append."""
        self._check_open()
        aio.check_append(self._aio, payload)
        self._check_room(1, len(payload))

    def _has_room(self, count: int, size_bytes: int) -> bool:
        if not self._entries and count == 1:
            return True
        size_bytes += count * ENTRY_OVERHEAD_BYTES
        is_in = self._bytes + size_bytes <= self._max_bytes
        return is_in and self._entries + count <= self._max_entries

    def _check_room(self, count: int, size_bytes: int) -> None:
        if not self._has_room(count, size_bytes):
            check_fits(count, size_bytes, self._max_entries, self._max_bytes)
            self._refused = count, size_bytes
            raise BackpressureError(
                f"{self._entries} entries and {self._bytes} bytes are pending: no room for "
                f"{count} more with {size_bytes} bytes",
                ledger_id=self.id,
            )

    def _check_open(self) -> None:
        aio.check_append(self._aio)
        if self._is_closing:
            raise LedgerClosedError(f"ledger {self.id} is closed", ledger_id=self.id)

    # On the loop thread

    def _take(self) -> None:
        """Take what was gathered; runs once for a batch."""
        with self._lock:
            batch, self._batch = self._batch, Batch()
        if batch.payloads:
            self._queue.append(batch)
            self._pump()

    def _pump(self) -> None:
        while self._queue and self._pumping is None:
            try:
                self._send(self._queue[0])
            except BackpressureError:
                self._pumping = asyncio.ensure_future(self._wait_and_pump())
                return
            except QuorumbookError as error:
                self._finish(self._queue[0], error)
            self._queue.popleft()

    async def _wait_and_pump(self) -> None:
        await aio.wait_for_room(self._aio)
        self._pumping = None
        self._pump()

    def _send(self, batch: Batch) -> None:
        future: asyncio.Future[range] = asyncio.get_running_loop().create_future()
        batch.group = Group(batch.payloads, None, future)
        aio.append_group(self._aio, batch.group)
        batch.payloads = []

        def done(outcome: asyncio.Future[range]) -> None:
            self._finish(batch, outcome.exception())

        future.add_done_callback(done)

    def _finish(self, batch: Batch, error: BaseException | None) -> None:
        count = batch.group.count if batch.group is not None else len(batch.payloads)
        with self._room:
            self._entries -= count
            self._bytes -= batch.size_bytes
            self._is_over = self._is_over or error is not None
            self._room.notify_all()
        batch.finish(error)

    async def _close(self, force: bool) -> None:
        with contextlib.suppress(QuorumbookError):
            await self._settled()
        await self._aio.close(force=force)

    async def _settled(self) -> None:
        """Hand everything over to the writer."""
        self._take()
        while self._queue:
            await aio.wait_for_room(self._aio)
            self._pump()

    async def _last_add_pushed(self) -> EntryId:
        self._take()
        return self._aio.last_add_pushed + sum(len(batch.payloads) for batch in self._queue)
