"""``quorumbook spark xcluster``: streams copied to another cluster, and compared with it."""

from __future__ import annotations

from dataclasses import replace

import click

from quorumbook.cli.common import Call
from quorumbook.cli.spark.run import (
    JobCommand,
    JobRun,
    connection_of,
    follow_options,
    job_options,
    run_following,
    run_planned,
    show,
    tell,
)
from quorumbook.cli.stream.options import namespace_option
from quorumbook.errors import ConfigError


@click.command(cls=JobCommand)
@click.option(
    "--from", "source", required=True, metavar="WHAT", help="stream:NAME,NAME or stream:*."
)
@click.option(
    "--to-metadata", required=True, metavar="URI", help="The metadata of the other cluster."
)
@click.option(
    "--to-namespace", metavar="PATH", default="",
    help="Where its streams are; as --namespace if not given.",
)  # fmt: skip
@click.option(
    "--to-config", metavar="FILE", default="",
    help="A quorumbook.toml for the other cluster; the one of --config if not given.",
)  # fmt: skip
@click.option(
    "--verify", "verifies", is_flag=True, help="Copy nothing: compare both sides, record by record."
)
@follow_options
@namespace_option
@click.pass_obj
@job_options
def xcluster(
    call: Call,
    run: JobRun,
    source: str,
    to_metadata: str,
    to_namespace: str,
    to_config: str,
    verifies: bool,
    batch_bytes: int,
    follows: bool,
    every_s: float,
    path: str,
) -> int:
    """Copy streams to another cluster, each record once, or compare the copies."""
    from quorumbook.spark.jobs.data import xcluster as job
    from quorumbook.spark.jobs.frame import Report
    from quorumbook.spark.jobs.streams import some_or_all
    from quorumbook.spark.pool import connected

    names = some_or_all("--from", source)
    if verifies and follows:
        raise ConfigError("--verify and --follow: one of them")
    connection = connection_of(call, path)
    there = connection_of(call, to_namespace or path, metadata_uri=to_metadata)
    if to_config:
        there = replace(there, config_file=to_config)
    here, other = connected(connection), connected(there)
    arguments = {
        "from": source, "to": to_metadata, "to_namespace": to_namespace, "verify": verifies,
    }  # fmt: skip

    def work(job_id: str) -> job.CrossCluster:
        return job.CrossCluster(here, other, names, job_id=job_id, max_bytes=batch_bytes)

    if verifies:
        from quorumbook.spark.jobs.data import xcluster_verify as verification

        plan = here.run(lambda: verification.plan_verify(here, other, names))
        report = run_planned(call, run, arguments, plan, verification.conclude, connection)
        for row in report.summary.get("rows", []):
            call.note(f"{row['stream']}: record {row['seq']}: {row['what']}")
    elif run.is_dry_run:
        due = work("").look()
        report = Report("xcluster", "", is_dry_run=True, units=sum(len(d.splits) for d in due))
        report.size_bytes = sum(split.size_bytes for d in due for split in d.splits)
        report.planned = [f"{d.stream} from record {max(d.sequence_id, 0)} on" for d in due]
    else:
        every = every_s if follows else None
        report = run_following(call, run, "xcluster", arguments, work, connection, every)
    tell(call, run, report)
    return show(call, run, report)
