"""A hole in a stream: which records are missing, as exactly as can be known."""

from __future__ import annotations

from typing import NamedTuple

from quorumbook.ids import LedgerId
from quorumbook.streams.format.position import Position


class Gap(NamedTuple):
    """Records that were stored and are missing (G1)."""

    #: Where the first of them was, or a position before it.
    start: Position
    #: Where reading goes on behind them.
    end: Position
    #: The first one's sequence id; below 0 if it is not known.
    first_sequence_id: int
    #: That of the first record behind them; below 0 if it is not known.
    next_sequence_id: int
    #: Why they are missing.
    reason: str
    #: The ledger they were in, if that is known.
    ledger_id: LedgerId | None = None

    @property
    def record_count(self) -> int | None:
        """How many records are missing; None if that is not known."""
        if min(self.first_sequence_id, self.next_sequence_id) < 0:
            return None
        return self.next_sequence_id - self.first_sequence_id
