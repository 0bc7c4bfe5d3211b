"""Space kept in a file of zeros, to be given up where a full disk would stop what gives space back.

compaction.reserve    in the first ledger directory: a step of compaction (``gc/logs``)
start.reserve         there too: what the index needs to be opened at all (``startup``)
"""

from __future__ import annotations

import contextlib

from quorumbook.env import Disk
from quorumbook.errors import DiskFullError, StorageError

COMPACTION_NAME = "compaction.reserve"
START_NAME = "start.reserve"
#: The shared memory of SQLite, the first pages of its log of changes, and directory blocks.
START_SIZE_BYTES = 256 * 1024


class Reserve:
    """One such file; all calls block."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path

    def take(self, size_bytes: int) -> None:
        """Keep so much, if it is not kept yet and there is room."""
        if not size_bytes:
            return
        is_there = self._disk.exists(self._path)
        file = self._disk.open(self._path, create=not is_there)
        try:
            # One that is there may be empty: a crash came before its length was durable.
            if file.size_bytes() < size_bytes:
                file.allocate(size_bytes)
        except DiskFullError:
            with contextlib.suppress(StorageError):
                self._disk.unlink(self._path)
        finally:
            file.close()

    def give(self) -> None:
        """Give it up."""
        self._disk.unlink(self._path)
