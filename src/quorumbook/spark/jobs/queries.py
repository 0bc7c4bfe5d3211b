"""Jobs that are streaming queries: ``transform`` and ``analytics``.

Where a query is stands in its checkpoint, so it goes on after any end at the very record, and
what it writes to a stream is there once.  Without ``follows`` it ends when it has read what was
there as it began; with it, it goes on with what comes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from quorumbook.env import Budget, Env
from quorumbook.errors import ConfigError
from quorumbook.spark.connection import Connection
from quorumbook.spark.jobs.engine import MEGABYTE, Limits, tasks_at_once
from quorumbook.spark.jobs.frame import Report
from quorumbook.spark.jobs.journal import JobJournal
from quorumbook.spark.jobs.options import QueryOptions
from quorumbook.spark.jobs.streams import is_stream, stream_name, stream_names

_UNIT = "query"
_LOOK_S = 1.0
_SHUFFLE_PARTITIONS, _SHUFFLE_DEFAULT = "spark.sql.shuffle.partitions", "200"


def target_stream(target: str) -> str:
    """Return the stream of ``stream:NAME``; empty: a directory.

    Raises:
        ConfigError: it is a stream, and not one.
    """
    return stream_name("--to", target) if is_stream(target) else ""


def records(spark: Any, connection: Connection, options: QueryOptions) -> Any:
    """Return the source's records that the options mean, as they come.

    Raises:
        ConfigError: the source is no stream.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415

    names = stream_names("--from", options.source)
    reader = connected_to(spark.readStream.format("quorumbook"), connection)
    if options.since_ms is None:
        reader = reader.option("startingOffsets", "earliest")
    else:
        reader = reader.option("startingTimestamp", str(options.since_ms))
        reader = reader.option("startingOffsetsByTimestampStrategy", "latest")
    found = reader.load(f"stream:{','.join(names)}")
    if options.until_ms is not None:
        found = found.where(f.col("timestamp") < f.timestamp_millis(f.lit(options.until_ms)))
    if options.first:
        found = found.where(f.col("seq") >= options.first)
    if options.last is not None:
        found = found.where(f.col("seq") <= options.last)
    return found


def spread_state(spark: Any, limits: Limits) -> None:
    """Have the state of queries be in as many partitions as tasks run at once, not in Spark's 200.

    What somebody has set stays, and so does what a checkpoint says, by Spark's own rule.
    """
    if spark.conf.get(_SHUFFLE_PARTITIONS) == _SHUFFLE_DEFAULT:
        with contextlib.suppress(ConfigError):  # a server does not say how many those are
            spark.conf.set(_SHUFFLE_PARTITIONS, str(tasks_at_once(spark, limits)))


def paced(spark: Any, frame: Any, limits: Limits) -> Any:
    """Return a frame whose tasks together hand on so many bytes a second at most.

    Every entry goes to a bookie once at most, so this bounds what each of them gets.
    """
    if not limits.max_bookie_inflight and not limits.max_bookie_mbps:
        return frame
    at_once = tasks_at_once(spark, limits)
    if limits.max_bookie_inflight:
        frame = frame.coalesce(at_once)
    if not limits.max_bookie_mbps:
        return frame
    rate_bytes = max(1, round(limits.max_bookie_mbps * MEGABYTE / at_once))

    def pace(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        env = Env()
        budget = Budget(env.clock, env.threads, rate_bytes)
        for batch in batches:
            budget.take_in_job(batch.nbytes, "jobs")
            yield batch

    return frame.mapInArrow(pace, frame.schema)


def run_query(
    job: str,
    frame: Any,
    connection: Connection,
    options: QueryOptions,
    checkpoint: str,
    journal: JobJournal,
    on_progress: Callable[[int], None] = lambda rows: None,
) -> Report:
    """Run a query to its end, or until it is interrupted if it follows its source.

    Args:
        job: Its name.
        frame: Its rows.
        connection: Where the target stream is.
        options: How it runs, and where its rows go.
        checkpoint: Where it keeps how far it is.
        journal: Knows whether it has ended before.
        on_progress: Runs with the records that were read since the last call.
    """
    report = Report(job, journal.job_id, units=1)
    if _UNIT in journal.done and not options.follows:
        report.find_done(journal.done)
        return report
    query = _started(frame, connection, options, checkpoint)
    seen: dict[int, int] = {}

    def look() -> None:
        before = sum(seen.values())
        for progress in query.recentProgress:
            seen[progress.batchId] = max(seen.get(progress.batchId, 0), progress.numInputRows)
        on_progress(sum(seen.values()) - before)

    try:
        while not query.awaitTermination(_LOOK_S):
            look()
    except KeyboardInterrupt:
        if not options.follows:
            raise
    finally:
        if query.isActive:
            query.stop()
    look()
    result = {"input_rows": sum(seen.values()), "batches": len([n for n in seen.values() if n])}
    if not options.follows:
        journal.add({_UNIT: result})
    report.add({_UNIT: result})
    return report


def _started(frame: Any, connection: Connection, options: QueryOptions, checkpoint: str) -> Any:
    writer = frame.writeStream.outputMode("append").option("checkpointLocation", checkpoint)
    if options.follows:
        writer = writer.trigger(processingTime=f"{options.every_s:g} seconds")
    else:
        writer = writer.trigger(availableNow=True)
    stream = target_stream(options.target)
    if not stream:
        return writer.format("parquet").start(options.target)
    writer = connected_to(writer.format("quorumbook"), connection)
    creates = str(options.creates_stream).lower()
    return writer.option("createStream", creates).start(f"stream:{stream}")


def connected_to(builder: Any, connection: Connection) -> Any:
    """Return a reader or writer of Spark's that knows where the cluster is."""
    values = {
        "metadataServiceUri": connection.metadata_uri,
        "namespace": connection.namespace_path,
        **dict(word.split("=", 1) for word in connection.passed_on),
    }
    if connection.config_file:
        values["configFile"] = connection.config_file
    return builder.options(**values)


def conclude(report: Report) -> None:
    """Sum the result up."""
    for result in report.results.values():
        report.summary.update(result)
