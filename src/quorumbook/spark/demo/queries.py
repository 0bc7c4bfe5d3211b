"""The queries of the demo: flights into a partitioned stream, delays by the hour out of it.

    files ──► ingest (streaming, exactly once) ──► flights/p0 … p3
    flights ──► delays (streaming, event-time windows, late events) ──► lake/windows
    flights + planes + weather ──► flights_with_context (batch) ──► lake/flights
    flights, by their schema ──► SQL; what does not fit ──► flights-bad

They use nothing but what docs/spark.md shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

STREAM = "flights"
PARTITIONS = 4
#: Where records go that the schema does not fit.
BAD = "flights-bad"
SCHEMA = """{"type": "object", "required": ["carrier", "origin"], "properties": {
    "carrier": {"type": "string"}, "origin": {"type": "string"}, "dest": {"type": "string"},
    "dep_delay": {"type": ["integer", "null"]}}}"""
_LATEST = """
    SELECT carrier, round(avg(dep_delay), 1) AS late
    FROM flights WHERE _error IS NULL GROUP BY carrier ORDER BY late DESC LIMIT 3"""
#: An event that is so far behind the newest one no longer changes its window.
LATENESS = "2 days"
_EVENT = (
    "carrier string, origin string, dest string, tailnum string, flight int, month int,"
    " dep_delay double, arr_delay double, distance double, time_hour timestamp"
)
_NEW_YORK = "America/New_York"


class Fingerprint(NamedTuple):
    """What many lines are, in whatever order: equal ones have the same lines equally often."""

    lines: int
    different: int
    hash_sum: str


class Lake:
    """The cluster and the directory that the queries work with."""

    def __init__(self, spark: SparkSession, uri: str, directory: str) -> None:
        """Take a session, the cluster's metadata URI, and where files go."""
        self.spark = spark
        self.directory = directory
        self._uri = uri

    @property
    def input(self) -> str:
        """Where the flights come from: files of lines."""
        return f"{self.directory}/input"

    @property
    def windows(self) -> str:
        """The table of delays by carrier, airport and hour."""
        return f"{self.directory}/lake/windows"

    @property
    def flights(self) -> str:
        """The table of flights with their planes and the weather."""
        return f"{self.directory}/lake/flights"

    # Into the stream -----------------------------------------------------------------------

    def ingest(self) -> StreamingQuery:
        """Have every line of the input appended to the partition of its carrier, once."""
        from pyspark.sql import functions as F  # noqa: PLC0415, N812 - the usual name

        from quorumbook.spark import activate  # noqa: PLC0415 - needs PySpark

        lines = self.spark.readStream.format("text").option("maxFilesPerTrigger", 1)
        carrier = F.get_json_object("value", "$.carrier")
        activate(self.spark)  # whoever made the session may have been another thread
        rows = lines.load(self.input).select("value", carrier.alias("key"))
        return (
            rows.writeStream.format("quorumbook")
            .option("metadataServiceUri", self._uri)
            .option("checkpointLocation", f"{self.directory}/checkpoints/ingest")
            .queryName("ingest")
            .trigger(availableNow=True)
            .start(f"stream:{STREAM}")
        )

    def fingerprint(self, *, of_input: bool) -> Fingerprint:
        """Sum up the lines of the input, or of the stream."""
        from pyspark.sql import functions as F  # noqa: PLC0415, N812

        if of_input:
            lines = self.spark.read.text(self.input)
        else:
            lines = self._records("value binary").select(F.col("value").cast("string"))
        hashed = F.sum(F.xxhash64("value").cast("decimal(38,0)"))
        row = lines.agg(F.count("*"), F.countDistinct("value"), hashed).first()
        assert row is not None
        return Fingerprint(row[0], row[1], str(row[2]))

    def _records(self, schema: str) -> DataFrame:
        reader = self.spark.read.format("quorumbook").option("metadataServiceUri", self._uri)
        return reader.schema(schema).load(f"stream:{STREAM}")

    # Windows over event time ---------------------------------------------------------------

    def delays(self) -> StreamingQuery:
        """Keep the table of delays by carrier, airport and hour up to date while events come.

        Each batch writes the windows it changed under its own number, so that a batch that is
        run again after a failure overwrites what it had written.
        """
        from pyspark.sql import functions as F  # noqa: PLC0415, N812

        records = (
            self.spark.readStream.format("quorumbook")
            .option("metadataServiceUri", self._uri)
            .option("startingOffsets", "earliest")
            .schema("value binary")
            .load(f"stream:{STREAM}")
        )
        windows = (
            _events(records)
            .withWatermark("time_hour", LATENESS)
            .groupBy(F.window("time_hour", "1 hour"), "carrier", "origin")
            .agg(
                F.count("*").alias("flights"),
                F.count("dep_delay").alias("departed"),
                F.coalesce(F.sum("dep_delay"), F.lit(0.0)).alias("delay_minutes"),
            )
        )
        target = self.windows

        def save(changed: DataFrame, batch: int) -> None:
            changed.select(
                F.col("window.start").alias("hour"),
                "carrier", "origin", "flights", "departed", "delay_minutes",
            ).write.mode("overwrite").parquet(f"{target}/batch={batch}")  # fmt: skip

        return (
            windows.writeStream.outputMode("update")
            .foreachBatch(save)
            .option("checkpointLocation", f"{self.directory}/checkpoints/delays")
            .queryName("delays")
            .trigger(processingTime="1 second")
            .start()
        )

    def delays_by_hour(self) -> list[dict[str, Any]]:
        """Return carrier, airport, hour of the day in New York, flights and their delay."""
        from pyspark.sql import Window  # noqa: PLC0415
        from pyspark.sql import functions as F  # noqa: PLC0415, N812

        newest = Window.partitionBy("hour", "carrier", "origin").orderBy(F.desc("batch"))
        windows = self.spark.read.parquet(self.windows)
        last = windows.withColumn("rank", F.row_number().over(newest)).where("rank = 1")
        local = F.hour(F.from_utc_timestamp("hour", _NEW_YORK)).alias("hour")
        found = last.groupBy("carrier", "origin", local).agg(
            F.sum("flights").alias("flights"),
            F.sum("departed").alias("departed"),
            F.sum("delay_minutes").alias("delay_minutes"),
        )
        return [row.asDict() for row in found.orderBy("carrier", "origin", "hour").collect()]

    # Joined with what else is known --------------------------------------------------------

    def join(self, tables: Mapping[str, str]) -> int:
        """Write the table of flights with their planes and the weather; return how many rows.

        Args:
            tables: The CSV files ``planes`` and ``weather``.
        """
        from pyspark.sql import functions as F  # noqa: PLC0415, N812

        read = self.spark.read.option("header", True).option("nullValue", "NA")
        planes = read.csv(tables["planes"]).select(
            "tailnum", F.col("year").cast("int").alias("built"), "manufacturer", "engine"
        )
        weather = read.csv(tables["weather"]).select(
            "origin",
            F.to_timestamp("time_hour").alias("time_hour"),
            *(F.col(name).cast("double") for name in ("wind_speed", "precip", "visib")),
        )
        flights = _events(self._records("value binary"))
        joined = flights.join(F.broadcast(planes), "tailnum", "left").join(
            F.broadcast(weather.dropDuplicates(["origin", "time_hour"])),
            ["origin", "time_hour"],
            "left",
        )
        joined.write.mode("overwrite").partitionBy("month").parquet(self.flights)
        return int(self.spark.read.parquet(self.flights).count())

    def delays_by_weather(self) -> list[dict[str, Any]]:
        """Return the mean delay and the number of flights in fog, in rain, in wind and in none."""
        from pyspark.sql import functions as F  # noqa: PLC0415, N812

        sky = (
            F.when(F.col("visib") < 2, "fog")
            .when(F.col("precip") > 0, "rain")
            .when(F.col("wind_speed") > 20, "wind")
            .when(F.col("visib").isNotNull(), "none of these")
        )
        found = (
            self.spark.read.parquet(self.flights)
            .where("dep_delay is not null")
            .groupBy(sky.alias("weather"))
            .agg(F.count("*").alias("flights"), F.avg("dep_delay").alias("mean_delay"))
            .where("weather is not null")
        )
        return [row.asDict() for row in found.orderBy(F.desc("mean_delay")).collect()]

    # By the stream's schema -----------------------------------------------------------------

    def latest_carriers(self) -> list[dict[str, Any]]:
        """Return the three carriers that are late the most in the mean, by SQL."""
        self._decoded().createOrReplaceTempView(STREAM)
        return [row.asDict() for row in self.spark.sql(_LATEST).collect()]

    def set_aside(self) -> list[str]:
        """Write what does not fit the schema to a stream of its own; return the reasons."""
        from quorumbook.spark import activate  # noqa: PLC0415

        activate(self.spark)
        bad = self._decoded().where("_error IS NOT NULL").selectExpr(
            "value",
            """array(
                named_struct('key', 'dead-letter-stream', 'value', cast(stream AS binary)),
                named_struct('key', 'dead-letter-reason', 'value', cast(_error AS binary))
            ) AS headers""",
        )  # fmt: skip
        (
            bad.write.format("quorumbook")
            .mode("append")
            .option("metadataServiceUri", self._uri)
            .option("createStream", "true")
            .save(f"stream:{BAD}")
        )
        reader = self.spark.read.format("quorumbook").option("metadataServiceUri", self._uri)
        letters = reader.schema("headers array<struct<key: string, value: binary>>")
        found = letters.load(f"stream:{BAD}").collect()
        return [bytes(dict(row.headers)["dead-letter-reason"]).decode() for row in found]

    def _decoded(self) -> DataFrame:
        reader = self.spark.read.format("quorumbook").option("metadataServiceUri", self._uri)
        reader = reader.options(decode="schema", onBadRecord="null")
        schema = "stream string, value binary, carrier string, dep_delay long, _error string"
        return reader.schema(schema).load(f"stream:{STREAM}")


def _events(records: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: PLC0415, N812

    parsed = F.from_json(F.col("value").cast("string"), _EVENT)
    return records.select(parsed.alias("event")).select("event.*")


def dropped_late(query: StreamingQuery) -> int:
    """Return how many rows of windows came too late for a streaming query."""
    return sum(
        operator["numRowsDroppedByWatermark"]
        for progress in query.recentProgress
        for operator in progress["stateOperators"]
    )
