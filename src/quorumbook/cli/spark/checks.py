"""``quorumbook spark audit``, ``usage``, ``fsck-meta``, ``gc-orphans``: looking after a cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from quorumbook.cli.common import Call
from quorumbook.cli.spark.run import (
    JobCommand,
    JobRun,
    job_options,
    ledger_ids,
    of_namespace,
    run_job,
    show,
)
from quorumbook.cli.stream.options import namespace_option

_ROWS = ("severity", "kind", "ledger_id", "first_entry_id", "last_entry_id", "entries",
         "bookie_id", "detail")  # fmt: skip


@click.command(cls=JobCommand)
@click.option("--ledgers", metavar="IDS", default="", help="Only these; ids with commas between.")
@click.option("--bookie", default="", help="Only ledgers of which this one holds something.")
@click.option(
    "--sample", "sample_percent", type=click.FloatRange(0, 100), default=100.0, show_default=True,
    metavar="PERCENT", help="Of all ranges of entries, so many.",
)  # fmt: skip
@click.option("--fail-fast", is_flag=True, help="Begin nothing more once something was found.")
@click.option("--out", metavar="FILE", help="Write the findings as JSON lines.")
@click.pass_obj
@job_options
def audit(
    call: Call,
    run: JobRun,
    ledgers: str,
    bookie: str,
    sample_percent: float,
    fail_fast: bool,
    out: str | None,
) -> int:
    """Read every copy of every entry on its bookie, verify it, and compare it with the others."""
    from quorumbook.spark.jobs.upkeep import audit as job

    ids = ledger_ids(ledgers)
    report = run_job(
        call,
        run,
        {"ledgers": ids, "bookie": bookie, "sample": sample_percent},
        lambda client: job.plan(
            client, ledgers=ids, bookie=bookie, sample_percent=sample_percent, fail_fast=fail_fast
        ),
        job.conclude,
    )
    rows: Sequence[Mapping[str, Any]] = report.summary.get("rows", [])
    if out is not None and not run.is_dry_run:
        with open(out, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    if run.json_report != "-" and rows:
        call.output.rows(rows, _ROWS)
        return report.exit_code
    return show(call, run, report)


@click.command(cls=JobCommand)
@click.option(
    "--group-by", type=click.Choice(("bookie", "stream", "application", "day", "state")),
    default="bookie", show_default=True, help="What is counted together.",
)  # fmt: skip
@click.pass_obj
@job_options
def usage(call: Call, run: JobRun, group_by: str) -> int:
    """Count what is stored by whom and where, from the metadata alone."""
    from quorumbook.spark.jobs.upkeep import usage as job

    report = run_job(
        call, run, {"group_by": group_by}, lambda client: job.plan(client, group_by), job.conclude
    )
    rows = report.summary.get("rows", [])
    if run.json_report != "-" and not run.is_dry_run:
        columns = ("group", "ledgers", "open_ledgers", "entries", "bytes", "copies", "stored_bytes")
        call.output.rows(rows, columns, empty="there are no ledgers")
        lost = report.summary["bytes_on_lost_bookies"]
        call.note(f"skew {report.summary['skew']}, {lost:,} bytes on bookies that are not there")
        return report.exit_code
    return show(call, run, report)


@click.command(cls=JobCommand)
@click.option("--fix", is_flag=True, help="Mend what can be mended without harm.")
@click.option(
    "--min-age", "min_age_s", metavar="SECONDS", type=click.FloatRange(0), default=3600.0,
    show_default=True, help="Let younger ledgers be that nothing names.",
)  # fmt: skip
@namespace_option
@click.pass_obj
@job_options
def fsck_meta(call: Call, run: JobRun, fix: bool, min_age_s: float, path: str) -> int:
    """Compare the metadata of ledgers, streams and bookies with each other."""
    from quorumbook.spark.jobs.upkeep import fsck_meta as job

    report = run_job(
        call,
        run,
        {"fix": fix, "min_age_s": min_age_s, "namespace": path},
        of_namespace(call, path, lambda ns: job.plan(ns, fix=fix, min_age_s=min_age_s)),
        job.conclude,
        namespace=path,
    )
    rows = report.summary.get("rows", [])
    if run.json_report != "-" and rows:
        call.output.rows(rows, ("kind", "subject", "detail", "fixed"))
        return report.exit_code
    return show(call, run, report)


@click.command(cls=JobCommand)
@click.option(
    "--ttl", "ttl_s", metavar="SECONDS", type=click.FloatRange(0), default=86400.0,
    show_default=True, help="What nobody touched for so long is nobody's any more.",
)  # fmt: skip
@click.option(
    "--txn-root", "root", metavar="PATH", help="Where applications are in the metadata tree."
)
@namespace_option
@click.pass_obj
@job_options
def gc_orphans(call: Call, run: JobRun, ttl_s: float, root: str | None, path: str) -> int:
    """Delete what transactions wrote that can never be committed any more."""
    from quorumbook.spark.jobs.upkeep import gc_orphans as job

    where = root or ""
    report = run_job(
        call,
        run,
        {"ttl_s": ttl_s, "root": where, "namespace": path},
        of_namespace(call, path, lambda namespace: job.plan(namespace, root=where, ttl_s=ttl_s)),
        job.conclude,
        namespace=path,
    )
    return show(call, run, report)
