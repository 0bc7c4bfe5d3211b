"""The ledgers under a stream's writer: taking one, starting a segment on it, completing it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from quorumbook.client.writing.pending import Group, Watcher
from quorumbook.client.writing.unwritten import STREAM_COMPONENT
from quorumbook.client.writing.writer import (
    LedgerWriter,
    append_group,
    publish_confirmed,
    stop_writer,
)
from quorumbook.env import Complaint, logger
from quorumbook.errors import (
    LedgerError,
    LedgerFencedError,
    MetadataVersionConflict,
    NodeExistsError,
    NoSuchLedgerInMetadataError,
    NoSuchNodeError,
    QuorumbookError,
)
from quorumbook.ids import EntryId, LedgerId
from quorumbook.ledger.metadata import LedgerState
from quorumbook.streams.errors import WriterFencedError
from quorumbook.streams.format.segment_text import SegmentMetadata
from quorumbook.streams.metadata.policy import StreamPolicy, known
from quorumbook.streams.stream_context import StreamContext
from quorumbook.streams.writing.packing import PackState
from quorumbook.streams.writing.pending import PackedRun
from quorumbook.streams.writing.takeover import StreamTail, after_completion

_log = logger("streams.segments")
_NS = 1_000_000_000
#: The next ledger is made when a segment is so full.
_AHEAD = 0.5
_RETRY_S = 0.5
#: Somebody may truncate the segment between two looks; nobody is that unlucky.
_ATTEMPTS = 16
#: More entries, or bytes, than a segment ever has.
_NEVER = 1 << 62


class SegmentWriter:
    """One segment after the other; at most one at a time is written."""

    def __init__(
        self,
        context: StreamContext,
        policy: StreamPolicy,
        tail: StreamTail,
        *,
        max_in_flight_entries: int,
        visibility_delay_s: float,
    ) -> None:
        self._context = context
        self._policy = policy
        #: Where a segment is full.
        self._roll_bytes = known(policy.roll_bytes) or _NEVER
        self._roll_entries = known(policy.roll_entries) or _NEVER
        self._nodes = context.nodes
        self._state = tail.state
        self._next_number = tail.next_number
        self._completed_at_ms = tail.completed_at_ms
        self._options: dict[str, Any] = {
            "lac_delay_s": visibility_delay_s,
            "max_pending_entries": 2 * max_in_flight_entries,
            "max_pending_bytes": 2**30,
        }
        #: A ledger that another writer allocated and did not use.
        self._leftover = tail.state.allocated
        self._ahead: LedgerWriter | None = None
        #: One that was made and maybe not named yet.
        self._made: LedgerWriter | None = None
        self._allocating: asyncio.Task[None] | None = None
        self._ledger: LedgerWriter | None = None
        self._segment: SegmentMetadata | None = None
        #: Whether it failed, and this writer itself ends it.
        self._is_ending = False
        #: What it was to become when the metadata store went away, if that is unknown.
        self._ended_as: SegmentMetadata | None = None
        self._is_dropping = False
        self._started_ns = 0

    @property
    def is_open(self) -> bool:
        """Whether there is a segment to write into."""
        return self._ledger is not None

    def append(self, run: PackedRun) -> asyncio.Future[EntryId]:
        """Send an entry; the future says when it is safe."""
        assert self._ledger is not None
        return self._ledger.append_nowait(run.entries[0])

    def append_all(self, runs: Sequence[PackedRun], watcher: Watcher) -> None:
        """Send entries together; the watcher learns when they are safe."""
        assert self._ledger is not None
        payloads = [entry for run in runs for entry in run.entries]
        append_group(self._ledger, Group(payloads, None, None, watcher))

    def room(self, state: PackState) -> tuple[int, int]:
        """Return with how many entries, and with how many bytes, the segment will be full."""
        tail = state.tail
        assert tail is not None
        return self._roll_entries - tail.entries, self._roll_bytes - tail.size_bytes

    def is_full(self, state: PackState) -> bool:
        """Whether the segment is to be followed by the next; the next ledger is made ahead."""
        tail = state.tail
        assert tail is not None
        fullness = max(tail.size_bytes / self._roll_bytes, tail.entries / self._roll_entries)
        if fullness >= _AHEAD and self._ahead is None and self._allocating is None:
            self._allocating = asyncio.get_running_loop().create_task(self._allocate_ahead())
        return fullness >= 1

    def is_old(self, age_s: float) -> bool:
        """Whether the segment was started so long ago."""
        age_ns = self._context.store.env.clock.now_ns() - self._started_ns
        return self.is_open and age_ns >= age_s * _NS

    async def drained(self) -> None:
        """Wait until everything sent is safe, or the ledger has failed."""
        if self._ledger is not None:
            with contextlib.suppress(LedgerError, QuorumbookError):
                await self._ledger.confirmed()

    async def publish(self) -> None:
        """Have readers see what is confirmed."""
        if self._ledger is not None:
            await self._ledger.flush()

    async def publish_confirmed(self) -> None:
        """Have readers see what is confirmed by now, whatever else is pending."""
        if self._ledger is not None:
            await publish_confirmed(self._ledger)

    # Changing segments ---------------------------------------------------------------------

    async def ensure(self, pack: PackState) -> None:
        """Start a segment unless there is one.

        Raises:
            WriterFencedError: another writer has started or completed one.
            NotEnoughBookiesError: no ledger can be made.
        """
        if self._ledger is not None:
            return
        if self._allocating is not None:
            await asyncio.wait([self._allocating])
        if self._ahead is None:
            await self._allocate()
        ledger = self._ahead
        assert ledger is not None
        number = self._next_number
        segment = SegmentMetadata(
            number=number, ledger_id=ledger.id, first_txid=pack.first_queued_txid
        )
        try:
            await self._nodes.start_segment(segment, self._state)
        except (MetadataVersionConflict, NodeExistsError, NoSuchNodeError) as error:
            found = await self._nodes.segment(number, is_in_progress=True)
            # Ours, if the answer to an earlier try was lost: nobody else has this ledger.
            if found is None or found[0].ledger_id != ledger.id:
                raise self._fenced() from error
        self._state = replace(
            self._state,
            max_segment=max(number, self._state.max_segment),
            max_segment_version=self._state.max_segment_version + 1,
            allocated=None,
            allocation_version=self._state.allocation_version + 1,
        )
        self._next_number = number + 1
        self._segment = replace(segment, start_sequence_id=pack.next_to_pack)
        self._ledger, self._ahead = ledger, None
        self._started_ns = self._context.store.env.clock.now_ns()
        pack.begin_segment(number, ledger.id)

    async def complete(self, pack: PackState) -> None:
        """Close the segment's ledger and complete it; nothing is in flight.

        Raises:
            WriterFencedError: another writer has done so.
        """
        ledger = self._ledger
        if ledger is None:
            return
        await ledger.close()
        await self._record_completion(pack)

    async def is_taken_over(self, error: BaseException) -> bool:
        """Tell whether somebody else ended the segment's ledger, which failed with an error.

        Who does so says it in the ledger's metadata before anything is fenced, so that a bookie
        that refuses adds by itself is told from a writer that takes the stream over.  The lock
        says nothing of that: there are writers that take none.
        """
        ledger = self._ledger
        if ledger is None or self._is_ending:
            return False
        try:
            found = await self._context.client.ledger_metadata(ledger.id)
        except NoSuchLedgerInMetadataError:
            return True
        if found.state is LedgerState.OPEN:
            return False
        # The answer to its own close may have been lost, but that does not fence it.
        end = ledger.last_add_confirmed, ledger.length
        is_own = found.is_closed and (found.last_entry_id, found.length) == end
        return isinstance(error, LedgerFencedError) or not is_own

    async def end_after_failure(self) -> EntryId:
        """Close the ledger of a segment that failed, and complete or drop the segment.

        Returns:
            The last entry that it holds; -1 if it has none.

        Raises:
            WriterFencedError: another writer took the stream over.
        """
        ledger, segment = self._ledger, self._segment
        assert ledger is not None
        assert segment is not None
        self._is_ending = True
        complaint = Complaint(_log)
        clock = self._context.store.env.clock
        while True:
            with contextlib.suppress(QuorumbookError):
                await ledger.close()
            try:
                reader = await self._context.client.open_ledger(
                    ledger.id, password=self._context.password
                )
                break
            except NoSuchLedgerInMetadataError as error:
                raise self._fenced() from error
            except QuorumbookError as error:
                if not error.retriable:
                    raise
                complaint.say(f"stream {self._context.name}: {error}; trying again", clock.now_ns())
                await asyncio.sleep(_RETRY_S)
        async with reader:
            return reader.last_add_confirmed

    async def after_failure(self, pack: PackState) -> None:
        """Complete the segment whose end ``end_after_failure`` found; drop an empty one."""
        if pack.tail is not None and pack.tail.confirmed_entry < 0:
            await self._drop()
            pack.end_segment()
        else:
            await self._record_completion(pack)

    async def _record_completion(self, pack: PackState) -> None:
        segment, tail = self._segment, pack.tail
        assert segment is not None
        assert tail is not None
        completed = self._ended_as or replace(
            segment,
            is_in_progress=False,
            last_txid=tail.confirmed_txid,
            # In the order of segments and records, whatever the clock says now: it is searched.
            completed_at_ms=max(
                self._context.store.env.clock.wall_ms(), tail.latest_ms, self._completed_at_ms
            ),
            record_count=tail.confirmed_count,
            last_entry=tail.confirmed_entry,
            last_slot=tail.confirmed_slot,
        )
        for _ in range(_ATTEMPTS):
            found = await self._nodes.segment(segment.number, is_in_progress=True)
            if found is None:
                # An earlier try may have done it, whose answer was lost.
                if self._ended_as is None or not await self._nodes.is_completed_as(completed):
                    raise self._fenced()
                break
            current, revision = found
            # Whoever truncated it meanwhile has set the node.
            completed = self._ended_as = completed.truncated_as(current)
            try:
                await self._nodes.complete_segment(completed, revision, self._state)
            except MetadataVersionConflict as error:
                again = await self._nodes.segment(segment.number, is_in_progress=True)
                if again is None or again[1] == revision:
                    raise self._fenced() from error
            except (NodeExistsError, NoSuchNodeError) as error:
                raise self._fenced() from error
            else:
                break
        self._ended_as = None
        self._state = after_completion(self._state, completed)
        self._completed_at_ms = completed.completed_at_ms
        self._ledger = self._segment = None
        self._is_ending = False
        pack.end_segment()

    async def _drop(self) -> None:
        segment = self._segment
        assert segment is not None
        found = await self._nodes.segment(segment.number, is_in_progress=True)
        if found is not None:
            self._is_dropping = True
            try:
                await self._nodes.drop_empty_segment(segment.number, found[1], self._state)
            except (MetadataVersionConflict, NoSuchNodeError) as error:
                raise self._fenced() from error
        elif not self._is_dropping:
            raise self._fenced()
        self._is_dropping = False
        self._state = replace(self._state, max_segment_version=self._state.max_segment_version + 1)
        self._next_number = segment.number
        self._ledger = self._segment = None
        self._is_ending = False
        await self._delete_ledger(segment.ledger_id)

    # Ledgers made ahead --------------------------------------------------------------------

    async def _allocate(self) -> None:
        ledger = self._made = self._made or await self._create()
        state = self._state
        try:
            version = await self._nodes.set_allocation(ledger.id, state)
        except (MetadataVersionConflict, NoSuchNodeError) as error:
            now, version = await self._nodes.read_state(), state.allocation_version + 1
            # Ours, if the answer to an earlier try was lost.
            if (now.allocated, now.allocation_version) != (ledger.id, version):
                self._made = None
                await self._delete_ledger(ledger.id)
                raise self._fenced() from error
        self._state = replace(self._state, allocated=ledger.id, allocation_version=version)
        self._ahead, self._made = ledger, None
        # Only now is it certain that nobody uses what was allocated before.
        leftover, self._leftover = self._leftover, None
        if leftover is not None:
            await self._delete_ledger(leftover)

    async def _create(self) -> LedgerWriter:
        policy, context = self._policy, self._context
        # Whose ledger it is, for people and for whoever looks for orphans.
        whose = {
            "application": b"quorumbook",
            "component": STREAM_COMPONENT,
            "namespace": self._nodes.paths.namespace.encode(),
            "namespace_id": await context.namespace_id(),
            "stream": context.name.encode(),
            "segment": str(self._next_number).encode(),
        }
        return await context.client.create_ledger(
            password=context.password, **policy.ledger_keywords(whose), **self._options
        )

    async def _allocate_ahead(self) -> None:
        try:
            await self._allocate()
        except QuorumbookError as error:
            # Rolling makes one when it needs it, and says what is wrong.
            _log.warning("stream %s: no ledger ahead: %s", self._context.name, error)
        finally:
            self._allocating = None

    async def _delete_ledger(self, ledger_id: LedgerId) -> None:
        try:
            await self._context.client.delete_ledger(ledger_id)
        except NoSuchLedgerInMetadataError:
            pass
        except QuorumbookError as error:
            _log.warning("ledger %d is left behind: %s", ledger_id, error)

    def _fenced(self) -> WriterFencedError:
        return WriterFencedError(f"another writer took stream {self._context.name} over")

    # The end -------------------------------------------------------------------------------

    def stop(self, error: QuorumbookError) -> None:
        """Fail what is on its way."""
        if self._ledger is not None:
            stop_writer(self._ledger, error)

    async def let_go(self) -> None:
        """Give back what was made ahead; a segment that is open is left to the next writer."""
        if self._allocating is not None:
            await asyncio.wait([self._allocating])
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            await ledger.abort()
        if self._made is not None:
            await self._made.abort()
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            await ahead.abort()
            with contextlib.suppress(MetadataVersionConflict, NoSuchNodeError):
                await self._nodes.set_allocation(None, self._state)
                await self._delete_ledger(ahead.id)
