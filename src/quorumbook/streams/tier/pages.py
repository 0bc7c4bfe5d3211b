"""The page headers of a Parquet column chunk, weighed before anything is decompressed.

pyarrow takes as much memory as a page's header says, and decodes it as that says, whatever the
footer told.  A header is a struct in Thrift's compact protocol, of which these fields count:

    1  i32     type, 0 for a data page
    2  i32     uncompressed_page_size
    3  i32     compressed_page_size: so many bytes follow, then the next header
    5  struct  data_page_header: 1 num_values, 2 encoding

What a row group may be by its footer is left to ``part_file``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from quorumbook.streams.errors import CorruptRecordsError

_DATA_PAGE = 0
#: PLAIN and DELTA_BINARY_PACKED, as ``part_file`` writes them.
_ENCODINGS = (0, 5)
_BOOLEANS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, 12
_DEPTH_MAX = 4
_VARINT_BYTES_MAX = 10


def check_pages(data: memoryview, rows: int, size_bytes: int, what: str) -> None:
    """Refuse pages that are not what the footer says of their column chunk.

    Args:
        data: The chunk, headers and compressed pages.
        rows: How many values there are by the footer.
        size_bytes: How large headers and pages are without compression by the footer.
        what: The chunk's name for messages.

    Raises:
        CorruptRecordsError: they are larger, more, or stored in another way.
    """
    try:
        pages = list(_pages(data))
    except (IndexError, KeyError, TypeError) as error:
        raise CorruptRecordsError(f"{what} has a page header that cannot be read") from error
    found_bytes = sum(size for size, _, _ in pages)
    if found_bytes > size_bytes or sum(values for _, values, _ in pages) != rows:
        raise CorruptRecordsError(f"{what} has pages of {found_bytes} bytes against its footer")
    if not all(encoding in _ENCODINGS for _, _, encoding in pages):
        raise CorruptRecordsError(f"{what} has a page that is stored in another way")


def _pages(data: memoryview) -> Iterator[tuple[int, int, int]]:
    """Yield size without compression, number of values and encoding of each page."""
    at = 0
    while at < len(data):
        header, at = _struct(data, at, 0)
        size_bytes, stored_bytes = header[2], header[3]
        page = header[5]
        if header[1] != _DATA_PAGE or min(size_bytes, stored_bytes, page[1]) < 0:
            raise KeyError("not a data page")
        at += stored_bytes
        if at > len(data):
            raise IndexError("a page goes beyond its chunk")
        yield size_bytes, page[1], page[2]


def _struct(data: memoryview, at: int, depth: int) -> tuple[dict[int, Any], int]:
    """Return the numbers and structs of a struct by their ids, and where it ends."""
    fields: dict[int, Any] = {}
    name = 0
    while head := data[at]:
        at, kind = at + 1, head & 15
        if head >> 4:
            name += head >> 4
        else:
            name, at = _integer(data, at)
        if kind in _BOOLEANS:
            continue
        if kind in _INTEGERS:
            fields[name], at = _integer(data, at)
        elif kind == _STRUCT and depth < _DEPTH_MAX:
            fields[name], at = _struct(data, at, depth + 1)
        elif kind == _BINARY:
            size, at = _varint(data, at)
            at += size
        elif kind in (_BYTE, _DOUBLE):
            at += 1 if kind == _BYTE else 8
        else:
            raise KeyError("a field that page headers do not have")
    return fields, at + 1


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for index in range(_VARINT_BYTES_MAX):
        value |= (data[at + index] & 127) << 7 * index
        if data[at + index] < 128:
            return value, at + index + 1
    raise IndexError("a number without an end")


def _integer(data: memoryview, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at
