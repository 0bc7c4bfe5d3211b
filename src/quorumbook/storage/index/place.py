"""Where a bookie keeps its index: what is done to it as a whole.

A simulation keeps it somewhere else.
"""

from __future__ import annotations

from quorumbook.storage.index import files
from quorumbook.storage.index.tables import Index


class IndexPlace:
    """An SQLite file at a path of the machine's."""

    def exists(self, path: str) -> bool:
        """Tell whether there is an index."""
        return files.index_exists(path)

    def open(self, path: str, *, create: bool = False) -> Index:
        """Return its writer; raises as ``Index`` does."""
        return Index(path, create=create)

    def settle(self, path: str) -> None:
        """Make it durable as it can be read; nobody may have it open; raises StorageError."""
        files.settle_index(path)

    def set_aside(self, path: str) -> str:
        """Move a damaged one out of the way and return where it is now."""
        return files.set_aside(path)

    def remove(self, path: str) -> None:
        """Remove one, if it is there."""
        files.remove_index(path)

    def move(self, source: str, target: str) -> None:
        """Give a closed one its name, durably."""
        files.move_index(source, target)

    def distrust(self, path: str) -> None:
        """Have the next start rebuild it."""
        files.distrust(path)

    def is_distrusted(self, path: str) -> bool:
        """Tell whether somebody found it damaged."""
        return files.is_distrusted(path)
