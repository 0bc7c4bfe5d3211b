"""``quorumbook spark transform`` and ``analytics``: streaming queries over streams."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from quorumbook.cli.call import Call
from quorumbook.cli.spark.run import (
    JobRun,
    connection_of,
    job_command,
    limits_of,
    open_journal,
    open_session,
    show,
    write_report,
)
from quorumbook.cli.spark.tier import absolute
from quorumbook.spark.jobs.options import AnalyticsOptions, QueryOptions, TransformOptions

Q = TypeVar("Q", bound=QueryOptions)


def run_queries(
    call: Call, run: JobRun, job: str, options: Q, frame_of: Callable[[Any, Any, Q], Any]
) -> int:
    """Run a query, or only plan it.

    Args:
        call: The command's.
        run: What the job was told.
        job: Its name.
        options: What this one is told.
        frame_of: Makes the rows of a session, the records and the options.
    """
    from quorumbook.spark.jobs import queries
    from quorumbook.spark.jobs.frame import Report

    connection = connection_of(call, options.namespace)
    target = queries.target_stream(options.target)
    if not target:
        options = dataclasses.replace(options, target=absolute(options.target))
    if run.is_dry_run:
        with open_session(call, run) as session:
            frame = frame_of(session, queries.records(session, connection, options), options)
            columns = [f"{name} {kind}" for name, kind in frame.dtypes]
            report = Report(job, "", is_dry_run=True, units=1, planned=columns)
    else:
        journal = open_journal(call, run, job, options.arguments())
        checkpoint = absolute(f"{run.state_dir}/{journal.job_id}.checkpoint")
        told = 0

        def progress(rows: int) -> None:
            nonlocal told
            told += rows
            if rows:
                call.note(f"{job}: {told} records")

        with open_session(call, run) as session:
            queries.spread_state(session, limits_of(run))
            frame = frame_of(session, queries.records(session, connection, options), options)
            if target:
                frame = queries.paced(session, frame, limits_of(run))
            report = queries.run_query(
                job, frame, connection, options, checkpoint, journal, progress
            )
        queries.conclude(report)
    write_report(run, report)
    return show(call, run, report, "planned_bytes")


@job_command(TransformOptions)
def transform(call: Call, run: JobRun, options: TransformOptions) -> int:
    """Write the records of streams, as they are or through SQL or Python, to another stream."""
    from quorumbook.spark.jobs.data import transform as job
    from quorumbook.spark.jobs.streams import stream_name

    stream_name("--to", options.target)  # says whether it is one
    if options.function_file:
        options = dataclasses.replace(options, function_file=absolute(options.function_file))
    return run_queries(call, run, "transform", options, job.frame_of)


@job_command(AnalyticsOptions)
def analytics(call: Call, run: JobRun, options: AnalyticsOptions) -> int:
    """Compute measures over windows of event time, and write each window's once it is complete."""
    from quorumbook.spark.jobs.data import analytics as job

    return run_queries(call, run, "analytics", options, job.frame_of)
