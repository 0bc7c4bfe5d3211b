"""The index as files: whether it is there, out of the way, gone, in its place."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat

from quorumbook.env import RealDisk
from quorumbook.errors import StorageError

#: Behind the path of an index that is not whole yet.
BUILDING_SUFFIX = ".building"
#: The name of a note: the next start does not believe this index.
_SUSPECT_SUFFIX = ".suspect"
_PRIVATE = 0o600
_DISK = RealDisk()


def index_exists(path: str) -> bool:
    """Tell whether there is an index file; raises StorageError if it cannot be told."""
    return _DISK.exists(path)


def keep_private(path: str) -> None:
    """Have nobody else read an index, which is made if it is not there: it holds master keys.

    SQLite gives the files beside it the same mode.  One that is there is not opened here: to close
    it would give up the locks of other connections.
    """
    # What else is wrong with the place, SQLite says.
    with contextlib.suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE))
        return
    for suffix in ("", "-wal", "-shm"):
        # Somebody else's directory may be looked at, too.
        with contextlib.suppress(FileNotFoundError, PermissionError):
            if os.stat(path + suffix).st_mode & 0o077:
                os.chmod(path + suffix, _PRIVATE)


def distrust(path: str) -> None:
    """Have the next start rebuild the index."""
    with open(f"{path}{_SUSPECT_SUFFIX}", "wb"):
        pass
    _sync_names(path)


def is_distrusted(path: str) -> bool:
    """Tell whether somebody found the index damaged; raises StorageError if it cannot be told."""
    return _DISK.exists(f"{path}{_SUSPECT_SUFFIX}")


def settle_index(path: str) -> None:
    """Make an index durable as it can be read; nobody may have it open.

    A bookie that was killed in a commit may have left it in the system's cache only.  SQLite
    believes it there, and entry logs are removed for its sake.

    Raises:
        StorageError: The disk failed.
    """
    try:
        for suffix in ("", "-wal"):
            # What is no file, whoever opens it finds out.
            if _is_file(path + suffix):
                file = os.open(path + suffix, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(file)
                finally:
                    os.close(file)
        _sync_names(path)
    except OSError as error:
        raise StorageError(f"the index cannot be synced: {error.strerror}", path=path) from error


def set_aside(path: str) -> str:
    """Move a damaged index out of the way and return where it is now."""
    aside = f"{path}.damaged"
    for suffix in ("", "-wal", "-shm"):
        if _DISK.exists(aside + suffix):
            os.unlink(aside + suffix)
        if _DISK.exists(path + suffix):
            os.replace(path + suffix, aside + suffix)
    if is_distrusted(path):
        # Behind that, because a missing index is rebuilt in any case.
        _sync_names(path)
        os.unlink(f"{path}{_SUSPECT_SUFFIX}")
    return aside


def copy_index(path: str, directory: str) -> str:
    """Copy an index, with what was committed last, and return where the copy is."""
    target = os.path.join(directory, os.path.basename(path))
    for suffix in ("", "-wal"):
        if _DISK.exists(path + suffix):
            os.close(os.open(target + suffix, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _PRIVATE))
            shutil.copyfile(path + suffix, target + suffix)
    return target


def remove_index(path: str) -> None:
    """Remove an index file and what belongs to it."""
    for suffix in ("", "-wal", "-shm"):
        if _DISK.exists(path + suffix):
            os.unlink(path + suffix)


def move_index(source: str, target: str) -> None:
    """Give a closed index file its name, durably."""
    os.replace(source, target)
    _sync_names(target)


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _sync_names(path: str) -> None:
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
