"""The index as files: whether it is there, out of the way, gone, in its place."""

from __future__ import annotations

import os

#: Behind the path of an index that is not whole yet.
BUILDING_SUFFIX = ".building"


def index_exists(path: str) -> bool:
    """Tell whether there is an index file."""
    return os.path.exists(path)


def set_aside(path: str) -> str:
    """Move a damaged index out of the way and return where it is now."""
    aside = f"{path}.damaged"
    for suffix in ("", "-wal", "-shm"):
        if os.path.exists(aside + suffix):
            os.unlink(aside + suffix)
        if os.path.exists(path + suffix):
            os.replace(path + suffix, aside + suffix)
    return aside


def remove_index(path: str) -> None:
    """Remove an index file and what belongs to it."""
    for suffix in ("", "-wal", "-shm"):
        if os.path.exists(path + suffix):
            os.unlink(path + suffix)


def move_index(source: str, target: str) -> None:
    """Give a closed index file its name, durably."""
    os.replace(source, target)
    directory = os.open(os.path.dirname(target) or ".", os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
