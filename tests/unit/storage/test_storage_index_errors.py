"""What an error of the index means to the bookie."""

from __future__ import annotations

import sqlite3

import pytest

from quorumbook.errors import DiskFullError, StorageError
from quorumbook.storage.index import DamagedIndexError, _index_errors


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
    with pytest.raises(StorageError) as raised, _index_errors("/index"):
        raise error
    assert type(raised.value) is meant
