"""What an auditor goes by: who is registered, whether auditing is on, how long to wait.

All of it lies in the metadata store and is followed by watches.  Between a change and the moment
it was read the view is stale, and so it is while the store does not answer: whoever is about to
decide something waits for ``fresh`` first (R31).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from quorumbook.env import logger
from quorumbook.errors import MetadataError, MetadataFormatError
from quorumbook.ids import BookieId
from quorumbook.metadata.bookies.registration import BookieRegistration
from quorumbook.metadata.recovery.switches import LostBookieDelay, RecoverySwitches
from quorumbook.metadata.store import MetadataStore

_log = logger("autorecovery.auditor")
_RETRY_FIRST_S = 0.2
_RETRY_LAST_S = 5.0


class ClusterView:
    """The view of one auditor's term.

    Args:
        store: The metadata.
        switches: The cluster's.
    """

    def __init__(self, store: MetadataStore, switches: RecoverySwitches) -> None:
        self._registrations = BookieRegistration(store)
        self._switches = switches
        #: Called on the loop whenever the view was read anew.
        self.listeners: list[Callable[[], None]] = []
        #: Writable and read-only bookies.
        self.registered: frozenset[BookieId] = frozenset()
        self.is_enabled = False
        self.delay: LostBookieDelay | None = None
        self._readers: dict[str, Callable[[Callable[[], None]], Awaitable[None]]] = {
            "registrations": self._read_registrations,
            "switch": self._read_switch,
            "delay": self._read_delay,
        }
        self._watches = {name: partial(self._is_outdated, name) for name in self._readers}
        self._store = store
        self._stale = set(self._readers)
        self._wake = asyncio.Event()
        self._fresh = asyncio.Event()

    async def fresh(self) -> None:
        """Return when the view is what the store says, as far as the store has told."""
        await self._fresh.wait()

    async def follow(self) -> None:
        """Keep it so until it is cancelled."""
        pause_s = _RETRY_FIRST_S
        try:
            while True:
                self._wake.clear()
                try:
                    await self._read_stale()
                    pause_s = _RETRY_FIRST_S
                except MetadataError as error:
                    if pause_s == _RETRY_FIRST_S:
                        _log.warning("nothing is audited until the metadata answers: %s", error)
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, _RETRY_LAST_S)
                    continue
                await self._wake.wait()
        finally:
            self._fresh.clear()
            for watch in self._watches.values():
                self._store.unwatch(watch)
            await self._registrations.close()

    async def _read_stale(self) -> None:
        if not self._stale:
            return
        while self._stale:
            name = min(self._stale)
            self._stale.discard(name)  # first: a change during the read makes it stale again
            try:
                await self._readers[name](self._watches[name])
            except BaseException:
                self._stale.add(name)
                raise
        self._fresh.set()
        for listener in self.listeners:
            listener()

    def _is_outdated(self, name: str) -> None:
        self._stale.add(name)
        self._fresh.clear()
        self._wake.set()

    async def _read_registrations(self, watch: Callable[[], None]) -> None:
        writable, read_only = await self._registrations.bookies(watch)
        self.registered = writable | read_only

    async def _read_switch(self, watch: Callable[[], None]) -> None:
        self.is_enabled = await self._switches.is_enabled(watch)

    async def _read_delay(self, watch: Callable[[], None]) -> None:
        try:
            self.delay = await self._switches.lost_bookie_delay(watch)
        except MetadataFormatError as error:
            _log.error("the configured delay counts for lost bookies: %s", error)
            self.delay = None
