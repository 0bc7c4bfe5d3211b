"""The rows of the tables of a namespace; what is damaged is left out, and logged."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import Protocol

from quorumbook.client.client import BookKeeper
from quorumbook.client.tables.ledgers import Row
from quorumbook.env import logger
from quorumbook.errors import ConfigError, MetadataFormatError, NoSuchLedgerInMetadataError
from quorumbook.streams.cursors.shown import lag_to_show
from quorumbook.streams.errors import CorruptRecordsError, StreamError, UnsupportedFormatError
from quorumbook.streams.stream import Stream
from quorumbook.streams.stream_context import stream_context
from quorumbook.streams.tier.nodes import TierNodes

_log = logger("streams")


class Streams(Protocol):
    """What is needed of ``streams.namespace.Namespace``."""

    @property
    def client(self) -> BookKeeper:
        """The client of the cluster that holds the ledgers."""
        ...

    def streams(self) -> AsyncGenerator[str, None]:
        """Yield the names of all streams."""
        ...

    def stream(self, name: str) -> Stream:
        """Return a stream by name."""
        ...


async def _stream_rows(namespace: Streams) -> AsyncGenerator[Row, None]:
    async for name in namespace.streams():
        try:
            info = await namespace.stream(name).info(_left_out)
        except (CorruptRecordsError, UnsupportedFormatError, ConfigError) as error:
            _log.error("left out of the streams: %s: %s", name, error)
            continue
        numbers = [segment.metadata.number for segment in info.segments]
        yield {
            "stream": name,
            "segments": len(numbers),
            "records": info.record_count,
            "first_segment": min(numbers, default=None),
            "last_segment": max(numbers, default=None),
            "is_sealed": info.is_sealed,
            "writer": info.writer or None,
            "max_txid": info.max_txid,
        }


@contextlib.contextmanager
def named(what: str) -> Iterator[None]:
    """Log what is damaged, and go on without it."""
    try:
        yield
    except (MetadataFormatError, CorruptRecordsError, UnsupportedFormatError) as error:
        _log.error("not known is %s: %s", what, error)


def _left_out(error: StreamError) -> None:
    _log.error("left out of the segments: %s", error)


async def _segment_rows(namespace: Streams) -> AsyncGenerator[Row, None]:
    async for name in namespace.streams():
        async for row in segment_rows(namespace, name):
            yield row


async def segment_rows(namespace: Streams, name: str) -> AsyncGenerator[Row, None]:
    """Yield the rows of the table of segments that are of one stream."""
    stream = namespace.stream(name)
    tier = TierNodes(stream_context(stream).nodes)
    in_files = set(await tier.numbers())
    for segment in await stream.readable_segments(_left_out):
        metadata = segment.metadata
        is_complete = not metadata.is_in_progress
        where = f"segment {metadata.number} of stream {name}"
        stored = None
        if metadata.number in in_files:
            with named(f"the files of {where}"):
                stored = await tier.read(metadata.number)
        length = None
        try:
            with named(f"the ledger of {where}"):
                found = await namespace.client.ledger_metadata(metadata.ledger_id)
                length = found.length if found.is_closed else None
        except NoSuchLedgerInMetadataError:
            length = None if stored is None else stored.manifest.ledger.length
        yield {
            "stream": name,
            "segment": metadata.number,
            "ledger_id": metadata.ledger_id,
            "state": "completed" if is_complete else "in progress",
            "truncation": metadata.truncation.name.lower(),
            "first_txid": metadata.first_txid,
            "last_txid": metadata.last_txid if is_complete else None,
            "records": metadata.record_count if is_complete else None,
            "start_seq": segment.start_sequence_id if segment.start_sequence_id >= 0 else None,
            "last_entry": metadata.last_entry if is_complete else None,
            "completed_at": metadata.completed_at_ms * 1000 if is_complete else None,
            "length": length,
            "tier": None if stored is None else stored.manifest.state.value,
            "location": None if stored is None else stored.manifest.location,
        }


async def _cursor_rows(namespace: Streams) -> AsyncGenerator[Row, None]:
    async for name in namespace.streams():
        for cursor in await namespace.stream(name).cursors():
            lag, damage = await lag_to_show(cursor)
            if damage is not None:
                _log.error("not known is all of cursor %s of stream %s: %s",
                           cursor.name, name, damage)  # fmt: skip
            yield {
                "stream": name,
                "cursor": cursor.name,
                "segment": cursor.position.segment,
                "entry_id": cursor.position.entry,
                "slot": cursor.position.slot,
                "holds_retention": cursor.holds_retention,
                "is_overrun": cursor.is_overrun,
                "lag_records": None if lag is None else lag.records,
                "lag_bytes": None if lag is None else lag.size_bytes,
            }


#: What makes the rows of each table.
TABLES: Mapping[str, Callable[[Streams], AsyncGenerator[Row, None]]] = {
    "streams": _stream_rows,
    "segments": _segment_rows,
    "cursors": _cursor_rows,
}
