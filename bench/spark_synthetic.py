"""Sources and a sink that cost next to nothing themselves: what is left is Spark's own.

They are pickled to Spark's workers as they stand here, which cannot import this directory.
"""

from __future__ import annotations

import datetime
import statistics
import sys
import time
from collections.abc import Iterator
from itertools import pairwise, repeat
from typing import Any

import pyarrow as pa
from pyspark.cloudpickle import register_pickle_by_value
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from quorumbook.spark.rows.schema import arrow_schema
from spark_load import timed

#: Columns like those of ledgers, and like those of streams.
NARROW = "ledger_id long, entry_id long, size int, value binary"
WIDE = (
    "stream string, segment long, entry_id long, seq long, timestamp timestamp, "
    "appended timestamp, key binary, value binary"
)
_BATCH_ROWS, _BATCH_BYTES = 10_000, 2 * 1024 * 1024
#: Batches of a query before those that count, and how many do.
_WARM, _COUNTED = 5, 20
_NO_ANSWER_S = 120.0


class Border(DataSource):
    """Rows that are made once in the worker, and handed over again and again."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "border"

    def schema(self) -> str:
        """Return the columns."""
        return str(self.options["columns"])

    def reader(self, schema: StructType) -> BorderReader:
        """Return what reads."""
        return BorderReader(self.options, schema)


class BorderReader(DataSourceReader):
    """Tasks that yield the same batch again and again, or so many tuples."""

    def __init__(self, options: Any, schema: StructType) -> None:
        self._size, self._count = int(options["size"]), int(options["count"])
        self._tasks, self._is_arrow = int(options["tasks"]), options["kind"] == "arrow"
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return the tasks."""
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Return batches as large as those of ledgers, or rows."""
        count = self._count // self._tasks
        row = [self._constant(field.name) for field in self._schema]
        if not self._is_arrow:
            return (tuple(row) for _ in range(count))
        rows = min(_BATCH_ROWS, _BATCH_BYTES // self._size)
        columns = {
            field.name: [value] * rows for field, value in zip(self._schema, row, strict=True)
        }
        batch = pa.RecordBatch.from_pydict(columns, arrow_schema(self._schema))
        return repeat(batch, count // rows)

    def _constant(self, column: str) -> Any:
        moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        constants = {
            "stream": "streams/orders", "timestamp": moment, "appended": moment,
            "key": b"customer-00000001", "value": bytes(self._size),
        }  # fmt: skip
        return constants.get(column, self._size)


class Ticks(DataSource):
    """A stream that has something new whenever it is asked, of which there are no rows."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "ticks"

    def schema(self) -> str:
        """Return the columns."""
        return WIDE

    def streamReader(self, schema: StructType) -> TicksReader:  # noqa: N802 - Spark's name
        """Return what reads."""
        return TicksReader()


class TicksReader(DataSourceStreamReader):
    """Counts how often it was asked."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return where a query begins."""
        return {"n": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return what lies behind that."""
        return {"n": start["n"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return one task."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Return no rows."""
        return iter(())


class Nothing(DataSource):
    """A sink that takes rows and does nothing with them."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "nothing"

    def writer(self, schema: StructType, overwrite: bool) -> NothingWriter:
        """Return what writes."""
        return NothingWriter()


class NothingWriter(DataSourceArrowWriter):
    """Looks at every batch."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Take them."""
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing."""


def register(spark: Any) -> None:
    """Have a session know them."""
    register_pickle_by_value(sys.modules[__name__])
    for source in (Border, Ticks, Nothing):
        spark.dataSource.register(source)


def cross_border(
    spark: Any, size: int, count: int, columns: str = NARROW, *, tasks: int = 1, kind: str = "arrow"
) -> float:
    """Have Spark take rows that cost nothing to make; return seconds.

    Args:
        spark: The session.
        size: Of a value.
        count: How many rows; 0 is what tasks cost that do nothing.
        columns: Of which columns.
        tasks: How many of them share the rows.
        kind: ``arrow`` for batches, ``tuple`` for rows by themselves.
    """
    register(spark)
    reader = spark.read.format("border").options(size=size, count=count, columns=columns)
    frame = reader.options(tasks=tasks, kind=kind).load()
    return timed(lambda: frame.write.format("noop").mode("overwrite").save())


def write_to_nothing(frame: Any) -> float:
    """Write a frame to a sink that does nothing; return seconds."""
    return timed(lambda: frame.write.format("nothing").mode("append").save())


def period_s(writer: Any) -> float:
    """Run a query as fast as it can, and return how long it is from one batch to the next.

    Args:
        writer: What starts the query; there must always be something new for it.
    """
    query = writer.trigger(processingTime="0 seconds").start()
    begins: dict[int, datetime.datetime] = {}
    give_up_at = time.monotonic() + _NO_ANSWER_S
    try:
        while len(begins) <= _COUNTED:
            if not query.isActive or time.monotonic() > give_up_at:
                raise RuntimeError(f"{len(begins)} batches came: {query.exception()}")
            time.sleep(0.1)
            for progress in query.recentProgress:
                if progress["batchId"] >= _WARM:
                    begin = progress["timestamp"].replace("Z", "+00:00")
                    begins.setdefault(progress["batchId"], datetime.datetime.fromisoformat(begin))
    finally:
        query.stop()
    return statistics.median(
        (after - before).total_seconds() for before, after in pairwise(begins.values())
    )
