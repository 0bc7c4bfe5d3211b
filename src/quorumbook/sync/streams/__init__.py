"""The blocking twin of ``quorumbook.streams``: the same names, for programs without an event loop.

    from quorumbook.sync.streams import Namespace

    with Namespace.open("sqlite:///./data/metadata.db", bind=True) as ns:
        ns.create_stream("orders", exist_ok=True)
        stream = ns.stream("orders")
        with stream.writer() as writer:
            writer.append(b"...")                   # returns when it is safe
            future = writer.append_nowait(b"...")   # pipelined
        with stream.reader(tail=False) as reader:
            for record in reader:
                ...

It works on the thread of ``quorumbook.sync`` and raises the same errors.  What is a value there
(positions, records, policies, snapshots) is the same here: ``quorumbook.streams`` has it.
"""

from __future__ import annotations

from quorumbook.sync.streams.cursors import Cursor, CursorReader
from quorumbook.sync.streams.namespace import Namespace
from quorumbook.sync.streams.partitioned import (
    Consumer,
    PartitionedReader,
    PartitionedStream,
    PartitionedWriter,
)
from quorumbook.sync.streams.reader import ReportingReader, StreamReader
from quorumbook.sync.streams.stream import Stream
from quorumbook.sync.streams.views import ByteStream, StateMachine, TableView
from quorumbook.sync.streams.writer import StreamWriter

__all__ = [
    "ByteStream",
    "Consumer",
    "Cursor",
    "CursorReader",
    "Namespace",
    "PartitionedReader",
    "PartitionedStream",
    "PartitionedWriter",
    "ReportingReader",
    "StateMachine",
    "Stream",
    "StreamReader",
    "StreamWriter",
    "TableView",
]
