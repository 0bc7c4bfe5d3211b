"""How much likelier one bookie is chosen than another: by the free space of its disks.

    weights(free_bytes, max_multiple) -> dict[BookieId, float]
    shuffled(bookie_ids, weight_of, random) -> list[BookieId]

The weight is the bookie's share of all free space.  One that reported nothing has the smallest
share of those that did, and none has more than ``max_multiple`` times the median share, so that a
new bookie does not get every new ledger.  The numbers are the peer's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Protocol

from quorumbook.ids import BookieId


class Randomness(Protocol):
    """A source of choices; ``random.Random`` is one."""

    def random(self) -> float:
        """Return a number from 0 up to, not including, 1."""
        ...


def weights(free_bytes: Mapping[BookieId, int], max_multiple: float) -> dict[BookieId, float]:
    """Return the weight of each bookie.

    Args:
        free_bytes: free space of each; 0 where it is not known.
        max_multiple: how many times the median a weight may be.
    """
    total = sum(free_bytes.values())
    if not total:
        return {bookie_id: 1 / len(free_bytes) for bookie_id in free_bytes}
    least = min(free for free in free_bytes.values() if free) / total
    most = max_multiple * median(free_bytes.values()) / total
    found = {bookie_id: free / total or least for bookie_id, free in free_bytes.items()}
    if most > 0:
        return {bookie_id: min(weight, most) for bookie_id, weight in found.items()}
    return found


def shuffled(
    bookie_ids: Iterable[BookieId], weight_of: Mapping[BookieId, float], random: Randomness
) -> list[BookieId]:
    """Return bookies in random order, as if drawn one after the other by weight.

    Args:
        bookie_ids: those to draw.
        weight_of: their weights; all are alike if it is empty.
        random: where chance comes from.
    """
    # Sorted first, because the order of a set is not repeatable from run to run.
    keys = {
        bookie_id: math.log(1.0 - random.random()) / weight_of.get(bookie_id, 1.0)
        for bookie_id in sorted(bookie_ids)
    }
    return sorted(keys, key=keys.__getitem__, reverse=True)
