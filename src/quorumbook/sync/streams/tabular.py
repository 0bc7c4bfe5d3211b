"""Streams as tables for programs without asyncio: Arrow, pandas, Polars, DuckDB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from quorumbook.streams.frames import tabular as aio
from quorumbook.streams.frames.tabular import needs_extra
from quorumbook.streams.reading.seek import Start
from quorumbook.sync.declared import blocking, iterating
from quorumbook.sync.loop import LoopBound

if TYPE_CHECKING:
    import pyarrow as pa


class Tabular(LoopBound):
    """The blocking twin of ``quorumbook.streams.frames.tabular.Tabular``, and what needs none."""

    arrow_batches = iterating(aio.Tabular.arrow_batches)
    """Yield records as Arrow batches: what is there as this begins."""
    to_arrow = blocking(aio.Tabular.to_arrow)
    """Return records as an Arrow table."""
    to_pandas = blocking(aio.Tabular.to_pandas)
    """Return records as a pandas frame."""
    to_polars = blocking(aio.Tabular.to_polars)
    """Return records as a Polars frame."""

    def arrow_reader(
        self,
        columns: Sequence[str] | None = None,
        *,
        start: Start = "earliest",
        end: Start = "latest",
    ) -> pa.RecordBatchReader:
        """Return a reader of Arrow batches, which are read as they are asked for.

        DuckDB, Polars and pyarrow take it as it is; see ``arrow_batches``.
        """
        with needs_extra("'quorumbook[arrow]'"):
            import pyarrow as pa  # noqa: PLC0415

            from quorumbook.streams.frames.reading import schema_of  # noqa: PLC0415
        batches = self.arrow_batches(columns, start=start, end=end)
        return pa.RecordBatchReader.from_batches(schema_of(columns), batches)

    def scan(self, *, start: Start = "earliest", end: Start = "latest") -> Any:
        """Return a lazy frame of Polars, which reads when it is collected.

        Columns that the query does not use are not made, and rows beyond its ``head`` not read.
        Its filters run batch by batch; which records are read at all is said by ``start`` and
        ``end``.
        """
        with needs_extra("'quorumbook[arrow]' polars"):
            import polars as pl  # noqa: PLC0415
            from polars.io.plugins import register_io_source  # noqa: PLC0415

            from quorumbook.streams.frames.records import SCHEMA  # noqa: PLC0415

        def source(
            columns: list[str] | None, predicate: Any, count: int | None, _size: int | None
        ) -> Iterator[Any]:
            wanted = SCHEMA.names if columns is None else columns or ["slot"]
            for batch in self.arrow_batches(wanted, start=start, end=end):
                frame: Any = pl.from_arrow(batch)
                if count is not None:
                    frame = frame.head(count)
                    count -= len(frame)
                yield frame if predicate is None else frame.filter(predicate)
                if count == 0:
                    return

        nothing: Any = pl.from_arrow(SCHEMA.empty_table())
        return register_io_source(source, schema=nothing.schema)
