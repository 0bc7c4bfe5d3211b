"""How many connections there may be, and which one goes where there are too many; pure.

    in all        what the descriptors allow beside what the storage needs, and memory
    by address    one address must not take every place (an IPv6 client has a network of them)
    unproven      connections that have not authenticated, or not asked anything yet

A connection is unproven until its first request is carried out.  One that has asked nothing for
some time rests (``connection.py`` says when).  Where a newcomer finds no place, one goes for it:
an unproven one, of the address that has most of these, there the oldest; where there is none, one
that rests, chosen alike.  Where all are at work, the newcomer is refused.  So a stranger without a
password pushes out strangers only, whoever takes many places gives them up first, and a client
that is at work stays.
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
#: Unless the configuration says otherwise: a connection takes 4 KB, or 50 KB with TLS, and one in
#: the midst of a handshake belongs to anybody.
CONNECTIONS_MAX = 20_000
UNPROVEN_MAX = 4_000


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
        in_all: What the configuration says; 0: what is left beside the storage, up to 20,000.
        by_address: The same; 0: half of all.
        unproven: The same; 0: half of all, up to 4,000.
    """
    most = descriptors - storage_descriptors(descriptors)
    in_all = min(in_all or CONNECTIONS_MAX, most)
    half = max(in_all // 2, 1)
    return ConnectionLimits(in_all, by_address or half, unproven or min(half, UNPROVEN_MAX))


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


class _Crowd(Generic[T]):
    """Connections by address, in the order of their coming."""

    def __init__(self) -> None:
        self._at: dict[str, dict[T, None]] = {}
        #: Which addresses have so many.
        self._having: dict[int, dict[str, None]] = {}
        self._most = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, who: T, place: str) -> None:
        """One more."""
        there = self._at.setdefault(place, {})
        self._resize(place, len(there), 1)
        there[who] = None

    def remove(self, who: T, place: str) -> None:
        """One less."""
        there = self._at[place]
        self._resize(place, len(there), -1)
        del there[who]
        if not there:
            del self._at[place]

    def first_at(self, place: str) -> T | None:
        """Return who came first of an address."""
        return next(iter(self._at.get(place, ())), None)

    def first_where_most(self) -> T | None:
        """Return who came first of the address that has most."""
        having = self._having.get(self._most)
        return self.first_at(next(iter(having))) if having else None

    def _resize(self, place: str, size: int, by: int) -> None:
        if size:
            having = self._having[size]
            del having[place]
            if not having:
                del self._having[size]
        if size + by:
            self._having.setdefault(size + by, {})[place] = None
        # The address that had most has one more, or others may have as many as it has now.
        if size + by > self._most or (size == self._most and size not in self._having):
            self._most = size + by
        self._count += by


class Places(Generic[T]):
    """The connections there are."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._place_of: dict[T, str] = {}
        self._counts: dict[str, int] = {}
        self._unproven: _Crowd[T] = _Crowd()
        self._resting: _Crowd[T] = _Crowd()
        #: Of which of them one is.
        self._crowd_of: dict[T, _Crowd[T]] = {}

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
            goes = self._unproven.first_at(place)
            if goes is None and len(self._unproven) < self.limits.unproven:
                goes = self._resting.first_at(place)
            goes = newcomer if goes is None else goes
        elif len(self._place_of) >= self.limits.in_all:
            all_ = (crowd.first_where_most() for crowd in (self._unproven, self._resting))
            goes = next((each for each in all_ if each is not None), newcomer)
        elif len(self._unproven) >= self.limits.unproven:
            goes = self._unproven.first_where_most()
        if goes is newcomer:
            return newcomer
        if goes is not None:
            self.leave(goes)
        self._place_of[newcomer] = place
        self._counts[place] = self._counts.get(place, 0) + 1
        self._join(newcomer, self._unproven)
        return goes

    def prove(self, who: T) -> None:
        """A request of it is carried out: it is no stranger any more, and does not rest."""
        crowd = self._crowd_of.pop(who, None)
        if crowd is not None:
            crowd.remove(who, self._place_of[who])

    def rest(self, who: T) -> None:
        """It has asked nothing for some time; a stranger is one still."""
        if who in self._place_of and who not in self._crowd_of:
            self._join(who, self._resting)

    def is_proven(self, who: T) -> bool:
        """Tell whether it has asked for something."""
        return who in self._place_of and self._crowd_of.get(who) is not self._unproven

    def place(self, who: T) -> str:
        """Return where it is; empty if it has no place here."""
        return self._place_of.get(who, "")

    def leave(self, who: T) -> None:
        """It is gone; one that was not taken in, or has gone already, is fine."""
        self.prove(who)
        place = self._place_of.pop(who, None)
        if place is None:
            return
        self._counts[place] -= 1
        if not self._counts[place]:
            del self._counts[place]

    def _join(self, who: T, crowd: _Crowd[T]) -> None:
        crowd.add(who, self._place_of[who])
        self._crowd_of[who] = crowd
