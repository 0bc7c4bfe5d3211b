"""The rows that a step writes: its records, decoded or not, through SQL or Python.

Dead letters are rows of the same frame, for another stream, so that one commit has both.
"""

from __future__ import annotations

from typing import Any

from quorumbook.errors import ConfigError
from quorumbook.spark.connection import Connection
from quorumbook.spark.jobs.data.transform import frame_of
from quorumbook.spark.jobs.options import TransformOptions
from quorumbook.spark.jobs.queries import connected_to
from quorumbook.spark.pipeline.declaration import PipelineStep
from quorumbook.spark.pipeline.numbers import OBSERVED
from quorumbook.spark.rows.schema import STREAM_COLUMNS

#: What a record has besides its payload; the sink takes these columns.
_CARRIED = ("key", "timestamp", "headers")
_LETTER = """array(
    named_struct('key', 'dead-letter-stream', 'value', cast(stream AS binary)),
    named_struct('key', 'dead-letter-position',
                 'value', cast(concat_ws(':', segment, entry_id, slot) AS binary)),
    named_struct('key', 'dead-letter-reason', 'value', cast(_error AS binary))
) AS headers"""


def rows_of(spark: Any, connection: Connection, step: PipelineStep, cursor: str) -> Any:
    """Return a frame of a step's rows, as they come.

    Args:
        spark: The session.
        connection: Where the cluster is.
        step: The step.
        cursor: What follows it in the streams that it reads.

    Raises:
        ConfigError: its SQL or its file is wrong.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415

    records = _records(spark, connection, step, cursor)
    bad = None
    if step.dead_letters:
        bad = records.where("_error IS NOT NULL").selectExpr(
            f"{_text(step.dead_letters)} AS stream", "key", "value", "timestamp", _LETTER
        )
        records = records.where("_error IS NULL").drop("_error", "value")
    rows = _changed(spark, records, step)
    if step.directory:
        is_letter = f.lit(False)
    else:
        rows = _payloads(rows, step.stream)
        is_letter = f.col("stream") == (step.dead_letters or "")
    if bad is not None:
        rows = rows.unionByName(bad, allowMissingColumns=True)
    return rows.observe(
        OBSERVED,
        f.count(f.lit(1)).alias("rows"),
        f.sum(f.when(is_letter, 1).otherwise(0)).alias("dead_letters"),
    )


def _records(spark: Any, connection: Connection, step: PipelineStep, cursor: str) -> Any:
    reader = connected_to(spark.readStream.format("quorumbook"), connection)
    options = {"startingOffsets": "earliest", "includeHeaders": "true", "cursor": cursor}
    if step.batch_time_s:
        options["targetBatchTime"] = f"{step.batch_time_s:g}"
    if step.max_bytes:
        options["maxBytesPerTrigger"] = str(step.max_bytes)
    if step.decode:
        options |= {"decode": "schema", "onBadRecord": "null" if step.dead_letters else "fail"}
    return reader.options(**options).load(f"stream:{','.join(step.sources)}")


def _changed(spark: Any, records: Any, step: PipelineStep) -> Any:
    if not step.sql and not step.udf:
        gone = STREAM_COLUMNS.keys() - {*_CARRIED, *([] if step.decode else ["value"])}
        return records.drop(*gone)
    options = TransformOptions(
        source=f"stream:{step.sources[0]}", target=step.target, sql=step.sql,
        function_file=step.udf,
    )  # fmt: skip
    try:
        return frame_of(spark, records, options)
    except ConfigError as error:
        text = str(error).removeprefix("--")
        raise ConfigError(f"step {step.name}: {text}") from error


def _payloads(rows: Any, stream: str) -> Any:
    """Return rows for a stream: without a column ``value`` the others are fields of JSON."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    carried = [name for name in _CARRIED if name in rows.columns]
    if "value" in rows.columns:
        value = f.col("value").cast("binary")
    else:
        fields = [f.col(f"`{name}`") for name in rows.columns if name not in carried]
        value = f.to_json(f.struct(*fields)).cast("binary").alias("value")
    return rows.select(f.lit(stream).alias("stream"), value, *carried)


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
