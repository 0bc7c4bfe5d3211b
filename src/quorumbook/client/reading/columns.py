"""Arrow columns out of what a reader holds, without a step for each row in Python.

Binary columns are one join and the offsets; constants are laid out by numpy.  A column's type is
that of the schema Spark expects: plain 32-bit offsets, so a batch has its bytes bounded.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from quorumbook.errors import ConfigError

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Sizes: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"


def schema_of(schema: pa.Schema, columns: Sequence[str] | None, what: str) -> pa.Schema:
    """Return the schema of some columns, in their order; None: of all.

    Raises:
        ConfigError: there is no such column, or one stands twice.
    """
    chosen = schema.names if columns is None else columns
    for name in chosen:
        if name not in schema.names:
            near = difflib.get_close_matches(name, schema.names, 3, 0.5) or schema.names
            raise ConfigError(f"{what} have no column {name!r}; the nearest: {', '.join(near)}")
    if len(set(chosen)) < len(chosen):
        raise ConfigError(f"a column stands twice: {', '.join(chosen)}")
    return pa.schema([schema.field(name) for name in chosen])


def sizes_of(values: Sequence[bytes]) -> Sizes:
    """Return how long each is."""
    return np.fromiter(map(len, values), np.int32, len(values))


def binary_column(values: Sequence[bytes], sizes: Sizes | None = None) -> pa.Array:
    """Return a column of bytes.

    Args:
        values: The bytes; copied at once, since each step of numpy's may have to wait for the
            thread that reads on.
        sizes: How long each is, where that is known.
    """
    offsets = np.zeros(len(values) + 1, dtype=np.int32)
    np.cumsum(sizes_of(values) if sizes is None else sizes, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def optional_binary_column(values: Sequence[bytes | None]) -> pa.Array:
    """Return a column of bytes, null where there are none."""
    if None not in values:
        return binary_column(values)  # type: ignore[arg-type]
    return pa.array(values, pa.binary())


def constant_text_column(text: str, count: int) -> pa.Array:
    """Return a column of one text."""
    data = text.encode()
    offsets = np.arange(0, (count + 1) * len(data), max(len(data), 1), dtype=np.int32)
    if not data:
        offsets = np.zeros(count + 1, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets[: count + 1]), pa.py_buffer(data * count)]
    return pa.Array.from_buffers(pa.utf8(), count, buffers)


def number_column(values: Numbers | Sizes | Sequence[int], kind: pa.DataType) -> pa.Array:
    """Return a column of numbers of a kind: 32 or 64 bits, or microseconds since 1970."""
    if pa.types.is_timestamp(kind):
        return pa.array(np.asarray(values, dtype=np.int64)).view(kind)
    return pa.array(np.asarray(values, dtype=kind.to_pandas_dtype()))


def rows_column(values: Sequence[Any], counts: Sequence[int], kind: pa.DataType) -> pa.Array:
    """Return a column in which each value stands so many times."""
    return pa.array(values, kind).take(pa.array(np.repeat(np.arange(len(values)), counts)))


def sliced_column(buffer: bytes, starts: Sequence[int], offset: int, size: int) -> Any:
    """Return the same few bytes of each of many places, as rows of a numpy array."""
    at = np.asarray(starts)[:, None] + np.arange(offset, offset + size)
    return np.frombuffer(buffer, np.uint8)[at]


def null_column(kind: pa.DataType, count: int) -> pa.Array:
    """Return a column without a value."""
    return pa.nulls(count, kind)
