"""Region-aware placement: locations are ``/region/rack``.

An ensemble is spread over the regions as evenly as they have bookies, and within a region over
racks.  With ``min_regions`` an entry survives the loss of all but so many regions: no
``min_regions - 1`` regions hold an ack quorum of any write set, and an ensemble of which that
cannot be said is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import ClassVar

from quorumbook.errors import ConfigError, LocalProtocolError
from quorumbook.ledger.placement.location import DEFAULT_REGION_AND_RACK, region_of
from quorumbook.ledger.placement.policy import Adherence, Cost, Locations, Policy, Shape, lacking


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionAware(Policy):
    """Write sets in several regions.

    Attributes:
        regions: The regions to write to; all if empty.
        disallowed_regions: Where no new copies go for now.
        min_regions: Regions that must hold an ack quorum together; 0 or 1 promises nothing.
        is_enforced_in_replacement: Whether that binds replacements too.
        min_racks: Racks, or without ``min_regions`` regions, that a write set should stand in.
        is_rack_enforced: Leave out bookies of which no region is known.
    """

    default_location: ClassVar[str] = DEFAULT_REGION_AND_RACK
    regions: tuple[str, ...] = ()
    disallowed_regions: tuple[str, ...] = ()
    min_regions: int = 0
    is_enforced_in_replacement: bool = True
    min_racks: int = 2
    is_rack_enforced: bool = False

    def __post_init__(self) -> None:
        if self.regions and len(self.regions) < self.min_regions:
            raise ConfigError(
                f"{len(self.regions)} regions to write to are fewer than the {self.min_regions} "
                "that entries are to survive in"
            )

    @property
    def rule(self) -> str:
        """What is enforced, for messages."""
        if self.min_regions < 2:
            return ""
        return f"no ack quorum of a write set in fewer than {self.min_regions} regions"

    def check(self, shape: Shape) -> None:
        """Raise LocalProtocolError if the quorums cannot survive the loss of regions."""
        if self.min_regions < 1:
            return
        writes, acks = shape.write_quorum_size, shape.ack_quorum_size
        least = max(self.min_regions, writes - writes // self.min_regions + 1)
        if acks < least:
            raise LocalProtocolError(
                f"entries that survive in {self.min_regions} regions need an ack quorum of at "
                f"least {least} with a write quorum of {writes}, not {acks}"
            )

    def may_hold(self, location: str) -> bool:
        """Tell whether a bookie there may be chosen at all."""
        region = region_of(location)
        if self.is_rack_enforced and location == self.default_location:
            return False
        return (not self.regions or region in self.regions) and (
            region not in self.disallowed_regions
        )

    def costs(
        self, shape: Shape, reachable: Collection[str], *, is_replacement: bool = False
    ) -> Callable[[Locations], Cost]:
        """Count what regions hold too much, write sets lack, and how uneven regions are."""
        windows = shape.write_sets()
        racks_in = Counter(map(region_of, set(reachable)))
        even = -(-shape.ensemble_size // max(1, len(racks_in)))
        wanted = min(self._wanted(shape), len(racks_in))
        wanted_racks = min(self.min_domains(shape.write_quorum_size), len(set(reachable)))
        is_bound = not is_replacement or self.is_enforced_in_replacement

        def cost(locations: Locations) -> Cost:
            unsafe = few = close = 0
            for positions in windows:
                window = [locations[i] for i in positions]
                regions = [None if each is None else region_of(each) for each in window]
                unsafe += self._unsafe(shape, regions)
                few += lacking(regions, wanted) + lacking(window, wanted_racks)
                close += max(0, self._close(window, racks_in) - window.count(None))
            held = Counter(region_of(each) for each in locations if each is not None)
            uneven = sum(max(0, count - even) for count in held.values())
            return (unsafe, few, uneven, close) if is_bound else (0, unsafe, few, uneven, close)

        return cost

    def adherence(self, shape: Shape, locations: Locations) -> Adherence:
        """Judge an ensemble.

        It fails where a loss of regions could cost an entry, or a bookie stands in a region that
        is not written to; softly it keeps to the policy where a write set lacks regions or racks.
        """
        found = Adherence.STRICT
        for positions in shape.write_sets():
            window = [locations[i] for i in positions]
            regions = [None if each is None else region_of(each) for each in window]
            known = set(regions) - {None}
            if self._unsafe(shape, regions) or len(known) < min(self.min_regions, len(window)):
                return Adherence.FAIL
            if self.regions and not known <= set(self.regions):
                return Adherence.FAIL
            racks = {each for each in window if each is not None}
            if len(racks) < self.min_domains(shape.write_quorum_size):
                return Adherence.FAIL
            if len(known) < self._wanted(shape) or self._close(window, None):
                found = Adherence.SOFT
        return found

    def min_domains(self, write_quorum_size: int) -> int:
        """Return in how many racks an entry should be acknowledged before it is confirmed."""
        return min(write_quorum_size, self.min_racks)

    def _wanted(self, shape: Shape) -> int:
        """Return how many regions a write set should stand in."""
        return min(shape.write_quorum_size, self.min_regions or self.min_racks)

    def _unsafe(self, shape: Shape, regions: Locations) -> int:
        """Return how much of an ack quorum is too much in the ``min_regions - 1`` fullest."""
        if self.min_regions < 2:
            return 0
        fullest = Counter(region for region in regions if region is not None).most_common(
            self.min_regions - 1
        )
        return max(0, sum(count for _, count in fullest) - (shape.ack_quorum_size - 1))

    def _close(self, window: Locations, racks_in: Counter[str] | None) -> int:
        """Return how many racks a write set lacks within its regions.

        Args:
            window: its locations.
            racks_in: how many racks each region has; None: as many as are wanted.
        """
        known = [each for each in window if each is not None]
        if len(set(known)) == len(known):
            return 0  # every bookie in a rack of its own
        bookies = Counter(map(region_of, known))
        racks = Counter(map(region_of, set(known)))
        lack = 0
        for region, count in bookies.items():
            wanted = min(count, self.min_racks)
            if racks_in is not None:
                wanted = min(wanted, racks_in[region])
            lack += max(0, wanted - racks[region])
        return lack
