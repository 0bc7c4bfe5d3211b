"""Where PySpark finds the data source ``quorumbook`` by itself.

PySpark imports every top-level package called ``pyspark_*`` without a net, so this one imports
nothing of ours before it is used, and never raises: without PySpark it is empty.
"""

from __future__ import annotations

import contextlib

with contextlib.suppress(ImportError):
    from typing import TYPE_CHECKING, Any

    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )

    if TYPE_CHECKING:
        from pyspark.sql.types import StructType

    class DefaultSource(DataSource):
        """``spark.read.format("quorumbook")``; all it does stands in ``quorumbook.spark``."""

        @classmethod
        def name(cls) -> str:
            """Return the name of the format."""
            return "quorumbook"

        def schema(self) -> StructType:
            """Return the columns of what is to be read."""
            return self._source().schema()

        def reader(self, schema: StructType) -> DataSourceReader:
            """Return what reads a batch."""
            return self._source().reader(schema)

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
            """Return what reads a stream of batches."""
            return self._source().stream_reader(schema)

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            """Return what writes a batch."""
            return self._source().writer(schema, overwrite=overwrite)

        def streamWriter(  # noqa: N802
            self, schema: StructType, overwrite: bool
        ) -> DataSourceStreamWriter:
            """Return what writes a stream of batches."""
            return self._source().stream_writer(schema, overwrite=overwrite)

        def _source(self) -> Any:
            from quorumbook.spark.data_source import Source  # noqa: PLC0415

            return Source(dict(self.options))
