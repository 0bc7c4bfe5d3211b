"""``quorumbook spark transform`` and ``analytics``: streaming queries over streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from quorumbook.cli.common import Call
from quorumbook.cli.spark.data import parse_span, to_ms
from quorumbook.cli.spark.run import (
    JobCommand,
    JobRun,
    connection_of,
    job_options,
    limits_of,
    open_journal,
    open_session,
    show,
    write_report,
)
from quorumbook.cli.spark.tier import absolute
from quorumbook.cli.stream.options import namespace_option

if TYPE_CHECKING:
    from datetime import datetime

_from = click.option("--from", "source", required=True, metavar="WHAT", help="stream:NAME,NAME.")
_follow = click.option(
    "--follow", "follows", is_flag=True, help="Go on with what comes, until interrupted."
)
_every = click.option(
    "--every", "every_s", metavar="SECONDS", type=click.FloatRange(0), default=10.0,
    show_default=True, help="With --follow: begin a batch so often.",
)  # fmt: skip
_create = click.option("--create-stream", is_flag=True, help="Make the stream if it is missing.")


def run_queries(
    call: Call,
    run: JobRun,
    job: str,
    arguments: dict[str, Any],
    values: dict[str, Any],
    make_frame: Callable[[Any, Any], Any],
    path: str,
) -> int:
    """Run a query, or only plan it.

    Args:
        call: The command's.
        run: What the job was told.
        job: Its name.
        arguments: What its rows depend on.
        values: Of ``QueryOptions``.
        make_frame: Makes the rows of a session and the records.
        path: The namespace.
    """
    from quorumbook.spark.jobs import queries
    from quorumbook.spark.jobs.frame import Report

    connection = connection_of(call, path)
    target = values["target"]
    values["target"] = target if queries.target_stream(target) else absolute(target)
    if run.is_dry_run:
        options = queries.QueryOptions(**values, checkpoint="")
        with open_session(call, run) as session:
            frame = make_frame(session, queries.records(session, connection, options))
            columns = [f"{name} {kind}" for name, kind in frame.dtypes]
            report = Report(job, "", is_dry_run=True, units=1, planned=columns)
    else:
        arguments = {**arguments, **values}
        journal = open_journal(call, run, job, arguments)
        checkpoint = absolute(f"{run.state_dir}/{journal.job_id}.checkpoint")
        options = queries.QueryOptions(**values, checkpoint=checkpoint)
        told = 0

        def progress(rows: int) -> None:
            nonlocal told
            told += rows
            if rows:
                call.note(f"{job}: {told} records")

        with open_session(call, run) as session:
            queries.spread_state(session, limits_of(run))
            frame = make_frame(session, queries.records(session, connection, options))
            if options.stream:
                frame = queries.paced(session, frame, limits_of(run))
            report = queries.run_query(job, frame, connection, options, journal, progress)
        queries.conclude(report)
    write_report(run, report)
    return show(call, run, report, "planned_bytes")


@click.command(cls=JobCommand)
@_from
@click.option("--to", "target", required=True, metavar="WHAT", help="stream:NAME.")
@click.option("--sql", metavar="SQL", default="", help="A query over the view records.")
@click.option(
    "--udf", "function_file", metavar="FILE", default="",
    help="A Python file with a function transform(frame).",
)  # fmt: skip
@click.option("--range", "span", metavar="FIRST-LAST", default="", help="Only these sequence ids.")
@click.option(
    "--since", type=click.DateTime(), metavar="TIME", help="Only records appended from then on."
)
@click.option("--until", type=click.DateTime(), metavar="TIME", help="Only those from before.")
@_create
@_follow
@_every
@namespace_option
@click.pass_obj
@job_options
def transform(
    call: Call,
    run: JobRun,
    source: str,
    target: str,
    sql: str,
    function_file: str,
    span: str,
    since: datetime | None,
    until: datetime | None,
    create_stream: bool,
    follows: bool,
    every_s: float,
    path: str,
) -> int:
    """Write the records of streams, as they are or through SQL or Python, to another stream."""
    from quorumbook.spark.jobs.data import transform as job
    from quorumbook.spark.jobs.streams import stream_name

    stream_name("--to", target)  # says whether it is one
    first, last = parse_span(span)
    own: dict[str, Any] = {
        "sql": sql, "function_file": absolute(function_file) if function_file else "",
        "until_ms": to_ms(until), "first": first, "last": last,
    }  # fmt: skip
    values = {
        "source": source, "target": target, "creates_stream": create_stream,
        "since_ms": to_ms(since), "follows": follows, "every_s": every_s,
    }  # fmt: skip
    return run_queries(
        call, run, "transform", own, values,
        lambda session, records: job.frame_of(session, records, **own), path,
    )  # fmt: skip


@click.command(cls=JobCommand)
@_from
@click.option(
    "--to", "target", required=True, metavar="WHAT",
    help="stream:NAME, or a directory of Parquet files.",
)  # fmt: skip
@click.option("--schema", required=True, metavar="DDL", help="The fields of the records' JSON.")
@click.option("--time", required=True, metavar="FIELD", help="When it happened.")
@click.option("--window", required=True, metavar="DURATION", help='Such as "10 minutes".')
@click.option("--slide", metavar="DURATION", default="", help="Begin a window so often.")
@click.option(
    "--watermark", metavar="DURATION", default="0 seconds", show_default=True,
    help="How late events may be.",
)  # fmt: skip
@click.option("--group-by", multiple=True, metavar="FIELD", help="May be repeated.")
@click.option(
    "--measure", "measures", multiple=True, default=("count(*) AS count",), metavar="SQL",
    show_default=True, help="Such as avg(delay) AS delay; may be repeated.",
)  # fmt: skip
@_create
@_follow
@_every
@namespace_option
@click.pass_obj
@job_options
def analytics(
    call: Call,
    run: JobRun,
    source: str,
    target: str,
    create_stream: bool,
    follows: bool,
    every_s: float,
    path: str,
    **window: Any,
) -> int:
    """Compute measures over windows of event time, and write each window's once it is complete."""
    from quorumbook.spark.jobs.data import analytics as job
    from quorumbook.spark.jobs.streams import is_stream

    options = job.WindowOptions(**window)
    values = {
        "source": source, "target": target, "creates_stream": create_stream, "since_ms": None,
        "follows": follows, "every_s": every_s,
    }  # fmt: skip
    arguments = {name: list(v) if isinstance(v, tuple) else v for name, v in window.items()}
    return run_queries(
        call, run, "analytics", arguments, values,
        lambda session, records: job.frame_of(records, options, as_json=is_stream(target)), path,
    )  # fmt: skip
