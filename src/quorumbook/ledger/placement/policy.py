"""Choice of the bookies of an ensemble.

    class Randomness(Protocol)           what ``random.Random`` offers of it
    RandomPlacement()
        .new_ensemble(size, candidates, excluded, random) -> tuple[BookieId, ...]
        .replace(failed, ensemble, candidates, excluded, random) -> dict[int, BookieId]
    both raise NotEnoughBookiesError

Candidates are the writable bookies; quarantined ones are ``excluded``.  Randomness is handed in,
so that a seed repeats every choice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from quorumbook.errors import NotEnoughBookiesError
from quorumbook.ids import BookieId


class Randomness(Protocol):
    """A source of choices."""

    def sample(self, population: Sequence[BookieId], k: int) -> list[BookieId]:
        """Return ``k`` different members in random order."""
        ...


class RandomPlacement:
    """Any writable bookie is as good as another."""

    def new_ensemble(
        self,
        size: int,
        candidates: Collection[BookieId],
        excluded: Collection[BookieId],
        random: Randomness,
    ) -> tuple[BookieId, ...]:
        """Choose the ensemble of a new ledger."""
        usable = _usable(candidates, excluded)
        if len(usable) < size:
            known = len(set(candidates))
            failed = f", {known - len(usable)} of them failed lately" if known > len(usable) else ""
            raise NotEnoughBookiesError(
                f"an ensemble of {size} bookies is wanted, {known} are writable{failed}"
            )
        return tuple(random.sample(usable, size))

    def replace(
        self,
        failed: Mapping[int, BookieId],
        ensemble: Sequence[BookieId],
        candidates: Collection[BookieId],
        excluded: Collection[BookieId],
        random: Randomness,
    ) -> dict[int, BookieId]:
        """Choose a new bookie for each failed position, or for as many as there are bookies.

        Neither a present member nor a failed bookie is chosen, not even for another position.
        """
        usable = _usable(candidates, {*excluded, *ensemble, *failed.values()})
        if not usable:
            raise NotEnoughBookiesError(
                f"no bookie is left to replace {', '.join(sorted(set(failed.values())))}"
            )
        positions = sorted(failed)
        chosen = random.sample(usable, min(len(usable), len(positions)))
        return dict(zip(positions, chosen, strict=False))


def _usable(candidates: Collection[BookieId], excluded: Collection[BookieId]) -> list[BookieId]:
    # Sorted, because the order of a set is not repeatable from run to run.
    return sorted(set(candidates) - set(excluded))
