"""A namespace as tables: the door of what needs pyarrow, without pyarrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorumbook.client.tables.tabular import TabularMetadata
from quorumbook.streams.tables.rows import TABLES, Streams

if TYPE_CHECKING:
    import pyarrow as pa


class TabularNamespace(TabularMetadata, Streams):
    """A namespace, whose streams have tables."""

    _TABLES = TABLES

    def _schema_of(self, table: str) -> pa.Schema:
        from quorumbook.streams.tables.columns import SCHEMAS  # noqa: PLC0415 - has pyarrow

        return SCHEMAS[table]
