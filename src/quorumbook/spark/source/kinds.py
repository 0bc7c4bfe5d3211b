"""What is the same about reading streams, ledgers and topics, and what is not."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.types import DataType

from quorumbook.spark.pool import ClusterClient, connected
from quorumbook.spark.request.planning import Piece
from quorumbook.spark.request.read_options import ReadOptions
from quorumbook.spark.request.selection import Selected
from quorumbook.spark.rows import ledger_rows, replica_rows, stream_rows, topic_rows
from quorumbook.spark.rows.decoding import DecodedRows, decoder_of
from quorumbook.spark.rows.ledger_views import LedgerViews
from quorumbook.spark.rows.schema import (
    KAFKA_COLUMNS,
    LEDGER_COLUMNS,
    PULSAR_COLUMNS,
    STREAM_COLUMNS,
)
from quorumbook.spark.rows.stream_views import StreamViews
from quorumbook.spark.rows.topic_views import TopicViews
from quorumbook.spark.rows.views import Views


@dataclass(frozen=True, slots=True)
class SourceKind:
    """How one kind of source is looked at and read."""

    #: What a path of it begins with; for messages.
    title: str
    columns: Mapping[str, DataType]
    #: Columns that are only there when a schema names them.
    on_demand: frozenset[str]
    #: Yields what becomes one Arrow batch …
    gather: Callable[[ClusterClient, ReadOptions, Sequence[Piece]], AsyncGenerator[Any, None]]
    #: … and this makes it one.
    record_batch: Callable[[Any, pa.Schema], pa.RecordBatch]
    #: Of the schema that records are decoded by; 0: they are not.
    version: int = 0

    def default_columns(self, options: ReadOptions) -> tuple[str, ...]:
        """Return the columns without a schema of the user's."""
        hidden = self.on_demand - ({"headers"} if options.includes_headers else set())
        if options.on_corrupt == "null":
            hidden -= {"_error"}
        if options.replica:
            hidden -= {"_replica"}
        return tuple(name for name in self.columns if name not in hidden)


_LEDGERS = SourceKind(
    "ledger:",
    LEDGER_COLUMNS,
    frozenset(LEDGER_COLUMNS) - {"ledger_id", "entry_id", "size", "value"},
    ledger_rows.gather,
    ledger_rows.record_batch,
)
_REPLICAS = replace(_LEDGERS, gather=replica_rows.gather)
_STREAMS = SourceKind(
    "stream:",
    STREAM_COLUMNS,
    frozenset({"headers", "_error"}),
    stream_rows.gather,
    stream_rows.record_batch,
)
_TOPICS = SourceKind(
    "pulsar:",
    PULSAR_COLUMNS,
    frozenset({"_error"}),
    topic_rows.gather,
    topic_rows.record_batch,
)
_AS_KAFKA = replace(
    _STREAMS,
    title="stream: with compat=kafka",
    columns=KAFKA_COLUMNS,
    record_batch=stream_rows.kafka_record_batch,
)


def kind_of(options: ReadOptions) -> SourceKind:
    """Return how the selection is read.

    Raises:
        SchemaNotFoundError: it is decoded by a schema that is not there.
        ConfigError: it is decoded, and the schema's library is missing.
    """
    if options.decoded_stream:
        return _decoded(options)
    if options.selection.kind is Selected.LEDGER:
        return _REPLICAS if options.replica else _LEDGERS
    if options.selection.kind is Selected.PULSAR:
        return _TOPICS
    return _AS_KAFKA if options.is_kafka_like else _STREAMS


def _decoded(options: ReadOptions) -> SourceKind:
    # Asked for each time: a writer may have set a version since a query began.
    cluster = connected(options.connection)
    stream, version = options.decoded_stream, options.schema_version or None
    decoder = cluster.run(lambda: decoder_of(cluster, stream, version))
    rows = DecodedRows(decoder, options.on_bad_record)
    on_demand = {"headers"} if options.on_bad_record == "null" else {"headers", "value", "_error"}
    return replace(
        _STREAMS,
        title=f"stream:{stream} by version {decoder.version} of its schema",
        columns=rows.columns,
        on_demand=frozenset(on_demand),
        record_batch=rows.record_batch,
        version=decoder.version,
    )


async def views_of(cluster: ClusterClient, options: ReadOptions) -> Views:
    """Return what looks at the selection."""
    if options.selection.kind is Selected.LEDGER:
        return LedgerViews(cluster, options)
    if options.selection.kind is Selected.PULSAR:
        return TopicViews(cluster, options)
    return StreamViews(cluster, await cluster.opened_namespace(), options)
