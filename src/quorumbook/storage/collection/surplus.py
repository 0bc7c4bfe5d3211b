"""Copies that a bookie need not keep: its ledger is closed, and no ensemble of it names the bookie.

They are left where a ledger's copies were moved elsewhere while this bookie was away, or drained.
A copy goes only when all of this holds (R28):

    - its ledger is closed, no fragment names this bookie, and it is not marked as lacking copies
    - all of that twice, ``surplus_grace_s`` apart, and nothing of the ledger arrived meanwhile:
      whoever copies a ledger to this bookie publishes that only when it is done (S60)
      compaction, which moves a copy into another entry log, brings nothing
    - the ledger's replication lock is held, and the first point was seen again under it

The entries go, the ledger's state stays, fenced: a writer that slept through the recovery of its
ledger is refused here as before.  The state goes when the ledger is deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from quorumbook.env import Clock, logger
from quorumbook.ids import LedgerId
from quorumbook.storage.gc.ledger_ranges import in_batches
from quorumbook.storage.index.stored_run import StoredExtent
from quorumbook.storage.store import LedgerStorage

_SECOND = 1_000_000_000
_BATCH = 200
_log = logger("storage.gc")


class Owners(Protocol):
    """What the metadata store says of who keeps a ledger; errors are ``MetadataError``."""

    async def surplus(self, ledger_ids: list[LedgerId]) -> list[LedgerId]:
        """Return those that are closed, whole, and do not name this bookie."""
        ...

    async def take_lock(self, ledger_id: LedgerId) -> bool:
        """Keep others from copying a ledger; False if somebody is at it."""
        ...

    def is_locked(self, ledger_id: LedgerId) -> bool:
        """Tell whether that lock is still held."""
        ...

    async def release_locks(self) -> None:
        """Let others go on."""
        ...


class SurplusCopies:
    """Finds and drops them; used on the event loop.

    Args:
        storage: Started.
        owners: What it is compared with.
        clock: Decides when something is due.
        interval_s: Between two searches; 0 searches never.
        grace_s: Between the first finding of a copy and its end.
    """

    def __init__(
        self,
        storage: LedgerStorage,
        owners: Owners,
        clock: Clock,
        *,
        interval_s: float,
        grace_s: float,
    ) -> None:
        self._storage = storage
        self._gc = storage.gc
        self._owners = owners
        self._clock = clock
        self._interval_ns = int(interval_s * _SECOND)
        self._grace_ns = int(grace_s * _SECOND)
        self._searched_ns = clock.now_ns()
        #: Since when a ledger was found to be surplus, and what was here of it then.
        self._found: dict[LedgerId, tuple[int, StoredExtent]] = {}

    def __len__(self) -> int:
        return len(self._found)

    async def collect(self) -> int:
        """Search if it is time to, drop what was found long enough ago; return how many."""
        now = self._clock.now_ns()
        is_search = self._interval_ns and now - self._searched_ns >= self._interval_ns
        due = [one for one, (since, _) in self._found.items() if now - since >= self._grace_ns]
        dropped = 0
        try:
            for batch in in_batches(due, _BATCH):
                dropped += await self._drop(batch)
        finally:
            await self._owners.release_locks()
        if is_search:
            self._searched_ns = now
            await self._search(now)
        return dropped

    def note_moves(self, shifts: Mapping[LedgerId, tuple[int, int]]) -> None:
        """Follow the copies that compaction moved; nothing came of their ledgers."""
        for ledger_id in shifts.keys() & self._found.keys():
            since, extent = self._found[ledger_id]
            self._found[ledger_id] = since, extent.moved(*shifts[ledger_id])

    async def _search(self, now: int) -> None:
        found: dict[LedgerId, tuple[int, StoredExtent]] = {}
        async for page in self._gc.ledger_ids():
            for batch in in_batches(page, _BATCH):
                extents = await self._gc.extents(batch)
                for ledger_id in await self._owners.surplus(sorted(extents)):
                    extent = extents[ledger_id]
                    since, before = self._found.get(ledger_id, (now, extent))
                    found[ledger_id] = (since if extent == before else now, extent)
        self._found = found

    async def _drop(self, batch: list[LedgerId]) -> int:
        checkpoints = self._gc.checkpoints
        extents = await self._gc.extents(batch)
        locked = []
        for ledger_id in batch:
            if extents.get(ledger_id) != self._found[ledger_id][1]:
                del self._found[ledger_id]
            elif await self._owners.take_lock(ledger_id):
                locked.append(ledger_id)
        surplus = await self._owners.surplus(locked)
        for ledger_id in set(locked).difference(surplus):
            del self._found[ledger_id]
        # One that somebody is at, or of which more may be under way, is looked at in the next pass.
        still = [ledger_id for ledger_id in surplus if self._owners.is_locked(ledger_id)]
        emptied = self._gc.empty_ledgers(still, checkpoints)
        for ledger_id in emptied:
            del self._found[ledger_id]
        if emptied:
            _log.info("%d ledgers are kept elsewhere, their copies here are dropped", len(emptied))
            await self._storage.flush()
        await self._owners.release_locks()
        return len(emptied)
