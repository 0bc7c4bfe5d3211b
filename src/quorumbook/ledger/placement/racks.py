"""Rack-aware placement: every write set stands in several racks.

A rack is a whole location.  With ``is_enforced`` an ensemble that cannot be spread so is refused,
and bookies of which no rack is known are left out; otherwise it comes as near as it can.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from quorumbook.ledger.placement.policy import Adherence, Cost, Locations, Policy, Shape, lacking


@dataclass(frozen=True, slots=True, kw_only=True)
class RackAware(Policy):
    """Write sets in at least ``min_racks`` racks, or one for each bookie of smaller ones."""

    min_racks: int = 2
    is_enforced: bool = False

    @property
    def rule(self) -> str:
        """What is enforced, for messages."""
        return f"every write set in {self.min_racks} racks" if self.is_enforced else ""

    def may_hold(self, location: str) -> bool:
        """Tell whether a bookie there may be chosen at all."""
        return not (self.is_enforced and location == self.default_location)

    def costs(
        self, shape: Shape, reachable: Collection[str], *, is_replacement: bool = False
    ) -> Callable[[Locations], Cost]:
        """Count the racks that write sets lack."""
        del is_replacement
        windows = shape.write_sets()
        wanted = self.min_domains(shape.write_quorum_size)
        if not self.is_enforced:
            wanted = min(wanted, len(reachable))

        def cost(locations: Locations) -> Cost:
            lack = sum(lacking([locations[i] for i in window], wanted) for window in windows)
            return (lack, 0) if self.is_enforced else (0, lack)

        return cost

    def adherence(self, shape: Shape, locations: Locations) -> Adherence:
        """Judge an ensemble: strict or not at all."""
        wanted = self.min_domains(shape.write_quorum_size)
        for window in shape.write_sets():
            racks = {locations[i] for i in window} - {None}
            if len(racks) < wanted or (self.is_enforced and self.default_location in racks):
                return Adherence.FAIL
        return Adherence.STRICT

    def min_domains(self, write_quorum_size: int) -> int:
        """Return in how many racks an entry should be acknowledged before it is confirmed."""
        return min(write_quorum_size, self.min_racks)
