"""Going through all ledgers of a cluster, some at a time; memory does not grow with them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from quorumbook.env import logger
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import MetadataFormatError, NoSuchLedgerInMetadataError
from quorumbook.ids import LedgerId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.metadata.ledgers import LedgerManager

_log = logger("autorecovery.auditor")


class SwitchedOffError(Exception):
    """Auditing was switched off in the middle of it."""


async def run_together(*work: Coroutine[Any, Any, None]) -> None:
    """Run coroutines at the same time; the first error, or a cancellation, ends all of them.

    Other than in a task group, a cancellation reaches the innermost of them in the very step in
    which it is asked for: nothing is decided between.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        await cancel_and_wait(tasks)


class LedgerWalk:
    """One way through all ledgers.

    Args:
        ledgers: The cluster's.
        look: Takes the metadata of each ledger and its version.
    """

    def __init__(
        self, ledgers: LedgerManager, look: Callable[[LedgerMetadata, int], Awaitable[None]]
    ) -> None:
        self._ledgers = ledgers
        self._look = look
        #: Ledgers of which metadata, or the mark that they have, cannot be understood.
        self.unreadable = 0
        self.seen = 0

    async def run(self, *, at_once: int) -> None:
        """Look at each ledger that was there when this began.

        Raises:
            QuorumbookError: what listing, reading or looking raised; the others are given up.
        """
        turn = asyncio.Lock()
        async with contextlib.aclosing(self._ledgers.list()) as ids:

            async def work() -> None:
                while True:
                    async with turn:
                        ledger_id = await anext(ids, None)
                    if ledger_id is None:
                        return
                    await self._one(ledger_id)

            await run_together(*(work() for _ in range(at_once)))

    async def _one(self, ledger_id: LedgerId) -> None:
        try:
            metadata, version = await self._ledgers.read(ledger_id)
        except NoSuchLedgerInMetadataError:
            return  # deleted since it was listed
        except MetadataFormatError as error:
            self.unreadable += 1
            _log.error("nothing can be said of ledger %d: %s", ledger_id, error)
            return
        self.seen += 1
        try:
            await self._look(metadata, version)
        except MetadataFormatError as error:
            if error.ledger_id != ledger_id:
                raise
            self.unreadable += 1
            _log.error("ledger %d cannot be marked: %s", ledger_id, error)
