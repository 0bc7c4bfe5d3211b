"""Zone-aware placement: locations are ``/zone/upgrade-domain``.

Every write set stands in ``desired_zones`` zones where there are so many, and never in fewer than
``min_zones``; bookies of a write set in one zone stand in at least two of its upgrade domains, so
that a zone can be upgraded domain by domain.  That a zone fails leaves ensembles that keep to the
policy softly.  Without ``is_strict`` nothing is refused; ensembles come as near as they can.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import ClassVar

from quorumbook.errors import LocalProtocolError
from quorumbook.ledger.placement.location import DEFAULT_ZONE_AND_UPGRADE_DOMAIN, region_of
from quorumbook.ledger.placement.policy import Adherence, Cost, Locations, Policy, Shape, lacking


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneAware(Policy):
    """Write sets in several zones, and in two upgrade domains of a zone."""

    default_location: ClassVar[str] = DEFAULT_ZONE_AND_UPGRADE_DOMAIN
    min_zones: int = 2
    desired_zones: int = 3
    is_strict: bool = True

    @property
    def rule(self) -> str:
        """What is enforced, for messages."""
        if not self.is_strict:
            return ""
        return (
            f"every write set in {self.min_zones} zones, and in two upgrade domains of a zone that "
            "has more than one of its bookies"
        )

    def check(self, shape: Shape) -> None:
        """Raise LocalProtocolError if no ensemble of this shape survives the loss of a zone."""
        if not self.is_strict:
            return
        if shape.ensemble_size % shape.write_quorum_size:
            raise LocalProtocolError(
                f"strict zone-aware placement needs an ensemble size that is a multiple of the "
                f"write quorum size, not {shape.ensemble_size} and {shape.write_quorum_size}"
            )
        if shape.write_quorum_size <= self.min_zones:
            raise LocalProtocolError(
                f"strict zone-aware placement needs a write quorum above the {self.min_zones} "
                f"zones that are the least, not {shape.write_quorum_size}"
            )

    def may_hold(self, location: str) -> bool:
        """Tell whether a bookie there may be chosen at all."""
        return not self.is_strict or self._is_resolved(location)

    def costs(
        self, shape: Shape, reachable: Collection[str], *, is_replacement: bool = False
    ) -> Callable[[Locations], Cost]:
        """Count zones and upgrade domains that write sets lack."""
        del is_replacement
        windows = shape.write_sets()
        zones = len({region_of(location) for location in reachable})
        desired = min(shape.write_quorum_size, self.desired_zones, zones)

        def cost(locations: Locations) -> Cost:
            forbidden = few = together = 0
            for positions in windows:
                window = [locations[i] for i in positions]
                zones_there = [None if each is None else region_of(each) for each in window]
                crowded = _crowded(window) - window.count(None)
                known = [each for each in window if each is not None]
                stray = sum(not self._is_resolved(each) for each in known)
                forbidden += lacking(zones_there, self.min_zones) + max(0, crowded) + stray
                few += lacking(zones_there, desired)
                together += len(known) - len(set(known))
            wishes = few, together
            return (forbidden, *wishes) if self.is_strict else (0, forbidden, *wishes)

        return cost

    def adherence(self, shape: Shape, locations: Locations) -> Adherence:
        """Judge an ensemble: softly where a write set has not all the zones desired."""
        quorum = shape.write_quorum_size
        if shape.ensemble_size % quorum or quorum <= self.min_zones:
            return Adherence.FAIL
        found = Adherence.STRICT
        for positions in shape.write_sets():
            window = [locations[i] for i in positions]
            if any(each is None or not self._is_resolved(each) for each in window):
                return Adherence.FAIL
            zones = {region_of(each) for each in window if each is not None}
            if len(zones) < self.min_zones or _crowded(window):
                return Adherence.FAIL
            if len(zones) < min(quorum, self.desired_zones):
                found = Adherence.SOFT
        return found

    def domain(self, location: str) -> str:
        """Return the zone."""
        return region_of(location)

    def min_domains(self, write_quorum_size: int) -> int:
        """Return in how many zones an entry should be acknowledged before it is confirmed."""
        return min(write_quorum_size, self.min_zones)

    def _is_resolved(self, location: str) -> bool:
        return location != self.default_location and location.count("/") == 2


def _crowded(window: Locations) -> int:
    """Return how many zones have several bookies of a write set, all in one upgrade domain."""
    known = [each for each in window if each is not None]
    if len(set(known)) == len(known):
        return 0
    bookies, domains = Counter(map(region_of, known)), Counter(map(region_of, set(known)))
    return sum(1 for zone, count in bookies.items() if count > 1 and domains[zone] < 2)
