r"""The locks by which whoever moves copies of a ledger keeps out of the others' way.

    <root>/underreplication/locks/urL<id>    bookieId: "<who holds it>"\n    ephemeral

They lie beside the queue of under-replicated ledgers (``queue``), in the peer's nodes,
and are on any ledger, marked or not: a worker, an operator's command that moves copies, and a
bookie that drops copies it need not keep hold one meanwhile.  A lock keeps them out of each
other's way, no more: what makes their work safe is the compare-and-set on the ledger's metadata.
"""

from __future__ import annotations

import asyncio
import contextlib

from quorumbook.errors import (
    MetadataVersionConflict,
    NodeExistsError,
    NoSuchNodeError,
    SessionExpiredError,
)
from quorumbook.ids import LedgerId
from quorumbook.metadata.nodes import create_with_parents, give_up_later, text_record
from quorumbook.metadata.paths import TreePaths
from quorumbook.metadata.store import MetadataStore, Node


class ReplicationLocks:
    """Locks of one holder; they go with the session of its store.

    Args:
        store: Where they lie.
        holder: Whom they name, for people to read.
    """

    def __init__(self, store: MetadataStore, holder: str) -> None:
        self._store = store
        self._data = text_record("LockDataFormat", bookieId=holder or None)
        self._paths = TreePaths(store.ledgers_root)
        #: Locks that are ours, or may be: an answer was lost.
        self._ours: set[LedgerId] = set()
        #: Those of them that nobody here wants any more; one goes back, or is wanted, at a time.
        self._unwanted: set[LedgerId] = set()
        self._turn = asyncio.Lock()
        self._giving_back: asyncio.Task[None] | None = None
        self._ended_sessions = 0
        self._forget_store = store.on_session_expired(self._session_ended)

    def close(self) -> None:
        """Give back what is left, as soon as the store answers, and forget the store."""
        self.give_back(*self._ours)
        if self._giving_back is None:
            self._forget_store()
        else:
            self._giving_back.add_done_callback(lambda _: self._forget_store())

    def _session_ended(self) -> None:
        self._ended_sessions += 1
        self._ours.clear()
        self._unwanted.clear()

    async def take(self, ledger_id: LedgerId) -> bool:
        """Take a ledger's lock, or take it again; False: somebody else has it.

        Raises:
            SessionExpiredError: Renew the session first.
            MetadataUnavailableError: It may be taken; ``release`` gives it back.
        """
        async with self._turn:
            self._unwanted.discard(ledger_id)
        path = self._paths.underreplicated_lock(ledger_id)
        ended_sessions = self._ended_sessions
        try:
            await create_with_parents(self._store, path, self._data, ephemeral=True)
        except NodeExistsError:
            is_ours = await self._find(path) is not None and ledger_id in self._ours
            if not is_ours:
                self._ours.discard(ledger_id)
            return is_ours
        except SessionExpiredError:
            raise
        except BaseException:
            self._ours.add(ledger_id)
            raise
        if ended_sessions != self._ended_sessions:
            raise SessionExpiredError(f"the lock of ledger {ledger_id} went with its session")
        self._ours.add(ledger_id)
        return True

    def is_held(self, ledger_id: LedgerId) -> bool:
        """Tell whether a lock is ours, or may be, as far as this process knows."""
        return ledger_id in self._ours

    async def release(self, ledger_id: LedgerId) -> None:
        """Give a lock back; one that somebody else has by now stays."""
        if ledger_id in self._ours:
            path = self._paths.underreplicated_lock(ledger_id)
            node = await self._find(path)
            if node is not None:
                with contextlib.suppress(
                    NoSuchNodeError, MetadataVersionConflict, SessionExpiredError
                ):
                    await self._store.delete(path, *node.revision)
            self._ours.discard(ledger_id)

    def give_back(self, *ledger_ids: LedgerId) -> None:
        """Give locks back as soon as the store answers, unless they are taken again before."""
        self._unwanted |= self._ours.intersection(ledger_ids)
        if self._unwanted and (self._giving_back is None or self._giving_back.done()):
            self._giving_back = give_up_later(self._store, self._give_back)

    async def _give_back(self) -> None:
        while self._unwanted:
            for ledger_id in sorted(self._unwanted):
                async with self._turn:
                    if ledger_id in self._unwanted:
                        await self.release(ledger_id)
                        self._unwanted.discard(ledger_id)

    async def _find(self, path: str) -> Node | None:
        """Return a lock's node if we can have made it; others share our session, not our name."""
        node = await self._store.exists(path)
        is_ours = (
            node is not None and node.owner == self._store.session_id and node.data == self._data
        )
        return node if is_ours else None

    async def release_all(self) -> None:
        """Give everything back; what fails on the way is tried again by the next call."""
        for ledger_id in sorted(self._ours):
            await self.release(ledger_id)
