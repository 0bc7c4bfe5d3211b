"""Spark Connect: a program without Java or Spark of its own does all that a session does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from quorumbook.errors import ConfigError
from quorumbook.spark.lake.manifest import committed_files
from quorumbook.spark.session import check_environment

CLIENT = Path(__file__).with_name("connect_client.py")


def test_batches_queries_tables_and_jobs_go_through_spark_connect(
    spark, remote, cluster, streams, tmp_path
):
    name = f"connect-{uuid4().hex[:8]}"
    for each in "in", "out":
        streams.run(streams.namespace.create_stream(f"{name}/{each}"))
    # The client's machine has no Java.
    environment = {**os.environ, "JAVA_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(CLIENT), remote, cluster.metadata_uri, name, str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=300, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-9000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["mode"] == "pyspark.sql.connect.session"
    assert told["rows"] == [f"row {n}" for n in range(100)]
    assert told["seqs"] == 4950
    assert told["states"] == ["closed"]
    assert "there is no stream no" in told["refusal"]
    assert told["audit"]["code"] == 0, told["audit"]
    assert told["audit"]["copies"] > 0
    for job, rows in (
        ("ingest", "rows_written"), ("transform", "input_rows"), ("export", "rows_written"),
        ("lake-sink", "rows_written"),
    ):  # fmt: skip
        assert (told[job]["code"], told[job].get(rows)) == (0, 20), (job, done.stderr[-3000:])
    assert (told["again"]["code"], told["again"]["was_there"]) == (0, True)
    options = {"metadataServiceUri": cluster.metadata_uri}
    upper = spark.read.format("quorumbook").options(**options).load(f"stream:{name}/upper")
    assert [bytes(row.value) for row in upper.collect()] == [b"LINE %d" % n for n in range(20)]
    files = committed_files(str(tmp_path / "table"))
    for found in (spark.read.parquet(str(tmp_path / "exported")), spark.read.parquet(*files)):
        rows = [bytes(row.value) for row in found.orderBy("seq").collect()]
        assert rows == [b"line %d" % number for number in range(20)]


def test_what_spark_connect_lacks_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    check_environment("sc://nowhere")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ConfigError, match=r"zstandard is missing: pip install 'pyspark\[connect\]"):
        check_environment("sc://nowhere")
