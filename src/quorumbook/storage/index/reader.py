"""Look-ups in the index, whose tables ``index`` describes: where runs lie, what states are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from quorumbook.ids import EntryId, LedgerId
from quorumbook.storage.index.rows import (
    COLUMNS,
    STATE_COLUMNS,
    DamagedIndexError,
    connect,
    index_errors,
    row_to_deletion,
    row_to_run,
    row_to_state,
)
from quorumbook.storage.index.stored_run import DAMAGED, StoredExtent, StoredRun
from quorumbook.storage.states.state_file import Deletion, StoredLedger

#: Ledgers that are asked for in one statement.
_SLICE_LEDGERS = 1000
_MAX_ENTRY_ID = 2**63 - 1
#: Below every ledger id, also that of the limbo start.
_LEAST_ID = -(2**63)


class IndexReader:
    """Look-ups over one connection, for one thread."""

    def __init__(self, path: str, *, cache_size_kib: int = 2048) -> None:
        self._path = path
        with index_errors(path):
            self._connection = connect(path, cache_size_kib)

    @property
    def path(self) -> str:
        """The file."""
        return self._path

    def another(self) -> IndexReader:
        """Return a reader of the same index, for another thread."""
        return IndexReader(self._path)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with index_errors(self._path):
            return self._connection.execute(statement, values).fetchall()

    def find(self, ledger_id: LedgerId, entry_id: EntryId) -> StoredRun | None:
        """Return the run that holds the entry."""
        rows = self._rows(
            f"SELECT {COLUMNS} FROM run WHERE ledger = ? AND first <= ? "  # noqa: S608
            "ORDER BY first DESC LIMIT 1",
            ledger_id,
            entry_id,
        )
        if not rows or rows[0][2] < entry_id:
            return None
        run = row_to_run(rows[0])
        return run if run.size_of(entry_id) else None

    def last_run(self, ledger_id: LedgerId) -> StoredRun | None:
        """Return the run with the ledger's highest entry."""
        rows = self._rows(
            f"SELECT {COLUMNS} FROM run WHERE ledger = ? ORDER BY first DESC LIMIT 1",  # noqa: S608
            ledger_id,
        )
        return row_to_run(rows[0]) if rows else None

    def last_entry(self, ledger_id: LedgerId) -> tuple[EntryId, EntryId | None] | None:
        """Return the ledger's highest entry id and the last add confirmed it carries."""
        rows = self._rows(
            "SELECT last, lac FROM run WHERE ledger = ? ORDER BY first DESC LIMIT 1", ledger_id
        )
        return rows[0] if rows else None

    def runs(
        self,
        ledger_id: LedgerId,
        first_entry_id: EntryId = 0,
        last_entry_id: EntryId = _MAX_ENTRY_ID,
        *,
        limit: int = -1,
    ) -> list[StoredRun]:
        """Return the runs that touch a range of ids, ascending."""
        rows = self._rows(
            f"SELECT {COLUMNS} FROM run WHERE ledger = ? AND first <= ? "  # noqa: S608
            "AND first >= coalesce((SELECT max(first) FROM run WHERE ledger = ? "
            "AND first <= ?), 0) AND last >= ? ORDER BY first LIMIT ?",
            ledger_id,
            last_entry_id,
            ledger_id,
            first_entry_id,
            first_entry_id,
            limit,
        )
        return [row_to_run(row) for row in rows]

    def ledger_state(self, ledger_id: LedgerId) -> StoredLedger | None:
        """Return what is stored of a ledger besides its entries."""
        rows = self._rows(
            f"SELECT {STATE_COLUMNS} FROM ledger WHERE id = ?",  # noqa: S608
            ledger_id,
        )
        return row_to_state(rows[0]) if rows else None

    def _pages(self, columns: str, table: str) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of a table in the order of their ids, the first column, some at a time.

        Millions at once would stay in the memory of the process for ever: what is made meanwhile
        lies between them.  The table may change between two pages.
        """
        statement = f"SELECT {columns} FROM {table} WHERE id > ? ORDER BY id LIMIT {_SLICE_LEDGERS}"  # noqa: S608
        last = _LEAST_ID
        while rows := self._rows(statement, last):
            yield rows
            last = rows[-1][0]

    def ledger_states(self) -> Iterator[StoredLedger]:
        """Yield the states of all ledgers, ascending, read some at a time."""
        for page in self._pages(STATE_COLUMNS, "ledger"):
            yield from map(row_to_state, page)

    def ledger_ids(self) -> Iterator[LedgerId]:
        """Yield all ledgers, ascending, read some at a time."""
        return (row[0] for page in self._pages("id", "ledger") for row in page)

    def ledger_ids_above(self, ledger_id: LedgerId | None, count: int) -> list[LedgerId]:
        """Return the lowest ledgers above one, or of all, so many at most."""
        above = _LEAST_ID if ledger_id is None else ledger_id
        rows = self._rows("SELECT id FROM ledger WHERE id > ? ORDER BY id LIMIT ?", above, count)
        return [row[0] for row in rows]

    def births(self, ledger_ids: Sequence[LedgerId]) -> dict[LedgerId, int]:
        """Return ``LedgerState.born_at`` of those of these ledgers that are here."""
        found: dict[LedgerId, int] = {}
        for start in range(0, len(ledger_ids), _SLICE_LEDGERS):
            wanted = ",".join(map(str, ledger_ids[start : start + _SLICE_LEDGERS]))
            found.update(self._rows(f"SELECT id, born FROM ledger WHERE id IN ({wanted})"))  # noqa: S608
        return found

    def extents(self, ledger_ids: Sequence[LedgerId]) -> dict[LedgerId, StoredExtent]:
        """Return the extents of those of these ledgers that have runs."""
        wanted = ",".join(map(str, ledger_ids))
        rows = self._rows(
            "SELECT ledger, count(*), sum(last - first + 1), sum(entry_log), sum(position) "  # noqa: S608
            f"FROM run WHERE ledger IN ({wanted}) GROUP BY ledger"
        )
        return {row[0]: StoredExtent(*row[1:]) for row in rows}

    def highest_ledger_id(self) -> LedgerId:
        """Return the highest ledger with a state or a remembered deletion, -1 if none has."""
        rows = self._rows("SELECT max(id) FROM ledger UNION ALL SELECT max(id) FROM deleted")
        highest: LedgerId = max([-1, *(row[0] for row in rows if row[0] is not None)])
        return highest

    def was_deleted(self, ledger_id: LedgerId) -> bool:
        """Tell whether a ledger's deletion is remembered."""
        rows = self._rows("SELECT id, at_ms, seal FROM deleted WHERE id = ?", ledger_id)
        return bool([row_to_deletion(row) for row in rows])

    def deletions(self) -> Iterator[Deletion]:
        """Yield the deletions that are remembered, ascending, read some at a time."""
        for page in self._pages("id, at_ms, seal", "deleted"):
            yield from map(row_to_deletion, page)

    def ledger_ids_without_state(self) -> list[LedgerId]:
        """Return ledgers that have runs but no state (after a rebuild)."""
        rows = self._rows(
            "SELECT DISTINCT ledger FROM run WHERE ledger NOT IN (SELECT id FROM ledger)"
        )
        return [row[0] for row in rows]

    def count_in_limbo(self) -> int:
        """Count the ledgers in limbo."""
        count: int = self._rows("SELECT count(*) FROM ledger WHERE limbo")[0][0]
        return count

    def entry_logs(self) -> dict[int, str]:
        """Return the directory of each entry log."""
        return dict(self._rows("SELECT id, directory FROM entry_log"))

    def entry_logs_without_runs(self) -> list[int]:
        """Return known entry logs in which no run lies any more."""
        rows = self._rows(
            "SELECT id FROM entry_log "
            "WHERE NOT EXISTS (SELECT 1 FROM run WHERE entry_log = entry_log.id)"
        )
        return [row[0] for row in rows]

    def end_of_entry_log(self, entry_log_id: int) -> int:
        """Return where the last run of an entry log ends, 0 if it has none."""
        runs = self.runs_in(entry_log_id)
        return runs[-1].position + runs[-1].size_bytes if runs else 0

    def live_bytes(self, behind: int = -1, logs_max: int = -1) -> dict[int, tuple[int, int, int]]:
        """Return for each entry log with runs their bytes, their number and that of ledgers.

        Reads the whole index, or what it has of so many entry logs behind one.
        """
        rows = self._rows(
            "SELECT entry_log, sum(CASE typeof(sizes) WHEN 'integer' "
            "THEN (last - first + 1) * (sizes + 4) ELSE run_bytes(sizes) END), "
            "count(*), count(DISTINCT ledger) FROM run WHERE entry_log > ? "
            "GROUP BY entry_log ORDER BY entry_log LIMIT ?",
            behind,
            logs_max,
        )
        return {row[0]: (row[1], row[2], row[3]) for row in rows}

    def runs_in(self, entry_log_id: int) -> list[StoredRun]:
        """Return the runs in an entry log, in the order of the file."""
        rows = self._rows(
            f"SELECT {COLUMNS} FROM run WHERE entry_log = ? "  # noqa: S608
            "ORDER BY position",
            entry_log_id,
        )
        return [row_to_run(row) for row in rows]

    def runs_behind(self, entry_log_id: int, position: int, limit: int) -> list[StoredRun]:
        """Return some runs of an entry log from a position on, in the order of the file."""
        rows = self._rows(
            f"SELECT {COLUMNS} FROM run WHERE entry_log = ? AND position >= ? "  # noqa: S608
            "ORDER BY position LIMIT ?",
            entry_log_id,
            position,
            limit,
        )
        return [row_to_run(row) for row in rows]

    def damaged_runs(self, ledger_id: LedgerId | None = None) -> list[StoredRun]:
        """Return the runs that are known to be damaged, of one ledger or of all."""
        where, values = ("", ()) if ledger_id is None else ("AND ledger = ?", (ledger_id,))
        rows = self._rows(
            f"SELECT {COLUMNS} FROM run WHERE checksum <= {DAMAGED} {where} "  # noqa: S608
            "ORDER BY ledger, first",
            *values,
        )
        return [row_to_run(row) for row in rows]

    def ledgers_in_limbo(self) -> list[LedgerId]:
        """Return the ledgers in limbo, ascending."""
        return [row[0] for row in self._rows("SELECT id FROM ledger WHERE limbo ORDER BY id")]

    def check_whole(self) -> None:
        """Read all of it, and see that pages fit together and no row breaks its seal.

        Raises:
            DamagedIndexError: They do not, or one does.
        """
        problem = self._rows("PRAGMA integrity_check(1)")[0][0]
        broken = "SELECT 1 FROM run WHERE NOT is_sealed_run({}) UNION ALL "
        broken += "SELECT 1 FROM ledger WHERE NOT is_sealed_state({}) LIMIT 1"
        if problem == "ok" and self._rows(broken.format(COLUMNS, STATE_COLUMNS)):
            problem = "a row breaks its seal"
        # A copy of an index of an earlier release is looked at as it is.
        if problem == "ok" and self._rows("SELECT 1 FROM sqlite_master WHERE name = 'deleted'"):
            sealed = "is_sealed_deletion(id, at_ms, seal)"
            if self._rows(f"SELECT 1 FROM deleted WHERE NOT {sealed} LIMIT 1"):  # noqa: S608
                problem = "a deletion's row breaks its seal"
        if problem != "ok":
            raise DamagedIndexError(f"the index is damaged: {problem}", path=self._path)

    def meta(self, key: str) -> str | None:
        """Return a remembered text."""
        rows = self._rows("SELECT value FROM meta WHERE key = ?", key)
        return rows[0][0] if rows else None
