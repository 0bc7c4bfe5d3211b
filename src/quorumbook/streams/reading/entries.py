"""What readers make of an entry: its user records, with slots and positions; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from struct import error as StructError  # noqa: N812 - an exception by its nature
from typing import NamedTuple

from quorumbook.streams.errors import CorruptRecordsError
from quorumbook.streams.format.attributes import Attributes
from quorumbook.streams.format.control import Chunk, EntryNote
from quorumbook.streams.format.envelope import decode_entry, records_offset
from quorumbook.streams.format.plain_entries import even_records
from quorumbook.streams.format.record_sets import EntrySets
from quorumbook.streams.format.records import (
    CONTROL,
    END_OF_STREAM,
    HEADER_SIZE_BYTES,
    RECORD_SET,
    LogRecord,
    decode_records,
    first_header,
)


class LastRecord(NamedTuple):
    """The last record of an entry."""

    txid: int
    #: How many user records the segment has up to it.
    position: int
    slot: int


class UserRecords(NamedTuple):
    """User records with consecutive slots in one entry."""

    first_slot: int
    #: The first one's, in the segment, from 1.
    first_position: int
    txids: Sequence[int]
    payloads: Sequence[bytes]


class DecodedEntry(NamedTuple):
    """What an entry holds."""

    runs: list[UserRecords]
    #: User records of the segment up to and with this entry.
    count_after: int
    is_end_of_stream: bool
    notes: list[EntryNote]

    @property
    def chunk(self) -> Chunk | None:
        """Which part of a larger record its only one is; None where they are whole."""
        chunk = next((note.chunk for note in self.notes if note.chunk is not None), None)
        if chunk is not None and [len(run.payloads) for run in self.runs] != [1]:
            raise CorruptRecordsError("a chunk of a record is not alone in its entry")
        return chunk

    @property
    def chunks_before(self) -> int:
        """How many records of the segment before this entry are further chunks of larger ones."""
        return max((note.further_chunks for note in self.notes), default=0)

    @property
    def chunks_after(self) -> int:
        """How many there are up to and with this entry."""
        return self.chunks_before + (self.chunk is not None and self.chunk.number > 0)

    @property
    def attributes(self) -> Mapping[int, Attributes]:
        """What records carry beside their payloads, by their slots."""
        if not any(note.attributes for note in self.notes):
            return {}
        slots = [run.first_slot + n for run in self.runs for n in range(len(run.payloads))]
        try:
            return {
                slots[index]: carried
                for note in self.notes
                for index, carried in (note.attributes or {}).items()
            }
        except IndexError as error:
            raise CorruptRecordsError(
                f"a control record tells of more than the {len(slots)} records of its entry"
            ) from error


def last_record(entry: bytes, *, is_enveloped: bool) -> LastRecord | None:
    """Return the last record of an entry, whatever its kind; None if there is none."""
    slot, last, sets = -1, None, EntrySets()
    for record in decode_records(decode_entry(entry) if is_enveloped else entry):
        members = len(sets.decode(record.payload)) if record.flags & RECORD_SET else 1
        slot += members
        last = LastRecord(record.txid, record.position + members - 1, slot)
    return last


def records_before(entry: bytes, *, is_enveloped: bool) -> tuple[int, int]:
    """Return how many user records precede an entry in its segment, and its first txid."""
    flags, position, txid = first_header(decode_entry(entry) if is_enveloped else entry)
    is_user = not flags & (CONTROL | END_OF_STREAM)
    return position - is_user, txid


def entry_time_ms(entry: bytes, *, is_enveloped: bool) -> int | None:
    """Return when an entry was made; None if its writer did not tell."""
    for record in decode_records(decode_entry(entry) if is_enveloped else entry):
        note = EntryNote.decode(record.payload) if record.flags & CONTROL else None
        if note is not None:
            return note.appended_at_ms
    return None


def control_records(entry: bytes, *, is_enveloped: bool) -> list[tuple[int, LogRecord]]:
    """Return the control records of an entry, with their slots."""
    found, slot, sets = [], 0, EntrySets()
    for record in decode_records(decode_entry(entry) if is_enveloped else entry):
        if record.flags & CONTROL:
            found.append((slot, record))
        slot += len(sets.decode(record.payload)) if record.flags & RECORD_SET else 1
    return found


def decode_user_records(entry: bytes, *, is_enveloped: bool, count_before: int) -> DecodedEntry:
    """Take an entry apart.

    Args:
        entry: Its bytes.
        is_enveloped: Whether there is an envelope around the records.
        count_before: User records of the segment before this entry; -1 if that is not known.

    Raises:
        CorruptRecordsError: its bytes are damaged, or positions jump within it.
    """
    data, offset = entry, records_offset(entry) if is_enveloped else 0
    if offset < 0:
        data, offset = decode_entry(entry), 0
    fast = _decode_ours(data, offset, count_before)
    if fast is not None:
        return fast
    runs: list[UserRecords] = []
    notes: list[EntryNote] = []
    is_end = False
    slot, count, sets = 0, count_before, EntrySets()
    for record in decode_records(data[offset:]):
        if not record.is_user:
            is_end = is_end or bool(record.flags & END_OF_STREAM)
            if count < 0:
                count = record.position
            note = EntryNote.decode(record.payload)
            if note is not None:
                notes.append(note)
            slot += 1
            continue
        payloads = sets.decode(record.payload) if record.flags & RECORD_SET else [record.payload]
        if count < 0:
            count = record.position - 1
        if record.position:  # else its writer did not count
            _check(record, count)
        run = runs[-1] if runs else None
        if run is not None and run.first_slot + len(run.payloads) == slot:
            assert isinstance(run.payloads, list)
            assert isinstance(run.txids, list)
            run.payloads.extend(payloads)
            run.txids.extend([record.txid] * len(payloads))
        else:
            runs.append(UserRecords(slot, count + 1, [record.txid] * len(payloads), payloads))
        slot += len(payloads)
        count += len(payloads)
    return DecodedEntry(runs, max(count, 0), is_end, notes)


def _check(record: LogRecord, count: int) -> None:
    if record.position != count + 1:
        raise CorruptRecordsError(
            f"a record says that it is number {record.position} of its segment where number "
            f"{count + 1} is due"
        )


_HEADER = Struct(">Qqi")


def _decode_ours(data: bytes, offset: int, count_before: int) -> DecodedEntry | None:
    """Take an entry of our writers apart whose records have one size, which is done at once.

    They write a note and then user records, rarely in sets.

    Returns:
        None if the entry is not of that kind, damaged ones included.
    """
    try:
        metadata, _, head_size = _HEADER.unpack_from(data, offset)
        start = offset + HEADER_SIZE_BYTES + head_size
        first, _, size = _HEADER.unpack_from(data, start)
    except StructError:
        return None
    if metadata & 7 != CONTROL or head_size < 0 or size < 0:
        return None
    stride = HEADER_SIZE_BYTES + size
    count, rest = divmod(len(data) - start, stride)
    position = (first >> 16) & 0xFFFFFFFF
    if rest or count < 2 or position != (count_before + 1 if count_before >= 0 else position):
        return None
    if first != position << 16:
        return None
    found = even_records(data, start, size, count, first)
    note = None if found is None else EntryNote.decode(data[offset + HEADER_SIZE_BYTES : start])
    if found is None or note is None:
        return None
    return DecodedEntry([UserRecords(1, position, *found)], position + count - 1, False, [note])
