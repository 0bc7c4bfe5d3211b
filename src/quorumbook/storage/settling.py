"""What a start finds may be in the system's cache only: a bookie was killed before the sync.

A power cut takes that away, and what was removed meanwhile for its sake is gone as well.  So each
thing that a start believes is made durable first: marks, entry logs of which an index is built,
copies of the ledger states, and journals that are served from memory (``index/files`` has the
index).  A file that nothing was written to is synced in no time.
"""

from __future__ import annotations

from quorumbook.env import Disk


def settle(disk: Disk, path: str) -> None:
    """Make a file durable as it can be read; its name needs a sync of the directory.

    Raises:
        StorageError: It cannot be.
    """
    file = disk.open(path, read_only=True)
    try:
        file.sync()
    finally:
        file.close()
