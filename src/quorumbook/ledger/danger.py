"""What it means for a ledger that bookies are away: pure arithmetic on its metadata.

    exposure(metadata, there, missing=()) -> Iterator[Exposed(first, last, copies)]
    share_of(metadata, bookie_ids) -> float            of the ledger's stored copies

Copies of an entry are counted on the bookies of its write set that are there and are not known to
lack it.  Entries of one residue modulo the ensemble size have the same write set, so a fragment is
a handful of cases however long it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from quorumbook.ids import BookieId, EntryId
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.ledger.placement.schedule import write_set


class Exposed(NamedTuple):
    """Entries of a fragment, and the fewest copies that one of them has."""

    first_entry_id: EntryId
    #: None while the fragment is written.
    last_entry_id: EntryId | None
    copies: int
    #: The ensemble they are stored on.
    ensemble: tuple[BookieId, ...]


def exposure(
    metadata: LedgerMetadata, there: Collection[BookieId], missing: Collection[BookieId] = ()
) -> Iterator[Exposed]:
    """Yield the fragments of a ledger that hold entries, with the fewest copies of one of them.

    Args:
        metadata: the ledger's.
        there: bookies that answer.
        missing: bookies that are known to lack copies of this ledger.
    """
    good = set(there) - set(missing)
    for fragment in metadata.fragments:
        last = _last_entry(metadata, fragment)
        size = metadata.ensemble_size
        count = size if last is None else min(size, last + 1 - fragment.first_entry_id)
        if count <= 0:
            continue
        copies = min(
            sum(
                fragment.ensemble[position] in good
                for position in write_set(entry_id, size, metadata.write_quorum_size)
            )
            for entry_id in range(fragment.first_entry_id, fragment.first_entry_id + count)
        )
        yield Exposed(fragment.first_entry_id, last, copies, fragment.ensemble)


def share_of(metadata: LedgerMetadata, bookie_ids: Collection[BookieId]) -> float:
    """Return how many times the ledger's length these bookies store of it, about."""
    total = metadata.last_entry_id + 1
    if not metadata.is_closed or not total:
        return 0.0
    share = 0.0
    for fragment in metadata.fragments:
        entries = metadata.last_entry_of(fragment) + 1 - fragment.first_entry_id
        places = sum(bookie_id in bookie_ids for bookie_id in fragment.ensemble)
        share += entries / total * places * metadata.write_quorum_size / metadata.ensemble_size
    return share


def _last_entry(metadata: LedgerMetadata, fragment: Fragment) -> EntryId | None:
    if fragment == metadata.last_fragment and not metadata.is_closed:
        return None
    return metadata.last_entry_of(fragment)
