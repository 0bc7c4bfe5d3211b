"""``analytics``: measures over windows of event time, by group, as records become late no more.

A window's row is written once, when the watermark has passed its end: the latest event time seen,
less what events may be late.  What comes later than that is left out, and counted nowhere.
"""

from __future__ import annotations

from typing import Any

from quorumbook.errors import ConfigError
from quorumbook.spark.jobs.options import AnalyticsOptions
from quorumbook.spark.jobs.streams import is_stream


def frame_of(spark: Any, records: Any, options: AnalyticsOptions) -> Any:
    """Return a row for each window and group: start, end, the group's columns, the measures.

    Args:
        spark: The session.
        records: With the column ``value``, JSON.
        options: What is computed; for a stream, the rows become the column ``value``.

    Raises:
        ConfigError: there is no such field, or no such function.
    """
    del spark
    from pyspark.errors import AnalysisException, ParseException  # noqa: PLC0415
    from pyspark.sql import functions as f  # noqa: PLC0415

    try:
        event = f.from_json(f.col("value").cast("string"), options.schema)
        events = records.select(event.alias("event")).select("event.*")
        if options.time not in events.columns:
            raise ConfigError(f"--time {options.time}: it is not in --schema {options.schema}")
        events = events.where(f.col(options.time).isNotNull())
        events = events.withWatermark(options.time, options.watermark)
        slide = options.slide or options.window
        windows = events.groupBy(
            f.window(options.time, options.window, slide), *map(f.col, options.group_by)
        )
        rows = windows.agg(*map(f.expr, options.measures))
        rows = rows.select(
            f.col("window.start").alias("window_start"),
            f.col("window.end").alias("window_end"),
            *(f.col(name) for name in rows.columns if name != "window"),
        )
    except (AnalysisException, ParseException) as error:
        raise ConfigError(f"analytics: {str(error).partition(chr(10))[0]}") from error
    if not is_stream(options.target):
        return rows
    return rows.select(f.to_json(f.struct("*")).alias("value"))
