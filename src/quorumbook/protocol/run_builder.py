"""Building runs out of the adds of a chunk, the same for v2 and v3.

Entries go into one run while ledger, key and flags are the same and ids ascend with gaps below
``MAX_GAP``: the ensemble stripes, so a bookie sees every id of a ledger or a regular part of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from quorumbook.ids import EntryId, LedgerId
from quorumbook.protocol.entry_run import SIZE, EntryRun

MAX_GAP = 16
#: Entries from this size on are joined out of their chunk; a slice would copy them once more.
_VIEW_FROM_BYTES = 64 * 1024


def to_cut(data: bytes, size_bytes: int) -> bytes | memoryview:
    """Return what entries of about that size are cut out of: the chunk, or a view of it."""
    return data if size_bytes < _VIEW_FROM_BYTES else memoryview(data)


def single_run(ledger_id: LedgerId, entry_id: EntryId, data: bytes) -> EntryRun:
    """Return the run of one entry, which has its size in front of it."""
    return EntryRun(ledger_id, entry_id, entry_id, len(data) - SIZE.size, data)


def build_run(
    ledger_id: LedgerId,
    first_entry_id: EntryId,
    last_entry_id: EntryId,
    entry_ids: Sequence[EntryId] | None,
    bodies: list[bytes | memoryview],
) -> EntryRun:
    """Join the entries of a chunk.

    Args:
        ledger_id: The ledger.
        first_entry_id: The first id.
        last_entry_id: The last id.
        entry_ids: All ids, if some between first and last are not here.
        bodies: An empty piece and then the entries; it makes the first size a separator too.
    """
    if len(bodies) == 2:
        data = b"".join((SIZE.pack(len(bodies[1])), bodies[1]))
        return single_run(ledger_id, first_entry_id, data)
    sizes = list(map(len, bodies))
    size = sizes[1]
    count = len(bodies) - 1
    is_uniform = sizes.count(size) == count
    if is_uniform:
        data = SIZE.pack(size).join(bodies)
    else:
        del sizes[0], bodies[0]
        parts: list[bytes | memoryview] = [b""] * (2 * count)
        parts[::2] = map(SIZE.pack, sizes)
        parts[1::2] = bodies
        data = b"".join(parts)
    if entry_ids is None:
        return EntryRun(
            ledger_id, first_entry_id, last_entry_id, size if is_uniform else sizes, data
        )
    sizes_by_id = [0] * (last_entry_id - first_entry_id + 1)
    if is_uniform:
        sizes = [size] * count
    for entry_id, entry_size in zip(entry_ids, sizes, strict=True):
        sizes_by_id[entry_id - first_entry_id] = entry_size
    return EntryRun(ledger_id, first_entry_id, last_entry_id, sizes_by_id, data)
