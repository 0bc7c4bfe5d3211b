"""Ledgers and bookies that exist in the metadata only."""

from __future__ import annotations

from quorumbook.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from quorumbook.metadata.bookies.registration import BookieRegistration, BookieServiceInfo
from quorumbook.metadata.cluster import init_cluster
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.store import MetadataStore


def closed(ledger_id, *ensembles, last=9, write_quorum_size=None):
    """Return a closed ledger with a fragment from entry 0, 10, 20 … on each ensemble."""
    size = len(ensembles[0])
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=size,
        write_quorum_size=write_quorum_size or size,
        ack_quorum_size=min(2, write_quorum_size or size),
        fragments=tuple(Fragment(10 * i, tuple(names)) for i, names in enumerate(ensembles)),
        state=LedgerState.CLOSED,
        last_entry_id=last,
        length=(last + 1) * 100,
    )


class LedgerBook:
    """A cluster without bookies: what the metadata says of some.

    Args:
        store: Bookies register in its session.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._registrations: dict[str, BookieRegistration] = {}
        self.ledgers = LedgerManager(store)

    async def init(self, registered: str, ledgers: dict[int, str]) -> None:
        """Make a cluster of bookies, a letter each, and closed ledgers, by id and ensemble."""
        await init_cluster(self._store)
        for name in registered:
            await self.join(name)
        for ledger_id, ensemble in ledgers.items():
            await self.ledgers.create(closed(ledger_id, ensemble))

    async def join(self, name: str) -> None:
        registration = self._registrations[name] = BookieRegistration(self._store)
        await registration.register(name, BookieServiceInfo())

    async def leave(self, name: str) -> None:
        registration = self._registrations.pop(name)
        await registration.unregister()
        await registration.close()
