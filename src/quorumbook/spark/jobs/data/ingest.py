"""``ingest``: files and tables into a stream, or into ledgers of rows; each row once.

The whole of it is one batch of an application of the job's own name, or of the one that is given:
a job that is resumed, or given again with the same name, finds it written and does nothing.
"""

from __future__ import annotations

from typing import Any

from quorumbook.errors import ConfigError
from quorumbook.spark.connection import Connection
from quorumbook.spark.jobs.engine import Limits
from quorumbook.spark.jobs.frame import Report
from quorumbook.spark.jobs.journal import JobJournal
from quorumbook.spark.jobs.options import IngestOptions
from quorumbook.spark.jobs.queries import connected_to, paced
from quorumbook.spark.jobs.streams import stream_name
from quorumbook.spark.pool import connected
from quorumbook.streams.partitions.partition_node import check_stream_exists
from quorumbook.streams.transactions import Application, Identity, Place

_UNIT = "batch"
_VERSION = 0


def stream_of(options: IngestOptions) -> str:
    """Return the stream that rows go to; empty: ledgers of rows.

    Raises:
        ConfigError: it is something else, or has what is for streams alone.
    """
    if options.target != "ledger":
        return stream_name("--to", options.target, "stream:NAME, or ledger")
    if options.key:
        raise ConfigError("--key is for records of a stream; rows in ledgers have none")
    return ""


def frame_of(spark: Any, options: IngestOptions) -> Any:
    """Return the rows to write, with the columns ``value`` and, if wanted, ``key``.

    Raises:
        ConfigError: there is nothing to read, or not the columns that were named.
    """
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - Spark is there by now
    from pyspark.sql import functions as f  # noqa: PLC0415

    try:
        reader = spark.read.format(options.format).options(**options.reader_options)
        if options.schema:
            reader = reader.schema(options.schema)
        frame = reader.load(options.source) if options.source else reader.load()
        if options.order_by:
            frame = frame.orderBy(*(word.strip() for word in options.order_by.split(",")))
        value = f.col(options.value or "value")
        if not options.value and options.format != "text":
            value = f.to_json(f.struct("*"))
        key = [f.col(options.key).alias("key")] if options.key else []
        frame = frame.select(value.alias("value"), *key)
    except AnalysisException as error:
        raise ConfigError(f"{options.source or options.format}: {error}") from error
    texts = {n: f.col(n).cast("string") for n, kind in frame.dtypes if kind != "binary"}
    return frame.select(*(texts.get(name, f.col(name)).alias(name) for name in frame.columns))


def run(
    spark: Any,
    connection: Connection,
    options: IngestOptions,
    journal: JobJournal,
    limits: Limits,
) -> Report:
    """Write everything, unless it is there already."""
    from pyspark.sql import Observation  # noqa: PLC0415
    from pyspark.sql import functions as f  # noqa: PLC0415

    report = Report("ingest", journal.job_id, units=1)
    if _UNIT in journal.done:
        report.find_done(journal.done)
        return report
    application = options.txn or journal.job_id
    was_there = _is_committed(connection, options, application)
    rows = 0
    if not was_there:
        seen = Observation()
        frame = frame_of(spark, options).observe(seen, f.count(f.lit(1)).alias("rows"))
        _write(paced(spark, frame, limits), connection, options, application)
        rows = seen.get["rows"]
    journal.add({_UNIT: {"rows": rows, "was_there": was_there}})
    report.add(journal.done)
    return report


def _is_committed(connection: Connection, options: IngestOptions, application: str) -> bool:
    cluster = connected(connection)
    stream = stream_of(options)
    namespace = cluster.namespace() if stream else None
    app = Application(Place(cluster.client, namespace), application, Identity("batch", "ingest"))

    async def look() -> bool:
        if namespace is not None and not options.creates_stream:
            await check_stream_exists(namespace, stream)
        await app.prepare()
        return await app.is_committed(_VERSION)

    return cluster.run(look)


def _write(frame: Any, connection: Connection, options: IngestOptions, application: str) -> None:
    writer = connected_to(frame.write.format("quorumbook").mode("append"), connection).options(
        txnAppId=application,
        txnVersion=str(_VERSION),
        createStream=str(options.creates_stream).lower(),
    )
    if stream := stream_of(options):
        writer.save(f"stream:{stream}")
    else:
        writer.option("target", "ledger").save()


def conclude(report: Report) -> None:
    """Sum the result up."""
    for result in report.results.values():
        report.summary["rows_written"] = result["rows"]
        report.summary["was_there"] = result["was_there"]
