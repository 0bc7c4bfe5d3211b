"""Who appended what, by numbers of their own: exactly-once across crashes (X2); pure.

A producer gives its records ascending numbers.  Each entry's note says which numbers its records
have, and the first entry of a segment and every so many entries hold a snapshot of all producers,
so a writer that begins has to read no more than what follows the last snapshot.  A number that is
not above the last one of its producer was appended before, and is not stored again.

Producers are remembered by number, not for a time: across restarts and truncation.  One that was
idle for long is forgotten, and the longest idle ones where there are too many.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from quorumbook.streams.format.control import EntryNote, ProducerRun, ProducerState
from quorumbook.streams.format.position import Position
from quorumbook.streams.writing.appended import Placement

#: A snapshot is in every so many entries of a segment, the first included: a writer that begins
#: reads no more.
SNAPSHOT_EVERY = 100
_MAX_PRODUCERS = 10_000
_IDLE_MS = 7 * 24 * 3600 * 1000
#: How many runs of records are remembered of each producer, for the places of duplicates.
_RUNS = 1000


class Producers:
    """All producers of one stream, as far as what was stored tells."""

    def __init__(self) -> None:
        self._states: dict[str, ProducerState] = {}
        #: Of each: first number, first sequence id, where; ascending.
        self._runs: dict[str, list[tuple[int, int, Placement]]] = {}

    def last_number(self, producer: str) -> int:
        """Return the last number of a producer's that is stored; -1 if it is not known."""
        state = self._states.get(producer)
        return -1 if state is None else state.last_number

    def where(self, producer: str, number: int) -> tuple[Placement | None, int]:
        """Return where a producer's record is, as a placement of one, and its sequence id.

        None and -1 if nobody remembers.
        """
        runs = self._runs.get(producer, [])
        place = bisect_right(runs, number, key=lambda run: run[0]) - 1
        if place >= 0:
            first, sequence_id, (ledger_id, (segment, entry, slot), count) = runs[place]
            behind = number - first
            if behind < count:
                where = Position(segment, entry, slot + behind)
                return Placement(ledger_id, where, 1), sequence_id + behind
        state = self._states.get(producer)
        if state is not None and state.last_number == number:
            return Placement(-1, state.position, 1), state.sequence_id
        return None, -1

    def on_stored(
        self,
        producer: str,
        first_number: int,
        first_sequence_id: int,
        where: Placement,
        now_ms: int,
    ) -> None:
        """Learn of records with consecutive numbers in one entry."""
        segment, entry, slot = where.first
        last = where.records - 1
        self._states.pop(producer, None)  # the last one to append comes last
        self._states[producer] = ProducerState(
            producer,
            first_number + last,
            Position(segment, entry, slot + last),
            first_sequence_id + last,
            now_ms,
        )
        runs = self._runs.setdefault(producer, [])
        runs.append((first_number, first_sequence_id, where))
        if len(runs) > 2 * _RUNS:
            del runs[:-_RUNS]

    def on_note(self, note: EntryNote, ledger_id: int, first: Position, sequence_id: int) -> None:
        """Learn from an entry that was read.

        Args:
            note: What its control record tells.
            ledger_id: The segment's ledger.
            first: Where its first user record is.
            sequence_id: That record's.
        """
        if note.snapshot is not None:
            self._states = {state.name: state for state in note.snapshot}
            self._runs.clear()
        if note.producer is None:
            return
        chunk = note.chunk
        if chunk is not None and note.runs:
            # The record is where its first chunk is.
            if chunk.first.segment != first.segment:
                ledger_id = -1
            first, sequence_id = chunk.first, sequence_id - chunk.number
        segment, entry, slot = first
        for run in note.runs:
            where = Placement(
                ledger_id, Position(segment, entry, slot + run.first_record), run.count
            )
            self.on_stored(
                note.producer,
                run.first_number,
                sequence_id + run.first_record,
                where,
                note.appended_at_ms or 0,
            )

    def snapshot(
        self, now_ms: int, in_flight: ProducerState | None = None
    ) -> tuple[ProducerState, ...]:
        """Return what a snapshot holds, and forget who is idle for too long.

        Args:
            now_ms: The time.
            in_flight: What precedes the snapshot in its segment and is not known to be stored.
        """
        kept = [s for s in self._states.values() if s.appended_at_ms > now_ms - _IDLE_MS]
        kept = kept[-_MAX_PRODUCERS:]
        self._states = {state.name: state for state in kept}
        for name in self._runs.keys() - self._states.keys():
            del self._runs[name]
        if in_flight is not None:
            return (*(state for state in kept if state.name != in_flight.name), in_flight)
        return tuple(kept)


def runs_of(parts: Sequence[tuple[int, int, int]]) -> tuple[ProducerRun, ...]:
    """Return the runs of an entry's records, adjacent ones joined.

    Args:
        parts: First record in the entry, its number, and how many; ascending.
    """
    joined: list[tuple[int, int, int]] = []
    for first, number, count in parts:
        if joined:
            before, from_number, so_many = joined[-1]
            if before + so_many == first and from_number + so_many == number:
                joined[-1] = (before, from_number, so_many + count)
                continue
        joined.append((first, number, count))
    return tuple(ProducerRun(*run) for run in joined)
