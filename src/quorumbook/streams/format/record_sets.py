"""Record sets: many records as the payload of one.

    4  0x1000 | codec (0 none, 1 LZ4 block)
    4  count
    4  size of the members before compression
    4  size of what follows
    n  members: 4 size, payload; compressed or not

The members share the host's transaction id; their slots and positions go on from the host's.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError  # noqa: N812 - an exception by its nature

from quorumbook.streams.errors import CorruptRecordsError, UnsupportedFormatError
from quorumbook.streams.format.compression import CODEC_MASK, Codec, compress, decompress

_VERSION = 0x1000
_VERSION_MASK = 0xF000
_HEADER = Struct(">iiii")
_SIZE = Struct(">i")
#: What the sets of one entry hold together: many times what Apache BookKeeper's writers put in.
RECORDS_MAX, BYTES_MAX = 1 << 20, 64 << 20


def encode_record_set(payloads: Sequence[bytes], codec: Codec = Codec.NONE) -> bytes:
    """Return the payload of the record that hosts these."""
    members = b"".join([part for item in payloads for part in (_SIZE.pack(len(item)), item)])
    stored = compress(codec, members)
    return _HEADER.pack(_VERSION | codec, len(payloads), len(members), len(stored)) + stored


def decode_record_set(payload: bytes) -> list[bytes]:
    """Return the members' payloads.

    Raises:
        UnsupportedFormatError: another version, or an unknown codec.
        CorruptRecordsError: the sizes contradict each other.
    """
    try:
        metadata, count, raw_size, stored_size = _HEADER.unpack_from(payload)
        if metadata & _VERSION_MASK != _VERSION:
            raise UnsupportedFormatError(
                f"a record set is of version {metadata & _VERSION_MASK:#x}, not {_VERSION:#x}"
            )
        stored = payload[_HEADER.size : _HEADER.size + stored_size]
        if stored_size < 0 or len(stored) != stored_size:
            raise CorruptRecordsError(
                f"{len(stored)} bytes of a record set where {stored_size} are announced"
            )
        members = decompress(metadata & CODEC_MASK, stored, raw_size)
        payloads = []
        offset = 0
        for _ in range(count):
            (size,) = _SIZE.unpack_from(members, offset)
            offset += 4
            member = members[offset : offset + size]
            if size < 0 or len(member) != size:
                raise CorruptRecordsError(f"a member of a record set announces {size} bytes")
            payloads.append(member)
            offset += size
    except StructError as error:
        raise CorruptRecordsError("a record set ends before its last member") from error
    return payloads


class EntrySets:
    """Decodes the record sets of one entry, up to what a reader can take.

    Sets compress, and so does the entry around them: 20 KB could hold 260 million records.
    """

    def __init__(self) -> None:
        self._records_left = RECORDS_MAX
        self._bytes_left = BYTES_MAX

    def decode(self, payload: bytes) -> list[bytes]:
        """Return the payloads of a set's members.

        Raises:
            UnsupportedFormatError: another version, or an unknown codec.
            CorruptRecordsError: the sizes contradict each other, or the sets are too large.
        """
        if len(payload) >= _HEADER.size:
            _, count, raw_size, _ = _HEADER.unpack_from(payload)
            self._records_left -= max(count, 0)
            self._bytes_left -= max(raw_size, 0)
        if self._records_left < 0 or self._bytes_left < 0:
            raise CorruptRecordsError(
                f"the record sets of an entry hold more than {RECORDS_MAX:,} records, or "
                f"{BYTES_MAX:,} bytes"
            )
        return decode_record_set(payload)
