"""What the users of one stream were told, and whether it can all be true.

dense           a reader gets one sequence id after the other
one record      a sequence id is one record, for whoever reads it and whoever appended it
once            a record is in the stream once, however often its producer sent it
transaction ids never fall, whichever writer's clock is behind, and lead to their records
in order        a producer's records are in the order of their numbers
nothing lost    what was acknowledged is there at the end, unless it was truncated
epochs fence    two writers are never told the same sequence id
"""

from __future__ import annotations

from quorumbook.sim.histories.invariants import Invariant
from quorumbook.sim.histories.ledgers import History


class StreamHistory:
    """One stream of a run."""

    def __init__(self, history: History) -> None:
        self._history = history
        #: What was acknowledged, and what anybody read, by sequence id.
        self._acknowledged: dict[int, bytes] = {}
        self._known: dict[int, bytes] = {}
        self._txids: dict[int, int] = {}
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

    def acked(self, who: str, sequence_id: int, txid: int, payload: bytes) -> None:
        """A writer was told that a record is safe."""
        other = self._acknowledged.setdefault(sequence_id, payload)
        if other != payload:
            text = f"{who} was told {sequence_id} for {payload!r}, as {other!r} was"
            self._violation(Invariant.EPOCHS_FENCE, text)
        self._see(who, sequence_id, txid, payload)

    def read(
        self, who: str, before: int | None, sequence_id: int, txid: int, payload: bytes
    ) -> None:
        """A reader was shown a record; ``before`` is the sequence id of the one before it."""
        if before is None:
            if sequence_id > self.truncated:
                text = f"{who} begins at {sequence_id}, nobody cut that off"
                self._violation(Invariant.STREAM_LOSES_NOTHING, text)
        elif sequence_id != before + 1:
            text = f"{who} was shown {sequence_id} behind {before}"
            self._violation(Invariant.STREAM_IS_DENSE, text)
        self._see(who, sequence_id, txid, payload)

    def read_all(self, who: str, first: int, payloads: list[bytes]) -> None:
        """Somebody read the whole stream when all was well again."""
        end = first + len(payloads)
        lost = [each for each in self._acknowledged if each >= end]
        if lost:
            text = f"the stream ends at {end}, {min(lost)} was acknowledged"
            self._violation(Invariant.STREAM_LOSES_NOTHING, text)
        last: dict[bytes, int] = {}
        for payload in payloads:
            producer, number = payload.split(b" ")[:2]
            if int(number) <= last.get(producer, -1):
                text = f"{payload!r} is behind number {last[producer]} of its producer"
                self._violation(Invariant.STREAM_KEEPS_ORDER, text)
            last[producer] = int(number)

    def sought(self, who: str, first: int, txid: int, sequence_id: int) -> None:
        """Who read the whole stream, from ``first`` on, was led to a record by a transaction id."""
        wanted = min(each for each, of in self._txids.items() if of >= txid and each >= first)
        if sequence_id != wanted:
            text = f"{who} was led to {sequence_id} by transaction id {txid}, and not to {wanted}"
            self._violation(Invariant.STREAM_KEEPS_TRANSACTION_IDS, text)

    @property
    def last_txid(self) -> int | None:
        """The transaction id of the last record that anybody knows."""
        return self._txids[max(self._txids)] if self._txids else None

    def led(self, who: str, txid: int, sequence_id: int) -> None:
        """Somebody was led to a record by a transaction id while the stream is written."""
        known = [each for each, of in self._txids.items() if of >= txid and each >= self.truncated]
        if known and sequence_id > min(known):
            text = f"{who} was led to {sequence_id} by transaction id {txid}, behind {min(known)}"
            self._violation(Invariant.STREAM_KEEPS_TRANSACTION_IDS, text)

    def _see(self, who: str, sequence_id: int, txid: int, payload: bytes) -> None:
        self._history.operations += 1
        known = self._known.setdefault(sequence_id, payload)
        if known != payload:
            text = f"{who} knows {sequence_id} as {payload!r}, others as {known!r}"
            self._violation(Invariant.STREAM_HAS_ONE_RECORD_A_PLACE, text)
        self._see_txid(who, sequence_id, txid)
        place = self._places.setdefault(payload, sequence_id)
        if place != sequence_id:
            text = f"{payload!r} is at {place} and at {sequence_id}"
            self._violation(Invariant.STREAM_HAS_A_RECORD_ONCE, text)

    def _see_txid(self, who: str, sequence_id: int, txid: int) -> None:
        known = self._txids.setdefault(sequence_id, txid)
        before = self._txids.get(sequence_id - 1, txid)
        behind = self._txids.get(sequence_id + 1, txid)
        if txid != known or not before <= txid <= behind:
            text = f"{who} knows {txid} as transaction id of {sequence_id}, others {known}"
            text += f", between {before} and {behind}"
            self._violation(Invariant.STREAM_KEEPS_TRANSACTION_IDS, text)

    def _violation(self, broken: Invariant, text: str) -> None:
        self._history.violation(broken, text)
