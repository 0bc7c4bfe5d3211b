"""``quorumbook spark template``: the pipeline it makes runs as it is, again and again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

from quorumbook.cli.main import main


def make(cluster: Any, directory: Path, source: str, target: str) -> int:
    words = ["--metadata", cluster.metadata_uri, "--from", source, "--to", target]
    return main(["spark", "template", str(directory), *words])


def run_pipeline(directory: Path, remote: str) -> None:
    """Run it as its user does, but on a Spark that is there."""
    programs = str(Path(sys.executable).parent)
    done = subprocess.run(
        [f"{programs}/spark-pipelines", "--remote", remote, "run"],
        capture_output=True, text=True, check=False, timeout=300, cwd=directory,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def test_a_pipeline_of_the_template_reads_and_writes_streams_each_record_once(
    spark, remote, cluster, streams, tmp_path, capsys
):
    name = f"pipeline-{uuid4().hex[:8]}"
    directory = tmp_path / "project"
    assert make(cluster, directory, f"{name}/in", f"{name}/out") == 0
    assert "spark-pipelines" in capsys.readouterr().err
    for first in 0, 10:
        streams.write(f"{name}/in", [b"row %d" % number for number in range(first, first + 10)])
        run_pipeline(directory, remote)
        options = {"metadataServiceUri": cluster.metadata_uri}
        found = spark.read.format("quorumbook").options(**options).load(f"stream:{name}/out")
        assert [bytes(row.value) for row in found.collect()] == [
            b"ROW %d" % number for number in range(first + 10)
        ]
        for table in "default.records", "default.newest":
            spark.catalog.refreshTable(table)
        assert spark.table("default.records").count() == first + 10
        assert spark.table("default.newest").collect()[0].records == first + 10


def test_a_project_that_is_there_is_left_alone(cluster, tmp_path, capsys):
    assert make(cluster, tmp_path, "a", "b") == 2
    assert "is there already" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
