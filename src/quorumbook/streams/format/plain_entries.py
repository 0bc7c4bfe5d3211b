"""The commonest entries of ours, in few calls: a note of time, and user records of one size.

    13 envelope, not compressed | 20 and 18 control record with the time | 20 and n each user record

Their bytes are those that ``envelope``, ``control`` and ``records`` make of the same, one after the
other; a writer with small entries makes nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, count, repeat
from struct import Struct
from struct import error as StructError  # noqa: N812 - an exception by its nature
from typing import NamedTuple, overload

from quorumbook.streams.format.control import encode_time_note
from quorumbook.streams.format.envelope import ENVELOPE_SIZE_BYTES, encode_entry
from quorumbook.streams.format.records import CONTROL, HEADER_SIZE_BYTES, rows

_TIME_SIZE_BYTES = 8
_NOTE = encode_time_note(0)
_NOTE_HEAD = _NOTE[:-_TIME_SIZE_BYTES]
_NOTE_SIZE_BYTES = len(_NOTE)
_ENVELOPE_HEAD = encode_entry(b"")[: ENVELOPE_SIZE_BYTES - 8]
_HEAD_FORMAT = f">{len(_ENVELOPE_HEAD)}siiQqi{len(_NOTE_HEAD)}sq"
_LAYOUT = Struct(_HEAD_FORMAT + "Qqi")
_BEFORE_PAYLOAD_BYTES = _LAYOUT.size - ENVELOPE_SIZE_BYTES
_BEFORE_RECORDS_BYTES = _LAYOUT.size - HEADER_SIZE_BYTES
_POSITIONS = 1 << 32
_POSITION = Struct(">Q")
_SIZE_OFFSET = 16
#: Of so many records all fields are looked at, as objects of their own.
_FEW = 16


class PlainEntry(NamedTuple):
    """What is in such an entry."""

    #: How many user records the segment has before it.
    count_before: int
    appended_at_ms: int
    txids: Sequence[int]
    payloads: Sequence[bytes]


def encode_lone_record(
    count_before: int, time_ms: int, txid_before: int, txid: int, payload: bytes
) -> bytes:
    """Return an entry with one user record that carries nothing beside its payload.

    Args:
        count_before: How many user records the segment has before it.
        time_ms: When the entry is made.
        txid_before: The transaction id of the record before it; -1: there is none.
        txid: Its own.
        payload: The record.
    """
    size = len(payload)
    stored = _BEFORE_PAYLOAD_BYTES + size
    return (
        _LAYOUT.pack(
            _ENVELOPE_HEAD, stored, stored,
            count_before << 16 | CONTROL, txid_before, _NOTE_SIZE_BYTES, _NOTE_HEAD, time_ms,
            (count_before + 1) << 16, txid, size,
        )
        + payload
    )  # fmt: skip


def encode_plain_entries(
    count_before: int,
    time_ms: int,
    txid_before: int,
    txids: Sequence[int],
    payloads: Sequence[bytes],
    each: int,
) -> list[bytes]:
    """Return entries with so many user records each, all of one size.

    Args:
        count_before: How many user records the segment has before them.
        time_ms: When the entries are made.
        txid_before: The transaction id of the record before them; -1: there is none.
        txids: Theirs.
        payloads: The records, as many as fill entries.
        each: How many of them an entry has.
    """
    size = len(payloads[0])
    layout = _plain_layout(size, each)
    stored = layout.size - ENVELOPE_SIZE_BYTES
    step = each << 16
    columns: list[Iterable[object]] = [
        repeat(_ENVELOPE_HEAD), repeat(stored), repeat(stored),
        count(count_before << 16 | CONTROL, step),
        chain((txid_before,), txids[each - 1 :: each]),
        repeat(_NOTE_SIZE_BYTES), repeat(_NOTE_HEAD), repeat(time_ms),
    ]  # fmt: skip
    for i in range(each):
        positions = count((count_before + 1 + i) << 16, step)
        columns += (positions, txids[i::each], repeat(size), payloads[i::each])
    return list(map(layout.pack, *columns))


def plain_entry_size(record_bytes: int, count: int) -> int:
    """Return how many bytes an entry has that holds so many records of a size."""
    return _BEFORE_RECORDS_BYTES + count * (HEADER_SIZE_BYTES + record_bytes)


@lru_cache(maxsize=64)
def _plain_layout(size_bytes: int, each: int) -> Struct:
    return Struct(f"{_HEAD_FORMAT}{f'Qqi{size_bytes}s' * each}")


def decode_plain_entry(entry: bytes) -> PlainEntry | None:
    """Take such an entry apart; None if it is another one, or damaged."""
    try:
        (head, raw, stored, control, _, note, note_head, time_ms, first, txid, size) = (
            _LAYOUT.unpack_from(entry)
        )
    except StructError:
        return None
    count_before: int = control >> 16
    if (
        size < 0
        or stored != len(entry) - ENVELOPE_SIZE_BYTES
        or raw != stored
        or control != count_before << 16 | CONTROL
        or first != (count_before + 1) << 16
        or note != _NOTE_SIZE_BYTES
        or note_head != _NOTE_HEAD
        or head != _ENVELOPE_HEAD
    ):
        return None
    count, rest = divmod(len(entry) - _BEFORE_RECORDS_BYTES, HEADER_SIZE_BYTES + size)
    if rest or count_before + count >= _POSITIONS:
        return None
    if count == 1:
        return PlainEntry(count_before, time_ms, (txid,), (entry[_LAYOUT.size :],))
    found = even_records(entry, _BEFORE_RECORDS_BYTES, size, count, first)
    return None if found is None else PlainEntry(count_before, time_ms, *found)


def even_records(
    data: bytes, offset: int, size: int, count: int, first: int
) -> tuple[Sequence[int], Sequence[bytes]] | None:
    """Return transaction ids and payloads of user records of one size, taken apart at once.

    Of many records first and last position and the sizes between say that nothing is out of its
    place.

    Args:
        data: Where they are, at the end.
        offset: Where they begin.
        size: How many bytes each payload has.
        count: How many they are.
        first: The metadata of the first one, which is no more than a position.

    Returns:
        None if one of them is another record or has another size.
    """
    last = first + (count - 1 << 16)
    if count <= _FEW:
        fields = rows("Qqi{}s", size, count).unpack_from(data, offset)
        positions = tuple(range(first, last + 1, 1 << 16))
        if fields[0::4] != positions or fields[2::4].count(size) != count:
            return None
        return fields[1::4], fields[3::4]
    stride = HEADER_SIZE_BYTES + size
    if _POSITION.unpack_from(data, len(data) - stride)[0] != last:
        return None
    for at in range(offset + _SIZE_OFFSET, offset + HEADER_SIZE_BYTES):
        if data[at::stride].count(data[at]) != count:
            return None
    payloads = rows("20x{}s", size, count).unpack_from(data, offset)
    return _Txids(data, offset, size, count), payloads


class _Txids(Sequence[int]):
    """The transaction ids of records of one size, looked up when somebody asks for them."""

    __slots__ = ("_count", "_data", "_found", "_offset", "_size_bytes")

    def __init__(self, data: bytes, offset: int, size_bytes: int, count: int) -> None:
        self._data = data
        self._offset = offset
        self._size_bytes = size_bytes
        self._count = count
        self._found: tuple[int, ...] | None = None

    def _all(self) -> tuple[int, ...]:
        if self._found is None:
            layout = rows("8xq4x{}x", self._size_bytes, self._count)
            self._found = layout.unpack_from(self._data, self._offset)
        return self._found

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...
    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        return self._all()[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._all())
