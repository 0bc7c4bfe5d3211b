"""Entries of a ledger as Arrow batches: only the columns that are asked for are made."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from quorumbook.client.reading.columns import binary_column, number_column, schema_of, sizes_of
from quorumbook.client.reading.entries import EntryBatch

#: What a table of entries has; the names and kinds are those of Spark's ``ledger:``.
SCHEMA = pa.schema(
    [
        ("ledger_id", pa.int64()), ("entry_id", pa.int64()), ("size", pa.int32()),
        ("value", pa.binary()),
    ]
)  # fmt: skip
#: Of one Arrow batch: 32-bit offsets bound its bytes, and a frame's steps like many rows.
MAX_ROWS, MAX_BYTES = 65_536, 32 * 1024 * 1024


async def arrow_batches(
    batches: AsyncIterator[EntryBatch], columns: Sequence[str] | None = None
) -> AsyncIterator[pa.RecordBatch]:
    """Yield entries as rows, many at a time.

    Args:
        batches: The entries, in order.
        columns: Which columns, in which order; None: all.

    Raises:
        ConfigError: there is no such column, or one stands twice.
    """
    schema = schema_of(SCHEMA, columns, "entries")
    held: list[EntryBatch] = []
    rows = size = 0
    async for batch in batches:
        held.append(batch)
        rows, size = rows + len(batch.payloads), size + batch.size_bytes
        if rows >= MAX_ROWS or size >= MAX_BYTES:
            yield _batch_of(held, schema)
            held, rows, size = [], 0, 0
    if held:
        yield _batch_of(held, schema)


def _batch_of(held: Sequence[EntryBatch], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [_MAKERS[field.name](held, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _ledger_ids(held: Sequence[EntryBatch], kind: pa.DataType) -> pa.Array:
    counts = [len(batch.payloads) for batch in held]
    return number_column(np.repeat([batch.ledger_id for batch in held], counts), kind)


def _entry_ids(held: Sequence[EntryBatch], kind: pa.DataType) -> pa.Array:
    parts = [np.arange(batch.first_entry_id, batch.last_entry_id + 1) for batch in held]
    return number_column(np.concatenate(parts), kind)


def _sizes(held: Sequence[EntryBatch], kind: pa.DataType) -> pa.Array:
    return number_column(sizes_of(_payloads(held)), kind)


def _values(held: Sequence[EntryBatch], _: pa.DataType) -> pa.Array:
    return binary_column(_payloads(held))


def _payloads(held: Sequence[EntryBatch]) -> list[bytes]:
    return [payload for batch in held for payload in batch.payloads]


_MAKERS: Mapping[str, Callable[[Sequence[EntryBatch], pa.DataType], pa.Array]] = {
    "ledger_id": _ledger_ids,
    "entry_id": _entry_ids,
    "size": _sizes,
    "value": _values,
}
