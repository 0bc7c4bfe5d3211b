"""What a stream holds at one moment, cut into ranges that any process can read by itself.

A snapshot does not change when the stream goes on: what was confirmed stays.  Its splits are whole
entries of one ledger each, in order, without gap or overlap; a split as JSON is all that a reader
in another process needs beside the namespace.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import asdict, dataclass, replace
from typing import Any

from quorumbook.ids import EntryId, LedgerId
from quorumbook.streams.errors import DataLossError
from quorumbook.streams.format.position import Position
from quorumbook.streams.format.segment_text import SegmentMetadata
from quorumbook.streams.reading.batches import RecordBatch
from quorumbook.streams.reading.chunks import Chunks
from quorumbook.streams.reading.options import ReaderOptions
from quorumbook.streams.reading.reader import StreamReader
from quorumbook.streams.reading.segment_reader import before_unfinished, open_segment
from quorumbook.streams.segments import start_sequence_ids, without_truncated
from quorumbook.streams.stream_context import StreamContext

_ENVELOPED, _BARE = 5, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Some entries of one segment."""

    segment: int
    ledger_id: LedgerId
    first_entry: EntryId
    last_entry: EntryId
    #: Records before this one in the first entry are truncated.
    start: Position
    #: Where the next split begins, or one in the following segment.
    end: Position
    #: The sequence id of the segment's first record; below 0 if it cannot be known.
    segment_sequence_id: int
    is_enveloped: bool
    #: About how many bytes it has.
    size_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return what ``from_json`` takes, made of numbers, truth values and lists."""
        return {**asdict(self), "start": list(self.start), "end": list(self.end)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Split:
        """Return the split that ``to_json`` was called on."""
        return cls(**{**data, "start": Position(*data["start"]), "end": Position(*data["end"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSegment:
    """A segment as far as it was confirmed."""

    metadata: SegmentMetadata
    start_sequence_id: int
    last_entry: EntryId
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSnapshot:
    """A stream at one moment."""

    segments: tuple[SnapshotSegment, ...]
    #: Behind the last record that was confirmed.
    end: Position

    def splits(self, target_bytes: int = 64 * 1024 * 1024) -> list[Split]:
        """Return ranges of about this many bytes each, and at least one entry."""
        found = []
        for segment in self.segments:
            metadata, entries = segment.metadata, segment.last_entry + 1
            step = max(1, target_bytes * entries // max(segment.size_bytes, 1))
            for first in range(metadata.min_active_entry, entries, step):
                last = min(first + step, entries) - 1
                found.append(
                    Split(
                        segment=metadata.number,
                        ledger_id=metadata.ledger_id,
                        first_entry=first,
                        last_entry=last,
                        start=max(Position(metadata.number, first, 0), metadata.first_active),
                        end=Position(metadata.number, last + 1, 0),
                        segment_sequence_id=segment.start_sequence_id,
                        is_enveloped=metadata.is_enveloped,
                        size_bytes=segment.size_bytes * (last - first + 1) // entries,
                    )
                )
        return found


async def take_snapshot(context: StreamContext, begin: Position | None = None) -> StreamSnapshot:
    """Return what a stream holds now, from a position on; see ``Stream.snapshot``."""
    everything = await context.nodes.segments(first=0 if begin is None else begin.segment)
    left = without_truncated(everything)
    starts = start_sequence_ids(everything)[len(everything) - len(left) :]
    found = []
    end = Position(context.first_segment, 0, 0)
    for metadata, start in zip(left, starts, strict=True):
        if begin is not None and metadata.number < begin.segment:
            continue
        opened = await open_segment(context, metadata, start)
        if opened is None:
            raise DataLossError(
                f"the ledger {metadata.ledger_id} of segment {metadata.number} of stream "
                f"{context.name} is gone",
                ledger_id=metadata.ledger_id,
            )
        try:
            ledger = opened.ledger
            last = await ledger.read_last_add_confirmed()
            size = ledger.length
            if last >= 0 and not ledger.is_closed:
                size = (await ledger.read_entry(last)).length
        finally:
            await opened.close()
        end = Position(metadata.number, last + 1, 0)
        due = metadata
        if begin is not None and begin > metadata.first_active:
            due = replace(metadata, min_active_entry=begin.entry, min_active_slot=begin.slot)
        found.append(
            SnapshotSegment(metadata=due, start_sequence_id=start, last_entry=last, size_bytes=size)
        )
    # A record of which a part is missing yet is for the next snapshot.
    cut = await before_unfinished(context, left, end)
    if cut < end:
        end = cut
        found = [
            replace(each, last_entry=cut.entry - 1) if number == cut.segment else each
            for each in found
            if (number := each.metadata.number) <= cut.segment
        ]
    return StreamSnapshot(segments=tuple(found), end=end)


async def read_split(context: StreamContext, split: Split) -> AsyncGenerator[RecordBatch, None]:
    """Yield the records of a split; see ``Stream.read_split``."""
    metadata = SegmentMetadata(
        number=split.segment,
        ledger_id=split.ledger_id,
        first_txid=0,
        version=_ENVELOPED if split.is_enveloped else _BARE,
    )
    opened = await open_segment(context, metadata, split.segment_sequence_id)
    if opened is None:
        raise DataLossError(
            f"the ledger {split.ledger_id} of segment {split.segment} of stream {context.name} is "
            "gone since the snapshot was taken",
            ledger_id=split.ledger_id,
        )
    chunks = Chunks()
    try:
        if opened.ledger.last_add_confirmed < split.last_entry:
            await opened.ledger.read_last_add_confirmed()
        runs = opened.confirmed(split.first_entry, split.last_entry)
        async with contextlib.aclosing(runs):
            async for run in runs:
                for each in run:
                    due = each.between(split.start, split.end)
                    whole = due and chunks.feed(due)
                    if whole is not None:
                        yield whole
        if opened.next_entry <= split.last_entry:
            raise DataLossError(
                f"entries {opened.next_entry} to {split.last_entry} of segment {split.segment} of "
                f"stream {context.name} were confirmed when the snapshot was taken, and are gone",
                ledger_id=split.ledger_id,
            )
    finally:
        await opened.close()
    if chunks.start is not None:
        # What begins here ends behind the split.
        options = ReaderOptions(tail=False, end=chunks.start.next)
        async with StreamReader(context, chunks.start, options) as reader:
            async for batch in reader.read_batches():
                yield batch
