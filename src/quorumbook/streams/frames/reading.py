"""A stream, or a range of it, as Arrow batches: from bookies and from files alike.

Only the columns that are asked for are made, and only the entries of the range are read.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Unpack

import pyarrow as pa

from quorumbook.client.reading.columns import schema_of as chosen_of
from quorumbook.streams.format.position import Position
from quorumbook.streams.frames.decoding import BAD_COLUMNS, OnBad, RecordDecoding
from quorumbook.streams.frames.parts import FramePart, TableKeywords
from quorumbook.streams.frames.records import SCHEMA, Records, batch_of
from quorumbook.streams.reading.batches import RecordBatch
from quorumbook.streams.reading.options import ReaderOptions
from quorumbook.streams.reading.reader import StreamReader
from quorumbook.streams.reading.seek import Start, start_position
from quorumbook.streams.schemas.decoder import Decoder

#: Of one Arrow batch: 32-bit offsets bound its bytes, and a frame's steps like many rows.
MAX_ROWS, MAX_BYTES = 65_536, 32 * 1024 * 1024


def schema_of(
    columns: Sequence[str] | None, decoder: Decoder | None = None, on_bad: OnBad = "fail"
) -> pa.Schema:
    """Return the schema of some columns, in their order; None: of all but ``headers``.

    Args:
        columns: Which.
        decoder: What records are decoded by: there are columns of their fields; None: not at all.
        on_bad: What becomes of records that cannot be decoded.

    Raises:
        ConfigError: there is no such column, or one stands twice.
    """
    hidden = {"headers"}
    known = SCHEMA
    if decoder is not None:
        fields = RecordDecoding(decoder).schema
        known = pa.schema([*SCHEMA, *fields, pa.field("_error", BAD_COLUMNS["_error"])])
        hidden |= set() if on_bad == "null" else BAD_COLUMNS.keys()
    if columns is None:
        columns = [name for name in known.names if name not in hidden]
    return chosen_of(known, columns, "records")


async def arrow_batches(
    parts: Sequence[FramePart],
    columns: Sequence[str] | None = None,
    start: Start = "earliest",
    end: Start = "latest",
    decode: Decoder | None = None,
    on_bad: OnBad = "fail",
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the records of streams, one stream after the other, as they are when it begins.

    Args:
        parts: The streams.
        columns: Which columns, in which order; see ``schema_of``.
        start: Where to begin, as with ``reader``.
        end: Before which record to stop.
        decode: What decodes them; None: they are not.
        on_bad: What becomes of records that cannot be decoded.

    Raises:
        ConfigError: there is no such column.
        BadRecordError: a record cannot be decoded, and that is to fail.
        PositionTruncatedError: the record to start with was truncated.
        DataLossError: records are missing.
    """
    schema = schema_of(columns, decode, on_bad)
    made = batch_of if decode is None else RecordDecoding(decode, on_bad).batch_of
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
                    yield made(Records(part.title, part.partition, held), schema)
                    held, rows, size = [], 0, 0
        if held:
            yield made(Records(part.title, part.partition, held), schema)


async def arrow_table(
    parts: Sequence[FramePart],
    columns: Sequence[str] | None = None,
    **how: Unpack[TableKeywords],
) -> pa.Table:
    """Return the records of streams as one table; see ``arrow_batches``."""
    batches = arrow_batches(parts, columns, **how)
    async with contextlib.aclosing(batches):
        found = [batch async for batch in batches]
    schema = schema_of(columns, how.get("decode"), how.get("on_bad", "fail"))
    return pa.Table.from_batches(found, schema)
