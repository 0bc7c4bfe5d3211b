"""A segment's records as one Parquet file, with the fields of their stream's schema as columns.

It lies beside the segment's entries in the tier, for whoever queries files: DuckDB, pandas, Spark.
Streams never read it, and it goes when they go.  Its columns are those of a table of records, with
``headers``, the fields, and ``_error``; a record that the schema does not fit has its bytes as
``value``, the reason as ``_error``, and nulls as fields.  The footer's metadata say which version
the fields are of: ``quorumbook.schema_version``.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import pyarrow as pa

from quorumbook.env import Env
from quorumbook.streams.format.position import Position
from quorumbook.streams.format.segment_text import SegmentMetadata
from quorumbook.streams.frames.parts import FramePart
from quorumbook.streams.frames.reading import arrow_batches, schema_of
from quorumbook.streams.schemas.decoder import Decoder
from quorumbook.streams.tier.places import below, file_system, is_object_store, make_directory
from quorumbook.streams.tier.worker import FileWorker

NAME = "records.parquet"
#: What it is called until it is whole.
_UNFINISHED = "records.parquet.unfinished"


async def write_records(
    env: Env, part: FramePart, segment: SegmentMetadata, decoder: Decoder, location: str
) -> int:
    """Write the records of a completed segment into a directory; return those not decoded.

    Args:
        env: The world.
        part: The segment's stream.
        segment: Which.
        decoder: What decodes the records.
        location: The directory, as path or URI.

    Raises:
        FilesUnavailableError: the file cannot be written.
        DataLossError: records are missing.
    """
    columns = [*schema_of(None, decoder, "null").names, "headers"]
    schema = schema_of(columns, decoder, "null")
    start = Position(segment.number, segment.min_active_entry, segment.min_active_slot)
    end = Position(segment.number + 1, 0, 0)
    batches = arrow_batches([part], columns, start, end, decoder, "null")
    worker = FileWorker(env)
    file: _RecordFile | None = None
    bad = 0
    try:
        file = await worker.run(partial(_RecordFile, location, schema, decoder.version))
        async with contextlib.aclosing(batches):
            async for batch in batches:
                bad += len(batch) - batch.column("_error").null_count
                await worker.run(partial(file.add, batch))
        await worker.run(file.finish)
    finally:
        if file is not None:
            await worker.run(file.abandon)
        worker.stop()
    return bad


class _RecordFile:
    """The file while it is written; blocks."""

    def __init__(self, location: str, schema: pa.Schema, version: int) -> None:
        import pyarrow.parquet as pq  # noqa: PLC0415 - slow, and only needed here

        self._system, self._name = file_system(below(location, NAME))
        # An object is not there before it is whole, and moving one copies it.
        is_far = is_object_store(self._system)
        self._path = self._name if is_far else file_system(below(location, _UNFINISHED))[1]
        make_directory(self._system, self._path.rpartition("/")[0])
        self._writer: Any = pq.ParquetWriter(
            self._path, schema, filesystem=self._system, compression="zstd"
        )
        self._writer.add_key_value_metadata({"quorumbook.schema_version": str(version)})

    def add(self, batch: pa.RecordBatch) -> None:
        """Write records, as a row group."""
        self._writer.write_batch(batch)

    def finish(self) -> None:
        """Close the file, and give it its name."""
        self._writer.close()
        if self._path != self._name:
            self._system.move(self._path, self._name)

    def abandon(self) -> None:
        """Close what will never be used."""
        with contextlib.suppress(Exception):
            self._writer.close()
