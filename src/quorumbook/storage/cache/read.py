"""Stretches of entries that lie in entry logs, the longest unused ones dropped first.

A stretch is a whole run as the index knows it, read from there or just flushed.  So it serves
single reads and the pieces of batch reads without touching an entry.  The limit counts what the
interpreter really holds.  Whoever replaces entries on disk drops their range here, in the same
loop step in which the write cache that held them goes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict

from quorumbook.ids import EntryId, LedgerId
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.storage.cache.write import LEDGER_OVERHEAD_BYTES, held_bytes


class ReadCache:
    """Runs by ledger and first id, least recently used ones first; used on the event loop."""

    def __init__(self, *, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._runs: OrderedDict[tuple[LedgerId, EntryId], EntryRun] = OrderedDict()
        self._firsts: dict[LedgerId, list[EntryId]] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._runs)

    def find(self, ledger_id: LedgerId, entry_id: EntryId) -> EntryRun | None:
        """Return the run that has the entry."""
        firsts = self._firsts.get(ledger_id)
        if firsts is None:
            return None
        index = bisect_right(firsts, entry_id) - 1
        if index < 0:
            return None
        key = (ledger_id, firsts[index])
        run = self._runs[key]
        if not run.has(entry_id):
            return None
        self._runs.move_to_end(key)
        return run

    def put(self, run: EntryRun) -> None:
        """Keep a run; ranges never overlap, the later one stays."""
        size = held_bytes(run)
        if size > self._limit_bytes:
            return
        self.drop(run.ledger_id, run.first_entry_id, run.last_entry_id)
        firsts = self._firsts.get(run.ledger_id)
        if firsts is None:
            firsts = self._firsts[run.ledger_id] = []
            self.size_bytes += LEDGER_OVERHEAD_BYTES
        firsts.insert(bisect_right(firsts, run.first_entry_id), run.first_entry_id)
        self._runs[run.ledger_id, run.first_entry_id] = run
        self.size_bytes += size
        while self.size_bytes > self._limit_bytes:
            self._remove(*next(iter(self._runs)))

    def drop(self, ledger_id: LedgerId, first_entry_id: EntryId, last_entry_id: EntryId) -> None:
        """Forget every run that touches a range of ids."""
        firsts = self._firsts.get(ledger_id)
        if firsts is None:
            return
        start = bisect_right(firsts, first_entry_id)
        if start and self._runs[ledger_id, firsts[start - 1]].last_entry_id >= first_entry_id:
            start -= 1
        for first in firsts[start : bisect_right(firsts, last_entry_id)]:
            self._remove(ledger_id, first)

    def drop_ledger(self, ledger_id: LedgerId) -> None:
        """Forget a ledger."""
        for first in list(self._firsts.get(ledger_id, ())):
            self._remove(ledger_id, first)

    def _remove(self, ledger_id: LedgerId, first_entry_id: EntryId) -> None:
        run = self._runs.pop((ledger_id, first_entry_id))
        self.size_bytes -= held_bytes(run)
        firsts = self._firsts[ledger_id]
        firsts.pop(bisect_right(firsts, first_entry_id) - 1)
        if not firsts:
            del self._firsts[ledger_id]
            self.size_bytes -= LEDGER_OVERHEAD_BYTES
