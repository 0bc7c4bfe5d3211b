"""Makes a stream ready for its next writer: finishes what the last one left, by fencing it.

A segment in progress belongs to a writer that crashed, or to one that believes to be alive; in
both cases recovering its ledger ends it.  The last record that is found says how many there are,
and the segment is completed with that, in one step that no two writers can both make.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from quorumbook.env import logger
from quorumbook.errors import (
    MetadataVersionConflict,
    NodeExistsError,
    NoSuchLedgerInMetadataError,
    NoSuchNodeError,
)
from quorumbook.metadata.nodes import change_once
from quorumbook.streams.errors import DataLossError, StreamSealedError, WriterFencedError
from quorumbook.streams.format.records import END_TXID
from quorumbook.streams.format.segment_text import UNKNOWN_SEQUENCE_ID, SegmentMetadata
from quorumbook.streams.metadata.stream_nodes import StreamState
from quorumbook.streams.reading.entries import entry_time_ms, last_record
from quorumbook.streams.segments import following_start
from quorumbook.streams.stream_context import StreamContext

_log = logger("streams.takeover")
#: Another writer may be at work at the same time, but only one of them can go on for ever.
_ATTEMPTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTail:
    """Where a stream ends, with nothing in progress."""

    state: StreamState
    next_number: int
    next_sequence_id: int
    #: The floor of transaction ids; -1 if there is none.
    last_txid: int
    #: When the last segment was completed; 0 if there is none.
    completed_at_ms: int
    #: Greater than that of every takeover before.
    epoch: int
    #: How many segments there are, truncated ones that are not deleted yet included.
    segment_count: int


async def fence_together(
    contexts: Sequence[StreamContext], states: Sequence[StreamState]
) -> list[StreamState | None]:
    """Begin to take streams of one store over, in one step; None: that one begins by itself.

    Args:
        contexts: Of which streams.
        states: Theirs, as read.
    """
    store = contexts[0].store
    if len(contexts) > store.multi_limit:
        return [None] * len(contexts)
    fences = [each.nodes.fence(state) for each, state in zip(contexts, states, strict=True)]

    async def was_set() -> bool:
        return False  # nothing in the nodes tells who did

    what = f"shutting the last writers of {len(contexts)} streams out"
    try:
        await change_once(store, [operation for operation, _ in fences], was_set, what)
    except (MetadataVersionConflict, NoSuchNodeError) as error:
        _log.info("%s: %s; one after the other", what, error)
        return [None] * len(contexts)
    return [state for _, state in fences]


async def take_over(context: StreamContext, fenced: StreamState | None = None) -> StreamTail:
    """Complete every segment that is in progress, and return where the stream ends.

    Args:
        context: The stream's.
        fenced: Its state, if ``fence_together`` began.

    Raises:
        StreamSealedError: nothing can be appended any more.
        WriterFencedError: others take the stream over again and again.
        LedgerRecoveryError: too few bookies are there to recover a ledger now.
    """
    for _ in range(_ATTEMPTS):
        try:
            return await _take_over(context, fenced)
        except (MetadataVersionConflict, NoSuchNodeError, NodeExistsError) as error:
            _log.info("stream %s: %s; looking again", context.name, error)
            fenced = None
    raise WriterFencedError(f"other writers keep taking stream {context.name} over")


async def _take_over(context: StreamContext, fenced: StreamState | None) -> StreamTail:
    nodes = context.nodes
    state = fenced or await nodes.fence_allocation(await nodes.read_state())
    segments, count = await nodes.listed(for_writer=True)
    done: list[SegmentMetadata] = []
    for segment in segments:
        if not segment.is_in_progress:
            done.append(segment)
            continue
        completed = await recovered_segment(context, segment, done[-1] if done else None)
        found = await nodes.segment(segment.number, is_in_progress=True)
        if found is None:
            raise MetadataVersionConflict(f"segment {segment.number} was completed meanwhile")
        current, revision = found
        if completed is None:
            await nodes.drop_empty_segment(segment.number, revision, state)
            with contextlib.suppress(NoSuchLedgerInMetadataError):
                await context.client.delete_ledger(segment.ledger_id)
            state = replace(state, max_segment_version=state.max_segment_version + 1)
            continue
        # It may have been truncated since the list was read.
        completed = completed.truncated_as(current)
        await nodes.complete_segment(completed, revision, state)
        state = after_completion(state, completed)
        done.append(completed)
    if state.max_txid == END_TXID:
        raise StreamSealedError(f"stream {context.name} is sealed: nothing is appended any more")
    known = max((segment.number for segment in done), default=0)
    floor = max([segment.last_txid for segment in done[-1:]] + [state.max_txid])
    return StreamTail(
        state=state,
        next_number=max(known + 1, state.max_segment) if known or state.max_segment
        else context.first_segment,
        next_sequence_id=following_start(done),
        last_txid=floor if done or state.max_txid else -1,
        completed_at_ms=done[-1].completed_at_ms if done else 0,
        epoch=state.allocation_version,
        segment_count=count,
    )  # fmt: skip


def after_completion(state: StreamState, completed: SegmentMetadata) -> StreamState:
    """Return the state as completing a segment leaves it."""
    return replace(
        state,
        max_segment=max(completed.number, state.max_segment),
        max_segment_version=state.max_segment_version + 1,
        max_txid=max(completed.last_txid, state.max_txid),
        max_txid_version=state.max_txid_version + 1,
    )


async def recovered_segment(
    context: StreamContext, segment: SegmentMetadata, before: SegmentMetadata | None
) -> SegmentMetadata | None:
    """Fence a segment's writer and return the segment as it is completed; None if it is empty.

    Raises:
        DataLossError: the segment has no ledger.
        LedgerRecoveryError: too few bookies are there to recover it now.
    """
    try:
        reader = await context.client.open_ledger(segment.ledger_id, password=context.password)
    except NoSuchLedgerInMetadataError as error:
        raise DataLossError(
            f"segment {segment.number} of stream {context.name} is in progress, and its ledger "
            f"{segment.ledger_id} is gone",
            ledger_id=segment.ledger_id,
        ) from error
    async with reader:
        for entry_id in range(reader.last_add_confirmed, -1, -1):
            entry = await reader.read_entry(entry_id)
            last = last_record(entry.payload, is_enveloped=segment.is_enveloped)
            if last is not None:
                latest_ms = entry_time_ms(entry.payload, is_enveloped=segment.is_enveloped) or 0
                break
        else:
            return None
    start = following_start([] if before is None else [before])
    return replace(
        segment,
        is_in_progress=False,
        last_txid=last.txid,
        # The clock of a writer before may have been ahead of ours.
        completed_at_ms=max(
            context.store.env.clock.wall_ms(), latest_ms, before.completed_at_ms if before else 0
        ),
        record_count=last.position,
        last_entry=entry_id,
        last_slot=last.slot,
        start_sequence_id=start if segment.is_counted else UNKNOWN_SEQUENCE_ID,
    )
