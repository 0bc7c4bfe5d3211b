"""Merges small segments of a stream: copies their entries into one ledger, changes the metadata.

The copy is an attempt of the application ``compact-segments`` (``streams.transactions``), so what
an interrupted one leaves is found by its node.  One step then changes all segments, each as it was
read, deletes the attempt, and makes garbage of the ledgers that are no segments any more; they are
deleted when those who read them had time to come to their end.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quorumbook.client.writing.writer import LedgerWriter
from quorumbook.env.tasks import gather_bounded
from quorumbook.errors import (
    MetadataVersionConflict,
    NodeExistsError,
    NoSuchLedgerInMetadataError,
    NoSuchNodeError,
    QuorumbookError,
)
from quorumbook.ids import LedgerId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.metadata.nodes import change_once
from quorumbook.metadata.store import Create, Delete, Operation, Set
from quorumbook.streams.compaction.entry_moves import FixedEntryError, moved_entry
from quorumbook.streams.compaction.plan import Candidate, Merge, Rules, plan_merge
from quorumbook.streams.cursors.cursor import Cursor, list_cursors
from quorumbook.streams.errors import CorruptRecordsError, DataLossError, WriterBusyError
from quorumbook.streams.format.names import COPY_KEY, MERGED_KEY, TRANSACTION_COMPONENT
from quorumbook.streams.format.segment_text import CURRENT_VERSION, SegmentMetadata
from quorumbook.streams.reading.segment_reader import open_segment
from quorumbook.streams.stream_context import StreamContext
from quorumbook.streams.tier.nodes import TierNodes
from quorumbook.streams.transactions.application import Place
from quorumbook.streams.transactions.attempt import Attempt, DraftOptions
from quorumbook.streams.transactions.drafts import append_entry
from quorumbook.streams.transactions.nodes import TransactionNodes
from quorumbook.streams.transactions.origin import (
    MERGED_TRANSACTION_KEY,
    Origin,
    common_origin,
    origin_of,
)
from quorumbook.streams.transactions.orphans import Orphans
from quorumbook.streams.transactions.state import (
    DRIVER_PARTITION,
    AttemptName,
    AttemptRecord,
    Identity,
)

APPLICATION = "compact-segments"
#: A segment that is made of so many at most is no small one; see ``Compaction.rules``.
_SMALL_SHARE = 8
#: Of ledgers that were merged into one; who comes back with an older place is told so.
_MOST_NOTES = 5000
_COMPACT = (",", ":")
Pace = Callable[[int], Awaitable[None]]


async def _unhurried(size_bytes: int) -> None:
    del size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStep:
    """What one step did."""

    #: How many segments became one.
    segments: int
    number: int
    ledger_id: LedgerId
    records: int
    size_bytes: int


async def kept_ledgers(place: Place) -> set[LedgerId]:
    """Return the ledgers of merged segments that are not deleted yet."""
    nodes = TransactionNodes(place.store, place.path, APPLICATION)
    return {ledger_id for _, record, _ in await nodes.garbage() for ledger_id in record.ledgers}


class Compaction:
    """The merging of one stream's segments; remembers between steps what does not change."""

    def __init__(
        self,
        place: Place,
        context: StreamContext,
        *,
        keep_s: float,
        pace: Pace = _unhurried,
    ) -> None:
        """Take the stream.

        Args:
            place: Where its namespace's applications are.
            context: The stream's.
            keep_s: So long ledgers stay whose entries were copied.
            pace: Waited for with the size of what is about to be read from bookies, and written.
        """
        self._context = context
        self._keep_ms = int(keep_s * 1000)
        self._pace = pace
        self._place = place
        self._nodes = TransactionNodes(place.store, place.path, APPLICATION)
        self._orphans = Orphans(place.client, self._nodes, place.attempt_ttl_s)
        self._ledgers: dict[LedgerId, LedgerMetadata | None] = {}
        #: Segments whose entries tell positions, by ledger.
        self._fixed: set[LedgerId] = set()

    async def rules(
        self,
        *,
        target_bytes: int,
        older_than_s: float = 0.0,
        min_segments: int = 2,
        idle_cursor_s: float = 3600.0,
    ) -> Rules:
        """Return what may be merged now.

        Nothing that a cursor has not passed is, unless nobody has moved the cursor for long, and
        it says which record comes next: who reads by it later gets that one, wherever it is then.

        Args:
            target_bytes: A merged segment is not larger, and a small one has an eighth of it.
            older_than_s: Only segments that were completed so long ago.
            min_segments: So many at least become one.
            idle_cursor_s: A cursor that stands still for so long holds nothing up.
        """
        cursors = await list_cursors(self._context)
        store = self._context.store
        now_ms = store.env.clock.wall_ms()
        idle_ms = now_ms - int(idle_cursor_s * 1000)
        held = [each.position.segment for each in cursors if not await self._is_idle(each, idle_ms)]
        return Rules(
            target_bytes=target_bytes,
            small_bytes=max(1, target_bytes // _SMALL_SHARE),
            min_segments=min_segments,
            max_changes=store.multi_limit,
            end=min(held, default=2**63),
            completed_before_ms=now_ms - int(older_than_s * 1000) + 1,
        )

    async def _is_idle(self, cursor: Cursor, since_ms: int) -> bool:
        """Tell whether nobody moved a cursor since a time, and it knows its next record by number.

        Whoever reads by it, and is slow, is at an old ledger, which stays for ``keep_s``.
        """
        node = await self._context.store.exists(self._context.nodes.paths.subscriber(cursor.name))
        return cursor.acks is not None and node is not None and node.mtime_ms <= since_ms

    async def plan(self, rules: Rules) -> Merge | None:
        """Return the next step; None if nothing is left to be merged."""
        segments = await self._context.nodes.segments()
        files = set(await TierNodes(self._context.nodes).numbers())
        there = {segment.ledger_id for segment in segments}
        self._ledgers = {key: found for key, found in self._ledgers.items() if key in there}
        self._fixed &= there
        unknown = sorted(there - self._ledgers.keys())
        await gather_bounded(self._learn, unknown)
        return plan_merge(
            [self._candidate(s, has_files=s.number in files) for s in segments], rules
        )

    async def _learn(self, ledger_id: LedgerId) -> None:
        ledger = None
        with contextlib.suppress(NoSuchLedgerInMetadataError):
            ledger = await self._context.client.ledger_metadata(ledger_id)
        if ledger is None or ledger.is_closed:
            self._ledgers[ledger_id] = ledger

    def _candidate(self, segment: SegmentMetadata, *, has_files: bool) -> Candidate:
        ledger = self._ledgers.get(segment.ledger_id)
        if ledger is None or has_files:
            return Candidate(segment, 0, is_movable=False, is_mergeable=False)
        component = ledger.custom_metadata.get("component")
        return Candidate(
            segment,
            ledger.length,
            # Others may tell positions: of producers, of records larger than an entry.
            is_movable=component == TRANSACTION_COMPONENT
            and COPY_KEY not in ledger.custom_metadata,
            is_mergeable=segment.version == CURRENT_VERSION
            and segment.start_sequence_id >= 0
            and segment.ledger_id not in self._fixed,
        )

    async def run(
        self, rules: Rules, *, has_lock: bool = False, max_steps: int | None = None
    ) -> list[MergeStep]:
        """Merge until nothing is left to be merged; return the steps.

        Args:
            rules: What is merged.
            has_lock: Whether the caller has the stream's lock.
            max_steps: Stop after so many, each of which copies ``target_bytes`` at most.

        Raises:
            MetadataVersionConflict: the stream was truncated, or compacted by somebody else.
            WriterBusyError: somebody writes the stream.
        """
        done: list[MergeStep] = []
        await self._nodes.make()
        owner = "" if has_lock else await self._context.lock().owner()
        if owner:
            raise WriterBusyError(f"{owner} writes stream {self._context.name}")
        while len(done) != max_steps and (merge := await self.plan(rules)) is not None:
            try:
                done.append(await self._carry_out(merge, has_lock=has_lock))
            except FixedEntryError:
                continue  # known by now
        await self.delete_due()
        return done

    async def delete_due(self) -> None:
        """Delete ledgers that were merged long enough ago."""
        await self._orphans.empty_garbage()

    # One step ------------------------------------------------------------------------------

    async def _carry_out(self, merge: Merge, *, has_lock: bool) -> MergeStep:
        env = self._context.store.env
        run = f"{env.random.getrandbits(64):016x}"
        name = AttemptName(merge.number, DRIVER_PARTITION, 0, run[:8])
        who = Identity(APPLICATION, run)
        attempt = Attempt(
            self._place.client, self._place.namespace, self._nodes, who, name, DraftOptions(), 0
        )
        ledger = await attempt.make_segment_ledger(self._context, self._notes(merge))
        try:
            last_entry = await self._copy(merge, ledger)
            await ledger.close()
            async with contextlib.AsyncExitStack() as stack:
                if not has_lock:
                    lock = self._context.lock()
                    await lock.acquire()
                    stack.push_async_callback(lock.release)
                await self._swap(merge, merge.merged(ledger.id, last_entry), name, who)
        except QuorumbookError:
            with contextlib.suppress(QuorumbookError):
                await ledger.abort()
            with contextlib.suppress(QuorumbookError):
                await self._discard(name)
            raise
        return MergeStep(
            segments=len(merge.run),
            number=merge.number,
            ledger_id=ledger.id,
            records=merge.record_count,
            size_bytes=merge.size_bytes,
        )

    def _notes(self, merge: Merge) -> dict[str, bytes]:
        """Return which entries of which ledgers it has, older ones as well, and whose they are."""
        notes: list[tuple[LedgerId, int, int]] = []
        origins: list[Origin | None] = []
        entries = 0
        for segment in merge.run:
            ledger = self._ledgers[segment.ledger_id]
            assert ledger is not None
            older = json.loads(ledger.custom_metadata.get(MERGED_KEY, b"[]"))
            notes += [(ledger_id, entries + first, count) for ledger_id, first, count in older]
            count = ledger.last_entry_id + 1
            notes.append((segment.ledger_id, entries, count))
            entries += count
            origins.append(origin_of(ledger.custom_metadata))
        custom = {MERGED_KEY: json.dumps(notes[-_MOST_NOTES:], separators=_COMPACT).encode()}
        origin = common_origin(origins)
        return custom if origin is None else {**custom, MERGED_TRANSACTION_KEY: origin.encode()}

    async def _copy(self, merge: Merge, ledger: LedgerWriter) -> int:
        """Copy all entries; return in which the run's last record is."""
        records = entries = last_entry = 0
        for segment in merge.run:
            last_entry = entries + segment.last_entry
            count = 0
            opened = await open_segment(self._context, segment, -1)
            if opened is None:
                raise DataLossError(
                    f"the ledger {segment.ledger_id} of segment {segment.number} of stream "
                    f"{self._context.name} is gone",
                    ledger_id=segment.ledger_id,
                )
            try:
                last = opened.ledger.last_add_confirmed
                if last >= 0:
                    async with contextlib.aclosing(opened.ledger.read_batches(0, last)) as batches:
                        async for batch in batches:
                            # A bookie may be read from, and written to.
                            await self._pace(2 * batch.size_bytes)
                            for payload in batch.payloads:
                                moved = moved_entry(payload, records)
                                count = moved.count_after
                                await append_entry(ledger, moved.entry)
            except FixedEntryError:
                self._fixed.add(segment.ledger_id)
                raise
            finally:
                await opened.close()
            if count != segment.record_count:
                raise CorruptRecordsError(
                    f"segment {segment.number} of stream {self._context.name} has {count} records, "
                    f"and its metadata tell of {segment.record_count}",
                    ledger_id=segment.ledger_id,
                )
            entries += last + 1
            records += segment.record_count
        return last_entry

    async def _swap(
        self, merge: Merge, merged: SegmentMetadata, name: AttemptName, who: Identity
    ) -> None:
        """Change all segments in one step.

        Raises:
            MetadataVersionConflict: something has changed since it was planned.
        """
        nodes, paths = self._context.nodes, self._context.nodes.paths
        old = [*merge.before, *merge.run]
        revisions = {}
        found = await gather_bounded(
            lambda each: nodes.segment(each.number, is_in_progress=False), old
        )
        for segment, node in zip(old, found, strict=True):
            if node is None or node[0] != segment:
                raise MetadataVersionConflict(
                    f"segment {segment.number} of stream {self._context.name} has changed "
                    "since it was read: try again"
                )
            revisions[segment.number] = node[1]
        # One that begins to get files from here on changes its version.
        files = revisions.keys() & set(await TierNodes(nodes).numbers())
        if files:
            raise MetadataVersionConflict(
                f"segment {min(files)} of stream {self._context.name} is being moved to files: try"
                " again"
            )
        new = {segment.number: segment for segment in (*merge.moved(), merged)}
        now_ms = nodes.store.env.clock.wall_ms()
        garbage = AttemptRecord(
            query=who.query,
            run=who.run,
            ledgers=tuple(segment.ledger_id for segment in merge.run),
            due_ms=now_ms + self._keep_ms,
        )
        operations: list[Operation] = [
            Delete(f"{self._nodes.attempts_path}/{name}"),
            Create(f"{self._nodes.garbage_path}/{name}", garbage.encode()),
        ]
        for number, revision in revisions.items():
            path = paths.segment(number, is_in_progress=False)
            operations.append(
                Set(path, new[number].encode().encode(), *revision)
                if number in new
                else Delete(path, *revision)
            )

        async def was_done() -> bool:
            found = await nodes.segment(merged.number, is_in_progress=False)
            return found is not None and found[0].ledger_id == merged.ledger_id

        what = f"stream {self._context.name}: merging segments up to {merged.number}"
        try:
            await change_once(nodes.store, operations, was_done, what)
        except (NoSuchNodeError, NodeExistsError) as error:
            raise MetadataVersionConflict(f"{what}: {error}") from error

    async def _discard(self, name: AttemptName) -> None:
        """Clean up behind a step that was not made."""
        _, revision = await self._nodes.read_head()
        for found in await self._nodes.read_attempts([name]):
            await self._nodes.discard(found, revision)
        await self._orphans.empty_garbage()
