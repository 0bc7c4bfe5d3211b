"""Cuts a stream's beginning off, to the record, also within the segment that is being written.

Truncating changes metadata only: segments before the position are marked truncated, the one that
has it gets it as its first active position.  Ledgers are deleted later, by retention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from quorumbook.errors import MetadataVersionConflict
from quorumbook.streams.errors import AccessDeniedError
from quorumbook.streams.format.position import Position
from quorumbook.streams.format.segment_text import SegmentMetadata, Truncation
from quorumbook.streams.reading.seek import SequenceId, Time, TxId, start_position
from quorumbook.streams.segments import is_truncated
from quorumbook.streams.stream_context import StreamContext

#: Where a stream is cut off: the first record that stays.
Cut: TypeAlias = Position | SequenceId | TxId | Time
#: Segments may be completed or truncated by others meanwhile; nobody is that unlucky so often.
_ATTEMPTS = 32


class TruncatedSegment(NamedTuple):
    """What truncating does, or would do, to one segment."""

    number: int
    #: The first position that is left in it; None: nothing is.
    first_active: Position | None


def planned(
    segments: Sequence[SegmentMetadata], before: Position
) -> list[tuple[SegmentMetadata, SegmentMetadata]]:
    """Return which segments change to what; what is truncated already stays so."""
    changes = []
    for segment in segments:
        if segment.first_active >= before or segment.truncation is Truncation.TRUNCATED:
            continue
        is_behind = not segment.is_in_progress and segment.last_position < before
        if segment.number < before.segment or is_behind:
            if not segment.is_in_progress:
                changes.append((segment, segment.truncated(None)))
        elif segment.number == before.segment:
            changes.append((segment, segment.truncated(before)))
    return changes


async def truncate(
    context: StreamContext, place: Cut, *, dry_run: bool = False
) -> list[TruncatedSegment]:
    """Have readers get no record before a place any more; see ``Stream.truncate``."""
    context.check_writable()
    if (await context.access()).denies_truncate:
        raise AccessDeniedError(f"nobody may truncate stream {context.name}")
    before = await start_position(context, place)
    assert before is not None
    done: dict[int, TruncatedSegment] = {}
    for _ in range(_ATTEMPTS):
        is_complete = True
        first = await context.nodes.first_number(is_truncated)
        limit = max(before.segment - first + 1, 1)
        segments = await context.nodes.segments(first=first, limit=limit)
        for old, new in planned(segments, before):
            if not dry_run and not await context.nodes.replace_segment(old, new):
                is_complete = False
                break
            left = None if new.truncation is Truncation.TRUNCATED else new.first_active
            done[new.number] = TruncatedSegment(new.number, left)
        if is_complete:
            return [done[number] for number in sorted(done)]
    raise MetadataVersionConflict(
        f"stream {context.name} changes faster than it can be truncated; try again"
    )
