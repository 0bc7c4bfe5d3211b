"""The blocking writer of a ledger."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from quorumbook.client.waiting.window import ENTRY_OVERHEAD_BYTES, check_fits
from quorumbook.client.writing import writer as aio
from quorumbook.client.writing.pending import frozen
from quorumbook.env import forks
from quorumbook.errors import BackpressureError, LedgerClosedError, QuorumbookError
from quorumbook.ids import FRAME_OVERHEAD_BYTES, EntryId
from quorumbook.sync.appending import Appending
from quorumbook.sync.declared import blocking, held
from quorumbook.sync.futures import AppendBatchFuture, AppendFuture, Batch, Call

T = TypeVar("T")


class LedgerWriter(Appending[aio.LedgerWriter, Batch]):
    """The blocking twin of ``quorumbook.LedgerWriter``."""

    _what = "entries"

    def __init__(self, writer: aio.LedgerWriter) -> None:
        """Wrap a writer that was created on the loop thread."""
        options = writer.options
        super().__init__(writer, options.max_pending_entries, options.max_pending_bytes)
        self._max_size = options.max_frame_bytes - FRAME_OVERHEAD_BYTES
        #: Nothing is taken any more: closed, or failed.
        self._is_over = False
        self._is_closing = False

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
    """The id of the newest entry that is safe with all before it; -1 if there is none."""
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
        return self._count

    @property
    def pending_bytes(self) -> int:
        """How many bytes the window holds."""
        return max(self._bytes, self._aio.pending_bytes)

    # Appending

    def append(self, payload: bytes) -> EntryId:
        """Append an entry and wait until it is safe; see ``quorumbook.LedgerWriter``."""
        kept = frozen(payload)
        self._check_process()
        return self._with_room(1, len(kept), lambda: self.append_nowait(kept)).result()

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
                self._appended >= self._limit
                or self._appended_bytes + size > self._limit_bytes
                or size > self._max_size
                or self._is_over
            ):
                self._check(payload)
            self._appended += 1
            self._appended_bytes += size
            batch = self._joined or self._begin()
            index = batch.count
            batch.count = index + 1
            batch.payloads.append(payload)
            batch.size_bytes += size
        return AppendFuture(batch, index)

    def append_batch(self, payloads: Iterable[bytes]) -> range:
        """Append entries with consecutive ids, wait until all are safe, and return their ids.

        If the window is full, it waits for room first.

        Raises:
            LocalProtocolError: they are more than the window ever holds.
            LedgerError: as ``append`` says.
        """
        kept = [frozen(payload) for payload in payloads]
        size_bytes = sum(map(len, kept))
        return self._with_room(
            len(kept), size_bytes, lambda: self.append_batch_nowait(kept)
        ).result()

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
            batch = Batch(self._aio)
            batch.first_entry_id = self.last_add_pushed + 1
            batch.settle(None)
            return AppendBatchFuture(batch, 0, 0)
        size = sum(map(len, copies))
        for payload in copies:
            aio.check_append(self._aio, payload)
        check_fits(len(copies), size, self._max_count, self._max_bytes)
        size += len(copies) * ENTRY_OVERHEAD_BYTES
        self._check_process()
        with self._lock:
            self._check_open()
            self._check_room(len(copies), size)
            self._appended += len(copies)
            self._appended_bytes += size
            batch = self._joined or self._begin()
            first = batch.count
            batch.count = first + len(copies)
            batch.payloads += copies
            batch.size_bytes += size
        return AppendBatchFuture(batch, first, len(copies))

    append_at = blocking(aio.LedgerWriter.append_at)
    """Append an entry under an id."""

    def append_at_nowait(self, entry_id: EntryId, payload: bytes) -> AppendFuture:
        """Append an entry under an id and return a future of it."""
        batch = Batch(self._aio)
        batch.first_entry_id = entry_id

        async def begin() -> None:
            future = self._aio.append_at_nowait(entry_id, payload)
            future.add_done_callback(batch.finish)

        self._run(begin)
        return AppendFuture(batch, 0)

    def drain(self) -> None:
        """Wait until the window has room for the append that it refused last."""
        self._check_process()
        with self._lock:
            self._check_open()
            self._wait_for_room()
            self._check_open()

    def confirmed(self, entry_id: EntryId | None = None) -> None:
        """Wait until an entry, and all before it, are safe; everything if no id is given."""
        self._after_calls(lambda: self._aio.confirmed(entry_id))

    def flush(self) -> None:
        """Wait until everything appended so far is safe, and tailing readers can see it."""
        self._after_calls(self._aio.flush)

    def force(self) -> EntryId:
        """Have everything appended so far synced; see ``quorumbook.LedgerWriter``."""
        return self._after_calls(self._aio.force)

    def close(self, *, force: bool = True) -> None:
        """Wait for pending entries, then close the ledger after the last confirmed one."""
        self._take_no_more()
        self._run(lambda: self._close(force))

    def abort(self) -> None:
        """Stop at once: pending appends fail, and the ledger stays open until it is recovered."""
        self._take_no_more()
        self._run(self._aio.abort)

    def _take_no_more(self) -> None:
        self._check_process()
        with self._lock:
            self._is_over = self._is_closing = True
            self._room.notify_all()

    def _with_room(self, count: int, size_bytes: int, append: Callable[[], T]) -> T:
        """Append as soon as there is room."""
        while True:
            try:
                return append()
            except BackpressureError:  # or another thread was quicker to take the room
                with self._lock:
                    size = size_bytes + count * ENTRY_OVERHEAD_BYTES
                    while not self._has_room(count, size) and not self.is_closed:
                        self._room.wait()

    # On the calling thread, with the lock

    def _begin(self) -> Batch:
        """Begin a batch that entries join until the loop thread takes it."""
        batch = Batch(self._aio)
        self._enqueue(batch)
        self._joined = batch
        return batch

    def _check(self, payload: bytes) -> None:
        """Raise what stands against an append."""
        self._check_open()
        aio.check_append(self._aio, payload)
        self._check_room(1, len(payload) + ENTRY_OVERHEAD_BYTES)

    def _check_open(self) -> None:
        aio.check_append(self._aio)
        if self._is_closing:
            raise LedgerClosedError(f"ledger {self.id} is closed", ledger_id=self.id)

    # On the loop thread

    def _finish(self, call: Call, outcome: asyncio.Future[Any]) -> None:
        self._is_over = self._is_over or outcome.exception() is not None
        super()._finish(call, outcome)

    async def _close(self, force: bool) -> None:
        with contextlib.suppress(QuorumbookError):
            await self._handed_over()
        await self._aio.close(force=force)

    async def _last_add_pushed(self) -> EntryId:
        self._take()
        return self._aio.last_add_pushed + sum(call.count for call in self._waiting)
