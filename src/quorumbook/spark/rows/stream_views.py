"""Looks at streams: which there are, their segments, and what is confirmed of them.

Lists of segments are read once and again when a watch says that they changed; of the segment that
is written the last add confirmed is asked for each time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from quorumbook.client.context import client_store
from quorumbook.client.reading.reader import LedgerReader, note_confirmed
from quorumbook.env.tasks import gather_bounded
from quorumbook.errors import (
    DigestMismatchError,
    NoSuchEntryError,
    NoSuchLedgerError,
    NoSuchLedgerInMetadataError,
    QuorumbookError,
)
from quorumbook.ids import LedgerId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.spark.pool import ClusterClient
from quorumbook.spark.request.offsets import birth_of
from quorumbook.spark.request.read_options import ReadOptions
from quorumbook.spark.rows.open_ledgers import OpenLedgers, Sizes
from quorumbook.spark.rows.views import Extent, View
from quorumbook.streams import Namespace
from quorumbook.streams.errors import (
    CorruptRecordsError,
    StreamNotFoundError,
    UnsupportedFormatError,
)
from quorumbook.streams.format.segment_text import SegmentMetadata
from quorumbook.streams.partitions.partition_node import partition_count, partitioned_among
from quorumbook.streams.partitions.partitioning import bare_name, partition_name
from quorumbook.streams.reading.entries import decode_user_records, entry_time_ms
from quorumbook.streams.reading.segment_reader import open_segment
from quorumbook.streams.segments import start_sequence_ids, without_truncated
from quorumbook.streams.stream_context import StreamContext, stream_context
from quorumbook.streams.tier.nodes import ledger_of
from quorumbook.streams.tier.reader import PartsReader

#: Of the time that listing all streams takes, it is left alone this many times as long.
_REST = 10
#: What is so whenever it is looked at: the bytes are as they were written, or deleted.
_DAMAGED = (CorruptRecordsError, UnsupportedFormatError, NoSuchLedgerInMetadataError)


class _Known:
    """What was read of a stream's metadata."""

    def __init__(self, context: StreamContext) -> None:
        self.context = context
        self.birth = 0
        self.last_moved = 0
        self.segments: list[tuple[SegmentMetadata, int]] = []
        self.next_segment = 1
        self.is_stale = True

    def on_watch(self) -> None:
        """Read it again when it is looked at next."""
        self.is_stale = True


class StreamViews:
    """The streams that are selected."""

    def __init__(self, cluster: ClusterClient, namespace: Namespace, options: ReadOptions) -> None:
        """Take the selection."""
        self._namespace = namespace
        self._options = options
        self._selection = options.selection
        self._clock = client_store(cluster.client).env.clock
        self._known: dict[str, _Known] = {}
        # The option's password is that of ledgers: a stream's segments have none.
        self.open_ledgers = OpenLedgers(cluster, options.connection, self._open_files, password=b"")
        #: By stream: the end that was looked at, and where an unfinished record begins before it.
        self._unfinished: dict[str, tuple[tuple[LedgerId, int], tuple[int, int] | None]] = {}
        #: Whose segment a ledger is.
        self._segments: dict[LedgerId, tuple[StreamContext, SegmentMetadata]] = {}
        #: By name: which one of a partitioned stream; below 0: it is none.
        self._listed: dict[str, int] = {}
        self._list_again_ns = 0
        self._listing = asyncio.Lock()

    async def names(self) -> Sequence[str]:
        """Return the names, sorted; new ones appear after a while."""
        async with self._listing:
            now = self._clock.now_ns()
            if now >= self._list_again_ns:
                found = await (
                    self._matching() if self._selection.stream_pattern else self._named()
                )
                order = sorted(found, key=lambda name: (bare_name(name, found[name]), found[name]))
                self._listed = {name: found[name] for name in order}
                after = self._clock.now_ns()
                self._list_again_ns = after + _REST * (after - now)
        return list(self._listed)

    async def _matching(self) -> dict[str, int]:
        """List the streams that match, and the partitions of streams that do."""
        wanted = re.compile(self._selection.stream_pattern)
        names = [name async for name in self._namespace.streams()]
        partitioned = {*await partitioned_among(self._namespace, names)}
        found = {}
        for name in names:
            above, _, part = name.rpartition("/p")
            if above in partitioned and part.isdecimal() and wanted.fullmatch(above):
                found[name] = int(part)
            elif wanted.fullmatch(name):
                found[name] = -1
        return found

    async def _named(self) -> dict[str, int]:
        """Return the streams that are named, with the partitions that they have now."""
        names = self._selection.streams
        # What was read as a stream by itself is one for ever.
        doubtful = [name for name in names if name not in self._known]
        found = dict.fromkeys(names, -1)
        counts = await gather_bounded(lambda name: partition_count(self._namespace, name), doubtful)
        for name, count in zip(doubtful, counts, strict=True):
            if count is not None:
                del found[name]
                found |= {partition_name(name, number): number for number in range(count)}
        return found

    def title(self, name: str) -> str:
        """Return what a stream is called where all partitions of one are meant."""
        return bare_name(name, self._listed.get(name, -1))

    def context(self, name: str) -> StreamContext:
        """Return what parts of a stream share."""
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = _Known(stream_context(self._namespace.stream(name)))
        return known.context

    def look_again(self, name: str) -> None:
        """Read a stream's segments when it is looked at next."""
        if name in self._known:
            self._known[name].is_stale = True

    async def view(self, name: str) -> View | None:
        """Return what a stream holds."""
        if not self._list_again_ns:
            await self.names()  # which says what is a partition
        self.context(name)
        known = self._known[name]
        if known.is_stale:
            try:
                is_there = await self._read(known)
            except BaseException:
                # No watch may be left to say that it has to be read.
                known.is_stale = True
                raise
            if not is_there:
                return None
        extents = []
        for segment, start_sequence_id in known.segments:
            end = segment.last_entry + 1
            is_complete = not segment.is_in_progress
            if not is_complete:
                try:
                    end, _ = await self.open_ledgers.end_entry(segment.ledger_id)
                except NoSuchLedgerInMetadataError:
                    known.is_stale = True
                    continue
            extents.append(
                Extent(
                    segment.number, segment.ledger_id, segment.min_active_entry,
                    segment.min_active_slot, end, is_complete,
                    segment.record_count if is_complete else -1,
                    start_sequence_id, segment.is_enveloped,
                )
            )  # fmt: skip
        partition = self._listed.get(name, -1)
        view = View(
            name, known.birth, tuple(extents), known.next_segment, partition, known.last_moved
        )
        cut = await self._begin_of_unfinished(view)
        return view if cut is None else view.up_to(*cut)

    async def _begin_of_unfinished(self, view: View) -> tuple[int, int] | None:
        """Return where a record begins of which a part is still to come; None if none does.

        Such a record is larger than an entry, and for the batch after the one that it ends in.
        """
        if not view.extents:
            return None
        last = view.extents[-1]
        found = self._unfinished.get(view.name)
        if found is None or found[0] != (last.ledger_id, last.end_entry):
            try:
                cut = await self._look_for_unfinished(view)
            except (QuorumbookError, OSError) as error:
                if not self._is_lost_for_good(error):
                    # A batch that ends inside a record loses it: what follows has no beginning.
                    raise
                return None  # whoever reads it says what is wrong
            found = self._unfinished[view.name] = ((last.ledger_id, last.end_entry), cut)
        return found[1]

    def _is_lost_for_good(self, error: Exception) -> bool:
        """Tell whether no later look finds a record where an entry could not be read."""
        if isinstance(error, _DAMAGED):
            return True
        # Replicas that are away now may have it: only those who go on without it pass it over.
        if isinstance(error, DigestMismatchError):
            return self._options.on_corrupt != "fail"
        if isinstance(error, NoSuchEntryError | NoSuchLedgerError):
            return not self._options.fails_on_data_loss
        return False

    async def _look_for_unfinished(self, view: View) -> tuple[int, int] | None:
        for extent in reversed(view.extents):
            for entry_id in range(extent.end_entry - 1, extent.first_entry - 1, -1):
                try:
                    reader = await self.open_ledgers.reader(extent.ledger_id)
                    if isinstance(reader, LedgerReader):
                        # One that was opened while its segment was written may know less.
                        note_confirmed(reader, entry_id)
                    payload = (await reader.read_entry(entry_id)).payload
                    entry = decode_user_records(
                        payload, is_enveloped=extent.is_enveloped, count_before=-1
                    )
                finally:
                    if extent.is_complete:
                        await self.open_ledgers.forget(extent.ledger_id)
                if entry.runs:
                    chunk = entry.chunk
                    if chunk is None or chunk.number + 1 == chunk.total:
                        return None
                    return chunk.first.segment, chunk.first.entry
        return None

    async def metadata(self, ledger_id: LedgerId) -> LedgerMetadata:
        """Return what the metadata say of a segment's ledger, or said while bookies had it."""
        return await ledger_of(*self._segments[ledger_id])

    def made_ms(self, extent: Extent, payload: bytes) -> int | None:
        """Return what the writer's note at an entry's beginning says."""
        return entry_time_ms(payload, is_enveloped=extent.is_enveloped)

    async def sizes(self, ledger_id: LedgerId, end_entry: int) -> Sizes:
        """Return how large the entries of a segment are."""
        return await self.open_ledgers.sizes(ledger_id, end_entry)

    async def _open_files(self, ledger_id: LedgerId) -> PartsReader | None:
        """Return what a segment is read from that was moved to files."""
        context, segment = self._segments[ledger_id]
        opened = await open_segment(context, segment, -1)
        if opened is None:
            return None
        if isinstance(opened.ledger, PartsReader):
            return opened.ledger
        await opened.close()  # its ledger is there again
        return None

    async def _read(self, known: _Known) -> bool:
        """Read a stream's segments; False if there is no such stream."""
        nodes = known.context.nodes
        while True:
            before = await nodes.store.exists(nodes.paths.segments)
            if before is None:
                known.is_stale = True
                return False
            known.is_stale = False
            try:
                everything = await nodes.segments(watch=known.on_watch)
                state = await nodes.read_state()
            except StreamNotFoundError:
                continue
            after = await nodes.store.exists(nodes.paths.segments)
            if after is not None and after.creation_id == before.creation_id:
                break
        left = without_truncated(everything)
        self._segments |= {segment.ledger_id: (known.context, segment) for segment in left}
        starts = start_sequence_ids(everything)[len(everything) - len(left) :]
        gone = {segment.ledger_id for segment, _ in known.segments if segment.is_in_progress}
        moved = [segment for segment in everything if segment.is_compacted]
        # What was merged last is in the newest ledger.
        numbering = max((segment.ledger_id for segment in moved), default=0)
        known.birth = birth_of(before.creation_id, numbering)
        known.last_moved = max((segment.number for segment in moved), default=0)
        known.segments = list(zip(left, starts, strict=True))
        known.next_segment = max(state.max_segment + 1, known.context.first_segment)
        for ledger_id in gone - {s.ledger_id for s in left if s.is_in_progress}:
            await self.open_ledgers.forget(ledger_id)
        return True
