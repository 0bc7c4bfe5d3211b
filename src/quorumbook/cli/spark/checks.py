"""``quorumbook spark audit``, ``usage``, ``fsck-meta``, ``gc-orphans``: looking after a cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from quorumbook.cli.call import Call
from quorumbook.cli.spark.run import JobRun, job_command, run_job, run_stream_job, show
from quorumbook.spark.jobs.options import AuditOptions, FsckOptions, OrphanOptions, UsageOptions

_ROWS = ("severity", "kind", "ledger_id", "first_entry_id", "last_entry_id", "entries",
         "bookie_id", "detail")  # fmt: skip


@job_command(AuditOptions)
def audit(call: Call, run: JobRun, options: AuditOptions) -> int:
    """Read every copy of every entry on its bookie, verify it, and compare it with the others."""
    from quorumbook.spark.jobs.upkeep import audit as job

    report = run_job(
        call, run, options.arguments(), lambda client: job.plan(client, options), job.conclude
    )
    rows: Sequence[Mapping[str, Any]] = report.summary.get("rows", [])
    if options.out and not run.is_dry_run:
        with open(options.out, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    if run.json_report != "-" and rows:
        call.output.rows(rows, _ROWS)
        return report.exit_code
    return show(call, run, report)


@job_command(UsageOptions)
def usage(call: Call, run: JobRun, options: UsageOptions) -> int:
    """Count what is stored by whom and where, from the metadata alone."""
    from quorumbook.spark.jobs.upkeep import usage as job

    report = run_job(
        call, run, options.arguments(), lambda client: job.plan(client, options), job.conclude
    )
    rows = report.summary.get("rows", [])
    if run.json_report != "-" and not run.is_dry_run:
        columns = ("group", "ledgers", "open_ledgers", "entries", "bytes", "copies", "stored_bytes")
        call.output.rows(rows, columns, empty="there are no ledgers")
        lost = report.summary["bytes_on_lost_bookies"]
        call.note(f"skew {report.summary['skew']}, {lost:,} bytes on bookies that are not there")
        return report.exit_code
    return show(call, run, report)


@job_command(FsckOptions)
def fsck_meta(call: Call, run: JobRun, options: FsckOptions) -> int:
    """Compare the metadata of ledgers, streams and bookies with each other."""
    from quorumbook.spark.jobs.upkeep import fsck_meta as job

    report = run_stream_job(
        call, run, options, lambda namespace: job.plan(namespace, options), job.conclude
    )
    rows = report.summary.get("rows", [])
    if run.json_report != "-" and rows:
        call.output.rows(rows, ("kind", "subject", "detail", "fixed"))
        return report.exit_code
    return show(call, run, report)


@job_command(OrphanOptions)
def gc_orphans(call: Call, run: JobRun, options: OrphanOptions) -> int:
    """Delete what transactions wrote that can never be committed any more."""
    from quorumbook.spark.jobs.upkeep import gc_orphans as job

    report = run_stream_job(
        call, run, options, lambda namespace: job.plan(namespace, options), job.conclude
    )
    return show(call, run, report)
