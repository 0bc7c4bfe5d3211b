"""Taking a stream over to write it: its lock, its tail, and what its writer works with."""

from __future__ import annotations

from dataclasses import dataclass

from quorumbook.streams.errors import AccessDeniedError, WriterBusyError
from quorumbook.streams.metadata.lock import StreamLock
from quorumbook.streams.metadata.policy import StreamPolicy
from quorumbook.streams.stream_context import StreamContext
from quorumbook.streams.writing.intake import Intake
from quorumbook.streams.writing.limits import Quota, quota_of
from quorumbook.streams.writing.numbering import Numbering, load_producers
from quorumbook.streams.writing.options import WriterOptions
from quorumbook.streams.writing.packing import PackState
from quorumbook.streams.writing.pump import Pump
from quorumbook.streams.writing.segment_writer import SegmentWriter
from quorumbook.streams.writing.takeover import take_over


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterParts:
    """What a writer works with, once the stream is its own."""

    epoch: int
    policy: StreamPolicy
    intake: Intake
    pump: Pump
    numbering: Numbering | None
    quota: Quota | None
    #: Whether it may enforce retention.
    may_truncate: bool


async def open_parts(
    context: StreamContext, options: WriterOptions, lock: StreamLock
) -> WriterParts:
    """Acquire the lock and finish what the last writer left; ``Stream.writer`` has the errors."""
    context.check_writable()
    access = await context.access()
    if access.denies_write or access.denies_acquire:
        raise AccessDeniedError(f"nobody may write stream {context.name}")
    by_force = options.takeover == "force"
    await lock.acquire(wait_s=options.wait_for_lock_s, by_force=by_force)
    producer = options.producer
    try:
        if options.takeover == "never":
            await _check_nothing_in_progress(context)
        tail = await take_over(context)
        producers = await load_producers(context, tail.next_number)
        policy = await context.policy()
        quota = await quota_of(context, policy)
    except BaseException:
        await lock.release()
        raise
    numbering = None if producer is None else Numbering(producer, producers)
    state = PackState(
        next_sequence_id=tail.next_sequence_id,
        last_txid=tail.last_txid,
        codec=policy.codec,
        batch_bytes=options.batch_bytes,
        checks_txids=policy.txid != "free",
        producer=producer,
        producers=producers,
    )
    segments = SegmentWriter(
        context,
        policy,
        tail,
        max_in_flight_entries=options.max_in_flight_entries,
        visibility_delay_s=options.visibility_delay_s,
    )
    intake = Intake(context, options, policy, state, numbering=numbering, quota=quota)
    return WriterParts(
        epoch=tail.epoch,
        policy=policy,
        intake=intake,
        pump=Pump(context, options, policy, intake, segments),
        numbering=numbering,
        quota=quota,
        may_truncate=not access.denies_truncate,
    )


async def _check_nothing_in_progress(context: StreamContext) -> None:
    for segment in await context.nodes.segments(for_writer=True):
        if segment.is_in_progress:
            raise WriterBusyError(
                f"segment {segment.number} of stream {context.name} was left in progress by "
                "another writer; takeover is needed"
            )
