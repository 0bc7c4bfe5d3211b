"""What a client is told about placement, and the policy that follows from it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from quorumbook.errors import ConfigError
from quorumbook.ledger.placement.location import check_location
from quorumbook.ledger.placement.policy import Policy
from quorumbook.ledger.placement.racks import RackAware
from quorumbook.ledger.placement.regions import RegionAware
from quorumbook.ledger.placement.zones import ZoneAware
from quorumbook.options import Kind, Options, option

POLICIES = ("rack-aware", "region-aware", "zone-aware", "random", "local-bookie")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementOptions(Options):
    """Which bookies are chosen, and in what order they are read from."""

    SECTION: ClassVar[str] = "placement"

    # fmt: off
    policy: str = option(
        "rack-aware", "How bookies are chosen for new ledgers and in failed ones' places.",
        choices=POLICIES,
        peer_key="ensemblePlacementPolicy",
    )
    min_racks: int = option(
        2, "The number of racks that every write set stands in, if there are that many.",
        minimum=1, peer_key="minNumRacksPerWriteQuorum",
    )
    enforce_racks: bool = option(
        False, "Refuse ensembles with fewer racks than min_racks, and bookies whose rack is not"
               " known.",
        peer_key="enforceMinNumRacksPerWriteQuorum",
    )
    regions: tuple[str, ...] = option(
        (), "The regions that are written to; empty: all.",
        peer_key="reppRegionsToWrite",
    )
    disallowed_regions: tuple[str, ...] = option(
        (), "Regions that get no new replicas.",
    )
    min_regions: int = option(
        2, "Where regions are given: no ack quorum fits into fewer of them; 0 promises nothing.",
        minimum=0, peer_key="reppMinimumRegionsForDurability",
    )
    enforce_regions_in_replacement: bool = option(
        True, "Whether `min_regions` also holds for replacements of failed bookies.",
        peer_key="reppEnableDurabilityEnforcementInReplace",
    )
    min_zones: int = option(
        2, "Zones that every write set stands in at least.",
        minimum=1, peer_key="minNumZonesPerWriteQuorum",
    )
    desired_zones: int = option(
        3, "The number of zones that every write set stands in, if there are that many.",
        minimum=1, peer_key="desiredNumZonesPerWriteQuorum",
    )
    enforce_zones: bool = option(
        True, "Refuse ensembles that break the rules of zones.",
        peer_key="enforceStrictZoneawarePlacement",
    )
    enforce_ack_domains: bool = option(
        False, "Confirm an entry only when that many racks (zones) have acknowledged it.",
        peer_key="enforceMinNumFaultDomainsForWrite",
    )
    weigh_free_space: bool = option(
        False, "Choose bookies by the free space of their disks.",
        peer_key="diskWeightBasedPlacementEnabled",
    )
    max_weight_multiple: int = option(
        3, "How many times likelier than a median one a bookie is chosen at most.",
        minimum=1, peer_key="bookieMaxMultipleForWeightBasedPlacement",
    )
    free_space_interval_s: float = option(
        86400.0, "How often bookies are asked for their free space.",
        minimum=0.01, peer_key="getBookieInfoIntervalSeconds",
    )
    local_location: str = option(
        "", "Where this process stands; it reads from, and puts first, the nearest bookies.",
    )
    local_bookie: str = option(
        "", "With the policy local-bookie: the bookie that comes first in every new ensemble.",
    )
    rack_script: str = option(
        "", "A program that tells where bookies stand; empty: `cluster racks` does.",
        kind=Kind.PROGRAM, peer_key="networkTopologyScriptFileName",
    )
    max_rack_script_arguments: int = option(
        100, "How many addresses it is asked for at a time.",
        minimum=1, peer_key="networkTopologyScriptNumberArgs",
    )
    rack_class: str = option(
        "", "A class that tells where bookies stand: an installed plug-in's name, or module:Class.",
        kind=Kind.PLUG_IN,
    )
    rack_class_settings: str = option(
        "", "The text that the class is given.",
        is_secret=True,
    )
    rack_refresh_s: float = option(
        60.0, "How often script and class are asked again.",
        minimum=0.01,
    )
    # fmt: on

    def check_together(self) -> None:
        """Refuse values that contradict each other."""
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
