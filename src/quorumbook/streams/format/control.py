"""What our writers tell beside user records, in a control record at the head of an entry.

    5  00 'B' 'K' 'X' 01
    then, any number of times, by ascending tag:
    1  tag, 4 size, n value

    tag 1  when the entry was made: 8 ms since 1970
    tag 2  who appended its records: 2 size, name; then runs of numbers the producer gave:
           4 first record (of the entry's user records, from 0), 8 first number, 4 count
    tag 3  what is known of producers, at the head of a segment and now and then: 4 count, then
           2 size, name, 8 last number, 8 segment, 8 entry, 8 slot, 8 sequence id, 8 ms
    tag 4  what its records carry beside their payloads: see ``attributes``
    tag 5  the one user record of the entry is a chunk of a larger one: 4 which, from 0, 4 of how
           many, 8 segment, 8 entry, 8 slot of the first
    tag 6  of the segment's records before this entry so many are further chunks of larger ones: 4

The peer skips all control records, whatever is in them; so do we with tags we do not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError  # noqa: N812 - an exception by its nature
from typing import NamedTuple

from quorumbook.streams.errors import CorruptRecordsError
from quorumbook.streams.format.attributes import Attributes, decode_rows, encode_rows
from quorumbook.streams.format.position import Position

#: How much of a record that fits into no entry is in one; the rest is for what it carries.
CHUNK_SIZE_BYTES = 896 * 1024
_MAGIC = b"\0BKX\x01"
MAGIC_SIZE_BYTES = len(_MAGIC)
_FIELD = Struct(">BI")
_TIME = Struct(">q")
_SIZE = Struct(">H")
_COUNT = Struct(">I")
_RUN = Struct(">IqI")
_KNOWN_PRODUCER = Struct(">qqqqqq")
_TIME_TAG, _PRODUCER_TAG, _SNAPSHOT_TAG, _ATTRIBUTES_TAG, _CHUNK_TAG = 1, 2, 3, 4, 5
_FURTHER_CHUNKS_TAG = 6
_CHUNK = Struct(">IIqqq")
#: A time alone, ready to be filled in.
_TIME_HEAD = _MAGIC + _FIELD.pack(_TIME_TAG, _TIME.size)


@dataclass(frozen=True, slots=True)
class ProducerRun:
    """Consecutive records with consecutive numbers of a producer's."""

    first_record: int
    first_number: int
    count: int


class Chunk(NamedTuple):
    """Which part of a record an entry has."""

    number: int
    total: int
    #: Where the first one is, and so the record.
    first: Position


@dataclass(frozen=True, slots=True)
class ProducerState:
    """What is known of a producer."""

    name: str
    last_number: int
    #: Where the record of that number is.
    position: Position
    sequence_id: int
    appended_at_ms: int


@dataclass(frozen=True, slots=True)
class EntryNote:
    """What one control record tells."""

    appended_at_ms: int | None = None
    producer: str | None = None
    runs: tuple[ProducerRun, ...] = ()
    #: None: there is no snapshot in it.
    snapshot: tuple[ProducerState, ...] | None = None
    #: By the number of the user record in the entry, from 0.
    attributes: Mapping[int, Attributes] | None = None
    chunk: Chunk | None = None
    #: Of the segment's records before the entry so many are no records to who appended them.
    further_chunks: int = 0

    def encode(self) -> bytes:
        """Return the payload of the control record, without attributes and chunks."""
        parts = [_MAGIC]

        def add(tag: int, value: bytes) -> None:
            parts.extend((_FIELD.pack(tag, len(value)), value))

        if self.appended_at_ms is not None:
            add(_TIME_TAG, _TIME.pack(self.appended_at_ms))
        if self.producer is not None:
            runs = [_RUN.pack(r.first_record, r.first_number, r.count) for r in self.runs]
            add(_PRODUCER_TAG, _text(self.producer) + b"".join(runs))
        if self.snapshot is not None:
            states = [
                _text(state.name)
                + _KNOWN_PRODUCER.pack(
                    state.last_number, *state.position, state.sequence_id, state.appended_at_ms
                )
                for state in self.snapshot
            ]
            add(_SNAPSHOT_TAG, _COUNT.pack(len(states)) + b"".join(states))
        return b"".join(parts)

    @classmethod
    def decode(cls, payload: bytes) -> EntryNote | None:
        """Read a control record's payload; None if it is none of ours.

        Raises:
            CorruptRecordsError: it is damaged.
        """
        if not payload.startswith(_MAGIC):
            return None
        if payload.startswith(_TIME_HEAD) and len(payload) == len(_TIME_HEAD) + _TIME.size:
            return cls(*_TIME.unpack_from(payload, len(_TIME_HEAD)))
        time_ms = producer = snapshot = attributes = chunk = None
        further_chunks = 0
        runs: tuple[ProducerRun, ...] = ()
        try:
            for tag, value in _fields(payload):
                if tag == _TIME_TAG:
                    (time_ms,) = _TIME.unpack(value)
                elif tag == _PRODUCER_TAG:
                    producer, offset = _read_text(value, 0)
                    runs = tuple(ProducerRun(*run) for run in _RUN.iter_unpack(value[offset:]))
                elif tag == _SNAPSHOT_TAG:
                    snapshot = _read_states(value)
                elif tag == _ATTRIBUTES_TAG:
                    attributes = decode_rows(value)
                elif tag == _CHUNK_TAG:
                    number, total, *first = _CHUNK.unpack(value)
                    chunk = Chunk(number, total, Position(*first))
                elif tag == _FURTHER_CHUNKS_TAG:
                    (further_chunks,) = _COUNT.unpack(value)
        except (StructError, UnicodeDecodeError) as error:
            raise CorruptRecordsError(f"a control record of ours is damaged: {error}") from error
        return cls(time_ms, producer, runs, snapshot, attributes, chunk, further_chunks)


def encode_time_note(time_ms: int) -> bytes:
    """Return the payload of the control record that only tells when its entry was made."""
    return _TIME_HEAD + _TIME.pack(time_ms)


def encode_attributes_field(rows: Iterable[tuple[int, bytes]]) -> bytes:
    """Return what a note is followed by if records of its entry carry something."""
    value = encode_rows(rows)
    return _FIELD.pack(_ATTRIBUTES_TAG, len(value)) + value


def encode_chunk_field(chunk: Chunk) -> bytes:
    """Return what the note of an entry with a chunk is followed by."""
    return _FIELD.pack(_CHUNK_TAG, _CHUNK.size) + _CHUNK.pack(
        chunk.number, chunk.total, *chunk.first
    )


def encode_further_chunks_field(count: int) -> bytes:
    """Return what the note of an entry behind the chunks of a record ends with, if there are."""
    if not count:
        return b""
    return _FIELD.pack(_FURTHER_CHUNKS_TAG, _COUNT.size) + _COUNT.pack(count)


def moved_chunk(payload: bytes, first: Position) -> bytes:
    """Return the note of an entry with a chunk, saying that the record is somewhere else."""
    parts = [_MAGIC]
    for tag, value in _fields(payload):
        if tag == _CHUNK_TAG:
            number, total, *_ = _CHUNK.unpack(value)
            value = _CHUNK.pack(number, total, *first)  # noqa: PLW2901 - the same field
        parts += [_FIELD.pack(tag, len(value)), value]
    return b"".join(parts)


def _fields(payload: bytes) -> list[tuple[int, bytes]]:
    found = []
    offset = len(_MAGIC)
    while offset < len(payload):
        tag, size = _FIELD.unpack_from(payload, offset)
        offset += _FIELD.size
        if offset + size > len(payload):
            raise CorruptRecordsError(f"field {tag} of a control record announces {size} bytes")
        found.append((tag, payload[offset : offset + size]))
        offset += size
    return found


def _text(text: str) -> bytes:
    data = text.encode()
    return _SIZE.pack(len(data)) + data


def _read_text(value: bytes, offset: int) -> tuple[str, int]:
    (size,) = _SIZE.unpack_from(value, offset)
    offset += _SIZE.size
    return value[offset : offset + size].decode(), offset + size


def _read_states(value: bytes) -> tuple[ProducerState, ...]:
    (count,) = _COUNT.unpack_from(value)
    offset = _COUNT.size
    states = []
    for _ in range(count):
        name, offset = _read_text(value, offset)
        number, segment, entry, slot, sequence_id, time_ms = _KNOWN_PRODUCER.unpack_from(
            value, offset
        )
        offset += _KNOWN_PRODUCER.size
        states.append(
            ProducerState(name, number, Position(segment, entry, slot), sequence_id, time_ms)
        )
    return tuple(states)
