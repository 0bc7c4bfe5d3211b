"""Adds on their way: whoever would be denied what they bring waits for them first.

An entry can be read when its group is durable, so between the arrival of an add and its answer
this bookie neither has the entry nor lacks it.  A read that finds nothing, and a list of entries,
wait for the records of their ledger that are in the journal's hands at that moment, then look once
more, and that look counts.  They wait ``max_read_delay_s`` at most, however slow the disk is, and
no more than ``_WAITING_MAX`` at a time; the others are told what is known without waiting.
"""

from __future__ import annotations

from collections.abc import Callable

from quorumbook.bookie.options import BookieOptions
from quorumbook.env import patience
from quorumbook.ids import LedgerId
from quorumbook.storage.store import LedgerStorage

_WAITING_MAX = 10_000


class Arrivals:
    """Those who wait."""

    def __init__(self, options: BookieOptions, storage: LedgerStorage) -> None:
        self._delay_s_max = options.max_read_delay_s
        self._storage = storage
        self._waiting = 0

    def wait(self, ledger_id: LedgerId, callback: Callable[[], None], count: int = 1) -> bool:
        """Call back when what is on its way has come, or the time is over; False: do not wait.

        Args:
            ledger_id: Of which ledger.
            callback: Called once, later, on the loop.
            count: How many requests wait by it.
        """
        handle = self._storage.handle(ledger_id)
        if handle is None or not handle.in_flight or not self._delay_s_max:
            return False
        if self._waiting + count > _WAITING_MAX:
            return False
        self._waiting += count

        def over() -> None:
            timer.cancel()
            cancel_watch()
            self._waiting -= count
            callback()

        cancel_watch = handle.watch_records(over)
        timer = patience.Timer(self._delay_s_max, over)
        return True
