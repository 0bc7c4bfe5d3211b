"""Finds what attempts left that can never be committed, and deletes it.

An attempt's node is first moved to the garbage, in one step that fails if the head has changed; a
commit that wants the same attempt fails from then on.  Its ledgers are deleted after that, and the
garbage's node last, so that whoever is interrupted leaves something that says what is left to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quorumbook.client.client import BookKeeper
from quorumbook.env import logger
from quorumbook.errors import NoSuchLedgerInMetadataError, QuorumbookError
from quorumbook.ids import LedgerId
from quorumbook.streams.transactions.nodes import TransactionNodes
from quorumbook.streams.transactions.state import Identity, can_never_commit

_log = logger("streams.transactions")
#: So long a process may take from announcing a ledger to making it.
_ANNOUNCED_MS = 3600_000


class OrphanedDraft(NamedTuple):
    """An attempt that was cleaned up, or would be."""

    application: str
    name: str
    ledgers: Sequence[LedgerId]


class Orphans:
    """The orphans of one application."""

    def __init__(self, client: BookKeeper, nodes: TransactionNodes, ttl_s: float) -> None:
        """Take whose.

        Args:
            client: Who deletes ledgers.
            nodes: The application's.
            ttl_s: An attempt at which nothing was done for so long is nobody's any more.
        """
        self._client = client
        self._nodes = nodes
        self._ttl_ms = int(ttl_s * 1000)

    async def drop_attempts(self, who: Identity, batch: int) -> None:
        """Clean up what one run wrote for a batch, unless the batch is committed."""
        while True:
            head, revision = await self._nodes.read_head()
            if head.query == who.query and batch <= head.batch:
                return
            names = [name for name in await self._nodes.attempts() if name.batch == batch]
            for found in await self._nodes.read_attempts(names):
                is_mine = found.record.run == who.run
                if is_mine and not await self._nodes.discard(found, revision):
                    break
            else:
                break
        await self.empty_garbage()

    async def sweep(
        self, *, dry_run: bool = False, up_to_batch: int | None = None
    ) -> list[OrphanedDraft]:
        """Clean up what can never be committed, and what is too old; return what it was.

        Args:
            dry_run: Only return it.
            up_to_batch: Look at attempts at these batches only.
        """
        found: dict[str, OrphanedDraft] = {}
        while True:
            head, revision = await self._nodes.read_head()
            names = await self._nodes.attempts()
            if up_to_batch is not None:
                names = [name for name in names if name.batch <= up_to_batch]
            for each in await self._nodes.read_attempts(names):
                name, record, node = each
                is_old = self._age_ms(node.mtime_ms) >= self._ttl_ms
                if not is_old and not can_never_commit(head, name, record):
                    continue
                if not dry_run and not await self._nodes.discard(each, revision):
                    break
                found[str(name)] = OrphanedDraft(self._nodes.application, str(name), record.ledgers)
            else:
                break
        orphans = list(found.values())
        if up_to_batch is None:
            left = [
                each
                for each in await self._nodes.garbage()
                if each[0] not in found and self._age_ms(each[1].due_ms) >= 0
            ]
            orphans += [
                OrphanedDraft(self._nodes.application, each[0], each[1].ledgers) for each in left
            ]
        if not dry_run:
            await self.empty_garbage()
        return orphans

    async def empty_garbage(self) -> None:
        """Delete ledgers that are due; what cannot be deleted now stays garbage."""
        for name, record, node in await self._nodes.garbage():
            if self._age_ms(record.due_ms) < 0:
                continue
            is_missing = False
            try:
                for ledger_id in record.ledgers:
                    try:
                        await self._client.delete_ledger(ledger_id)
                    except NoSuchLedgerInMetadataError:
                        is_missing = True
            except QuorumbookError as error:
                _log.warning("ledgers of %s are left behind: %s", name, error)
                continue
            # One that is missing may have been announced by a process that is about to make it; it
            # sees by itself that nobody wants it, unless it dies right then.
            if not is_missing or self._age_ms(node.ctime_ms) >= _ANNOUNCED_MS:
                await self._nodes.forget_garbage(name)

    def _age_ms(self, time_ms: int) -> int:
        return self._nodes.store.env.clock.wall_ms() - time_ms
