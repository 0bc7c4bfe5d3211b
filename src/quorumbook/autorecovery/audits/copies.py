"""How many copies entries have, by the lists that bookies give of what they hold: pure.

    count_copies(first, last, held, write_quorum_size) -> Copies(least, lacking)
    closed_fragments(metadata) -> ClosedFragment(first_entry_id, last_entry_id, ensemble), ...

A list says that a bookie has an entry, not that its bytes are right; that is ``verification``'s.
Entries are bits of integers here, a block of them at a time, so that a ledger of any length takes
little memory and a million entries cost some dozens of operations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from quorumbook.ids import BookieId, EntryId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.ledger.placement.schedule import stripe_mask

_BLOCK_ENTRIES = 1 << 16


class ClosedFragment(NamedTuple):
    """A fragment that takes no more entries, and holds one at least."""

    first_entry_id: EntryId
    last_entry_id: EntryId
    ensemble: tuple[BookieId, ...]


class Copies(NamedTuple):
    """What the lists say of one fragment."""

    #: Copies of the entry that has the fewest; bookies without a list count as having none.
    least: int
    #: Positions whose list lacks entries that they should hold.
    lacking: tuple[int, ...]


def closed_fragments(metadata: LedgerMetadata) -> Iterator[ClosedFragment]:
    """Yield the fragments whose entries are settled, without the empty ones.

    The last fragment of a ledger that is not closed is still written: nobody can say yet which
    entries it must hold.  Whatever lies beyond the end of a closed ledger is no entry of it.
    """
    fragments = metadata.fragments if metadata.is_closed else metadata.fragments[:-1]
    for fragment in fragments:
        last = metadata.last_entry_of(fragment)
        if metadata.is_closed:
            last = min(last, metadata.last_entry_id)
        if last >= fragment.first_entry_id:
            yield ClosedFragment(fragment.first_entry_id, last, fragment.ensemble)


def count_copies(
    first_entry_id: EntryId,
    last_entry_id: EntryId,
    held: Sequence[Sequence[tuple[EntryId, EntryId]] | None],
    write_quorum_size: int,
) -> Copies:
    """Count the copies of the entries of one fragment.

    Args:
        first_entry_id: Its first entry.
        last_entry_id: Its last one.
        held: By position in the ensemble, what the bookie there lists: runs of first and last id,
            in any order; None if it gave no list.
        write_quorum_size: Copies that each entry should have.
    """
    least = write_quorum_size
    lacking: set[int] = set()
    for first in range(first_entry_id, last_entry_id + 1, _BLOCK_ENTRIES):
        count = min(_BLOCK_ENTRIES, last_entry_id + 1 - first)
        #: Entries that have at least so many copies, by that number.
        at_least = [(1 << count) - 1] + [0] * write_quorum_size
        for position, ranges in enumerate(held):
            expected = stripe_mask(position, first, count, len(held), write_quorum_size)
            found = expected & _mask(ranges or (), first, count)
            if ranges is not None and found != expected:
                lacking.add(position)
            for number in range(write_quorum_size, 0, -1):
                at_least[number] |= at_least[number - 1] & found
        while at_least[least] != at_least[0]:
            least -= 1
    return Copies(least, tuple(sorted(lacking)))


def _mask(ranges: Sequence[tuple[EntryId, EntryId]], first: EntryId, count: int) -> int:
    """Return the bits i below ``count`` for which ``first + i`` lies in one of the runs."""
    mask = 0
    for low, high in ranges:
        start, stop = max(low - first, 0), min(high + 1 - first, count)
        if start < stop:
            mask |= (1 << stop) - (1 << start)
    return mask
