"""DIRTY: the mark that a bookie runs, or that it did not stop cleanly; empty, as the peer's.

It lies in every ledger directory (``current/``) from before the first answer until everything is
flushed at the stop.  Replay needs it for one judgement: a journal that ends right behind a group,
without the zeros that are kept ahead, was cut if the bookie had no time to end it.
"""

from __future__ import annotations

from collections.abc import Iterable

from quorumbook.env import Disk
from quorumbook.errors import DiskFullError

NAME = "DIRTY"


def was_unclean(disk: Disk, directories: Iterable[str]) -> bool:
    """Tell whether whoever ran here last did not come to its end."""
    return any(disk.exists(f"{directory}/{NAME}") for directory in directories)


def mark_running(disk: Disk, directories: Iterable[str]) -> None:
    """Leave the mark, durably; a disk without room for it does not keep a bookie from starting."""
    for directory in directories:
        if not disk.exists(f"{directory}/{NAME}"):
            try:
                disk.write_file(f"{directory}/{NAME}", [])
            except DiskFullError:
                return


def mark_stopped(disk: Disk, directories: Iterable[str]) -> None:
    """Take the mark away: everything is flushed."""
    for directory in directories:
        disk.unlink(f"{directory}/{NAME}")
        disk.sync_directory(directory)
