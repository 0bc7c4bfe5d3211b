"""``quorumbook spark lake-sink --upsert``: the latest record of each key, whatever ends the job."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pytest
from lake_world import KINDS, World

from quorumbook.cli.main import main
from quorumbook.errors import ConfigError
from quorumbook.spark.lake import manifest
from quorumbook.spark.lake.manifest import committed_files
from quorumbook.spark.lake.table import LakeConflictError
from quorumbook.spark.lake.upserts import DELETED, latest, rows_of
from quorumbook.streams import Schema, SchemaKind


@pytest.fixture(params=KINDS)
def world(request, cluster, tmp_path):
    return World(cluster, tmp_path, request.param)


class Killed(BaseException):
    """The process is no more."""


def write(world, name, *changes):
    """Append pairs of key and payload."""

    async def work(namespace):
        await namespace.create_stream(name, exist_ok=True)
        async with namespace.stream(name).writer() as writer:
            for key, payload in changes:
                await writer.append(payload, key=key)

    world.run(work)


def content(world):
    return sorted((row["stream"], row["key"] or b"", row["value"]) for row in world.rows())


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


def test_a_table_has_the_latest_of_each_key_after_every_batch(world):
    write(world, "a", (b"k", b"1"), (b"l", b"1"), (None, b"free"), (b"k", b"2"))
    write(world, "b", (b"k", b"of b"))
    world.sink_all(upserts=True)
    expected = [("a", b"", b"free"), ("a", b"k", b"2"), ("a", b"l", b"1"), ("b", b"k", b"of b")]
    assert content(world) == expected
    write(world, "a", (b"l", b""), (b"m", b"1"), (None, b"free"), (b"none", b""))
    world.sink_all(job_id="second", upserts=True)
    expected = [
        ("a", b"", b"free"), ("a", b"", b"free"), ("a", b"k", b"2"), ("a", b"m", b"1"),
        ("b", b"k", b"of b"),
    ]  # fmt: skip
    assert content(world) == expected
    # Nothing but deletions of what is not there is a batch, too.
    write(world, "a", (b"none", b""))
    sink = world.sink_all(job_id="third", upserts=True)
    assert (sink.batches, content(world)) == (1, expected)
    assert world.sink(upserts=True).plan() is None
    write(world, "a", *((key, b"") for key in (b"k", b"m")))
    write(world, "b", (b"k", b""))
    world.sink_all(job_id="fourth", upserts=True)
    assert content(world) == [("a", b"", b"free")] * 2


def test_a_table_agrees_with_a_dictionary_however_batches_are_cut(world):
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
        write(world, "a", *changes)
        world.sink_all(job_id=f"job{number}", max_bytes=2000, upserts=True)
        assert {(key, value) for _, key, value in content(world)} == set(model.items())
        assert len(world.rows()) == len(model)


def test_a_batch_counts_once_whatever_was_killed(world, monkeypatch):
    write(world, "a", (b"k", b"1"), (b"l", b"1"))
    # Killed before the table knew of it.
    sink = world.sink(upserts=True)
    world.units(sink.plan())
    assert world.rows() == []
    # Killed after the table knew of it.
    sink = world.sink(job_id="second", upserts=True)
    results = world.units(sink.plan())
    merge = type(sink._table).merge  # it dies between two steps

    def killed(*arguments):
        merge(*arguments)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(type(sink._table), "merge", killed)  # likewise
        with pytest.raises(Killed):
            sink.commit(results)
    assert content(world) == [("a", b"k", b"1"), ("a", b"l", b"1")]
    # Of two at once one is told so.
    write(world, "a", (b"k", b"2"), (b"l", b""))
    one, two = (world.sink(job_id=name, upserts=True) for name in ("one", "two"))
    plans = one.plan(), two.plan()
    done = [world.units(plan) for plan in plans]
    two.commit(done[1])
    with pytest.raises(LakeConflictError, match="another job"):
        one.commit(done[0])
    assert content(world) == [("a", b"k", b"2")]
    assert world.sink(upserts=True).plan() is None


def test_fields_of_a_schema_are_merged_and_an_empty_record_is_no_bad_one(world):
    text = '{"type": "object", "properties": {"total": {"type": "integer"}}}'
    write(world, "a", (b"k", b'{"total": 1}'), (b"l", b'{"total": 2}'))
    world.run(lambda ns: ns.stream("a").set_schema(Schema(SchemaKind.JSON, text)))
    options = {"schema_of_stream": "a", "upserts": True}
    world.sink_all("a", **options)
    write(world, "a", (b"k", b'{"total": 3}'), (b"l", b""), (b"m", b"bad"))
    sink = world.sink_all("a", job_id="second", **options)
    assert sink.undecoded == 1
    assert [(row["key"], row["total"], row["value"]) for row in world.rows()] == [
        (b"k", 3, None), (b"m", None, b"bad"),
    ]  # fmt: skip


def test_a_table_of_all_records_does_not_become_one_of_keys(world):
    write(world, "a", (b"k", b"1"))
    world.sink_all()
    with pytest.raises(ConfigError, match="all records of each key: give another table"):
        world.sink(upserts=True).plan()
    other = World(world.cluster, world.tmp_path / "other", world.kind)
    other.path, other.connection = world.path, world.connection
    (world.tmp_path / "other").mkdir()
    other.sink_all(upserts=True)
    write(world, "a", (b"k", b"2"))
    with pytest.raises(ConfigError, match="latest record of each key: give --upsert"):
        other.sink().plan()


def test_files_that_do_not_count_any_more_stay_for_an_hour(cluster, tmp_path, monkeypatch):
    world = World(cluster, tmp_path, "parquet")

    def files():
        return sorted(tmp_path.glob("table/data/*/*.parquet"))

    monkeypatch.setattr(manifest, "_SMALL_BYTES", 0)
    write(world, "a", *((b"%d" % n, b"1") for n in range(5)))
    world.sink_all(upserts=True)
    (first,) = files()  # the file of changes is gone
    write(world, "a", (b"3", b"2"))
    world.sink_all(job_id="second", upserts=True)
    # What was left of the first one, and the new row.
    assert len(committed_files(world.location)) == 2
    assert first in files()
    assert len(files()) == 3
    write(world, "a", (b"new", b"1"))
    monkeypatch.setattr(manifest, "_KEPT_MS", -1)
    world.sink_all(job_id="third", upserts=True)
    assert first not in files()
    assert len(files()) == len(committed_files(world.location)) == 3
    assert len(world.rows()) == 6


def test_the_command_merges(spark, cluster, streams, tmp_path, capsys):
    world = World(cluster, tmp_path, "parquet")
    write(world, "a", (b"k", b"1"), (b"k", b"2"), (b"l", b"1"), (b"l", b""))
    assert spark is not None
    words = [
        "spark", "lake-sink", "--metadata", cluster.metadata_uri, "--namespace", world.path,
        "--from", "stream:a", "--table", world.location, "--state-dir", str(tmp_path),
    ]  # fmt: skip
    assert main([*words, "--upsert", "--json-report", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["batches"] == 1
    assert content(world) == [("a", b"k", b"2")]
    assert main(words) == 2
    assert "give --upsert" in capsys.readouterr().err
