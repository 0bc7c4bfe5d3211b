"""``compact-segments``: many small completed segments of a stream become few large ones.

A unit is one stream that has some; what is merged is planned anew by the task that does it, step
by step (``streams.compaction``).  A job that was killed is simply given again: what its last step
had copied is found by ``gc-orphans``, and the stream is as one of the steps left it.
"""

from __future__ import annotations

from quorumbook.spark.jobs.frame import JobPlan, Report, Unit, Values
from quorumbook.spark.jobs.options import CompactOptions
from quorumbook.spark.jobs.pace import Pace
from quorumbook.spark.jobs.streams import chosen_streams
from quorumbook.spark.pool import ClusterClient
from quorumbook.streams import Namespace
from quorumbook.streams.compaction import Compaction
from quorumbook.streams.stream_context import stream_context
from quorumbook.streams.transactions import Place


async def plan(namespace: Namespace, options: CompactOptions) -> JobPlan:
    """Return the streams that have something to be merged."""
    units = []
    arguments = {
        "target_bytes": options.target_bytes, "older_than_s": options.older_than_s,
        "keep_s": options.keep_s,
    }  # fmt: skip
    for name in await chosen_streams(namespace, options.streams):
        work = _compaction(namespace, name, options.keep_s)
        rules = await work.rules(
            target_bytes=options.target_bytes, older_than_s=options.older_than_s
        )
        merge = await work.plan(rules)
        if merge is not None:
            units.append(Unit(name, merge.size_bytes, {"stream": name, **arguments}))
    return JobPlan("compact-segments", units, compact, is_all_left=True)


def _compaction(
    namespace: Namespace, name: str, keep_s: float, pace: Pace | None = None
) -> Compaction:
    context = stream_context(namespace.stream(name))
    place = Place(namespace.client, namespace)
    if pace is None:
        return Compaction(place, context, keep_s=keep_s)
    return Compaction(place, context, keep_s=keep_s, pace=pace.take)


async def compact(cluster: ClusterClient, pace: Pace, arguments: Values) -> Values:
    """Merge what there is to be merged of one stream."""
    namespace = await cluster.opened_namespace()
    work = _compaction(namespace, arguments["stream"], arguments["keep_s"], pace)
    rules = await work.rules(
        target_bytes=arguments["target_bytes"], older_than_s=arguments["older_than_s"]
    )
    steps = await work.run(rules)
    return {
        "merged": sum(step.segments for step in steps),
        "made": len(steps),
        "records": sum(step.records for step in steps),
        "bytes": sum(step.size_bytes for step in steps),
    }


def conclude(report: Report) -> None:
    """Sum the results up."""
    results = report.results.values()
    for name, title in (
        ("merged", "segments_merged"),
        ("made", "segments_made"),
        ("records", "records_copied"),
        ("bytes", "bytes_copied"),
    ):
        report.summary[title] = sum(result[name] for result in results)
