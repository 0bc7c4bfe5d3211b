"""The four ways in which Pulsar compresses messages and metadata; pure.

Whoever compressed says how many bytes there were.  No more than that are ever made of the data, and
a claim that is too large is refused before anything is.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from enum import IntEnum

import lz4.block

from quorumbook.client.reading.tabular import needs_extra
from quorumbook.streams.errors import CorruptRecordsError, UnsupportedFormatError

#: Of one message or batch; brokers take 5 MB at a time, compressed, unless told otherwise.
MAX_SIZE_BYTES = 128 * 1024 * 1024


class PulsarCodec(IntEnum):
    """Pulsar's numbers."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4


def decompress(codec: int, data: bytes, size_bytes: int) -> bytes:
    """Return what was compressed to these bytes.

    Raises:
        UnsupportedFormatError: the codec is unknown, or so many bytes are not made here.
        CorruptRecordsError: the data are not what such a codec makes of that many bytes.
        ConfigError: the codec needs pyarrow, which is missing.
    """
    if codec == PulsarCodec.NONE:
        return data
    work = _CODECS.get(codec)
    if work is None:
        raise UnsupportedFormatError(f"codec {codec} of Pulsar is unknown")
    if not 0 <= size_bytes <= MAX_SIZE_BYTES:
        raise UnsupportedFormatError(
            f"{size_bytes} bytes are announced; at most {MAX_SIZE_BYTES} are decompressed at once"
        )
    title = PulsarCodec(codec).name
    try:
        found = work(data, size_bytes)
    except (lz4.block.LZ4BlockError, zlib.error, OSError, ValueError) as error:
        raise CorruptRecordsError(f"{len(data)} bytes of {title} are damaged: {error}") from error
    if len(found) != size_bytes:
        made = f"more than {size_bytes}" if len(found) > size_bytes else str(len(found))
        raise CorruptRecordsError(f"{title} made {made} bytes where {size_bytes} are announced")
    return found


def _lz4(data: bytes, size: int) -> bytes:
    found: bytes = lz4.block.decompress(data, uncompressed_size=size)
    return found


def _zlib(data: bytes, size: int) -> bytes:
    work = zlib.decompressobj()
    found = work.decompress(data, size + 1)
    if not work.eof and len(found) <= size:
        raise ValueError("it does not end")
    return found


def _zstd(data: bytes, size: int) -> bytes:
    with needs_extra("'quorumbook[arrow]'"):
        import pyarrow as pa  # noqa: PLC0415 - slow, and few topics need it
    # The codec itself returns a buffer of the announced size, whatever it wrote to it.
    found: bytes = pa.CompressedInputStream(pa.BufferReader(data), "zstd").read(size + 1)
    return found


def _snappy(data: bytes, size: int) -> bytes:
    with needs_extra("'quorumbook[arrow]'"):
        import pyarrow as pa  # noqa: PLC0415 - slow, and few topics need it
    # The same here: what the data say themselves of their size is compared first.
    said = shift = 0
    for byte in data[:5]:
        said |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if said != size:
        raise ValueError(f"they say themselves that they are of {said}")
    found: bytes = pa.Codec("snappy").decompress(data, size, asbytes=True)
    return found


_CODECS: Mapping[int, Callable[[bytes, int], bytes]] = {
    PulsarCodec.LZ4: _lz4,
    PulsarCodec.ZLIB: _zlib,
    PulsarCodec.ZSTD: _zstd,
    PulsarCodec.SNAPPY: _snappy,
}
