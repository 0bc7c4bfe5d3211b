"""``ingest``: files and tables into a stream, or into ledgers of rows; each row once.

The whole of it is one batch of an application of the job's own name, or of the one that is given:
a job that is resumed, or given again with the same name, finds it written and does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from quorumbook.env.shown import HIDDEN, names_secret, shown
from quorumbook.errors import ConfigError
from quorumbook.spark.connection import Connection
from quorumbook.spark.jobs.engine import Limits
from quorumbook.spark.jobs.frame import Report
from quorumbook.spark.jobs.journal import JobJournal
from quorumbook.spark.jobs.queries import connected_to, paced
from quorumbook.spark.jobs.streams import stream_name
from quorumbook.spark.pool import connected
from quorumbook.streams.partitions.partition_node import check_stream_exists
from quorumbook.streams.transactions import Application, Identity, Place

FORMATS = ("csv", "json", "parquet", "orc", "text", "jdbc")
_UNIT = "batch"
_VERSION = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    """What goes where."""

    source: str
    format: str
    #: Of Spark's reader, such as ``header`` or ``dbtable``.
    reader_options: Mapping[str, str]
    #: Columns and types in SQL; empty: as Spark finds them.
    schema: str = ""
    #: ``stream:NAME`` or ``ledger``.
    target: str
    #: The column that becomes the payload; empty: the whole row as JSON, of ``text`` the line.
    value: str = ""
    #: The column that becomes the key; empty: records have none.
    key: str = ""
    order_by: str = ""
    creates_stream: bool = False
    #: Under which name it is counted; empty: the job's.
    txn: str = ""

    @property
    def stream(self) -> str:
        """The stream's name; empty: ledgers of rows."""
        if self.target != "ledger":
            return stream_name("--to", self.target, "stream:NAME, or ledger")
        if self.key:
            raise ConfigError("--key is for records of a stream; rows in ledgers have none")
        return ""

    def arguments(self) -> dict[str, Any]:
        """Return what the job depends on, without secrets: it is kept in a file."""
        told = {
            name: HIDDEN if names_secret(f"{name}={value}") else _shown(value)
            for name, value in sorted(self.reader_options.items())
        }
        source = _shown(self.source)
        return {**asdict(self), "source": source, "reader_options": told}


def _shown(text: str) -> str:
    return shown(text) if "://" in text else text


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
        report.results, report.resumed = dict(journal.done), 1
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
    report.results = dict(journal.done)
    return report


def _is_committed(connection: Connection, options: IngestOptions, application: str) -> bool:
    cluster = connected(connection)
    namespace = cluster.namespace() if options.stream else None
    app = Application(Place(cluster.client, namespace), application, Identity("batch", "ingest"))

    async def look() -> bool:
        if namespace is not None and not options.creates_stream:
            await check_stream_exists(namespace, options.stream)
        await app.prepare()
        return await app.is_committed(_VERSION)

    return cluster.run(look)


def _write(frame: Any, connection: Connection, options: IngestOptions, application: str) -> None:
    writer = connected_to(frame.write.format("quorumbook").mode("append"), connection).options(
        txnAppId=application,
        txnVersion=str(_VERSION),
        createStream=str(options.creates_stream).lower(),
    )
    if options.stream:
        writer.save(f"stream:{options.stream}")
    else:
        writer.option("target", "ledger").save()


def conclude(report: Report) -> None:
    """Sum the result up."""
    for result in report.results.values():
        report.summary["rows_written"] = result["rows"]
        report.summary["was_there"] = result["was_there"]
