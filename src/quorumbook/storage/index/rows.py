"""The rows of the index's tables, their seals, and what SQLite's errors mean.

``index`` says what the tables are for.
"""

from __future__ import annotations

import sqlite3
import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from struct import Struct
from typing import Any

from google_crc32c import extend, value

from quorumbook.errors import CorruptIndexError, DiskFullError, StorageError
from quorumbook.storage.index.files import keep_private
from quorumbook.storage.index.stored_run import DAMAGED, StoredRun, packed_size_bytes
from quorumbook.storage.states.state_file import Deletion, StoredLedger

SCHEMA_VERSION = 1
APPLICATION_ID = 0x51424958  # "QBIX"

SCHEMA = """
CREATE TABLE run (
    ledger INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    entry_log INTEGER NOT NULL, position INTEGER NOT NULL, sizes NOT NULL,
    checksum INTEGER, lac INTEGER, seal INTEGER NOT NULL,
    PRIMARY KEY (ledger, first)) WITHOUT ROWID;
CREATE INDEX run_by_entry_log ON run (entry_log, position);
CREATE TABLE entry_log (id INTEGER PRIMARY KEY, directory TEXT NOT NULL);
CREATE TABLE ledger (
    id INTEGER PRIMARY KEY, master_key BLOB NOT NULL, fenced INTEGER NOT NULL,
    limbo INTEGER NOT NULL, explicit_lac BLOB, lac INTEGER NOT NULL, born INTEGER NOT NULL,
    seal INTEGER NOT NULL);
CREATE INDEX ledger_in_limbo ON ledger (id) WHERE limbo;
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
"""
#: What an index of an earlier release does not have, or has in another way.
LATER_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS deleted (
    id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, seal INTEGER NOT NULL);
DROP INDEX IF EXISTS damaged_run;
CREATE INDEX IF NOT EXISTS condemned_run ON run (ledger, first) WHERE checksum <= {DAMAGED};
"""
COLUMNS = "ledger, first, last, entry_log, position, sizes, checksum, lac, seal"
STATE_COLUMNS = "id, master_key, fenced, limbo, explicit_lac, lac, born, seal"
INSERT_RUN = f"INSERT OR REPLACE INTO run ({COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?)"  # noqa: S608
INSERT_STATE = f"INSERT OR REPLACE INTO ledger ({STATE_COLUMNS}) VALUES (?,?,?,?,?,?,?,?)"  # noqa: S608

INSERT_DELETION = "INSERT OR REPLACE INTO deleted (id, at_ms, seal) VALUES (?,?,?)"


@cache
def of_many_rows(statement: str, count: int) -> str:
    """Return the insertion of so many rows, made of that of one."""
    head, _, values = statement.partition(" VALUES ")
    return f"{head} VALUES {','.join([values] * count)}"


_RUN_SEAL = Struct(">8q")
_STATE_SEAL = Struct(">5q2i")
_DELETION_SEAL = Struct(">2q")
_NULL = -(2**62)


class NewerIndexError(CorruptIndexError):
    """A newer release wrote the index; it is whole, but not ours to touch."""


class DamagedIndexError(CorruptIndexError):
    """The file is no index, or its pages do not fit together; it has to be rebuilt."""


@contextmanager
def index_errors(path: str) -> Iterator[None]:
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


def row_to_run(row: tuple[Any, ...]) -> StoredRun:
    """Turn ``COLUMNS`` into a run.

    Raises:
        DamagedIndexError: The row breaks its seal.
    """
    if not _is_sealed_run(*row):
        raise DamagedIndexError("the index is damaged: a row breaks its seal")
    row = row[:-1]
    sizes = row[5]
    if not isinstance(sizes, int):
        packed = array("I")
        packed.frombytes(sizes)
        if sys.byteorder == "big":
            packed.byteswap()
        row = (*row[:5], packed, *row[6:])
    return StoredRun._make(row)


def run_to_row(run: StoredRun) -> tuple[Any, ...]:
    """Turn a run into ``COLUMNS``."""
    row = (*run[:5], _sizes_to_column(run.sizes), *run[6:])
    return (*row, _seal_of_run(*row))


def row_to_state(row: tuple[Any, ...]) -> StoredLedger:
    """Turn ``STATE_COLUMNS`` into a ledger's state.

    Raises:
        DamagedIndexError: The row breaks its seal.
    """
    if not _is_sealed_state(*row):
        raise DamagedIndexError("the index is damaged: a ledger's row breaks its seal")
    return StoredLedger(row[0], row[1], bool(row[2]), bool(row[3]), *row[4:-1])


def state_to_row(state: StoredLedger) -> tuple[Any, ...]:
    """Turn a ledger's state into ``STATE_COLUMNS``."""
    row = (state[0], state[1], int(state[2]), int(state[3]), *state[4:])
    return (*row, _seal_of_state(*row))


def row_to_deletion(row: tuple[Any, ...]) -> Deletion:
    """Turn a row of ``deleted`` into a deletion.

    Raises:
        DamagedIndexError: The row breaks its seal.
    """
    if not _is_sealed_deletion(*row):
        raise DamagedIndexError("the index is damaged: a deletion's row breaks its seal")
    return Deletion(row[0], row[1])


def deletion_to_row(deletion: Deletion) -> tuple[Any, ...]:
    """Turn a deletion into a row of ``deleted``."""
    return (*deletion, value(_DELETION_SEAL.pack(*deletion)))


def _seal_of_run(*row: Any) -> int:
    ledger, first, last, entry_log, position, sizes, checksum, lac = row
    is_uniform = isinstance(sizes, int)
    head = _RUN_SEAL.pack(
        ledger, first, last, entry_log, position, sizes if is_uniform else -1,
        _NULL if checksum is None else checksum, _NULL if lac is None else lac,
    )  # fmt: skip
    crc: int = value(head)
    return crc if is_uniform else int(extend(crc, sizes))


def _seal_of_state(*row: Any) -> int:
    ledger, master_key, fenced, limbo, explicit_lac, lac, born = row
    packet = b"" if explicit_lac is None else explicit_lac
    length = -1 if explicit_lac is None else len(packet)
    head = _STATE_SEAL.pack(ledger, fenced, limbo, lac, born, len(master_key), length)
    return int(extend(extend(value(head), master_key), packet))


def _is_sealed_run(*row: Any) -> bool:
    try:
        return bool(_seal_of_run(*row[:-1]) == row[-1])
    except (struct.error, TypeError, OverflowError):
        # A value is not even of its type any more.
        return False


def _is_sealed_state(*row: Any) -> bool:
    try:
        return bool(_seal_of_state(*row[:-1]) == row[-1])
    except (struct.error, TypeError, OverflowError):
        return False


def _is_sealed_deletion(*row: Any) -> bool:
    try:
        return bool(value(_DELETION_SEAL.pack(*row[:-1])) == row[-1])
    except (struct.error, TypeError, OverflowError):
        return False


def connect(path: str, cache_size_kib: int) -> sqlite3.Connection:
    """Open the file with the functions that statements use."""
    keep_private(path)
    # Each connection is used by one thread at a time; which one that is changes at the start.
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, cached_statements=32
    )
    connection.execute(f"PRAGMA cache_size = -{cache_size_kib}")
    connection.create_function("run_bytes", 1, packed_size_bytes, deterministic=True)
    connection.create_function("is_sealed_run", 9, _is_sealed_run, deterministic=True)
    connection.create_function("is_sealed_state", 8, _is_sealed_state, deterministic=True)
    connection.create_function("is_sealed_deletion", 3, _is_sealed_deletion, deterministic=True)
    return connection
