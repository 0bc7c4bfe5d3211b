"""The tree's rows and the sessions in the tables of ``file``; used inside a transaction."""

from __future__ import annotations

import sqlite3

from quorumbook.metadata.store import split
from quorumbook.metadata.tree import Row, Stamp

_COLUMNS = "data, version, created_count, children_count, creation_id, owner, ctime_ms, mtime_ms"
_INSERT = (
    "INSERT INTO node (parent, name, data, version, created_count, children_count, owner, "
    "ctime_ms, mtime_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def _key(path: str) -> tuple[str, str]:
    return ("", "") if path == "/" else split(path)


class SqliteRows:
    """Rows of one connection; its thread alone uses it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def find(self, path: str) -> Row | None:
        """Return the row, or None."""
        found = self._connection.execute(
            f"SELECT {_COLUMNS} FROM node WHERE parent = ? AND name = ?",  # noqa: S608 - constant
            _key(path),
        ).fetchall()
        return Row(*found[0]) if found else None

    def stamp(self, path: str) -> Stamp | None:
        """Return what changes when the node does."""
        found = self._connection.execute(
            "SELECT creation_id, version, created_count, children_count FROM node "
            "WHERE parent = ? AND name = ?",
            _key(path),
        ).fetchall()
        return Stamp(*found[0]) if found else None

    def insert(self, path: str, row: Row) -> None:
        """Add a row; AUTOINCREMENT never gives a creation id twice."""
        parent, name = _key(path)
        counts = (row.version, row.created_count, row.children_count)
        cursor = self._connection.execute(
            _INSERT, (parent, name, row.data, *counts, row.owner, row.ctime_ms, row.mtime_ms)
        )
        assert cursor.lastrowid is not None
        row.creation_id = cursor.lastrowid

    def save_data(self, path: str, row: Row) -> None:
        """Write back data, version and mtime."""
        del path  # the interface names rows by path, the table by creation id
        self._connection.execute(
            "UPDATE node SET data = ?, version = ?, mtime_ms = ? WHERE creation_id = ?",
            (row.data, row.version, row.mtime_ms, row.creation_id),
        )

    def save_counts(self, path: str, row: Row) -> None:
        """Write back the counts of children."""
        del path
        self._connection.execute(
            "UPDATE node SET created_count = ?, children_count = ? WHERE creation_id = ?",
            (row.created_count, row.children_count, row.creation_id),
        )

    def remove(self, path: str) -> None:
        """Remove a row."""
        self._connection.execute("DELETE FROM node WHERE parent = ? AND name = ?", _key(path))

    def child_names(self, path: str) -> list[str]:
        """Return the names of the children, sorted."""
        found = self._connection.execute(
            "SELECT name FROM node WHERE parent = ? ORDER BY name", (path,)
        ).fetchall()
        return [name for (name,) in found]

    def paths_owned_by(self, session_id: int) -> list[str]:
        """Return the paths of a session's ephemeral nodes."""
        found = self._connection.execute(
            "SELECT parent, name FROM node WHERE owner = ? ORDER BY parent, name", (session_id,)
        ).fetchall()
        return [f"/{name}" if parent == "/" else f"{parent}/{name}" for parent, name in found]


class SqliteSessions:
    """Sessions of all processes; their leases are moments of one boot's monotonic clock."""

    def __init__(self, connection: sqlite3.Connection, boot: str) -> None:
        self._connection = connection
        self._boot = boot

    def begin(self, now_ns: int, timeout_ns: int, process: str) -> int:
        """Begin a session and return its id; ids are never given twice."""
        cursor = self._connection.execute(
            "INSERT INTO session (boot, lease_end_ns, timeout_ns, process) VALUES (?, ?, ?, ?)",
            (self._boot, now_ns + timeout_ns, timeout_ns, process),
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def over(self, now_ns: int) -> list[int]:
        """Return the sessions whose lease is over, or of another boot."""
        found = self._connection.execute(
            "SELECT id FROM session WHERE lease_end_ns <= ? OR boot <> ?", (now_ns, self._boot)
        ).fetchall()
        return [session_id for (session_id,) in found]

    def is_living(self, session_id: int) -> bool:
        """Tell whether a session goes on."""
        return bool(
            self._connection.execute("SELECT 1 FROM session WHERE id = ?", (session_id,)).fetchall()
        )

    def extend(self, session_id: int, lease_end_ns: int) -> None:
        """Extend a lease, if the session goes on."""
        self._connection.execute(
            "UPDATE session SET lease_end_ns = ? WHERE id = ?", (lease_end_ns, session_id)
        )

    def extend_others(self, session_id: int, by_ns: int) -> None:
        """Extend all leases but one."""
        self._connection.execute(
            "UPDATE session SET lease_end_ns = lease_end_ns + ? WHERE id <> ? AND boot = ?",
            (by_ns, session_id, self._boot),
        )

    def end(self, session_id: int) -> None:
        """Forget a session; its ephemeral nodes are the caller's to remove."""
        self._connection.execute("DELETE FROM session WHERE id = ?", (session_id,))
