"""The storage of a bookie behind one facade; all methods are called on the event loop.

Life of an entry:

    append ── journal, one write and sync for a group ── durable ── write cache, LAC, waiters,
    answer ── flush: entry log, index, marks ── old journals go

An entry is unknown to reads and flushes until its group is durable (deferred sync: written).
The caller checks fence and key with the handle and calls ``append`` in the same loop step.

Left to others: which ledgers exist in the cluster, cookies' meaning, answers on the wire
(``bookie``); what is visible and when that is made durable (``checkpoint``); the files
(``journal``, ``entrylog``, ``index``); disk reads (``reading``); start and replay (``startup``).
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from quorumbook.env import DiskUsage, Env, logger, run_job
from quorumbook.errors import InternalError, StorageError
from quorumbook.ids import INVALID_ENTRY_ID, EntryId, LedgerId
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.storage.checkpoint.schedule import Flusher
from quorumbook.storage.directories.places import Directories
from quorumbook.storage.directories.unclean import mark_stopped
from quorumbook.storage.entrylog.reader import DEFAULT_OPEN_FILES
from quorumbook.storage.gc.gc_storage import GcStorage
from quorumbook.storage.gc.logs import EntryLogKeeper
from quorumbook.storage.index.place import IndexPlace
from quorumbook.storage.journal.journals import Journals
from quorumbook.storage.journal.marks import Marks
from quorumbook.storage.numbers import counters, sync_times
from quorumbook.storage.opening import StorageOwner, StorageParts, open_parts
from quorumbook.storage.options import Damage, StorageOptions
from quorumbook.storage.reading.peeking import Peeks
from quorumbook.storage.reading.reads import BatchDone, StorageReads
from quorumbook.storage.scrub.scrub_storage import ScrubStorage
from quorumbook.storage.states.ledgers import LedgerHandle
from quorumbook.storage.times import JobTimes
from quorumbook.storage.writes import Done, Writes

_DAMAGE_LIMIT = 10_000
T = TypeVar("T")
_log = logger("storage")


class LedgerStorage:
    """What a bookie keeps; made by ``open``."""

    def __init__(self, parts: StorageParts, options: StorageOptions, told: StorageOwner) -> None:
        """Take what was opened; ``open`` makes one."""
        env, directories, opened = parts.env, parts.directories, parts.opened
        self._env, self._told = env, told
        self.options = options
        self.directories = directories
        self._indexes, self._caches = parts.indexes, parts.caches
        self._opened = opened
        self._visible = opened.visible
        #: What the start found.
        self.report = opened.report
        #: A start with doubts is not over: nothing may be deleted.
        self.needs_limbo_start = opened.report.needs_limbo_start
        self._room_callbacks: deque[Callable[[], None]] = deque()
        self._damaged: deque[Damage] = deque(maxlen=_DAMAGE_LIMIT)
        self._fatal: BaseException | None = None
        self._is_open = True
        self._is_evicting = False
        self._flush_worker = parts.flush_worker
        self._read_worker = env.threads.start_worker("storage-read")
        self._journals = Journals(
            env, directories.journals, marks=opened.marks,
            file_size_bytes=options.journal_file_size_bytes,
            group_size_bytes_max=options.journal_group_size_bytes,
            on_failed=self._fail, on_group=told.on_group, on_told=told.on_told,
        )  # fmt: skip
        self._flusher = self._open_flusher()
        self._writes = Writes(
            self._journals, opened.visible,
            on_shown=self._flusher.flush_if_full, on_failed=self._fail,
        )  # fmt: skip
        self._read_index = opened.index.another()
        self._log_reader, self._peek_reader = parts.readers
        self._reads = self._open_reads()
        #: Counts, removes and compacts.
        self.gc = self._open_gc()
        #: Reads everything again, and keeps record of what is damaged.
        self.scrub = ScrubStorage(
            env, directories.ledgers, opened.index, self._flush_worker,
            on_changed=self._reads.forget_places, reopen=self._reopen_log,
        )  # fmt: skip
        opened.checkpointer.on_stretch = self._keep
        self._flusher.start(opened.pending)

    # Life cycle

    @classmethod
    async def open(
        cls,
        env: Env,
        *,
        journal_directories: Sequence[str],
        ledger_directories: Sequence[str],
        options: StorageOptions | None = None,
        told: StorageOwner | None = None,
        index_path: str | None = None,
        other_directories: Sequence[str] = (),
        open_files_max: int = DEFAULT_OPEN_FILES,
        indexes: IndexPlace | None = None,
    ) -> LedgerStorage:
        """Lock the directories, replay the journal, flush everything; then the storage serves.

        Args:
            env: The outside world.
            journal_directories: Where journals go (below each, ``current/``).
            ledger_directories: Where entry logs go (below each, ``current/``); the index lives in
                the first one.
            options: Sizes and times.
            told: Who hears of a full or failed disk.
            index_path: Another place for the index file.
            other_directories: Locked as well, and not used.
            open_files_max: Entry logs that are kept open for reading.
            indexes: Where the index is kept; not as a file of the machine's in a simulation.

        Raises:
            DirectoryLockedError: Another bookie runs on a directory.
            CorruptJournalError, CorruptIndexError, CorruptStateError: Refused, the message says
                where and what helps.
        """
        options = options or StorageOptions()
        directories = Directories(
            env, journal_directories, ledger_directories, index_path, other_directories
        )
        parts = await open_parts(env, directories, options, open_files_max, indexes or IndexPlace())
        return cls(parts, options, told or StorageOwner())

    def _open_flusher(self) -> Flusher:
        return Flusher(
            self._flush_worker, self._opened.checkpointer, self._visible, self._caches,
            marks=self._journals.durable_marks, options=self.options,
            random_below=self._env.random.randrange, sleep=self._env.threads.sleep,
            on_settled=self._settled, on_full=self._told.on_full, on_fatal=self._fail,
        )  # fmt: skip

    def _open_reads(self) -> StorageReads:
        return StorageReads(
            self._read_worker, self._read_index, self._log_reader.read,
            now_ns=self._env.clock.now_ns, peeks=Peeks(self._peek_reader), caches=self._caches,
            handle=self.handle, on_damage=self.note_damage,
            read_ahead_size_bytes=self.options.read_ahead_size_bytes,
        )  # fmt: skip

    def _open_gc(self) -> GcStorage:
        opened, directories = self._opened, self.directories
        keeper = EntryLogKeeper(
            self._env, directories.ledgers, opened.index, opened.entry_logs, opened.checkpointer
        )
        return GcStorage(
            self._env, directories.ledgers, opened.index.another(), keeper, self._flush_worker,
            visible=opened.visible,
            forget=lambda ledger_ids: self._forgotten(opened.visible.delete(ledger_ids)),
            empty=lambda ledger_ids: self._forgotten(opened.visible.empty(ledger_ids)),
            forget_logs=self._forget_logs,
        )  # fmt: skip

    @property
    def is_open(self) -> bool:
        """Whether ``stop`` was not called yet."""
        return self._is_open

    async def stop(self) -> None:
        """Flush, close all files and release the locks; safe to call twice.

        Raises:
            StorageError: The last flush failed; nothing is lost, the next start replays it.
        """
        if not self._is_open:
            return
        self._is_open = False
        await self._journals.stop()
        error = await self._flusher.stop(flush=self._fatal is None)
        if self._fatal is None and error is None:
            try:
                await run_job(self._flush_worker, self._finish_files)
            except StorageError as failure:
                error = failure
        self._read_worker.stop()
        self._flush_worker.stop()
        self.gc.close()
        self.scrub.close()
        self._close_files()
        if error is not None:
            raise error

    def _finish_files(self) -> None:
        self._opened.checkpointer.journals.release_all()
        self._opened.entry_logs.close()
        self._opened.index.truncate_wal()
        mark_stopped(self._env.disk, self.directories.ledgers)

    def _close_files(self) -> None:
        self._log_reader.close()
        self._peek_reader.close()
        for index in (self._read_index, self._opened.loop_index, self._opened.index):
            index.close()
        self.directories.release()

    def _keep(self, run: EntryRun) -> None:
        """Take a stretch from the flush worker, one at a time: they never pile up beside it."""
        self._flush_worker.call_on_loop(lambda: self._visible.keep(run))

    def _fail(self, error: BaseException) -> None:
        """Say once that no promise can be kept any more."""
        if self._fatal is not None:
            return
        self._fatal = error
        self._flusher.halt()
        self._reads.doubt(error)
        _log.critical("the storage stops: %s", error)
        self._told.on_fatal(error)

    # Ledgers

    def handle(self, ledger_id: LedgerId) -> LedgerHandle | None:
        """Return the one handle of a ledger, None if this bookie knows nothing of it."""
        table = self._visible.table
        if table.is_over_limit and not self._is_evicting:
            # Not now: the caller may hold handles that nothing marks as used yet.
            self._is_evicting = True
            asyncio.get_running_loop().call_soon(self._evict)
        return table.get(ledger_id)

    def _evict(self) -> None:
        table = self._visible.table
        table.evict()
        self._is_evicting = table.is_over_limit
        if self._is_evicting:
            asyncio.get_running_loop().call_soon(self._evict)

    def create_handle(self, ledger_id: LedgerId, master_key: bytes) -> LedgerHandle:
        """Make the handle of a ledger that ``handle`` does not know.

        Nothing is stored yet: the key record goes in front of the first record of the ledger.
        """
        return self._visible.create(ledger_id, master_key)

    # Writing

    def append(
        self,
        items: Sequence[tuple[LedgerHandle, EntryRun]],
        done: Done,
        *,
        deferred_sync: bool = False,
    ) -> None:
        """Journal runs of entries as one batch; fence and key were checked in this loop step.

        When the group is durable (``deferred_sync``: written) the entries become readable, the
        LAC rises, waiters wake, and then ``done(None)`` is called; ``done(error)`` means that
        nothing may be acknowledged.  Batches are done in the order of the calls.
        """
        self._writes.append(items, done, deferred_sync=deferred_sync)

    def fence(self, handle: LedgerHandle, done: Done) -> None:
        """Refuse normal adds from now on; ``done`` when that is durable.

        A second fence waits for the first; if its record could not be journaled, it tries
        again.  On a ledger fenced long ago ``done`` is called before this returns.
        """
        self._writes.fence(handle, done)

    def write_lac(self, handle: LedgerHandle, packet: bytes, lac: EntryId, done: Done) -> None:
        """Store an explicit LAC packet verbatim unless a higher one is stored; then ``done``."""
        self._writes.write_lac(handle, packet, lac, done)

    def force(self, done: Done) -> None:
        """Call ``done`` when everything appended so far is durable."""
        self._journals.force(done)

    # Room

    def has_room(self, size_bytes: int, *, reserve: bool = False) -> bool:
        """Tell whether an append of this size fits now; ``reserve`` is for recovery adds.

        Counted: write caches and what the journal still holds.  An empty storage always has
        room for one append.
        """
        used = self._unflushed_bytes
        limit = 2 * self.options.write_cache_size_bytes
        if reserve:
            limit += self.options.reserve_size_bytes
        return used + size_bytes <= limit or used == 0

    @property
    def has_much_room(self) -> bool:
        """Tell whether more than an eighth is free, which those who append much leave to others."""
        return self._unflushed_bytes <= self.options.write_cache_size_bytes * 7 // 4

    @property
    def _unflushed_bytes(self) -> int:
        return self._caches.unflushed_bytes + self._writes.journaling_bytes

    def on_room(self, callback: Callable[[], None]) -> None:
        """Call back once, on the loop, when room may have appeared."""
        self._room_callbacks.append(callback)
        self._flusher.is_room_wanted = True
        self._flusher.flush_if_full()

    @property
    def is_full(self) -> bool:
        """A disk is full: no new entries until ``on_space``."""
        return self._flusher.is_full

    def _settled(self, replaced: bool, had_been_full: bool) -> None:
        """A checkpoint went through."""
        if replaced:
            self._reads.forget_places()
        if had_been_full:
            self._told.on_space()
        self._flusher.is_room_wanted = False
        callbacks, self._room_callbacks = self._room_callbacks, deque()
        for callback in callbacks:
            try:
                callback()
            except Exception:
                _log.exception("a waiter for room failed")

    # Reading

    def cached_run(self, ledger_id: LedgerId, entry_id: EntryId) -> tuple[EntryRun, EntryId] | None:
        """Return a run in memory that has the entry, and up to which id it is the newest.

        None says nothing about the disk.
        """
        return self._reads.cached_run(ledger_id, entry_id)

    def read(
        self,
        requests: Sequence[tuple[LedgerId, EntryId]],
        done: Callable[[list[bytes | BaseException]], None],
        max_size_bytes: int = sys.maxsize,
    ) -> None:
        """Read entries, one job for all; an entry id of -1 means the ledger's last entry.

        After more than that size nothing further is read: what ``done`` gets is shorter then.

        ``done`` gets an entry or an error for each request, in order: ``NoSuchLedgerError`` and
        ``NoSuchEntryError`` only where absence is proven, ``UnknownLedgerStateError`` instead
        in limbo, ``BookieIOError`` for damage.  It is called before this returns if the caches
        had everything.
        """
        self._reads.read(requests, done, max_size_bytes)

    @property
    def last_read(self) -> JobTimes | None:
        """What the read that is being answered cost; None if it was answered from memory."""
        return self._reads.last_job

    def read_batch(
        self,
        ledger_id: LedgerId,
        first_entry_id: EntryId,
        max_count: int,
        max_size_bytes: int,
        done: BatchDone,
    ) -> None:
        """Read consecutive entries from the first id on: ``done(pieces, count, error)``.

        The pieces, one behind the other, are (int32 size, entry) each.  At least one entry is
        given however large, and fewer than asked where one is missing here or a limit is
        reached.  A limit of 0 is none; what fits into a frame always binds.
        """
        self._reads.read_batch(ledger_id, first_entry_id, max_count, max_size_bytes, done)

    def last_entry_id(self, ledger_id: LedgerId) -> EntryId:
        """Return the highest readable entry id, -1 if there is none."""
        handle = self._visible.table.get(ledger_id)
        return INVALID_ENTRY_ID if handle is None else handle.last_entry_id

    def entry_ids(
        self, ledger_id: LedgerId, done: Callable[[list[range] | BaseException], None]
    ) -> None:
        """Give all entry ids held of a ledger as ascending ranges (step 1)."""
        self._reads.entry_ids(ledger_id, done)

    def list_entries(
        self,
        ledger_id: LedgerId,
        shape: Callable[[list[range]], T],
        done: Callable[[T | BaseException], None],
    ) -> None:
        """Give what ``shape``, called by the read worker, makes of all entry ids."""
        self._reads.list_entries(ledger_id, shape, done)

    def note_damage(self, damage: Damage) -> None:
        """Write down that entries cannot be given back."""
        _log.error(
            "entries %d to %d of ledger %d cannot be read: %s",
            damage.first_entry_id, damage.last_entry_id, damage.ledger_id, damage.reason,
        )  # fmt: skip
        self._damaged.append(damage)
        self._told.on_damage(damage)

    # Limbo, deletion

    async def put_in_limbo(self, ledger_ids: Iterable[LedgerId], *, fence: bool = True) -> None:
        """Answer "unknown" instead of "no" for these ledgers, known here or not; durable."""
        self._visible.set_limbo(ledger_ids, fence=fence)
        await self._flusher.flush()

    async def clear_limbo(self, ledger_ids: Iterable[LedgerId]) -> None:
        """These ledgers are whole again; durable."""
        self._visible.clear_limbo(ledger_ids)
        await self._flusher.flush()

    async def finish_limbo_start(self) -> None:
        """All ledgers that ``needs_limbo_start`` asked for are in limbo; durable."""
        self._visible.limbo_start = ""
        await self._flusher.flush()
        self.needs_limbo_start = False

    async def delete_ledgers(self, ledger_ids: Iterable[LedgerId]) -> None:
        """Forget ledgers for good (the metadata store positively said that they are gone)."""
        self._forgotten(self._visible.delete(ledger_ids))
        await self._flusher.flush()

    def _forgotten(self, handles: Iterable[LedgerHandle]) -> None:
        for handle in handles:
            self._writes.wake(handle)
        self._reads.forget_places()

    def _forget_logs(self, entry_log_ids: Iterable[int]) -> None:
        """Close logs that were removed: while one is open its space is not given back."""
        gone = list(entry_log_ids)
        if not gone or not self._is_open:
            return
        self._reads.forget_places()
        self._peek_reader.forget(*gone)
        self._read_worker.submit(partial(self._log_reader.forget, *gone), lambda _: None)

    async def _reopen_log(self, entry_log_id: int) -> None:
        self._peek_reader.forget(entry_log_id)
        await run_job(self._read_worker, partial(self._log_reader.forget, entry_log_id))

    async def flush(self) -> None:
        """Bring everything durable in the journal into entry logs and index.

        Raises:
            StorageError: The flush failed; it is tried again by itself.
        """
        await self._flusher.flush()

    def distrust_index(self, error: BaseException) -> None:
        """Stop, and have the next start rebuild the index: what it denies may be here."""
        self._indexes.distrust(self.directories.index_path)
        self._fail(error)

    def ledger_ids(self) -> list[LedgerId]:
        """Return all ledgers known here, ascending."""
        stored = set(self._opened.loop_index.ledger_ids())
        return sorted(self._visible.with_unstored(stored))

    @property
    def damaged(self) -> list[Damage]:
        """Entries that could not be given back since the start (bounded)."""
        return list(self._damaged)

    def sync_times(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Return by directory and use ("journal", "ledgers") how many syncs, and nanoseconds."""
        return sync_times(self.directories, self._opened.entry_logs, self._journals)

    def flushed_marks(self) -> Marks:
        """Return up to where each journal is in the entry logs and the index."""
        return self._opened.checkpointer.index_marks

    async def usage(self) -> dict[str, DiskUsage]:
        """Return the space of all directories."""
        if not self._is_open:
            raise InternalError("the storage is not started")
        return await run_job(self._read_worker, self.directories.usage)

    def statistics(self) -> dict[str, int]:
        """Return counters and sizes for metrics; ``name@index`` is that of one journal."""
        numbers = counters(self._reads, self._opened.checkpointer, self._journals)
        return numbers | {
            "entries_appended": self._writes.entries_appended,
            "bytes_appended": self._writes.bytes_appended,
            "write_cache_bytes": self._caches.unflushed_bytes,
            "read_cache_bytes": self._caches.read.size_bytes,
            "journaling_bytes": self._writes.journaling_bytes,
            "ledgers_in_memory": len(self._visible.table),
            "damaged": len(self._damaged),
            "is_full": int(self.is_full),
        }
