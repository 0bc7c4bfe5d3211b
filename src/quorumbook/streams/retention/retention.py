"""Lets go of what a stream need not keep any more: marks segments, then deletes their ledgers.

``plan`` decides, and once more before each segment: cursors and policies change while others go.
The segment is first marked as truncated, so that readers know, in a step that demands that no
cursor keeps more than when that was decided (each that does writes the node above the cursors),
and that the stream's own policy is the same.
Then its ledger is deleted, its files if it was offloaded, and its node last.  Whoever is
interrupted in between leaves a marked segment, which the next run deletes: no ledger is ever
without a node that names it.  Several may do this for the same stream at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from quorumbook.env import logger
from quorumbook.env.tasks import gather_bounded
from quorumbook.errors import NoSuchLedgerInMetadataError, QuorumbookError
from quorumbook.ids import LedgerId
from quorumbook.streams.cursors.cursor import Cursor, list_cursors, mark_overrun
from quorumbook.streams.cursors.lag import segment_extent
from quorumbook.streams.errors import (
    AccessDeniedError,
    CursorConflictError,
    FilesUnavailableError,
    StreamNotFoundError,
)
from quorumbook.streams.format.position import Position
from quorumbook.streams.format.segment_text import SegmentMetadata, Truncation
from quorumbook.streams.metadata.policy import StreamPolicy
from quorumbook.streams.retention.plan import (
    DeletionReason,
    RetentionHold,
    RetentionPlan,
    SegmentFacts,
    plan_retention,
)
from quorumbook.streams.stream_context import StreamContext
from quorumbook.streams.tier.moving import remove

_log = logger("streams.retention")
#: How many segments' sizes are asked for at a time.


class DeletedSegment(NamedTuple):
    """A segment that went, or would go."""

    number: int
    ledger_id: LedgerId
    record_count: int
    reason: DeletionReason


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """What was done, or would be."""

    segments: list[DeletedSegment]
    #: Cursors before which records went that they had not passed.
    overrun: list[str]
    #: Where there may be files of segments that went.
    forgotten: list[str]


class Retention:
    """The retention of one stream; remembers between runs what does not change."""

    def __init__(self, context: StreamContext) -> None:
        """Take the stream's."""
        self._context = context
        self._sizes: dict[LedgerId, int] = {}

    async def enforce(
        self, *, dry_run: bool = False, forget_files: bool = False
    ) -> RetentionReport:
        """Let go of what the policy allows; see ``Stream.enforce_retention``."""
        context = self._context
        if not dry_run:
            context.check_writable()
            if (await context.access()).denies_truncate:
                raise AccessDeniedError(f"nobody may truncate stream {context.name}")
        segments = await context.nodes.segments()
        facts = await self._facts(segments, await context.policy())
        plan, _ = await self._decide(facts)
        by_number = {s.number: s for s in segments if not s.is_in_progress}
        going = [(by_number[number], reason) for number, reason in plan.segments]
        if dry_run:
            return _report(going, plan.overrun, [])
        return await self._delete_all(going, facts, forget_files=forget_files)

    async def run(self, interval_s: float, is_over: Callable[[], bool]) -> None:
        """Do so again and again, until it is over or cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            if is_over():
                return
            try:
                report = await self.enforce()
            except QuorumbookError as error:
                _log.warning("retention of stream %s: %s", self._context.name, error)
                continue
            for segment in report.segments:
                _log.info(
                    "stream %s: segment %d went: %s",
                    self._context.name,
                    segment.number,
                    segment.reason,
                )

    # Inside --------------------------------------------------------------------------------

    async def _decide(self, facts: Sequence[SegmentFacts]) -> tuple[RetentionPlan, list[Cursor]]:
        """Return what goes by what the policy and the cursors say now, and who holds."""
        context = self._context
        policy = await context.policy()
        cursors = [
            cursor
            for cursor in await list_cursors(context)
            if cursor.holds_retention or policy.retain_unconsumed
        ]
        holds = [RetentionHold(cursor.name, cursor.position) for cursor in cursors]
        return plan_retention(facts, policy, holds, context.store.env.clock.wall_ms()), cursors

    async def _facts(
        self, segments: list[SegmentMetadata], policy: StreamPolicy
    ) -> list[SegmentFacts]:
        if policy.retain_bytes or policy.retain_hard_bytes:
            await gather_bounded(self._learn_size, segments)
        return [
            SegmentFacts(
                segment.number,
                segment.is_in_progress,
                segment.truncation is Truncation.TRUNCATED,
                segment.completed_at_ms,
                segment.record_count,
                self._sizes.get(segment.ledger_id, 0),
                segment.last_position,
            )
            for segment in segments
        ]

    async def _learn_size(self, segment: SegmentMetadata) -> None:
        if segment.is_in_progress or segment.ledger_id not in self._sizes:
            size_bytes, _ = await segment_extent(self._context, segment)
            self._sizes[segment.ledger_id] = size_bytes

    async def _mark_overrun(self, cursors: Iterable[Cursor], last: Position) -> list[str]:
        """Tell those who lose records up to a position, before they do; return their names."""
        told = []
        for cursor in cursors:
            while cursor.position <= last:
                try:
                    if not cursor.is_overrun and cursor.damage is None:
                        await mark_overrun(cursor)
                        _log.warning("%r lost records to a hard limit of retention", cursor)
                    told.append(cursor.name)
                    break
                except CursorConflictError:
                    await cursor.refresh()
                except StreamNotFoundError:
                    break
        return told

    async def _delete_all(
        self,
        going: list[tuple[SegmentMetadata, DeletionReason]],
        facts: list[SegmentFacts],
        *,
        forget_files: bool,
    ) -> RetentionReport:
        """Delete segments, up to the first one that stays by what holds when its turn comes.

        Raises:
            FilesUnavailableError: files cannot be removed; all ledgers are deleted nevertheless,
                and nodes stay from that segment on, so that their numbers have no gap.
        """
        gone, forgotten = [], []
        overrun: set[str] = set()
        stuck: FilesUnavailableError | None = None
        for segment, planned in going:
            reason: DeletionReason | None = planned
            marked: SegmentMetadata | None = segment
            if planned is not DeletionReason.TRUNCATED:
                # Those before it may have taken minutes.
                left = [each for each in facts if each.number >= segment.number]
                reason, marked = await self._decide_and_mark(segment, left, overrun)
            if reason is None:
                break
            if marked is None:
                continue
            with contextlib.suppress(NoSuchLedgerInMetadataError):
                await self._context.client.delete_ledger(segment.ledger_id)
            try:
                forgotten.append(await remove(self._context, segment.number, forgets=forget_files))
            except FilesUnavailableError as error:
                stuck = stuck or error
            if stuck is None:
                await self._context.nodes.delete_segment(marked)
                self._sizes.pop(segment.ledger_id, None)
                gone.append((segment, reason))
        if stuck is not None:
            raise stuck
        return _report(gone, sorted(overrun), [location for location in forgotten if location])

    async def _decide_and_mark(
        self, segment: SegmentMetadata, facts: list[SegmentFacts], overrun: set[str]
    ) -> tuple[DeletionReason | None, SegmentMetadata | None]:
        """Have readers know that a segment goes, if it does by what cursors keep in that instant.

        Returns:
            Why it goes, None if it stays; and the segment, None if somebody changed it meanwhile.
        """
        nodes, marked = self._context.nodes, segment.truncated(None)
        while True:
            as_now = await nodes.keep_as_now()
            plan, cursors = await self._decide(facts)
            if not plan.segments:
                return None, None
            losers = [cursor for cursor in cursors if cursor.name in plan.overrun]
            overrun.update(await self._mark_overrun(losers, segment.last_position))
            reason = plan.segments[0][1]
            if await nodes.replace_segment(segment, marked, *as_now):
                return reason, marked
            if await nodes.keep_as_now() == as_now:
                return reason, None


def _report(
    segments: list[tuple[SegmentMetadata, DeletionReason]],
    overrun: list[str],
    forgotten: list[str],
) -> RetentionReport:
    deleted = [
        DeletedSegment(segment.number, segment.ledger_id, segment.record_count, reason)
        for segment, reason in segments
    ]
    return RetentionReport(deleted, overrun, forgotten)
