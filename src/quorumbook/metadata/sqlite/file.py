"""The file of the sqlite metadata store: tables, creation, and what is said about bad files.

    node      one row a node; ``creation_id`` ascends for ever, a path is (parent, name),
              the root is ('', '')
    session   one row a living session: its boot, the end of its lease in nanoseconds of the
              machine's monotonic clock, its length, and a few words about its process

The file says by its application id that it is ours and by its user version which tables it has.
It holds ledger passwords, so nobody but its owner may read it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from urllib.parse import quote

from quorumbook.errors import (
    ClusterNotInitializedError,
    MetadataError,
    MetadataFormatError,
    MetadataUnavailableError,
)

APPLICATION_ID = 0x51424D44  # "QBMD"
SCHEMA_VERSION = 1
#: How long a transaction waits for another process to end its own.
BUSY_TIMEOUT_S = 5.0

_TABLES = """
CREATE TABLE node (
    creation_id INTEGER PRIMARY KEY AUTOINCREMENT,
    parent TEXT NOT NULL,
    name TEXT NOT NULL,
    data BLOB NOT NULL,
    version INTEGER NOT NULL,
    created_count INTEGER NOT NULL,
    children_count INTEGER NOT NULL,
    owner INTEGER NOT NULL,
    ctime_ms INTEGER NOT NULL,
    mtime_ms INTEGER NOT NULL,
    UNIQUE (parent, name));
CREATE INDEX node_owner ON node (owner) WHERE owner <> 0;
CREATE TABLE session (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    boot TEXT NOT NULL,
    lease_end_ns INTEGER NOT NULL,
    timeout_ns INTEGER NOT NULL,
    process TEXT NOT NULL);
INSERT INTO node VALUES (1, '', '', x'', 0, 0, 0, 0, 0, 0);
"""


def init_command(uri: str) -> str:
    """Return the command that makes a cluster at this URI."""
    return f"quorumbook cluster init --metadata {uri}"


def open_file(path: str, uri: str, *, create: bool) -> sqlite3.Connection:
    """Open, and if told to create, the file; to be used on this thread alone.

    Raises:
        ClusterNotInitializedError: it does not exist, or holds nothing at all.
        MetadataFormatError: it is damaged, of another program or of a newer release.
        MetadataUnavailableError: it cannot be opened.
    """
    if create:
        with _making(path):
            return _open(path, uri, create=True)
    if not os.path.exists(path):
        raise ClusterNotInitializedError(
            f"there is no metadata file {path}; make a cluster with: {init_command(uri)}"
        )
    if os.path.isdir(path):
        raise MetadataFormatError(f"{path} is a directory, not a metadata file")
    return _open(path, uri, create=False)


def _open(path: str, uri: str, *, create: bool) -> sqlite3.Connection:
    with sqlite_errors(path):
        connection = sqlite3.connect(
            f"file:{quote(os.path.abspath(path))}?mode=rw",
            uri=True,
            timeout=BUSY_TIMEOUT_S,
            isolation_level=None,
        )
    try:
        with sqlite_errors(path):
            _prepare(connection, path, uri, create=create)
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def sqlite_errors(path: str) -> Iterator[None]:
    """Turn the errors of the sqlite3 module into ours, with one clear line."""
    try:
        yield
    except sqlite3.Error as error:
        raise metadata_error(error, path) from error


def metadata_error(error: sqlite3.Error, path: str) -> MetadataError:
    """Return our error for one of the sqlite3 module."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = code & 0xFF if code is not None else None
    if primary == sqlite3.SQLITE_NOTADB:
        return MetadataFormatError(f"{path} is not a metadata file: {error}")
    if primary == sqlite3.SQLITE_CORRUPT:
        return MetadataFormatError(
            f"metadata file {path} is damaged ({error}); restore it from a copy"
        )
    if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return MetadataUnavailableError(
            f"metadata file {path} is held by another process, which does not let go of it"
        )
    return MetadataUnavailableError(f"metadata file {path}: {error}")


@contextlib.contextmanager
def _making(path: str) -> Iterator[None]:
    """Make an empty file if there is none, and keep other makers away for a while."""
    directory = os.path.dirname(os.path.abspath(path))
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _cannot_make(path, error) from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            # SQLite gives its side files the mode of the file itself.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
                os.fsync(fd)
        except OSError as error:
            raise _cannot_make(path, error) from error
        yield
    finally:
        os.close(fd)


def _cannot_make(path: str, error: OSError) -> MetadataUnavailableError:
    return MetadataUnavailableError(f"metadata file {path} cannot be made: {error.strerror}")


def _prepare(connection: sqlite3.Connection, path: str, uri: str, *, create: bool) -> None:
    _check_owner(connection, path)
    version = _pragma(connection, "user_version")
    if version == 0 and create:
        connection.execute("PRAGMA journal_mode = WAL").fetchall()
        _make_tables(connection)
        version = _pragma(connection, "user_version")
    if version == 0:
        raise ClusterNotInitializedError(
            f"metadata file {path} is empty; make a cluster with: {init_command(uri)}"
        )
    if version > SCHEMA_VERSION:
        raise MetadataFormatError(
            f"metadata file {path} was written by a newer release (format {version}, this "
            f"release knows {SCHEMA_VERSION})"
        )
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("SELECT creation_id FROM node WHERE parent = '' AND name = ''").fetchall()


def _check_owner(connection: sqlite3.Connection, path: str) -> None:
    # One transaction: somebody may be making the tables right now.
    connection.execute("BEGIN")
    owner = _pragma(connection, "application_id")
    tables = connection.execute("SELECT name FROM sqlite_master LIMIT 1").fetchall()
    connection.execute("COMMIT")
    if owner != APPLICATION_ID and (owner or tables):
        raise MetadataFormatError(f"{path} is an SQLite file of another program")


def _make_tables(connection: sqlite3.Connection) -> None:
    """Make all tables in one transaction; a second process that comes too late finds them."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        if _pragma(connection, "user_version") == 0:
            for statement in _TABLES.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
