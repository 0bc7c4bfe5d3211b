"""What the metadata store says of ledgers, for the bookie's garbage collector (R27).

Every answer is of the cluster that this bookie belongs to: its instance id is read again behind
each of them, so that a store that was emptied, replaced, or put back says nothing about ledgers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from quorumbook.errors import MetadataError
from quorumbook.ids import LedgerId
from quorumbook.metadata.cluster import read_instance_id
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.store import MetadataStore


class ClusterLedgers:
    """The ledgers of one cluster, as ``storage.gc.collector.Cluster`` wants them.

    Args:
        store: The metadata store.
        instance_id: Of the cluster that the cookies name.
    """

    def __init__(self, store: MetadataStore, instance_id: str) -> None:
        self._store = store
        self._ledgers = LedgerManager(store)
        self._instance_id = instance_id
        self._ended_sessions = 0
        self.close = store.on_session_expired(self._session_ended)

    def _session_ended(self) -> None:
        self._ended_sessions += 1

    def session(self) -> object:
        """Return what changes when a session ends."""
        return self._ended_sessions, self._store.session_id

    async def listing(self) -> AsyncIterator[LedgerId]:
        """Yield all ledgers; raise where that is not all."""
        async for ledger_id in self._ledgers.list():
            yield ledger_id
        await self._check()

    async def missing(self, ledger_ids: list[LedgerId]) -> list[LedgerId]:
        """Return those whose own node is not there."""
        found = await asyncio.gather(*map(self._ledgers.exists, ledger_ids))
        await self._check()
        return [ledger_ids[place] for place, is_there in enumerate(found) if not is_there]

    async def _check(self) -> None:
        instance_id = await read_instance_id(self._store)
        if instance_id != self._instance_id:
            raise MetadataError(
                f"{self._store.uri} holds another cluster now ({instance_id} instead of "
                f"{self._instance_id})"
            )
