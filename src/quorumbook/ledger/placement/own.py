"""Ledgers that say for themselves how they are spread, whatever their clients' options are; pure.

    in a ledger's custom metadata     quorumbook.placement.options     {"policy": "zone-aware", …}

JSON of ``PlacementOptions`` by name, as far as the ledger has them otherwise.  Whoever chooses
bookies for it, to write or to repair it, asks here, and takes what it does not say from its own
options.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from quorumbook.errors import ConfigError
from quorumbook.ledger.placement.options import POLICIES, PlacementOptions

#: Where a ledger's options stand in its custom metadata.
CUSTOM_KEY = "quorumbook.placement.options"
#: What a ledger can have otherwise, and what that is made of; the rest is a client's own.
LEDGER_OPTIONS: Mapping[str, type] = {
    "policy": str,
    "min_racks": int,
    "enforce_racks": bool,
    "regions": list,
    "disallowed_regions": list,
    "min_regions": int,
    "enforce_regions_in_replacement": bool,
    "min_zones": int,
    "desired_zones": int,
    "enforce_zones": bool,
    "enforce_ack_domains": bool,
}


def encode_options(given: Mapping[str, Any]) -> bytes:
    """Return what stands in the custom metadata.

    Raises:
        ConfigError: a ledger cannot have that otherwise.
    """
    _check(given, "placement")
    return json.dumps(given, separators=(",", ":"), sort_keys=True).encode()


def options_of_ledger(
    options: PlacementOptions, custom_metadata: Mapping[str, bytes]
) -> PlacementOptions:
    """Return a client's options with what a ledger has otherwise.

    Raises:
        ConfigError: it cannot be understood, so that no bookie may be chosen; or both together
            contradict each other.
    """
    data = custom_metadata.get(CUSTOM_KEY)
    if data is None:
        return options
    where = f"custom metadata {CUSTOM_KEY}"
    try:
        given = json.loads(data)
    except ValueError as error:
        raise ConfigError(f"{where}: {data!r} is not JSON") from error
    _check(given, where)
    changes: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
    }
    if "policy" in changes:
        changes["local_bookie"] = ""  # a client's first choice is not the ledger's
    return dataclasses.replace(options, **changes)


def _check(given: Any, where: str) -> None:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}: {given!r} is not a mapping")
    for name, value in given.items():
        kind = LEDGER_OPTIONS.get(name)
        if kind is None:
            raise ConfigError(f"{where}: {name!r} is not one of {', '.join(LEDGER_OPTIONS)}")
        if type(value) is not kind or (isinstance(value, int) and value < 0):
            raise ConfigError(f"{where}: {name} is no {value!r}")
    if given.get("policy", "random") not in POLICIES or given.get("policy") == "local-bookie":
        raise ConfigError(f"{where}: no ledger has the policy {given['policy']!r}")
