"""What scrub decides, without I/O: which entries of a run can be believed, and where it goes on.

A run whose checksum is wrong is not lost as a whole.  Entries prove themselves by their own
digests, as far as whoever asks knows the ledger's; neighbours that do make a new run with a
checksum of its own, the others one that is known to be damaged.  A run that lost its checksum by
a cut, or came from the peer without one, gets one in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from google_crc32c import value as crc32c

from quorumbook.errors import QuorumbookError
from quorumbook.ids import EntryId
from quorumbook.protocol.digest import Digester
from quorumbook.storage.index.stored_run import StoredRun
from quorumbook.storage.reading.loading import entry_head

_POSITION = re.compile(r"(-?[0-9]{1,18}):([0-9]{1,18}):([0-9]{1,18})")


class ScrubPosition(NamedTuple):
    """How far scrub has come: the next run in an entry log, or the end of the last cycle."""

    entry_log_id: int = -1
    position: int = 0
    #: Wall time of the end of the last whole cycle, 0 before the first.
    finished_ms: int = 0

    def encode(self) -> str:
        """Return it as the index remembers it."""
        return f"{self.entry_log_id}:{self.position}:{self.finished_ms}"

    @classmethod
    def decode(cls, text: str | None) -> ScrubPosition:
        """Parse what ``encode`` made; anything else begins anew."""
        match = _POSITION.fullmatch(text or "")
        return cls(*map(int, match.groups())) if match else cls()

    @property
    def is_within(self) -> bool:
        """Tell whether a cycle was begun and not finished."""
        return self.entry_log_id >= 0

    def wait_s(self, now_ms: int, interval_s: float) -> float:
        """Return the time until the next cycle; a clock that went back does not put it off."""
        if self.is_within or not self.finished_ms:
            return 0.0
        return min(max(self.finished_ms / 1000 + interval_s - now_ms / 1000, 0.0), interval_s)


def judge(
    row: StoredRun,
    data: bytes | None,
    read_entry: Callable[[EntryId], bytes | None],
    digester: Digester | None,
) -> list[StoredRun]:
    """Return what the index should say in the place of ``row``; the row alone if it is right.

    Args:
        row: What the index says.
        data: The bytes of the whole run, None if they cannot be read as a whole.
        read_entry: Reads one entry with its size field, None if it cannot be read.
        digester: Verifies entries of the ledger; None where nobody knows how.
    """
    written = row.written_checksum
    if data is not None and written is not None and crc32c(data) == written:
        return [row._replace(checksum=written)]
    if digester is None and not row.is_believed_unproven:
        return [row.condemned(was_read=data is not None)]
    present = [entry_id for ids in row.ranges() for entry_id in ids]
    good: dict[EntryId, bytes] = {}
    unread: set[EntryId] = set()
    for entry_id in present:
        piece = _piece(row, entry_id, data, read_entry)
        if piece is None:
            unread.add(entry_id)
        elif _is_good(row, entry_id, piece, digester):
            good[entry_id] = piece
    parts = []
    for (is_good, is_unread), group in groupby(
        present, lambda each: (each in good, each in unread)
    ):
        ids_ = list(group)
        part = row.part(ids_[0], ids_[-1])
        if is_good:
            # Framing alone proves nothing about the bytes.
            joined = b"".join([good[entry_id] for entry_id in ids_])
            part = part._replace(checksum=None if digester is None else crc32c(joined))
        else:
            part = part.condemned(was_read=not is_unread)
        parts.append(part)
    return parts


def _piece(
    row: StoredRun,
    entry_id: EntryId,
    data: bytes | None,
    read_entry: Callable[[EntryId], bytes | None],
) -> bytes | None:
    if data is None:
        return read_entry(entry_id)
    start = row.position_of(entry_id) - row.position
    return data[start : start + row.size_of(entry_id) + 4]


def _is_good(row: StoredRun, entry_id: EntryId, piece: bytes, digester: Digester | None) -> bool:
    if entry_head(piece, 0) != (len(piece) - 4, row.ledger_id, entry_id):
        return False
    if digester is None:
        return True
    try:
        digester.verify(piece[4:], row.ledger_id, entry_id)
    except QuorumbookError:
        return False
    return True


def damaged_entries(parts: Sequence[StoredRun]) -> int:
    """Count the entries that are known to be damaged."""
    return sum(part.entry_count for part in parts if part.is_damaged)
