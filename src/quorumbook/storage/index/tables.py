"""The index: where every run of entries lies, and what the ledgers' states are.

One SQLite file for the bookie, one writer, any number of readers:

    run         ledger, first, last     ids; runs of one ledger never overlap
                entry_log, position     where the size field of the first entry lies
                sizes                   INTEGER: all entries have this size;
                                        BLOB: little-endian uint32 for each id, 0 for a hole
                checksum                CRC32C of the run's bytes, NULL after a cut; -1 where other
                                        bytes are there, or -2 less what it was; where they
                                        cannot be read, less than that by one more than 2^32
                lac                     the last add confirmed of its last entry
                seal                    CRC32C of all other columns
    entry_log   id, directory           which ledger directory a log lies in
    ledger      id, master_key, fenced, limbo, explicit_lac, lac, born, seal
    deleted     id, at_ms, seal         ledgers that were deleted not long ago, in wall time: their
                                        fences went with them, and old writers may come back
    meta        key, value
    user_version                        of this schema; a newer one is refused

WAL with ``synchronous=FULL``: a commit that returned is durable, a crash is all or nothing, and
committed rows are visible to every later look-up.  Each look-up is one statement, fully fetched:
an unfinished cursor would pin an old snapshot.

SQLite does not notice a changed bit in a value.  The seals do: a row that breaks its seal is a
damaged index, and so is a row of a table that its SQLite index does not have.

Runs can be rebuilt from the entry logs, ledger states from the side files (``rebuild``).  What
the bytes are, this room does not know.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby
from operator import attrgetter
from typing import Any

from quorumbook.ids import EntryId, LedgerId
from quorumbook.storage.index.files import index_exists
from quorumbook.storage.index.reader import IndexReader
from quorumbook.storage.index.rows import (
    APPLICATION_ID,
    COLUMNS,
    INSERT_DELETION,
    INSERT_RUN,
    INSERT_STATE,
    LATER_SCHEMA,
    SCHEMA,
    SCHEMA_VERSION,
    STATE_COLUMNS,
    DamagedIndexError,
    NewerIndexError,
    deletion_to_row,
    index_errors,
    of_many_rows,
    run_to_row,
    state_to_row,
)
from quorumbook.storage.index.stored_run import StoredRun
from quorumbook.storage.states.state_file import Deletion, StoredLedger

__all__ = ["SCHEMA_VERSION", "DamagedIndexError", "Index", "NewerIndexError"]


#: A commit of many rows is written in slices, between which other threads get the interpreter;
#: they are whole steps, as what is left of one is inserted row by row.  States come by thousands
#: while the loop is at its busiest (fences of ever new ledgers), so theirs are short.
_SLICE_ROWS = 16 * 64
_SLICE_STATES = 2 * 64
#: So many rows are inserted in one step of SQLite.  It gives the interpreter away for each step,
#: and a loop that is busy has it for 0.2 ms then.
_STEP_ROWS = 64
#: Last ids remembered to tell "nothing can overlap" without a look-up.
_LAST_LIMIT = 50_000
#: An index up to this size is checked as a whole at each start.
_CHECK_LIMIT_BYTES = 32 * 1024 * 1024


class Index(IndexReader):
    """The writer; its calls come from one thread at a time.

    Args:
        path: The file.
        create: Make a new one where none is.

    Raises:
        NewerIndexError: A newer release wrote it.
        DamagedIndexError: It has to be rebuilt.
    """

    def __init__(self, path: str, *, create: bool = False) -> None:
        self._last: dict[LedgerId, EntryId] = {}
        if not create and not index_exists(path):
            raise DamagedIndexError("the index is missing", path=path)
        super().__init__(path, cache_size_kib=8192)
        try:
            with index_errors(path):
                self._prepare(create)
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self, create: bool) -> None:
        connection = self._connection
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise NewerIndexError(
                f"the index was written by a newer release (version {version}, this one knows "
                f"{SCHEMA_VERSION})",
                path=self._path,
            )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        if version == SCHEMA_VERSION:
            connection.execute(f"SELECT {COLUMNS} FROM run LIMIT 1").fetchall()  # noqa: S608
            connection.execute(f"SELECT {STATE_COLUMNS} FROM ledger LIMIT 1").fetchall()  # noqa: S608
            connection.executescript(f"BEGIN; {LATER_SCHEMA} COMMIT;")
            return
        if not create:
            raise DamagedIndexError("the file is not an index of ours", path=self._path)
        connection.executescript(
            f"BEGIN; {SCHEMA} {LATER_SCHEMA} PRAGMA application_id = {APPLICATION_ID}; "
            f"PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
        )

    @property
    def is_small(self) -> bool:
        """Tell whether reading it as a whole is a matter of moments."""
        return os.path.getsize(self._path) <= _CHECK_LIMIT_BYTES

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Do all of it or nothing."""
        connection = self._connection
        with index_errors(self._path):
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                # What was remembered of this transaction did not happen.
                self._last.clear()
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def commit(
        self,
        *,
        runs: Iterable[StoredRun] = (),
        states: Sequence[StoredLedger] = (),
        entry_logs: Iterable[tuple[int, str]] = (),
        deleted_ledgers: Iterable[LedgerId] = (),
        deletions: Iterable[Deletion] = (),
        deleted_entry_logs: Iterable[int] = (),
        meta: Iterable[tuple[str, str | None]] = (),
        pause: Callable[[], None] = lambda: None,
    ) -> list[tuple[LedgerId, EntryId, EntryId]]:
        """Write all of it in one transaction; deletions come first.

        Args:
            runs: New runs; in ids that are already there the later one wins.
            states: Ledger states to store.
            entry_logs: New entry logs with their directories.
            deleted_ledgers: Ledgers to forget, runs and state.
            deletions: Which of them are to be remembered as deleted.
            deleted_entry_logs: Entry logs to forget.
            meta: Texts to remember (None: to forget).
            pause: Called between two slices of many rows.

        Returns:
            The ranges in which older runs were replaced: caches must drop them.
        """
        with self._transaction() as connection:
            for number, ledger_id in enumerate(deleted_ledgers, 1):
                if number % _SLICE_ROWS == 0:
                    pause()
                connection.execute("DELETE FROM run WHERE ledger = ?", (ledger_id,))
                connection.execute("DELETE FROM ledger WHERE id = ?", (ledger_id,))
                self._last.pop(ledger_id, None)
            connection.executemany(INSERT_DELETION, map(deletion_to_row, deletions))
            for entry_log_id in deleted_entry_logs:
                connection.execute("DELETE FROM entry_log WHERE id = ?", (entry_log_id,))
            connection.executemany("INSERT OR REPLACE INTO entry_log VALUES (?, ?)", entry_logs)
            replaced = self._put_runs(runs, pause)
            self._put_states(states, pause)
            for key, text in meta:
                connection.execute("DELETE FROM meta WHERE key = ?", (key,))
                if text is not None:
                    connection.execute("INSERT INTO meta VALUES (?, ?)", (key, text))
        return replaced

    def _put_states(self, states: Sequence[StoredLedger], pause: Callable[[], None]) -> None:
        for start in range(0, len(states), _SLICE_STATES):
            part = states[start : start + _SLICE_STATES]
            self._insert(INSERT_STATE, [*map(state_to_row, part)])
            if len(states) > _SLICE_STATES:
                pause()

    def _insert(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        """Insert rows by a statement for one."""
        whole = len(rows) - len(rows) % _STEP_ROWS
        for start in range(0, whole, _STEP_ROWS):
            values = chain.from_iterable(rows[start : start + _STEP_ROWS])
            self._connection.execute(of_many_rows(statement, _STEP_ROWS), tuple(values))
        self._connection.executemany(statement, rows[whole:])

    def _put_runs(
        self, runs: Iterable[StoredRun], pause: Callable[[], None]
    ) -> list[tuple[LedgerId, EntryId, EntryId]]:
        replaced: list[tuple[LedgerId, EntryId, EntryId]] = []
        rows: list[tuple[Any, ...]] = []
        if len(self._last) > _LAST_LIMIT:
            self._last.clear()
        last = self._last
        runs = list(runs)
        new = self._without_runs({run.ledger_id for run in runs}.difference(last))
        for ledger_id, group in groupby(runs, key=attrgetter("ledger_id")):
            known = last.get(ledger_id, -1 if ledger_id in new else None)
            if known is None:
                entry = self.last_entry(ledger_id)
                known = -1 if entry is None else entry[0]
            for run in group:
                if run.first_entry_id > known:
                    rows.append(run_to_row(run))
                    known = run.last_entry_id
                    if len(rows) == _SLICE_ROWS:
                        self._insert(INSERT_RUN, rows)
                        rows = []
                        pause()
                    continue
                self._insert(INSERT_RUN, rows)
                rows = []
                if self._replace(run):
                    replaced.append((ledger_id, run.first_entry_id, run.last_entry_id))
                known = max(known, run.last_entry_id)
            last[ledger_id] = known
        self._insert(INSERT_RUN, rows)
        return replaced

    def _without_runs(self, ledger_ids: set[LedgerId]) -> set[LedgerId]:
        """Return those of these ledgers that have no runs: new ones, thousands at a time maybe."""
        found: set[LedgerId] = set()
        wanted = list(ledger_ids)
        for start in range(0, len(wanted), _SLICE_ROWS):
            part = wanted[start : start + _SLICE_ROWS]
            ids = ",".join([f"({ledger_id})" for ledger_id in part])
            rows = self._rows(
                f"WITH wanted(id) AS (VALUES {ids}) SELECT id FROM wanted "  # noqa: S608
                "WHERE EXISTS (SELECT 1 FROM run WHERE ledger = id)"
            )
            found.update({*part}.difference([row[0] for row in rows]))
        return found

    def _replace(self, run: StoredRun) -> bool:
        """Insert a run where older ones may lie; tell whether there were any."""
        older = self.runs(run.ledger_id, run.first_entry_id, run.last_entry_id)
        if not older:
            self._connection.execute(INSERT_RUN, run_to_row(run))
            return False
        if run.has_holes:
            # An older entry may live on in a hole of the new run, so the holes become borders.
            for piece in list(run.without_holes()):
                self._replace(piece)
            return True
        for old in older:
            self._connection.execute(
                "DELETE FROM run WHERE ledger = ? AND first = ?",
                (old.ledger_id, old.first_entry_id),
            )
            before = old.entry_before(run.first_entry_id)
            if before is not None:
                left = old.part(old.first_entry_id, before)
                self._connection.execute(INSERT_RUN, run_to_row(left))
            after = old.entry_after(run.last_entry_id)
            if after is not None:
                right = old.part(after, old.last_entry_id)
                self._connection.execute(INSERT_RUN, run_to_row(right))
        self._connection.execute(INSERT_RUN, run_to_row(run))
        return True

    def repoint(self, old: StoredRun, entry_log_id: int, position: int) -> bool:
        """Move a run to another entry log if the row is still the one that was copied."""
        with index_errors(self._path):
            moved = run_to_row(old._replace(entry_log_id=entry_log_id, position=position))
            cursor = self._connection.execute(
                "UPDATE run SET entry_log = ?, position = ?, seal = ? WHERE ledger = ? "
                "AND first = ? AND last = ? AND entry_log = ? AND position = ?",
                (entry_log_id, position, moved[-1], *old[:3], old.entry_log_id, old.position),
            )
        return cursor.rowcount == 1

    def divide(self, changes: Iterable[tuple[StoredRun, Sequence[StoredRun]]]) -> int:
        """Put parts in the place of runs, none to drop one, in one transaction.

        Returns:
            How many were still what they are taken for; the others stay as they are.
        """
        count = 0
        with self._transaction() as connection:
            for old, parts in changes:
                cursor = connection.execute(
                    "DELETE FROM run WHERE ledger = ? AND first = ? AND seal = ?",
                    (old.ledger_id, old.first_entry_id, run_to_row(old)[-1]),
                )
                if cursor.rowcount:
                    connection.executemany(INSERT_RUN, map(run_to_row, parts))
                    count += 1
                    # The ledger's highest id may have gone.
                    self._last.pop(old.ledger_id, None)
        return count

    def move_runs(
        self,
        moves: Iterable[tuple[StoredRun, int, int]],
        entry_logs: Iterable[tuple[int, str]],
    ) -> int:
        """Re-point copied runs (run, new entry log, position) in one transaction.

        Returns:
            How many still lay where they were copied from; the others stay as they are.
        """
        with self._transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO entry_log VALUES (?, ?)", entry_logs)
            return sum(self.repoint(*move) for move in moves)

    def forget_deletions(self, before_ms: int, count_max: int) -> int:
        """Forget deletions before a time, and the oldest beyond a number; return how many."""
        if not self._rows("SELECT 1 FROM deleted LIMIT 1"):
            return 0
        oldest = "SELECT id FROM deleted ORDER BY at_ms DESC, id DESC LIMIT -1 OFFSET ?"
        with index_errors(self._path):
            cursor = self._connection.execute(
                f"DELETE FROM deleted WHERE at_ms < ? OR id IN ({oldest})",  # noqa: S608
                (before_ms, count_max),
            )
        return cursor.rowcount

    def truncate_wal(self) -> None:
        """Bring everything into the main file; a clean stop leaves one file behind."""
        with index_errors(self._path):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
