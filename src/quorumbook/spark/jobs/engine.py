"""Runs a job's units on Spark: a wave of tasks at a time, what came of it kept before the next.

A wave has as many tasks as run at once, each with about the same bytes to read; it is large enough
that a task's fixed cost is small beside its work, and small enough that little is done twice by
a job that was killed.  Only results leave a task.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from quorumbook import __version__
from quorumbook.client.context import client_context
from quorumbook.errors import ConfigError, QuorumbookError
from quorumbook.spark.connection import Connection
from quorumbook.spark.jobs.frame import JobPlan, Report, Unit, Values, Work
from quorumbook.spark.jobs.journal import JobJournal
from quorumbook.spark.jobs.pace import Pace
from quorumbook.spark.pool import connected

#: What a task of a wave is given at most, unless one unit alone is more.
_TASK_BYTES = 1024 * 1024 * 1024
_TASK_UNITS = 256
_SCHEMA = pa.schema([("key", pa.string()), ("result", pa.string()), ("error", pa.string())])
_COLUMNS = "key string, result string, error string"
MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a job may ask of the cluster."""

    #: Read from, or written to, each bookie; 0 sets no limit.
    max_bookie_mbps: float = 0.0
    #: Requests that a bookie has at once; 0: as many as tasks run.
    max_bookie_inflight: int = 0


def run_plan(
    spark: Any,
    connection: Connection,
    plan: JobPlan,
    journal: JobJournal,
    limits: Limits,
    on_progress: Callable[[int, int], None] = lambda units, size_bytes: None,
) -> Report:
    """Do all units of a plan that are not done yet.

    Args:
        spark: A session, of whatever kind; not looked at where nothing is left.
        connection: Where the cluster is.
        plan: The job.
        journal: Knows what is done.
        limits: What it may ask of bookies.
        on_progress: Runs with the units that were done since the last call, and their bytes.
    """
    keys = {unit.key for unit in plan.units}
    if plan.is_all_left:
        left = list(plan.units)
        done = dict(journal.done)
    else:
        left = [unit for unit in plan.units if unit.key not in journal.done]
        done = {key: result for key, result in journal.done.items() if key in keys}
    size_bytes = sum(unit.size_bytes for unit in plan.units)
    units = len(keys | done.keys())
    report = Report(plan.job, journal.job_id, units=units, size_bytes=size_bytes)
    report.find_done(done)
    at_once = tasks_at_once(spark, limits) if left else 1
    rate_bytes = round(limits.max_bookie_mbps * MEGABYTE / at_once)
    instance_id = connected(connection).instance_id
    for wave in waves(left, at_once):
        results, errors = _run_wave(spark, connection, instance_id, plan.work, wave, rate_bytes)
        journal.add(results)
        report.add(results, errors)
        on_progress(sum(map(len, wave)), sum(unit.size_bytes for task in wave for unit in task))
        if plan.stops_at_findings and any(map(plan.has_findings, results.values())):
            break
    report.judge(plan.has_findings)
    return report


def tasks_at_once(spark: Any, limits: Limits) -> int:
    """Return how many tasks of a job run at once.

    Raises:
        ConfigError: Spark does not say how many it can run.
    """
    try:
        slots = int(spark.sparkContext.defaultParallelism)
    except Exception as error:  # Spark Connect has no such thing, and says so in its own way
        if not limits.max_bookie_inflight:
            raise ConfigError(
                "a remote Spark does not say how many tasks it runs at once: give "
                "--max-bookie-inflight"
            ) from error
        slots = limits.max_bookie_inflight
    return max(1, min(slots, limits.max_bookie_inflight or slots))


def waves(units: Sequence[Unit], at_once: int) -> Iterator[list[list[Unit]]]:
    """Cut units into waves of tasks; each unit comes once, and tasks are about equally large.

    The largest units come first, so that none is left for the end alone.
    """
    left = sorted(units, key=lambda unit: (-unit.size_bytes, unit.key))
    at = 0
    while at < len(left):
        tasks: list[list[Unit]] = [[] for _ in range(at_once)]
        sizes = [0] * at_once
        while at < len(left):
            index = min(range(at_once), key=lambda i: (sizes[i], len(tasks[i])))
            unit = left[at]
            is_full = sizes[index] + unit.size_bytes > _TASK_BYTES
            if tasks[index] and (is_full or len(tasks[index]) >= _TASK_UNITS):
                break
            tasks[index].append(unit)
            sizes[index] += unit.size_bytes
            at += 1
        yield [task for task in tasks if task]


def _run_wave(
    spark: Any,
    connection: Connection,
    instance_id: str,
    work: Work,
    wave: list[list[Unit]],
    rate_bytes: int,
) -> tuple[dict[str, Values], dict[str, str]]:
    shares = [[(unit.key, unit.arguments) for unit in task] for task in wave]
    release = __version__

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        check_executor(release)
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield run_share(connection, instance_id, work, shares[index], rate_bytes)

    frame = spark.range(0, len(wave), 1, len(wave)).mapInArrow(run, _COLUMNS)
    results: dict[str, Values] = {}
    errors: dict[str, str] = {}
    for row in frame.collect():
        if row.error is None:
            results[row.key] = json.loads(row.result)
        else:
            errors[row.key] = row.error
    return results, errors


def check_executor(release: str) -> None:
    """Raise ConfigError unless this executor has the driver's release."""
    if release != __version__:
        raise ConfigError(
            f"the driver has quorumbook {release}, this executor {__version__}: install the same "
            "everywhere"
        )


def run_share(
    connection: Connection,
    instance_id: str,
    work: Work,
    share: Sequence[tuple[str, Values]],
    rate_bytes: int,
) -> pa.RecordBatch:
    """Do one task's units, one after the other; in a process of Spark's."""
    cluster = connected(connection)
    if cluster.instance_id != instance_id:
        raise ConfigError(
            f"the driver works on cluster {instance_id}, but on this executor the metadata URI "
            f"leads to cluster {cluster.instance_id}"
        )
    pace = Pace(client_context(cluster.client).env, rate_bytes)
    rows: list[tuple[str, str | None, str | None]] = []

    async def do(arguments: Mapping[str, Any]) -> Values:
        return await work(cluster, pace, arguments)

    for key, arguments in share:
        try:
            rows.append((key, json.dumps(cluster.run(lambda a=arguments: do(a))), None))  # type: ignore[misc]
        except QuorumbookError as error:
            rows.append((key, None, f"{type(error).__name__}: {error}"))
    columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)
