"""An entry of one segment as it is in another, where other records come before it; pure.

Records tell how many of their segment come before them.  Of what our writers add, chunks of a
larger record tell where its first one is, and producers' notes where their records are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from quorumbook.streams.errors import StreamError
from quorumbook.streams.format.control import EntryNote, moved_chunk
from quorumbook.streams.format.envelope import codec_of, decode_entry, encode_entry
from quorumbook.streams.format.position import Position
from quorumbook.streams.format.record_sets import EntrySets
from quorumbook.streams.format.records import (
    RECORD_SET,
    decode_records,
    encode_record,
    shift_positions,
)

Move = Callable[[Position], Position]


class FixedEntryError(StreamError):
    """An entry tells positions that cannot be told otherwise."""


class MovedEntry(NamedTuple):
    """An entry, and what was seen of it on the way."""

    entry: bytes
    #: User records of its old segment before it, and up to and with it.
    count_before: int
    count_after: int
    last_slot: int
    #: Of its first user record, as control records have that of the record before them; None if
    #: it has none.
    first_txid: int | None
    #: Of its last record; -1 if it has none.
    last_txid: int


def moved_entry(entry: bytes, by: int | None, move: Move | None = None) -> MovedEntry:
    """Return an entry with other positions.

    Args:
        entry: As it is stored, with its envelope.
        by: How many more records come before it, which may be fewer; None: none do any more.
        move: Where what was at a position is now; None: that cannot be said.

    Raises:
        FixedEntryError: it tells positions, and where they are now cannot be said; or its
            writer did not count, so that it cannot be told how many records come before it.
        CorruptRecordsError: it is damaged.
    """
    data = decode_entry(entry)
    before: int | None = None
    count = 0
    slot, last_txid = -1, -1
    first_txid: int | None = None
    pieces: list[bytes] | None = None
    sets = EntrySets()
    records = decode_records(data)
    for index, record in enumerate(records):
        members = 1
        count = record.position
        if record.is_user:
            if record.position == 0:
                raise FixedEntryError("records that do not tell how many come before them")
            if record.flags & RECORD_SET:
                members = len(sets.decode(record.payload))
            count += members - 1
            first_txid = record.txid if first_txid is None else first_txid
        elif (note := EntryNote.decode(record.payload)) is not None:
            if move is None and (note.snapshot or note.runs or note.chunk):
                raise FixedEntryError("an entry that tells positions of records")
            if move is not None and note.chunk is not None:
                pieces = pieces or [encode_record(*each) for each in records]
                payload = moved_chunk(record.payload, move(note.chunk.first))
                pieces[index] = encode_record(*record._replace(payload=payload))
        if before is None:
            before = record.position - record.is_user
        last_txid = record.txid
        slot += members
    before = before or 0
    by = -before if by is None else by
    if by or pieces is not None:
        data = data if pieces is None else b"".join(pieces)
        entry = encode_entry(shift_positions(data, by), codec_of(entry))
    return MovedEntry(entry, before, count, slot, first_txid, last_txid)
