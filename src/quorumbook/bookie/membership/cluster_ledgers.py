"""What the metadata store says of ledgers, for the bookie's garbage collector (R27).

Every answer is of the cluster that this bookie belongs to: its instance id is read again behind
each of them, so that a store that was emptied, replaced, or put back says nothing about ledgers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from quorumbook.errors import MetadataError, MetadataFormatError, NoSuchLedgerInMetadataError
from quorumbook.ids import BookieId, LedgerId
from quorumbook.metadata.cluster import read_instance_id
from quorumbook.metadata.ids import read_id_counters
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.nodes import with_living_session
from quorumbook.metadata.paths import TreePaths
from quorumbook.metadata.recovery.locks import ReplicationLocks
from quorumbook.metadata.store import MetadataStore

#: So many questions begin in one turn of the loop, within a millisecond or two.
_AT_ONCE = 32


class ClusterLedgers:
    """The ledgers of one cluster, as ``storage.gc.collector.Cluster`` wants them.

    Args:
        store: The metadata store.
        instance_id: Of the cluster that the cookies name.
        bookie_id: Whose garbage it is.
    """

    def __init__(self, store: MetadataStore, instance_id: str, bookie_id: BookieId) -> None:
        self._store = store
        self._bookie_id = bookie_id
        self._paths = TreePaths(store.ledgers_root)
        self._locks = ReplicationLocks(store, bookie_id)
        self._ledgers = LedgerManager(store)
        self._instance_id = instance_id
        self._ended_sessions = 0
        self._forget_store = store.on_session_expired(self._session_ended)

    def close(self) -> None:
        """Forget the store."""
        self._forget_store()
        self._locks.close()

    def _session_ended(self) -> None:
        self._ended_sessions += 1

    def session(self) -> object:
        """Return what changes when a session ends."""
        return self._ended_sessions, self._store.session_id

    async def next_ledger_id(self) -> LedgerId:
        """Return the next id that the cluster's generator would give."""
        counters = await read_id_counters(self._store)
        await self._check()
        if counters.high_bits is not None:
            return counters.high_bits << 32 | counters.low
        return 0 if counters.short is None else counters.short

    async def listing(self) -> AsyncIterator[LedgerId]:
        """Yield all ledgers, ascending; raise where that is not all."""
        async for ledger_id in self._ledgers.list():
            yield ledger_id
        await self._check()

    async def missing(self, ledger_ids: list[LedgerId]) -> list[LedgerId]:
        """Return those whose own node is not there."""
        found = await _of_each(self._ledgers.exists, ledger_ids)
        await self._check()
        return [ledger_ids[place] for place, is_there in enumerate(found) if not is_there]

    async def surplus(self, ledger_ids: list[LedgerId]) -> list[LedgerId]:
        """Return those that are closed, not marked, and do not name this bookie."""
        found = await _of_each(self._is_surplus, ledger_ids)
        await self._check()
        return [ledger_ids[place] for place, is_surplus in enumerate(found) if is_surplus]

    async def _is_surplus(self, ledger_id: LedgerId) -> bool:
        try:
            metadata, _ = await self._ledgers.read(ledger_id)
        except (NoSuchLedgerInMetadataError, MetadataFormatError):
            return False
        if not metadata.is_closed or any(
            self._bookie_id in fragment.ensemble for fragment in metadata.fragments
        ):
            return False
        return await self._store.exists(self._paths.underreplicated(ledger_id)) is None

    async def take_lock(self, ledger_id: LedgerId) -> bool:
        """Keep workers from copying a ledger, in a new session if the old one is over."""
        return await with_living_session(self._store, lambda: self._locks.take(ledger_id))

    def is_locked(self, ledger_id: LedgerId) -> bool:
        """Tell whether the lock is still held."""
        return self._locks.is_held(ledger_id)

    async def release_locks(self) -> None:
        """Let workers go on."""
        await self._locks.release_all()

    async def _check(self) -> None:
        instance_id = await read_instance_id(self._store)
        if instance_id != self._instance_id:
            raise MetadataError(
                f"{self._store.uri} holds another cluster now ({instance_id} instead of "
                f"{self._instance_id})"
            )


async def _of_each(
    ask: Callable[[LedgerId], Awaitable[bool]], ledger_ids: list[LedgerId]
) -> list[bool]:
    """Ask about ledgers, some at a time: a client may have made millions."""
    found: list[bool] = []
    for start in range(0, len(ledger_ids), _AT_ONCE):
        found += await asyncio.gather(*map(ask, ledger_ids[start : start + _AT_ONCE]))
    return found
