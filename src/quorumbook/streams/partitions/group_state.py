"""Which member of a consumer group has which partitions, and what a member does about it; pure.

    {"version": 1, "generation": 7, "members": {"<member>": [0, 3], "<member>": [1, 2]}}

is what the group's node holds.  Whoever sees that its members are not those who live computes the
next generation and stores it by version: everybody computes the same, so it does not matter who.
A partition whose member changes goes over in two steps: the old member releases its claim when it
hands out nothing of it any more, or the claim goes with the old member's session; then the new one
claims it.  A claim exists once, so no two hand out a partition's records.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from quorumbook.streams.errors import CorruptRecordsError, UnsupportedFormatError

_VERSION = 1


@dataclass(frozen=True, slots=True)
class GroupState:
    """One generation of a group."""

    generation: int = 0
    #: The partitions of each member, ascending.
    members: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def partition_count(self) -> int:
        """How many partitions it knows of."""
        return 1 + max((n for numbers in self.members.values() for n in numbers), default=-1)

    def partitions_of(self, member: str) -> frozenset[int]:
        """Return what a member is to have."""
        return frozenset(self.members.get(member, ()))

    def rebalanced(self, live: Collection[str], partition_count: int) -> GroupState:
        """Return the generation of those who live; the same if they have everything already.

        Members have equally many partitions, give or take one, and keep as many of their own as
        goes with that.
        """
        given = sorted(number for numbers in self.members.values() for number in numbers)
        if not live or (live == self.members.keys() and given == list(range(partition_count))):
            return self
        least, more = divmod(partition_count, len(live))
        had = {member: self.partitions_of(member) for member in live}
        kept: dict[str, list[int]] = {}
        # Those who have most are the ones who may have one more: then the fewest move.
        for place, member in enumerate(sorted(live, key=lambda each: (-len(had[each]), each))):
            kept[member] = sorted(had[member])[: least + (place < more)]
        taken = {number for numbers in kept.values() for number in numbers}
        free = [number for number in range(partition_count) if number not in taken]
        for place, member in enumerate(sorted(live, key=lambda each: (-len(had[each]), each))):
            count = least + (place < more) - len(kept[member])
            kept[member] += free[:count]
            del free[:count]
        return GroupState(
            self.generation + 1, {member: tuple(sorted(kept[member])) for member in sorted(live)}
        )

    def encode(self) -> bytes:
        """Return the data of the group's node."""
        found = {"version": _VERSION, "generation": self.generation, "members": dict(self.members)}
        return json.dumps(found, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> GroupState:
        """Read the data of the group's node.

        Raises:
            UnsupportedFormatError: of a newer release.
            CorruptRecordsError: it is something else.
        """
        try:
            found = json.loads(data)
            if found["version"] != _VERSION:
                raise UnsupportedFormatError(f"a group is of version {found['version']}, not 1")
            return cls(
                int(found["generation"]),
                {member: tuple(map(int, given)) for member, given in found["members"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptRecordsError(f"{data!r} is nothing that a group has: {error}") from error


class Steps(NamedTuple):
    """What a member is to do now."""

    #: Store this by version, and look again.
    rebalance: GroupState | None
    release: frozenset[int]
    claim: frozenset[int]
    #: It knows fewer partitions than the group has: look at those again first.
    is_behind: bool = False


def next_steps(
    member: str,
    live: Collection[str],
    state: GroupState,
    claimed: Collection[int],
    partition_count: int,
) -> Steps:
    """Return what a member does.

    Args:
        member: Who it is.
        live: The members whose sessions live, itself included.
        state: What the group's node holds.
        claimed: What it has claimed.
        partition_count: How many partitions there are.
    """
    nothing: frozenset[int] = frozenset()
    if state.partition_count > partition_count:
        return Steps(None, nothing, nothing, is_behind=True)
    new = state.rebalanced(live, partition_count)
    if new is not state:
        return Steps(new, nothing, nothing)
    mine = state.partitions_of(member)
    return Steps(None, frozenset(claimed) - mine, mine - frozenset(claimed))
