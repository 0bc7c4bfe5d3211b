"""Acks that count by where they come from: enough bookies, in enough fault domains.

    AckDomains(shape, domains, min_domains)
      .enough(acks) -> int              which entries are acknowledged in enough domains, as bits
      .can_reach(failed) -> bool        whether every entry still can be

Built for one ensemble: ``domains`` names what fails together with the bookie at each position.
"""

from __future__ import annotations

from collections.abc import Sequence

from quorumbook.ledger.placement.policy import Shape


class AckDomains:
    """See the module's docstring."""

    __slots__ = ("_domains", "_min_domains", "_windows")

    def __init__(self, shape: Shape, domains: Sequence[str], min_domains: int) -> None:
        numbers = {domain: number for number, domain in enumerate(dict.fromkeys(domains))}
        self._domains = [numbers[domain] for domain in domains]
        self._windows = shape.write_sets()
        self._min_domains = min_domains

    def enough(self, acks: Sequence[int]) -> int:
        """Return the bits that are set in enough domains' positions.

        Args:
            acks: for each position a bit for every entry that it acknowledged.
        """
        least = self._min_domains
        of_domain = [0] * len(acks)
        for number, bits in zip(self._domains, acks, strict=True):
            of_domain[number] |= bits
        at_least = [0] * least
        for bits in of_domain:
            for k in range(least - 1, 0, -1):
                at_least[k] |= at_least[k - 1] & bits
            at_least[0] |= bits
        return at_least[-1]

    def can_reach(self, failed: int) -> bool:
        """Tell whether every write set has enough domains without these positions (a mask)."""
        return all(
            len({self._domains[i] for i in window if not failed >> i & 1}) >= self._min_domains
            for window in self._windows
        )
