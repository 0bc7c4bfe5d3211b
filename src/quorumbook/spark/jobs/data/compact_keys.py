"""``compact-keys``: the latest record of each key, out of a stream into another one.

What is completed of the stream is read, up to its last completed segment.  The result is one
batch of an application of its own, whose number is the sequence id up to which it was read, and
the batch replaces what the other stream had in the same step.  So readers of the other stream see
the old result or the new one, and a job that is killed, or given again, makes it once.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from quorumbook.errors import ConfigError
from quorumbook.spark.connection import Connection
from quorumbook.spark.jobs.batches import birth_of
from quorumbook.spark.jobs.engine import Limits
from quorumbook.spark.jobs.frame import Report
from quorumbook.spark.jobs.journal import JobJournal
from quorumbook.spark.jobs.options import CompactKeysOptions
from quorumbook.spark.jobs.queries import connected_to, paced
from quorumbook.spark.pool import connected
from quorumbook.streams import Namespace, PartitionedStream, Position
from quorumbook.streams.errors import (
    StreamExistsError,
    StreamNotFoundError,
    TransactionLostError,
)
from quorumbook.streams.format.segment_text import SegmentMetadata
from quorumbook.streams.partitions.partition_node import partition_count
from quorumbook.streams.partitions.partitioning import partition_name
from quorumbook.streams.segments import start_sequence_ids, without_truncated
from quorumbook.streams.stream_context import StreamContext, stream_context
from quorumbook.streams.tier.nodes import ledger_of
from quorumbook.streams.transactions import Application, Identity, Place
from quorumbook.streams.transactions.origin import origin_of

_UNIT = "batch"
_COLUMNS = "seq long, key binary, value binary, headers array<struct<key:string,value:binary>>"
#: What one task writes, about: a segment of the result.
_TASK_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class DueKeys:
    """What is to be done."""

    application: str
    #: Behind the last record that is read.
    end: int
    size_bytes: int
    is_done: bool


async def look(namespace: Namespace, options: CompactKeysOptions) -> DueKeys:
    """Return what is to be done; the target is made if that is wanted.

    Raises:
        ConfigError: the target has records that are no result of this job.
        StreamNotFoundError: one of the streams is not there.
    """
    if options.source == options.target:
        raise ConfigError(
            f"--to stream:{options.target}: another stream; sequence ids of a stream have no gaps"
        )
    birth = await birth_of(namespace, options.source)
    target_birth = 0
    try:
        target_birth = await birth_of(namespace, options.target)
    except StreamNotFoundError:
        if not options.creates_stream:
            raise
    names = f"{birth} {options.source} {target_birth} {options.target}"
    application = f"compact-keys {names}"
    if target_birth:
        await _check_target(namespace, options.target, application)
    context = stream_context(namespace.stream(options.source))
    segments = await context.nodes.segments()
    completed = [segment for segment in segments if not segment.is_in_progress]
    end = size = 0
    if completed:
        end = start_sequence_ids(completed)[-1] + completed[-1].record_count
        for segment in without_truncated(completed):
            size += (await ledger_of(context, segment)).length
    app = Application(Place(namespace.client, namespace), application, Identity("batch", ""))
    try:
        is_done = await app.is_committed(end)
    except TransactionLostError:  # there is none yet
        is_done = False
    return DueKeys(application, end, size, is_done or end <= 0)


async def _check_target(namespace: Namespace, name: str, application: str) -> None:
    """Raise ConfigError if somebody else has records there."""
    context = stream_context(namespace.stream(name))
    for segment in without_truncated(await context.nodes.segments()):
        if await _batch_in(context, segment, application) is None:
            raise ConfigError(
                f"--to stream:{name}: segment {segment.number} is not a result of compacting this "
                "stream, and would be replaced; give another stream"
            )


async def parts_of(namespace: Namespace, options: CompactKeysOptions) -> list[CompactKeysOptions]:
    """Return what is compacted into what: each partition of a partitioned stream by itself.

    All records of a key are in one partition, so its latest one is the latest of the stream.

    Raises:
        ConfigError: the target has not as many partitions.
        StreamNotFoundError: one of the streams is not there.
    """
    count = await partition_count(namespace, options.source)
    if options.creates_stream and count is not None:
        with contextlib.suppress(StreamExistsError):
            await PartitionedStream.create(namespace, options.target, partitions=count)
    elif options.creates_stream:
        await namespace.create_stream(options.target, exist_ok=True)
    there = await partition_count(namespace, options.target)
    if there != count:
        raise ConfigError(
            f"stream {options.source} has {_counted(count)}, and stream {options.target} "
            f"{_counted(there)}: each is compacted into its like, so give a stream with as many"
        )
    if count is None:
        return [options]
    return [
        replace(
            options,
            source=partition_name(options.source, number),
            target=partition_name(options.target, number),
        )
        for number in range(count)
    ]


def _counted(partitions: int | None) -> str:
    return "no partitions" if partitions is None else f"{partitions} partitions"


def run(
    spark: Any,
    connection: Connection,
    options: CompactKeysOptions,
    journal: JobJournal,
    limits: Limits,
) -> Report:
    """Write the result, unless it is there already."""
    cluster = connected(connection)
    namespace = cluster.namespace()
    parts = cluster.run(lambda: parts_of(namespace, options))
    report = Report("compact-keys", journal.job_id)
    for part in parts:
        due = cluster.run(partial(look, namespace, part))
        rows = 0 if due.is_done else _write(spark, connection, part, due, limits)
        cluster.run(partial(drop_older, namespace, part.target, due))
        result = {"rows": rows, "end": due.end, "was_there": due.is_done}
        unit = _UNIT if part is options else part.source
        journal.add({unit: result})
        report.do(unit, result, due.size_bytes)
    return report


def _write(
    spark: Any, connection: Connection, options: CompactKeysOptions, due: DueKeys, limits: Limits
) -> int:
    """Write the result of one stream; return how many records it has."""
    from pyspark.sql import Observation  # noqa: PLC0415
    from pyspark.sql import functions as f  # noqa: PLC0415

    seen = Observation()
    frame = latest(spark, connection, options, due)
    frame = frame.observe(seen, f.count(f.lit(1)).alias("rows"))
    writer = paced(spark, frame, limits).write.format("quorumbook").mode("append")
    writer = connected_to(writer, connection).option("replace", "true")
    writer = writer.option("txnAppId", due.application).option("txnVersion", str(due.end))
    writer.save(f"stream:{options.target}")
    return int(seen.get["rows"])


async def drop_older(namespace: Namespace, name: str, due: DueKeys) -> None:
    """Leave nothing of earlier results: a batch without rows replaces nothing.

    A job that is killed before this is given again, finds its batch committed, and does this.
    """
    context = stream_context(namespace.stream(name))
    last = -1
    for segment in without_truncated(await context.nodes.segments()):
        batch = await _batch_in(context, segment, due.application)
        if batch is not None and batch < due.end:
            last = segment.number
    if last >= 0:
        await namespace.stream(name).truncate(Position(last + 1, 0, 0))


async def _batch_in(
    context: StreamContext, segment: SegmentMetadata, application: str
) -> int | None:
    """Return of which batch of an application a segment is, merged and moved or not."""
    origin = origin_of((await ledger_of(context, segment)).custom_metadata)
    return origin.attempt.batch if origin and origin.application == application else None


def latest(spark: Any, connection: Connection, options: CompactKeysOptions, due: DueKeys) -> Any:
    """Return the rows of the result, in the order of the stream."""
    reader = connected_to(spark.read.format("quorumbook"), connection)
    reader = reader.option("endingOffsets", json.dumps({options.source: due.end}))
    records = reader.schema(f"{_COLUMNS}, timestamp timestamp").load(f"stream:{options.source}")
    left = what_stays(records, options.retain_s).orderBy("seq")
    tasks = 1 + due.size_bytes // _TASK_BYTES
    return left.coalesce(tasks).select("key", "value", "headers", "timestamp")


def what_stays(records: Any, retain_s: float) -> Any:
    """Return the latest record of each key.

    Records without a key are all kept; of those without a payload, which delete their key, the
    ones that are younger than ``retain_s``, or of which nobody knows how old they are.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415

    by_itself = f.when(f.col("key").isNull(), f.col("seq"))
    newest = (
        records.groupBy("key", by_itself.alias("by_itself"))
        .agg(f.max_by(f.struct("seq", "value", "headers", "timestamp"), "seq").alias("newest"))
        .select("key", "newest.*")
    )
    since = f.current_timestamp() - f.make_dt_interval(secs=f.lit(retain_s))
    is_old = f.coalesce(f.col("timestamp") < since, f.lit(False))
    is_deleted = f.col("key").isNotNull() & (f.length("value") == 0)
    return newest.where(~(is_deleted & is_old))


def conclude(report: Report) -> None:
    """Sum the result up."""
    results = list(report.results.values())
    report.summary["rows_written"] = sum(result["rows"] for result in results)
    report.summary["up_to_record"] = sum(result["end"] for result in results)
    report.summary["was_there"] = all(result["was_there"] for result in results)
