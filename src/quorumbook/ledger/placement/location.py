"""Where a bookie stands: ``/rack``, ``/region/rack`` or ``/zone/upgrade-domain``.

    check_location(text) -> str                   as it is kept: no slash at the end
    region_of(location) -> str                    the first part, without its slash
    nearness(location, local) -> int              0 in the same place, 1 in the same region, 2 else

The words are the peer's: a bookie of which nothing is known is in a default rack.
"""

from __future__ import annotations

import re
from functools import lru_cache

from quorumbook.errors import ConfigError

DEFAULT_RACK = "/default-rack"
DEFAULT_REGION_AND_RACK = "/default-region/default-rack"
DEFAULT_ZONE_AND_UPGRADE_DOMAIN = "/default-zone/default-upgradedomain"

_LOCATION = re.compile(r"(/[^/\s,~]+)+")


def check_location(text: str) -> str:
    """Return a location as it is kept.

    Raises:
        ConfigError: it is none.
    """
    location = text.strip().rstrip("/")
    if not _LOCATION.fullmatch(location):
        raise ConfigError(f"{text!r} is not a place of a bookie; write /rack or /region/rack")
    return location


@lru_cache(maxsize=4096)
def region_of(location: str) -> str:
    """Return the region of a location, or its zone."""
    return location.split("/", 2)[1]


def nearness(location: str, local: str) -> int:
    """Return how far a location is from ours: 0 the same, 1 in the same region, 2 elsewhere."""
    if location == local:
        return 0
    is_deep = location.count("/") > 1 and local.count("/") > 1
    return 1 if is_deep and region_of(location) == region_of(local) else 2
