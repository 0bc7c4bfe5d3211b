"""Messages of Pulsar's topics as rows: reads the pieces of a task, and makes Arrow columns."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from quorumbook.client.context import client_store
from quorumbook.client.reading.reader import LedgerReader, note_confirmed
from quorumbook.errors import NoSuchLedgerInMetadataError
from quorumbook.pulsar.columns import batch_of
from quorumbook.pulsar.entries import Message
from quorumbook.pulsar.names import TopicName
from quorumbook.pulsar.nodes import TopicNodes
from quorumbook.pulsar.reading import TopicReader
from quorumbook.spark.pool import ClusterClient
from quorumbook.spark.request.planning import Piece
from quorumbook.spark.request.read_options import ReadOptions
from quorumbook.spark.rows.ledger_rows import is_bearable, opened_ahead
from quorumbook.spark.rows.open_ledgers import opening
from quorumbook.streams.errors import DataLossError


class Messages(NamedTuple):
    """Messages of one topic that become one Arrow batch."""

    name: TopicName
    messages: list[Message]


class _MessageGatherer:
    """Collects messages of one topic until they fill an Arrow batch."""

    def __init__(self, options: ReadOptions) -> None:
        self._most_bytes = options.max_batch_bytes
        self._most_rows = options.max_batch_rows
        self._of: TopicName | None = None
        self._held: list[Message] = []
        self._bytes = 0

    def add(self, name: TopicName, messages: Sequence[Message]) -> Iterator[Messages]:
        """Take messages in; yield what is full."""
        if self._of != name:
            yield from self.take()
            self._of = name
        for message in messages:
            size = len(message.value or b"")
            if len(self._held) == self._most_rows or self._bytes + size > self._most_bytes:
                yield from self.take()
            self._held.append(message)
            self._bytes += size

    def take(self) -> Iterator[Messages]:
        """Yield what was collected, if there is any, and begin again."""
        if self._held and self._of is not None:
            taken, self._held, self._bytes = self._held, [], 0
            yield Messages(self._of, taken)


async def gather(
    cluster: ClusterClient, options: ReadOptions, pieces: Sequence[Piece]
) -> AsyncGenerator[Messages, None]:
    """Yield as many messages at a time as an Arrow batch takes.

    Raises:
        DataLossError: a ledger is gone, and that is to fail.
        CorruptRecordsError: an entry cannot be read as a message, and that is to fail.
        UnsupportedFormatError: the same, of one that is encrypted, of a transaction, or too large.
    """
    nodes = TopicNodes(client_store(cluster.client))
    gatherer = _MessageGatherer(options)
    readers = {
        piece.name: TopicReader(
            cluster.client, nodes, TopicName.parse(piece.name), **opening(options.connection),
            on_corrupt=options.on_corrupt, is_bearable=lambda error: is_bearable(error, options),
        )
        for piece in pieces
    }  # fmt: skip

    async def open_one(piece: Piece) -> LedgerReader | None:
        try:
            return await readers[piece.name].open_ledger(piece.ledger_id)
        except NoSuchLedgerInMetadataError as error:
            if not options.fails_on_data_loss:
                return None
            raise DataLossError(
                f"ledger {piece.ledger_id} of topic {piece.name} is gone since this was planned; "
                "failOnDataLoss=false goes on without it",
                ledger_id=piece.ledger_id,
            ) from error

    async with contextlib.aclosing(opened_ahead(pieces, open_one)) as opened:
        async for piece, ledger in opened:
            if ledger is None:
                continue
            reader = readers[piece.name]
            async with ledger:
                note_confirmed(ledger, piece.last_entry)  # it was when this was planned
                found = reader.messages(ledger, piece.first_entry, piece.last_entry)
                async with contextlib.aclosing(found):
                    async for messages in found:
                        for full in gatherer.add(reader.name, _due(piece, messages)):
                            yield full
    for full in gatherer.take():
        yield full


def _due(piece: Piece, messages: list[Message]) -> list[Message]:
    """Leave out what is before the first message wanted and behind the last."""
    if not piece.start_slot and not piece.end_slot:
        return messages
    first = (piece.first_entry, piece.start_slot)
    behind = (piece.last_entry, piece.end_slot or 1 << 62)
    return [m for m in messages if first <= (m.entry_id, m.batch_index or 0) < behind]


def record_batch(rows: Messages, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows."""
    return batch_of(rows.name, rows.messages, schema)
