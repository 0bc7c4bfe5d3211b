"""What a bookie knows about each ledger besides its entries.

A ``LedgerHandle`` is the one serialisation point of a ledger (R11): fence flag, master key, last
add confirmed and the readers that wait for it.  There is never more than one handle object of a
ledger: the table finds a handle again as long as anybody holds it, even after it was dropped
from the list of recently used ones.

A handle leaves the table's own list only while it is clean (its state is in the index) and idle
(nothing of it is in the journal's hands, nobody waits); a fence therefore cannot be forgotten
by eviction (S07).  Loading a handle from disk is the store's affair (``loader``).
"""

from __future__ import annotations

import hmac
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from struct import Struct

from quorumbook.ids import INVALID_ENTRY_ID, EntryId, LedgerId
from quorumbook.storage.states.groups import OrderedGroups
from quorumbook.storage.states.state_file import StoredLedger

_LAC = Struct(">q")
#: Handles looked at in one turn of the loop to find some that can be forgotten.
_LOOKED_AT_A_TURN = 256


def lac_of_packet(packet: bytes) -> EntryId:
    """Return the last add confirmed that an explicit LAC packet carries."""
    if len(packet) < 16:
        return INVALID_ENTRY_ID
    lac: int = _LAC.unpack_from(packet, 8)[0]
    return lac


class LedgerHandle:
    """A ledger as this bookie knows it; used on the event loop only.

    Attributes that other rooms read: ``ledger_id``, ``is_fenced`` (true from the moment a fence
    arrives, durable or not), ``is_in_limbo``, ``explicit_lac`` (the durable packet, verbatim),
    ``last_add_confirmed`` (highest value a reader may hear), ``last_entry_id`` (highest visible
    entry), ``lac_update_ms`` (wall time of the last rise, 0 if none in this process).
    """

    __slots__ = (
        "__weakref__",
        "_arrivals",
        "_ended",
        "_fence_waiters",
        "_waiters",
        "deferred_in_flight",
        "explicit_lac",
        "explicit_lac_id",
        "in_flight",
        "is_deleted",
        "is_dirty",
        "is_fence_durable",
        "is_fenced",
        "is_in_limbo",
        "is_stored",
        "key_needed",
        "lac_floor",
        "lac_update_ms",
        "last_add_confirmed",
        "last_entry_id",
        "ledger_id",
        "master_key",
        "next_read_entry_id",
        "was_deleted",
    )

    def __init__(
        self,
        ledger_id: LedgerId,
        master_key: bytes,
        *,
        key_needed: bool = True,
        was_deleted: bool = False,
    ) -> None:
        self.ledger_id = ledger_id
        self.master_key = master_key
        self.is_fenced = False
        self.is_fence_durable = False
        self.is_in_limbo = False
        self.explicit_lac: bytes | None = None
        self.explicit_lac_id: EntryId = INVALID_ENTRY_ID
        self.last_add_confirmed: EntryId = INVALID_ENTRY_ID
        self.last_entry_id: EntryId = INVALID_ENTRY_ID
        self.lac_update_ms = 0
        #: The key record must still be written in front of the next record (R13).
        self.key_needed = key_needed
        #: At least one record of the ledger is durable, so the bookie may speak of it.
        self.is_stored = False
        self.is_deleted = False
        #: A ledger of this id was deleted here not long ago, and a fence may have gone with it:
        #: a plain add waits for a look at the metadata.
        self.was_deleted = was_deleted
        #: Index and side files do not have this state yet.
        self.is_dirty = False
        #: Records handed to the journal and not answered yet.
        self.in_flight = 0
        #: Of these, adds that are answered when they are written.
        self.deferred_in_flight = 0
        #: Fences that wait for the first one to be durable; None while none is on its way.
        self._fence_waiters: list[Callable[[BaseException | None], None]] | None = None
        self.lac_floor: EntryId = INVALID_ENTRY_ID
        #: A read of this entry continues the previous one: worth reading ahead.
        self.next_read_entry_id: EntryId = INVALID_ENTRY_ID
        #: Records that the journal has ended, well or not, since the handle was made.
        self._ended = 0
        #: By the key that cancels the watch: at which of them to call, in ascending order.
        self._arrivals: dict[object, tuple[int, Callable[[], None]]] = {}
        #: By the last add confirmed above which they wait; most ledgers never have any.
        self._waiters: OrderedGroups[EntryId, Callable[[], None]] | None = None

    def __repr__(self) -> str:
        fenced = ", fenced" if self.is_fenced else ""
        return f"LedgerHandle(ledger {self.ledger_id}, LAC {self.last_add_confirmed}{fenced})"

    def accepts_key(self, master_key: bytes) -> bool:
        """Compare in constant time; a ledger without a known key takes the first one offered.

        A key is unknown where the peer left a fence without one, or after the index was rebuilt
        from entry logs alone; the new key is journaled in front of the next record.
        """
        if self.master_key and any(self.master_key):
            return hmac.compare_digest(self.master_key, master_key)
        if master_key != self.master_key:
            self.master_key = master_key
            self.key_needed = True
        return True

    def forget_offered_key(self) -> None:
        """Forget a key with which nothing was begun."""
        if self.key_needed and not self.is_stored and not self.in_flight:
            self.master_key = b""

    def take_key(self, master_key: bytes) -> None:
        """A record with the key is durable; the first one that is known stays."""
        if not any(self.master_key):
            self.master_key = master_key
        self.key_needed = False
        self.is_stored = True

    def put_key(self) -> None:
        """The key record is on its way, in front of the next record."""
        self.key_needed = False

    def lose_record(self) -> None:
        """A record was not written, nor perhaps the key in front of it."""
        self.key_needed = self.key_needed or not self.is_stored

    def begin_fence(self, done: Callable[[BaseException | None], None]) -> bool:
        """Fence, with somebody to tell when that is durable; tell whether it is to be written."""
        if self._fence_waiters is not None:
            self._fence_waiters.append(done)
            return False
        self.is_fenced = True
        self._fence_waiters = [done]
        return True

    def take_fence_waiters(self) -> list[Callable[[BaseException | None], None]]:
        """Take those who wait for the fence that was written, or failed, just now."""
        waiters, self._fence_waiters = self._fence_waiters or [], None
        return waiters

    def keep_fence(self) -> None:
        """The fence is durable."""
        self.is_fenced = self.is_fence_durable = self.is_stored = True

    def doubt(self, *, fence: bool) -> None:
        """Be in limbo: entries may be missing, and a fence as well."""
        self.is_in_limbo = self.is_stored = True
        if fence:
            self.keep_fence()

    def trust(self) -> bool:
        """Be in limbo no more; tell whether it was."""
        was, self.is_in_limbo = self.is_in_limbo, False
        return was

    def delete(self) -> None:
        """Be deleted, for those who still hold the handle."""
        self.is_deleted = True

    def forget_deletion(self) -> None:
        """The metadata has the ledger: a plain add need not wait for a look any more."""
        self.was_deleted = False

    def watch_lac(self, above: EntryId, callback: Callable[[], None]) -> None:
        """Call back once, on the loop, when the last add confirmed is above ``above``.

        Also called when the ledger is deleted.  The caller checks first whether it already is.
        """
        if self._waiters is None:
            self._waiters = OrderedGroups()
        self._waiters.add(above, callback)

    def unwatch_lac(self, above: EntryId, callback: Callable[[], None]) -> None:
        """Do not call back any more, if that was not done yet."""
        if self._waiters is not None:
            self._waiters.remove(above, callback)

    def watch_records(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back once, on the loop, when the records on their way now have all ended.

        What is in them can be read then, or its group failed.

        Returns:
            A function that cancels the watch.
        """
        key = object()
        self._arrivals[key] = (self._ended + self.in_flight, callback)

        def cancel() -> None:
            self._arrivals.pop(key, None)

        return cancel

    def end_record(self) -> bool:
        """A record was ended, in the order of the journal; tell whether somebody waits for that."""
        self.in_flight -= 1
        self._ended += 1
        return bool(self._arrivals)

    def take_arrived(self) -> list[Callable[[], None]]:
        """Take the callbacks of those who waited for no more than what has ended."""
        over = [key for key, (target, _) in self._arrivals.items() if target <= self._ended]
        return [self._arrivals.pop(key)[1] for key in over]

    @property
    def has_waiters(self) -> bool:
        """Tell whether somebody waits for the last add confirmed."""
        return bool(self._waiters)

    def take_woken(self, max_count: int) -> list[Callable[[], None]]:
        """Take the callbacks of readers whose wait is over; looks at no others."""
        lac = self.last_add_confirmed
        waiters = self._waiters
        woken: list[Callable[[], None]] = []
        while waiters and len(woken) < max_count:
            above = waiters.lowest
            if above is None or (above >= lac and not self.is_deleted):
                break
            woken += waiters.take(max_count - len(woken))
        return woken

    def state(self, born_at: int = 0) -> StoredLedger:
        """Return what has to be stored of a ledger that was born at a place."""
        return StoredLedger(
            self.ledger_id,
            self.master_key,
            self.is_fenced,
            self.is_in_limbo,
            self.explicit_lac,
            self.lac_floor,
            born_at,
        )

    def load(self, state: StoredLedger) -> None:
        """Take over a stored state."""
        self.master_key = state.master_key
        self.is_fenced = self.is_fence_durable = state.is_fenced
        self.is_in_limbo = state.is_in_limbo
        self.explicit_lac = state.explicit_lac
        self.lac_floor = state.last_add_confirmed
        self.raise_lac(state.last_add_confirmed)
        if state.explicit_lac is not None:
            self.explicit_lac_id = lac_of_packet(state.explicit_lac)
            self.lac_floor = max(self.lac_floor, self.explicit_lac_id)
            self.raise_lac(self.lac_floor)
        self.key_needed = False
        self.is_stored = True

    def find(self, last_entry_id: EntryId, lac: EntryId) -> None:
        """Take over what is stored of its entries."""
        self.last_entry_id = max(self.last_entry_id, last_entry_id)
        self.raise_lac(lac)

    def show(self, last_entry_id: EntryId, lac: EntryId, now_ms: int) -> bool:
        """Make entries visible, and raise the last add confirmed to the one they carry.

        Returns:
            Whether there is something new to be stored.
        """
        known = self.last_add_confirmed
        is_changed = not self.is_stored
        self.is_stored = True
        if last_entry_id >= self.last_entry_id:
            self.last_entry_id = last_entry_id
            if lac < known:
                is_changed |= self.raise_floor(known)
        elif lac > known:
            is_changed |= self.raise_floor(lac)
        if lac > known:
            self.last_add_confirmed = lac
            self.lac_update_ms = now_ms
        return is_changed

    def take_explicit_lac(self, packet: bytes, lac: EntryId, now_ms: int) -> bool:
        """An explicit LAC is durable; tell whether the last add confirmed rose."""
        self.is_stored = True
        if self.explicit_lac is None or lac > self.explicit_lac_id:
            self.explicit_lac = packet
            self.explicit_lac_id = lac
        self.raise_floor(lac)
        if not self.raise_lac(lac):
            return False
        self.lac_update_ms = now_ms
        return True

    def raise_floor(self, lac: EntryId) -> bool:
        """Have a restart know this last add confirmed; tell whether that is more than before."""
        if lac <= self.lac_floor:
            return False
        self.lac_floor = lac
        return True

    def raise_lac(self, lac: EntryId) -> bool:
        """Raise the last add confirmed; it never falls."""
        if lac <= self.last_add_confirmed:
            return False
        self.last_add_confirmed = lac
        return True

    @property
    def is_idle(self) -> bool:
        """Tell whether the table may forget the handle."""
        return not (
            self.is_dirty
            or self.in_flight
            or self._waiters
            or self.is_fenced != self.is_fence_durable
        )


class LedgerTable:
    """Handles by ledger id: recently used ones, and every one that somebody still holds."""

    def __init__(self, *, limit: int, loader: Callable[[LedgerId], LedgerHandle | None]) -> None:
        self._limit = limit
        #: Looked through when it has grown by a tenth, not for every ledger above the limit.
        self._evict_at = limit + limit // 10
        #: How many handles are to be looked at before it is over; 0 while nothing is evicted.
        self._to_look_at = 0
        self._loader = loader
        self._recent: dict[LedgerId, LedgerHandle] = {}
        self._alive: weakref.WeakValueDictionary[LedgerId, LedgerHandle] = (
            weakref.WeakValueDictionary()
        )
        #: Handles whose state the next checkpoint has to store.
        self.dirty: dict[LedgerId, LedgerHandle] = {}
        #: How many the present one stores.
        self._being_stored = 0

    def __len__(self) -> int:
        return len(self._recent)

    def __iter__(self) -> Iterator[LedgerHandle]:
        return iter(list(self._recent.values()))

    def get(self, ledger_id: LedgerId) -> LedgerHandle | None:
        """Return the one handle of a ledger, loading it if need be; None if unknown."""
        handle = self._recent.pop(ledger_id, None)
        if handle is None:
            handle = self._alive.get(ledger_id)
            if handle is None:
                handle = self._loader(ledger_id)
                if handle is None:
                    return None
                self._alive[ledger_id] = handle
        self._recent[ledger_id] = handle
        return handle

    def peek(self, ledger_id: LedgerId) -> LedgerHandle | None:
        """Return the handle if it is in memory."""
        return self._recent.get(ledger_id) or self._alive.get(ledger_id)

    def add(self, handle: LedgerHandle) -> None:
        """Take in the handle of a new ledger."""
        assert handle.ledger_id not in self._alive
        self._alive[handle.ledger_id] = handle
        self._recent[handle.ledger_id] = handle

    def mark_dirty(self, handle: LedgerHandle) -> None:
        """Have the next checkpoint store the handle's state."""
        handle.is_dirty = True
        self.dirty[handle.ledger_id] = handle
        self._recent[handle.ledger_id] = handle

    def take_dirty(self) -> list[LedgerHandle]:
        """Hand the dirty handles over to a checkpoint; ``settle`` follows when it succeeded."""
        dirty, self.dirty = self.dirty, {}
        self._being_stored = len(dirty)
        return list(dirty.values())

    def settle(self, handles: list[LedgerHandle]) -> None:
        """A checkpoint stored these states; what changed since is dirty again by itself."""
        self._being_stored = 0
        for handle in handles:
            if handle.ledger_id not in self.dirty:
                handle.is_dirty = False

    def remove(self, ledger_id: LedgerId) -> LedgerHandle | None:
        """Forget a deleted ledger."""
        handle = self.peek(ledger_id)
        self._recent.pop(ledger_id, None)
        self._alive.pop(ledger_id, None)
        self.dirty.pop(ledger_id, None)
        return handle

    @property
    def is_over_limit(self) -> bool:
        """Tell whether ``evict`` has work."""
        return self._stored > self._evict_at

    @property
    def _stored(self) -> int:
        """How many handles may be idle: to look at the others would be in vain."""
        return len(self._recent) - len(self.dirty) - self._being_stored

    def evict(self) -> int:
        """Forget some of the longest unused clean, idle handles, down to the limit of those.

        Called between loop steps, never while a caller works with handles it just got; again and
        again while ``is_over_limit``.  A handle in use counts as used now.
        """
        over = self._stored - self._limit
        evicted = 0
        if over <= 0:
            return 0
        self._to_look_at = self._to_look_at or len(self._recent)
        for ledger_id, handle in list(islice(self._recent.items(), _LOOKED_AT_A_TURN)):
            self._to_look_at -= 1
            del self._recent[ledger_id]
            if handle.is_idle:
                evicted += 1
                if evicted == over:
                    self._to_look_at = 0
            else:
                self._recent[ledger_id] = handle
            if not self._to_look_at:
                break
        if self._to_look_at:
            self._evict_at = self._limit
        else:
            self._evict_at = max(self._limit, self._stored) + self._limit // 10
        return evicted
