"""``quorumbook spark lake-sink``: streams into tables of a lake."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from quorumbook.cli.common import Call
from quorumbook.cli.spark.run import (
    JobCommand,
    JobRun,
    connection_of,
    dry_report,
    follow_options,
    job_options,
    run_following,
    show,
    tell,
)
from quorumbook.cli.spark.tier import absolute
from quorumbook.cli.stream.options import namespace_option
from quorumbook.errors import ConfigError

if TYPE_CHECKING:
    from quorumbook.spark.lake.table import LakeTable
    from quorumbook.spark.pool import ClusterClient

_KINDS = ("parquet", "iceberg", "delta")


@click.command(cls=JobCommand)
@click.option(
    "--from", "source", required=True, metavar="WHAT", help="stream:NAME,NAME or stream:*."
)
@click.option(
    "--table", required=True, metavar="WHERE",
    help="A directory or URI; of Iceberg NAMESPACE.TABLE.",
)  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice(_KINDS), default="parquet", show_default=True,
    help="What kind of table it is.",
)  # fmt: skip
@click.option(
    "--catalog", "words", metavar="KEY=VALUE", multiple=True,
    help="A property of the Iceberg catalog, such as uri or warehouse; may be repeated.",
)  # fmt: skip
@click.option(
    "--decode", metavar="DDL", default="",
    help="Fields of the records' JSON that become columns, such as 'carrier string, delay int'.",
)  # fmt: skip
@click.option(
    "--allow-data-loss", "allows_loss", is_flag=True,
    help="Go on where records were truncated before they were copied.",
)  # fmt: skip
@follow_options
@namespace_option
@click.pass_obj
@job_options
def lake_sink(
    call: Call,
    run: JobRun,
    source: str,
    table: str,
    form: str,
    words: tuple[str, ...],
    decode: str,
    batch_bytes: int,
    allows_loss: bool,
    follows: bool,
    every_s: float,
    path: str,
) -> int:
    """Write streams into a table of Parquet, Iceberg or Delta Lake, each record once."""
    from quorumbook.spark.jobs.data import lake_sink as job
    from quorumbook.spark.jobs.streams import some_or_all
    from quorumbook.spark.lake.rows import schema_of
    from quorumbook.spark.pool import connected
    from quorumbook.streams.tier.places import check_uri

    names = some_or_all("--from", source)
    schema_of(decode)  # says what is wrong with it
    check_uri(table)  # before it is kept
    connection = connection_of(call, path)
    arguments = {"from": source, "table": table, "format": form, "decode": decode}
    cluster = connected(connection)

    def sink(job_id: str) -> job.LakeSink:
        return job.LakeSink(
            cluster,
            _table(form, table, words, decode, cluster, makes=not run.is_dry_run),
            names,
            job_id=job_id,
            decode=decode,
            max_bytes=batch_bytes,
            allows_loss=allows_loss,
        )

    if run.is_dry_run:
        plan = sink("").plan()
        report = dry_report("lake-sink", plan.units if plan else [])
    else:
        every = every_s if follows else None
        report = run_following(call, run, "lake-sink", arguments, sink, connection, every)
    tell(call, run, report)
    return show(call, run, report)


def _table(
    form: str,
    table: str,
    words: tuple[str, ...],
    decode: str,
    cluster: ClusterClient,
    *,
    makes: bool,
) -> LakeTable:
    from quorumbook.spark.lake.delta import DeltaTable
    from quorumbook.spark.lake.iceberg import IcebergTable
    from quorumbook.spark.lake.manifest import ManifestTable
    from quorumbook.spark.lake.next_batch import NextBatchNode
    from quorumbook.spark.lake.rows import schema_of

    if any("=" not in word for word in words) or (words and form != "iceberg"):
        raise ConfigError(f"--catalog {' '.join(words)}: KEY=VALUE, and for --format iceberg only")
    schema = schema_of(decode)
    if form == "iceberg":
        return IcebergTable(table, dict(word.split("=", 1) for word in words), schema, makes=makes)
    if form == "delta":
        return DeltaTable(absolute(table), cluster.instance_id, schema, makes=makes)
    where = absolute(table)
    return ManifestTable(where, NextBatchNode(cluster, where), makes=makes)
