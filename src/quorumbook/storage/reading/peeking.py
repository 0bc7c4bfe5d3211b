"""Single entries whose bytes the operating system has in memory: read without the read worker.

A hop to the worker and back costs more than everything else such a read does.  So rows of the
index that single reads used lately are remembered here, on the event loop, and the bytes are
asked for with the condition that nothing waits for the disk.  What that does not give, or gives
with another head than the index says, is left to the worker (``loading``), which knows what it
means.

Rows are as old as the look-up that brought them: whoever replaces or deletes entries calls
``forget`` when they leave the write caches, which are asked before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from quorumbook.errors import StorageError
from quorumbook.ids import EntryId, LedgerId
from quorumbook.storage.entrylog.reader import EntryLogReader
from quorumbook.storage.index.stored_run import StoredRun
from quorumbook.storage.reading.loading import entry_head

#: With sizes of their own for each entry, a row takes up to 4 KB.
_ROWS_MAX = 1024
#: Larger entries would hold up the loop while they are copied.
_PEEK_SIZE_BYTES = 64 * 1024


class Peeks:
    """Rows by ledger; used on the event loop, with a reader of its own."""

    def __init__(self, logs: EntryLogReader) -> None:
        self._logs = logs
        self._rows: dict[LedgerId, tuple[list[EntryId], list[StoredRun]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def keep(self, rows: Sequence[StoredRun]) -> None:
        """Remember rows that a job has just looked up."""
        for row in rows:
            if self._count >= _ROWS_MAX:
                self.forget()
            firsts, known = self._rows.setdefault(row.ledger_id, ([], []))
            index = bisect_right(firsts, row.first_entry_id)
            if index and firsts[index - 1] == row.first_entry_id:
                known[index - 1] = row
                continue
            firsts.insert(index, row.first_entry_id)
            known.insert(index, row)
            self._count += 1

    def forget(self) -> None:
        """Look everything up anew."""
        self._rows.clear()
        self._count = 0

    def entry(self, ledger_id: LedgerId, entry_id: EntryId) -> bytes | None:
        """Return an entry that can be had at once."""
        firsts, rows = self._rows.get(ledger_id, ((), ()))
        index = bisect_right(firsts, entry_id) - 1
        if index < 0 or rows[index].last_entry_id < entry_id:
            return None
        row = rows[index]
        size = row.size_of(entry_id)
        if row.is_damaged or not 0 < size <= _PEEK_SIZE_BYTES:
            return None
        try:
            data = self._logs.peek(row.entry_log_id, row.position_of(entry_id), size + 4)
        except StorageError:
            return None
        if data is None or entry_head(data, 0) != (size, ledger_id, entry_id):
            return None
        return data[4:]
