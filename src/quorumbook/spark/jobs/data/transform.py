"""``transform``: records of streams through SQL or a Python function into another stream.

Without either it is a replay: every payload as it is.
"""

from __future__ import annotations

import runpy
from typing import Any

from quorumbook.errors import ConfigError

_VIEW = "records"


def frame_of(
    spark: Any,
    records: Any,
    *,
    sql: str,
    function_file: str,
    until_ms: int | None,
    first: int,
    last: int | None,
) -> Any:
    """Return the rows to write.

    Args:
        spark: The session.
        records: The source's columns.
        sql: Over the view ``records``; it gives ``value``, and ``stream`` or ``txid`` if wanted.
        function_file: A Python file whose function ``transform`` takes a frame and returns one.
        until_ms: Only records that were appended before.
        first: Only records with this sequence id or a later one …
        last: … up to this one.

    Raises:
        ConfigError: the SQL or the file is wrong.
    """
    from pyspark.errors import AnalysisException, ParseException  # noqa: PLC0415
    from pyspark.sql import functions as f  # noqa: PLC0415

    if until_ms is not None:
        records = records.where(f.col("timestamp") < f.timestamp_millis(f.lit(until_ms)))
    if first:
        records = records.where(f.col("seq") >= first)
    if last is not None:
        records = records.where(f.col("seq") <= last)
    if function_file:
        records = _function(function_file)(records)
    if not sql:
        return records if function_file else records.select("value")
    records.createOrReplaceTempView(_VIEW)
    try:
        return spark.sql(sql)
    except (AnalysisException, ParseException) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"--sql: {reason}; the records are in the view {_VIEW}") from error


def _function(path: str) -> Any:
    try:
        found = runpy.run_path(path).get("transform")
    except OSError as error:
        raise ConfigError(f"--udf {path}: {error.strerror}") from error
    except Exception as error:
        raise ConfigError(f"--udf {path}: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ConfigError(f"--udf {path}: it has no function transform(frame)")
    return found
