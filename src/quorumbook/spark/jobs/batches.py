"""Jobs that follow streams in batches, and keep how far they are with what they write.

``lake-sink`` and ``xcluster`` are such jobs.  A batch is planned from what the target says, run as
any job's units, and taken in by the target in one step that also says how far it is then.  So a
job goes on at the very record after any end, also where nothing but the target is left of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from quorumbook.env.tasks import AT_ONCE, gather_bounded
from quorumbook.spark.connection import Connection
from quorumbook.spark.jobs.engine import Limits, run_plan
from quorumbook.spark.jobs.frame import JobPlan, Report, Values
from quorumbook.spark.jobs.journal import JobJournal
from quorumbook.spark.request.offsets import Reached
from quorumbook.streams import Namespace, SequenceId, Split
from quorumbook.streams.errors import DataLossError, PositionTruncatedError, TransactionLostError
from quorumbook.streams.reading.snapshot import take_snapshot
from quorumbook.streams.stream_context import stream_context

#: What one task reads, about.
_SPLIT_BYTES = 64 * 1024 * 1024
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Due:
    """What of one stream is in the next batch."""

    stream: str
    birth: int
    #: Of the first record; below 0 where the first that is there will do.
    sequence_id: int
    splits: Sequence[Split]


class Batches(Protocol):
    """One such job."""

    @property
    def job(self) -> str:
        """Its name."""
        ...

    def plan(self) -> JobPlan | None:
        """Return the next batch; None: nothing is due now."""
        ...

    def commit(self, results: Mapping[str, Values]) -> bool:
        """Have the target take in the batch that was planned last; False: nothing is in it.

        Args:
            results: By the keys of its units.
        """
        ...

    def conclude(self, report: Report) -> None:
        """Sum up what was done."""
        ...


def run_batches(
    spark: Any,
    connection: Connection,
    work: Batches,
    journal: JobJournal,
    limits: Limits,
    *,
    every_s: float | None,
    on_progress: Callable[[int, int], None] = lambda units, size_bytes: None,
) -> Report:
    """Run batch after batch until nothing is due, or until interrupted.

    Args:
        spark: A session.
        connection: Where the streams are.
        work: The job.
        journal: Knows which units of the next batch are done.
        limits: What it may ask of bookies.
        every_s: Where nothing is due, look again so often; None: end.
        on_progress: Runs with the units that were done since the last call, and their bytes.
    """
    total = Report(work.job, journal.job_id)
    try:
        while not total.errors:
            plan = work.plan()
            is_over = plan is None
            if plan is not None:
                report = run_plan(spark, connection, plan, journal, limits, on_progress)
                total.add_batch(report)
                # There may be nothing but what writers note for themselves.
                is_over = not report.errors and not _take_in(work, report.results, journal)
                if not report.errors:
                    journal.forget()
            if is_over:
                if every_s is None:
                    break
                _sleep(every_s)
    except KeyboardInterrupt:
        if every_s is None:
            raise
    return total


def _take_in(work: Batches, results: Mapping[str, Values], journal: JobJournal) -> bool:
    try:
        return work.commit(results)
    except TransactionLostError:
        # What units wrote was cleaned up, or another run was first: --resume does them anew.
        journal.forget()
        raise


def _sleep(seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 0:
        time.sleep(min(left_s, _LOOK_S))


async def what_is_due(
    namespace: Namespace,
    names: Sequence[str],
    reached: Mapping[str, Reached],
    *,
    max_bytes: int,
    allows_loss: bool,
    remedy: str,
) -> list[Due]:
    """Return what streams have behind what was read of them, up to about so many bytes.

    Args:
        namespace: Of the streams.
        names: Which.
        reached: How far they were read.
        max_bytes: Of one batch; one split at least.
        allows_loss: Whether to go on behind what was truncated, and with a stream made again …
        remedy: … and if not, what can be done then.

    Raises:
        DataLossError: something that is due is gone.
        StreamNotFoundError: one that is named is not there.
    """

    async def look(name: str) -> Due:
        return await _due_of(namespace, name, reached.get(name), None if allows_loss else remedy)

    found = []
    left = max_bytes
    for first in range(0, len(names), AT_ONCE):
        for due in await gather_bounded(look, names[first : first + AT_ONCE]):
            splits = []
            for split in due.splits:
                if left <= 0:
                    break
                left -= split.size_bytes
                splits.append(split)
            if splits:
                found.append(replace(due, splits=splits))
        if left <= 0:
            break
    return found


async def birth_of(namespace: Namespace, name: str) -> int:
    """Return which stream of its name it is.

    Raises:
        StreamNotFoundError: there is none.
    """
    nodes = stream_context(namespace.stream(name)).nodes
    node = await nodes.store.exists(nodes.paths.segments)
    if node is None:
        raise nodes.not_found()
    return node.creation_id


async def _due_of(
    namespace: Namespace, name: str, reached: Reached | None, remedy: str | None
) -> Due:
    context = stream_context(namespace.stream(name))
    birth = await birth_of(namespace, name)
    if reached is not None and reached.birth != birth:
        if remedy is not None:
            raise DataLossError(
                f"stream {name} was deleted and made again since its records were copied: {remedy}"
            )
        reached = None
    if reached is None:
        snapshot = await take_snapshot(context)
        return Due(name, birth, -1, snapshot.splits(_SPLIT_BYTES))
    sequence_id = reached.sequence_id
    try:
        start = await namespace.stream(name).find(sequence_id=SequenceId(sequence_id))
        snapshot = await take_snapshot(context, start)
        is_lost = any(
            each.metadata.number == start.segment and each.metadata.first_active > start
            for each in snapshot.segments
        )
    except PositionTruncatedError:
        snapshot, is_lost = await take_snapshot(context), True
    if is_lost and remedy is not None:
        raise DataLossError(
            f"stream {name} was truncated before record {sequence_id} was copied: {remedy}"
        )
    return Due(name, birth, -1 if is_lost else sequence_id, snapshot.splits(_SPLIT_BYTES))


def check_dense(due: Due, results: Sequence[Values]) -> int | None:
    """Return the sequence id behind all records of a stream's part of a batch; None: it has none.

    Args:
        due: What was planned.
        results: Of its units in order: how many ``rows``, the ``first`` one's sequence id, and
            that of the record ``behind`` them.

    Raises:
        DataLossError: a record is missing, or there twice.
    """
    expected = due.sequence_id
    is_any = False
    for result in results:
        if not result["rows"]:
            continue
        if expected >= 0 and result["first"] != expected:
            raise DataLossError(
                f"stream {due.stream} goes on with record {result['first']} where {expected} is due"
            )
        expected, is_any = result["behind"], True
    return expected if is_any else None
