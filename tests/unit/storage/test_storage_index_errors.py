"""What an error of the index means to the bookie."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from quorumbook.errors import DiskFullError, StorageError
from quorumbook.storage.index import files
from quorumbook.storage.index.rows import index_errors
from quorumbook.storage.index.tables import DamagedIndexError, Index


@pytest.mark.parametrize(
    ("code", "meant"),
    [
        (sqlite3.SQLITE_FULL, DiskFullError),
        (sqlite3.SQLITE_IOERR_SHMSIZE, DiskFullError),
        (sqlite3.SQLITE_CORRUPT, DamagedIndexError),
        (sqlite3.SQLITE_NOTADB, DamagedIndexError),
        (sqlite3.SQLITE_IOERR_READ, StorageError),
        (sqlite3.SQLITE_BUSY, StorageError),
    ],
)
def test_s55_a_full_disk_and_damage_are_told_apart_from_other_errors(
    code: int, meant: type[StorageError]
) -> None:
    """On a full disk a bookie turns read-only; other errors end it after a few attempts.

    A full disk shows in two ways: in a write of the file, and in the growth of the shared
    memory beside it, which SQLite calls an I/O error.
    """
    error = sqlite3.OperationalError("an error")
    error.sqlite_errorcode = code
    with pytest.raises(StorageError) as raised, index_errors("/index"):
        raise error
    assert type(raised.value) is meant


def test_r21_a_commit_of_the_index_is_synced(tmp_path: Path) -> None:
    """lastMark moves on behind a commit: what the index forgot would be in no journal."""
    index = Index(str(tmp_path / "index.db"), create=True)
    for name, wanted in (("journal_mode", "wal"), ("synchronous", 2)):
        # How SQLite was opened.
        assert index._connection.execute(f"PRAGMA {name}").fetchone() == (wanted,)
    index.close()


@pytest.mark.parametrize(
    ("look", "name"),
    [
        (files.index_exists, "i"),
        (files.is_distrusted, "i.suspect"),
        (files.settle_index, "i"),
        (files.settle_index, "i-wal"),
        (files.set_aside, "i"),
        (files.remove_index, "i"),
        (lambda path: files.copy_index(path, f"{path}.scratch"), "i-wal"),
        (Index, "i"),
    ],
)
def test_an_index_that_cannot_be_looked_at_is_neither_lost_nor_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: Callable[[str], object], name: str
) -> None:
    path, stat = f"{tmp_path}/i", os.stat
    for suffix in ("", "-wal", ".suspect"):
        Path(path + suffix).write_bytes(b"kept")
    Path(f"{path}.scratch").mkdir()

    def failing(asked: str, *given: object, **named: object) -> object:
        if asked == f"{tmp_path}/{name}":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return stat(asked, *given, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", failing)
        with pytest.raises(StorageError) as caught:
            look(path)
    assert type(caught.value) is StorageError, "a damaged index is rebuilt"
    assert Path(path).read_bytes() == b"kept"
