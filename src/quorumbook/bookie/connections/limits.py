"""How many connections there may be, and which one goes where there are too many; pure.

    in all        what the descriptors allow beside what the storage needs
    by address    one address must not take every place (an IPv6 client has a network of them)
    unproven      connections that have not authenticated, or not asked anything yet

A connection is unproven until its first request is carried out.  Where a newcomer finds no place,
the oldest unproven one goes for it; where all have proven themselves, the newcomer is refused.  So
a stranger without a password pushes out strangers only, and a client that is at work stays.
"""

from __future__ import annotations

from collections.abc import Hashable
from ipaddress import IPv6Address, ip_address
from typing import Generic, NamedTuple, TypeVar

from quorumbook.errors import ConfigError

T = TypeVar("T", bound=Hashable)

#: What the storage needs at most: entry logs that are open, journals, the index, and the rest.
STORAGE_DESCRIPTORS = 768
#: Of these, what is not entry logs that are open for reading.
_OTHER_DESCRIPTORS = 96
#: With fewer in all, a bookie cannot work.
DESCRIPTORS_MIN = 256


class ConnectionLimits(NamedTuple):
    """How many there may be."""

    in_all: int
    by_address: int
    unproven: int


def limits_within(
    descriptors: int, in_all: int, by_address: int, unproven: int
) -> ConnectionLimits:
    """Return the limits of a process with so many descriptors.

    Args:
        descriptors: What the operating system lets the process open.
        in_all: What the configuration says; 0: what is left beside the storage.
        by_address: The same; 0: half of all.
        unproven: The same; 0: half of all.
    """
    most = descriptors - storage_descriptors(descriptors)
    in_all = min(in_all or most, most)
    half = max(in_all // 2, 1)
    return ConnectionLimits(in_all, by_address or half, unproven or half)


def storage_descriptors(descriptors: int) -> int:
    """Return how many are kept for everything but connections."""
    return min(STORAGE_DESCRIPTORS, descriptors // 2)


def open_files_within(descriptors: int) -> int:
    """Return how many entry logs may be open; each takes two, and a third where it is peeked at.

    Raises:
        ConfigError: a bookie cannot work with so few descriptors.
    """
    if descriptors < DESCRIPTORS_MIN:
        raise ConfigError(
            f"this process may open only {descriptors} files, and a bookie needs {DESCRIPTORS_MIN} "
            "at least: raise the limit (ulimit -n, or LimitNOFILE of its unit)"
        )
    return (storage_descriptors(descriptors) - _OTHER_DESCRIPTORS) // 3


def place_of(host: str) -> str:
    """Return what counts as one address: a host's IPv4 address, or its IPv6 network of 64 bits."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{int(address) >> 64:x}::/64"


class Places(Generic[T]):
    """The connections there are."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._place_of: dict[T, str] = {}
        self._counts: dict[str, int] = {}
        #: Oldest first.
        self._unproven: dict[T, None] = {}
        self._unproven_at: dict[str, dict[T, None]] = {}

    def __len__(self) -> int:
        return len(self._place_of)

    @property
    def unproven_count(self) -> int:
        """How many have not proven themselves."""
        return len(self._unproven)

    def take(self, newcomer: T, place: str) -> T | None:
        """Take a newcomer in; return who has to go for it, which may be the newcomer itself."""
        goes: T | None = None
        if self._counts.get(place, 0) >= self.limits.by_address:
            goes = next(iter(self._unproven_at.get(place, ())), newcomer)
        elif len(self._place_of) >= self.limits.in_all:
            goes = next(iter(self._unproven), newcomer)
        elif len(self._unproven) >= self.limits.unproven:
            goes = next(iter(self._unproven))
        if goes is newcomer:
            return newcomer
        if goes is not None:
            self.leave(goes)
        self._place_of[newcomer] = place
        self._counts[place] = self._counts.get(place, 0) + 1
        self._unproven[newcomer] = None
        self._unproven_at.setdefault(place, {})[newcomer] = None
        return goes

    def prove(self, who: T) -> None:
        """A request of it is carried out: it is no stranger any more."""
        if who in self._unproven:
            del self._unproven[who]
            self._forget_unproven(who, self._place_of[who])

    def leave(self, who: T) -> None:
        """It is gone; one that was not taken in, or has gone already, is fine."""
        place = self._place_of.pop(who, None)
        if place is None:
            return
        self._counts[place] -= 1
        if not self._counts[place]:
            del self._counts[place]
        if self._unproven.pop(who, self) is None:
            self._forget_unproven(who, place)

    def _forget_unproven(self, who: T, place: str) -> None:
        there = self._unproven_at[place]
        del there[who]
        if not there:
            del self._unproven_at[place]
