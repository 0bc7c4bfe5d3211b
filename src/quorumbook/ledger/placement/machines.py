"""Bookies that share a machine: no two of them hold the same entry.

    in a bookie's registration, property   machine        <name>

Several bookies of one machine fail together, so a second replica there is worth nothing.  A bookie
that names no machine counts as alone on its own.  Java programs carry the property along and do
not heed it.  ``choice`` searches by sites: where a bookie stands, and on which machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from quorumbook.ledger.placement.policy import Cost, Locations, Shape

_PROPERTY = "machine"
_K = TypeVar("_K")
#: What is enforced, for messages.
RULE = "no two replicas of an entry on one machine"


class Site(NamedTuple):
    """Where a bookie stands, and the machine that it shares with others; "": it shares none."""

    location: str
    machine: str


Sites: TypeAlias = Sequence[Site | None]


def machine_to_properties(machine: str) -> dict[str, str]:
    """Return the properties of a bookie's registration."""
    return {_PROPERTY: machine} if machine else {}


def machine_of_properties(properties: Mapping[str, str]) -> str:
    """Return a bookie's machine by the properties of its registration; "" if it names none."""
    return properties.get(_PROPERTY, "")


def shared(machines: Mapping[_K, str]) -> dict[_K, str]:
    """Return only the machines that more than one bookie is on."""
    counts = Counter(machines.values())
    return {who: machine for who, machine in machines.items() if machine and counts[machine] > 1}


def repeated(shape: Shape, machines: Sequence[str]) -> int:
    """Count the replicas that stand on a machine which has one of the same entry already."""
    total = 0
    for window in shape.write_sets():
        there = [machines[i] for i in window if machines[i]]
        total += len(there) - len(set(there))
    return total


def costs_of_sites(shape: Shape, cost: Callable[[Locations], Cost]) -> Callable[[Sites], Cost]:
    """Return what an ensemble lacks: what the policy says, and that repeats are forbidden."""

    def with_machines(sites: Sites) -> Cost:
        forbidden, *wishes = cost(locations_of(sites))
        machines = ["" if site is None else site.machine for site in sites]
        return forbidden + repeated(shape, machines), *wishes

    return with_machines


def locations_of(sites: Iterable[Site | None]) -> list[str | None]:
    """Return what the policies know of sites."""
    return [None if site is None else site.location for site in sites]
