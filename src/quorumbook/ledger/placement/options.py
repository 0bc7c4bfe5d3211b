"""What a client is told about placement, and the policy that follows from it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from quorumbook.errors import ConfigError
from quorumbook.ids import BookieId
from quorumbook.ledger.placement.location import check_location
from quorumbook.ledger.placement.policy import Policy
from quorumbook.ledger.placement.racks import RackAware
from quorumbook.ledger.placement.regions import RegionAware
from quorumbook.ledger.placement.zones import ZoneAware

POLICIES = ("rack-aware", "region-aware", "zone-aware", "random", "local-bookie")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementOptions:
    """Which bookies are chosen, and in what order they are read from.

    Attributes:
        policy: One of ``POLICIES``.
        min_racks: Racks that every write set stands in, as far as there are so many.
        enforce_racks: Refuse ensembles that don't, and bookies of which no rack is known.
        regions: The regions that are written to; all if empty.
        disallowed_regions: Regions that get no new copies.
        min_regions: Where ``regions`` are given: entries survive in so many of them.
        enforce_regions_in_replacement: Whether that binds replacements of failed bookies too.
        min_zones: Zones that every write set stands in at least.
        desired_zones: Zones that it stands in where there are so many.
        enforce_zones: Refuse ensembles that break the rules of zones.
        enforce_ack_domains: Confirm an entry only when it is acknowledged in as many racks (zones)
            as the policy wants write sets to stand in.
        weigh_free_space: Choose bookies by the free space of their disks.
        max_weight_multiple: How many times likelier than a median one a bookie is chosen.
        free_space_interval_s: How often bookies are asked for it.
        local_location: Where this client stands: it reads from the nearest bookies first.
        local_bookie: With the policy local-bookie, who comes first in every new ensemble.
        rack_script: A program that tells locations; empty: the table in the metadata does.
        max_rack_script_arguments: How many addresses it is asked for at a time.
        rack_class: ``module:Class`` whose ``resolve(addresses)`` tells them.
        rack_class_settings: What it is made with.
        rack_refresh_s: How often script and class are asked again.
    """

    policy: str = "rack-aware"
    min_racks: int = 2
    enforce_racks: bool = False
    regions: tuple[str, ...] = ()
    disallowed_regions: tuple[str, ...] = ()
    min_regions: int = 2
    enforce_regions_in_replacement: bool = True
    min_zones: int = 2
    desired_zones: int = 3
    enforce_zones: bool = True
    enforce_ack_domains: bool = False
    weigh_free_space: bool = False
    max_weight_multiple: int = 3
    free_space_interval_s: float = 86400.0
    local_location: str = ""
    local_bookie: BookieId = ""
    rack_script: str = ""
    max_rack_script_arguments: int = 100
    rack_class: str = ""
    rack_class_settings: str = ""
    rack_refresh_s: float = 60.0

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ConfigError(f"placement policy {self.policy!r} is none of {', '.join(POLICIES)}")
        if self.min_zones > self.desired_zones:
            raise ConfigError(
                f"placement.min_zones ({self.min_zones}) is above placement.desired_zones "
                f"({self.desired_zones})"
            )
        if self.local_location:
            check_location(self.local_location)
        if self.rack_script and self.rack_class:
            raise ConfigError("give placement.rack_script or placement.rack_class, not both")
        if (self.policy == "local-bookie") != bool(self.local_bookie):
            raise ConfigError("the placement policy local-bookie needs placement.local_bookie")

    def make_policy(self) -> Policy:
        """Return the policy.

        Raises:
            ConfigError: its options contradict each other.
        """
        policy: Policy
        if self.policy == "rack-aware":
            policy = RackAware(min_racks=self.min_racks, is_enforced=self.enforce_racks)
        elif self.policy == "region-aware":
            policy = RegionAware(
                regions=self.regions,
                disallowed_regions=self.disallowed_regions,
                min_regions=self.min_regions if self.regions else 0,
                is_enforced_in_replacement=self.enforce_regions_in_replacement,
                min_racks=self.min_racks,
                is_rack_enforced=self.enforce_racks,
            )
        elif self.policy == "zone-aware":
            policy = ZoneAware(
                min_zones=self.min_zones,
                desired_zones=self.desired_zones,
                is_strict=self.enforce_zones,
            )
        else:
            policy = Policy()
        return dataclasses.replace(policy, are_ack_domains_enforced=self.enforce_ack_domains)
