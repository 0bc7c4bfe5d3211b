"""What a pipeline does with its queries, which are doubles here, and what the command shows."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark", reason="pip install 'quorumbook[spark]'")

from quorumbook.cli.main import main
from quorumbook.cli.spark import pipeline as command
from quorumbook.errors import ConfigError, MetadataUnavailableError
from quorumbook.spark.connection import Connection
from quorumbook.spark.pipeline import running
from quorumbook.spark.pipeline.declaration import PipelineStep, parse_pipeline
from quorumbook.spark.pipeline.running import RunningPipeline

FILE = """
name = "p"
checkpoints = "c"
restarts = 2

[[step]]
name = "second"
from = ["b"]
to = "c"

[[step]]
name = "first"
from = ["a"]
to = "b"
"""


class Query:
    """A query that did some batches and then ended, with an error or without; None: it runs."""

    def __init__(self, batches: int, error: Exception | None, *, is_active: bool = False) -> None:
        self.isActive = is_active
        self.error = error
        self.recentProgress = [
            SimpleNamespace(
                json=json.dumps({"runId": str(id(self)), "batchId": n, "numInputRows": 1})
            )
            for n in range(batches)
        ]
        self.is_stopped = False

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        self.isActive, self.is_stopped = False, True


#: Which the others do without.
count_segments = RunningPipeline._count_segments


class Rehearsal:
    """A pipeline of two steps, the queries that they get, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.started: list[str] = []
        self.queries: dict[str, list[Callable[[], Query]]] = {}
        monkeypatch.setattr(running, "connected", lambda connection: None)
        monkeypatch.setattr(
            running,
            "time",
            SimpleNamespace(
                monotonic=lambda: self.now_s, sleep=self._sleep, time=lambda: self.now_s
            ),
        )
        monkeypatch.setattr(RunningPipeline, "_started", self._begin)
        monkeypatch.setattr(RunningPipeline, "_count_segments", lambda _: None)
        monkeypatch.setattr(RunningPipeline, "_tell", lambda _, is_over=False: None)
        monkeypatch.setattr(RunningPipeline, "prepare", lambda _: None)

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def _begin(self, step: PipelineStep) -> Query:
        self.started.append(f"{step.name} at {self.now_s - 100:g}")
        return self.queries[step.name].pop(0)()

    def pipeline(self, *, is_once: bool) -> RunningPipeline:
        pipeline = parse_pipeline(FILE, "/")
        return RunningPipeline(
            None, Connection(metadata_uri="mem:x", namespace_path="/s"), pipeline, is_once=is_once
        )


def raising(error: Exception) -> Callable[[], Query]:
    def fail() -> Query:
        raise error

    return fail


def ends(batches: int = 0, error: str = "") -> Callable[[], Query]:
    return lambda: Query(batches, RuntimeError(error) if error else None)


@pytest.fixture
def rehearsal(monkeypatch: pytest.MonkeyPatch) -> Rehearsal:
    return Rehearsal(monkeypatch)


def test_once_a_step_begins_when_those_before_it_are_done(rehearsal: Rehearsal) -> None:
    rehearsal.queries = {"first": [ends(1, "lost"), ends(1)], "second": [ends(1)]}
    pipeline = rehearsal.pipeline(is_once=True)
    assert pipeline.run()
    assert rehearsal.started == ["first at 0", "first at 0.5", "second at 1"]
    assert [found.commits for found in pipeline.numbers.values()] == [2, 1]


def test_a_step_is_given_up_and_the_others_go_on(rehearsal: Rehearsal) -> None:
    rehearsal.queries = {
        "first": [ends(0, "one"), ends(0, "two"), raising(OSError("three"))], "second": [ends(3)],
    }  # fmt: skip
    pipeline = rehearsal.pipeline(is_once=False)
    looks: list[str] = []
    assert not pipeline.run(lambda: looks.append(pipeline.numbers["first"].state))
    # At once, and a second after the second failure.
    assert [each for each in rehearsal.started if "first" in each] == [
        "first at 0", "first at 0.5", "first at 2",
    ]  # fmt: skip
    first, second = pipeline.numbers["first"], pipeline.numbers["second"]
    assert (first.state, first.restarts, first.error) == ("failed", 2, "three")
    assert (second.state, second.commits) == ("done", 3)
    assert "waiting" in looks


def test_all_steps_go_on_while_their_segments_cannot_be_counted(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def namespace() -> None:
        asked.append("for segments")
        raise MetadataUnavailableError("nobody answers")

    monkeypatch.setattr(RunningPipeline, "_count_segments", count_segments)
    monkeypatch.setattr(running, "connected", lambda _: SimpleNamespace(namespace=namespace))
    rehearsal.queries = {"first": [ends(1)], "second": [ends(1)]}
    assert rehearsal.pipeline(is_once=True).run()
    assert asked


def test_what_nobody_can_want_ends_all_at_the_start(rehearsal: Rehearsal) -> None:
    error = ConfigError("step first: sql: no such column")
    rehearsal.queries = {"first": [raising(error)], "second": [ends()]}
    with pytest.raises(ConfigError, match="no such column"):
        rehearsal.pipeline(is_once=True).run()


def test_the_command_runs_until_it_is_interrupted_and_shows_its_numbers(
    rehearsal: Rehearsal, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    (tmp_path / "p.toml").write_text(FILE)
    begun: list[Query] = []

    def runs() -> Query:
        begun.append(Query(2, None, is_active=True))
        return begun[-1]

    rehearsal.queries = {"first": [runs], "second": [runs]}
    run = RunningPipeline.run
    pages: list[str] = []

    def watched(self: RunningPipeline, on_look: Callable[[], None]) -> bool:
        def look() -> None:
            on_look()
            if self.numbers["second"].commits:
                (address,) = re.findall(r"http://\S+/metrics", capsys.readouterr().err)
                with urllib.request.urlopen(address) as answer:
                    pages.append(answer.read().decode())
                raise KeyboardInterrupt

        return run(self, look)

    class Session:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(RunningPipeline, "run", watched)
    monkeypatch.setattr(command, "check_spark", lambda master: None)
    monkeypatch.setattr(command, "open_session", lambda call, run: Session())
    words = ["spark", "pipeline", "run", str(tmp_path / "p.toml"), "--metadata", "mem:x"]
    picture = tmp_path / "p.svg"
    code = main([*words, "--metrics-port", "0", "--picture", str(picture), "-o", "jsonl"])
    assert code == 0
    assert 'quorumbook_pipeline_commits_total{pipeline="p",step="first"} 2.0' in pages[0]
    assert 'quorumbook_pipeline_running{pipeline="p",step="second"} 1.0' in pages[0]
    assert "2 commits" in picture.read_text()
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["step"], row["commits"]) for row in rows] == [("first", 2), ("second", 2)]
    assert all(query.is_stopped for query in begun)
