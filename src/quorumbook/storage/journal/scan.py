"""Reading one journal file: which bytes count, and what to believe at its end.

A file with checks (``format.py``) is read group by group.  A group's check is searched on its
block borders and verified before a single record of the group is looked at, so a damaged length
never leads anywhere.  Only one group is in flight at a time, hence

    a good group                        its records are replayed
    zeros up to the end of the file     the end of the data
    a bad group, only zeros behind it   a torn tail if the bookie was killed and only the end is
                                        not there, or if the machine was booted since the file was
                                        made and zeros stand where data should be (``tail.py``):
                                        the write did not end, and nothing was acknowledged.
                                        Else damage of the last group: the caller must distrust
                                        the bookie's open ledgers.  Both leave a provable prefix
    a bad group, anything behind it     damage; refused, with file and offset

A file of the peer has no checks and is read as the peer reads it: a length of 0, or one that
reaches beyond the end of the file, ends the data.  Where that hides bytes, the caller is told
that the tail is damaged.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import Enum
from struct import Struct

from google_crc32c import value

from quorumbook.env import File
from quorumbook.errors import CorruptJournalError
from quorumbook.storage.journal.format import (
    ALIGNMENT,
    CHECK_SIZE,
    FENCE_ENTRY_ID,
    GROUP_MAGIC,
    GROUP_SIZE_LIMIT_BYTES,
    HEADER_SIZE,
    KEY_ENTRY_ID,
    LAC_ENTRY_ID,
    PADDING,
    VERSION,
    JournalHeader,
    decode_header,
    group_check_prefix,
    group_of_check,
    is_group,
    is_torn_header,
    is_version_mark,
)
from quorumbook.storage.journal.runs import RunCollector
from quorumbook.storage.journal.tail import is_cut_short, lacks_blocks

#: How much of a file is read at once.
WINDOW_BYTES = 8 * 1024 * 1024
#: A record of the peer that claims to be larger is damaged; far above any frame limit in use.
RECORD_SIZE_LIMIT_BYTES = 64 * 1024 * 1024

#: A LAC belongs into version 6, but the peer, told to write an older one, writes it all the same.
_SINCE_VERSION = {KEY_ENTRY_ID: 3, FENCE_ENTRY_ID: 4, LAC_ENTRY_ID: 4}

_HEAD = Struct(">iqq")
_TWO_INT32 = Struct(">ii")
_INT32 = Struct(">i")
_UINT32 = Struct(">I")
_INT64 = Struct(">q")
_IDS_SIZE = 16
_ENTRY_HEADER_SIZE = 32


@dataclass(slots=True)
class FileEnd:
    """Where the data of a journal file ends.

    Attributes:
        valid_end: The end of what is believed.
        end: The end of everything that is not zero, on a block border.
        is_damaged: Something between the two could not be read.
        is_torn: What is between the two was never acknowledged.
    """

    valid_end: int
    end: int
    is_damaged: bool = False
    is_torn: bool = False


class _Window:
    """A file, read forward in large pieces."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.size = file.size_bytes()
        self.base = 0
        self.data = b""

    def at(self, position: int, size_bytes: int) -> int:
        """Make ``size_bytes`` from ``position`` available if the file has them.

        Returns the index of the position in ``data``.
        """
        end = min(position + size_bytes, self.size)
        if position < self.base or end > self.base + len(self.data):
            self.base = position
            self.data = self.file.read(position, max(size_bytes, WINDOW_BYTES))
        return position - self.base


def read_header(file: File, journal_id: int) -> JournalHeader | None:
    """Read a journal's header; None if nothing was ever written behind it.

    The header is durable before the first group is written.  So one that is torn, in a file that
    holds nothing else, belongs to a journal of which nothing was acknowledged.
    """
    data = file.read(0, HEADER_SIZE)
    if is_torn_header(data) and last_byte(file, HEADER_SIZE) == HEADER_SIZE:
        return None
    header = decode_header(data, journal_id, file.path)
    if header.version == 1 and not any(data[:4]) and last_byte(file, 0):
        # No header at all is the peer's oldest format, whose first bytes are a length.
        raise CorruptJournalError("the journal's header is damaged", path=file.path, offset=0)
    return header


def last_byte(file: File, position: int) -> int:
    """Return the end of the last byte behind ``position`` that is not zero, or ``position``."""
    size = file.size_bytes()
    end = position
    for start in range(position, size, WINDOW_BYTES):
        data = file.read(start, WINDOW_BYTES)
        if len(data) != data.count(0):
            end = start + len(data.rstrip(b"\0"))
    return end


def _up(position: int) -> int:
    return -(-position // ALIGNMENT) * ALIGNMENT


# --- files with checks ---------------------------------------------------------------------


def scan_checked(
    file: File,
    header: JournalHeader,
    start: int,
    collect: RunCollector,
    *,
    was_killed: bool,
    was_booted: bool,
) -> FileEnd:
    """Read a file with checks from a group border on.

    Args:
        file: The journal.
        header: Its header.
        start: From where on.
        collect: Takes the records.
        was_killed: Whoever wrote it did not come to its end.
        was_booted: The machine was, since the file was made.

    Raises:
        CorruptJournalError: Something is damaged that no crash can explain.
    """
    if start % ALIGNMENT:
        # The peer leaves such a mark, four zeros behind the end of what it has read.
        start = _up(start)
    window = _Window(file)
    position = max(start, HEADER_SIZE)
    while position < window.size:
        end = _group_end(window, header, position)
        if end is None:
            return _bad_group(
                window, header, position, collect, was_killed=was_killed, was_booted=was_booted
            )
        begin = position - window.base
        _replay_group(window, begin, end - window.base, collect)
        position = end
    return FileEnd(position, position)


def _group_end(window: _Window, header: JournalHeader, position: int) -> int | None:
    """Return the end of the good group that starts here, or None."""
    wanted = group_check_prefix(position, header.salt)
    size = WINDOW_BYTES
    start = window.at(position, ALIGNMENT)
    data = window.data
    if not any(data[start : start + ALIGNMENT]):
        return None
    searched = start
    while True:
        found = data.find(wanted, searched)
        if found >= 0:
            end = found + CHECK_SIZE
            searched = found + 1
            aligned = (window.base + end) % ALIGNMENT == 0 and end <= len(data)
            if aligned and is_group(header.journal_id, position, data[start:end]):
                return window.base + end
            continue
        if window.base + len(data) >= window.size or size > GROUP_SIZE_LIMIT_BYTES:
            return None
        # The group may go on behind the window: read again from its start, more than before.
        searched = max(len(data) - start - len(wanted), 0)
        if start == 0:
            size *= 4
        window.base, window.data = position, window.file.read(position, size)
        data, start = window.data, 0


def _replay_group(window: _Window, position: int, end: int, collect: RunCollector) -> None:
    """Hand over the records of a group whose check was good."""
    data = window.data
    unpack = _HEAD.unpack_from
    collect.begin(data)
    while position < end:
        size, ledger_id, entry_id = unpack(data, position)
        if size == PADDING:
            position += 8 + (ledger_id >> 32)
            continue
        if size < _IDS_SIZE or position + 4 + size > end:
            raise CorruptJournalError(
                f"a record of {size} bytes in a group whose check is good",
                path=window.file.path,
                offset=window.base + position,
            )
        if entry_id >= 0:
            position = collect.entries(position, size, ledger_id, entry_id, end)
        else:
            _special(window, position, collect)
            position += 4 + size
    collect.end()


def _bad_group(
    window: _Window,
    header: JournalHeader,
    position: int,
    collect: RunCollector,
    *,
    was_killed: bool,
    was_booted: bool,
) -> FileEnd:
    """Decide what a group is that cannot be proven: no group, a torn tail, or damage."""
    file = window.file
    end = last_byte(file, position)
    if end == position:
        return FileEnd(position, position)
    later = _check_behind(file, header.salt, position, end)
    if later is not None:
        raise CorruptJournalError(
            f"a group is damaged, and there is more data behind it (at {later})",
            path=file.path,
            offset=position,
        )
    size = min(_up(end) - position, GROUP_SIZE_LIMIT_BYTES)
    window.base, window.data = position, file.read(position, size).ljust(size, b"\0")
    _provable_prefix(window, collect)
    prefix = group_check_prefix(position, header.salt)
    is_torn = (was_killed and is_cut_short(window.data, prefix)) or (
        was_booted and lacks_blocks(window.data, prefix)
    )
    return FileEnd(position, _up(end), is_damaged=not is_torn, is_torn=is_torn)


def _check_behind(file: File, salt: int, position: int, end: int) -> int | None:
    """Look for a sign that the group at ``position`` is not the last; return where."""
    overlap = CHECK_SIZE
    for start in range(position, end, WINDOW_BYTES):
        data = file.read(start, WINDOW_BYTES + overlap)
        found = data.find(GROUP_MAGIC)
        while found >= 0:
            block_end: int = start + found + CHECK_SIZE
            if block_end % ALIGNMENT == 0 and found + 12 <= len(data):
                group = group_of_check(data, found, salt)
                is_ours = group == position and block_end < end
                if is_ours or (position < group < block_end and group % ALIGNMENT == 0):
                    return block_end
            found = data.find(GROUP_MAGIC, found + 1)
    return None


def _provable_prefix(window: _Window, collect: RunCollector) -> None:
    """Hand over the first records of a bad group, all in the window, as far as they prove it.

    An entry or LAC does by the digest it carries (CRC-32C or CRC-32; a MAC cannot be checked
    without the password).  A fence needs no proof: one too many stops a writer, one too few
    lets two write.  A key has no proof and ends the prefix.
    """
    data = window.data
    collect.begin(data)
    at = 0
    while at + _HEAD.size <= len(data):
        size, ledger_id, entry_id = _HEAD.unpack_from(data, at)
        stop = at + 4 + size
        if size < _IDS_SIZE or stop > len(data) or ledger_id < 0:
            break
        if entry_id >= 0:
            if not has_valid_digest(data[at + 4 : stop], _ENTRY_HEADER_SIZE):
                break
            collect.entries(at, size, ledger_id, entry_id, stop)
        elif entry_id == LAC_ENTRY_ID:
            packet = data[at + 24 : stop]
            if data[at + 20 : at + 24] != _INT32.pack(len(packet)):
                break
            if packet[:8] != data[at + 4 : at + 12] or not has_valid_digest(packet, _IDS_SIZE):
                break
            _special(window, at, collect)
        elif entry_id == FENCE_ENTRY_ID and size == _IDS_SIZE:
            collect.visitor_fence(ledger_id)
        else:
            break
        at = stop
    collect.end()


def has_valid_digest(data: bytes, header_size: int) -> bool:
    """Tell whether a CRC-32C or CRC-32 behind the header fits header and payload."""
    if len(data) >= header_size + 4:
        covered = data[:header_size] + data[header_size + 4 :]
        if _UINT32.unpack_from(data, header_size)[0] == value(covered):
            return True
    if len(data) >= header_size + 8:
        covered = data[:header_size] + data[header_size + 8 :]
        return bool(_INT64.unpack_from(data, header_size)[0] == zlib.crc32(covered))
    return False


# --- records -------------------------------------------------------------------------------


def _special(window: _Window, position: int, collect: RunCollector, version: int = VERSION) -> None:
    """Hand over a record that is no entry."""
    size, ledger_id, entry_id = _HEAD.unpack_from(window.data, position)
    needed = _SINCE_VERSION.get(entry_id)
    if needed is None:
        collect.skipped()
        return

    def corrupt(reason: str) -> CorruptJournalError:
        return CorruptJournalError(reason, path=window.file.path, offset=window.base + position)

    if version < needed:
        raise corrupt(f"a record of version {needed} in a journal of version {version}")
    if entry_id == FENCE_ENTRY_ID:
        collect.visitor_fence(ledger_id)
        return
    if size < _IDS_SIZE + 4:
        raise corrupt(f"a key or LAC record of {size} bytes")
    length = _INT32.unpack_from(window.data, position + 20)[0]
    if not 0 <= length <= size - 20:
        raise corrupt(f"a key or LAC record of {size} bytes claims {length} bytes of content")
    content = window.data[position + 24 : position + 24 + length]
    if entry_id == KEY_ENTRY_ID:
        collect.visitor_key(ledger_id, content)
    else:
        collect.visitor_lac(ledger_id, content)


# --- files of the peer ---------------------------------------------------------------------


def scan_plain(
    file: File, header: JournalHeader, start: int, collect: RunCollector, *, is_last: bool
) -> FileEnd:
    """Read a journal without checks, as the peer does.

    Raises:
        CorruptJournalError: A length is impossible and more data follows.
    """
    window = _Window(file)
    position = max(start, header.size_bytes)
    needed = 8
    stop = _Stop.BEYOND
    while position + 8 <= window.size:
        index = window.at(position, needed)
        collect.begin(window.data)
        index, stop = _plain_records(window, index, header, collect)
        collect.end()
        position = window.base + index
        if stop is not _Stop.BEYOND:
            break
        # The record reaches beyond the window: into the next, or beyond the file.
        needed = _plain_needed(window.file, position)
        if position + needed > window.size:
            break
    return _plain_end(file, position, stop, is_last=is_last)


class _Stop(Enum):
    """Why reading the peer's records stopped."""

    ZERO = 1
    BEYOND = 2
    IMPOSSIBLE = 3


def _plain_needed(file: File, position: int) -> int:
    """Return how many bytes the record at ``position`` takes."""
    length: int
    content: int
    length, content = _TWO_INT32.unpack(file.read(position, 8).ljust(8, b"\0"))
    return 8 + content if length == PADDING else max(4 + length, 8)


def _plain_records(
    window: _Window, position: int, header: JournalHeader, collect: RunCollector
) -> tuple[int, _Stop]:
    """Hand over the whole records in the window; return where it stopped, and why."""
    data = window.data
    limit = len(data)
    has_padding = header.version >= 5
    while position + 8 <= limit:
        size, content = _TWO_INT32.unpack_from(data, position)
        if size == 0:
            return position, _Stop.ZERO
        if size == PADDING and has_padding:
            end = position + 8 + content
            if not 0 <= content <= RECORD_SIZE_LIMIT_BYTES:
                return position, _Stop.IMPOSSIBLE
            if end > limit:
                return position, _Stop.BEYOND
            if content >= CHECK_SIZE and is_version_mark(data[end - CHECK_SIZE : end]):
                raise CorruptJournalError(
                    "the journal has checks, but its header does not say so",
                    path=window.file.path,
                    offset=8,
                )
            position = end
            continue
        if size < _IDS_SIZE or size > RECORD_SIZE_LIMIT_BYTES:
            return position, _Stop.IMPOSSIBLE
        if position + 4 + size > limit:
            return position, _Stop.BEYOND
        _, ledger_id, entry_id = _HEAD.unpack_from(data, position)
        if entry_id >= 0:
            position = collect.entries(position, size, ledger_id, entry_id, limit)
        else:
            _special(window, position, collect, header.version)
            position += 4 + size
    return position, _Stop.BEYOND


def _plain_end(file: File, position: int, stop: _Stop, *, is_last: bool) -> FileEnd:
    """Decide what lies behind the last whole record.

    In the newest file a crash explains bytes behind a length of 0 (writes of the peer reach the
    disk in any order), a record that the file cuts, and an impossible length with nothing
    behind it.  Whether it was a crash nobody can tell, so the tail counts as damaged.
    """
    end = last_byte(file, position)
    if end == position:
        return FileEnd(position, position)
    explained = is_last and (stop is not _Stop.IMPOSSIBLE or end <= position + 4)
    if not explained:
        raise CorruptJournalError(
            "a record's length is damaged, and there is more data behind it"
            if stop is not _Stop.ZERO
            else "there is more data behind the end of the records",
            path=file.path,
            offset=position,
        )
    return FileEnd(position, end, is_damaged=True)
