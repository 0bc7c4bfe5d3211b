"""What has metadata that can be read as tables, and how one is asked for, without pyarrow."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from quorumbook.client.reading.tabular import needs_extra
from quorumbook.client.tables.cluster import TABLES, Client
from quorumbook.client.tables.ledgers import Row
from quorumbook.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_OF_A_BATCH = 1000


class TabularMetadata:
    """What has tables of metadata; needs the extra ``[arrow]``."""

    #: What makes the rows of each table.
    _TABLES: ClassVar[Mapping[str, Callable[[Any], AsyncGenerator[Row, None]]]]

    def _schema_of(self, table: str) -> pa.Schema:
        """Return the columns of a table that there is."""
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
        if table not in self._TABLES:
            near = difflib.get_close_matches(table, self._TABLES, 1, 0.5) or self._TABLES
            raise ConfigError(f"there is no table {table!r} here; the nearest: {', '.join(near)}")
        with needs_extra("'quorumbook[arrow]'"):
            import pyarrow as pa  # noqa: PLC0415

            from quorumbook.client.reading.columns import schema_of  # noqa: PLC0415
        schema = schema_of(self._schema_of(table), columns, f"rows of {table}")
        batches: list[pa.RecordBatch] = []
        held: list[Row] = []
        async with contextlib.aclosing(self._TABLES[table](self)) as rows:
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

    _TABLES = TABLES

    def _schema_of(self, table: str) -> pa.Schema:
        from quorumbook.client.tables.columns import SCHEMAS  # noqa: PLC0415 - has pyarrow

        return SCHEMAS[table]
