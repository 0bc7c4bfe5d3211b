"""What a record may carry beside its payload: a key, headers, and when its event happened.

    of each record that carries any, in order:
    4  which of the entry's user records, from 0
    1  bit 0 key, bit 1 event time, bit 2 headers
       key: 4 size, n    event time: 8 ms since 1970    headers: 2 count, then of each 2 size, name,
       4 size, value

That lies in the control record at the head of the entry (``control``, tag 4), not in the payload:
the peer reads the same payload as everybody, and no payload can be taken for something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from struct import error as StructError  # noqa: N812 - an exception by its nature
from typing import NamedTuple

from quorumbook.streams.errors import CorruptRecordsError, RecordTooLargeError

#: Those of one record, as stored.
MAX_ATTRIBUTES_SIZE_BYTES = 64 * 1024

_HEAD = Struct(">IB")
_SIZE, _TIME, _COUNT = Struct(">I"), Struct(">q"), Struct(">H")
_KEY, _EVENT_TIME, _HEADERS = 1, 2, 4


class Attributes(NamedTuple):
    """What goes with a record."""

    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    event_time_ms: int | None = None

    def encode(self) -> bytes:
        """Return the bytes, without which record they belong to; none if nothing is there.

        Raises:
            RecordTooLargeError: they are too many.
        """
        flags, parts = 0, [b""]
        if self.key is not None:
            flags |= _KEY
            parts += _SIZE.pack(len(self.key)), self.key
        if self.event_time_ms is not None:
            flags |= _EVENT_TIME
            parts.append(_TIME.pack(self.event_time_ms))
        if self.headers:
            flags |= _HEADERS
            parts.append(_COUNT.pack(len(self.headers) & 0xFFFF))
            for name, value in self.headers:
                encoded = name.encode()
                parts += _COUNT.pack(len(encoded) & 0xFFFF), encoded
                parts += _SIZE.pack(len(value)), value
        if not flags:
            return b""
        parts[0] = bytes((flags,))
        size = sum(map(len, parts))
        if size > MAX_ATTRIBUTES_SIZE_BYTES or len(self.headers) > 0xFFFF:
            raise RecordTooLargeError(
                f"key and headers of a record take {size} bytes; {MAX_ATTRIBUTES_SIZE_BYTES} is "
                "the most"
            )
        return b"".join(parts)


def attributes_of(
    key: bytes | None, headers: Mapping[str, bytes] | None, event_time_ms: int | None
) -> Attributes | None:
    """Return what a caller gave; None if that is nothing."""
    if key is None and not headers and event_time_ms is None:
        return None
    return Attributes(key, tuple(headers.items()) if headers else (), event_time_ms)


#: What ``encode_rows`` adds to each.
ROW_SIZE_BYTES = _SIZE.size


def encode_rows(rows: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the value of the control record's field.

    Args:
        rows: Which user record of the entry, and its encoded attributes, ascending.
    """
    return b"".join([part for index, data in rows for part in (_SIZE.pack(index), data)])


def decode_rows(value: bytes) -> dict[int, Attributes]:
    """Return what records carry, by their number in the entry.

    Raises:
        CorruptRecordsError: the bytes are damaged.
    """
    found: dict[int, Attributes] = {}
    offset = 0

    def take(size: int) -> bytes:
        nonlocal offset
        piece = value[offset : offset + size]
        if len(piece) != size:
            raise CorruptRecordsError(f"{size} bytes of a record's attributes are cut short")
        offset += size
        return piece

    def number(layout: Struct) -> int:
        (found_number,) = layout.unpack(take(layout.size))
        return int(found_number)

    try:
        while offset < len(value):
            index, flags = _HEAD.unpack(take(_HEAD.size))
            key = take(number(_SIZE)) if flags & _KEY else None
            time_ms = number(_TIME) if flags & _EVENT_TIME else None
            headers = [
                (take(number(_COUNT)).decode(), take(number(_SIZE)))
                for _ in range(number(_COUNT) if flags & _HEADERS else 0)
            ]
            found[index] = Attributes(key, tuple(headers), time_ms)
    except (StructError, UnicodeDecodeError) as error:
        raise CorruptRecordsError(f"a record's attributes are damaged: {error}") from error
    return found
