"""Sets of ledger ids, kept as ranges: most ledgers of a cluster are numbered one behind the other.

A bookie with millions of ledgers that the metadata deny (a client may make as many as it likes)
pays for the gaps between them, not for each.  All is pure; large sets belong off the event loop.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import chain, islice

from quorumbook.ids import LedgerId

Pair = tuple[LedgerId, LedgerId]


class LedgerRanges:
    """An immutable set; iterates ascending.

    Args:
        pairs: First and last id of each range, ascending; they may touch, and overlap.
    """

    __slots__ = ("_count", "_digest", "_firsts", "_lasts")

    def __init__(self, pairs: Iterable[Pair] = ()) -> None:
        self._firsts, self._lasts = firsts, lasts = array("q"), array("q")
        for first, last in pairs:
            if lasts and first <= lasts[-1] + 1:
                lasts[-1] = max(lasts[-1], last)
            else:
                firsts.append(first)
                lasts.append(last)
        self._count = sum(lasts) - sum(firsts) + len(firsts)
        self._digest = ""

    @classmethod
    def of(cls, ledger_ids: Iterable[LedgerId]) -> LedgerRanges:
        """Make a set of single ids, in any order."""
        return cls((each, each) for each in sorted(ledger_ids))

    @classmethod
    def union(cls, parts: Iterable[LedgerRanges]) -> LedgerRanges:
        """Put sets together."""
        return cls(sorted(chain.from_iterable(part.pairs() for part in parts)))

    @classmethod
    def in_order(cls, parts: Iterable[LedgerRanges]) -> LedgerRanges:
        """Put sets together each of which lies above the one before."""
        return cls(chain.from_iterable(part.pairs() for part in parts))

    def pairs(self) -> Iterator[Pair]:
        """Yield first and last id of each range, ascending."""
        return zip(self._firsts, self._lasts, strict=True)

    @property
    def ends(self) -> Pair:
        """The lowest and the highest id; there must be one."""
        return self._firsts[0], self._lasts[-1]

    @property
    def digest(self) -> str:
        """A name for exactly this set.  All of it is read the first time that somebody asks."""
        if not self._digest:
            found = sha256(self._firsts)
            found.update(self._lasts)
            self._digest = found.hexdigest()
        return self._digest

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[LedgerId]:
        return chain.from_iterable(range(first, last + 1) for first, last in self.pairs())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LedgerRanges):
            return NotImplemented
        return (self._firsts, self._lasts) == (other._firsts, other._lasts)

    def __hash__(self) -> int:
        return hash((self._firsts.tobytes(), self._lasts.tobytes()))

    def __repr__(self) -> str:
        return f"LedgerRanges({list(self.pairs())})"

    def __and__(self, other: LedgerRanges) -> LedgerRanges:
        return LedgerRanges(_common(self, other))

    def __or__(self, other: LedgerRanges) -> LedgerRanges:
        return LedgerRanges.union([self, other])

    def __sub__(self, other: LedgerRanges) -> LedgerRanges:
        return LedgerRanges(_without(self, other))

    def from_id(self, lowest: LedgerId) -> LedgerRanges:
        """Return the part from an id on."""
        return LedgerRanges(
            (max(first, lowest), last) for first, last in self.pairs() if last >= lowest
        )

    def first(self, count: int) -> LedgerRanges:
        """Return the lowest so many."""

        def taken() -> Iterator[Pair]:
            left = count
            for first, last in self.pairs():
                if left <= 0:
                    return
                yield first, min(last, first + left - 1)
                left -= last - first + 1

        return LedgerRanges(taken())


def _common(one: LedgerRanges, other: LedgerRanges) -> Iterator[Pair]:
    others = other.pairs()
    first, last = next(others, (0, -1))
    for begin, end in one.pairs():
        while first <= last < begin:
            first, last = next(others, (0, -1))
        while first <= last and first <= end:
            yield max(begin, first), min(end, last)
            if last > end:
                break
            first, last = next(others, (0, -1))


def _without(one: LedgerRanges, other: LedgerRanges) -> Iterator[Pair]:
    others = other.pairs()
    first, last = next(others, (0, -1))
    for begin, end in one.pairs():
        left = begin
        while first <= last < begin:
            first, last = next(others, (0, -1))
        while first <= last and first <= end:
            if left < first:
                yield left, first - 1
            left = last + 1
            if last > end:
                break
            first, last = next(others, (0, -1))
        if left <= end:
            yield left, end


def in_batches(ledger_ids: Iterable[LedgerId], size: int) -> Iterator[list[LedgerId]]:
    """Yield the ids in lists of at most so many."""
    rest = iter(ledger_ids)
    while batch := list(islice(rest, size)):
        yield batch
