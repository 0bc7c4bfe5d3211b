"""Streams as tables for programs without asyncio: Arrow, pandas, Polars, DuckDB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from quorumbook.client.reading.lazy_frames import ValueBounds, lazy_frame
from quorumbook.client.reading.tabular import needs_extra
from quorumbook.loop_thread import LoopBound
from quorumbook.streams.errors import PositionTruncatedError
from quorumbook.streams.frames import tabular as aio
from quorumbook.streams.reading.seek import SequenceId, Start
from quorumbook.streams.schemas.decoder import Decoder
from quorumbook.sync.declared import blocking, iterating

if TYPE_CHECKING:
    import pyarrow as pa

    from quorumbook.streams.frames.decoding import OnBad


class Tabular(LoopBound):
    """The blocking twin of ``quorumbook.streams.frames.tabular.Tabular``, and what needs none."""

    #: The column by whose range a scan leaves records out: ``seq``, or ``partition`` where each
    #: partition has sequence ids of its own.
    _bounded: ClassVar[str]

    arrow_batches = iterating(aio.Tabular.arrow_batches)
    """Yield records as Arrow batches: what is there as this begins."""
    _batches_of_partitions = iterating(aio.Tabular._batches_of_partitions)  # noqa: SLF001 - a twin
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
        decode: Decoder | None = None,
        on_bad: OnBad = "fail",
    ) -> pa.RecordBatchReader:
        """Return a reader of Arrow batches, which are read as they are asked for.

        DuckDB, Polars and pyarrow take it as it is; see ``arrow_batches``.
        """
        with needs_extra("'quorumbook[arrow]'"):
            import pyarrow as pa  # noqa: PLC0415

            from quorumbook.streams.frames.reading import schema_of  # noqa: PLC0415
        batches = self.arrow_batches(columns, start=start, end=end, decode=decode, on_bad=on_bad)
        return pa.RecordBatchReader.from_batches(schema_of(columns, decode, on_bad), batches)

    def scan(
        self,
        *,
        start: Start = "earliest",
        end: Start = "latest",
        decode: Decoder | None = None,
        on_bad: OnBad = "fail",
    ) -> Any:
        """Return a lazy frame of Polars, which reads when it is collected.

        Columns that the query does not use are not made, and rows beyond its ``head`` not read.
        Of a stream without partitions, records are read from the smallest to the largest ``seq``
        that its filters leave; of a partitioned one, the partitions from the smallest to the
        largest.  Other filters run batch by batch; a range by time is said by ``start`` and
        ``end``.
        """
        with needs_extra("'quorumbook[arrow]' polars"):
            from quorumbook.streams.frames.reading import schema_of  # noqa: PLC0415
            from quorumbook.streams.frames.records import SCHEMA  # noqa: PLC0415

        def between(columns: Sequence[str], first: Start, behind: Start) -> Any:
            return self.arrow_batches(
                columns, start=first, end=behind, decode=decode, on_bad=on_bad
            )

        def batches(columns: Sequence[str], bounds: ValueBounds) -> Iterator[pa.RecordBatch]:
            if self._bounded == "partition":
                yield from self._batches_of_partitions(
                    bounds.low, bounds.high, columns,
                    start=start, end=end, decode=decode, on_bad=on_bad,
                )  # fmt: skip
                return
            first, behind = start, end
            if first == "earliest" and bounds.low is not None:
                first = SequenceId(max(bounds.low, 0))
            if behind == "latest" and bounds.high is not None:
                behind = SequenceId(max(bounds.high + 1, 0))
            found = between(columns, first, behind)
            try:
                begun = next(found, None)
            except PositionTruncatedError:
                if (first, behind) == (start, end):
                    raise
                # The filters leave what is not there any more, and maybe more.
                found, begun = between(columns, start, end), None
            if begun is not None:
                yield begun
            yield from found

        schema = SCHEMA if decode is None else schema_of(None, decode, on_bad)
        return lazy_frame(schema, "slot", batches, bounded=self._bounded)
