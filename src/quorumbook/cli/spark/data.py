"""``quorumbook spark ingest`` and ``export``: data into a cluster, and out of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from quorumbook.cli.call import Call
from quorumbook.cli.spark.run import (
    JobRun,
    connection_of,
    job_command,
    limits_of,
    of_namespace,
    open_journal,
    open_session,
    run_job,
    show,
    write_report,
)
from quorumbook.cli.spark.tier import absolute
from quorumbook.errors import ConfigError
from quorumbook.spark.jobs.options import ExportOptions, IngestOptions

if TYPE_CHECKING:
    from quorumbook import BookKeeper
    from quorumbook.spark.jobs.frame import JobPlan


@job_command(ExportOptions)
def export(call: Call, run: JobRun, options: ExportOptions) -> int:
    """Write ledgers or streams into Parquet, JSON or CSV files."""
    from quorumbook.spark.jobs.data import export as job
    from quorumbook.spark.jobs.streams import some_or_all
    from quorumbook.spark.request.selection import parse_ledger_ids

    options = replace(options, out=absolute(options.out))
    kind, _, rest = options.source.partition(":")
    is_ledgers = kind == "ledger" and bool(rest)
    if is_ledgers and (options.since or options.until):
        raise ConfigError("--since and --until are for streams: entries have no time")
    how = "stream:NAME,NAME, stream:* or ledger:ID,FIRST-LAST"
    names = () if is_ledgers else some_or_all("--from", options.source, how)
    path = options.namespace

    async def planned(client: BookKeeper) -> JobPlan:
        if is_ledgers:
            return await job.plan_ledgers(client, parse_ledger_ids(rest), options)
        plan = of_namespace(call, path, lambda ns: job.plan_streams(ns, names, options))
        return await plan(client)

    report = run_job(call, run, options.arguments(), planned, job.conclude, namespace=path)
    return show(call, run, report)


@job_command(IngestOptions)
def ingest(call: Call, run: JobRun, options: IngestOptions) -> int:
    """Write files or a table into a stream or into ledgers, each row once."""
    from quorumbook.spark.jobs.data import ingest as job
    from quorumbook.spark.jobs.frame import Report

    if options.source:
        options = replace(options, source=absolute(options.source))
    elif options.format != "jdbc":
        raise ConfigError("--src is missing: the files to read")
    job.stream_of(options)  # says whether --to is one
    connection = connection_of(call, options.namespace)
    if run.is_dry_run:
        with open_session(call, run) as session:
            frame = job.frame_of(session, options)
            report = Report("ingest", "", is_dry_run=True, units=1, planned=frame.inputFiles())
    else:
        journal = open_journal(call, run, "ingest", options.arguments())
        with open_session(call, run) as session:
            report = job.run(session, connection, options, journal, limits_of(run))
        job.conclude(report)
    write_report(run, report)
    return show(call, run, report, "planned_bytes")
