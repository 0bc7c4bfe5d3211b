"""``transform``: records of streams through SQL or a Python function into another stream.

Without either it is a replay: every payload as it is.
"""

from __future__ import annotations

import runpy
from typing import Any

from quorumbook.errors import ConfigError
from quorumbook.spark.jobs.options import TransformOptions

_VIEW = "records"


def frame_of(spark: Any, records: Any, options: TransformOptions) -> Any:
    """Return the rows to write.

    Raises:
        ConfigError: the SQL or the file is wrong.
    """
    from pyspark.errors import AnalysisException, ParseException  # noqa: PLC0415

    if options.function_file:
        records = _function(options.function_file)(records)
    if not options.sql:
        return records if options.function_file else records.select("value")
    records.createOrReplaceTempView(_VIEW)
    try:
        return spark.sql(options.sql)
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
