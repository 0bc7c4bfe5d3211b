"""Jobs in general: waves, what is kept of them, how they end; without Spark."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="pip install 'quorumbook[spark]'")

import pyarrow as pa

from quorumbook.cli import errors as cli_errors
from quorumbook.cli.main import main
from quorumbook.cli.spark import run as run_module
from quorumbook.errors import ConfigError, QuorumbookError
from quorumbook.spark.connection import Connection
from quorumbook.spark.jobs import engine, frame
from quorumbook.spark.jobs.engine import _TASK_BYTES, _TASK_UNITS, Limits, run_plan, waves
from quorumbook.spark.jobs.frame import JobPlan, Report, Unit
from quorumbook.spark.jobs.journal import JobJournal

sizes = st.lists(st.integers(0, 3 * _TASK_BYTES // 2), max_size=60)


@given(sizes, st.integers(1, 8))
def test_every_unit_is_done_once_by_tasks_of_bounded_size(sizes, at_once):
    units = [Unit(str(number), size, {}) for number, size in enumerate(sizes)]
    found = list(waves(units, at_once))
    tasks = list(itertools.chain.from_iterable(found))
    assert sorted(unit.key for task in tasks for unit in task) == sorted(u.key for u in units)
    assert all(0 < len(wave) <= at_once for wave in found)
    for task in tasks:
        assert len(task) <= _TASK_UNITS
        assert len(task) == 1 or sum(unit.size_bytes for unit in task) <= _TASK_BYTES


def test_tasks_of_a_wave_are_about_equally_large():
    units = [Unit(str(number), 1000 + number % 7, {}) for number in range(400)]
    (wave,) = waves(units, 4)
    sizes = [sum(unit.size_bytes for unit in task) for task in wave]
    assert max(sizes) - min(sizes) <= 1007


class Inline:
    """Runs a wave's tasks one after the other, in this process."""

    def __init__(self, then=lambda: None):
        self.then = then

    def range(self, first, last, step, tasks):
        self.tasks = [pa.RecordBatch.from_pydict({"id": [n]}) for n in range(first, last, step)]
        return self

    def mapInArrow(self, run, columns):
        self.run = run
        return self

    def collect(self):
        self.then()
        found = [row for task in self.tasks for batch in self.run(iter([task])) for row in
                 batch.to_pylist()]  # fmt: skip
        return [SimpleNamespace(**row) for row in found]


async def doubled(cluster, pace, arguments):
    if arguments["n"] == 2:
        raise QuorumbookError("no bookie answers")
    return {"n": 2 * arguments["n"]}


def test_tasks_work_for_the_drivers_release_and_cluster_only(cluster, tmp_path, monkeypatch):
    connection = Connection(metadata_uri=cluster.metadata_uri, namespace_path="/streams")
    plan = JobPlan("doubling", [Unit(str(n), 1, {"n": n}) for n in range(4)], doubled)
    limits = Limits(max_bookie_inflight=2)

    def run(spark):
        journal = JobJournal.begin(str(tmp_path), "doubling", {})
        spark.sparkContext = SimpleNamespace(defaultParallelism=3)
        return run_plan(spark, connection, plan, journal, limits)

    report = run(Inline())
    assert report.results == {"0": {"n": 0}, "1": {"n": 2}, "3": {"n": 6}}
    assert report.errors == {"2": "QuorumbookError: no bookie answers"}
    with monkeypatch.context() as driver:
        driver.setattr(engine, "__version__", "0.0.9")
        with pytest.raises(ConfigError, match=r"driver has quorumbook 0\.0\.9, this executor"):
            run(Inline(driver.undo))
    other = SimpleNamespace(instance_id="elsewhere")
    with monkeypatch.context() as driver:
        driver.setattr(engine, "connected", lambda connection: other)
        with pytest.raises(ConfigError, match="driver works on cluster elsewhere, but on this"):
            run(Inline(driver.undo))


def test_a_job_goes_on_where_its_file_ends(tmp_path):
    directory = str(tmp_path / "jobs")
    journal = JobJournal.begin(directory, "audit", {"bookie": ""})
    journal.add({"a": {"entries": 1}, "b": {"entries": 2}})
    path = tmp_path / "jobs" / f"{journal.job_id}.jsonl"
    with path.open("ab") as file:
        file.write(b'{"key":"c","resu')  # killed in the middle of a line
    again = JobJournal.resume(directory, journal.job_id, "audit", {"bookie": ""})
    assert again.done == {"a": {"entries": 1}, "b": {"entries": 2}}
    again.add({"c": {"entries": 3}})
    third = JobJournal.resume(directory, journal.job_id, "audit", {"bookie": ""})
    assert set(third.done) == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("job_id", "job", "arguments", "message"),
    [
        ("{id}", "usage", {"bookie": ""}, "that was audit"),
        ("{id}", "audit", {"bookie": "b:1"}, "give it the same"),
        ("audit-00000000", "audit", {"bookie": ""}, "--state-dir"),
        ("../audit-00000000", "audit", {"bookie": ""}, "not an id of a job"),
    ],
)
def test_only_the_same_job_is_resumed(tmp_path, job_id, job, arguments, message):
    made = JobJournal.begin(str(tmp_path), "audit", {"bookie": ""})
    with pytest.raises(ConfigError, match=message):
        JobJournal.resume(str(tmp_path), job_id.format(id=made.job_id), job, arguments)


def test_the_exit_code_says_clean_failed_or_found():
    report = Report("audit", "audit-00000000")
    assert report.exit_code == 0
    report.findings = 1
    assert report.exit_code == 6 == cli_errors.FOUND
    report.errors["a"] = "no bookie answers"
    assert report.exit_code == 1


def test_a_missing_java_is_one_line_that_says_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert main(["spark", "audit", "--metadata", "sqlite:///nowhere.db"]) == 2
    error = capsys.readouterr().err
    assert "Spark needs Java 17" in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("module", "message", "expected"),
    [
        (
            "pyspark.errors",
            "[PYTHON] it failed:\nTraceback (most recent call last):\n  File x\n"
            "quorumbook.streams.errors.StreamNotFoundError: there is no stream s\n  at java",
            "there is no stream s",
        ),
        (
            "py4j.protocol",
            "An error occurred while calling None.\n"
            ": org.apache.spark.SparkException: too little memory\n\tat org.apache.spark.Context",
            "too little memory",
        ),
    ],
)
def test_a_failure_in_spark_is_one_line_without_its_stacks(
    monkeypatch, capsys, module, message, expected
):
    error = type("Py4JError", (Exception,), {"__module__": module})(message)

    def fail(master: object) -> None:
        raise error

    monkeypatch.setattr("quorumbook.cli.spark.run.check_spark", fail)
    assert main(["spark", "audit", "--metadata", "sqlite:///nowhere.db"]) == 1
    assert capsys.readouterr().err == (
        f"quorumbook: Spark: {expected} (quorumbook help spark-failed)\n"
    )


def test_a_report_says_how_long_the_command_took_planning_included(tmp_path, monkeypatch):
    class Call:
        metadata_uri, config_path, overrides, is_verbose = "sqlite:////none.db", None, {}, False

        def connect(self):
            return contextlib.nullcontext(None)

        run = staticmethod(asyncio.run)

    async def plan(_client):
        return JobPlan("j", [], lambda *_: None)

    monkeypatch.setattr(run_module, "time", SimpleNamespace(monotonic=lambda: 100.0))
    monkeypatch.setattr(frame, "time", SimpleNamespace(monotonic=lambda: 107.5))
    told = tmp_path / "report.json"
    job = run_module.JobRun(is_dry_run=True, json_report=str(told))
    run_module.run_job(Call(), job, {}, plan, lambda _report: None)
    assert json.loads(told.read_text())["seconds"] == 7.5
