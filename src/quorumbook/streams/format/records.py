"""Log records, back to back in an entry.

    8  metadata: bits 0-15 flags, 16-47 position in the segment, 48-63 not used
    8  transaction id, signed
    4  size of the payload, signed
    n  payload

Flags: bit 0 control record, bit 1 end of stream, bit 2 the payload is a record set; others are
ignored.  The position counts the user records of the segment up to and with this one; of a record
set it is the first member's, of a control record or the end of stream it is the count so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct
from struct import error as StructError  # noqa: N812 - an exception by its nature
from typing import Any, NamedTuple

from quorumbook.streams.errors import CorruptRecordsError

CONTROL = 1
END_OF_STREAM = 2
RECORD_SET = 4
_KNOWN_FLAGS = CONTROL | END_OF_STREAM | RECORD_SET

HEADER_SIZE_BYTES = 20
#: A record with its header, and so a payload.
MAX_RECORD_SIZE_BYTES = 1_040_384
MAX_PAYLOAD_SIZE_BYTES = MAX_RECORD_SIZE_BYTES - HEADER_SIZE_BYTES
#: Transaction ids of user records; one more marks the end of the stream.
MAX_USER_TXID = 2**63 - 2
END_TXID = 2**63 - 1
#: "No transaction id", in the metadata of a segment that is not completed.
NO_TXID = -999

END_PAYLOAD = b"endOfStream"

_HEADER = Struct(">Qqi")
_METADATA = Struct(">Q")
#: So many records of one size are packed by one call.
_ROWS_FROM = 16


class LogRecord(NamedTuple):
    """One record as it lies in an entry; a record set is one."""

    flags: int
    #: In the segment, from 1.
    position: int
    txid: int
    payload: bytes

    @property
    def is_user(self) -> bool:
        """Tell whether readers get it; a record set counts."""
        return not self.flags & (CONTROL | END_OF_STREAM)


def encode_record(flags: int, position: int, txid: int, payload: bytes) -> bytes:
    """Return one record's bytes."""
    return _HEADER.pack((position << 16) | flags, txid, len(payload)) + payload


@lru_cache(maxsize=32)
def rows(form: str, size_bytes: int, count: int) -> Struct:
    """Return a layout of so many records of one size, which is put where the form has braces."""
    return Struct(">" + form.format(size_bytes) * count)


def sizes_of(payloads: Sequence[bytes]) -> tuple[int, int]:
    """Return how many bytes payloads have together, and each of them; -1 if they differ."""
    if len(payloads) == 1:
        size = len(payloads[0])
        return size, size
    sizes = list(map(len, payloads))
    return sum(sizes), sizes[0] if sizes.count(sizes[0]) == len(sizes) else -1


def encode_user_records(
    first_position: int, txids: Sequence[int], payloads: Sequence[bytes], size: int
) -> list[bytes]:
    """Return pieces which, joined, are user records with ascending positions.

    Args:
        first_position: The first one's.
        txids: Their transaction ids.
        payloads: The records.
        size: That of each payload, which makes less work; -1 if they differ.
    """
    count = len(payloads)
    metadata = first_position << 16
    if size >= 0 and count >= _ROWS_FROM:
        fields: list[Any] = [size] * (4 * count)
        fields[0::4] = range(metadata, metadata + (count << 16), 1 << 16)
        fields[1::4] = txids
        fields[3::4] = payloads
        return [rows("Qqi{}s", size, count).pack(*fields)]
    pack = _HEADER.pack
    pieces: list[bytes] = []
    add = pieces.append
    for txid, payload in zip(txids, payloads, strict=True):
        add(pack(metadata, txid, len(payload)))
        add(payload)
        metadata += 1 << 16
    return pieces


def decode_records(data: bytes) -> list[LogRecord]:
    """Take the records of an entry apart.

    Raises:
        CorruptRecordsError: the bytes are no whole number of records.
    """
    unpack = _HEADER.unpack_from
    records: list[LogRecord] = []
    add, make = records.append, LogRecord._make
    offset, end = 0, len(data)
    try:
        while offset < end:
            metadata, txid, size = unpack(data, offset)
            offset += 20
            payload = data[offset : offset + size]
            if len(payload) != size:
                raise CorruptRecordsError(
                    f"a record at byte {offset - 20} of {end} announces {size} bytes"
                )
            add(make((metadata & 7, (metadata >> 16) & 0xFFFFFFFF, txid, payload)))
            offset += size
    except StructError as error:
        raise CorruptRecordsError(f"{end - offset} bytes follow the last record") from error
    return records


def shift_positions(data: bytes, by: int) -> bytes:
    """Return records, back to back, with all positions larger; nothing else changes.

    Raises:
        CorruptRecordsError: the bytes are no whole number of records.
    """
    shifted = bytearray(data)
    unpack, pack = _HEADER.unpack_from, _METADATA.pack_into
    offset, end = 0, len(data)
    try:
        while offset < end:
            metadata, _, size = unpack(data, offset)
            pack(shifted, offset, metadata + (by << 16))
            offset += HEADER_SIZE_BYTES + size
            if size < 0 or offset > end:
                raise CorruptRecordsError(f"a record of an entry announces {size} bytes")
    except StructError as error:
        raise CorruptRecordsError(f"{end - offset} bytes follow the last record") from error
    return bytes(shifted)


def first_header(data: bytes) -> tuple[int, int, int]:
    """Return flags, position and transaction id of the first record, without its payload.

    Raises:
        CorruptRecordsError: there is none.
    """
    try:
        metadata, txid, _ = _HEADER.unpack_from(data)
    except StructError as error:
        raise CorruptRecordsError("an entry without a record") from error
    return metadata & _KNOWN_FLAGS, (metadata >> 16) & 0xFFFFFFFF, txid
