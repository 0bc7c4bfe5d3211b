"""The two codecs that the peer's envelope and record sets know.

Other numbers are refused; the peer reads them as if they were no compression.
"""

from __future__ import annotations

from enum import IntEnum

import lz4.block

from quorumbook.streams.errors import CorruptRecordsError, UnsupportedFormatError

#: Two bits hold the codec.
CODEC_MASK = 3
#: No entry is larger before it was compressed; what announces more is damaged.
_MAX_RAW_SIZE_BYTES = 4 * 1024 * 1024


class Codec(IntEnum):
    """How records are compressed."""

    NONE = 0
    LZ4 = 1


def compress(codec: Codec, data: bytes) -> bytes:
    """Return the data as they are stored: an LZ4 block without frame or size."""
    if codec is Codec.NONE:
        return data
    compressed: bytes = lz4.block.compress(data, store_size=False)
    return compressed


def decompress(codec: int, data: bytes, size_bytes: int) -> bytes:
    """Return what was compressed to these bytes.

    Raises:
        UnsupportedFormatError: the codec is unknown.
        CorruptRecordsError: the bytes are not what such a codec makes of that many.
    """
    if codec == Codec.NONE:
        if len(data) != size_bytes:
            raise CorruptRecordsError(
                f"{len(data)} uncompressed bytes where {size_bytes} are announced"
            )
        return data
    if codec != Codec.LZ4:
        raise UnsupportedFormatError(f"records are compressed by codec {codec}, which is unknown")
    if not 0 <= size_bytes <= _MAX_RAW_SIZE_BYTES:
        raise CorruptRecordsError(f"records announce {size_bytes} bytes")
    try:
        found: bytes = lz4.block.decompress(data, uncompressed_size=size_bytes)
    except lz4.block.LZ4BlockError as error:
        raise CorruptRecordsError(f"{len(data)} bytes of LZ4 are damaged: {error}") from error
    if len(found) != size_bytes:
        raise CorruptRecordsError(f"{len(found)} bytes of LZ4 where {size_bytes} are announced")
    return found
