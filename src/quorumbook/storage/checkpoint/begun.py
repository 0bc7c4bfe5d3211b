"""Which ledgers the index may have, told without asking it.

The first add of a new ledger would look for it in vain, twice.  Ids mostly ascend, but not every
one: a client has a few of its new ledgers known to bookies ahead of those that it made before.  So
what began since the start is remembered by id, above a floor up to which the index is asked.
"""

from __future__ import annotations

from quorumbook.ids import LedgerId

#: So many are remembered at most; half of them are dropped then, which takes a millisecond or two.
_REMEMBERED_MAX = 16_384


class BegunLedgers:
    """Ledgers that began here, or were deleted, since the start.

    Args:
        floor: The highest ledger that the index had then.
    """

    def __init__(self, floor: LedgerId) -> None:
        self._floor = floor
        self._begun: set[LedgerId] = set()

    def add(self, ledger_id: LedgerId) -> None:
        """Remember a ledger of which the index may hear."""
        if ledger_id <= self._floor:
            return
        self._begun.add(ledger_id)
        if len(self._begun) > _REMEMBERED_MAX:
            # The highest are kept: the next ledgers begin there.
            ids = sorted(self._begun)
            self._floor = ids[len(ids) // 2]
            self._begun = {each for each in ids if each > self._floor}

    def may_have(self, ledger_id: LedgerId) -> bool:
        """Tell whether the index may have something of a ledger, or will have."""
        return ledger_id <= self._floor or ledger_id in self._begun
