"""Write sets and coverage: the arithmetic of quorums within an ensemble.

    write_set(entry_id, ensemble_size, write_quorum_size) -> tuple[int, ...]
    is_stored_at(entry_id, bookie_index, ensemble_size, write_quorum_size) -> bool
    entries_at(bookie_index, first, last, ensemble_size, write_quorum_size) -> Sequence[EntryId]
    stripe_mask(bookie_index, first_entry_id, count, ensemble_size, write_quorum_size) -> int
    StripeMasks(ensemble_size, write_quorum_size).mask(bookie_index, first_entry_id, count) -> int
    negatives_needed(write_quorum_size, ack_quorum_size) -> int
    is_covered(answered, ensemble_size, write_quorum_size, ack_quorum_size) -> bool
    can_reach_quorum(failed, ensemble_size, write_quorum_size, ack_quorum_size) -> bool

Entry e is stored at the positions (e + i) mod ensemble size, i below the write quorum; any ack
quorum of them makes it safe.  A set of positions is a bit mask (bit b for position b).  Ids are
64-bit integers and the modulo is taken of the whole id (the peer cuts it to 32 bits first).
"""

from __future__ import annotations

from collections.abc import Sequence

from quorumbook.ids import EntryId


def write_set(entry_id: EntryId, ensemble_size: int, write_quorum_size: int) -> tuple[int, ...]:
    """Return the positions that store an entry, in the order a reader asks them."""
    return tuple((entry_id + i) % ensemble_size for i in range(write_quorum_size))


def is_stored_at(
    entry_id: EntryId, bookie_index: int, ensemble_size: int, write_quorum_size: int
) -> bool:
    """Tell whether a position stores an entry."""
    return (bookie_index - entry_id) % ensemble_size < write_quorum_size


def entries_at(
    bookie_index: int,
    first_entry_id: EntryId,
    last_entry_id: EntryId,
    ensemble_size: int,
    write_quorum_size: int,
) -> Sequence[EntryId]:
    """Return the ids between two that a position stores, ascending; a range if it stores all."""
    ids = range(first_entry_id, last_entry_id + 1)
    if ensemble_size == write_quorum_size:
        return ids
    return [e for e in ids if (bookie_index - e) % ensemble_size < write_quorum_size]


def stripe_mask(
    bookie_index: int,
    first_entry_id: EntryId,
    count: int,
    ensemble_size: int,
    write_quorum_size: int,
) -> int:
    """Return the bits i below ``count`` for which a position stores ``first_entry_id + i``."""
    if ensemble_size == write_quorum_size:
        return (1 << count) - 1
    phase = (bookie_index - first_entry_id) % ensemble_size
    pattern = sum(
        1 << i for i in range(ensemble_size) if (phase - i) % ensemble_size < write_quorum_size
    )
    # The pattern repeats every ensemble_size bits: one multiplication lays it side by side.
    periods = -(-count // ensemble_size)
    repeated = pattern * (((1 << ensemble_size * periods) - 1) // ((1 << ensemble_size) - 1))
    return repeated & ((1 << count) - 1)


class StripeMasks:
    """Stripe masks for a writer's window: made once, wide enough, for each phase."""

    __slots__ = ("_ensemble_size", "_masks", "_width", "_write_quorum_size")

    def __init__(self, ensemble_size: int, write_quorum_size: int) -> None:
        self._ensemble_size = ensemble_size
        self._write_quorum_size = write_quorum_size
        self._width = 0
        self._masks: list[int] = []

    def mask(self, bookie_index: int, first_entry_id: EntryId, count: int) -> int:
        """Return ``stripe_mask`` for at least ``count`` entries; there may be bits beyond."""
        size = self._ensemble_size
        if self._width <= count:
            self._width = 2 * count + 64
            self._masks = [
                stripe_mask(phase, 0, self._width, size, self._write_quorum_size)
                for phase in range(size)
            ]
        return self._masks[(bookie_index - first_entry_id) % size]


def negatives_needed(write_quorum_size: int, ack_quorum_size: int) -> int:
    """Return how many definite "no such entry" prove that an entry never reached its ack quorum.

    They leave fewer than an ack quorum of positions that may have it, and each of them was
    fenced by the asking, so that none of them takes it later.
    """
    return write_quorum_size - ack_quorum_size + 1


def is_covered(
    answered: int, ensemble_size: int, write_quorum_size: int, ack_quorum_size: int
) -> bool:
    """Tell whether no ack quorum can hide among the positions that did not answer.

    Args:
        answered: mask of the positions that answered: with an entry, or that they have none.
            Errors and silence are no answer.
        ensemble_size: positions there are.
        write_quorum_size: positions that store an entry.
        ack_quorum_size: positions that make an entry safe.
    """
    return _largest_gap(answered, ensemble_size, write_quorum_size) < ack_quorum_size


def can_reach_quorum(
    failed: int, ensemble_size: int, write_quorum_size: int, ack_quorum_size: int
) -> bool:
    """Tell whether every entry can still get its ack quorum with these positions out (a mask)."""
    working = ~failed
    gap = _largest_gap(working, ensemble_size, write_quorum_size)
    return gap <= write_quorum_size - ack_quorum_size


def _largest_gap(present: int, ensemble_size: int, write_quorum_size: int) -> int:
    """Return the most absent positions that the write set of any entry has."""
    return max(
        sum(
            not present >> position & 1
            for position in write_set(start, ensemble_size, write_quorum_size)
        )
        for start in range(ensemble_size)
    )
