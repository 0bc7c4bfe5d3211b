"""``quorumbook spark compact-segments`` and ``compact-keys``: streams that take less."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from quorumbook.cli.call import Call
from quorumbook.cli.spark.run import (
    JobRun,
    connection_of,
    job_command,
    limits_of,
    open_journal,
    open_session,
    run_stream_job,
    show,
    write_report,
)
from quorumbook.spark.jobs.options import CompactKeysOptions, CompactOptions


@job_command(CompactOptions)
def compact_segments(call: Call, run: JobRun, options: CompactOptions) -> int:
    """Merge small completed segments of streams into large ones."""
    from quorumbook.spark.jobs.upkeep import compact_segments as job

    report = run_stream_job(
        call, run, options, lambda namespace: job.plan(namespace, options), job.conclude
    )
    return show(call, run, report)


@job_command(CompactKeysOptions)
def compact_keys(call: Call, run: JobRun, options: CompactKeysOptions) -> int:
    """Write the latest record of each key of a stream into another one, in place of what it had."""
    from quorumbook.spark.jobs.data import compact_keys as job
    from quorumbook.spark.jobs.frame import Report
    from quorumbook.spark.jobs.streams import stream_name
    from quorumbook.spark.pool import connected

    options = replace(
        options,
        source=stream_name("--from", options.source),
        target=stream_name("--to", options.target),
    )
    connection = connection_of(call, options.namespace)
    if run.is_dry_run:
        cluster = connected(connection)
        namespace = cluster.namespace()
        report = Report("compact-keys", "", is_dry_run=True)
        for part in cluster.run(lambda: job.parts_of(namespace, options)):
            due = cluster.run(partial(job.look, namespace, part))
            if not due.is_done:
                report.plan(f"records of stream:{part.source} up to {due.end}", due.size_bytes)
    else:
        journal = open_journal(call, run, "compact-keys", options.arguments())
        with open_session(call, run) as session:
            report = job.run(session, connection, options, journal, limits_of(run))
        job.conclude(report)
    write_report(run, report)
    return show(call, run, report)
