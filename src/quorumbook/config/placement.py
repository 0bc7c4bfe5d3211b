"""The options of placement; a part of ``schema``."""

from __future__ import annotations

from quorumbook.config.options import Kind, Option

PLACEMENT_OPTIONS = (
    Option(
        "placement", "policy", Kind.TEXT, "rack-aware",
        "How bookies are chosen for new ledgers and in failed ones' places.",
        peer_key="ensemblePlacementPolicy",
        choices=("rack-aware", "region-aware", "zone-aware", "random", "local-bookie"),
    ),
    Option(
        "placement", "min_racks", Kind.INTEGER, 2,
        "Racks that every write set stands in, as far as there are so many.",
        peer_key="minNumRacksPerWriteQuorum", minimum=1,
    ),
    Option(
        "placement", "enforce_racks", Kind.SWITCH, False,
        "Refuse ensembles that don't, and bookies of which no rack is known.",
        peer_key="enforceMinNumRacksPerWriteQuorum",
    ),
    Option(
        "placement", "regions", Kind.LIST, (),
        "The regions that are written to; empty: all.",
        peer_key="reppRegionsToWrite",
    ),
    Option(
        "placement", "disallowed_regions", Kind.LIST, (),
        "Regions that get no new copies.",
    ),
    Option(
        "placement", "min_regions", Kind.INTEGER, 2,
        "Where regions are given: no ack quorum fits into fewer of them; 0 promises nothing.",
        peer_key="reppMinimumRegionsForDurability", minimum=0,
    ),
    Option(
        "placement", "enforce_regions_in_replacement", Kind.SWITCH, True,
        "Whether that binds replacements of failed bookies too.",
        peer_key="reppEnableDurabilityEnforcementInReplace",
    ),
    Option(
        "placement", "min_zones", Kind.INTEGER, 2,
        "Zones that every write set stands in at least.",
        peer_key="minNumZonesPerWriteQuorum", minimum=1,
    ),
    Option(
        "placement", "desired_zones", Kind.INTEGER, 3,
        "Zones that it stands in where there are so many.",
        peer_key="desiredNumZonesPerWriteQuorum", minimum=1,
    ),
    Option(
        "placement", "enforce_zones", Kind.SWITCH, True,
        "Refuse ensembles that break the rules of zones.",
        peer_key="enforceStrictZoneawarePlacement",
    ),
    Option(
        "placement", "enforce_ack_domains", Kind.SWITCH, False,
        "Confirm an entry only when so many racks (zones) have acknowledged it.",
        peer_key="enforceMinNumFaultDomainsForWrite",
    ),
    Option(
        "placement", "weigh_free_space", Kind.SWITCH, False,
        "Choose bookies by the free space of their disks.",
        peer_key="diskWeightBasedPlacementEnabled",
    ),
    Option(
        "placement", "max_weight_multiple", Kind.INTEGER, 3,
        "How many times likelier than a median one a bookie is chosen at most.",
        peer_key="bookieMaxMultipleForWeightBasedPlacement", minimum=1,
    ),
    Option(
        "placement", "free_space_interval_s", Kind.DURATION, 86400.0,
        "How often bookies are asked for their free space.",
        peer_key="getBookieInfoIntervalSeconds", minimum=0.01,
    ),
    Option(
        "placement", "local_location", Kind.TEXT, "",
        "Where this process stands; it reads from, and puts first, the nearest bookies.",
    ),
    Option(
        "placement", "local_bookie", Kind.TEXT, "",
        "With the policy local-bookie: who comes first in every new ensemble.",
    ),
    Option(
        "placement", "rack_script", Kind.PROGRAM, "",
        "A program that tells where bookies stand; empty: `cluster racks` does.",
        peer_key="networkTopologyScriptFileName",
    ),
    Option(
        "placement", "max_rack_script_arguments", Kind.INTEGER, 100,
        "How many addresses it is asked for at a time.",
        peer_key="networkTopologyScriptNumberArgs", minimum=1,
    ),
    Option(
        "placement", "rack_class", Kind.PLUG_IN, "",
        "A class that tells it: an installed plug-in's name, or module:Class.",
    ),
    Option(
        "placement", "rack_class_settings", Kind.TEXT, "",
        "What the class is made with.",
    ),
    Option(
        "placement", "rack_refresh_s", Kind.DURATION, 60.0,
        "How often script and class are asked again.",
        minimum=0.01,
    ),
)  # fmt: skip
