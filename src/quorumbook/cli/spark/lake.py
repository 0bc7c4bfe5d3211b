"""``quorumbook spark lake-sink`` and ``lake-changes``: streams into tables of a lake, and back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from quorumbook.cli.call import Call
from quorumbook.cli.spark.run import (
    JobCommand,
    JobRun,
    connection_of,
    dry_report,
    job_command,
    run_following,
    show,
    tell,
)
from quorumbook.cli.spark.tier import absolute
from quorumbook.cli.values import derived
from quorumbook.errors import ConfigError
from quorumbook.spark.jobs.change_options import LakeChangesOptions
from quorumbook.spark.jobs.options import LakeSinkOptions

if TYPE_CHECKING:
    from quorumbook.spark.jobs.data.lake_sink import Decoding
    from quorumbook.spark.lake.table import LakeTable
    from quorumbook.spark.lake.versions import TableVersions
    from quorumbook.spark.pool import ClusterClient


@job_command(LakeSinkOptions)
def lake_sink(call: Call, run: JobRun, options: LakeSinkOptions) -> int:
    """Write streams into a table of Parquet, Iceberg or Delta Lake, each record once.

    With --upsert the table has the latest record of each key.
    """
    from quorumbook.spark.jobs.data import lake_sink as job
    from quorumbook.spark.jobs.streams import some_or_all
    from quorumbook.spark.lake.dead_letters import BadRecordStream
    from quorumbook.spark.pool import connected
    from quorumbook.streams.format.names import check_stream_name
    from quorumbook.streams.tier.places import check_uri

    names = some_or_all("--from", options.source)
    if options.dead_letters:
        check_stream_name(options.dead_letters)
        if not names or options.dead_letters in names:
            raise ConfigError("--dead-letters must name a stream that --from does not read")
    check_uri(options.table)  # before it is kept
    connection = connection_of(call, options.namespace)
    cluster = connected(connection)
    decode, schema = _decoding(options, cluster, names)

    def sink(job_id: str) -> job.LakeSink:
        return job.LakeSink(
            cluster,
            _table(options, cluster, schema, makes=not run.is_dry_run),
            names,
            job_id=job_id,
            decode=decode,
            max_bytes=options.batch_bytes,
            upserts=options.upserts,
            allows_loss=options.allows_loss,
            dead_letters=(
                BadRecordStream(cluster, options.dead_letters, options.table)
                if options.dead_letters
                else None
            ),
        )

    if run.is_dry_run:
        plan = sink("").plan()
        report = dry_report("lake-sink", plan.units if plan else [])
    else:
        report = run_following(call, run, "lake-sink", options, sink, connection)
    tell(call, run, report)
    return show(call, run, report)


@click.command(cls=JobCommand, params=[*derived(LakeChangesOptions)])
@click.pass_obj
def lake_changes(call: Call, /, **values: Any) -> None:
    """Append what changed in a table to a stream, each change once; needs no Spark.

    A row's key becomes the record's, and a row that is gone a record without a payload.
    """
    from quorumbook.spark.jobs.data.lake_changes import LakeChanges
    from quorumbook.spark.pool import connected
    from quorumbook.streams.tier.places import check_uri

    options = LakeChangesOptions(**values)
    check_uri(options.table)
    connection = connection_of(call, options.namespace)
    job = LakeChanges(connected(connection), _versions(options), options)
    with contextlib.suppress(KeyboardInterrupt):
        while job.step() or options.follows:
            time.sleep(options.every_s if options.follows else 0)
    call.output.record(
        {"versions": job.versions, "upserts": job.upserts, "deletions": job.deletions}
    )


def _versions(options: LakeChangesOptions) -> TableVersions:
    from quorumbook.spark.lake import versions

    if options.format == "iceberg":
        return versions.IcebergVersions(options.table, dict(options.catalog))
    where = absolute(options.table)
    if options.format == "delta":
        return versions.DeltaVersions(where)
    return versions.ManifestVersions(where)


def _decoding(
    options: LakeSinkOptions, cluster: ClusterClient, names: Sequence[str]
) -> tuple[Decoding, Any]:
    """Return what is decoded, and the columns of the table."""
    from quorumbook.spark.jobs.data.lake_sink import Decoding
    from quorumbook.spark.lake.rows import schema_of
    from quorumbook.spark.rows.decoding import decoder_of

    bad: Any = "drop" if options.dead_letters else options.bad_records
    if options.decode != "schema":
        decode = Decoding(fields=options.decode, bad_records=bad, upserts=options.upserts)
        return decode, schema_of(options.decode)
    if len(names) != 1:
        raise ConfigError("--decode schema: a table has one schema, so --from must name one stream")
    decoder = cluster.run(lambda: decoder_of(cluster, names[0]))
    decode = Decoding(
        stream=names[0], version=decoder.version, bad_records=bad, upserts=options.upserts
    )
    return decode, schema_of("", decoder)


def _table(
    options: LakeSinkOptions, cluster: ClusterClient, schema: Any, *, makes: bool
) -> LakeTable:
    from quorumbook.spark.lake.delta import DeltaTable
    from quorumbook.spark.lake.iceberg import IcebergTable
    from quorumbook.spark.lake.manifest import ManifestTable
    from quorumbook.spark.lake.next_batch import NextBatchNode

    if options.format == "iceberg":
        return IcebergTable(options.table, dict(options.catalog), schema, makes=makes)
    where = absolute(options.table)
    if options.format == "delta":
        return DeltaTable(where, cluster.instance_id, schema, makes=makes)
    return ManifestTable(where, NextBatchNode(cluster, where), makes=makes)
