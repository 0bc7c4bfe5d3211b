"""``quorumbook spark offload``, ``restore`` and ``tier-verify``: segments as Parquet files."""

from __future__ import annotations

from dataclasses import replace

from quorumbook.cli.call import Call
from quorumbook.cli.spark.run import JobRun, job_command, run_stream_job, show
from quorumbook.spark.jobs.options import OffloadOptions, RestoreOptions, SomeStreamsOptions


@job_command(OffloadOptions)
def offload(call: Call, run: JobRun, options: OffloadOptions) -> int:
    """Copy completed segments into Parquet files, and later delete the bookies' copies."""
    from quorumbook.spark.jobs.upkeep import tier

    options = replace(options, to=absolute(options.to))
    report = run_stream_job(
        call, run, options, lambda namespace: tier.plan_offload(namespace, options), tier.conclude
    )
    return show(call, run, report)


@job_command(RestoreOptions)
def restore(call: Call, run: JobRun, options: RestoreOptions) -> int:
    """Bring offloaded segments back to bookies, byte by byte, and remove their files."""
    from quorumbook.spark.jobs.upkeep import tier

    report = run_stream_job(
        call,
        run,
        options,
        lambda ns: tier.plan_restore(ns, options.streams, options.segment_numbers),
        tier.conclude,
    )
    return show(call, run, report, "files", "file_bytes", "bookie_copies_deleted")


@job_command(SomeStreamsOptions)
def tier_verify(call: Call, run: JobRun, options: SomeStreamsOptions) -> int:
    """Read the files of offloaded segments again and recompute every digest."""
    from quorumbook.spark.jobs.upkeep import tier

    report = run_stream_job(
        call, run, options, lambda ns: tier.plan_verify(ns, options.streams), tier.conclude
    )
    for row in report.summary.get("rows", []):
        call.warn("copies-differ", f"{row['segment']}: {row['problem']}")
    return show(call, run, report, "bookie_copies_deleted")


def absolute(place: str) -> str:
    """Return a path as executors need it, who have another working directory; a URI as it is.

    Raises:
        ConfigError: the URI has credentials in it.
    """
    import os

    from quorumbook.streams.tier.places import check_uri

    check_uri(place)
    return place if "://" in place else os.path.abspath(place)
