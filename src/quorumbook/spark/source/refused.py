"""A reader of a query that cannot be read: it says why when Spark first asks it.

PySpark 4.3 loses the error where making the reader of a streaming query raises one: it wants to
stop the reader, which there is none of, and reports that instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from quorumbook.spark.short_errors import short_errors


@short_errors
class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises one error, whatever is asked."""

    def __init__(self, error: Exception) -> None:
        """Take the error."""
        self._error = error

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Raise the error."""
        self._refuse()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Raise the error."""
        self._refuse()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Raise the error."""
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Raise the error."""
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raise the error."""
        self._refuse()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the error."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise self._error
