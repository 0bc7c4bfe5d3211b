"""Entries as rows: reads the pieces of a task, and makes Arrow columns of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from quorumbook.client.reading.columns import (
    binary_column,
    number_column,
    rows_column,
    sizes_of,
    sliced_column,
)
from quorumbook.client.reading.entries import EntryBatch
from quorumbook.client.reading.reader import LedgerReader, note_confirmed
from quorumbook.errors import (
    DigestMismatchError,
    NoSuchEntryError,
    NoSuchLedgerInMetadataError,
    QuorumbookError,
)
from quorumbook.ids import BookieId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.ledger.placement.schedule import write_set
from quorumbook.spark.pool import ClusterClient
from quorumbook.spark.request.planning import Piece
from quorumbook.spark.request.read_options import ReadOptions
from quorumbook.spark.rows.open_ledgers import opening
from quorumbook.streams.errors import CorruptRecordsError

T = TypeVar("T")
#: So many ledgers are opened ahead of the one that is read.
_OPENED_AHEAD = 8


class DamagedRow(NamedTuple):
    """A row that stands for what cannot be read."""

    values: Mapping[str, Any]


class Entries(NamedTuple):
    """Consecutive entries of one ledger."""

    batch: EntryBatch
    metadata: LedgerMetadata
    #: Who gave them; None: any of those who have them.
    replica: BookieId | None = None


class Gatherer:
    """Collects entries until they fill an Arrow batch."""

    def __init__(self, options: ReadOptions) -> None:
        self._most_bytes = options.max_batch_bytes
        self._most_rows = options.max_batch_rows
        self.gathered: list[Entries] = []
        self._rows = self._bytes = 0

    def add(self, entries: Entries) -> Iterator[list[Entries]]:
        """Take entries in; yield what is full."""
        batch = entries.batch
        first, last = batch.first_entry_id, batch.last_entry_id
        for start in range(first, last + 1, self._most_rows):
            part = batch.part(start, min(start + self._most_rows - 1, last))
            too_many = self._rows + len(part) > self._most_rows
            if self.gathered and (too_many or self._bytes + part.size_bytes > self._most_bytes):
                yield self.take()
            self.gathered.append(entries._replace(batch=part))
            self._rows += len(part)
            self._bytes += part.size_bytes

    def take(self) -> list[Entries]:
        """Return what was collected, and begin anew."""
        taken, self.gathered = self.gathered, []
        self._rows = self._bytes = 0
        return taken


async def gather(
    cluster: ClusterClient, options: ReadOptions, pieces: Sequence[Piece]
) -> AsyncGenerator[list[Entries] | DamagedRow, None]:
    """Yield as many entries at a time as an Arrow batch takes.

    Raises:
        DigestMismatchError: every replica of an entry is damaged, and that is to fail.
        ReadFailedError: no replica gives an entry at the moment.
    """
    gatherer = Gatherer(options)
    async with contextlib.aclosing(opened(cluster, options, pieces)) as readers:
        async for piece, reader in readers:
            note_confirmed(reader, piece.last_entry)  # it was when this was planned
            async with contextlib.aclosing(_of_piece(gatherer, options, piece, reader)) as full:
                async for entries in full:
                    yield entries
    if gatherer.gathered:
        yield gatherer.take()


async def _of_piece(
    gatherer: Gatherer, options: ReadOptions, piece: Piece, reader: LedgerReader
) -> AsyncGenerator[list[Entries] | DamagedRow, None]:
    first = piece.first_entry
    while first <= piece.last_entry:
        try:
            async with contextlib.aclosing(reader.read_batches(first, piece.last_entry)) as batches:
                async for batch in batches:
                    for full in gatherer.add(Entries(batch, reader.metadata)):
                        yield full
                    first = batch.last_entry_id + 1
        except (DigestMismatchError, NoSuchEntryError) as error:
            if not is_bearable(error, options):
                raise
            if gatherer.gathered:
                yield gatherer.take()
            if options.on_corrupt == "null":
                row = {"ledger_id": piece.ledger_id, "entry_id": first, "_error": str(error)}
                yield DamagedRow(row)
            first += 1


def is_bearable(error: QuorumbookError, options: ReadOptions) -> bool:
    """Tell whether reading goes on behind an entry that cannot be read."""
    if isinstance(error, DigestMismatchError | CorruptRecordsError):
        return options.on_corrupt != "fail"
    return not options.fails_on_data_loss


async def opened(
    cluster: ClusterClient, options: ReadOptions, pieces: Sequence[Piece]
) -> AsyncGenerator[tuple[Piece, LedgerReader], None]:
    """Yield pieces with their ledgers' readers; those of ledgers that are gone are left out.

    Raises:
        NoSuchLedgerInMetadataError: a ledger is gone, and that is to fail.
    """
    how = opening(options.connection)

    async def open_one(piece: Piece) -> LedgerReader | None:
        try:
            return await cluster.client.open_ledger(piece.ledger_id, recover=False, **how)
        except NoSuchLedgerInMetadataError:
            if options.fails_on_data_loss:
                raise
            return None

    async with contextlib.aclosing(opened_ahead(pieces, open_one)) as readers:
        async for piece, reader in readers:
            if reader is not None:
                async with reader:
                    yield piece, reader


async def opened_ahead(
    pieces: Sequence[Piece], open_one: Callable[[Piece], Coroutine[Any, Any, T]]
) -> AsyncGenerator[tuple[Piece, T], None]:
    """Yield pieces with what they are read by; the next ones are being opened meanwhile."""
    ahead: deque[asyncio.Task[T]] = deque()
    try:
        for number, piece in enumerate(pieces):
            for later in pieces[number + len(ahead) : number + _OPENED_AHEAD]:
                ahead.append(asyncio.ensure_future(open_one(later)))
            yield piece, await ahead.popleft()
    finally:
        for task in ahead:
            task.cancel()


def record_batch(entries: list[Entries] | DamagedRow, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows."""
    if isinstance(entries, DamagedRow):
        return damaged_row(entries, schema)
    rows = _Rows(entries)
    return pa.RecordBatch.from_arrays(
        [_MAKERS[field.name](rows, field.type) for field in schema], schema=schema
    )


def damaged_row(damage: DamagedRow, schema: pa.Schema) -> pa.RecordBatch:
    """Return one row in which all is null but what is known of it."""
    row = {name: damage.values.get(name) for name in schema.names}
    return pa.RecordBatch.from_pylist([row], schema=schema)


class _Rows:
    """Entries that become one Arrow batch."""

    def __init__(self, entries: list[Entries]) -> None:
        self.entries = entries
        self.counts = [len(batch) for batch, *_ in entries]
        self.payloads = [payload for batch, *_ in entries for payload in batch.payloads]
        self.payload_sizes = sizes_of(self.payloads)

    def ledger_ids(self, kind: pa.DataType) -> pa.Array:
        return number_column(
            np.repeat([batch.ledger_id for batch, *_ in self.entries], self.counts), kind
        )

    def _ids(self) -> Any:
        return np.concatenate(
            [
                np.arange(batch.first_entry_id, batch.last_entry_id + 1, dtype=np.int64)
                for batch, *_ in self.entries
            ]
        )

    def entry_ids(self, kind: pa.DataType) -> pa.Array:
        return number_column(self._ids(), kind)

    def sizes(self, kind: pa.DataType) -> pa.Array:
        return number_column(self.payload_sizes, kind)

    def values(self, kind: pa.DataType) -> pa.Array:
        return binary_column(self.payloads, self.payload_sizes)

    def _field(self, offset: int, kind: pa.DataType) -> pa.Array:
        fields = [
            sliced_column(batch.buffer, batch.header_starts(), offset, 8).view(">i8")[:, 0]
            for batch, *_ in self.entries
        ]
        return number_column(np.concatenate(fields).astype(np.int64), kind)

    def last_adds_confirmed(self, kind: pa.DataType) -> pa.Array:
        return self._field(16, kind)

    def lengths(self, kind: pa.DataType) -> pa.Array:
        return self._field(24, kind)

    def digests(self, kind: pa.DataType) -> pa.Array:
        found: list[bytes] = []
        for batch, *_ in self.entries:
            size = batch.payload_offset - 32
            if not size:
                found += [b""] * len(batch)
                continue
            rows = sliced_column(batch.buffer, batch.header_starts(), 32, size).tobytes()
            found += [rows[at : at + size] for at in range(0, len(rows), size)]
        return binary_column(found)

    def _by_entry(self, value: Callable[[LedgerMetadata, int], Any], kind: pa.DataType) -> pa.Array:
        found = [
            value(metadata, entry_id)
            for batch, metadata, _ in self.entries
            for entry_id in batch.entry_ids
        ]
        return pa.array(found, kind)

    def fragments(self, kind: pa.DataType) -> pa.Array:
        return self._by_entry(lambda m, n: m.fragments.index(m.fragment_of(n)), kind)

    def bookies(self, kind: pa.DataType) -> pa.Array:
        return self._by_entry(_bookies, kind)

    def _by_ledger(self, value: Callable[[LedgerMetadata], Any], kind: pa.DataType) -> pa.Array:
        return rows_column([value(metadata) for _, metadata, _ in self.entries], self.counts, kind)

    def creation_times(self, kind: pa.DataType) -> pa.Array:
        return self._by_ledger(lambda m: None if m.ctime_ms is None else m.ctime_ms * 1000, kind)

    def custom_metadata(self, kind: pa.DataType) -> pa.Array:
        return self._by_ledger(lambda m: list(m.custom_metadata.items()), kind)

    def replicas(self, kind: pa.DataType) -> pa.Array:
        return rows_column([replica for *_, replica in self.entries], self.counts, kind)

    def errors(self, kind: pa.DataType) -> pa.Array:
        return pa.nulls(len(self.payloads), kind)


def _bookies(metadata: LedgerMetadata, entry_id: int) -> list[str]:
    ensemble = metadata.fragment_of(entry_id).ensemble
    at = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum_size)
    return [ensemble[position] for position in at]


_MAKERS: Mapping[str, Callable[[_Rows, pa.DataType], pa.Array]] = {
    "ledger_id": _Rows.ledger_ids,
    "entry_id": _Rows.entry_ids,
    "size": _Rows.sizes,
    "value": _Rows.values,
    "lac": _Rows.last_adds_confirmed,
    "cum_length": _Rows.lengths,
    "digest": _Rows.digests,
    "fragment": _Rows.fragments,
    "bookies": _Rows.bookies,
    "ledger_ctime": _Rows.creation_times,
    "custom_metadata": _Rows.custom_metadata,
    "_error": _Rows.errors,
    "_replica": _Rows.replicas,
}
