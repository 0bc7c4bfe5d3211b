"""What has metadata that can be read as tables, and how one is asked for, without pyarrow."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any

from quorumbook.client.reading.tabular import needs_extra
from quorumbook.client.tables.cluster import TABLES, Client
from quorumbook.client.tables.ledgers import Row
from quorumbook.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_OF_A_BATCH = 1000


class TabularMetadata:
    """What has tables of metadata; needs the extra ``[arrow]``."""

    def _schema_of(self, table: str) -> pa.Schema:
        """Return the columns of a table that there is."""
        raise NotImplementedError

    def _rows_of(self, table: str) -> AsyncGenerator[Row, None]:
        """Yield the rows of a table that there is."""
        raise NotImplementedError

    def _tables(self) -> Sequence[str]:
        """Return the names of the tables."""
        raise NotImplementedError

    async def to_arrow(self, table: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return metadata as an Arrow table; damaged metadata are left out, and logged.

        Args:
            table: Which: of a client ``cluster``, ``bookies``, ``ledgers``, ``fragments``,
                ``replicas``, ``under_replicated`` or ``storage_usage``; of a namespace
                ``streams``, ``segments`` or ``cursors``.  docs/spark.md names their columns.
            columns: Which columns, in which order; None: all.

        Raises:
            ConfigError: there is no such table or column, or pyarrow is missing.
            MetadataUnavailableError: the metadata store cannot be reached.
        """
        if table not in self._tables():
            near = difflib.get_close_matches(table, self._tables(), 1, 0.5) or self._tables()
            raise ConfigError(f"there is no table {table!r} here; the nearest: {', '.join(near)}")
        with needs_extra("'quorumbook[arrow]'"):
            import pyarrow as pa  # noqa: PLC0415

            from quorumbook.client.reading.columns import schema_of  # noqa: PLC0415
        schema = schema_of(self._schema_of(table), columns, f"rows of {table}")
        batches: list[pa.RecordBatch] = []
        held: list[Row] = []
        async with contextlib.aclosing(self._rows_of(table)) as rows:
            async for row in rows:
                held.append(row)
                if len(held) == _ROWS_OF_A_BATCH:
                    batches.append(pa.RecordBatch.from_pylist(held, schema=schema))
                    held = []
        batches.append(pa.RecordBatch.from_pylist(held, schema=schema))
        return pa.Table.from_batches(batches, schema)

    async def to_pandas(self, table: str, columns: Sequence[str] | None = None) -> Any:
        """Return metadata as a pandas frame; see ``to_arrow``."""
        with needs_extra("'quorumbook[arrow]' pandas"):
            import pandas  # noqa: F401, PLC0415
        return (await self.to_arrow(table, columns)).to_pandas()

    async def to_polars(self, table: str, columns: Sequence[str] | None = None) -> Any:
        """Return metadata as a Polars frame; see ``to_arrow``."""
        with needs_extra("'quorumbook[arrow]' polars"):
            import polars  # noqa: PLC0415
        return polars.from_arrow(await self.to_arrow(table, columns))


class TabularCluster(TabularMetadata, Client):
    """A client, whose cluster has tables."""

    def _tables(self) -> Sequence[str]:
        return list(TABLES)

    def _schema_of(self, table: str) -> pa.Schema:
        from quorumbook.client.tables.columns import SCHEMAS  # noqa: PLC0415 - has pyarrow

        return SCHEMAS[table]

    def _rows_of(self, table: str) -> AsyncGenerator[Row, None]:
        return TABLES[table](self)
