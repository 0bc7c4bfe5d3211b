"""``quorumbook spark compact-segments`` and ``compact-keys``: streams that take less."""

from __future__ import annotations

from functools import partial

import click

from quorumbook.cli.common import Call
from quorumbook.cli.spark.run import (
    JobCommand,
    JobRun,
    connection_of,
    job_options,
    limits_of,
    of_namespace,
    open_journal,
    open_session,
    run_job,
    show,
    streams_option,
    write_report,
)
from quorumbook.cli.stream.options import namespace_option


@click.command(cls=JobCommand)
@streams_option
@click.option(
    "--target-bytes", type=click.IntRange(1), default=128 * 1024 * 1024, show_default=True,
    help="Merged segments are not larger; small ones have less than an eighth of it.",
)  # fmt: skip
@click.option(
    "--older-than", "older_than_s", metavar="SECONDS", type=click.FloatRange(0), default=86400.0,
    show_default=True, help="Only segments that were completed so long ago.",
)  # fmt: skip
@click.option(
    "--delete-lag", "keep_s", metavar="SECONDS", type=click.FloatRange(0), default=3600.0,
    show_default=True, help="Keep the old ledgers for so long; a later run deletes them.",
)  # fmt: skip
@namespace_option
@click.pass_obj
@job_options
def compact_segments(
    call: Call,
    run: JobRun,
    streams: tuple[str, ...],
    target_bytes: int,
    older_than_s: float,
    keep_s: float,
    path: str,
) -> int:
    """Merge small completed segments of streams into large ones."""
    from quorumbook.spark.jobs.upkeep import compact_segments as job

    rules = {"target_bytes": target_bytes, "older_than_s": older_than_s, "keep_s": keep_s}
    report = run_job(
        call,
        run,
        {"streams": list(streams), **rules},
        of_namespace(
            call,
            path,
            lambda namespace: job.plan(
                namespace,
                streams,
                target_bytes=target_bytes,
                older_than_s=older_than_s,
                keep_s=keep_s,
            ),
        ),
        job.conclude,
        namespace=path,
    )
    return show(call, run, report)


@click.command(cls=JobCommand)
@click.option("--from", "source", required=True, metavar="WHAT", help="stream:NAME.")
@click.option("--to", "target", required=True, metavar="WHAT", help="stream:NAME.")
@click.option(
    "--retain", "retain_s", metavar="SECONDS", type=click.FloatRange(0), default=86400.0,
    show_default=True, help="Keep records without a payload, which delete their key, so long.",
)  # fmt: skip
@click.option("--create-stream", is_flag=True, help="Make the stream if it is missing.")
@namespace_option
@click.pass_obj
@job_options
def compact_keys(
    call: Call,
    run: JobRun,
    source: str,
    target: str,
    retain_s: float,
    create_stream: bool,
    path: str,
) -> int:
    """Write the latest record of each key of a stream into another one, in place of what it had."""
    from quorumbook.spark.jobs.data import compact_keys as job
    from quorumbook.spark.jobs.frame import Report
    from quorumbook.spark.jobs.streams import stream_name
    from quorumbook.spark.pool import connected

    options = job.KeyOptions(
        source=stream_name("--from", source),
        target=stream_name("--to", target),
        creates_stream=create_stream,
        retain_s=retain_s,
    )
    connection = connection_of(call, path)
    if run.is_dry_run:
        cluster = connected(connection)
        namespace = cluster.namespace()
        report = Report("compact-keys", "", is_dry_run=True)
        for part in cluster.run(lambda: job.parts_of(namespace, options)):
            due = cluster.run(partial(job.look, namespace, part))
            report.size_bytes += due.size_bytes
            if not due.is_done:
                report.planned.append(f"records of stream:{part.source} up to {due.end}")
        report.units = len(report.planned)
    else:
        journal = open_journal(call, run, "compact-keys", job.arguments(options))
        with open_session(call, run) as session:
            report = job.run(session, connection, options, journal, limits_of(run))
        job.conclude(report)
    write_report(run, report)
    return show(call, run, report)
