"""The bytes of the peer's index file of a ledger, as its sorted and interleaved storages keep it.

    <index directory>/current/<hex of bits 8 to 15>/<hex of bits 0 to 7>/<hex ledger id>.idx

    header, 1024 bytes   "BKLE", int32 version (0 or 1), int32 length, master key,
                         int32 state bits (1: fenced); version 1: int32 length, explicit LAC
                         packet; zeros
    locations            for each entry id from 0 on int64 entry log id << 32 | position of the
                         entry's bytes, behind their size field; 0 for an entry that is not here;
                         the file ends with a page of 8192 bytes

Hex has no leading zeros.  The file is made when its first page or state is flushed, which is
before the mark of the journal moves: a ledger without a file is known from the journal behind the
mark, or it was deleted.  ``<name>.rloc`` is a copy on its way to another disk; it counts where
the file itself is gone.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from quorumbook.env import Env
from quorumbook.errors import CorruptIndexError
from quorumbook.ids import EntryId, LedgerId
from quorumbook.storage.index.peer_parts import is_index_folder

MAGIC = b"BKLE"
VERSION = 1
HEADER_SIZE = 1024
PAGE_SIZE = 8192
LOCATION_SIZE = 8

_FENCED = 1
_HEAD = Struct(">4sii")
_INT32 = Struct(">i")
_NAME = re.compile(r"([0-9a-f]{1,16})\.idx(\.rloc)?")


class IndexHeader(NamedTuple):
    """What the header says of a ledger."""

    master_key: bytes
    is_fenced: bool = False
    explicit_lac: bytes | None = None

    def __repr__(self) -> str:
        return f"IndexHeader(is_fenced={self.is_fenced})"


def index_file_path(directory: str, ledger_id: LedgerId) -> str:
    """Return where a ledger's index file lies below an index directory's ``current``."""
    return f"{directory}/{ledger_id >> 8 & 0xFF:x}/{ledger_id & 0xFF:x}/{ledger_id:x}.idx"


def encode_header(header: IndexHeader) -> bytes:
    """Return the 1024 bytes in front of the locations."""
    lac = header.explicit_lac or b""
    data = b"".join(
        (
            _HEAD.pack(MAGIC, VERSION, len(header.master_key)),
            header.master_key,
            _INT32.pack(_FENCED if header.is_fenced else 0),
            _INT32.pack(len(lac)),
            lac,
        )
    )
    return data.ljust(HEADER_SIZE, b"\0")


def decode_header(data: bytes, path: str) -> IndexHeader:
    """Parse the first 1024 bytes.

    Raises:
        CorruptIndexError: They are damaged, or of a version that is not known.
    """
    if len(data) < HEADER_SIZE:
        raise CorruptIndexError("the header is cut", path=path, offset=len(data))
    magic, version, key_size = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise CorruptIndexError("this is not an index file of a ledger", path=path, offset=0)
    if version not in (0, VERSION):
        raise CorruptIndexError(f"version {version} is not known", path=path, offset=4)
    position = _HEAD.size
    if not 0 <= key_size <= HEADER_SIZE - position - 8:
        raise CorruptIndexError(f"a master key of {key_size} bytes", path=path, offset=8)
    key = data[position : position + key_size]
    position += key_size
    (state,) = _INT32.unpack_from(data, position)
    if version == 0:
        return IndexHeader(key, bool(state & _FENCED))
    (lac_size,) = _INT32.unpack_from(data, position + 4)
    position += 8
    if not 0 <= lac_size <= HEADER_SIZE - position:
        raise CorruptIndexError(f"a packet of {lac_size} bytes", path=path, offset=position - 4)
    lac = data[position : position + lac_size] if lac_size else None
    return IndexHeader(key, bool(state & _FENCED), lac)


def decode_locations(data: bytes) -> array[int]:
    """Return the locations in a piece of the file; a torn last one is left out."""
    locations = array("q")
    locations.frombytes(data[: len(data) - len(data) % LOCATION_SIZE])
    if sys.byteorder == "little":
        locations.byteswap()
    return locations


def find_index_files(env: Env, directories: Iterable[str]) -> dict[LedgerId, str]:
    """Return the index file of each ledger; empty files were never written and don't count."""
    found: dict[LedgerId, str] = {}
    moving: dict[LedgerId, str] = {}
    for path in _candidates(env, directories):
        match = _NAME.fullmatch(path.rpartition("/")[2])
        if match is None:
            continue
        ledger_id = int(match[1], 16)
        if ledger_id < 1 << 63 and _size(env, path):
            (moving if match[2] else found).setdefault(ledger_id, path)
    return moving | found


def _candidates(env: Env, directories: Iterable[str]) -> Iterator[str]:
    disk = env.disk
    for directory in directories:
        for outer in filter(is_index_folder, disk.list_directory(directory)):
            for inner in filter(is_index_folder, disk.list_directory(f"{directory}/{outer}")):
                folder = f"{directory}/{outer}/{inner}"
                yield from (f"{folder}/{name}" for name in disk.list_directory(folder))


def _size(env: Env, path: str) -> int:
    file = env.disk.open(path, read_only=True)
    try:
        return file.size_bytes()
    finally:
        file.close()


def write_index_file(
    env: Env,
    path: str,
    header: IndexHeader,
    pieces: Iterable[tuple[EntryId, array[int]]],
    last_entry_id: EntryId,
) -> None:
    """Write a ledger's file as a whole; durable but for its name, which the caller syncs.

    Args:
        env: The outside world.
        path: The file; one that is there is replaced.
        header: What is known of the ledger besides its entries.
        pieces: Locations of consecutive entries, each piece with the id of its first one.
        last_entry_id: The highest id, -1 if there is none.
    """
    env.disk.unlink(path)
    file = env.disk.open(path, create=True)
    try:
        file.write([encode_header(header)], 0)
        pages = -(-(last_entry_id + 1) * LOCATION_SIZE // PAGE_SIZE)
        # The peer reads whole pages.  What is never written in them stays a hole in the file.
        file.truncate(HEADER_SIZE + pages * PAGE_SIZE)
        for first, locations in pieces:
            file.write([_encode_locations(locations)], HEADER_SIZE + first * LOCATION_SIZE)
        file.sync()
    finally:
        file.close()


def _encode_locations(locations: array[int]) -> bytes:
    if sys.byteorder == "little":
        locations = locations[:]
        locations.byteswap()
    return locations.tobytes()
