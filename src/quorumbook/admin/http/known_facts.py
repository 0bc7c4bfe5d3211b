"""What is known of a cluster, and its age: all ledgers are read again behind whoever asks.

To read the metadata of all ledgers takes a second for some ten thousand, so what was found is kept.
Programs get it at most half a minute old, and wait for it.  A page takes it whatever its age, which
it shows, and has it read again meanwhile.  After a change everybody waits for what was read since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quorumbook.admin.facts.cluster import ClusterFacts, LedgerFacts, cluster_facts, survey
from quorumbook.env import logger
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.metadata.store import MetadataStore

_log = logger("admin.facts")
#: All ledgers are read again for the facts after so long.
SURVEY_S = 30.0
_FACTS_S = 1.0


@dataclass(frozen=True, slots=True)
class _Reading:
    """Something that was read, when that began, and behind how many changes."""

    ledgers: LedgerFacts
    since_s: float
    changes: int


class KnownFacts:
    """The facts of one cluster.

    Args:
        store: Returns its metadata store, started.
    """

    def __init__(self, store: Callable[[], Awaitable[MetadataStore]]) -> None:
        self._store = store
        self._changes = 0
        self._ledgers: _Reading | None = None
        self._facts: tuple[_Reading, ClusterFacts] | None = None
        self._facts_lock = asyncio.Lock()
        #: The walk over all ledgers that is under way.
        self._walk: asyncio.Task[None] | None = None

    def forget(self) -> None:
        """Have later answers be read anew: something was changed."""
        self._changes += 1

    async def get(self, *, takes_old: bool = False) -> ClusterFacts:
        """Return the facts, at most a second old; of the ledgers, half a minute.

        Args:
            takes_old: Those of the ledgers may be older: they are read again meanwhile.

        Raises:
            MetadataUnavailableError: The store does not answer.
            ClusterNotInitializedError: There is no cluster.
        """
        wanted = self._changes
        store = await self._store()
        ledgers = await self._known_ledgers(store, wanted, takes_old=takes_old)
        async with self._facts_lock:
            now = asyncio.get_running_loop().time()
            if self._facts is not None:
                made, facts = self._facts
                is_same = made.ledgers is ledgers and made.changes >= wanted
                if is_same and now - made.since_s <= _FACTS_S:
                    return facts
            changes = self._changes
            facts = await cluster_facts(store, ledgers=ledgers)
            self._facts = _Reading(ledgers, now, changes), facts
            return facts

    def read_ahead(self) -> None:
        """Begin to read all ledgers for the first who asks."""
        self._begin()

    async def close(self) -> None:
        """Stop reading."""
        if self._walk is not None:
            await cancel_and_wait([self._walk])

    async def _known_ledgers(
        self, store: MetadataStore, wanted: int, *, takes_old: bool
    ) -> LedgerFacts:
        while True:
            known = self._ledgers
            is_fit = known is not None and known.changes >= wanted
            if known is not None and is_fit:
                if self._is_young(known):
                    return known.ledgers
                if takes_old:
                    self._begin()
                    return known.ledgers
            walk = self._begin()
            # It goes on for the next who asks when this one is gone.
            await asyncio.wait([walk])
            walk.result()

    def _is_young(self, known: _Reading) -> bool:
        return asyncio.get_running_loop().time() - known.since_s <= SURVEY_S

    def _begin(self) -> asyncio.Task[None]:
        """Return the walk that is under way; one that began before a change is waited for first."""
        if self._walk is None or self._walk.done():
            self._walk = asyncio.create_task(self._read(self._changes))
            self._walk.add_done_callback(_told)
        return self._walk

    async def _read(self, changes: int) -> None:
        began_s = asyncio.get_running_loop().time()
        self._ledgers = _Reading(await survey(await self._store()), began_s, changes)


def _told(walk: asyncio.Task[None]) -> None:
    """Take note of an error that maybe nobody waits for."""
    if not walk.cancelled() and (error := walk.exception()) is not None:
        _log.warning("the ledgers could not be read: %s", error)
