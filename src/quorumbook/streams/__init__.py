"""Streams: unbounded logs that can be written again, on DistributedLog's own format.

namespace     create, list, delete and rename streams
stream        one stream, and what can be done with it
writing       appending records
reading       reading them, from anywhere
cursors       how far somebody is;  single acknowledgements
partitions    streams under one name;  consumer groups
views         tables, state machines, byte streams
transactions  many processes append in one step
schemas       what records are decoded by
tables        the metadata of streams as tables
retention     what is deleted;  tier: what is moved to files
metadata      what the metadata store holds;  segments: what follows from a list of them
metrics       what writers and readers count
compaction    few large segments in the place of many small ones
format        DistributedLog's bytes and texts
"""

from quorumbook.streams.cursors.cursor import Cursor
from quorumbook.streams.cursors.lag import Lag
from quorumbook.streams.cursors.reader import CursorReader
from quorumbook.streams.format.attributes import Attributes
from quorumbook.streams.format.gap import Gap
from quorumbook.streams.format.position import Position, parse_position
from quorumbook.streams.format.schemas import (
    Compatibility,
    Schema,
    SchemaKind,
    StreamSchemas,
    version_headers,
)
from quorumbook.streams.metadata.policy import StreamPolicy
from quorumbook.streams.metrics import STREAM_METRICS
from quorumbook.streams.namespace import Namespace, NamespaceEvent
from quorumbook.streams.partitions.consumer import Consumer, Delivery
from quorumbook.streams.partitions.options import (
    ConsumerOptions,
    PartitionedReaderOptions,
    PartitionedWriterOptions,
)
from quorumbook.streams.partitions.partitioning import PartitionAppended, StreamCut
from quorumbook.streams.partitions.reader import PartitionedReader, PartitionRecord
from quorumbook.streams.partitions.stream import GroupInfo, PartitionedStream
from quorumbook.streams.partitions.writer import PartitionedWriter
from quorumbook.streams.reading.batches import Record, RecordBatch
from quorumbook.streams.reading.notices import ControlRecord, Notice
from quorumbook.streams.reading.options import ReaderOptions
from quorumbook.streams.reading.reader import ReportingReader, StreamItem, StreamReader
from quorumbook.streams.reading.seek import SequenceId, TxId
from quorumbook.streams.reading.snapshot import Split, StreamSnapshot
from quorumbook.streams.retention.orphans import Orphan, OrphanState
from quorumbook.streams.retention.retention import RetentionReport
from quorumbook.streams.schemas.decoder import Decoder
from quorumbook.streams.stream import Segment, Stream, StreamInfo
from quorumbook.streams.views.byte_stream import ByteStream
from quorumbook.streams.views.state_machine import Command, State, StateMachine
from quorumbook.streams.views.table_view import Change, TableView
from quorumbook.streams.writing.appended import Appended, AppendedBatch
from quorumbook.streams.writing.options import WriterOptions
from quorumbook.streams.writing.writer import StreamWriter

__all__ = [
    "STREAM_METRICS",
    "Appended",
    "AppendedBatch",
    "Attributes",
    "ByteStream",
    "Change",
    "Command",
    "Compatibility",
    "Consumer",
    "ConsumerOptions",
    "ControlRecord",
    "Cursor",
    "CursorReader",
    "Decoder",
    "Delivery",
    "Gap",
    "GroupInfo",
    "Lag",
    "Namespace",
    "NamespaceEvent",
    "Notice",
    "Orphan",
    "OrphanState",
    "PartitionAppended",
    "PartitionRecord",
    "PartitionedReader",
    "PartitionedReaderOptions",
    "PartitionedStream",
    "PartitionedWriter",
    "PartitionedWriterOptions",
    "Position",
    "ReaderOptions",
    "Record",
    "RecordBatch",
    "ReportingReader",
    "RetentionReport",
    "Schema",
    "SchemaKind",
    "Segment",
    "SequenceId",
    "Split",
    "State",
    "StateMachine",
    "Stream",
    "StreamCut",
    "StreamInfo",
    "StreamItem",
    "StreamPolicy",
    "StreamReader",
    "StreamSchemas",
    "StreamSnapshot",
    "StreamWriter",
    "TableView",
    "TxId",
    "WriterOptions",
    "parse_position",
    "version_headers",
]
