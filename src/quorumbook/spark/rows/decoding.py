"""Records as rows with the fields of their stream's schema."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import DataType

from quorumbook.env import logger
from quorumbook.spark.pool import ClusterClient
from quorumbook.spark.rows.ledger_rows import DamagedRow, damaged_row
from quorumbook.spark.rows.schema import STREAM_COLUMNS
from quorumbook.streams import Decoder, PartitionedStream
from quorumbook.streams.frames.decoding import OnBad, RecordDecoding
from quorumbook.streams.frames.records import Records
from quorumbook.streams.partitions.partition_node import partition_count

_log = logger("spark")


async def decoder_of(cluster: ClusterClient, stream: str, version: int | None = None) -> Decoder:
    """Return what decodes the records of a stream, partitioned or not, as it is known now.

    Raises:
        SchemaNotFoundError: it has no schema, or no such version.
        StreamNotFoundError: there is no such stream.
        ConfigError: the schema's library is missing.
    """
    namespace = await cluster.opened_namespace()
    count = await partition_count(namespace, stream)
    if count is None:
        return await namespace.stream(stream).decoder(version)
    return await PartitionedStream(namespace, stream, count).decoder(version)


class DecodedRows:
    """Makes rows of decoded records."""

    def __init__(self, decoder: Decoder, on_bad: OnBad) -> None:
        """Take what decodes, and what becomes of bad records."""
        self._decoding = RecordDecoding(decoder, on_bad)

    @property
    def columns(self) -> Mapping[str, DataType]:
        """All columns by name: those of every record, the fields, what is wrong with it."""
        fields = from_arrow_schema(self._decoding.schema)
        known = {name: kind for name, kind in STREAM_COLUMNS.items() if name != "_error"}
        decoded = {field.name: field.dataType for field in fields.fields}
        return {**known, **decoded, "_error": STREAM_COLUMNS["_error"]}

    def record_batch(self, records: Records | DamagedRow, schema: pa.Schema) -> pa.RecordBatch:
        """Return the rows.

        Raises:
            BadRecordError: a record cannot be decoded, and that is to fail.
        """
        if isinstance(records, DamagedRow):
            return damaged_row(records, schema)
        before = self._decoding.bad
        found = self._decoding.batch_of(records, schema)
        if self._decoding.is_dropping and self._decoding.bad > before:
            _log.warning(
                "%d of %d records of stream %s do not fit its schema, and were dropped",
                self._decoding.bad - before,
                sum(map(len, records.batches)),
                records.stream,
            )
        return found
