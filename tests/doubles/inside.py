"""Where tests reach into objects: what no program may do, and only a fault needs.

A test that needs something else gets a function here, or says at the place why it reaches in.
"""

from __future__ import annotations

from typing import Any

from quorumbook.bookie.connections.connection import BookieConnection
from quorumbook.client.context import client_context
from quorumbook.client.transport.channels import FastChannel
from quorumbook.client.writing.adds import AddDriver
from quorumbook.ledger.machines.append import AppendState
from quorumbook.storage.cache.layers import Caches
from quorumbook.storage.checkpoint.schedule import Flusher
from quorumbook.storage.entrylog.reader import EntryLogReader
from quorumbook.storage.journal.journals import Journals
from quorumbook.storage.reading.reads import StorageReads
from quorumbook.storage.startup import Opened
from quorumbook.storage.store import LedgerStorage
from quorumbook.storage.writes import Writes
from quorumbook.streams.metadata.stream_nodes import StreamNodes
from quorumbook.streams.reading.read_ahead import ReadAhead
from quorumbook.streams.writing.pump import Pump


def adds_of(ledger: Any) -> AddDriver:
    """Return what drives a ledger's adds: a lost connection is told to it, and it only."""
    return ledger._adds


def pump_of(writer: Any) -> Pump:
    """Return what drives a stream's writer: a crash between two of its steps is made there."""
    return writer._pump


def append_state_of(ledger: Any) -> AppendState:
    """Return the machine of a ledger's writer: which positions have failed, and what it does."""
    return ledger._state


def segment_nodes_of(writer: Any) -> StreamNodes:
    """Return the nodes that a stream's writer changes: a test has such a change fail, or wait."""
    return pump_of(writer).segments._nodes


async def allocate_ahead(writer: Any) -> None:
    """Have a stream's writer make its next ledger, as it does when a segment is nearly full."""
    await pump_of(writer).segments._allocate()


def end_ledger_under(writer: Any, error: BaseException) -> None:
    """Have a stream's writer hear that its segment's ledger failed."""
    pump_of(writer).on_entries_failed(error)


def read_ahead_of(reader: Any) -> ReadAhead:
    """Return what a stream's reader keeps ahead: how much it takes is no one else's business."""
    return reader._scanner._ahead


def read_ahead_line_of(reader: Any) -> Any:
    """Return the segments that a stream's reader reads before their turn."""
    return read_ahead_of(reader)._line


def opened(storage: LedgerStorage) -> Opened:
    """Return the parts of a storage: what is in its index, journals and logs is compared."""
    return storage._opened


def flusher_of(storage: LedgerStorage) -> Flusher:
    """Return what writes a storage's caches out: a test says when its time has come."""
    return storage._flusher


def flush_by_time(storage: LedgerStorage) -> None:
    """Have the caches' time come."""
    flusher_of(storage)._by_time()


def reads_of(storage: LedgerStorage) -> StorageReads:
    """Return what reads a storage's entries: how it found them is seen nowhere else."""
    return storage._reads


def writes_of(storage: LedgerStorage) -> Writes:
    """Return what a storage's adds go through: what is on its way to the journal is counted."""
    return storage._writes


def journals_of(storage: LedgerStorage) -> Journals:
    """Return a storage's journals: how far they are durable."""
    return storage._journals


def caches_of(storage: LedgerStorage) -> Caches:
    """Return a storage's caches: what they hold, and what is put into them."""
    return storage._caches


def log_reader_of(storage: LedgerStorage) -> EntryLogReader:
    """Return what has a storage's entry logs open: a test closes them as eviction would."""
    return storage._log_reader


def connections_of(bookie: Any) -> list[BookieConnection]:
    """Return the connections of a bookie's server, whose transports a test exchanges."""
    return list(bookie.connections._open)


def unsent_bytes_of(connection: BookieConnection) -> int:
    """Return how much waits for a connection's peer."""
    return connection.unflushed_bytes + connection._transport.get_write_buffer_size()


def channels_of(client: Any) -> list[FastChannel]:
    """Return a client's connections for reads."""
    return list(client_context(client).bookies._fast.values())


def etcd_client_of(store: Any) -> Any:
    """Return the driver's client of etcd, whose calls a test loses, delays or answers itself."""
    return store._client


def intercept_etcd(store: Any, attempt: Any) -> Any:
    """Have the driver's calls of etcd go through something else; return what they went through."""
    client = etcd_client_of(store)
    before, client._attempt = client._attempt, attempt
    return before
