"""``quorumbook spark lake-sink``: streams into tables of a lake."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorumbook.cli.common import Call
from quorumbook.cli.spark.run import (
    JobRun,
    connection_of,
    dry_report,
    job_command,
    run_following,
    show,
    tell,
)
from quorumbook.cli.spark.tier import absolute
from quorumbook.spark.jobs.options import LakeSinkOptions

if TYPE_CHECKING:
    from quorumbook.spark.lake.table import LakeTable
    from quorumbook.spark.pool import ClusterClient


@job_command(LakeSinkOptions)
def lake_sink(call: Call, run: JobRun, options: LakeSinkOptions) -> int:
    """Write streams into a table of Parquet, Iceberg or Delta Lake, each record once."""
    from quorumbook.spark.jobs.data import lake_sink as job
    from quorumbook.spark.jobs.streams import some_or_all
    from quorumbook.spark.lake.rows import schema_of
    from quorumbook.spark.pool import connected
    from quorumbook.streams.tier.places import check_uri

    names = some_or_all("--from", options.source)
    schema_of(options.decode)  # says what is wrong with it
    check_uri(options.table)  # before it is kept
    connection = connection_of(call, options.namespace)
    cluster = connected(connection)

    def sink(job_id: str) -> job.LakeSink:
        return job.LakeSink(
            cluster,
            _table(options, cluster, makes=not run.is_dry_run),
            names,
            job_id=job_id,
            decode=options.decode,
            max_bytes=options.batch_bytes,
            allows_loss=options.allows_loss,
        )

    if run.is_dry_run:
        plan = sink("").plan()
        report = dry_report("lake-sink", plan.units if plan else [])
    else:
        report = run_following(call, run, "lake-sink", options, sink, connection)
    tell(call, run, report)
    return show(call, run, report)


def _table(options: LakeSinkOptions, cluster: ClusterClient, *, makes: bool) -> LakeTable:
    from quorumbook.spark.lake.delta import DeltaTable
    from quorumbook.spark.lake.iceberg import IcebergTable
    from quorumbook.spark.lake.manifest import ManifestTable
    from quorumbook.spark.lake.next_batch import NextBatchNode
    from quorumbook.spark.lake.rows import schema_of

    schema = schema_of(options.decode)
    if options.format == "iceberg":
        return IcebergTable(options.table, dict(options.catalog), schema, makes=makes)
    where = absolute(options.table)
    if options.format == "delta":
        return DeltaTable(where, cluster.instance_id, schema, makes=makes)
    return ManifestTable(where, NextBatchNode(cluster, where), makes=makes)
