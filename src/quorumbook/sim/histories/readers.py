"""What one reader of a ledger is shown: each entry once, in order, up to the end.

    I2   a read yields every entry of its range, in order, and none twice
    I4   the last add confirmed that a reader knows never goes back, and covers what it was shown

``History`` judges the entries themselves; this looks at the sequence of them.
"""

from __future__ import annotations

from quorumbook.ids import INVALID_ENTRY_ID, EntryId, LedgerId
from quorumbook.sim.histories.invariants import Invariant
from quorumbook.sim.histories.ledgers import History


class Reading:
    """One reader, from the first entry on.

    Args:
        history: Gets what the reader is shown, and what is wrong with it.
        ledger_id: What it reads.
        who: The name of its process.
    """

    def __init__(self, history: History, ledger_id: LedgerId, who: str) -> None:
        self.history = history
        self._ledger_id = ledger_id
        self.who = who
        self._next: EntryId = 0
        self._confirmed: EntryId = INVALID_ENTRY_ID

    def shown(self, entry_id: EntryId, payload: bytes) -> None:
        """The reader was shown its next entry."""
        if entry_id != self._next:
            text = f"was shown entry {entry_id}, and entry {self._next} was next"
            self._wrong(Invariant.NO_OUT_OF_ORDER_ENTRIES, text)
        self._next = entry_id + 1
        self.history.read(self._ledger_id, self.who, entry_id, payload)

    def confirmed(self, entry_id: EntryId) -> None:
        """The reader was told a last add confirmed."""
        if entry_id < self._confirmed:
            text = f"knew {self._confirmed} as last add confirmed, and now {entry_id}"
            self._wrong(Invariant.NOTHING_SHOWN_IS_TAKEN_BACK, text)
        elif entry_id < self._next - 1:
            text = f"was shown entry {self._next - 1}, and knows {entry_id} as confirmed"
            self._wrong(Invariant.NOTHING_SHOWN_IS_TAKEN_BACK, text)
        self._confirmed = entry_id
        self.history.confirmed(self._ledger_id, self.who, entry_id)

    def ended(self, last: EntryId) -> None:
        """A read up to some entry came to its end."""
        if self._next != last + 1:
            text = f"read up to entry {last}, and was shown entries up to {self._next - 1}"
            self._wrong(Invariant.ALL_ACKED_ENTRIES_ARE_READABLE, text)

    def left(self) -> None:
        """Following the ledger came to its end, which is that of a closed ledger."""
        ledger = self.history.ledgers[self._ledger_id]
        metadata = ledger.metadata
        if metadata is None and ledger.is_doomed:
            return
        if metadata is None or not metadata.is_closed:
            self._wrong(Invariant.ONE_END, "was told that an open ledger ends")
        else:
            self.ended(metadata.last_entry_id)

    def _wrong(self, broken: Invariant, text: str) -> None:
        self.history.violation(broken, f"{self.who} {text}", self._ledger_id)
