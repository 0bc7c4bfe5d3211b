"""What can be read as a table, and how it is asked for: the door of this room, without pyarrow."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from quorumbook.client.reading.tabular import needs_extra
from quorumbook.streams.frames.parts import FramePart, TableKeywords
from quorumbook.streams.reading.seek import Start
from quorumbook.streams.schemas.decoder import Decoder

if TYPE_CHECKING:
    import pyarrow as pa

    from quorumbook.streams.frames.decoding import OnBad


class Tabular:
    """What has records that can be read as a table; needs the extra ``[arrow]``."""

    def _table_parts(self) -> list[FramePart]:
        """Return the streams whose records those are, in order."""
        raise NotImplementedError

    async def arrow_batches(
        self,
        columns: Sequence[str] | None = None,
        *,
        start: Start = "earliest",
        end: Start = "latest",
        decode: Decoder | None = None,
        on_bad: OnBad = "fail",
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield records as Arrow batches: what is there as this begins.

        Args:
            columns: Which, in which order: ``stream``, ``partition``, ``seq``, ``segment``,
                ``ledger_id``, ``entry_id``, ``slot``, ``txid``, ``timestamp``, ``key``, ``value``,
                ``headers``.  No others are made.  None: all but ``headers``.
            start: Where to begin, as with ``reader``.
            end: Before which record to stop, said in the same ways.
            decode: What decodes records, as ``decoder`` returns it: the fields of the schema are
                columns then, and ``value`` has only the bytes of bad records.  A field with the
                name of a column above, in whatever case, gets ``_`` after it.
            on_bad: What becomes of a record that cannot be decoded: ``fail``; ``null``, a row
                with its bytes as ``value`` and the reason as ``_error``; ``drop``, nothing.

        Raises:
            ConfigError: there is no such column, or pyarrow is missing.
            BadRecordError: a record cannot be decoded, and that is to fail.
            PositionTruncatedError: the record to start with was truncated.
            DataLossError: records are missing.
        """
        with needs_extra("'quorumbook[arrow]'"):
            from quorumbook.streams.frames.reading import arrow_batches  # noqa: PLC0415
        batches = arrow_batches(self._table_parts(), columns, start, end, decode, on_bad)
        async with contextlib.aclosing(batches):
            async for batch in batches:
                yield batch

    async def _batches_of_partitions(
        self,
        low: int | None,
        high: int | None,
        columns: Sequence[str],
        **how: Unpack[TableKeywords],
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the records of some partitions, both bounds included; see ``arrow_batches``."""
        with needs_extra("'quorumbook[arrow]'"):
            from quorumbook.streams.frames.reading import arrow_batches  # noqa: PLC0415
        parts = [
            part
            for part in self._table_parts()
            if (low is None or part.partition >= low) and (high is None or part.partition <= high)
        ]
        async with contextlib.aclosing(arrow_batches(parts, columns, **how)) as batches:
            async for batch in batches:
                yield batch

    async def to_arrow(
        self, columns: Sequence[str] | None = None, **how: Unpack[TableKeywords]
    ) -> pa.Table:
        """Return records as an Arrow table; see ``arrow_batches``."""
        with needs_extra("'quorumbook[arrow]'"):
            from quorumbook.streams.frames.reading import arrow_table  # noqa: PLC0415
        return await arrow_table(self._table_parts(), columns, **how)

    async def to_pandas(
        self, columns: Sequence[str] | None = None, **how: Unpack[TableKeywords]
    ) -> Any:
        """Return records as a pandas frame; see ``arrow_batches``."""
        with needs_extra("'quorumbook[arrow]' pandas"):
            import pandas  # noqa: F401, PLC0415
        return (await self.to_arrow(columns, **how)).to_pandas()

    async def to_polars(
        self, columns: Sequence[str] | None = None, **how: Unpack[TableKeywords]
    ) -> Any:
        """Return records as a Polars frame; see ``arrow_batches``."""
        with needs_extra("'quorumbook[arrow]' polars"):
            import polars  # noqa: PLC0415
        return polars.from_arrow(await self.to_arrow(columns, **how))
