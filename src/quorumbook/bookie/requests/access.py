"""Who may write to a ledger or fence it: whoever has its master key (R13).

The key of the first add, fence or LAC write is the ledger's for good.  It is compared in constant
time and written nowhere but into the journal, the index and its copies; logs never see it.
"""

from __future__ import annotations

from quorumbook.env import Clock, SparseLines, logger
from quorumbook.errors import StorageError
from quorumbook.ids import MASTER_KEY_SIZE_BYTES, LedgerId
from quorumbook.protocol.status import Status, status_for
from quorumbook.storage.states.ledgers import LedgerHandle
from quorumbook.storage.store import LedgerStorage

_log = logger("bookie.access")


class LedgerAccess:
    """Opens ledgers for those who show their keys.

    Args:
        clock: Says when a line of the log may be written.
        storage: Where ledgers are.
    """

    def __init__(self, clock: Clock, storage: LedgerStorage) -> None:
        self._clock = clock
        self._storage = storage
        self._begun_log = SparseLines(_log)

    def open(
        self, ledger_id: LedgerId, master_key: bytes | None, who: str
    ) -> LedgerHandle | Status:
        """Return the ledger's handle, a new one if it is unknown, or the refusal.

        Args:
            ledger_id: Which one.
            master_key: What is shown for it.
            who: Whom the log names as the one who begins a ledger.
        """
        if ledger_id < 0:
            # Below zero lie the marks that journals and entry logs keep among their records.
            return Status.BAD_REQUEST
        if master_key is None or len(master_key) != MASTER_KEY_SIZE_BYTES:
            return Status.UNAUTHORIZED
        try:
            handle = self._storage.handle(ledger_id)
        except StorageError as error:
            _log.error("the index cannot tell of ledger %d: %s", ledger_id, error)
            return status_for(error)
        if handle is None:
            self._begun_log.say(self._clock.now_ns(), "ledger %d is begun by %s", ledger_id, who)
            return self._storage.create_handle(ledger_id, master_key)
        return handle if handle.accepts_key(master_key) else Status.UNAUTHORIZED
