"""Where a record is: DistributedLog's DLSN.

    version 1, 25 bytes:   1 | segment 8 | entry 8 | slot 8
    version 0, 200 bytes:  0 | segment 8 | entry 8 | slot 8 | 175 zeros

All signed and big endian; as text, base64 of that.  Version 1 is written, both are read.  The
slot counts the records of an entry, control records and members of record sets included.
"""

from __future__ import annotations

import base64
import binascii
import re
from struct import Struct
from typing import NamedTuple

from quorumbook.streams.errors import CorruptRecordsError

_FIELDS = Struct(">bqqq")
_V0_SIZE = 200
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/]")


class Position(NamedTuple):
    """Where a record is in a stream; positions compare in the order of the records."""

    segment: int
    entry: int
    slot: int

    @property
    def next(self) -> Position:
        """The position right after; the record there may be in the next entry or segment."""
        return Position(self.segment, self.entry, self.slot + 1)

    @property
    def next_segment(self) -> Position:
        """The first position of the following segment."""
        return Position(self.segment + 1, 0, 0)

    def to_bytes(self) -> bytes:
        """Return the 25 bytes."""
        return _FIELDS.pack(1, *self)

    def to_text(self) -> str:
        """Return what a subscription's node holds."""
        return base64.b64encode(self.to_bytes()).decode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes) -> Position:
        """Read either version.

        Raises:
            CorruptRecordsError: it is neither.
        """
        version = data[0] if data else None
        if version not in (0, 1) or len(data) != (_V0_SIZE, _FIELDS.size)[version]:
            raise CorruptRecordsError(f"{len(data)} bytes of version {version} are not a position")
        return cls(*_FIELDS.unpack_from(data)[1:])

    @classmethod
    def from_text(cls, text: str) -> Position:
        """Read base64, as leniently as Java does: either alphabet, with or without padding.

        Raises:
            CorruptRecordsError: it is no position.
        """
        text = text.replace("-", "+").replace("_", "/")
        text = _NOT_BASE64.sub("", text.partition("=")[0])
        try:
            return cls.from_bytes(base64.b64decode(text + "=" * (-len(text) % 4)))
        except binascii.Error as error:
            raise CorruptRecordsError(f"{text!r} is not a position: {error}") from error

    def __str__(self) -> str:
        return f"{self.segment}:{self.entry}:{self.slot}"


#: The first a stream can have, and the one before it.
FIRST_POSITION = Position(1, 0, 0)
BEFORE_FIRST_POSITION = Position(1, 0, -1)


def parse_position(text: str) -> Position:
    """Read ``segment:entry:slot`` as people write it, or base64.

    Raises:
        CorruptRecordsError: it is neither.
    """
    match = re.fullmatch(r"(\d{1,18}):(\d{1,18}):(-?\d{1,18})", text)
    if match:
        return Position(*map(int, match.groups()))
    return Position.from_text(text)
