"""Reads that a cache answers: one run of entries serves the reads that follow in it.

An object lives for one sweep over the queue of a connection; ``reads.py`` makes it, and hands what
no cache has to the storage.
"""

from __future__ import annotations

from quorumbook.ids import EntryId, LedgerId
from quorumbook.protocol import answers
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.protocol.requests import Read
from quorumbook.storage.store import LedgerStorage

#: Answers of a row leave in pieces of about this size.
PIECE_BYTES = 64 * 1024
#: Entries found one by one before it is looked whether others have their turn.
_FOUND_MAX = 64


class CachedEntries:
    """Entries in memory for one sweep over a queue: a run serves the reads that follow in it."""

    __slots__ = (
        "_first",
        "_found",
        "_last",
        "_ledger_id",
        "_max_lac",
        "_run",
        "_storage",
        "hits",
        "size_bytes",
    )

    def __init__(self, storage: LedgerStorage) -> None:
        self._storage = storage
        self._ledger_id = -1
        self._first, self._last = 0, -1
        self._run: EntryRun | None = None
        self._max_lac: EntryId | None = None
        self._found = 0
        self.hits = 0
        self.size_bytes = 0

    def may_go_on(self, size_bytes_max: int) -> bool:
        """Tell whether the sweep may look for more, of no more than so many bytes so far."""
        return self.size_bytes <= size_bytes_max and self._found < _FOUND_MAX

    def entry(self, ledger_id: LedgerId, entry_id: EntryId) -> bytes | None:
        """Return an entry if a cache has it."""
        if ledger_id == self._ledger_id and self._first <= entry_id <= self._last:
            assert self._run is not None
            start, end = self._run.bounds(entry_id)
            if end > start:
                self._found += 1
                return self._run.data[start:end]
            # A hole of this run; the entry may be in another one.
        found = self._storage.cached_run(ledger_id, entry_id)
        if found is None:
            return None
        self._run, self._last = found
        self._ledger_id, self._first = ledger_id, entry_id
        self._max_lac = last_confirmed(self._storage, ledger_id)
        self._found += 1
        return self._run.entry(entry_id)

    def row(self, ledger_id: LedgerId, entry_ids: range) -> list[memoryview]:
        """Return the first entries of a row, as long as they are cached and of one size.

        They are as many as the processor's own cache holds: then the copies cost little, and the
        peer begins with the first ones while the others are on their way.
        """
        first = entry_ids[0]
        found = self._storage.cached_run(ledger_id, first)
        if found is None:
            return []
        run, until = found
        start, end = run.bounds(first)
        size = end - start
        count = min((until - first) // entry_ids.step + 1, PIECE_BYTES // size + 1)
        entries = run.entries_at(entry_ids[:count])
        if not isinstance(run.sizes, int):
            sizes = list(map(len, entries))
            if sizes.count(size) != len(sizes):
                return []
        self.hits += len(entries)
        self.size_bytes += size * len(entries)
        return entries

    def answer(self, request: Read) -> bytes | None:
        """Return the answer to a plain read if a cache has its entry."""
        entry = self.entry(request.ledger_id, request.entry_id)
        if entry is None:
            return None
        self.hits += 1
        self.size_bytes += len(entry)
        return answers.found_answer(request, entry, self._max_lac)


def last_confirmed(storage: LedgerStorage, ledger_id: LedgerId) -> EntryId | None:
    """Return the last add confirmed that the bookie knows of a ledger."""
    handle = storage.handle(ledger_id)
    return None if handle is None else handle.last_add_confirmed
