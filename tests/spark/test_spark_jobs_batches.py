"""Jobs that follow streams in batches: when they end, and what they make sure of; pure."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest

from quorumbook.errors import ConfigError
from quorumbook.spark.jobs import batches
from quorumbook.spark.jobs.batches import Due, check_dense, run_batches
from quorumbook.spark.jobs.data import lake_sink
from quorumbook.spark.jobs.engine import Limits
from quorumbook.spark.jobs.frame import JobPlan, Report, Unit
from quorumbook.spark.jobs.journal import JobJournal
from quorumbook.spark.jobs.streams import is_stream, some_or_all, stream_name, stream_names
from quorumbook.spark.lake.delta import DeltaTable
from quorumbook.spark.lake.iceberg import IcebergTable
from quorumbook.spark.lake.rows import schema_of
from quorumbook.spark.lake.table import LakeFormatError, LakeState
from quorumbook.streams.errors import DataLossError, TransactionLostError


class Idle:
    """A job for which nothing is due, until somebody interrupts it."""

    job = "idle"

    def __init__(self, looks):
        self.left = looks

    def plan(self):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt

    def commit(self, results):
        raise AssertionError(results)


def run(work, tmp_path, every_s):
    journal = JobJournal.begin(str(tmp_path), "idle", {})
    return run_batches(None, None, work, journal, Limits(), every_s=every_s)


def test_a_job_ends_when_nothing_is_due_or_follows_until_it_is_interrupted(tmp_path):
    work = Idle(5)
    assert run(work, tmp_path, None).exit_code == 0
    assert work.left == 4
    assert run(work, tmp_path, 0.01).exit_code == 0
    assert work.left == -1
    with pytest.raises(KeyboardInterrupt):
        run(Idle(0), tmp_path, None)


def test_a_journal_forgets_what_the_target_knows(tmp_path):
    journal = JobJournal.begin(str(tmp_path), "idle", {"a": 1})
    journal.add({"1/s": {"rows": 1}})
    journal.forget()
    assert journal.done == {}
    journal.add({"2/s": {"rows": 2}})
    resumed = JobJournal.resume(str(tmp_path), journal.job_id, "idle", {"a": 1})
    assert resumed.done == {"2/s": {"rows": 2}}


class Once:
    """A job of one batch, whose target takes it in, or does not."""

    job = "once"

    def __init__(self, error=None):
        self.plans = [JobPlan("once", [Unit("1/s", 1, {})], None), None]
        self.error = error
        self.taken = []

    def plan(self):
        return self.plans.pop(0)

    def commit(self, results):
        if self.error is not None:
            raise self.error
        self.taken.append(dict(results))
        return True


def test_what_the_target_has_taken_in_is_forgotten_and_nothing_before(tmp_path, monkeypatch):
    def done(spark, connection, plan, journal, limits, on_progress):
        journal.add({unit.key: {"rows": 1} for unit in plan.units})
        return Report(plan.job, journal.job_id, results=dict(journal.done))

    monkeypatch.setattr(batches, "run_plan", done)
    journal = JobJournal.begin(str(tmp_path), "once", {})

    def run(work):
        run_batches(None, None, work, journal, Limits(), every_s=None)

    with pytest.raises(OSError, match="not there"):
        run(Once(OSError("not there")))
    assert journal.done == {"1/s": {"rows": 1}}
    # What was cleaned up is of no use to whoever goes on.
    with pytest.raises(TransactionLostError):
        run(Once(TransactionLostError("cleaned up")))
    assert journal.done == {}
    work = Once()
    run(work)
    assert work.taken == [{"1/s": {"rows": 1}}]
    assert JobJournal.resume(str(tmp_path), journal.job_id, "once", {}).done == {}


def part(rows, first, behind):
    return {"rows": rows, "first": first, "behind": behind}


def test_what_was_read_must_go_on_where_it_ended():
    due = Due("s", 1, 10, ())
    assert check_dense(due, [part(5, 10, 15), part(0, -1, -1), part(1, 15, 18)]) == 18
    assert check_dense(due, [part(0, -1, -1)]) is None
    assert check_dense(Due("s", 1, -1, ()), [part(2, 7, 9)]) == 9
    for parts in ([part(5, 11, 16)], [part(5, 10, 15), part(5, 14, 19)]):
        with pytest.raises(DataLossError):
            check_dense(due, parts)


@pytest.mark.parametrize("text", ["ledger:1", "stream:", "stream: ,", "stream", "orders", ""])
def test_what_is_no_stream_is_said(text):
    for read in (stream_name, stream_names, some_or_all):
        with pytest.raises(ConfigError, match=f"--to {text}: stream:NAME"):
            read("--to", text)
    with pytest.raises(ConfigError, match="stream:NAME, or ledger"):
        stream_name("--to", text, "stream:NAME, or ledger")


def test_names_and_states_are_read():
    assert stream_name("--to", "stream:b/c") == "b/c"
    with pytest.raises(ConfigError, match=r"stream:a,b: stream:NAME$"):
        stream_name("--to", "stream:a,b")
    assert stream_names("--from", "stream:a, b/c") == ["a", "b/c"]
    assert list(some_or_all("--from", "stream:a, b/c")) == ["a", "b/c"]
    assert list(some_or_all("--from", "stream:*")) == []
    assert [is_stream(text) for text in ("stream:a", "stream", "ledger", "/a/b")] == [
        True, False, False, False,
    ]  # fmt: skip
    state = LakeState(batch=3, cluster="c", streams={})
    assert LakeState.from_json(state.to_json()) == state
    for wrong in ({}, {"version": 2, "batch": 1}, [], None):
        with pytest.raises(LakeFormatError):
            LakeState.from_json(wrong)


def test_a_file_of_a_table_has_its_name_when_it_is_whole(tmp_path):
    path = tmp_path / "data" / "part.parquet"
    for is_whole in False, True:
        # One file, without a job around it.
        file = lake_sink._File(str(path), pa.schema([("n", pa.int64())]))
        file.add(pa.table({"n": [1]}))
        assert not path.exists()
        if is_whole:
            assert file.finish() == path.stat().st_size
        else:
            file.abandon()
        assert list(path.parent.iterdir()) == [path] * is_whole


@pytest.mark.parametrize("module", ["pyiceberg", "deltalake"])
def test_a_missing_extra_is_told_with_what_to_install(module, tmp_path, monkeypatch):
    for name in list(sys.modules):
        if name.partition(".")[0] == module:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"pip install 'quorumbook\[(iceberg|delta)\]'"):
        if module == "deltalake":
            DeltaTable(str(tmp_path), "c", schema_of(""), makes=True)
        else:
            IcebergTable("a.b", {}, schema_of(""), makes=True)
