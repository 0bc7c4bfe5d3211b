"""Protobuf's varints: seven bits a byte, the lowest first; negative numbers take ten bytes.

Only what the hand-written v3 codecs need.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from quorumbook.errors import RemoteProtocolError

_MASK = (1 << 64) - 1
_SIGN = 1 << 63
_MAX_SIZE_BYTES = 10

#: One byte: the low seven bits of a number that ends here, or that goes on.
LAST = [bytes((value,)) for value in range(128)]
MORE = [bytes((value | 128,)) for value in range(128)]


def encode(value: int) -> bytes:
    """Encode a number of 64 bits, negative ones as two's complement."""
    if 0 <= value < 128:
        return LAST[value]
    value &= _MASK
    return MORE[value & 127] + _encode_rest(value >> 7)


@lru_cache(maxsize=4096)
def _encode_rest(value: int) -> bytes:
    """Encode what follows the first byte; numbers near each other share it."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_row(values: range) -> list[bytes]:
    """Encode ascending numbers, none of them negative; those that share all but a byte at once."""
    encoded: list[bytes] = []
    while values:
        first = values[0]
        rest = _encode_rest(first >> 7) if first > 127 else b""
        block = (MORE if rest else LAST)[first & 127 :: values.step][: len(values)]
        encoded += [low + rest for low in block]
        values = values[len(block) :]
    return encoded


def are_whole(pieces: Sequence[bytes]) -> bool:
    """Tell whether all of these, which are of one size, are varints and nothing else."""
    size, joined = len(pieces[0]), b"".join(pieces)
    return joined[size - 1 :: size].isascii() and all(
        min(joined[place::size]) > 127 for place in range(size - 1)
    )


def decode(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Return the unsigned number at a position and where the next field begins."""
    stop = min(end, position + _MAX_SIZE_BYTES)
    value = shift = 0
    while position < stop:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & _MASK, position
        shift += 7
    raise RemoteProtocolError("a varint does not end")


def signed(value: int) -> int:
    """Return the signed number that an unsigned one of 64 bits stands for."""
    return value - (1 << 64) if value & _SIGN else value


def high_part(data: bytes) -> int:
    """Return what the bytes behind a varint's first add to it, or -1 if they are no whole rest.

    The numbers of neighbouring frames differ in their first byte mostly, so the rest is decoded
    once for up to 128 frames.
    """
    if not data:
        return 0
    try:
        value, position = decode(data, 0, len(data))
    except RemoteProtocolError:
        return -1
    return value << 7 & _MASK if position == len(data) else -1
