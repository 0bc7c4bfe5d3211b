"""What the end of a journal shows: a write that was cut short, or damage.

The pieces of a group are written one behind the other, into a file that holds zeros there; so a
process that is killed leaves a beginning of the group, cut at a block, and zeros.  A loss of power
can keep any blocks of it from the disk, so that zeros stand there.  Nothing else can happen to a
group before its sync returns.

Only the framing decides, which the bookie writes itself: lengths, ids and the check.  What
clients write, payloads and digests, decides nothing.
"""

from __future__ import annotations

from operator import eq
from struct import Struct

from quorumbook.storage.journal.format import (
    ALIGNMENT,
    CHECK_SIZE,
    FENCE_ENTRY_ID,
    KEY_ENTRY_ID,
    LAC_ENTRY_ID,
    PADDING,
)

_HEAD = Struct(">iqq")
_IDS_SIZE = 16
#: A check in which so many bytes of its first twelve are right was written, and damaged later.
_ALIKE_BYTES = 8


def is_cut_short(group: bytes, check_prefix: bytes) -> bool:
    """Tell whether a bad group is the beginning of one.

    Its records must follow each other up to one that goes on behind the last block that is there.

    Args:
        group: Its blocks, up to the last one that is not zeros.
        check_prefix: What its check begins with.
    """
    if _has_check(group, check_prefix):
        return False
    at, end = 0, len(group)
    while at + _HEAD.size <= end:
        size, ledger_id, entry_id = _HEAD.unpack_from(group, at)
        if size == PADDING:
            # It ends the group, and where its last bytes are zeros the check was not written.
            content_size: int = ledger_id >> 32
            return at + 8 + content_size > end
        is_entry = entry_id >= 0 or entry_id in (KEY_ENTRY_ID, FENCE_ENTRY_ID, LAC_ENTRY_ID)
        if size < _IDS_SIZE or ledger_id < 0 or not is_entry:
            return False
        at += 4 + size
    return True


def lacks_blocks(group: bytes, check_prefix: bytes) -> bool:
    """Tell whether zeros stand where a block of a bad group was to be written, its last included.

    Args:
        group: Its blocks, up to the last one that is not zeros.
        check_prefix: What its check begins with.
    """
    if not _has_check(group, check_prefix):
        return True
    starts = range(0, len(group), ALIGNMENT)
    return not all(any(group[start : start + ALIGNMENT]) for start in starts)


def _has_check(group: bytes, check_prefix: bytes) -> bool:
    alike: int = sum(map(eq, group[len(group) - CHECK_SIZE :], check_prefix))
    return alike >= _ALIKE_BYTES
