"""Which segments a stream gets from sealed ledgers, in which order; pure."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from quorumbook.ids import EntryId, LedgerId
from quorumbook.metadata.store import Create, Operation, Set
from quorumbook.streams.errors import TransactionLostError, TxidOutOfOrderError
from quorumbook.streams.format.names import StreamPaths
from quorumbook.streams.format.segment_text import SegmentMetadata
from quorumbook.streams.writing.takeover import StreamTail


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A sealed ledger with records of one part of a batch, for one stream."""

    #: The stream's name; empty: a ledger of rows, for no stream.
    stream: str
    ledger_id: LedgerId
    record_count: int
    size_bytes: int
    last_entry: EntryId
    last_slot: int = -1
    first_txid: int = 0
    last_txid: int = 0
    #: Whether its transaction ids are the user's, whose order is kept to.
    has_own_txids: bool = False
    #: Of a copy: the segment that it must become; None: any.
    number: int | None = None
    #: Of a copy: its first record's, which must be the stream's next; None: whatever that is.
    first_sequence_id: int | None = None

    @property
    def is_copy(self) -> bool:
        """Whether its records must stay as they are."""
        return self.number is not None or self.first_sequence_id is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedRows:
    """Rows of one part of a batch, for one stream: too few for a ledger, so the driver has them."""

    stream: str
    payloads: tuple[bytes, ...]
    #: The user's; None: they get one when they are committed.
    txids: tuple[int, ...] | None = None
    #: What each carries, encoded; None: nothing.
    carried: tuple[bytes, ...] | None = None

    @property
    def has_own_txids(self) -> bool:
        """Whether their transaction ids are the user's, whose order is kept to."""
        return self.txids is not None

    @property
    def first_txid(self) -> int:
        """That of the first."""
        return self.txids[0] if self.txids else 0

    @property
    def last_txid(self) -> int:
        """That of the last."""
        return self.txids[-1] if self.txids else 0


AnyPart = TypeVar("AnyPart", Draft, HandedRows, Draft | HandedRows)


def in_order(drafts: Sequence[AnyPart]) -> list[AnyPart]:
    """Return the parts of a stream, which come in the order of partitions, as they are grafted.

    Those whose transaction ids are the user's are ordered by them.

    Raises:
        TxidOutOfOrderError: two partitions overlap.
    """
    if not any(draft.has_own_txids for draft in drafts):
        return list(drafts)
    ordered = sorted(drafts, key=lambda draft: (draft.first_txid, draft.last_txid))
    for before, after in itertools.pairwise(ordered):
        if after.first_txid < before.last_txid:
            raise TxidOutOfOrderError(
                f"stream {after.stream}: one partition has transaction ids up to "
                f"{before.last_txid}, another from {after.first_txid} on; partition the rows by "
                "ranges of their txid"
            )
    return ordered


def check_floor(stream: str, drafts: Sequence[Draft], last_txid: int) -> None:
    """Raise TxidOutOfOrderError if transaction ids begin below the stream's last."""
    lowest = min((draft.first_txid for draft in drafts if not draft.is_copy), default=last_txid)
    if lowest < last_txid:
        raise TxidOutOfOrderError(
            f"stream {stream} has transaction ids up to {last_txid} already; this batch begins "
            f"with {lowest}: give larger ones, leave the column txid out, or have ids in any "
            "order with the stream's policy txid=free"
        )


def as_copied(stream: str, drafts: Sequence[Draft], tail: StreamTail) -> StreamTail:
    """Return a stream's end as copies, in order, go on from it; any may begin an empty stream.

    Raises:
        TransactionLostError: the stream goes on otherwise.
    """
    first = drafts[0]
    if first.first_sequence_id is not None and tail.completed_at_ms == 0:
        tail = replace(tail, next_sequence_id=first.first_sequence_id)
    sequence_id = tail.next_sequence_id
    for number, draft in enumerate(drafts, tail.next_number):
        if draft.number not in (None, number) or draft.first_sequence_id not in (None, sequence_id):
            raise TransactionLostError(
                f"stream {stream} goes on with segment {number} and record {sequence_id}, this "
                f"copy with segment {draft.number or number} and record "
                f"{draft.first_sequence_id}: somebody else wrote it"
            )
        sequence_id += draft.record_count
    return tail


def segments_of(drafts: Sequence[Draft], tail: StreamTail, now_ms: int) -> list[SegmentMetadata]:
    """Return the segments that drafts, in order, become behind the end of a stream."""
    found = []
    sequence_id = tail.next_sequence_id
    for number, draft in enumerate(drafts, tail.next_number):
        found.append(
            SegmentMetadata(
                number=number,
                ledger_id=draft.ledger_id,
                first_txid=draft.first_txid,
                last_txid=draft.last_txid,
                completed_at_ms=now_ms,
                record_count=draft.record_count,
                last_entry=draft.last_entry,
                last_slot=draft.last_slot,
                start_sequence_id=sequence_id,
                is_in_progress=False,
            )
        )
        sequence_id += draft.record_count
    return found


def graft(
    paths: StreamPaths, segments: Sequence[SegmentMetadata], tail: StreamTail
) -> list[Operation]:
    """Return what makes a stream have these segments, one at least, if it ends as it did.

    The same three kinds of nodes change as when a writer starts and completes a segment.
    """
    state = tail.state
    highest = max(segments[-1].number, state.max_segment)
    max_txid = max(state.max_txid, *(segment.last_txid for segment in segments))
    return [
        *(
            Create(paths.segment(segment.number, is_in_progress=False), segment.encode().encode())
            for segment in segments
        ),
        Set(
            paths.segments,
            str(highest).encode(),
            state.max_segment_version,
            state.segments_creation_id,
        ),
        Set(
            paths.max_txid,
            str(max_txid).encode(),
            state.max_txid_version,
            state.max_txid_creation_id,
        ),
    ]


def size_bytes(operations: Sequence[Operation]) -> int:
    """Return about how many bytes operations take in a request."""
    total = 0
    for operation in operations:
        data = getattr(operation, "data", b"")
        total += len(operation.path.encode()) + len(data) + 64
    return total
