"""Reads ``meta:`` as a batch: the metadata of a cluster as tables."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from quorumbook.client.tables.ledgers import Row
from quorumbook.spark.meta.tables import BY_LEDGER, META_COLUMNS, SMALL_TABLES, rows_by_ledger
from quorumbook.spark.pool import ClusterClient, connected
from quorumbook.spark.request.read_options import ReadOptions
from quorumbook.spark.rows.schema import arrow_schema, check_schema
from quorumbook.spark.short_errors import short_errors
from quorumbook.spark.source.task import Task

#: Of so many ledgers one task reads the metadata: a second's work or more.
_LEDGERS_OF_A_TASK = 10_000
_ROWS_OF_A_BATCH = 1000


@short_errors
class MetaReader(DataSourceReader):
    """Reads one table."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Take options and columns.

        Raises:
            ConfigError: there are no such columns.
        """
        self._table = options.selection.table
        check_schema(schema, META_COLUMNS[self._table], f"meta:{self._table}")
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return the tasks; of ledgers only the ids are listed for it."""
        cluster = connected(self._options.connection)
        if self._table not in BY_LEDGER:
            return [Task(cluster.instance_id, None)]

        async def list_ids() -> list[int]:
            return [ledger_id async for ledger_id in cluster.client.list_ledger_ids()]

        ids = cluster.run(list_ids)
        least = self._options.min_partitions
        step = max(1, min(_LEDGERS_OF_A_TASK, -(-len(ids) // least)))
        return [
            Task(cluster.instance_id, ids[first : first + step])
            for first in range(0, len(ids), step)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        if partition.value is None:
            return
        assert isinstance(partition, Task)
        partition.check_release()
        cluster = connected(self._options.connection)
        ids = partition.work_for(cluster.instance_id)
        schema = arrow_schema(self._schema)
        for rows in cluster.iterate_ahead(lambda: self._rows(cluster, ids)):
            yield pa.RecordBatch.from_pylist(rows, schema=schema)

    async def _rows(
        self, cluster: ClusterClient, ids: list[int] | None
    ) -> AsyncGenerator[list[Row], None]:
        names = self._schema.fieldNames()
        if ids is None:
            found = SMALL_TABLES[self._table](cluster, self._options)
        else:
            found = rows_by_ledger(cluster, self._table, ids)
        gathered: list[Row] = []
        async for row in found:
            gathered.append({name: row.get(name) for name in names})
            if len(gathered) == _ROWS_OF_A_BATCH:
                yield gathered
                gathered = []
        if gathered:
            yield gathered
