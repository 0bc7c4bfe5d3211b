"""Records as rows: reads the pieces of a task, and makes Arrow columns of them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quorumbook.client.reading.reader import LedgerReader
from quorumbook.errors import DigestMismatchError
from quorumbook.spark.pool import Cluster
from quorumbook.spark.request.planning import Piece
from quorumbook.spark.request.read_options import ReadOptions
from quorumbook.spark.rows.arrow import (
    binary_column,
    constant_text_column,
    null_column,
    number_column,
    optional_binary_column,
)
from quorumbook.spark.rows.ledger_rows import Damage, damaged_row, is_bearable, opened_ahead
from quorumbook.streams import Position, ReaderOptions, RecordBatch, StreamReader
from quorumbook.streams.errors import CorruptRecordsError, DataLossError
from quorumbook.streams.format.attributes import Attributes
from quorumbook.streams.format.segment_text import SegmentMetadata
from quorumbook.streams.reading.chunks import Chunks
from quorumbook.streams.reading.segment_reader import SegmentReader, open_segment
from quorumbook.streams.stream_context import StreamContext, stream_context

_ENVELOPED, _BARE = 5, 3
#: What Kafka's source says of a time that the broker did not set.
_CREATE_TIME = 0


class Records(NamedTuple):
    """Records of one stream that become one Arrow batch."""

    stream: str
    #: Which one of a partitioned stream; below 0: it has none.
    partition: int
    batches: list[RecordBatch]


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
    cluster: Cluster, options: ReadOptions, pieces: Sequence[Piece]
) -> AsyncGenerator[Records | Damage, None]:
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
                        if isinstance(batch, Damage):
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
    context: StreamContext, found: AsyncGenerator[RecordBatch | Damage, None]
) -> AsyncGenerator[RecordBatch | Damage, None]:
    """Put records together that are larger than an entry; they are where they begin."""
    chunks = Chunks()
    async with contextlib.aclosing(found) as batches:
        async for batch in batches:
            whole = batch if isinstance(batch, Damage) else chunks.feed(batch)
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
) -> AsyncGenerator[RecordBatch | Damage, None]:
    start = Position(piece.segment, piece.first_entry, piece.start_slot)
    end = Position(piece.segment, piece.last_entry + 1, 0)
    if piece.end_slot:
        end = Position(piece.segment, piece.last_entry, piece.end_slot)
    if isinstance(reader.ledger, LedgerReader):
        reader.ledger.note_confirmed(piece.last_entry)  # it was when this was planned
    first = piece.first_entry
    while first <= piece.last_entry:
        try:
            async with contextlib.aclosing(reader.confirmed(first, piece.last_entry)) as batches:
                async for batch in batches:
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
                yield Damage(_known_of(piece, first, error))
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


def record_batch(records: Records | Damage, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows."""
    return _record_batch(records, schema, _MAKERS)


def kafka_record_batch(records: Records | Damage, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows as Kafka's source has them."""
    return _record_batch(records, schema, _KAFKA_MAKERS)


def _record_batch(
    records: Records | Damage, schema: pa.Schema, makers: Mapping[str, Maker]
) -> pa.RecordBatch:
    if isinstance(records, Damage):
        return damaged_row(records, schema)
    rows = _Rows(records)
    return pa.RecordBatch.from_arrays(
        [makers[field.name](rows, field.type) for field in schema], schema=schema
    )


class _Rows:
    """Records of one stream that become one Arrow batch."""

    def __init__(self, records: Records) -> None:
        self.name, self.partition, self.batches = records
        self.counts = np.array([len(batch) for batch in self.batches])
        self.count = int(self.counts.sum())

    def _repeated(self, values: list[int], kind: pa.DataType) -> pa.Array:
        """Return a column in which all records of a batch have one number."""
        return number_column(np.repeat(np.array(values, np.int64), self.counts), kind)

    def _ascending(self, firsts: list[int], kind: pa.DataType) -> pa.Array:
        """Return a column in which the records of a batch count up."""
        before = np.cumsum(self.counts) - self.counts
        starts = np.repeat(np.array(firsts, np.int64) - before, self.counts)
        return number_column(starts + np.arange(self.count), kind)

    def names(self, kind: pa.DataType) -> pa.Array:
        return constant_text_column(self.name, self.count)

    def sequence_ids(self, kind: pa.DataType) -> pa.Array:
        known = self._ascending([batch.first_sequence_id for batch in self.batches], kind)
        if all(batch.first_sequence_id >= 0 for batch in self.batches):
            return known
        unknown = np.repeat([batch.first_sequence_id < 0 for batch in self.batches], self.counts)
        return pa.array(known.to_numpy(), mask=unknown)

    def segments(self, kind: pa.DataType) -> pa.Array:
        return self._repeated([batch.first_position.segment for batch in self.batches], kind)

    def ledger_ids(self, kind: pa.DataType) -> pa.Array:
        return self._repeated([batch.ledger_id for batch in self.batches], kind)

    def entry_ids(self, kind: pa.DataType) -> pa.Array:
        return self._repeated([batch.entry_id for batch in self.batches], kind)

    def slots(self, kind: pa.DataType) -> pa.Array:
        return self._ascending([batch.first_position.slot for batch in self.batches], kind)

    def txids(self, kind: pa.DataType) -> pa.Array:
        parts = [np.array(batch.txids, np.int64) for batch in self.batches]
        return number_column(np.concatenate(parts), kind)

    def _carried(self, value: Callable[[Attributes], Any]) -> list[Any] | None:
        """Return something of what records carry, by row; None if none carries anything."""
        if not any(batch.attributes for batch in self.batches):
            return None
        found: list[Any] = [None] * self.count
        before = 0
        for batch in self.batches:
            first, behind = batch.first_position.slot, batch.last_position.slot
            for slot, attributes in batch.attributes.items():
                if first <= slot <= behind:
                    found[before + slot - first] = value(attributes)
            before += len(batch)
        return found

    def keys(self, kind: pa.DataType) -> pa.Array:
        found = self._carried(lambda carried: carried.key)
        return null_column(kind, self.count) if found is None else optional_binary_column(found)

    def headers(self, kind: pa.DataType) -> pa.Array:
        found = self._carried(
            lambda carried: (
                [{"key": name, "value": value} for name, value in carried.headers] or None
            )
        )
        return null_column(kind, self.count) if found is None else pa.array(found, kind)

    def timestamps(self, kind: pa.DataType) -> pa.Array:
        """Return when what records tell of happened, else when they were appended."""
        appended = self._appended(kind)
        happened = self._carried(lambda carried: carried.event_time_ms)
        if happened is None:
            return appended
        in_us = [None if time_ms is None else time_ms * 1000 for time_ms in happened]
        return pc.coalesce(pa.array(in_us, pa.int64()).view(kind), appended)

    def _appended(self, kind: pa.DataType) -> pa.Array:
        times = [batch.appended_at_ms for batch in self.batches]
        if None not in times:
            return self._repeated([1000 * time for time in times if time is not None], kind)
        unknown = np.repeat([time is None for time in times], self.counts)
        values = np.repeat([1000 * (time or 0) for time in times], self.counts)
        return pa.array(values, mask=unknown).view(kind)

    def values(self, kind: pa.DataType) -> pa.Array:
        return binary_column([payload for batch in self.batches for payload in batch.payloads])

    def partitions(self, kind: pa.DataType) -> pa.Array:
        return self.nothing(kind) if self.partition < 0 else self.kafka_partitions(kind)

    def kafka_partitions(self, kind: pa.DataType) -> pa.Array:
        return self._repeated([max(self.partition, 0)] * len(self.batches), kind)

    def timestamp_types(self, kind: pa.DataType) -> pa.Array:
        return self._repeated([_CREATE_TIME] * len(self.batches), kind)

    def nothing(self, kind: pa.DataType) -> pa.Array:
        return null_column(kind, self.count)


Maker: TypeAlias = Callable[[_Rows, pa.DataType], pa.Array]
_MAKERS: Mapping[str, Maker] = {
    "stream": _Rows.names,
    "partition": _Rows.partitions,
    "seq": _Rows.sequence_ids,
    "segment": _Rows.segments,
    "ledger_id": _Rows.ledger_ids,
    "entry_id": _Rows.entry_ids,
    "slot": _Rows.slots,
    "txid": _Rows.txids,
    "timestamp": _Rows.timestamps,
    "key": _Rows.keys,
    "value": _Rows.values,
    "headers": _Rows.headers,
    "_error": _Rows.nothing,
}
_KAFKA_MAKERS: Mapping[str, Maker] = {
    **_MAKERS,
    "topic": _Rows.names,
    "partition": _Rows.kafka_partitions,
    "offset": _Rows.sequence_ids,
    "timestampType": _Rows.timestamp_types,
}
