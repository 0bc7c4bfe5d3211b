"""Writes frames to streams, or to ledgers: every row once, whatever is killed and run again.

Each task writes ledgers that nobody reads, and tells the driver which; the driver's commit has all
of them appear in one step (``streams.transactions``).  Where rows are to be appended as they come
(``appending``), a commit only takes down that the batch is done.  Spark makes writers anew, for the
tasks of each batch, and others for commit and abort: what those know came with the tasks' messages.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from quorumbook import __version__
from quorumbook.env.tasks import gather_bounded
from quorumbook.errors import ConfigError
from quorumbook.spark.pool import ClusterClient, connected
from quorumbook.spark.short_errors import short_errors
from quorumbook.spark.sink.appending import Appender
from quorumbook.spark.sink.checkpoint import batch_digest
from quorumbook.spark.sink.columns import (
    SinkRows,
    check_columns,
    check_times,
    rows_of,
    streams_in,
    without_stream,
)
from quorumbook.spark.sink.options import WriteOptions
from quorumbook.spark.sink.small_segments import merge_where_many
from quorumbook.spark.task_spans import task_span
from quorumbook.streams import Namespace
from quorumbook.streams.errors import StreamNotFoundError
from quorumbook.streams.partitions.partition_node import check_stream_exists, partition_count
from quorumbook.streams.partitions.partitioning import partition_name
from quorumbook.streams.stream_context import stream_context
from quorumbook.streams.transactions import (
    Application,
    Attempt,
    AttemptResult,
    Identity,
    Place,
)
from quorumbook.streams.transactions.commit import check_segments

#: What batches that are no stream's have for a query: they are told by their version.
_BATCH_QUERY = "batch"


@dataclass(frozen=True, slots=True)
class Told(WriterCommitMessage):
    """What a task tells the driver."""

    application: str
    result: AttemptResult


class _Sink:
    """What both writers have in common: one frame's way to one application."""

    def __init__(
        self, options: WriteOptions, schema: StructType, *, overwrite: bool, is_table: bool = False
    ) -> None:
        """Check what can be checked before any task runs.

        Raises:
            ConfigError: columns or options are wrong, or the cluster cannot be used.
            StreamNotFoundError: there is no such stream.
        """
        if overwrite:
            raise ConfigError(
                'a log is only ever appended to: use .mode("append"), and no complete output mode'
            )
        check_columns(schema, target=options.target, stream=options.stream, is_table=is_table)
        self._options = options
        self._is_table = is_table
        self._release = __version__
        self._planned_ms = time.time_ns() // 1_000_000
        if options.target == "stream":
            cluster = connected(options.connection)
            namespace = cluster.namespace()
            if options.stream:
                cluster.run(lambda: _check_stream(namespace, options))

    def application(self, cluster: ClusterClient, name: str, who: Identity) -> Application:
        return Application(self._place(cluster), name, who)

    def _place(self, cluster: ClusterClient) -> Place:
        options = self._options
        namespace = cluster.namespace() if options.target == "stream" else None
        return Place(cluster.client, namespace, options.root, options.attempt_ttl_s)

    def write(
        self, iterator: Iterator[pa.RecordBatch], name: str, who: Identity, batch: int
    ) -> Told:
        """Write one task's rows."""
        with task_span("write_task"):
            return self._write(iterator, name, who, batch)

    def _write(
        self, iterator: Iterator[pa.RecordBatch], name: str, who: Identity, batch: int
    ) -> Told:
        if self._release != __version__:
            raise ConfigError(
                f"the driver has quorumbook {self._release}, this executor {__version__}: install "
                "the same everywhere"
            )
        options = self._options
        cluster = connected(options.connection)
        app = self.application(cluster, name, who)
        context = TaskContext.get()
        assert context is not None
        part = context.partitionId(), context.attemptNumber()
        if who.query != _BATCH_QUERY:
            cluster.run(app.prepare)
        if cluster.run(lambda: app.is_committed(batch, may_reset=options.commit.may_reset)):
            return Told(name, app.skipped(batch, *part))
        drafts = replace(options.drafts, password=options.connection.password())
        attempt: Attempt | Appender = app.attempt(batch, *part, drafts, self._planned_ms)
        if options.is_appending:
            wait_s = options.commit.lock_wait_s
            attempt = Appender(cluster.namespace(), app, who, batch, part, drafts, wait_s)
        known: dict[str, int | None] = {"": None}

        async def append(rows: Sequence[SinkRows]) -> None:
            if options.is_appending:
                for each in rows:
                    await attempt.append(*each)
            else:
                await gather_bounded(lambda each: attempt.append(*each), rows)

        def appends() -> Iterator[Callable[[], Coroutine[Any, Any, None]]]:
            for turn, given in enumerate(iterator, part[0]):
                arrow = without_stream(given, options.stream) if self._is_table else given
                if not options.cuts_times:
                    check_times(arrow)
                if new := list(streams_in(arrow, options.stream) - known.keys()):
                    ask = partial(partition_count, cluster.namespace())
                    counts = cluster.run(partial(gather_bounded, ask, new))
                    known.update(zip(new, counts, strict=True))
                partitions = {stream: count for stream, count in known.items() if count}
                yield partial(append, rows_of(arrow, options.stream, partitions, turn))

        try:
            cluster.run_in_turn(appends())
            return Told(name, cluster.run(attempt.finish))
        finally:
            cluster.run(attempt.give_up)

    def commit(
        self, messages: Sequence[WriterCommitMessage | None], batch: int, plan: str = ""
    ) -> None:
        """Have what the tasks wrote appear."""
        told = [message for message in messages if isinstance(message, Told)]
        if not told:
            return  # without a task there is no row
        cluster = connected(self._options.connection)
        app = self.application(cluster, told[0].application, told[0].result.who)
        drafts = replace(self._options.drafts, password=self._options.connection.password())
        results = [message.result for message in told]
        done = cluster.run(lambda: app.commit(batch, results, self._options.commit, drafts, plan))
        if done.segments:
            place = self._place(cluster)
            cluster.run(lambda: merge_where_many(place, done.segments))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        """Clean up what the tasks wrote; the next commit does for those that did not tell."""
        told = next((message for message in messages if isinstance(message, Told)), None)
        if told is not None:
            self.clean_up(told.application, told.result.who, batch)

    def clean_up(self, name: str, who: Identity, batch: int) -> None:
        """Clean up what the tasks wrote, whether they told or not."""
        cluster = connected(self._options.connection)
        app = self.application(cluster, name, who)
        is_final = self._options.commit.is_final
        cluster.run(lambda: app.abort(batch, is_final=is_final))


async def _check_stream(namespace: Namespace, options: WriteOptions) -> None:
    """Check that all rows' stream is there, and that it takes more segments.

    Raises:
        StreamNotFoundError: there is no such stream.
        TransactionTooLargeError: it has as many segments as it may have.
    """
    try:
        await check_stream_exists(namespace, options.stream)
    except StreamNotFoundError:
        if not options.drafts.creates_streams:
            raise
        return
    if options.is_appending:
        return
    count = await partition_count(namespace, options.stream)
    names = [options.stream]
    if count is not None:
        names = [partition_name(options.stream, number) for number in range(count)]
    await gather_bounded(
        lambda name: check_segments(stream_context(namespace.stream(name)), 1), names
    )


@short_errors
class BatchSink(DataSourceArrowWriter):
    """Writes one frame; Spark makes it once, and copies it to tasks and commit."""

    def __init__(
        self, options: WriteOptions, schema: StructType, *, overwrite: bool, is_table: bool = False
    ) -> None:
        """Check, and make the application."""
        self._sink = _Sink(options, schema, overwrite=overwrite, is_table=is_table)
        run = str(uuid.uuid4())
        self._name = options.application or f"batch-{run}"
        self._who = Identity(_BATCH_QUERY, run)
        self._batch = max(options.version, 0)
        cluster = connected(options.connection)
        app = self._sink.application(cluster, self._name, self._who)
        cluster.run(app.prepare)
        # Says before any task runs that a streaming query has the application.
        cluster.run(lambda: app.is_committed(self._batch, may_reset=options.commit.may_reset))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows."""
        return self._sink.write(iterator, self._name, self._who, self._batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Have what the tasks wrote appear."""
        self._sink.commit(messages, self._batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Clean up what the tasks wrote."""
        del messages
        self._sink.clean_up(self._name, self._who, self._batch)


@short_errors
class StreamSink(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        """Check."""
        self._sink = _Sink(options, schema, overwrite=overwrite)
        self._application = options.application
        self._checkpoint = options.checkpoint
        self._connection = options.connection

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows."""
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        run = context.getLocalProperty("spark.jobGroup.id")
        batch = context.getLocalProperty("streaming.sql.batchId")
        assert query is not None
        assert run is not None
        assert batch is not None
        who = Identity(query, run)
        return self._sink.write(iterator, self._application or query, who, int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Have what the tasks wrote appear."""
        cluster = connected(self._connection)
        self._sink.commit(messages, batchId, batch_digest(self._checkpoint, batchId, cluster))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Clean up what the tasks wrote, unless the batch is there after all."""
        self._sink.abort(messages, batchId)
