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


class Jobs:
    """Jobs of the command, whose Spark is the server."""

    def __init__(self, remote: str, uri: str, directory: str) -> None:
        self._words = ["--metadata", uri, "--master", remote, "--state-dir", directory]
        self._report = Path(directory, "report.json")

    def run(self, job: str, *words: str) -> dict[str, Any]:
        """Run one; return its report."""
        self._report.unlink(missing_ok=True)
        options = [*self._words, "--json-report", str(self._report)]
        code = main(["spark", job, *options, *words])
        return {"code": code, **json.loads(self._report.read_text() if code != 1 else "{}")}


def write_by_jobs(jobs: Jobs, name: str, directory: str) -> dict[str, Any]:
    """Have jobs of each kind write: a batch, a streaming query, units, batches of units."""
    lines = Path(directory, "lines.txt")
    lines.write_text("".join(f"line {number}\n" for number in range(20)))
    source = f"stream:{name}/lines"
    follow = ["--from", source, "--max-bookie-inflight", "2"]
    return {
        "ingest": jobs.run(
            "ingest", "--format", "text", "--src", str(lines), "--to", source, "--create-stream",
            "--txn", name,
        ),
        "again": jobs.run(
            "ingest", "--format", "text", "--src", str(lines), "--to", source, "--create-stream",
            "--txn", name,
        ),
        "transform": jobs.run(
            "transform", "--from", source, "--to", f"stream:{name}/upper", "--create-stream",
            "--sql", "SELECT upper(cast(value AS string)) AS value FROM records",
        ),
        "export": jobs.run("export", *follow, "--out", f"{directory}/exported"),
        "lake-sink": jobs.run("lake-sink", *follow, "--table", f"{directory}/table"),
    }  # fmt: skip


def run(remote: str, uri: str, name: str, directory: str) -> dict[str, Any]:
    jobs = Jobs(remote, uri, directory)
    spark = SparkSession.builder.remote(remote).getOrCreate()
    try:
        told = write_and_read(spark, uri, name, f"{directory}/checkpoint")
        told |= metadata(spark, uri, name)
        told |= write_by_jobs(jobs, name, directory)
    finally:
        spark.stop()
    # Without a session that is there already.
    ledgers = ",".join(map(str, told["ledgers"]))
    told["audit"] = jobs.run("audit", "--max-bookie-inflight", "2", "--ledgers", ledgers)
    return told


if __name__ == "__main__":
    print(json.dumps(run(*sys.argv[1:])))
