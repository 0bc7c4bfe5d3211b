"""The index: where every run of entries lies, and what the ledgers' states are.

One SQLite file for the bookie, one writer, any number of readers:

    run         ledger, first, last     ids; runs of one ledger never overlap
                entry_log, position     where the size field of the first entry lies
                sizes                   INTEGER: all entries have this size;
                                        BLOB: little-endian uint32 for each id, 0 for a hole
                checksum                CRC32C of the run's bytes, NULL after a cut
                lac                     the last add confirmed of its last entry
    entry_log   id, directory           which ledger directory a log lies in
    ledger      id, master_key, fenced, limbo, explicit_lac, lac
    meta        key, value
    user_version                        of this schema; a newer one is refused

WAL with ``synchronous=FULL``: a commit that returned is durable, a crash is all or nothing, and
committed rows are visible to every later look-up.  Each look-up is one statement, fully fetched:
an unfinished cursor would pin an old snapshot.

Runs can be rebuilt from the entry logs, ledger states from the side files (``rebuild``).  What
the bytes are, this room does not know.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from typing import Any

from quorumbook.errors import CorruptIndexError, DiskFullError, StorageError
from quorumbook.ids import EntryId, LedgerId
from quorumbook.storage.index_files import index_exists
from quorumbook.storage.state_file import LedgerState
from quorumbook.storage.stored_run import StoredRun, packed_size_bytes

SCHEMA_VERSION = 1
_APPLICATION_ID = 0x51424958  # "QBIX"
#: A commit of many rows is written in slices, between which other threads get the interpreter.
_SLICE_ROWS = 1000
_SLICE_PAUSE_S = 0.0002
#: Last ids remembered to tell "nothing can overlap" without a look-up.
_LAST_LIMIT = 50_000
#: An index up to this size is checked as a whole at each start.
_CHECK_LIMIT_BYTES = 64 * 1024 * 1024
_MAX_ENTRY_ID = 2**63 - 1

_SCHEMA = """
CREATE TABLE run (
    ledger INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    entry_log INTEGER NOT NULL, position INTEGER NOT NULL, sizes NOT NULL,
    checksum INTEGER, lac INTEGER,
    PRIMARY KEY (ledger, first)) WITHOUT ROWID;
CREATE INDEX run_by_entry_log ON run (entry_log);
CREATE TABLE entry_log (id INTEGER PRIMARY KEY, directory TEXT NOT NULL);
CREATE TABLE ledger (
    id INTEGER PRIMARY KEY, master_key BLOB NOT NULL, fenced INTEGER NOT NULL,
    limbo INTEGER NOT NULL, explicit_lac BLOB, lac INTEGER NOT NULL, born INTEGER NOT NULL);
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
"""
_COLUMNS = "ledger, first, last, entry_log, position, sizes, checksum, lac"
_STATE_COLUMNS = "id, master_key, fenced, limbo, explicit_lac, lac, born"
_INSERT = f"INSERT OR REPLACE INTO run ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?)"  # noqa: S608


class NewerIndexError(CorruptIndexError):
    """A newer release wrote the index; it is whole, but not ours to touch."""


class DamagedIndexError(CorruptIndexError):
    """The file is no index, or its pages do not fit together; it has to be rebuilt."""


@contextmanager
def _index_errors(path: str) -> Iterator[None]:
    """Turn SQLite's errors into ours."""
    try:
        yield
    except sqlite3.Error as error:
        extended = getattr(error, "sqlite_errorcode", 0)
        code = extended & 0xFF
        if code == sqlite3.SQLITE_FULL or extended == sqlite3.SQLITE_IOERR_SHMSIZE:
            raise DiskFullError(f"no space for the index: {error}", path=path) from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise DamagedIndexError(f"the index is damaged: {error}", path=path) from error
        raise StorageError(f"the index failed: {error}", path=path) from error


def _sizes_to_column(sizes: int | Sequence[int]) -> int | bytes:
    if isinstance(sizes, int):
        return sizes
    packed = array("I", sizes)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _row_to_run(row: tuple[Any, ...]) -> StoredRun:
    sizes = row[5]
    if not isinstance(sizes, int):
        packed = array("I")
        packed.frombytes(sizes)
        if sys.byteorder == "big":
            packed.byteswap()
        row = (*row[:5], packed, *row[6:])
    return StoredRun._make(row)


def _run_to_row(run: StoredRun) -> tuple[Any, ...]:
    return (*run[:5], _sizes_to_column(run.sizes), *run[6:])


def _row_to_state(row: tuple[Any, ...]) -> LedgerState:
    return LedgerState(row[0], row[1], bool(row[2]), bool(row[3]), *row[4:])


def _connect(path: str, cache_size_kib: int) -> sqlite3.Connection:
    # Each connection is used by one thread at a time; which one that is changes at the start.
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, cached_statements=32
    )
    connection.execute(f"PRAGMA cache_size = -{cache_size_kib}")
    connection.create_function("run_bytes", 1, packed_size_bytes, deterministic=True)
    return connection


class IndexReader:
    """Look-ups over one connection, for one thread."""

    def __init__(self, path: str, *, cache_size_kib: int = 2048) -> None:
        self._path = path
        with _index_errors(path):
            self._connection = _connect(path, cache_size_kib)

    @property
    def path(self) -> str:
        """The file."""
        return self._path

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with _index_errors(self._path):
            return self._connection.execute(statement, values).fetchall()

    def find(self, ledger_id: LedgerId, entry_id: EntryId) -> StoredRun | None:
        """Return the run that holds the entry."""
        rows = self._rows(
            f"SELECT {_COLUMNS} FROM run WHERE ledger = ? AND first <= ? "  # noqa: S608
            "ORDER BY first DESC LIMIT 1",
            ledger_id,
            entry_id,
        )
        if not rows or rows[0][2] < entry_id:
            return None
        run = _row_to_run(rows[0])
        return run if run.size_of(entry_id) else None

    def last_run(self, ledger_id: LedgerId) -> StoredRun | None:
        """Return the run with the ledger's highest entry."""
        rows = self._rows(
            f"SELECT {_COLUMNS} FROM run WHERE ledger = ? ORDER BY first DESC LIMIT 1",  # noqa: S608
            ledger_id,
        )
        return _row_to_run(rows[0]) if rows else None

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
            f"SELECT {_COLUMNS} FROM run WHERE ledger = ? AND first <= ? "  # noqa: S608
            "AND first >= coalesce((SELECT max(first) FROM run WHERE ledger = ? "
            "AND first <= ?), 0) AND last >= ? ORDER BY first LIMIT ?",
            ledger_id,
            last_entry_id,
            ledger_id,
            first_entry_id,
            first_entry_id,
            limit,
        )
        return [_row_to_run(row) for row in rows]

    def ledger_state(self, ledger_id: LedgerId) -> LedgerState | None:
        """Return what is stored of a ledger besides its entries."""
        rows = self._rows(
            f"SELECT {_STATE_COLUMNS} FROM ledger WHERE id = ?",  # noqa: S608
            ledger_id,
        )
        return _row_to_state(rows[0]) if rows else None

    def ledger_states(self) -> list[LedgerState]:
        """Return the states of all ledgers, ascending."""
        rows = self._rows(f"SELECT {_STATE_COLUMNS} FROM ledger ORDER BY id")  # noqa: S608
        return [_row_to_state(row) for row in rows]

    def ledger_ids(self) -> list[LedgerId]:
        """Return all ledgers, ascending."""
        return [row[0] for row in self._rows("SELECT id FROM ledger ORDER BY id")]

    def births(self, ledger_ids: Sequence[LedgerId]) -> dict[LedgerId, int]:
        """Return ``LedgerState.born_at`` of those of these ledgers that are here."""
        found: dict[LedgerId, int] = {}
        for start in range(0, len(ledger_ids), _SLICE_ROWS):
            wanted = ",".join(map(str, ledger_ids[start : start + _SLICE_ROWS]))
            found.update(self._rows(f"SELECT id, born FROM ledger WHERE id IN ({wanted})"))  # noqa: S608
        return found

    def highest_ledger_id(self) -> LedgerId:
        """Return the highest ledger with a state, -1 if there is none."""
        highest: LedgerId | None = self._rows("SELECT max(id) FROM ledger")[0][0]
        return -1 if highest is None else highest

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

    def live_bytes(self) -> dict[int, tuple[int, int, int]]:
        """Return for each entry log with runs their bytes, their number and that of ledgers.

        Reads the whole index.
        """
        rows = self._rows(
            "SELECT entry_log, sum(CASE typeof(sizes) WHEN 'integer' "
            "THEN (last - first + 1) * (sizes + 4) ELSE run_bytes(sizes) END), "
            "count(*), count(DISTINCT ledger) FROM run GROUP BY entry_log"
        )
        return {row[0]: (row[1], row[2], row[3]) for row in rows}

    def runs_in(self, entry_log_id: int) -> list[StoredRun]:
        """Return the runs in an entry log, in the order of the file."""
        rows = self._rows(
            f"SELECT {_COLUMNS} FROM run WHERE entry_log = ? "  # noqa: S608
            "ORDER BY position",
            entry_log_id,
        )
        return [_row_to_run(row) for row in rows]

    def meta(self, key: str) -> str | None:
        """Return a remembered text."""
        rows = self._rows("SELECT value FROM meta WHERE key = ?", key)
        return rows[0][0] if rows else None


class Index(IndexReader):
    """The writer; its calls come from one thread at a time.

    Args:
        path: The file.
        create: Make a new one where none is.
        pause: Called between slices of a large commit.

    Raises:
        NewerIndexError: A newer release wrote it.
        DamagedIndexError: It has to be rebuilt.
    """

    def __init__(
        self, path: str, *, create: bool = False, pause: Callable[[], None] | None = None
    ) -> None:
        self._pause = pause or (lambda: time.sleep(_SLICE_PAUSE_S))
        self._last: dict[LedgerId, EntryId] = {}
        if not create and not index_exists(path):
            raise DamagedIndexError("the index is missing", path=path)
        super().__init__(path, cache_size_kib=8192)
        try:
            with _index_errors(path):
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
            connection.execute(f"SELECT {_COLUMNS} FROM run LIMIT 1").fetchall()  # noqa: S608
            connection.execute(f"SELECT {_STATE_COLUMNS} FROM ledger LIMIT 1").fetchall()  # noqa: S608
            return
        if not create:
            raise DamagedIndexError("the file is no index of ours", path=self._path)
        connection.executescript(
            f"BEGIN; {_SCHEMA} PRAGMA application_id = {_APPLICATION_ID}; "
            f"PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;"
        )

    def check(self) -> None:
        """See that the pages fit together, if reading them all is a matter of moments.

        Raises:
            DamagedIndexError: They do not.
        """
        if os.path.getsize(self._path) > _CHECK_LIMIT_BYTES:
            return
        with _index_errors(self._path):
            answer = self._connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if answer != "ok":
            raise DamagedIndexError(f"the index is damaged: {answer}", path=self._path)

    def commit(
        self,
        *,
        runs: Iterable[StoredRun] = (),
        states: Sequence[LedgerState] = (),
        entry_logs: Iterable[tuple[int, str]] = (),
        deleted_ledgers: Iterable[LedgerId] = (),
        deleted_entry_logs: Iterable[int] = (),
        meta: Iterable[tuple[str, str | None]] = (),
    ) -> list[tuple[LedgerId, EntryId, EntryId]]:
        """Write all of it in one transaction; deletions come first.

        Args:
            runs: New runs; in ids that are already there the later one wins.
            states: Ledger states to store.
            entry_logs: New entry logs with their directories.
            deleted_ledgers: Ledgers to forget, runs and state.
            deleted_entry_logs: Entry logs to forget.
            meta: Texts to remember (None: to forget).

        Returns:
            The ranges in which older runs were replaced: caches must drop them.
        """
        connection = self._connection
        with _index_errors(self._path):
            connection.execute("BEGIN IMMEDIATE")
            try:
                for number, ledger_id in enumerate(deleted_ledgers, 1):
                    if number % _SLICE_ROWS == 0:
                        self._pause()
                    connection.execute("DELETE FROM run WHERE ledger = ?", (ledger_id,))
                    connection.execute("DELETE FROM ledger WHERE id = ?", (ledger_id,))
                    self._last.pop(ledger_id, None)
                for entry_log_id in deleted_entry_logs:
                    connection.execute("DELETE FROM entry_log WHERE id = ?", (entry_log_id,))
                connection.executemany("INSERT OR REPLACE INTO entry_log VALUES (?, ?)", entry_logs)
                replaced = self._put_runs(runs)
                self._put_states(states)
                for key, text in meta:
                    connection.execute("DELETE FROM meta WHERE key = ?", (key,))
                    if text is not None:
                        connection.execute("INSERT INTO meta VALUES (?, ?)", (key, text))
                connection.execute("COMMIT")
            except BaseException:
                # What was remembered of this transaction did not happen.
                self._last.clear()
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        return replaced

    def _put_states(self, states: Sequence[LedgerState]) -> None:
        for start in range(0, len(states), _SLICE_ROWS):
            self._connection.executemany(
                f"INSERT OR REPLACE INTO ledger ({_STATE_COLUMNS}) VALUES (?,?,?,?,?,?,?)",  # noqa: S608
                states[start : start + _SLICE_ROWS],
            )
            if len(states) > _SLICE_ROWS:
                self._pause()

    def _put_runs(self, runs: Iterable[StoredRun]) -> list[tuple[LedgerId, EntryId, EntryId]]:
        replaced: list[tuple[LedgerId, EntryId, EntryId]] = []
        rows: list[tuple[Any, ...]] = []
        insert = self._connection.executemany
        if len(self._last) > _LAST_LIMIT:
            self._last.clear()
        last = self._last
        for ledger_id, group in groupby(runs, key=attrgetter("ledger_id")):
            known = last.get(ledger_id)
            if known is None:
                entry = self.last_entry(ledger_id)
                known = -1 if entry is None else entry[0]
            for run in group:
                if run.first_entry_id > known:
                    rows.append(_run_to_row(run))
                    known = run.last_entry_id
                    if len(rows) == _SLICE_ROWS:
                        insert(_INSERT, rows)
                        rows = []
                        self._pause()
                    continue
                insert(_INSERT, rows)
                rows = []
                if self._replace(run):
                    replaced.append((ledger_id, run.first_entry_id, run.last_entry_id))
                known = max(known, run.last_entry_id)
            last[ledger_id] = known
        insert(_INSERT, rows)
        return replaced

    def _replace(self, run: StoredRun) -> bool:
        """Insert a run where older ones may lie; tell whether there were any."""
        older = self.runs(run.ledger_id, run.first_entry_id, run.last_entry_id)
        if not older:
            self._connection.execute(_INSERT, _run_to_row(run))
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
                self._connection.execute(_INSERT, _run_to_row(left))
            after = old.entry_after(run.last_entry_id)
            if after is not None:
                right = old.part(after, old.last_entry_id)
                self._connection.execute(_INSERT, _run_to_row(right))
        self._connection.execute(_INSERT, _run_to_row(run))
        return True

    def repoint(self, old: StoredRun, entry_log_id: int, position: int) -> bool:
        """Move a run to another entry log if the row is still the one that was copied."""
        with _index_errors(self._path):
            cursor = self._connection.execute(
                "UPDATE run SET entry_log = ?, position = ? WHERE ledger = ? AND first = ? "
                "AND last = ? AND entry_log = ? AND position = ?",
                (entry_log_id, position, *old[:3], old.entry_log_id, old.position),
            )
        return cursor.rowcount == 1

    def move_runs(
        self,
        moves: Iterable[tuple[StoredRun, int, int]],
        entry_logs: Iterable[tuple[int, str]],
    ) -> int:
        """Re-point copied runs (run, new entry log, position) in one transaction.

        Returns:
            How many still lay where they were copied from; the others stay as they are.
        """
        connection = self._connection
        with _index_errors(self._path):
            connection.execute("BEGIN IMMEDIATE")
            try:
                connection.executemany("INSERT OR REPLACE INTO entry_log VALUES (?, ?)", entry_logs)
                moved = sum(self.repoint(*move) for move in moves)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        return moved

    def truncate_wal(self) -> None:
        """Bring everything into the main file; a clean stop leaves one file behind."""
        with _index_errors(self._path):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
