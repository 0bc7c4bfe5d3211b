"""``quorumbook spark ingest`` and ``export``: data into a cluster, and out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    write_report,
)
from quorumbook.cli.spark.tier import absolute
from quorumbook.cli.stream.options import namespace_option
from quorumbook.errors import ConfigError

if TYPE_CHECKING:
    from datetime import datetime

    from quorumbook import BookKeeper
    from quorumbook.spark.jobs.frame import JobPlan


@click.command(cls=JobCommand)
@click.option(
    "--from", "source", required=True, metavar="WHAT",
    help="stream:NAME,NAME, stream:* or ledger:ID,FIRST-LAST.",
)  # fmt: skip
@click.option("--out", required=True, metavar="DIR", help="Path or URI of a directory.")
@click.option(
    "--format", "form", type=click.Choice(("parquet", "jsonl", "csv")), default="parquet",
    show_default=True, help="What files are written.",
)  # fmt: skip
@click.option(
    "--encoding", type=click.Choice(("text", "base64")), default="text", show_default=True,
    help="How bytes stand in JSON and CSV.",
)  # fmt: skip
@click.option(
    "--range", "span", metavar="FIRST-LAST", default="",
    help="Only these sequence ids of records, or ids of entries.",
)  # fmt: skip
@click.option(
    "--since", type=click.DateTime(), metavar="TIME", help="Only records appended from then on."
)
@click.option("--until", type=click.DateTime(), metavar="TIME", help="Only those from before.")
@namespace_option
@click.pass_obj
@job_options
def export(
    call: Call,
    run: JobRun,
    source: str,
    out: str,
    form: str,
    encoding: str,
    span: str,
    since: datetime | None,
    until: datetime | None,
    path: str,
) -> int:
    """Write ledgers or streams into Parquet, JSON or CSV files."""
    from quorumbook.spark.jobs.data import export as job
    from quorumbook.spark.jobs.streams import some_or_all
    from quorumbook.spark.request.selection import parse_ledger_ids

    first, last = parse_span(span)
    options = job.ExportOptions(
        out=absolute(out), format=form, encoding=encoding, first=first, last=last,
        since_ms=to_ms(since), until_ms=to_ms(until),
    )  # fmt: skip
    kind, _, rest = source.partition(":")
    is_ledgers = kind == "ledger" and bool(rest)
    if is_ledgers and (since or until):
        raise ConfigError("--since and --until are for streams: entries have no time")
    how = "stream:NAME,NAME, stream:* or ledger:ID,FIRST-LAST"
    names = () if is_ledgers else some_or_all("--from", source, how)

    async def planned(client: BookKeeper) -> JobPlan:
        if is_ledgers:
            return await job.plan_ledgers(client, parse_ledger_ids(rest), options)
        plan = of_namespace(call, path, lambda ns: job.plan_streams(ns, names, options))
        return await plan(client)

    arguments = {"from": source, **options.arguments()}
    report = run_job(call, run, arguments, planned, job.conclude, namespace=path)
    return show(call, run, report)


def parse_span(text: str) -> tuple[int, int | None]:
    """Read FIRST-LAST, of which either may be missing.

    Raises:
        ConfigError: it is not of that form.
    """
    first, dash, last = text.partition("-")
    if (text and not dash) or not (first or "0").isdigit() or not (last or "0").isdigit():
        raise ConfigError(f"--range {text}: FIRST-LAST, of which either may be missing")
    return int(first or 0), int(last) if last else None


def to_ms(time: datetime | None) -> int | None:
    """Return a time of this place in milliseconds since 1970."""
    return None if time is None else int(time.astimezone().timestamp() * 1000)


@click.command(cls=JobCommand)
@click.option("--src", "source", metavar="PATH", default="", help="Files, with wildcards; a URI.")
@click.option(
    "--format", "form", type=click.Choice(("csv", "json", "parquet", "orc", "text", "jdbc")),
    required=True, help="What is read.",
)  # fmt: skip
@click.option(
    "--option", "words", metavar="KEY=VALUE", multiple=True, help="An option of Spark's reader."
)
@click.option("--schema", metavar="DDL", default="", help="Columns and types, as in SQL.")
@click.option("--to", "target", required=True, metavar="WHAT", help="stream:NAME, or ledger.")
@click.option(
    "--value", metavar="COLUMN", default="",
    help="The column that is the payload; otherwise the row as JSON, of text the line.",
)  # fmt: skip
@click.option("--key", metavar="COLUMN", default="", help="The column that is the record's key.")
@click.option("--order-by", metavar="COLUMNS", default="", help="Write rows in this order.")
@click.option("--create-stream", is_flag=True, help="Make the stream if it is not there.")
@click.option(
    "--txn", metavar="NAME", default="",
    help="Under this name it is written once, however often the command is given.",
)  # fmt: skip
@namespace_option
@click.pass_obj
@job_options
def ingest(
    call: Call,
    run: JobRun,
    source: str,
    form: str,
    words: tuple[str, ...],
    schema: str,
    target: str,
    value: str,
    key: str,
    order_by: str,
    create_stream: bool,
    txn: str,
    path: str,
) -> int:
    """Write files or a table into a stream or into ledgers, each row once."""
    from quorumbook.spark.jobs.data import ingest as job
    from quorumbook.spark.jobs.frame import Report

    if any("=" not in word for word in words):
        raise ConfigError(f"--option {' '.join(words)}: KEY=VALUE")
    if not source and form != "jdbc":
        raise ConfigError("--src is missing: the files to read")
    options = job.IngestOptions(
        source=absolute(source) if source else "", format=form,
        reader_options=dict(word.split("=", 1) for word in words), schema=schema, target=target,
        value=value, key=key, order_by=order_by, creates_stream=create_stream, txn=txn,
    )  # fmt: skip
    options.stream  # noqa: B018 - says whether --to is one
    connection = connection_of(call, path)
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
