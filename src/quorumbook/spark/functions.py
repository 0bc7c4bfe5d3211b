"""Table functions for SQL, of ledgers, of streams and of the metadata of streams.

    bk_entries(ledger, first, last)   bk_ledger(ledger)
    read_stream(stream, first, last, since, until, first_txid, last_txid)
    stream_metadata(stream)

Their arguments say what is read, and nothing else is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

from pyspark.sql import SparkSession
from pyspark.sql.functions import udtf
from pyspark.sql.types import DataType

from quorumbook.client.tables.ledgers import Row, ledger_rows
from quorumbook.errors import ConfigError
from quorumbook.spark.meta.tables import META_COLUMNS
from quorumbook.spark.options import Use
from quorumbook.spark.pool import connected
from quorumbook.spark.request.planning import Piece
from quorumbook.spark.request.read_options import ReadOptions
from quorumbook.spark.rows.ledger_rows import DamagedRow, gather
from quorumbook.spark.rows.open_ledgers import OpenLedgers
from quorumbook.spark.rows.schema import STREAM_COLUMNS, struct_of
from quorumbook.spark.source.batch import BatchReader
from quorumbook.streams.partitions.partition_node import check_stream_exists, partition_count
from quorumbook.streams.partitions.partitioning import partition_name
from quorumbook.streams.tables.rows import segment_rows

#: One end of what is read: a sequence id, a time, a transaction id, of which one may be given.
_Bound: TypeAlias = tuple[int | None, datetime | None, int | None]
_ENTRIES = "ledger_id bigint, entry_id bigint, size int, value binary"
_OF_RECORDS = ("seq", "timestamp", "key", "value", "headers", "partition", "txid")
_LEDGER = "ledger_id bigint, state string, last_entry bigint, length bigint, fragments int"


def register_functions(spark: SparkSession, given: Mapping[str, str]) -> list[str]:
    """Have a session know the functions, for one cluster; return their names."""
    options = ReadOptions.of({**given, "path": "ledger:*"})

    class Entries:
        """Entries of one ledger; ``first`` and ``last`` may be left out."""

        def eval(
            self, ledger_id: int, first: int | None = None, last: int | None = None
        ) -> Iterator[tuple[Any, ...]]:
            """Yield the entries."""
            return entries_of(options, ledger_id, first, last)

    class Ledger:
        """What the metadata say of one ledger."""

        def eval(self, ledger_id: int) -> Iterator[tuple[Any, ...]]:
            """Yield one row."""
            cluster = connected(options.connection)
            metadata = cluster.run(lambda: cluster.client.ledger_metadata(ledger_id))
            (row,) = ledger_rows(metadata)
            yield tuple(
                row[name] for name in ("ledger_id", "state", "last_entry", "length", "fragments")
            )

    class Records:
        """Records of one stream; sequence ids, times and transaction ids, both ends included."""

        def eval(
            self,
            stream: str,
            first: int | None = None,
            last: int | None = None,
            since: datetime | None = None,
            until: datetime | None = None,
            first_txid: int | None = None,
            last_txid: int | None = None,
        ) -> Iterator[tuple[Any, ...]]:
            """Yield the records."""
            bounds = ((first, since, first_txid), (last, until, last_txid))
            return records_of(given, stream, *bounds)

    class Segments:
        """What the metadata say of the segments of one stream."""

        def eval(self, stream: str) -> Iterator[tuple[Any, ...]]:
            """Yield a row for each segment."""
            return segments_of(given, stream)

    kinds = {
        "bk_entries": udtf(Entries, returnType=_ENTRIES),
        "bk_ledger": udtf(Ledger, returnType=_LEDGER),
        "read_stream": udtf(Records, returnType=_ddl(STREAM_COLUMNS, _OF_RECORDS)),
        "stream_metadata": udtf(Segments, returnType=_ddl(META_COLUMNS["segments"])),
    }
    for name, kind in kinds.items():
        spark.udtf.register(name, kind)
    return list(kinds)


def _ddl(columns: Mapping[str, DataType], names: tuple[str, ...] = ()) -> str:
    return ", ".join(f"{name} {columns[name].simpleString()}" for name in names or columns)


def records_of(
    given: Mapping[str, str],
    stream: str,
    first: _Bound,
    last: _Bound,
) -> Iterator[tuple[Any, ...]]:
    """Yield records of a stream from the first to the last one, of those that are asked for.

    Raises:
        ConfigError: more than one of sequence id, time and transaction id says where to begin, or
            where to end.
    """
    said = {**given, "path": f"stream:{stream}", "includeHeaders": "true"}
    for end, (number, at, txid), more in ("starting", first, 0), ("ending", last, 1):
        if 3 - (number, at, txid).count(None) > 1:
            raise ConfigError(
                "a sequence id, a time or a transaction id says where to begin or to end, and "
                "not several"
            )
        if number is not None:
            said[f"{end}Offsets"] = json.dumps({stream: number + more})
        if txid is not None:
            said[f"{end}Offsets"] = json.dumps({stream: f"txid:{txid + more}"})
        if at is not None:
            said[f"{end}Timestamp"] = str(int(at.timestamp() * 1000) + more)
    schema = struct_of(STREAM_COLUMNS, _OF_RECORDS)
    reader = BatchReader(ReadOptions.of(said, Use.READ), schema)
    for task in reader.partitions():
        for batch in reader.read(task):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def segments_of(given: Mapping[str, str], stream: str) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of ``meta:segments`` that are of a stream, or of its partitions.

    Raises:
        StreamNotFoundError: there is no such stream.
    """
    cluster = connected(ReadOptions.of({**given, "path": "meta:segments"}).connection)

    async def found() -> list[Row]:
        namespace = await cluster.opened_namespace()
        await check_stream_exists(namespace, stream)
        count = await partition_count(namespace, stream)
        names = [stream] if count is None else [partition_name(stream, n) for n in range(count)]
        return [row for name in names async for row in segment_rows(namespace, name)]

    for row in cluster.run(found):
        yield tuple(_as_spark_has_it(name, row[name]) for name in META_COLUMNS["segments"])


def _as_spark_has_it(name: str, value: Any) -> Any:
    if name == "completed_at" and value is not None:
        return datetime.fromtimestamp(value / 1e6, UTC)
    return value


def entries_of(
    options: ReadOptions, ledger_id: int, first: int | None, last: int | None
) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield id, entry, size and payload of entries that are confirmed."""
    cluster = connected(options.connection)
    ledgers = OpenLedgers(cluster, options.connection)
    end, _ = cluster.run(lambda: ledgers.end_entry(ledger_id))
    cluster.run(lambda: ledgers.forget(ledger_id))
    begin = first or 0
    behind = end if last is None else min(end, last + 1)
    if begin >= behind:
        return
    piece = Piece("", ledger_id, begin, behind - 1, 0, behind - begin)
    for found in cluster.iterate_ahead(lambda: gather(cluster, options, [piece])):
        assert not isinstance(found, DamagedRow)  # what cannot be read is an error here
        for batch, *_ in found:
            for entry in batch:
                yield ledger_id, entry.entry_id, len(entry.payload), entry.payload
