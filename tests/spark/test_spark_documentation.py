"""What docs/spark.md and the how-to show of Spark works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from spark_helpers import Streams, let_go

from quorumbook.cli.main import main
from quorumbook.streams import Record, Schema, SchemaKind, Stream
from quorumbook.testing import LocalCluster

ROOT = Path(__file__).parents[2]


def examples(page: str) -> list[str]:
    """Return the pieces of Python on a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


async def read_all(stream: Stream) -> list[Record]:
    async with stream.reader(tail=False) as reader:
        return [record async for record in reader]


@pytest.fixture(scope="session")
def own_cluster(spark: Any) -> Iterator[LocalCluster]:
    """A cluster in which nothing else is; it stays as long as Spark's processes, which know it."""
    with LocalCluster(bookies=3) as cluster:
        yield cluster
        spark.stop()
        let_go(cluster)


def test_the_examples_of_the_documentation_run_one_after_the_other(
    spark: Any, own_cluster: LocalCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "input").mkdir()
    (tmp_path / "input" / "lines.txt").write_text("three\nfour")
    with own_cluster.connect() as client, client.create_ledger(ledger_id=12) as ledger:
        ledger.append(b"of ledger 12")
    with Streams(own_cluster) as streams:
        streams.write("eu/orders", [b"first order", b"second order"])
        for name in "eu/lines", "eu/returns":
            streams.run(streams.namespace.create_stream(name))
        order = '{"type": "object", "properties": {"customer": {}, "total": {"type": "integer"}}}'
        schema = Schema(SchemaKind.JSON, order)
        streams.run(streams.namespace.stream("eu/orders").set_schema(schema))
        names: dict[str, Any] = {
            "spark": spark, "uri": own_cluster.metadata_uri, "directory": str(tmp_path / "input"),
            "out": str(tmp_path / "out"),
        }  # fmt: skip
        table = str(tmp_path / "table")
        words = ["--from", "stream:eu/orders", "--table", table, "--state-dir", str(tmp_path)]
        assert main(["spark", "lake-sink", "--metadata", names["uri"], *words]) == 0
        for number, example in enumerate(examples("docs/spark.md")):
            names["checkpoint"] = str(tmp_path / f"checkpoint-{number}")
            names.pop("query", None)
            exec(example.replace("/data/orders", table), names)
            if "query" in names:
                names["query"].awaitTermination()
        shown = capsys.readouterr().out
        letters = streams.run(read_all(streams.namespace.stream("eu/bad")))
        assert [each.payload for each in letters] == [b"first order", b"second order"]
        assert letters[0].headers["dead-letter-stream"] == b"eu/orders"
        assert letters[0].headers["dead-letter-reason"].startswith(b"Expecting value")
        assert names["orders"].count() == 2
        lines = spark.read.format("quorumbook").option("metadataServiceUri", names["uri"])
        values = [bytes(row.value) for row in lines.load("stream:eu/lines").collect()]
        assert sorted(values) == [b"four", b"one", b"three", b"two"]
        returned = [bytes(row.value) for row in lines.load("stream:eu/returns").collect()]
        assert sorted(returned) == [b"first order", b"second order", b"second order", b"seventh"]
    assert "closed" in shown
    assert shown.count("[6F 66 20 6C 65") == 2  # `of le`, by each of the function's queries
    assert spark.read.parquet(names["out"]).count() == 2


def test_what_is_said_beside_other_connectors_is_shown_by_tests_that_are_there() -> None:
    text = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    section = text.partition("## Beside other connectors")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 16
    files = {file.name: file for file in (ROOT / "tests").rglob("test_spark_*.py")}
    for row in rows:
        *_, shown, _ = (cell.strip() for cell in row.split("|"))
        for test in shown.split(", "):
            file, _, name = test.strip("`").partition("::")
            assert f"def {name}(" in files[file].read_text(), test


def test_the_how_to_shows_spark_in_a_few_lines(
    spark: Any, own_cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = examples("docs/how-to/use-spark.md")
    uri = "sqlite:///quorumbook-data/metadata.db"
    assert uri in example
    assert len(example.strip().splitlines()) <= 12
    with Streams(own_cluster) as streams:
        streams.run(streams.namespace.create_stream("orders"))
    exec(example.replace(uri, own_cluster.metadata_uri), {})
    assert re.findall(r"order \d", capsys.readouterr().out) == ["order 0", "order 1", "order 2"]


# A session of its own takes its time; only what a terminal shows tells what workers print.
def test_the_how_to_s_example_of_spark_prints_no_trace(
    own_cluster: LocalCluster, tmp_path: Path
) -> None:
    (example,) = examples("docs/how-to/use-spark.md")
    with Streams(own_cluster) as streams:
        streams.run(streams.namespace.create_stream("orders", exist_ok=True))
    script = tmp_path / "example.py"
    shown = example.replace("sqlite:///quorumbook-data/metadata.db", own_cluster.metadata_uri)
    # A worker that was cut off says so when it is asked for again, or idle.
    script.write_text(f"{shown}\nfound.count()\nfound.take(2)\nspark.stop()\n")
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "order 0" in done.stdout
    assert "Traceback" not in done.stderr, done.stderr
