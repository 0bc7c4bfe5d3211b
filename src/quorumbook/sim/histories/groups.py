"""What the members of one consumer group were told, and whether it can all be true.

one record      a place in a partition is one record, for whoever appends it or gets it
nothing skipped a partition is handed out record by record, and begins no further than behind what
                was last committed
nothing lost    when all is well again, a new member gets all that is acknowledged and was not
                committed, and what was committed had been handed out
never again     nobody who has lost a partition puts its cursor back: no commit is stored behind a
                higher one, and what was committed does not come to a member that joins when all
                others are gone
"""

from __future__ import annotations

from collections.abc import Callable

from quorumbook.sim.histories.invariants import Invariant
from quorumbook.sim.histories.ledgers import History
from quorumbook.sim.search.sometimes import REBALANCED


class GroupHistory:
    """One partitioned stream of a run, and its group."""

    def __init__(self, history: History) -> None:
        self._history = history
        #: Called with the member that was given a record, and has not committed it.
        self.on_handed: Callable[[str], None] = lambda _: None
        self._known: dict[tuple[int, int], bytes] = {}
        self._acknowledged: set[tuple[int, int]] = set()
        self._handed: set[tuple[int, int]] = set()
        #: What a member may get next of a partition, by both; not there: it has just got it.
        self._next: dict[tuple[str, int], int] = {}
        #: By partition the process that had it last.
        self._owners: dict[int, str] = {}
        #: By partition what is committed for sure, and what somebody tried to commit.
        self._committed: dict[int, int] = {}
        self._tried: dict[int, int] = {}

    def acked(self, who: str, partition: int, sequence_id: int, payload: bytes) -> None:
        """A writer was told that a record is safe."""
        self._acknowledged.add((partition, sequence_id))
        self._see(who, partition, sequence_id, payload)

    def assigned(self, member: str, partition: int) -> None:
        """A member was given a partition."""
        before, self._owners[partition] = self._owners.get(partition), _process_of(member)
        if before not in (None, _process_of(member)):
            self._history.sightings[REBALANCED] += 1
        self._next.pop((member, partition), None)

    def handed(self, member: str, partition: int, sequence_id: int, payload: bytes) -> None:
        """A member was given a record."""
        self._see(member, partition, sequence_id, payload)
        expected = self._next.get((member, partition))
        tried = self._tried.get(partition, -1)
        if expected is None and sequence_id > tried + 1:
            text = f"{member} begins partition {partition} at {sequence_id}, not {tried}"
            self._violation(Invariant.GROUP_SKIPS_NOTHING, text)
        elif expected is not None and sequence_id != expected:
            text = f"{member} got {sequence_id} of {partition}, not {expected}"
            self._violation(Invariant.GROUP_SKIPS_NOTHING, text)
        self._next[member, partition] = sequence_id + 1
        self._handed.add((partition, sequence_id))
        self.on_handed(member)

    def committing(self, partition: int, sequence_id: int) -> int:
        """A member is about to commit, and it may happen whatever it is told.

        Returns:
            What was committed before.
        """
        self._tried[partition] = max(self._tried.get(partition, -1), sequence_id)
        return self._committed.get(partition, -1)

    def committed(self, member: str, partition: int, sequence_id: int, before: int) -> None:
        """A member was told that a commit is stored, before which another one had been."""
        self._history.operations += 1
        if sequence_id < before:
            text = f"{member} put {partition} back from {before} to {sequence_id}"
            self._violation(Invariant.GROUP_KEEPS_COMMITS, text)
        self._committed[partition] = max(self._committed.get(partition, -1), sequence_id)

    def judged(self, member: str, partition: int, sequence_id: int) -> None:
        """The last of all members, that joined when nobody else was there, got a record."""
        committed = self._committed.get(partition, -1)
        if sequence_id <= committed:
            text = f"{member} got {sequence_id} of {partition} again, committed up to {committed}"
            self._violation(Invariant.GROUP_KEEPS_COMMITS, text)

    def is_read(self) -> bool:
        """Tell whether every acknowledged record was handed out."""
        return self._acknowledged <= self._handed

    def _see(self, who: str, partition: int, sequence_id: int, payload: bytes) -> None:
        self._history.operations += 1
        known = self._known.setdefault((partition, sequence_id), payload)
        if known != payload:
            where = f"{sequence_id} of {partition}"
            text = f"{who} knows {where} as {payload!r}, others as {known!r}"
            self._violation(Invariant.GROUP_HAS_ONE_RECORD_A_PLACE, text)

    def _violation(self, broken: Invariant, text: str) -> None:
        self._history.violation(broken, text)


def _process_of(member: str) -> str:
    return member.partition(".")[0]
