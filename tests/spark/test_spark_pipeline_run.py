"""``quorumbook spark pipeline run``: a chain with a schema, dead letters, SQL, Python and files."""

from __future__ import annotations

import contextlib
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from spark_helpers import in_namespace

from doubles.told_pipelines import FILE as ORDERS
from doubles.told_pipelines import told_orders
from quorumbook.cli.main import main
from quorumbook.client.context import client_store
from quorumbook.errors import MetadataUnavailableError
from quorumbook.spark.connection import Connection
from quorumbook.spark.pipeline import running as running_module
from quorumbook.spark.pipeline.declaration import parse_pipeline
from quorumbook.spark.pipeline.running import RunningPipeline
from quorumbook.streams import Namespace, Schema, SchemaKind
from quorumbook.streams.metadata import pipeline_nodes
from quorumbook.streams.metadata.pipeline_nodes import tell, told_of
from quorumbook.testing import LocalCluster

pytest.importorskip("fastavro", reason="pip install 'quorumbook[schema]'")

SCHEMA = """{"type": "object", "properties": {
    "customer": {"type": "string"}, "total": {"type": "integer"}}}"""
FILE = """
name = "PREFIX"
checkpoints = "checkpoints"
restarts = 2

[[step]]
name = "files"
from = ["PREFIX/clean"]
udf = "files.py"
to = "parquet:LAKE"

[[step]]
name = "clean"
from = ["PREFIX/orders"]
decode = true
dead-letters = "PREFIX/bad"
sql = "SELECT key, customer, total + 1 AS total FROM records WHERE total > 0"
to = "PREFIX/clean"
batch-time = "10s"
retain-time = "7d"
"""
FUNCTION = """
import os

def transform(frame):
    def fail(batches):
        if not os.path.exists("MARK"):
            open("MARK", "w").close()
            raise ValueError("not yet")
        yield from batches

    return frame.selectExpr("cast(value AS string) AS line").mapInArrow(fail, "line string")
"""


class Chain:
    """A pipeline's file, and the streams that it names."""

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self.cluster, self.directory = cluster, directory
        self.prefix = f"pipeline{uuid4().hex[:8]}"
        self.file = directory / "pipeline.toml"
        text = FILE.replace("PREFIX", self.prefix).replace("LAKE", f"{directory}/lake")
        self.file.write_text(text)
        (directory / "files.py").write_text(FUNCTION.replace("MARK", f"{directory}/mark"))

    def append(self, *payloads: bytes) -> None:
        async def work(namespace: Namespace) -> None:
            await namespace.create_stream(f"{self.prefix}/orders", exist_ok=True)
            stream = namespace.stream(f"{self.prefix}/orders")
            await stream.set_schema(Schema(SchemaKind.JSON, SCHEMA))
            async with stream.writer() as writer:
                for payload in payloads:
                    await writer.append(payload, key=b"k")

        in_namespace(self.cluster, "/streams", work, bind=True)

    def records(self, name: str) -> list[Any]:
        async def work(namespace: Namespace) -> list[Any]:
            async with namespace.stream(f"{self.prefix}/{name}").reader(tail=False) as reader:
                return [record async for record in reader]

        return in_namespace(self.cluster, "/streams", work)

    def run(self, *words: str) -> int:
        return main(
            ["spark", "pipeline", "run", str(self.file), "--metadata", self.cluster.metadata_uri,
             "-o", "jsonl", *words]
        )  # fmt: skip


@pytest.fixture
def chain(spark: Any, cluster: LocalCluster, tmp_path: Path) -> Chain:
    assert spark is not None
    return Chain(cluster, tmp_path)


def test_a_chain_has_each_record_once_though_a_step_fails_at_first(
    spark: Any, chain: Chain, capsys: pytest.CaptureFixture[str]
) -> None:
    chain.append(b'{"customer": "a", "total": 1}', b"no order", b'{"customer": "b", "total": 0}')
    picture = chain.directory / "graph.svg"
    assert chain.run("--once", "--picture", str(picture)) == 0
    told = {row["step"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    columns = ("state", "records_read", "rows_written", "dead_letters", "commits", "restarts")
    assert [told["clean"][each] for each in columns] == ["done", 3, 1, 1, 1, 0]
    assert [told["files"][each] for each in columns] == ["done", 1, 1, 0, 1, 1]
    assert told["files"]["error"] == "ValueError: not yet"
    words = ["spark", "pipeline", "ls", "--metadata", chain.cluster.metadata_uri, "-o", "jsonl"]
    assert main(words) == 0
    rows = map(json.loads, capsys.readouterr().out.splitlines())
    listed = {row["step"]: row for row in rows if row["pipeline"] == chain.prefix}
    for step in "clean", "files":
        for column in ("state", "rows_written", "dead_letters", "commits", "restarts", "error"):
            assert listed[step][column] == told[step][column]
    (clean,) = chain.records("clean")
    assert (clean.key, json.loads(clean.payload)) == (b"k", {"customer": "a", "total": 2})
    (letter,) = chain.records("bad")
    assert (letter.payload, letter.key) == (b"no order", b"k")
    assert letter.headers["dead-letter-stream"] == f"{chain.prefix}/orders".encode()
    assert re.fullmatch(rb"\d+:\d+:\d+", letter.headers["dead-letter-position"])
    assert letter.headers["dead-letter-reason"].startswith(b"Expecting value")
    (line,) = spark.read.parquet(f"{chain.directory}/lake").collect()
    assert line.line == clean.payload.decode()
    texts = [e.text for e in ET.parse(picture).iter() if e.tag.endswith("text")]
    assert {chain.prefix, "clean", "files", "lake", f"{chain.prefix}/bad", "done"} <= set(texts)
    assert (chain.directory / "checkpoints" / "files" / "commits" / "0").exists()

    async def kept(namespace: Namespace) -> float | None:
        return (await namespace.stream(f"{chain.prefix}/clean").policy()).retain_time_s

    assert in_namespace(chain.cluster, "/streams", kept) == 7 * 86400.0


def test_a_file_that_is_no_pipeline_is_refused_before_spark_is_asked(
    chain: Chain, capsys: pytest.CaptureFixture[str]
) -> None:
    chain.file.write_text(chain.file.read_text().replace("dead-letters", "letters"))
    assert chain.run() == 2
    assert "pipeline.toml: step clean: there is no key letters" in capsys.readouterr().err


def test_a_dry_run_draws_the_graph(chain: Chain) -> None:
    picture = chain.directory / "graph.svg"
    assert chain.run("--dry-run", "--picture", str(picture)) == 0
    assert "files" in picture.read_text()
    assert not (chain.directory / "checkpoints").exists()


def test_the_list_needs_no_spark_and_says_which_pipeline_is_silent(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"/listed{uuid4().hex[:8]}"
    words = ["spark", "pipeline", "ls", "--metadata", cluster.metadata_uri, "--namespace", path]
    assert main([*words, "-o", "table"]) == 0  # there is no namespace, either
    assert f"no pipeline was run in {path}; `quorumbook spark" in capsys.readouterr().err

    async def work(namespace: Namespace) -> None:
        for name, every_s in (("fresh", 1000.0), ("old", -1.0)):
            row = {**told_orders(), "name": name, "told_every_s": every_s}
            await tell(client_store(namespace.client), namespace.path, name, row)

    in_namespace(cluster, path, work, bind=True)
    assert main([*words, "-o", "jsonl"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["pipeline"], row["step"], row["state"]) for row in rows] == [
        ("fresh", "clean", "running"), ("fresh", "lake", "waiting"),
        ("old", "clean", "silent"), ("old", "lake", "silent"),
    ]  # fmt: skip
    assert (rows[0]["lag_entries"], rows[1]["restarts"], rows[0]["input_rate"]) == (7, 2, 1000.0)
    words[2] = "rm"
    assert main([*words, "old", "fresh", "-o", "jsonl"]) == 5
    told = capsys.readouterr()
    assert json.loads(told.out) == {"name": "old", "state": "forgotten"}
    assert "pipeline fresh runs" in told.err
    assert main([*words, "old"]) == 3
    assert f"no pipeline old was run in {path}" in capsys.readouterr().err


def test_a_pipeline_that_cannot_tell_goes_on_and_says_so_once(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = f"/untold{uuid4().hex[:8]}"

    async def look(namespace: Namespace) -> list[dict[str, Any]]:
        return await told_of(client_store(namespace.client), namespace.path)

    async def refuse(*_: object) -> None:
        raise MetadataUnavailableError("nobody answers")

    in_namespace(cluster, path, look, bind=True)
    connection = Connection(metadata_uri=cluster.metadata_uri, namespace_path=path)
    running = RunningPipeline(None, connection, parse_pipeline(ORDERS, "/etc"), is_once=False)
    with monkeypatch.context() as patch:
        patch.setattr(running_module, "tell", refuse)
        for _ in range(2):
            # What it does now and then as it runs.
            running._tell()
    assert caplog.text.count("cannot tell how it goes: nobody answers") == 1
    # Once more, and now it can.
    running._tell()
    (found,) = in_namespace(cluster, path, look)
    assert (found["state"], len(found["steps"])) == ("running", 2)


class Killed(BaseException):
    """The process ends here, without another word."""


class Life:
    """Runs of one pipeline whose steps do nothing, as told in the metadata."""

    def __init__(self, cluster: LocalCluster, patch: pytest.MonkeyPatch) -> None:
        self.cluster, self.path = cluster, f"/life{uuid4().hex[:8]}"
        self.connection = Connection(metadata_uri=cluster.metadata_uri, namespace_path=self.path)
        self.batches = 0
        self.writes_left = 0
        patch.setattr(running_module, "EVERY_S", 0.0)
        patch.setattr(running_module, "_LOOK_S", 0.0)
        patch.setattr(running_module, "tell", self.tell)
        patch.setattr(RunningPipeline, "_started", lambda *_: self)
        # What says that it runs is late at once.
        patch.setattr(pipeline_nodes, "_MISSED", -1)

    # A query of Spark's.
    recentProgress = ()  # noqa: N815

    @property
    def isActive(self) -> bool:
        self.batches += 1
        return self.batches < 7

    def exception(self) -> None:
        return None

    def stop(self) -> None:
        pass

    async def tell(self, *words: Any) -> None:
        """Write what is told as often as the process lives to do it."""
        if not self.writes_left:
            raise Killed
        self.writes_left -= 1
        await tell(*words)

    def run(self, writes: int) -> int:
        """Run until it is done, or killed behind so many writes; return how many are left."""
        self.batches, self.writes_left = 0, writes
        running = RunningPipeline(
            None, self.connection, parse_pipeline(ORDERS, "/etc"), is_once=False
        )
        running.prepare()
        with contextlib.suppress(Killed):
            assert running.run()
        return self.writes_left

    def look(self) -> list[str]:
        """Return the states that whoever looks is shown."""

        async def work(namespace: Namespace) -> list[str]:
            found = await told_of(client_store(namespace.client), namespace.path)
            return [each["state"] for each in found]

        return in_namespace(self.cluster, self.path, work, bind=True)


def test_a_pipeline_killed_between_any_two_words_is_not_shown_as_running_and_the_next_one_runs(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(cluster, monkeypatch)
    assert life.look() == []
    many = 1_000
    all_words = many - life.run(many)
    assert all_words > 3  # the beginning, what comes in between, the end
    assert life.look() == ["ended"]
    for words in range(all_words):
        life.run(words)
        # Killed before its first word it leaves what the run before told, and nothing runs.
        assert life.look() == ["silent" if words else "ended"], words
        assert life.run(many) == many - all_words
        assert life.look() == ["ended"], words
