"""The write path: from a batch of runs to what is visible and acknowledged.

Each call enqueues in the journal in the loop step in which the caller checked fence and key, so
there is one order of everything that happens to a ledger (R11).  When a group is durable its
batches are shown one after the other: write cache, last add confirmed, waiting readers, and only
then the writer's answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from quorumbook.env import logger
from quorumbook.ids import EntryId
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.storage.checkpoint.visible_ledgers import VisibleLedgers
from quorumbook.storage.journal.format import fence_record, key_record, lac_record
from quorumbook.storage.journal.group_commit import Journal
from quorumbook.storage.journal.journals import Journals, joined
from quorumbook.storage.states.ledgers import LedgerHandle

Done: TypeAlias = Callable[[BaseException | None], None]
#: Readers told of a last add confirmed in one turn of the loop.
_WOKEN_A_TURN = 64
_log = logger("storage")


class Writes:
    """Appends, fences and explicit LACs; used on the event loop.

    Args:
        journals: Make them durable.
        visible: Makes them visible.
        on_shown: Called after each batch: a cache may be full.
        on_failed: Something durable could not be shown.
    """

    def __init__(
        self,
        journals: Journals,
        visible: VisibleLedgers,
        *,
        on_shown: Callable[[], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self._journals = journals
        self._visible = visible
        self._on_shown = on_shown
        self._on_failed = on_failed
        #: Bytes handed to the journal that are not in a write cache yet.
        self.journaling_bytes = 0
        self.entries_appended = 0
        self.bytes_appended = 0

    def append(
        self, items: Sequence[tuple[LedgerHandle, EntryRun]], done: Done, *, deferred_sync: bool
    ) -> None:
        """Journal runs as one batch; see ``LedgerStorage.append``."""
        parts: dict[Journal, list[tuple[LedgerHandle, EntryRun]]] = {}
        if self._journals.is_one:
            self._append(self._journals.of(0), items, done, deferred_sync=deferred_sync)
            return
        for item in items:
            parts.setdefault(self._journals.of(item[0].ledger_id), []).append(item)
        done = joined(done, len(parts))
        for journal, part in parts.items():
            self._append(journal, part, done, deferred_sync=deferred_sync)

    def _append(
        self,
        journal: Journal,
        items: Sequence[tuple[LedgerHandle, EntryRun]],
        done: Done,
        *,
        deferred_sync: bool,
    ) -> None:
        buffers: list[bytes] = []
        size = 0
        for handle, run in items:
            if handle.key_needed:
                self._put_key(handle, buffers)
            if deferred_sync and handle.in_flight > handle.deferred_in_flight:
                # Shown before the sync it would overtake what was enqueued before it.
                deferred_sync = False
            buffers.append(run.data)
            size += len(run.data)
        for handle, _ in items:
            handle.in_flight += 1
        self.journaling_bytes += size
        if not deferred_sync:
            journal.enqueue(buffers, lambda error: self._appended(items, size, done, error))
            return
        for handle, _ in items:
            handle.deferred_in_flight += 1
        written = False

        def shown(error: BaseException | None) -> None:
            for handle, _ in items:
                handle.deferred_in_flight -= 1
            self._appended(items, size, done, error)

        def on_written() -> None:
            nonlocal written
            written = True
            shown(None)

        def on_durable(error: BaseException | None) -> None:
            if not written:
                shown(error)

        journal.enqueue(buffers, on_durable, on_written=on_written)

    def _put_key(self, handle: LedgerHandle, buffers: list[bytes]) -> None:
        """Put the key record in front of the first record of a ledger (R13)."""
        buffers.append(key_record(handle.ledger_id, handle.master_key))
        handle.put_key()
        if handle.is_stored:
            # A ledger without a key has got one; a new ledger is stored with its first record.
            self._visible.table.mark_dirty(handle)

    def _appended(
        self,
        items: Sequence[tuple[LedgerHandle, EntryRun]],
        size: int,
        done: Done,
        error: BaseException | None,
    ) -> None:
        """A batch is durable, in its turn: show it, then tell its writer."""
        self.journaling_bytes -= size
        awaited = [handle for handle, _ in items if handle.end_record()]
        if error is not None:
            for handle, _ in items:
                handle.lose_record()
            done(error)
            self._tell_arrived(awaited)
            return
        woken: list[LedgerHandle] = []
        try:
            add, now_ms = self._visible.add, self._visible.now_ms()
            for handle, run in items:
                if handle.is_deleted:
                    continue
                self.entries_appended += run.count
                if add(handle, run, now_ms) and handle.has_waiters:
                    woken.append(handle)
        except BaseException as failure:
            # Journaled and not shown: the next checkpoint's mark would skip it.
            self._on_failed(failure)
            done(failure)
            self._tell_arrived(awaited)
            raise
        self.bytes_appended += size
        for handle in woken:
            self.wake(handle)
        done(None)
        self._tell_arrived(awaited)
        self._on_shown()

    @staticmethod
    def wake(handle: LedgerHandle) -> None:
        """Call the readers whose wait for the last add confirmed is over, some in each turn."""
        woken = handle.take_woken(_WOKEN_A_TURN)
        if len(woken) == _WOKEN_A_TURN:
            asyncio.get_running_loop().call_soon(Writes.wake, handle)
        for callback in woken:
            try:
                callback()
            except Exception:
                _log.exception("a reader waiting for ledger %d failed", handle.ledger_id)

    @staticmethod
    def _tell_arrived(handles: Sequence[LedgerHandle]) -> None:
        """Call those who waited for records on their way; not within the call that ends them.

        A journal that failed has told its owner by then.
        """
        loop = asyncio.get_running_loop()
        for handle in handles:
            for callback in handle.take_arrived():
                loop.call_soon(callback)

    def fence(self, handle: LedgerHandle, done: Done) -> None:
        """Fence; see ``LedgerStorage.fence``."""
        if handle.is_fence_durable:
            done(None)
            return
        if not handle.begin_fence(done):
            return
        buffers: list[bytes] = []
        if handle.key_needed:
            self._put_key(handle, buffers)
        buffers.append(fence_record(handle.ledger_id))

        def fenced(error: BaseException | None) -> None:
            waiters = handle.take_fence_waiters()
            if error is not None:
                handle.lose_record()
            elif not handle.is_deleted:
                self._visible.set_fenced(handle)
                self._on_shown()
            for waiter in waiters:
                try:
                    waiter(error)
                except Exception:
                    _log.exception("a waiter for the fence of %d failed", handle.ledger_id)

        self._journals.of(handle.ledger_id).enqueue(buffers, fenced)

    def write_lac(self, handle: LedgerHandle, packet: bytes, lac: EntryId, done: Done) -> None:
        """Store an explicit LAC; see ``LedgerStorage.write_lac``."""
        buffers: list[bytes] = []
        if handle.key_needed:
            self._put_key(handle, buffers)
        buffers.append(lac_record(handle.ledger_id, packet))
        handle.in_flight += 1

        def stored(error: BaseException | None) -> None:
            is_awaited = handle.end_record()
            if error is not None:
                handle.lose_record()
            elif not handle.is_deleted and self._visible.set_explicit_lac(handle, packet, lac):
                self.wake(handle)
            done(error)
            if is_awaited:
                self._tell_arrived([handle])

        self._journals.of(handle.ledger_id).enqueue(buffers, stored)
