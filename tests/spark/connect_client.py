"""A program that has only a Spark Connect server's address; prints what came of it as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from quorumbook.cli.main import main
from quorumbook.spark import register_views


def write_and_read(spark: SparkSession, uri: str, name: str, checkpoint: str) -> dict[str, Any]:
    """Write a batch, have a query copy it to another stream, and read that."""
    options = {"metadataServiceUri": uri}
    rows = spark.range(0, 100, 1, 2).selectExpr("concat('row ', id) AS value")
    target = f"stream:{name}/in"
    rows.write.format("quorumbook").mode("append").options(**options).save(target)
    query = (
        spark.readStream.format("quorumbook").options(**options, startingOffsets="earliest")
        .schema("value binary").load(target)
        .writeStream.format("quorumbook").options(**options)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True).start(f"stream:{name}/out")
    )  # fmt: skip
    try:
        query.awaitTermination()
    finally:
        query.stop()
    copied = spark.read.format("quorumbook").options(**options).load(f"stream:{name}/out")
    return {
        "rows": [bytes(row.value).decode() for row in copied.collect()],
        "seqs": copied.agg({"seq": "sum"}).collect()[0][0],
        "mode": type(spark).__module__,
    }


def metadata(spark: SparkSession, uri: str, name: str) -> dict[str, Any]:
    """Ask views and functions, and for what is not there."""
    segments = next(view for view in register_views(spark, uri) if view.endswith(".segments"))
    ids = spark.sql(f"SELECT ledger_id FROM {segments} WHERE stream = '{name}/out'").collect()
    found = spark.sql(
        f"SELECT state, value FROM bk_ledger({ids[0][0]}), LATERAL bk_entries({ids[0][0]}, 0, 0)"
    ).collect()
    try:
        spark.read.format("quorumbook").option("metadataServiceUri", uri).load("stream:no").count()
    except Exception as error:
        refusal = str(error)
    return {
        "ledgers": [row.ledger_id for row in ids],
        "states": [row.state for row in found],
        "refusal": refusal,
    }


def run(remote: str, uri: str, name: str, directory: str) -> dict[str, Any]:
    spark = SparkSession.builder.remote(remote).getOrCreate()
    try:
        told = write_and_read(spark, uri, name, f"{directory}/checkpoint")
        told |= metadata(spark, uri, name)
    finally:
        spark.stop()
    report = Path(directory, "report.json")
    told["code"] = main(
        ["spark", "audit", "--metadata", uri, "--master", remote, "--max-bookie-inflight", "2",
         "--json-report", str(report), "--state-dir", directory,
         "--ledgers", ",".join(map(str, told["ledgers"]))]
    )  # fmt: skip
    return told | {"report": json.loads(report.read_text())}


if __name__ == "__main__":
    print(json.dumps(run(*sys.argv[1:])))
