"""The bytes of a journal file ``<hex id>.txn``.

    header      "BKLG", int32 version; versions 5 and 6 fill it up with zeros to 512 bytes;
                version 1 has no header
    record      int32 length, that many bytes; length 0 is the end of the data (files are
                preallocated with zeros)
      entry     the entry as in protocol/digest.py: int64 ledger id, int64 entry id >= 0, ...
      key       int64 ledger id, int64 -0x1000, int32 length, master key        (version 3 on)
      fence     int64 ledger id, int64 -0x2000                                  (version 4 on)
      LAC       int64 ledger id, int64 -0x8000, int32 length, packet   (version 6, seen in 4)
      others    a negative entry id that is none of these is skipped
    padding     int32 -0x100, int32 n, n bytes that nobody looks at             (version 5 on)

The peer's readers skip padding and the rest of the header.  Ours hide checks there:

    header, bytes 8 to 511    magic "QBCHKSUM", int32 our version (2), int32 flags (1: opened by a
                              start, not by a roll), int64 journal id, int64 id and int64 end of
                              the journal before (-1: not known), 16 bytes that tell the boot of
                              the machine (zeros: not known), uint64 salt, a random number of
                              this file (version 1 has none: 0), zeros, and in the last four
                              bytes CRC32C of the 508 before
    group                     the records of one write, then one padding record up to the next
                              multiple of 512 with at least 16 bytes of content, of which the
                              last 16 are: "QBG1", int64 offset of the group XOR salt, CRC32C of
                              (int64 journal id, int64 offset, the group's bytes up to here)

The check of a group ends on a multiple of 512, so it is found without parsing the group.  A
length in a damaged group can mislead nobody, nor can a payload: the salt is told to nobody, so
nobody can put a check into an entry.

Beside them lie ``synced`` (``synced.py``) and ``newest``: the hex id of the newest journal, durable
before anything in that journal is acknowledged.  A journal that was deleted from the end would
otherwise look as if it had never been.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from struct import Struct
from typing import NamedTuple

from google_crc32c import extend, value

from quorumbook.errors import CorruptJournalError
from quorumbook.ids import LedgerId

MAGIC = b"BKLG"
VERSION = 6
HEADER_SIZE = 512
ALIGNMENT = 512

PADDING = -0x100
KEY_ENTRY_ID = -0x1000
FENCE_ENTRY_ID = -0x2000
LAC_ENTRY_ID = -0x8000

CHECK_MAGIC = b"QBCHKSUM"
CHECK_VERSION = 2
GROUP_MAGIC = b"QBG1"
CHECK_SIZE = 16
#: No group is larger, so a search for its check ends.
GROUP_SIZE_LIMIT_BYTES = 256 * 1024 * 1024

#: The name of the note that says which journal is the newest.
NEWEST_NAME = "newest"

_FLAG_START = 1
_PADDING_HEAD_SIZE = 8
_HEADER = Struct(">4si8siiqqq16sQ")
_HEADER_START = Struct(">4si8s").pack(MAGIC, VERSION, CHECK_MAGIC)
_INT32 = Struct(">i")
_UINT32 = Struct(">I")
_UINT64 = Struct(">Q")
_IDS = Struct(">qq")
_KEY = Struct(">iqqi")
_FENCE = Struct(">iqq")
_NAME = re.compile(r"([0-9a-f]{1,16})\.txn")


class JournalHeader(NamedTuple):
    """What the first bytes of a journal say."""

    version: int
    size_bytes: int
    is_checksummed: bool = False
    is_start: bool = False
    journal_id: int = -1
    previous_id: int = -1
    previous_end: int = -1
    boot: bytes = b""
    salt: int = 0


def journal_name(journal_id: int) -> str:
    """Return the file name of a journal."""
    return f"{journal_id:x}.txn"


def journal_id_of(name: str) -> int | None:
    """Return the id in a file name, or None if the file is no journal."""
    match = _NAME.fullmatch(name)
    return int(match[1], 16) if match else None


def key_record(ledger_id: LedgerId, master_key: bytes) -> bytes:
    """Return the record that makes a ledger and its master key known."""
    size = 20 + len(master_key)
    return _KEY.pack(size, ledger_id, KEY_ENTRY_ID, len(master_key)) + master_key


def fence_record(ledger_id: LedgerId) -> bytes:
    """Return the record that fences a ledger."""
    return _FENCE.pack(16, ledger_id, FENCE_ENTRY_ID)


def lac_record(ledger_id: LedgerId, packet: bytes) -> bytes:
    """Return the record of an explicit last add confirmed, its packet as it came."""
    return _KEY.pack(20 + len(packet), ledger_id, LAC_ENTRY_ID, len(packet)) + packet


def padding_record_size(position: int, alignment: int = ALIGNMENT, content_size: int = 0) -> int:
    """Return how large a padding record must be that starts at ``position``.

    It ends on a multiple of the alignment and has room for ``content_size`` bytes.  Without
    content this is the peer's rule, and there is none at an aligned position.
    """
    if content_size == 0 and position % alignment == 0:
        return 0
    size = alignment - position % alignment
    while size < _PADDING_HEAD_SIZE + content_size:
        size += alignment
    return size


def closing_record(journal_id: int, offset: int, buffers: Sequence[bytes], salt: int = 0) -> bytes:
    """Return the padding record that ends a group and proves it.

    Args:
        journal_id: The file's id.
        offset: Where the group starts, a multiple of 512.
        buffers: The group's records.
        salt: The file's.
    """
    end = offset + sum(map(len, buffers))
    size = padding_record_size(end, content_size=CHECK_SIZE)
    content = size - _PADDING_HEAD_SIZE
    record = b"".join(
        (
            _INT32.pack(PADDING),
            _INT32.pack(content),
            bytes(content - CHECK_SIZE),
            group_check_prefix(offset, salt),
        )
    )
    crc = value(_IDS.pack(journal_id, offset))
    for buffer in buffers:
        crc = extend(crc, buffer)
    return record + _UINT32.pack(extend(crc, record))


def is_group(journal_id: int, offset: int, group: bytes) -> bool:
    """Tell whether the bytes are one whole group, its closing record included."""
    crc = extend(value(_IDS.pack(journal_id, offset)), group[:-4])
    stored: int = _UINT32.unpack_from(group, len(group) - 4)[0]
    return bool(crc == stored)


def group_check_prefix(offset: int, salt: int) -> bytes:
    """Return the first 12 of the 16 bytes that end the group of this offset."""
    return GROUP_MAGIC + _UINT64.pack(offset ^ salt)


def group_of_check(data: bytes, position: int, salt: int) -> int:
    """Return the offset of the group whose check starts here, if it is one of this file."""
    masked: int = _UINT64.unpack_from(data, position + len(GROUP_MAGIC))[0]
    return masked ^ salt


def boot_mark(boot_id: str) -> bytes:
    """Return the 16 bytes of a header that stand for a boot; empty if it is not known."""
    return sha256(boot_id.encode()).digest()[:16] if boot_id else b""


def encode_header(
    journal_id: int,
    *,
    previous_id: int = -1,
    previous_end: int = -1,
    is_start: bool = False,
    boot: bytes = b"",
    salt: int = 0,
) -> bytes:
    """Return the header of a journal with checks."""
    head = _HEADER.pack(
        MAGIC,
        VERSION,
        CHECK_MAGIC,
        CHECK_VERSION,
        _FLAG_START if is_start else 0,
        journal_id,
        previous_id,
        previous_end,
        boot,
        salt,
    )
    head += bytes(HEADER_SIZE - 4 - len(head))
    return head + _UINT32.pack(value(head))


def decode_header(data: bytes, journal_id: int, path: str) -> JournalHeader:
    """Parse the first 512 bytes (fewer if the file is shorter) of the peer's or our journal.

    Raises:
        CorruptJournalError: The header is damaged, of another file, or of a newer release.
    """
    checked = data[8:16] == CHECK_MAGIC
    if checked:
        return _decode_checked(data, journal_id, path)
    if data[:4] != MAGIC or len(data) < 8:
        return JournalHeader(1, 0)
    version = _INT32.unpack_from(data, 4)[0]
    if not 2 <= version <= VERSION:
        raise CorruptJournalError(f"journal version {version} is not known", path=path, offset=4)
    if version < 5:
        return JournalHeader(version, 8)
    if len(data) < HEADER_SIZE:
        raise CorruptJournalError("the journal's header is cut", path=path, offset=len(data))
    if any(data[8:HEADER_SIZE]):
        raise CorruptJournalError("the journal's header is damaged", path=path, offset=8)
    return JournalHeader(version, HEADER_SIZE)


def is_torn_header(data: bytes) -> bool:
    """Tell whether the first 512 bytes are a part of a header of ours, or nothing."""
    written = data.rstrip(b"\0")
    if len(data) >= HEADER_SIZE and _UINT32.unpack_from(data, HEADER_SIZE - 4)[0] == value(
        data[: HEADER_SIZE - 4]
    ):
        return False
    return _HEADER_START.startswith(written[: len(_HEADER_START)])


def _decode_checked(data: bytes, journal_id: int, path: str) -> JournalHeader:
    if len(data) < HEADER_SIZE:
        raise CorruptJournalError("the journal's header is cut", path=path, offset=len(data))
    if _UINT32.unpack_from(data, HEADER_SIZE - 4)[0] != value(data[: HEADER_SIZE - 4]):
        raise CorruptJournalError("the journal's header is damaged", path=path, offset=0)
    _, version, _, check_version, flags, own_id, previous_id, previous_end, boot, salt = (
        _HEADER.unpack_from(data)
    )
    if check_version > CHECK_VERSION or version != VERSION:
        raise CorruptJournalError(
            f"the journal was written by a newer release (checks {check_version}, ours "
            f"{CHECK_VERSION})",
            path=path,
            offset=16,
        )
    if own_id != journal_id:
        raise CorruptJournalError(
            f"the file holds journal {journal_name(own_id)}", path=path, offset=24
        )
    return JournalHeader(
        version,
        HEADER_SIZE,
        True,
        bool(flags & _FLAG_START),
        own_id,
        previous_id,
        previous_end,
        boot.rstrip(b"\0") and boot,
        salt,
    )


def is_version_mark(data: bytes) -> bool:
    """Tell whether a padding record's bytes end as those of a group with a check."""
    return len(data) >= CHECK_SIZE and data[-CHECK_SIZE : 4 - CHECK_SIZE] == GROUP_MAGIC
