"""What the writer of a stream knows of it; ``writer.py`` does the work."""

from __future__ import annotations

from quorumbook.client.waiting.closing import ClosingQuietly
from quorumbook.client.waiting.outcomes import copy_error
from quorumbook.errors import LedgerClosedError
from quorumbook.streams.format.position import Position
from quorumbook.streams.stream_context import StreamContext
from quorumbook.streams.writing.intake import Intake
from quorumbook.streams.writing.numbering import Numbering
from quorumbook.streams.writing.pump import Pump


class StreamWriterFacts(ClosingQuietly):
    """The part of ``StreamWriter`` that changes nothing; its writer gives it what it looks at."""

    _context: StreamContext
    _epoch: int
    _pump: Pump
    _intake: Intake
    _numbering: Numbering | None

    @property
    def next_sequence_id(self) -> int:
        """The sequence id that the next record gets."""
        return self._pump.state.next_sequence_id + self._intake.gathered

    @property
    def epoch(self) -> int:
        """Greater than that of every writer before: a fencing token for other systems."""
        return self._epoch

    @property
    def last_txid(self) -> int:
        """The largest transaction id so far; -1 if there is none."""
        self._intake.take()
        return self._pump.state.last_txid

    def last_number(self) -> int:
        """Return the last number of this writer's producer, stored or on its way; -1: none."""
        self._intake.take()
        return -1 if self._numbering is None else self._numbering.last

    @property
    def last_position(self) -> Position | None:
        """Where the last acknowledged record of the present segment is; None if there is none."""
        tail = self._pump.state.tail
        if tail is None or tail.confirmed_entry < 0:
            return None
        return Position(tail.number, tail.confirmed_entry, tail.confirmed_slot)

    @property
    def pending_records(self) -> int:
        """How many records were appended and are not acknowledged."""
        return self._pump.pending_records

    def _check_open(self) -> None:
        if self._pump.error is not None:
            raise copy_error(self._pump.error)
        if self._pump.is_closing:
            raise LedgerClosedError(f"the writer of stream {self._context.name} is closed")

    def __repr__(self) -> str:
        return f"<StreamWriter {self._context.name}, next {self._pump.state.next_sequence_id}>"
