"""What the users of one stream were told, and whether it can all be true.

dense           a reader gets one sequence id after the other
one record      a sequence id is one record, for whoever reads it and whoever appended it
once            a record is in the stream once, however often its producer sent it
in order        a producer's records are in the order of their numbers
nothing lost    what was acknowledged is there at the end, unless it was truncated
epochs fence    two writers are never told the same sequence id
"""

from __future__ import annotations

from quorumbook.sim.histories.ledgers import History


class StreamHistory:
    """One stream of a run."""

    def __init__(self, history: History) -> None:
        self._history = history
        #: What was acknowledged, and what anybody read, by sequence id.
        self._acknowledged: dict[int, bytes] = {}
        self._known: dict[int, bytes] = {}
        self._places: dict[bytes, int] = {}
        #: Somebody asked to cut off what lies before this, which may have happened.
        self.truncated = 0

    @property
    def acknowledged(self) -> int:
        """How many records were acknowledged."""
        return len(self._acknowledged)

    @property
    def end(self) -> int:
        """The first sequence id behind all that was acknowledged."""
        return max(self._acknowledged, default=-1) + 1

    def acked(self, who: str, sequence_id: int, payload: bytes) -> None:
        """A writer was told that a record is safe."""
        other = self._acknowledged.setdefault(sequence_id, payload)
        if other != payload:
            self._violation(f"{who} was told {sequence_id} for {payload!r}, as {other!r} was")
        self._see(who, sequence_id, payload)

    def read(self, who: str, before: int | None, sequence_id: int, payload: bytes) -> None:
        """A reader was shown a record; ``before`` is the sequence id of the one before it."""
        if before is None:
            if sequence_id > self.truncated:
                self._violation(f"{who} begins at {sequence_id}, nobody cut that off")
        elif sequence_id != before + 1:
            self._violation(f"{who} was shown {sequence_id} behind {before}")
        self._see(who, sequence_id, payload)

    def read_all(self, who: str, first: int, payloads: list[bytes]) -> None:
        """Somebody read the whole stream when all was well again."""
        end = first + len(payloads)
        lost = [each for each in self._acknowledged if each >= end]
        if lost:
            self._violation(f"the stream ends at {end}, {min(lost)} was acknowledged")
        last: dict[bytes, int] = {}
        for payload in payloads:
            producer, number = payload.split(b" ")[:2]
            if int(number) <= last.get(producer, -1):
                self._violation(f"{payload!r} is behind number {last[producer]} of its producer")
            last[producer] = int(number)

    def _see(self, who: str, sequence_id: int, payload: bytes) -> None:
        self._history.operations += 1
        known = self._known.setdefault(sequence_id, payload)
        if known != payload:
            self._violation(f"{who} knows {sequence_id} as {payload!r}, others as {known!r}")
        place = self._places.setdefault(payload, sequence_id)
        if place != sequence_id:
            self._violation(f"{payload!r} is at {place} and at {sequence_id}")

    def _violation(self, text: str) -> None:
        self._history.violation(f"stream: {text}")
