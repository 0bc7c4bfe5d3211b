"""The storage of a bookie behind one facade; all methods are called on the event loop.

Life of an entry:

    append ── journal, one write and sync for a group ── durable ── write cache, LAC, waiters,
    answer ── flush: entry log, index, marks ── old journals go

An entry is unknown to reads and flushes until its group is durable (deferred sync: written).
The caller checks fence and key with the handle and calls ``append`` in the same loop step.

Left to others: which ledgers exist in the cluster, cookies' meaning, answers on the wire
(``bookie``); the files (``journal``, ``entrylog``, ``index``, ``flush``); disk reads (``reads``);
start and replay (``startup``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from quorumbook.env import Env
from quorumbook.ids import EntryId, LedgerId
from quorumbook.protocol.run import EntryRun
from quorumbook.storage.ledgers import LedgerHandle
from quorumbook.storage.options import Damage, StartReport, StorageOptions

Done: TypeAlias = Callable[[BaseException | None], None]


class LedgerStorage:
    """What a bookie keeps.

    Args:
        env: The outside world.
        journal_directory: Where journals go (below it, ``current/``).
        ledger_directories: Where entry logs go (below each, ``current/``); the index lives in
            the first one.
        options: Sizes and times.
        on_fatal: The storage can no longer keep its promises (a journal write failed); the
            bookie stops at once.  Called once.
        on_full: A disk is full; nothing is lost and reads go on, but the bookie should be
            read-only until ``on_space``.
        on_space: The flush that had failed went through.
        on_damage: Entries cannot be given back; also collected in ``damaged``.
        index_path: Another place for the index file.
    """

    def __init__(
        self,
        env: Env,
        *,
        journal_directory: str,
        ledger_directories: Sequence[str],
        options: StorageOptions | None = None,
        on_fatal: Callable[[BaseException], None] | None = None,
        on_full: Callable[[BaseException], None] | None = None,
        on_space: Callable[[], None] | None = None,
        on_damage: Callable[[Damage], None] | None = None,
        index_path: str | None = None,
    ) -> None:
        raise NotImplementedError

    # Life cycle

    async def start(self) -> StartReport:
        """Lock the directories, replay the journal, flush everything; then the storage serves.

        Raises:
            DirectoryLockedError: Another bookie runs on a directory.
            CorruptJournalError, CorruptIndexError, CorruptStateError: Refused, the message says
                where and what helps.
        """
        raise NotImplementedError

    async def stop(self) -> None:
        """Flush, close all files and release the locks; safe to call twice."""
        raise NotImplementedError

    # Ledgers

    def handle(self, ledger_id: LedgerId) -> LedgerHandle | None:
        """Return the one handle of a ledger, None if this bookie knows nothing of it."""
        raise NotImplementedError

    def create_handle(self, ledger_id: LedgerId, master_key: bytes) -> LedgerHandle:
        """Make the handle of a ledger that ``handle`` does not know.

        Nothing is stored yet: the key record goes in front of the first record of the ledger.
        """
        raise NotImplementedError

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
        raise NotImplementedError

    def fence(self, handle: LedgerHandle, done: Done) -> None:
        """Refuse normal adds from now on; ``done`` when that is durable.

        A second fence waits for the first; if its record could not be journaled, it tries
        again.  On a ledger fenced long ago ``done`` is called before this returns.
        """
        raise NotImplementedError

    def write_lac(self, handle: LedgerHandle, packet: bytes, lac: EntryId, done: Done) -> None:
        """Store an explicit LAC packet verbatim unless a higher one is stored; then ``done``."""
        raise NotImplementedError

    def force(self, done: Done) -> None:
        """Call ``done`` when everything appended so far is durable."""
        raise NotImplementedError

    def has_room(self, size_bytes: int, *, reserve: bool = False) -> bool:
        """Tell whether an append of this size fits now; ``reserve`` is for recovery adds.

        Counted: write caches and what the journal still holds.  An empty storage always has
        room for one append.
        """
        raise NotImplementedError

    def on_room(self, callback: Callable[[], None]) -> None:
        """Call back once, on the loop, when room may have appeared."""
        raise NotImplementedError

    async def wait_room(self, size_bytes: int) -> None:
        """Return when an append of this size fits; the caller bounds the time."""
        raise NotImplementedError

    @property
    def is_full(self) -> bool:
        """A disk is full: no new entries until ``on_space``."""
        raise NotImplementedError

    # Reading

    def cached_entry(self, ledger_id: LedgerId, entry_id: EntryId) -> bytes | None:
        """Return an entry if a cache has it; None says nothing about the disk."""
        raise NotImplementedError

    def read(
        self,
        requests: Sequence[tuple[LedgerId, EntryId]],
        done: Callable[[list[bytes | BaseException]], None],
    ) -> None:
        """Read entries, one job for all; an entry id of -1 means the ledger's last entry.

        ``done`` gets an entry or an error for each request, in order: ``NoSuchLedgerError`` and
        ``NoSuchEntryError`` only where absence is proven, ``UnknownLedgerStateError`` instead
        in limbo, ``BookieIOError`` for damage.  It is called before this returns if the caches
        had everything.
        """
        raise NotImplementedError

    def read_batch(
        self,
        ledger_id: LedgerId,
        first_entry_id: EntryId,
        max_count: int,
        max_size_bytes: int,
        done: Callable[[list[bytes], int, BaseException | None], None],
    ) -> None:
        """Read consecutive entries from the first id on: ``done(pieces, count, error)``.

        The pieces, one behind the other, are (int32 size, entry) each.  At least one entry is
        given however large, and fewer than asked where one is missing here or in the way of the
        limits; ``max_count`` or ``max_size_bytes`` of 0 means no limit of that kind (the frame limit
        always binds).
        """
        raise NotImplementedError

    def last_entry_id(self, ledger_id: LedgerId) -> EntryId:
        """Return the highest readable entry id, -1 if there is none."""
        raise NotImplementedError

    def entry_ids(
        self,
        ledger_id: LedgerId,
        done: Callable[[list[range] | BaseException], None],
    ) -> None:
        """Give all entry ids held of a ledger as ascending ranges (step 1)."""
        raise NotImplementedError

    # Limbo, deletion, care

    async def put_in_limbo(self, ledger_ids: Iterable[LedgerId], *, fence: bool = True) -> None:
        """Answer "unknown" instead of "no" for these ledgers, known here or not; durable."""
        raise NotImplementedError

    async def clear_limbo(self, ledger_ids: Iterable[LedgerId]) -> None:
        """These ledgers are whole again; durable."""
        raise NotImplementedError

    async def finish_limbo_start(self) -> None:
        """All ledgers that ``needs_limbo_start`` asked for are in limbo; durable."""
        raise NotImplementedError

    async def delete_ledger(self, ledger_id: LedgerId) -> None:
        """Forget a ledger for good (the metadata store positively said that it is gone)."""
        raise NotImplementedError

    async def flush(self) -> None:
        """Bring everything durable in the journal into entry logs and index."""
        raise NotImplementedError

    def ledger_ids(self) -> list[LedgerId]:
        """Return all ledgers known here, ascending."""
        raise NotImplementedError

    @property
    def damaged(self) -> list[Damage]:
        """Entries that could not be given back since the start (bounded)."""
        raise NotImplementedError

    def statistics(self) -> dict[str, int]:
        """Return counters and sizes for metrics."""
        raise NotImplementedError
