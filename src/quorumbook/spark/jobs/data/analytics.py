"""``analytics``: measures over windows of event time, by group, as records become late no more.

A window's row is written once, when the watermark has passed its end: the latest event time seen,
less what events may be late.  What comes later than that is left out, and counted nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from quorumbook.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions:
    """What is computed."""

    #: The fields of the records' JSON, as in SQL: ``carrier string, at timestamp``.
    schema: str
    #: The field that tells when it happened.
    time: str
    window: str
    slide: str = ""
    watermark: str = "0 seconds"
    group_by: tuple[str, ...] = ()
    #: Such as ``count(*) AS flights``.
    measures: tuple[str, ...] = ("count(*) AS count",)


def frame_of(records: Any, options: WindowOptions, *, as_json: bool) -> Any:
    """Return a row for each window and group: start, end, the group's columns, the measures.

    Args:
        records: With the column ``value``, JSON.
        options: What is computed.
        as_json: Whether the rows become the column ``value``, for a stream.

    Raises:
        ConfigError: there is no such field, or no such function.
    """
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
    return rows.select(f.to_json(f.struct("*")).alias("value")) if as_json else rows
