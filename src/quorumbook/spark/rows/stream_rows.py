"""Records as rows: reads the pieces of a task, and makes Arrow columns of them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from quorumbook.client.reading.reader import LedgerReader, note_confirmed
from quorumbook.errors import DigestMismatchError
from quorumbook.spark.pool import ClusterClient
from quorumbook.spark.request.planning import Piece
from quorumbook.spark.request.read_options import ReadOptions
from quorumbook.spark.rows.ledger_rows import DamagedRow, damaged_row, is_bearable, opened_ahead
from quorumbook.streams import Position, ReaderOptions, RecordBatch, StreamReader
from quorumbook.streams.errors import CorruptRecordsError, DataLossError
from quorumbook.streams.format.segment_text import SegmentMetadata
from quorumbook.streams.frames.records import KAFKA_MAKERS, MAKERS, Maker, Records, batch_of
from quorumbook.streams.reading.chunks import Chunks
from quorumbook.streams.reading.segment_reader import SegmentReader, open_segment
from quorumbook.streams.stream_context import StreamContext, stream_context

_ENVELOPED, _BARE = 5, 3


class _Gatherer:
    """Collects records of one stream until they fill an Arrow batch."""

    def __init__(self, options: ReadOptions) -> None:
        self._most_bytes = options.max_batch_bytes
        self._most_rows = options.max_batch_rows
        self._of: tuple[str, int] = ("", -1)
        self._gathered: list[RecordBatch] = []
        self._rows = self._bytes = 0

    def add(self, piece: Piece, batch: RecordBatch) -> Iterator[Records]:
        """Take records in; yield what is full."""
        if self._of != (piece.title, piece.partition):
            yield from self.take()
            self._of = (piece.title, piece.partition)
        for start in range(0, len(batch), self._most_rows):
            part = batch.part(start, start + self._most_rows)
            size = part.size_bytes
            too_many = self._rows + len(part) > self._most_rows
            if too_many or self._bytes + size > self._most_bytes:
                yield from self.take()
            self._gathered.append(part)
            self._rows += len(part)
            self._bytes += size

    def take(self) -> Iterator[Records]:
        """Yield what was collected, if there is any, and begin anew."""
        if self._gathered:
            taken, self._gathered = self._gathered, []
            self._rows = self._bytes = 0
            yield Records(*self._of, taken)


async def gather(
    cluster: ClusterClient, options: ReadOptions, pieces: Sequence[Piece]
) -> AsyncGenerator[Records | DamagedRow, None]:
    """Yield as many records at a time as an Arrow batch takes.

    Raises:
        DataLossError: something of the pieces is gone, and that is to fail.
        DigestMismatchError: every replica of an entry is damaged, and that is to fail.
        CorruptRecordsError: the same, of the records in an entry.
    """
    namespace = await cluster.opened_namespace()
    gatherer = _Gatherer(options)

    async def open_one(piece: Piece) -> SegmentReader | None:
        segment = SegmentMetadata(
            number=piece.segment,
            ledger_id=piece.ledger_id,
            first_txid=0,
            version=_ENVELOPED if piece.is_enveloped else _BARE,
        )
        context = stream_context(namespace.stream(piece.name))
        opened = await open_segment(context, segment, piece.segment_sequence_id)
        if opened is None and options.fails_on_data_loss:
            raise DataLossError(
                f"the ledger {piece.ledger_id} of segment {piece.segment} of stream {piece.name} "
                "is gone since this was planned",
                ledger_id=piece.ledger_id,
            )
        return opened

    async with contextlib.aclosing(opened_ahead(pieces, open_one)) as opened:
        async for piece, reader in opened:
            if reader is None:
                continue
            try:
                context = stream_context(namespace.stream(piece.name))
                whole = _whole_records(context, _of_piece(piece, reader, options))
                async with contextlib.aclosing(whole) as batches:
                    async for batch in batches:
                        if isinstance(batch, DamagedRow):
                            for full in gatherer.take():
                                yield full
                            yield batch
                            continue
                        for full in gatherer.add(piece, batch):
                            yield full
            finally:
                await reader.close()
    for full in gatherer.take():
        yield full


async def _whole_records(
    context: StreamContext, found: AsyncGenerator[RecordBatch | DamagedRow, None]
) -> AsyncGenerator[RecordBatch | DamagedRow, None]:
    """Put records together that are larger than an entry; they are where they begin."""
    chunks = Chunks()
    async with contextlib.aclosing(found) as batches:
        async for batch in batches:
            whole = batch if isinstance(batch, DamagedRow) else chunks.feed(batch)
            if whole is not None:
                yield whole
    if chunks.start is not None:
        # What begins here ends behind the piece.
        end = ReaderOptions(tail=False, end=chunks.start.next)
        async with StreamReader(context, chunks.start, end) as rest:
            async for batch in rest.read_batches():
                yield batch


async def _of_piece(
    piece: Piece, reader: SegmentReader, options: ReadOptions
) -> AsyncGenerator[RecordBatch | DamagedRow, None]:
    start = Position(piece.segment, piece.first_entry, piece.start_slot)
    end = Position(piece.segment, piece.last_entry + 1, 0)
    if piece.end_slot:
        end = Position(piece.segment, piece.last_entry, piece.end_slot)
    if isinstance(reader.ledger, LedgerReader):
        note_confirmed(reader.ledger, piece.last_entry)  # it was when this was planned
    first = piece.first_entry
    while first <= piece.last_entry:
        try:
            async with contextlib.aclosing(reader.confirmed(first, piece.last_entry)) as runs:
                async for run in runs:
                    for batch in run:
                        due = batch.between(start, end)
                        if due is not None:
                            yield due
            first = reader.next_entry
            if first <= piece.last_entry:
                raise DataLossError(
                    f"entry {first} of segment {piece.segment} of stream {piece.name} was "
                    "confirmed when this was planned, and is gone",
                    ledger_id=piece.ledger_id,
                    entry_id=first,
                )
        except (DigestMismatchError, CorruptRecordsError, DataLossError) as error:
            if not is_bearable(error, options):
                raise
            first = max(first, reader.next_entry)
            if options.on_corrupt == "null":
                yield DamagedRow(_known_of(piece, first, error))
            first += 1
            reader.count = -1  # how many records the lost entry had is said by the next one


def _known_of(piece: Piece, entry_id: int, error: Exception) -> Mapping[str, Any]:
    return {
        "stream": piece.title,
        "topic": piece.title,
        "partition": None if piece.partition < 0 else piece.partition,
        "segment": piece.segment,
        "ledger_id": piece.ledger_id,
        "entry_id": entry_id,
        "_error": str(error),
    }


def record_batch(records: Records | DamagedRow, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows."""
    return _record_batch(records, schema, MAKERS)


def kafka_record_batch(records: Records | DamagedRow, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows as Kafka's source has them."""
    return _record_batch(records, schema, KAFKA_MAKERS)


def _record_batch(
    records: Records | DamagedRow, schema: pa.Schema, makers: Mapping[str, Maker]
) -> pa.RecordBatch:
    if isinstance(records, DamagedRow):
        return damaged_row(records, schema)
    return batch_of(records, schema, makers)
