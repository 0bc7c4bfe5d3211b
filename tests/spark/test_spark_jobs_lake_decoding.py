"""``lake-sink --decode``: fields as columns, and records that cannot be decoded, each once."""

from __future__ import annotations

import json

import pytest
from inline import do_units
from table_job import KINDS, TableJob

pytest.importorskip("fastavro", reason="pip install 'quorumbook[schema]'")

from quorumbook.cli.main import main
from quorumbook.spark.lake.rows import LakeRows
from quorumbook.streams import (
    Compatibility,
    Decoder,
    Position,
    Record,
    Schema,
    SchemaKind,
    StreamSchemas,
    StreamWriter,
)
from quorumbook.streams.format.attributes import Attributes

DDL = "carrier string, delay int, on boolean"
SCHEMA = Schema(SchemaKind.AVRO, json.dumps({"type": "record", "name": "R", "fields": [
    {"name": "carrier", "type": ["null", "string"], "default": None},
    {"name": "delay", "type": "int"},
    {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
]}))  # fmt: skip
AS_JSON = Schema(SchemaKind.JSON, json.dumps({"type": "object", "properties": {
    "carrier": {"type": ["string", "null"]},
    "delay": {"type": ["integer", "null"], "minimum": -(2**31), "maximum": 2**31 - 1},
    "on": {"type": ["boolean", "null"]},
}}))  # fmt: skip
LETTERS = "dead/letters"


def decoder_for(schema):
    return Decoder(StreamSchemas("a", Compatibility.NONE, (schema,)))


@pytest.fixture
def table_job(cluster, tmp_path):
    return TableJob(cluster, tmp_path, "parquet")


def set_schema(table_job, name, schema):
    async def work(namespace):
        await namespace.create_stream(name, exist_ok=True)
        await namespace.stream(name).set_schema(schema)

    table_job.run(work)


def letters_of(table_job, name=LETTERS):
    """Return stream, payload, key and position of the dead letters, and the reasons."""

    async def work(namespace):
        async with namespace.stream(name).reader(tail=False) as reader:
            return [record async for record in reader]

    return table_job.run(work)


def plain(letters):
    return [(each.headers["dead-letter-stream"].decode(), each.payload) for each in letters]


def test_fields_of_a_schema_and_of_ddl_agree(table_job):
    rows = [{"carrier": "AA", "delay": 3, "on": True}, {"carrier": None, "delay": -1}, {}]
    bad = [b"no json", b"[1]", b'{"delay": "three"}', b'{"delay": 5000000000}', b'{"on": 1}']
    table_job.write("a", [*(json.dumps(row).encode() for row in rows), *bad])
    set_schema(table_job, "a", AS_JSON)
    sink = table_job.sink_all("a", decode=DDL)
    expected = table_job.rows()
    assert sink.undecoded == len(bad)
    table_job.location += "-by-schema"
    sink = table_job.sink_all("a", schema_of_stream="a")
    assert sink.undecoded == len(bad)
    assert table_job.rows() == expected
    assert [row["value"] for row in table_job.rows()] == [None] * 3 + bad


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_table_takes_the_fields(cluster, tmp_path, kind):
    table_job = TableJob(cluster, tmp_path, kind)
    encoder = decoder_for(SCHEMA)
    values = [{"carrier": None, "delay": n, "tags": ["x"] * n} for n in range(3)]
    table_job.write("a", [*map(encoder.encode, values), b"\xff"])
    set_schema(table_job, "a", SCHEMA)
    sink = table_job.sink_all("a", schema_of_stream="a", bad="drop", dead_letters=LETTERS)
    assert (sink.rows, sink.undecoded) == (3, 1)
    assert [row["tags"] for row in table_job.rows()] == [[], ["x"], ["x", "x"]]
    assert plain(letters_of(table_job)) == [("a", b"\xff")]


def test_a_job_that_is_resumed_takes_no_part_that_was_decoded_as_an_older_version(table_job):
    table_job.write("a", [decoder_for(SCHEMA).encode({"carrier": "x", "delay": 1, "tags": []})])
    set_schema(table_job, "a", SCHEMA)

    def keys():
        return {
            unit.key for unit in table_job.sink("a", schema_of_stream="a", job_id="j").plan().units
        }

    before = keys()
    assert keys() == before
    fields = [*json.loads(SCHEMA.text)["fields"], {"name": "new", "type": "int", "default": 0}]
    wider = {"type": "record", "name": "R", "fields": fields}
    set_schema(table_job, "a", Schema(SchemaKind.AVRO, json.dumps(wider)))
    assert keys().isdisjoint(before)


class Killed(BaseException):
    """The process is no more."""


BAD = [b"\xff%d" % n for n in range(30)]


def kill_at(table_job, moment, monkeypatch):
    """Run a job of its own, and kill it."""
    sink = table_job.sink(
        "a", "b", schema_of_stream="a", bad="drop", dead_letters=LETTERS, job_id=moment
    )
    results = table_job.units(sink.plan())
    if moment == "before the letters":
        return
    with monkeypatch.context() as patch:
        if moment == "amid the letters":
            append, count = StreamWriter.append_nowait, 0

            def dying(writer, **letter):
                nonlocal count
                count += 1
                if count > 7:
                    raise Killed
                return append(writer, **letter)

            patch.setattr(StreamWriter, "append_nowait", dying)
        else:
            commit = type(table_job.target).commit

            def killed(*arguments):
                if moment == "after the table":
                    commit(*arguments)
                raise Killed

            patch.setattr(type(table_job.target), "commit", killed)
        with pytest.raises(Killed):
            sink.commit(results)


ALL = ["amid the letters", "before the letters", "before the table", "after the table"]
ONE, MANY = 1 << 30, 100


@pytest.mark.parametrize(
    ("moments", "smaller", "more"),
    [
        *(([moment], ONE, 12) for moment in ALL),
        (["before the table"], MANY, 0),
        (["amid the letters", *ALL], ONE, 0),
        (["amid the letters", *ALL], MANY, 12),
    ],
    ids=[*ALL, "smaller batches", "several times", "several times, smaller batches"],
)
def test_each_dead_letter_is_there_once_whatever_was_killed(
    table_job, monkeypatch, moments, smaller, more
):
    monkeypatch.setattr("quorumbook.spark.jobs.batches._SPLIT_BYTES", 60)
    encoder = decoder_for(SCHEMA)
    good = [encoder.encode({"carrier": None, "delay": n, "tags": []}) for n in range(30)]
    set_schema(table_job, "a", SCHEMA)
    mixed = [payload for pair in zip(good, BAD, strict=True) for payload in pair]
    table_job.write("a", mixed)
    table_job.write("b", [b"\xee"])
    for moment in moments:
        kill_at(table_job, moment, monkeypatch)
    if more:
        table_job.write("a", [b"\xffmore%d" % n for n in range(more)])
    table_job.sink_all(
        "a", "b", schema_of_stream="a", bad="drop", dead_letters=LETTERS, max_bytes=smaller
    )
    found = letters_of(table_job)
    expected = [("a", payload) for payload in BAD]
    expected += [("a", b"\xffmore%d" % n) for n in range(more)]
    assert [each for each in plain(found) if each[0] == "a"] == expected
    assert [each for each in plain(found) if each[0] == "b"] == [("b", b"\xee")]
    assert [row["delay"] for row in table_job.rows()] == list(range(30))
    assert all(b"not a record" in each.headers["dead-letter-reason"] for each in found)


def test_a_stream_made_again_and_another_table_have_letters_of_their_own(table_job):
    set_schema(table_job, "a", SCHEMA)
    table_job.write("a", [b"\xff0"])
    options = {"schema_of_stream": "a", "bad": "drop", "dead_letters": LETTERS}
    table_job.sink_all("a", **options)
    table_job.sink_all("a", **options)
    table_job.location += "-other"
    table_job.sink_all("a", **options)
    assert plain(letters_of(table_job)) == [("a", b"\xff0")] * 2
    table_job.run(lambda namespace: namespace.delete_stream("a"))
    set_schema(table_job, "a", SCHEMA)
    table_job.write("a", [b"\xff1"])
    table_job.sink_all("a", allows_loss=True, **options)
    assert plain(letters_of(table_job))[2:] == [("a", b"\xff1")]


def test_a_dead_letter_keeps_what_it_carried_where_there_is_room(table_job):
    set_schema(table_job, "a", SCHEMA)

    async def work(namespace):
        async with namespace.stream("a").writer() as writer:
            large = {"h": bytes(65_380)}
            await writer.append(b"\xff" * 3_000_000, key=b"k", headers={"h": b"v"}, event_time_ms=7)
            await writer.append(b"\xff", key=b"k" * 100, headers=large)

    table_job.run(work)
    table_job.sink_all("a", schema_of_stream="a", bad="drop", dead_letters=LETTERS)
    first, second = letters_of(table_job)
    assert (first.payload, first.key, first.event_time_ms) == (b"\xff" * 3_000_000, b"k", 7)
    assert first.headers["h"] == b"v"
    assert first.headers["dead-letter-position"].startswith(b"1:")
    assert b"at most" in first.headers["dead-letter-reason"]
    assert (second.payload, second.key) == (b"\xff", None)
    assert set(second.headers) == {
        f"dead-letter-{name}" for name in ("stream", "position", "reason")
    }


def test_bad_records_are_an_error_where_that_is_said(table_job):
    set_schema(table_job, "a", SCHEMA)
    table_job.write("a", [b"\xff"])
    plan = table_job.sink("a", schema_of_stream="a", bad="fail").plan()
    _, errors = do_units(table_job.connection, plan)
    assert "of stream a cannot be decoded: not a record" in next(iter(errors.values()))


def test_rows_are_by_name_whatever_order_a_version_had():
    older = Schema(SchemaKind.AVRO, json.dumps({"type": "record", "name": "R", "fields": [
        {"name": "delay", "type": "long"}]}))  # fmt: skip
    newer = Schema(SchemaKind.AVRO, json.dumps({"type": "record", "name": "R", "fields": [
        {"name": "new", "type": "long", "default": 9}, {"name": "delay", "type": "long"},
    ]}))  # fmt: skip
    made = Decoder(StreamSchemas("a", Compatibility.NONE, (older, newer)))
    payload = decoder_for(older).encode({"delay": 3})
    version = Attributes(headers=(("schema-version", b"1"),))
    record = Record(Position(1, 0, 0), 0, 0, payload, 0, 1, version)
    table, bad = LakeRows("", made).table("a", -1, [record])
    (row,) = table.to_pylist()
    assert (row["new"], row["delay"], bad) == (9, 3, [])


def test_the_command_says_what_does_not_fit_together(cluster, tmp_path, capsys):
    table_job = TableJob(cluster, tmp_path, "parquet")
    table_job.write("a", [b"\xff"])
    words = [*table_job.words(), "--state-dir", str(tmp_path / "jobs"), "--dry-run"]
    for more, what in (
        (["--from", "stream:a", "--dead-letters", "d"], "need --decode"),
        (["--from", "stream:a", "--bad-records", "drop"], "need --decode"),
        (["--from", "stream:a", "--decode", "n int", "--bad-records", "fail", "--dead-letters",
          "d"], "no --bad-records"),
        (["--from", "stream:a", "--decode", "n int", "--dead-letters", "a"], "does not read"),
        (["--from", "stream:*", "--decode", "n int", "--dead-letters", "d"], "does not read"),
        (["--from", "stream:*", "--decode", "schema"], "--from must name one stream"),
        (["--from", "stream:a", "--decode", "schema"], "stream a has no schema"),
    ):  # fmt: skip
        assert main([*words, *more]) != 0
        assert what in capsys.readouterr().err
    set_schema(table_job, "a", SCHEMA)
    assert main([*words, "--from", "stream:a", "--decode", "schema", "--dead-letters", "d"]) == 0
