"""Payloads as serializers of Confluent's schema registry frame them; pure.

    byte 0        0
    bytes 1..4    the schema's id in the registry, big-endian
    then          of Protobuf alone: the path that leads to the message in its file
    the rest      what the schema describes

A path is a zigzag varint that says how many indexes follow, and these, each of them a zigzag
varint: which message of the file, which message within that, and so on.  A single 0 stands for
the path (0), the first message of the file.
"""

from __future__ import annotations

from typing import NamedTuple

_MAGIC = 0
_HEADER_BYTES = 5
#: Messages lie no deeper in each other than this.
_MAX_PATH = 64
#: An index has no more bytes than a number of 32 bits.
_MAX_VARINT_BYTES = 5


class Framed(NamedTuple):
    """What a payload is made of."""

    registry_id: int
    #: Of the message in its file; empty where there is none.
    path: tuple[int, ...]
    body: bytes


def unframe(payload: bytes, *, has_path: bool) -> Framed:
    """Take a payload apart.

    Args:
        payload: A record's.
        has_path: Whether it is of Protobuf.

    Raises:
        ValueError: it is not framed, or its path is none.
    """
    if len(payload) < _HEADER_BYTES or payload[0] != _MAGIC:
        raise ValueError(
            "it is not framed as a schema registry's serializers do it (a 0 and four bytes of "
            f"the schema's id), but begins with {bytes(payload[:_HEADER_BYTES])!r}"
        )
    registry_id = int.from_bytes(payload[1:_HEADER_BYTES])
    path, begin = _path(payload) if has_path else ((), _HEADER_BYTES)
    return Framed(registry_id, path, payload[begin:])


def frame(registry_id: int, path: tuple[int, ...], body: bytes) -> bytes:
    """Return a payload as those serializers make it; the path is empty unless of Protobuf."""
    indexes = (0,) if path == (0,) else (len(path), *path) if path else ()
    between = b"".join(map(_varint, indexes))
    return bytes([_MAGIC]) + registry_id.to_bytes(4) + between + body


def _path(payload: bytes) -> tuple[tuple[int, ...], int]:
    count, at = _number(payload, _HEADER_BYTES)
    if count > _MAX_PATH:
        raise ValueError(f"it names its message by a path of {count} indexes")
    path = []
    for _ in range(count):
        index, at = _number(payload, at)
        path.append(index)
    return tuple(path) or (0,), at


def _number(payload: bytes, at: int) -> tuple[int, int]:
    """Return the number of a zigzag varint, which is not below 0, and where it ends."""
    value = 0
    for place, byte in enumerate(payload[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            if value & 1:
                raise ValueError("the path to its message has an index below 0")
            return value >> 1, at + place + 1
    raise ValueError("the path to its message does not end")


def _varint(number: int) -> bytes:
    value, found = number << 1, bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
