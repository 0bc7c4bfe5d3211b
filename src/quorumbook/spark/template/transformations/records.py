"""Records of a stream as a table, what is known of each key, and what came of it as a stream."""

from __future__ import annotations

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, max_by, upper

spark = SparkSession.active()
OPTIONS = {"metadataServiceUri": spark.conf.get("spark.quorumbook.metadata")}
FROM = spark.conf.get("spark.quorumbook.from")
TO = spark.conf.get("spark.quorumbook.to")


@dp.table
def records() -> DataFrame:
    """All records of the stream; each run adds what came since the last one, each record once."""
    return (
        spark.readStream.format("quorumbook")
        .options(**OPTIONS, startingOffsets="earliest")
        .load(f"stream:{FROM}")
        .select("seq", "timestamp", col("key").cast("string"), col("value").cast("string"))
    )


@dp.materialized_view
def newest() -> DataFrame:
    """The newest value of each key."""
    return (
        spark.read.table("records")
        .groupBy("key")
        .agg(max_by("value", "seq").alias("value"), count("*").alias("records"))
    )


dp.create_sink("upper", "quorumbook", {**OPTIONS, "stream": TO, "createStream": "true"})


@dp.append_flow(target="upper")
def to_upper() -> DataFrame:
    """What goes to the other stream, exactly once: put your own transformation here."""
    return spark.readStream.table("records").select(upper("value").alias("value"))
