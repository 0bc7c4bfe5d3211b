"""``quorumbook spark offload``, ``restore`` and ``tier-verify``: segments as Parquet files."""

from __future__ import annotations

import click

from quorumbook.cli.common import Call
from quorumbook.cli.spark.run import (
    JobCommand,
    JobRun,
    job_options,
    of_namespace,
    run_job,
    show,
    streams_option,
)
from quorumbook.cli.stream.options import namespace_option

_HOURS_S = 3600.0


@click.command(cls=JobCommand)
@click.option("--to", metavar="DIR", required=True, help="Path or URI that all can reach.")
@streams_option
@click.option(
    "--older-than", "older_than_s", metavar="SECONDS", type=click.FloatRange(0), default=0.0,
    help="Only segments that were completed so long ago.",
)  # fmt: skip
@click.option(
    "--min-bytes", type=click.IntRange(0), default=0, help="Only segments with so many bytes."
)
@click.option(
    "--delete-lag", "delete_lag_s", metavar="SECONDS", type=click.FloatRange(0),
    default=4 * _HOURS_S, show_default=True,
    help="Keep the bookies' copy for so long; a later run deletes it.",
)  # fmt: skip
@namespace_option
@click.pass_obj
@job_options
def offload(
    call: Call,
    run: JobRun,
    to: str,
    streams: tuple[str, ...],
    older_than_s: float,
    min_bytes: int,
    delete_lag_s: float,
    path: str,
) -> int:
    """Copy completed segments into Parquet files, and later delete the bookies' copies."""
    from quorumbook.spark.jobs.upkeep import tier

    arguments = {"to": to, "streams": list(streams), "delete_lag_s": delete_lag_s}
    report = run_job(
        call,
        run,
        {**arguments, "older_than_s": older_than_s, "min_bytes": min_bytes},
        of_namespace(
            call,
            path,
            lambda namespace: tier.plan_offload(
                namespace,
                streams,
                to=absolute(to),
                older_than_s=older_than_s,
                min_bytes=min_bytes,
                delete_lag_s=delete_lag_s,
            ),
        ),
        tier.conclude,
        namespace=path,
    )
    return show(call, run, report)


@click.command(cls=JobCommand)
@streams_option
@click.option("--segment", "segments", type=int, multiple=True, help="Only these numbers.")
@namespace_option
@click.pass_obj
@job_options
def restore(
    call: Call, run: JobRun, streams: tuple[str, ...], segments: tuple[int, ...], path: str
) -> int:
    """Bring offloaded segments back to bookies, byte by byte, and remove their files."""
    from quorumbook.spark.jobs.upkeep import tier

    report = run_job(
        call,
        run,
        {"streams": list(streams), "segments": list(segments)},
        of_namespace(call, path, lambda ns: tier.plan_restore(ns, streams, segments)),
        tier.conclude,
        namespace=path,
    )
    return show(call, run, report, "files", "file_bytes", "bookie_copies_deleted")


@click.command(cls=JobCommand)
@streams_option
@namespace_option
@click.pass_obj
@job_options
def tier_verify(call: Call, run: JobRun, streams: tuple[str, ...], path: str) -> int:
    """Read the files of offloaded segments again and recompute every digest."""
    from quorumbook.spark.jobs.upkeep import tier

    report = run_job(
        call,
        run,
        {"streams": list(streams)},
        of_namespace(call, path, lambda namespace: tier.plan_verify(namespace, streams)),
        tier.conclude,
        namespace=path,
    )
    for row in report.summary.get("rows", []):
        call.note(f"{row['segment']}: {row['problem']}")
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
