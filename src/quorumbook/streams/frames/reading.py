"""A stream, or a range of it, as Arrow batches: from bookies and from files alike.

Only the columns that are asked for are made, and only the entries of the range are read.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence

import pyarrow as pa

from quorumbook.client.reading.columns import schema_of as chosen_of
from quorumbook.streams.format.position import Position
from quorumbook.streams.frames.parts import FramePart
from quorumbook.streams.frames.records import SCHEMA, Records, batch_of
from quorumbook.streams.reading.batches import RecordBatch
from quorumbook.streams.reading.options import ReaderOptions
from quorumbook.streams.reading.reader import StreamReader
from quorumbook.streams.reading.seek import Start, start_position

#: Of one Arrow batch: 32-bit offsets bound its bytes, and a frame's steps like many rows.
MAX_ROWS, MAX_BYTES = 65_536, 32 * 1024 * 1024


def schema_of(columns: Sequence[str] | None) -> pa.Schema:
    """Return the schema of some columns, in their order; None: of all but ``headers``.

    Raises:
        ConfigError: there is no such column, or one stands twice.
    """
    if columns is None:
        columns = [name for name in SCHEMA.names if name != "headers"]
    return chosen_of(SCHEMA, columns, "records")


async def arrow_batches(
    parts: Sequence[FramePart],
    columns: Sequence[str] | None = None,
    start: Start = "earliest",
    end: Start = "latest",
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the records of streams, one stream after the other, as they are when it begins.

    Args:
        parts: The streams.
        columns: Which columns, in which order; see ``schema_of``.
        start: Where to begin, as with ``reader``.
        end: Before which record to stop.

    Raises:
        ConfigError: there is no such column.
        PositionTruncatedError: what it should start with was truncated away.
        DataLossError: records are missing.
    """
    schema = schema_of(columns)
    ends = [await start_position(part.context, end) or Position(0, 0, 0) for part in parts]
    for part, until in zip(parts, ends, strict=True):
        begin = await start_position(part.context, start)
        options = ReaderOptions(tail=False, end=until)
        held: list[RecordBatch] = []
        rows = size = 0
        async with (
            StreamReader(part.context, begin, options) as reader,
            contextlib.aclosing(reader.read_batches()) as batches,
        ):
            async for batch in batches:
                held.append(batch)
                rows, size = rows + len(batch), size + batch.size_bytes
                if rows >= MAX_ROWS or size >= MAX_BYTES:
                    yield batch_of(Records(part.title, part.partition, held), schema)
                    held, rows, size = [], 0, 0
        if held:
            yield batch_of(Records(part.title, part.partition, held), schema)


async def arrow_table(
    parts: Sequence[FramePart],
    columns: Sequence[str] | None = None,
    start: Start = "earliest",
    end: Start = "latest",
) -> pa.Table:
    """Return the records of streams as one table; see ``arrow_batches``."""
    batches = arrow_batches(parts, columns, start, end)
    async with contextlib.aclosing(batches):
        found = [batch async for batch in batches]
    return pa.Table.from_batches(found, schema_of(columns))
