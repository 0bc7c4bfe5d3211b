"""The entry around log records, for segments whose metadata is of version 4 or later.

    1  version: 1
    4  flags: bits 0-1 codec (0 none, 1 LZ4 block), others ignored
    4  size of the records before compression
    4  size of what follows
    n  records back to back, compressed or not

Entries of older segments are the bare records.
"""

from __future__ import annotations

from struct import Struct
from struct import error as StructError  # noqa: N812 - an exception by its nature

from quorumbook.streams.errors import CorruptRecordsError, UnsupportedFormatError
from quorumbook.streams.format.compression import CODEC_MASK, Codec, compress, decompress

ENVELOPE_SIZE_BYTES = 13
#: Records in one entry, before compression.
MAX_RECORDS_SIZE_BYTES = 1_044_480

_VERSION = 1
_HEADER = Struct(">Biii")


def encode_entry(records: bytes, codec: Codec = Codec.NONE) -> bytes:
    """Return the entry of these records, of which there must be one at least."""
    stored = compress(codec, records)
    return _HEADER.pack(_VERSION, codec, len(records), len(stored)) + stored


def encode_entry_of(pieces: list[bytes], size_bytes: int, codec: Codec) -> bytes:
    """Return the entry of records that are still in pieces, joined once."""
    if codec is Codec.NONE:
        return b"".join([_HEADER.pack(_VERSION, codec, size_bytes, size_bytes), *pieces])
    return encode_entry(b"".join(pieces), codec)


def records_offset(entry: bytes) -> int:
    """Return where the records begin in an entry that has nothing else, uncompressed; else -1."""
    size = len(entry) - ENVELOPE_SIZE_BYTES
    if size >= 0 and entry.startswith(_HEADER.pack(_VERSION, Codec.NONE, size, size)):
        return ENVELOPE_SIZE_BYTES
    return -1


def codec_of(entry: bytes) -> Codec:
    """Return how the records of an entry are compressed.

    Raises:
        UnsupportedFormatError: by an unknown codec.
        CorruptRecordsError: it has no envelope.
    """
    try:
        _, flags, _, _ = _HEADER.unpack_from(entry)
        return Codec(flags & CODEC_MASK)
    except StructError as error:
        raise CorruptRecordsError(f"an entry of {len(entry)} bytes has no envelope") from error
    except ValueError as error:
        raise UnsupportedFormatError(f"an entry's envelope says {error}") from error


def decode_entry(entry: bytes) -> bytes:
    """Return the records of an entry, not taken apart.

    Raises:
        UnsupportedFormatError: another version, or an unknown codec.
        CorruptRecordsError: the sizes contradict each other.
    """
    try:
        version, flags, raw_size, stored_size = _HEADER.unpack_from(entry)
    except StructError as error:
        raise CorruptRecordsError(f"an entry of {len(entry)} bytes has no envelope") from error
    if version != _VERSION:
        raise UnsupportedFormatError(f"an entry's envelope is of version {version}, not 1")
    stored = entry[ENVELOPE_SIZE_BYTES : ENVELOPE_SIZE_BYTES + stored_size]
    if stored_size < 0 or len(stored) != stored_size:
        raise CorruptRecordsError(
            f"{len(stored)} bytes of records where {stored_size} are announced"
        )
    return decompress(flags & CODEC_MASK, stored, raw_size)
