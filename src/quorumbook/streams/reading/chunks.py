"""Puts records together that were larger than an entry; pure.

Each chunk is a record of its own to DistributedLog, alone in its entry, whose control record says
which part of what it is.  They follow each other without another record between, over the end of
a segment too.  What a writer left unfinished is followed by another record, and is nobody's.
"""

from __future__ import annotations

from quorumbook.streams.errors import CorruptRecordsError
from quorumbook.streams.format.position import Position
from quorumbook.streams.reading.batches import RecordBatch


class Chunks:
    """The chunks of the record that is being read."""

    def __init__(self) -> None:
        self._parts: list[RecordBatch] = []

    @property
    def first(self) -> RecordBatch | None:
        """The first chunk of the record that is not complete yet; None if there is none."""
        return self._parts[0] if self._parts else None

    @property
    def start(self) -> Position | None:
        """Where the record is that is not complete yet; None if there is none."""
        return self._parts[0].first_position if self._parts else None

    def forget(self) -> None:
        """Begin anew."""
        self._parts = []

    def feed(self, batch: RecordBatch) -> RecordBatch | None:
        """Return what is complete with the next records; None: nothing is.

        Who begins to read in the middle of a record does not get it.

        Raises:
            CorruptRecordsError: a chunk is not the next one.
        """
        chunk = batch.chunk
        if chunk is None:
            self._parts = []
            return batch
        if chunk.number == 0:
            self._parts = []
        elif not self._parts or chunk.first != self.start:
            self._parts = []
            return None
        if chunk.number != len(self._parts):
            raise CorruptRecordsError(
                f"chunk {chunk.number} of {chunk.total} of the record at {chunk.first} is at "
                f"{batch.first_position}, where number {len(self._parts)} is due"
            )
        self._parts.append(batch)
        if len(self._parts) < chunk.total:
            return None
        parts, self._parts = self._parts, []
        first = parts[0]
        return RecordBatch(
            first.first_position,
            first.first_sequence_id,
            first.txids,
            [b"".join([part.payloads[0] for part in parts])],
            first.appended_at_ms,
            first.ledger_id,
            first.attributes,
            further_chunks=len(parts) - 1,
        )
