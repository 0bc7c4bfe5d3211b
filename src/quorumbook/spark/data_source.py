"""What ``pyspark_quorumbook`` hands Spark: the readers and writers for options and a schema.

Spark makes these objects in processes of its own, again and again, so nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import (
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from quorumbook.errors import ConfigError, QuorumbookError
from quorumbook.spark.meta.reader import MetaReader
from quorumbook.spark.meta.tables import META_COLUMNS
from quorumbook.spark.options import Use
from quorumbook.spark.request.read_options import ReadOptions
from quorumbook.spark.request.selection import Selected as Kind
from quorumbook.spark.rows.schema import struct_of
from quorumbook.spark.short_errors import short_errors
from quorumbook.spark.sink.options import WriteOptions
from quorumbook.spark.sink.write import BatchSink, StreamSink
from quorumbook.spark.source.batch import BatchReader
from quorumbook.spark.source.kinds import kind_of
from quorumbook.spark.source.refused import RefusedReader
from quorumbook.spark.source.tail import TailReader
from quorumbook.spark.tables import options_of, plain_schema


@short_errors
class Source:
    """One ``load`` or ``save``, with its options."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Take the options as Spark has them."""
        self._options = options

    def schema(self) -> StructType:
        """Return the columns of what is to be read.

        Raises:
            ConfigError: the options are wrong.
        """
        options = ReadOptions.of(self._options)
        if options.selection.kind is Kind.META:
            columns = META_COLUMNS[options.selection.table]
            return struct_of(columns, tuple(columns))
        kind = kind_of(options)
        return struct_of(kind.columns, kind.default_columns(options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads a batch."""
        given, schema = self._of_table(schema)
        options = ReadOptions.of(given, Use.READ)
        if options.selection.kind is Kind.META:
            return MetaReader(options, schema)
        return BatchReader(options, schema)

    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        """Return what reads a stream of batches, or what says why it cannot be read."""
        try:
            given, schema = self._of_table(schema)
            options = ReadOptions.of(given, Use.READ_STREAM)
            if options.selection.kind is Kind.META:
                raise ConfigError(f"meta:{options.selection.table} is read as a batch, with read")
            return TailReader(options, schema)
        except QuorumbookError as error:
            return RefusedReader(error)

    def writer(self, schema: StructType, *, overwrite: bool) -> DataSourceWriter:
        """Return what writes a batch."""
        given, plain = self._of_table(schema)
        options = WriteOptions.of(given, Use.WRITE)
        return BatchSink(options, plain, overwrite=overwrite, is_table=plain is not schema)

    def stream_writer(self, schema: StructType, *, overwrite: bool) -> DataSourceStreamWriter:
        """Return what writes the batches of a streaming query."""
        return StreamSink(
            WriteOptions.of(self._options, Use.WRITE_STREAM), schema, overwrite=overwrite
        )

    def _of_table(self, schema: StructType) -> tuple[Mapping[str, str], StructType]:
        """Return the options with those of a table that the schema is of, and a plain schema."""
        of_table = options_of(schema)
        if not of_table:
            return self._options, schema
        said = {name.lower() for name in self._options}
        more = {name: value for name, value in of_table.items() if name.lower() not in said}
        return {**self._options, **more}, plain_schema(schema)
