"""Which entries of a ledger a bookie has to hold, as its metadata says, and which it lacks.

Only what cannot change any more counts: all of a closed ledger, and of an open one every fragment
but the last.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from quorumbook.ids import BookieId, EntryId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.ledger.placement.schedule import is_stored_at


def names(metadata: LedgerMetadata, bookie_id: BookieId) -> bool:
    """Tell whether a bookie is in any ensemble of a ledger."""
    return any(bookie_id in fragment.ensemble for fragment in metadata.fragments)


def lacking(
    metadata: LedgerMetadata, bookie_id: BookieId, held: Sequence[range]
) -> Iterator[EntryId]:
    """Yield the entries that a bookie has to hold and does not, ascending.

    Args:
        metadata: Of the ledger.
        bookie_id: The bookie.
        held: Ids that it holds, as ascending ranges apart from each other.
    """
    starts = [ids.start for ids in held]
    sealed = metadata.fragments if metadata.is_closed else metadata.fragments[:-1]
    for fragment in sealed:
        if bookie_id not in fragment.ensemble:
            continue
        place = fragment.ensemble.index(bookie_id)
        entry_id, last = fragment.first_entry_id, metadata.last_entry_of(fragment)
        while entry_id <= last:
            index = bisect_right(starts, entry_id) - 1
            if index >= 0 and entry_id < held[index].stop:
                entry_id = held[index].stop
                continue
            if is_stored_at(entry_id, place, metadata.ensemble_size, metadata.write_quorum_size):
                yield entry_id
            entry_id += 1
