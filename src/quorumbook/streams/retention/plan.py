"""Which segments of a stream retention lets go, and why; pure.

A segment goes when one of the policy's limits lets it go (so the smallest limit counts), or all
cursors passed it where the policy keeps what is not consumed.  What a holding cursor has not
passed stays nevertheless, unless a hard limit says otherwise.  What was truncated goes at once:
nobody can read it.  Segments go from the oldest on, without a gap, and the last completed one
stays, because it says which sequence id and transaction id come next.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from quorumbook.streams.format.position import Position
from quorumbook.streams.metadata.policy import StreamPolicy, known


class DeletionReason(StrEnum):
    """Why a segment goes."""

    TRUNCATED = "truncated"
    TIME = "time"
    BYTES = "bytes"
    RECORDS = "records"
    CONSUMED = "consumed"
    HARD_TIME = "hard time"
    HARD_BYTES = "hard bytes"


class SegmentFacts(NamedTuple):
    """What is known of a segment."""

    number: int
    is_in_progress: bool
    is_truncated: bool
    completed_at_ms: int
    record_count: int
    size_bytes: int
    last_position: Position


class RetentionHold(NamedTuple):
    """A cursor, and the first record that it has not passed."""

    name: str
    position: Position


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """What is to be done."""

    segments: list[tuple[int, DeletionReason]]
    #: Cursors that lose records that they had not passed.
    overrun: list[str]


def plan_retention(
    segments: Sequence[SegmentFacts],
    policy: StreamPolicy,
    holds: Sequence[RetentionHold],
    now_ms: int,
) -> RetentionPlan:
    """Return which segments go.

    Args:
        segments: All, in order.
        policy: With nothing left out.
        holds: The cursors that hold data back.
        now_ms: The wall clock.  One that goes back keeps more for a while, never less.
    """
    completed = [segment for segment in segments if not segment.is_in_progress]
    candidates = itertools.takewhile(lambda each: each in completed[:-1], segments)
    floor = min((hold.position for hold in holds), default=None)
    behind_bytes = sum(segment.size_bytes for segment in segments)
    behind_records = sum(segment.record_count for segment in segments)
    going: list[tuple[int, DeletionReason]] = []
    last: Position | None = None
    for segment in candidates:
        behind_bytes -= segment.size_bytes
        behind_records -= segment.record_count
        reason = _reason(segment, policy, floor, now_ms, behind_bytes, behind_records)
        if reason is None:
            break
        going.append((segment.number, reason))
        if reason is not DeletionReason.TRUNCATED:
            last = segment.last_position
    overrun = [hold.name for hold in holds if last is not None and hold.position <= last]
    return RetentionPlan(going, sorted(overrun))


def _reason(
    segment: SegmentFacts,
    policy: StreamPolicy,
    floor: Position | None,
    now_ms: int,
    behind_bytes: int,
    behind_records: int,
) -> DeletionReason | None:
    """Return why a segment goes, given what would be left behind it; None: it stays."""
    if segment.is_truncated:
        return DeletionReason.TRUNCATED
    age_s = (now_ms - segment.completed_at_ms) / 1000
    hard_time_s, hard_bytes = known(policy.retain_hard_time_s), known(policy.retain_hard_bytes)
    if hard_time_s and age_s >= hard_time_s:
        return DeletionReason.HARD_TIME
    if hard_bytes and behind_bytes + segment.size_bytes > hard_bytes:
        return DeletionReason.HARD_BYTES
    if floor is not None and floor <= segment.last_position:
        return None
    if 0 < known(policy.retain_time_s) <= age_s:
        return DeletionReason.TIME
    if 0 < known(policy.retain_bytes) <= behind_bytes:
        return DeletionReason.BYTES
    if 0 < known(policy.retain_records) <= behind_records:
        return DeletionReason.RECORDS
    if known(policy.retain_unconsumed) and floor is not None:
        return DeletionReason.CONSUMED
    return None
