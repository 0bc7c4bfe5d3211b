"""What a placement policy is asked, and the policy that has no rule.

    class Adherence(IntEnum)               FAIL, SOFT, STRICT, with the peer's numbers
    Shape(ensemble_size, write_quorum_size, ack_quorum_size)
    class Policy                           base of racks.RackAware, regions.RegionAware, zones.…

A policy never sees bookies, only the locations at the positions of an ensemble: it judges whole
ensembles (``adherence``) and tells the search of ``choice`` how much is missing (``costs``).  A
location is None where nothing is known about a bookie, or where none has been chosen yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, TypeAlias

from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.ledger.placement.location import DEFAULT_RACK
from quorumbook.ledger.placement.schedule import write_set

Locations: TypeAlias = Sequence[str | None]
#: What an ensemble lacks, most important first; the first number counts what is forbidden.
Cost: TypeAlias = tuple[int, ...]


class Adherence(IntEnum):
    """How far an ensemble keeps to the policy."""

    FAIL = 1
    SOFT = 3
    STRICT = 5


def lacking(window: Locations, wanted: int) -> int:
    """Return how many different values a write set lacks that its open positions cannot bring."""
    return max(0, wanted - len(set(window) - {None}) - list(window).count(None))


@dataclass(frozen=True, slots=True)
class Shape:
    """How a ledger is spread."""

    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int

    @classmethod
    def of(cls, metadata: LedgerMetadata) -> Shape:
        """Return the shape of a ledger."""
        return cls(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)

    def write_sets(self) -> list[tuple[int, ...]]:
        """Return the positions of every write set, those around the end included."""
        size, quorum = self.ensemble_size, self.write_quorum_size
        if size == quorum:
            return [tuple(range(size))]
        return [write_set(start, size, quorum) for start in range(size)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """No rule: any bookie is as good as another."""

    #: Where bookies stand of which nothing is known.
    default_location: ClassVar[str] = DEFAULT_RACK
    #: Entries are confirmed only when they are acknowledged in ``min_domains`` fault domains.
    are_ack_domains_enforced: bool = False

    @property
    def rule(self) -> str:
        """What is enforced, for messages; "" if nothing is."""
        return ""

    def enforced(self, shape: Shape) -> str:
        """Return all that ensembles of a shape are refused for, for messages."""
        rules = [self.rule] if self.rule else []
        if self.are_ack_domains_enforced:
            count = self.min_domains(shape.write_quorum_size)
            rules.append(f"every write set in {count} fault domains")
        return " and ".join(rules)

    def check(self, shape: Shape) -> None:
        """Raise LocalProtocolError if no ensemble of this shape can keep to the policy."""

    def may_hold(self, location: str) -> bool:
        """Tell whether a bookie there may be chosen at all."""
        del location
        return True

    def costs(
        self, shape: Shape, reachable: Collection[str], *, is_replacement: bool = False
    ) -> Callable[[Locations], Cost]:
        """Return a function that tells what an ensemble lacks.

        Of an ensemble that is not complete it tells what no completion can bring.

        Args:
            shape: of the ledger.
            reachable: the locations there are, so that nothing impossible is wished for.
            is_replacement: the ledger exists, and some of its bookies are to be replaced.
        """
        del shape, reachable, is_replacement
        return lambda locations: (0,)

    def adherence(self, shape: Shape, locations: Locations) -> Adherence:
        """Judge an ensemble."""
        del shape, locations
        return Adherence.STRICT

    def domain(self, location: str) -> str:
        """Return what fails together with a location."""
        return location

    def min_domains(self, write_quorum_size: int) -> int:
        """Return in how many domains an entry should be acknowledged before it is confirmed."""
        del write_quorum_size
        return 1
