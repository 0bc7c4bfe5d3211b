"""``synced``: how far the journal is durable; noted behind every sync, before anybody is answered.

    two slots, at 0 and at 512    "QBSYNCED", int64 journal id, uint64 salt of that file, int64
                                  offset up to which it is durable, CRC32C of what is before

The slots are written in turn and not synced.  What a process has written outlives the process,
so after a kill the newer slot says exactly up to where somebody may have been answered: what lacks
in front of it is damage, what lacks behind it was never acknowledged.  After a loss of power the
slots may be old.  Then they say less than is true, and never more.

The salt ties the note to one file, whatever became of the directory meanwhile.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from google_crc32c import value

from quorumbook.env import Disk, File

SYNCED_NAME = "synced"

_MAGIC = b"QBSYNCED"
_SLOT = Struct(">8sqQq")
_UINT32 = Struct(">I")
_SLOT_SIZE = _SLOT.size + 4
#: Each slot has a sector of its own, so a loss of power costs one at most.
_SLOT_DISTANCE = 512
_FILE_SIZE = 2 * _SLOT_DISTANCE


class Synced(NamedTuple):
    """A journal is durable up to ``end``."""

    journal_id: int
    salt: int
    end: int


def _encode(synced: Synced) -> bytes:
    head = _SLOT.pack(_MAGIC, *synced)
    return head + _UINT32.pack(value(head))


def _decode(slot: bytes) -> Synced | None:
    if len(slot) < _SLOT_SIZE or slot[_SLOT.size :] != _UINT32.pack(value(slot[: _SLOT.size])):
        return None
    magic, *fields = _SLOT.unpack_from(slot)
    return Synced(*fields) if magic == _MAGIC else None


def _slots(file: File) -> list[Synced | None]:
    data = file.read(0, _FILE_SIZE)
    starts = range(0, _FILE_SIZE, _SLOT_DISTANCE)
    return [_decode(data[start : start + _SLOT_SIZE]) for start in starts]


def read_synced(disk: Disk, directory: str) -> Synced | None:
    """Return what was noted last, None if nothing was or nothing of it can be read."""
    path = f"{directory}/{SYNCED_NAME}"
    if not disk.exists(path):
        return None
    file = disk.open(path, read_only=True)
    try:
        return max(filter(None, _slots(file)), default=None)
    finally:
        file.close()


class SyncedNote:
    """The note of one journal directory; made, if it is not there, when it is opened.

    Its name is durable with the next sync of the directory.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        path = f"{directory}/{SYNCED_NAME}"
        self._file = disk.open(path, create=not disk.exists(path))
        if self._file.size_bytes() < _FILE_SIZE:
            self._file.write([bytes(_FILE_SIZE)], 0)
            self._file.sync()
        slots = _slots(self._file)
        newest = max(filter(None, slots), default=None)
        #: Where the next one goes; the newest stays until it is there.
        self._next = 1 if newest is not None and newest == slots[0] else 0

    def write(self, synced: Synced) -> None:
        """Note it."""
        self._file.write([_encode(synced)], self._next * _SLOT_DISTANCE)
        self._next ^= 1

    def close(self) -> None:
        """Close the file."""
        self._file.close()
