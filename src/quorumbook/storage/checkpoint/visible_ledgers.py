"""What is visible: handles and caches together, changed in the order of the journal.

The store calls this on the event loop when a group is durable, and replay calls it for the same
records after a start; so both end in the same state.  What reaches disk from here is cut out as
a ``Checkpoint``.

The last add confirmed that readers may have heard must be known again after a restart (R15).
After one it is the greatest of: what the last stored entry carries, the explicit LAC, and the
floor in the ledger's state, which is raised where the first two would say less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from struct import Struct

from quorumbook.ids import INVALID_ENTRY_ID, EntryId, LedgerId
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.storage.cache.layers import Caches
from quorumbook.storage.cache.write import WriteCache
from quorumbook.storage.checkpoint.begun import BegunLedgers
from quorumbook.storage.checkpoint.checkpoint import Checkpoint
from quorumbook.storage.index.reader import IndexReader
from quorumbook.storage.journal.marks import Marks
from quorumbook.storage.states.ledgers import LedgerHandle, LedgerTable
from quorumbook.storage.states.state_file import Deletion

_LAC = Struct(">q")
#: Where the last add confirmed of an entry ends.
_LAC_END = 24


class VisibleLedgers:
    """Handles, write caches and what waits for the next checkpoint.

    Args:
        index: A connection for the thread that calls.
        caches: Where entries are found in memory.
        max_idle_handles: Idle ledgers remembered.
        wall_ms: Wall time, for the "updated at" of long polls.
    """

    def __init__(
        self,
        index: IndexReader,
        caches: Caches,
        *,
        max_idle_handles: int,
        wall_ms: Callable[[], int],
    ) -> None:
        self._index = index
        self._caches = caches
        self._wall_ms = wall_ms
        self.table = LedgerTable(limit=max_idle_handles, loader=self._load)
        self._begun = BegunLedgers(index.highest_ledger_id())
        #: Deleted ledgers that the index does not know of yet, and when; None: only emptied.
        self._deleted: dict[LedgerId, int | None] = {}
        self._deleting: dict[LedgerId, int | None] = {}
        self.limbo_start: str | None = None
        #: How many were cut since the start.
        self.checkpoints = 0

    def _load(self, ledger_id: LedgerId) -> LedgerHandle | None:
        if not self._begun.may_have(ledger_id):
            return None
        if ledger_id in self._deleted or ledger_id in self._deleting:
            return None
        state = self._index.ledger_state(ledger_id)
        if state is None:
            return None
        was_deleted = self._was_deleted(ledger_id)
        handle = LedgerHandle(ledger_id, state.master_key, was_deleted=was_deleted)
        handle.load(state)
        stored = self._index.last_entry(ledger_id)
        if stored is not None:
            handle.find(stored[0], INVALID_ENTRY_ID if stored[1] is None else stored[1])
        handle.find(*self._caches.last_unflushed(ledger_id))
        return handle

    def create(
        self, ledger_id: LedgerId, master_key: bytes, *, key_needed: bool = True
    ) -> LedgerHandle:
        """Make the handle of a new ledger."""
        was_deleted = self._was_deleted(ledger_id)
        handle = LedgerHandle(ledger_id, master_key, key_needed=key_needed, was_deleted=was_deleted)
        self._begun.add(ledger_id)
        self.table.add(handle)
        return handle

    def _was_deleted(self, ledger_id: LedgerId) -> bool:
        if not self._begun.may_have(ledger_id):
            return False
        for pending in (self._deleted, self._deleting):
            if pending.get(ledger_id) is not None:
                return True
        return self._index.was_deleted(ledger_id)

    def get_or_create(self, ledger_id: LedgerId) -> LedgerHandle:
        """Return a handle; a ledger never heard of gets one without a key."""
        handle = self.table.get(ledger_id)
        if handle is None:
            handle = self.create(ledger_id, b"", key_needed=False)
        return handle

    def now_ms(self) -> int:
        """Return wall time, for ``add``."""
        return self._wall_ms()

    def add(self, handle: LedgerHandle, run: EntryRun, now_ms: int) -> bool:
        """Make a run visible; tell whether the last add confirmed rose."""
        self._caches.active.add(run)
        lac = run.last_add_confirmed()
        has_risen = lac > handle.last_add_confirmed
        if handle.show(run.last_entry_id, lac, now_ms):
            self.table.mark_dirty(handle)
        return has_risen

    def add_replayed(self, handle: LedgerHandle, run: EntryRun) -> None:
        """Make a run from the journal visible; it may join what came in several batches."""
        self.add(handle, run, self._wall_ms())
        highest = highest_lac(run)
        if handle.raise_lac(highest) and handle.raise_floor(highest):
            self.table.mark_dirty(handle)

    def set_key(self, handle: LedgerHandle, master_key: bytes) -> None:
        """Take over a journaled key."""
        handle.take_key(master_key)
        self.table.mark_dirty(handle)

    def set_fenced(self, handle: LedgerHandle) -> None:
        """A fence is durable."""
        handle.keep_fence()
        self.table.mark_dirty(handle)

    def set_explicit_lac(self, handle: LedgerHandle, packet: bytes, lac: EntryId) -> bool:
        """An explicit LAC is durable; tell whether the last add confirmed rose."""
        self.table.mark_dirty(handle)
        return handle.take_explicit_lac(packet, lac, self._wall_ms())

    def set_limbo(self, ledger_ids: Iterable[LedgerId], *, fence: bool) -> None:
        """Doubt these ledgers, heard of or not."""
        for ledger_id in ledger_ids:
            handle = self.get_or_create(ledger_id)
            handle.doubt(fence=fence)
            self.table.mark_dirty(handle)

    def clear_limbo(self, ledger_ids: Iterable[LedgerId]) -> None:
        """Trust these ledgers again."""
        for ledger_id in ledger_ids:
            handle = self.table.get(ledger_id)
            if handle is not None and handle.trust():
                self.table.mark_dirty(handle)

    def delete(self, ledger_ids: Iterable[LedgerId]) -> list[LedgerHandle]:
        """Forget ledgers, but not that they were deleted; return the handles in memory."""
        return self._drop(ledger_ids, self._wall_ms())

    def _drop(self, ledger_ids: Iterable[LedgerId], at_ms: int | None) -> list[LedgerHandle]:
        gone: list[LedgerHandle] = []
        for ledger_id in ledger_ids:
            handle = self.table.remove(ledger_id)
            if handle is not None:
                handle.delete()
                gone.append(handle)
            self._caches.active.remove_ledger(ledger_id)
            self._caches.read.drop_ledger(ledger_id)
            self._deleted[ledger_id] = at_ms
            self._begun.add(ledger_id)
        return gone

    def empty(self, ledger_ids: Iterable[LedgerId]) -> list[LedgerHandle]:
        """Forget ledgers' entries, and keep fences, keys and what readers were told.

        Returns:
            Their former handles.
        """
        former = [handle for one in ledger_ids if (handle := self.table.get(one)) is not None]
        self._drop([handle.ledger_id for handle in former], None)
        for old in former:
            handle = self.create(old.ledger_id, b"")
            lac = old.last_add_confirmed
            handle.load(old.state()._replace(is_fenced=True, last_add_confirmed=lac))
            self.table.mark_dirty(handle)
        return former

    def is_settled(self, ledger_id: LedgerId) -> bool:
        """Tell whether all that ever came of a ledger is in the index."""
        handle = self.table.peek(ledger_id)
        if handle is not None and (
            handle.in_flight or handle.is_dirty or handle.is_fenced != handle.is_fence_durable
        ):
            return False
        return not self._caches.unflushed_ranges(ledger_id)

    def with_unstored(self, stored: set[LedgerId]) -> set[LedgerId]:
        """Correct a list of stored ledgers by what the index does not know yet."""
        gone = self._deleted.keys() | self._deleting.keys()
        return (stored - gone) | {handle.ledger_id for handle in self.table if handle.is_stored}

    @property
    def is_dirty(self) -> bool:
        """Tell whether a checkpoint has anything to bring along, the mark aside."""
        return bool(
            self._caches.active or self.table.dirty or self._deleted or self.limbo_start is not None
        )

    def checkpoint(self, marks: Marks) -> Checkpoint:
        """Cut out everything up to now; the caches swap."""
        self.checkpoints += 1
        cache = self._caches.swap() if self._caches.active else WriteCache()
        handles = self.table.take_dirty()
        self._deleting, self._deleted = self._deleted, {}
        limbo_start, self.limbo_start = self.limbo_start, None
        return Checkpoint(
            cache,
            marks,
            handles,
            [Deletion(*each) for each in sorted(self._deleting.items())],
            limbo_start,
        )

    def keep(self, run: EntryRun) -> None:
        """Have readers find what a flush has just written when its write cache is gone.

        Until the flush is over the write cache is asked first, and what it replaces is dropped.
        """
        if run.ledger_id not in self._deleted:
            self._caches.read.put(run)

    def settle(self, checkpoint: Checkpoint) -> None:
        """A checkpoint went through: its entries are on disk now."""
        self._caches.drop_flushed()
        for replaced in checkpoint.replaced:
            self._caches.read.drop(*replaced)
        self._deleting = {}
        self.table.settle(checkpoint.handles)
        self.table.evict()


def highest_lac(run: EntryRun) -> EntryId:
    """Return the highest last add confirmed that any entry of a run carries."""
    sizes = run.sizes
    if isinstance(sizes, int):
        if sizes < _LAC_END:
            return run.last_add_confirmed()
        lacs = Struct(f">{4 + _LAC_END - 8}xq{sizes - _LAC_END}x").iter_unpack(run.data)
        highest: EntryId = max(lac for (lac,) in lacs)
        return highest
    highest = run.last_add_confirmed()
    for entry_id in run.entry_ids():
        start, end = run.bounds(entry_id)
        if end - start >= _LAC_END:
            highest = max(highest, _LAC.unpack_from(run.data, start + _LAC_END - 8)[0])
    return highest
