"""``quorumbook spark xcluster``: streams copied to another cluster, and compared with it."""

from __future__ import annotations

from dataclasses import replace

from quorumbook.cli.call import Call
from quorumbook.cli.spark.run import (
    JobRun,
    connection_of,
    job_command,
    run_following,
    run_planned,
    show,
    tell,
)
from quorumbook.spark.jobs.options import CrossClusterOptions


@job_command(CrossClusterOptions)
def xcluster(call: Call, run: JobRun, options: CrossClusterOptions) -> int:
    """Copy streams to another cluster, each record once, or compare the copies."""
    from quorumbook.spark.jobs.data import xcluster as job
    from quorumbook.spark.jobs.frame import Report
    from quorumbook.spark.jobs.streams import some_or_all
    from quorumbook.spark.pool import connected

    names = some_or_all("--from", options.source)
    connection = connection_of(call, options.namespace)
    there = connection_of(
        call, options.to_namespace or options.namespace, metadata_uri=options.to_metadata
    )
    if options.to_config:
        there = replace(there, config_file=options.to_config)
    here, other = connected(connection), connected(there)

    def work(job_id: str) -> job.CrossCluster:
        return job.CrossCluster(here, other, names, job_id=job_id, max_bytes=options.batch_bytes)

    if options.verifies:
        from quorumbook.spark.jobs.data import xcluster_verify as verification

        plan = here.run(lambda: verification.plan_verify(here, other, names))
        report = run_planned(
            call, run, options.arguments(), plan, verification.conclude, connection
        )
        for row in report.summary.get("rows", []):
            call.warn("copies-differ", f"{row['stream']}: record {row['seq']}: {row['what']}")
    elif run.is_dry_run:
        due = work("").look()
        report = Report(
            "xcluster",
            "",
            is_dry_run=True,
            planned=[f"{d.stream} from record {max(d.sequence_id, 0)} on" for d in due],
            units=sum(len(d.splits) for d in due),
            size_bytes=sum(split.size_bytes for d in due for split in d.splits),
        )
    else:
        report = run_following(call, run, "xcluster", options, work, connection)
    tell(call, run, report)
    return show(call, run, report)
