"""``quorumbook spark lake-sink --upsert``: the latest record of each key, whatever ends the job."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest
from table_job import KINDS, TableJob

from quorumbook.cli.main import main
from quorumbook.errors import ConfigError
from quorumbook.spark.lake import manifest
from quorumbook.spark.lake.manifest import committed_files
from quorumbook.spark.lake.table import LakeConflictError
from quorumbook.spark.lake.upserts import DELETED, latest, rows_of
from quorumbook.streams import Schema, SchemaKind


@pytest.fixture(params=KINDS)
def table_job(request, cluster, tmp_path):
    return TableJob(cluster, tmp_path, request.param)


class Killed(BaseException):
    """The process is no more."""


def write(table_job, name, *changes):
    """Append pairs of key and payload."""

    async def work(namespace):
        await namespace.create_stream(name, exist_ok=True)
        async with namespace.stream(name).writer() as writer:
            for key, payload in changes:
                await writer.append(payload, key=key)

    table_job.run(work)


def content(table_job):
    return sorted((row["stream"], row["key"] or b"", row["value"]) for row in table_job.rows())


def test_the_latest_change_of_each_key_counts_and_records_without_one_stay():
    schema = pa.schema(
        [("stream", pa.string()), ("key", pa.binary()), ("value", pa.int64()),
         (DELETED, pa.bool_())]
    )  # fmt: skip
    rows = [
        ("a", b"k", 1, False), ("a", None, 2, False), ("b", b"k", 3, False), ("a", b"k", 4, False),
        ("a", None, 5, False), ("a", b"l", 6, False), ("a", b"l", 7, True),
    ]  # fmt: skip
    values = zip(*rows, strict=True)
    columns = [pa.array(each, kind) for each, kind in zip(values, schema.types, strict=True)]
    changes = latest(pa.Table.from_arrays(columns, schema=schema))
    assert changes["value"].to_pylist() == [2, 3, 4, 5, 7]
    assert rows_of(changes).to_pylist()[-1] == {"stream": "a", "key": None, "value": 5}


def test_a_table_has_the_latest_of_each_key_after_every_batch(table_job):
    write(table_job, "a", (b"k", b"1"), (b"l", b"1"), (None, b"free"), (b"k", b"2"))
    write(table_job, "b", (b"k", b"of b"))
    table_job.sink_all(upserts=True)
    expected = [("a", b"", b"free"), ("a", b"k", b"2"), ("a", b"l", b"1"), ("b", b"k", b"of b")]
    assert content(table_job) == expected
    write(table_job, "a", (b"l", b""), (b"m", b"1"), (None, b"free"), (b"none", b""))
    table_job.sink_all(job_id="second", upserts=True)
    expected = [
        ("a", b"", b"free"), ("a", b"", b"free"), ("a", b"k", b"2"), ("a", b"m", b"1"),
        ("b", b"k", b"of b"),
    ]  # fmt: skip
    assert content(table_job) == expected
    # Nothing but deletions of what is not there is a batch, too.
    write(table_job, "a", (b"none", b""))
    sink = table_job.sink_all(job_id="third", upserts=True)
    assert (sink.batches, content(table_job)) == (1, expected)
    assert table_job.sink(upserts=True).plan() is None
    write(table_job, "a", *((key, b"") for key in (b"k", b"m")))
    write(table_job, "b", (b"k", b""))
    table_job.sink_all(job_id="fourth", upserts=True)
    assert content(table_job) == [("a", b"", b"free")] * 2


def test_a_table_agrees_with_a_dictionary_however_batches_are_cut(table_job):
    chosen, model = random.Random(7), {}
    for number in range(4):
        changes = []
        for turn in range(60):
            key = b"%d" % chosen.randrange(25)
            payload = b"" if chosen.random() < 0.3 else b"%d of %d" % (turn, number)
            changes.append((key, payload))
            model.pop(key, None)
            if payload:
                model[key] = payload
        write(table_job, "a", *changes)
        table_job.sink_all(job_id=f"job{number}", max_bytes=2000, upserts=True)
        assert {(key, value) for _, key, value in content(table_job)} == set(model.items())
        assert len(table_job.rows()) == len(model)


def test_a_batch_counts_once_whatever_was_killed(table_job, monkeypatch):
    write(table_job, "a", (b"k", b"1"), (b"l", b"1"))
    # Killed before the table knew of it.
    sink = table_job.sink(upserts=True)
    table_job.units(sink.plan())
    assert table_job.rows() == []
    # Killed after the table knew of it.
    sink = table_job.sink(job_id="second", upserts=True)
    results = table_job.units(sink.plan())
    merge = type(sink._table).merge  # it dies between two steps

    def killed(*arguments):
        merge(*arguments)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(type(sink._table), "merge", killed)  # likewise
        with pytest.raises(Killed):
            sink.commit(results)
    assert content(table_job) == [("a", b"k", b"1"), ("a", b"l", b"1")]
    # Of two at once one is told so.
    write(table_job, "a", (b"k", b"2"), (b"l", b""))
    one, two = (table_job.sink(job_id=name, upserts=True) for name in ("one", "two"))
    plans = one.plan(), two.plan()
    done = [table_job.units(plan) for plan in plans]
    two.commit(done[1])
    with pytest.raises(LakeConflictError, match="another job"):
        one.commit(done[0])
    assert content(table_job) == [("a", b"k", b"2")]
    assert table_job.sink(upserts=True).plan() is None


def test_fields_of_a_schema_are_merged_and_an_empty_record_is_no_bad_one(table_job):
    text = '{"type": "object", "properties": {"total": {"type": "integer"}}}'
    write(table_job, "a", (b"k", b'{"total": 1}'), (b"l", b'{"total": 2}'))
    table_job.run(lambda ns: ns.stream("a").set_schema(Schema(SchemaKind.JSON, text)))
    options = {"schema_of_stream": "a", "upserts": True}
    table_job.sink_all("a", **options)
    write(table_job, "a", (b"k", b'{"total": 3}'), (b"l", b""), (b"m", b"bad"))
    sink = table_job.sink_all("a", job_id="second", **options)
    assert sink.undecoded == 1
    assert [(row["key"], row["total"], row["value"]) for row in table_job.rows()] == [
        (b"k", 3, None), (b"m", None, b"bad"),
    ]  # fmt: skip


def test_a_table_of_all_records_does_not_become_one_of_keys(table_job):
    write(table_job, "a", (b"k", b"1"))
    table_job.sink_all()
    with pytest.raises(ConfigError, match="all records of each key: give another table"):
        table_job.sink(upserts=True).plan()
    other = TableJob(table_job.cluster, table_job.tmp_path / "other", table_job.kind)
    other.path, other.connection = table_job.path, table_job.connection
    (table_job.tmp_path / "other").mkdir()
    other.sink_all(upserts=True)
    write(table_job, "a", (b"k", b"2"))
    with pytest.raises(ConfigError, match="latest record of each key: give --upsert"):
        other.sink().plan()


def test_files_that_do_not_count_any_more_stay_for_an_hour(cluster, tmp_path, monkeypatch):
    table_job = TableJob(cluster, tmp_path, "parquet")

    def files():
        return sorted(tmp_path.glob("table/data/*/*.parquet"))

    monkeypatch.setattr(manifest, "_SMALL_BYTES", 0)
    write(table_job, "a", *((b"%d" % n, b"1") for n in range(5)))
    table_job.sink_all(upserts=True)
    (first,) = files()  # the file of changes is gone
    write(table_job, "a", (b"3", b"2"))
    table_job.sink_all(job_id="second", upserts=True)
    # What was left of the first one, and the new row.
    assert len(committed_files(table_job.location)) == 2
    assert first in files()
    assert len(files()) == 3
    write(table_job, "a", (b"new", b"1"))
    monkeypatch.setattr(manifest, "_KEPT_MS", -1)
    table_job.sink_all(job_id="third", upserts=True)
    assert first not in files()
    assert len(files()) == len(committed_files(table_job.location)) == 3
    assert len(table_job.rows()) == 6


def test_the_command_merges(spark, cluster, streams, tmp_path, capsys):
    table_job = TableJob(cluster, tmp_path, "parquet")
    write(table_job, "a", (b"k", b"1"), (b"k", b"2"), (b"l", b"1"), (b"l", b""))
    assert spark is not None
    words = [*table_job.words(), "--from", "stream:a", "--state-dir", str(tmp_path)]
    assert main([*words, "--upsert", "--json-report", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["batches"] == 1
    assert content(table_job) == [("a", b"k", b"2")]
    assert main(words) == 2
    assert "give --upsert" in capsys.readouterr().err
