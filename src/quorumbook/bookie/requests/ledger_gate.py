"""Which plain adds wait for a look at the metadata: where a fence may have been forgotten.

A bookie that starts empty under an id the cluster already knows, or with damage, has lost what it
once promised: fences of ledgers that were recovered long ago, for instance (R26).  An old writer
that comes back must not find it willing.  So for every ledger the first plain add in this process
waits for one look at the metadata: the ledger has to be open, and this bookie in its last
ensemble.

A ledger that was deleted here has lost its fence by that (S14).  If an add of it comes, the same
is asked, at any bookie and each time: the id may be in use again, or an old writer has slept
through recovery and deletion.

Adds of all other ledgers cost nothing more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from quorumbook.env import logger
from quorumbook.errors import NoSuchLedgerInMetadataError
from quorumbook.ids import BookieId, LedgerId
from quorumbook.ledger.metadata import LedgerMetadata, LedgerState
from quorumbook.protocol.status import Status

_log = logger("bookie.gate")
#: How many verdicts are remembered; an older ledger is looked up again.
_REMEMBERED = 100_000


class LedgerGate:
    """Asks the metadata about ledgers.

    Args:
        bookie_id: This bookie.
        read: Returns a ledger's metadata; raises ``NoSuchLedgerInMetadataError``.
        remembers: Keep "may" for later adds; else each verdict is given once.
    """

    def __init__(
        self,
        bookie_id: BookieId,
        read: Callable[[LedgerId], Awaitable[LedgerMetadata]],
        *,
        remembers: bool,
    ) -> None:
        self._bookie_id = bookie_id
        self._read = read
        self._remembers = remembers
        self._verdicts: dict[LedgerId, Status] = {}
        self._waiting: dict[LedgerId, list[Callable[[], None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def verdict(self, ledger_id: LedgerId) -> Status | None:
        """Return OK, a refusal, or None if the metadata has to be asked first."""
        verdict = self._verdicts.get(ledger_id)
        if verdict is not None and not (self._remembers and verdict is Status.OK):
            # A refusal may be out of date tomorrow; it is given to those that waited for it.
            del self._verdicts[ledger_id]
        return verdict

    def ask(self, ledger_id: LedgerId, then: Callable[[], None]) -> None:
        """Call ``then`` when ``verdict`` has an answer; in the order of the calls."""
        waiting = self._waiting.get(ledger_id)
        if waiting is not None:
            waiting.append(then)
            return
        self._waiting[ledger_id] = [then]
        task = asyncio.get_running_loop().create_task(self._look_up(ledger_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """Give up what is being asked."""
        for task in list(self._tasks):
            task.cancel()

    async def _look_up(self, ledger_id: LedgerId) -> None:
        verdict = Status.IO_ERROR
        try:
            verdict = self._judge(await self._read(ledger_id))
        except NoSuchLedgerInMetadataError:
            verdict = Status.FENCED
        except Exception as error:
            _log.warning("ledger %d could not be looked up before its first add: %s",
                         ledger_id, error)  # fmt: skip
        finally:
            if len(self._verdicts) >= _REMEMBERED:
                self._verdicts.clear()
            waiting = self._waiting.pop(ledger_id)
            for then in waiting:
                self._verdicts[ledger_id] = verdict
                then()
            if not (self._remembers and verdict is Status.OK):
                self._verdicts.pop(ledger_id, None)

    def _judge(self, metadata: LedgerMetadata) -> Status:
        if metadata.state is not LedgerState.OPEN:
            _log.warning(
                "refused a writer of ledger %d, which is %s", metadata.ledger_id, metadata.state
            )
            return Status.FENCED
        if self._bookie_id not in metadata.fragments[-1].ensemble:
            _log.warning("refused an add: ledger %d is not written here", metadata.ledger_id)
            return Status.IO_ERROR
        return Status.OK
