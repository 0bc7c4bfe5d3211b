"""``quorumbook spark lake-sink``: each record once in the table, whatever ends the job when."""

from __future__ import annotations

import json

import pytest
from inline import do_units
from table_job import KINDS, TableJob

from quorumbook.cli.main import main
from quorumbook.errors import ConfigError
from quorumbook.spark.lake.manifest import committed_files
from quorumbook.spark.lake.rows import LakeRows, schema_of
from quorumbook.spark.lake.table import LakeConflictError, LakeState
from quorumbook.streams import SequenceId, Stream
from quorumbook.streams.errors import DataLossError


@pytest.fixture(params=KINDS)
def table_job(request, cluster, tmp_path):
    return TableJob(cluster, tmp_path, request.param)


def payloads(rows):
    return [row["value"] for row in rows]


class Killed(BaseException):
    """The process is no more."""


def test_each_record_is_there_once_whatever_was_killed(table_job, monkeypatch):
    monkeypatch.setattr("quorumbook.spark.jobs.data.lake_sink._ROWS", 15)  # handed on together
    first, more = [b"%d" % n for n in range(45)], [b"more %d" % n for n in range(7)]
    table_job.write("a", first)
    table_job.write("b", [b"of b"])
    # Killed after files were written, and before the table knew of them.
    sink = table_job.sink()
    table_job.units(sink.plan())
    assert table_job.rows() == []
    # Killed after the table knew of them, and before the job noted it.
    sink = table_job.sink("a", "b", job_id="second")
    plan = sink.plan()
    results = table_job.units(plan)
    commit = type(sink._table).commit  # it dies between two steps

    def killed(*arguments):
        commit(*arguments)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(type(sink._table), "commit", killed)  # it dies between two steps
        with pytest.raises(Killed):
            sink.commit(results)
    assert payloads(table_job.rows()) == [*first, b"of b"]
    table_job.write("a", more)
    assert table_job.sink_all(job_id="third").rows == 7
    assert table_job.sink().plan() is None
    rows = table_job.rows()
    assert payloads(rows) == [*first, *more, b"of b"]
    assert [row["seq"] for row in rows] == [*range(52), 0]


def test_of_two_jobs_at_once_one_is_told_so_and_nothing_is_there_twice(table_job):
    table_job.write("a", [b"%d" % n for n in range(20)])
    one, two = table_job.sink(job_id="one"), table_job.sink(job_id="two")
    plans = one.plan(), two.plan()
    results = [table_job.units(plan) for plan in plans]
    two.commit(results[1])
    with pytest.raises(LakeConflictError, match="another job"):
        one.commit(results[0])
    assert payloads(table_job.rows()) == [b"%d" % n for n in range(20)]
    table_job.write("a", [b"last"])
    assert one.commit(table_job.units(one.plan()))
    assert len(table_job.rows()) == 21


def test_what_is_gone_is_an_error_unless_it_is_allowed(cluster, tmp_path):
    table_job = TableJob(cluster, tmp_path, "parquet")
    table_job.write("a", [b"%d" % n for n in range(10)])
    table_job.sink_all()
    table_job.write("a", [b"lost", b"lost too"])
    table_job.write("a", [b"left"])
    table_job.run(lambda ns: ns.stream("a").truncate(SequenceId(12)))
    with pytest.raises(DataLossError, match="--allow-data-loss"):
        table_job.sink().plan()
    table_job.sink_all(allows_loss=True)
    assert payloads(table_job.rows())[-2:] == [b"9", b"left"]
    # So it is where only a part of a segment is gone.
    table_job.write("a", [b"lost as well", b"left, too"])
    table_job.run(lambda ns: ns.stream("a").truncate(SequenceId(14)))
    with pytest.raises(DataLossError, match="--allow-data-loss"):
        table_job.sink().plan()
    table_job.sink_all(allows_loss=True)
    assert payloads(table_job.rows())[-2:] == [b"left", b"left, too"]
    # Another stream of the same name is not taken for it.
    table_job.run(lambda ns: ns.delete_stream("a"))
    table_job.write("a", [b"new"])
    with pytest.raises(DataLossError, match="made again"):
        table_job.sink().plan()


def test_what_others_do_to_a_table_hides_not_how_far_it_is(cluster, tmp_path):
    table_job = TableJob(cluster, tmp_path, "iceberg")
    table_job.write("a", [b"%d" % n for n in range(10)])
    table_job.sink_all()
    table = table_job.table()._table  # it dies between two steps
    for _ in range(2):  # a snapshot without a state, whose parent has none either
        table.append(schema_of("").empty_table())
    assert table.refresh().current_snapshot().parent_snapshot_id is not None
    assert table_job.sink().plan() is None
    table_job.write("a", [b"more"])
    assert table_job.sink_all(job_id="second").rows == 1
    assert payloads(table_job.rows()) == [*(b"%d" % n for n in range(10)), b"more"]


def test_a_file_with_a_gap_is_none(cluster, tmp_path, monkeypatch):
    table_job = TableJob(cluster, tmp_path, "parquet")
    table_job.write("a", [b"%d" % n for n in range(30)])
    read = Stream.read_split

    async def read_split(stream, split):
        async for batch in read(stream, split):
            if batch.first_sequence_id != 10:
                yield batch

    monkeypatch.setattr(Stream, "read_split", read_split)
    results, errors = do_units(table_job.connection, table_job.sink().plan())
    assert results == {}
    (error,) = errors.values()
    assert "records 10 to 19 of stream a are missing" in error
    assert [path for path in (tmp_path / "table").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_dry_run_makes_no_table(cluster, tmp_path, kind):
    table_job = TableJob(cluster, tmp_path, kind)
    table_job.write("a", [b"0"])
    is_iceberg = kind == "iceberg"
    words = table_job.words("db.events" if is_iceberg else "")
    words += ["--from", "stream:a", "--format", kind, "--dry-run", "--json-report", "-"]
    if is_iceberg:
        for key, value in table_job.catalog.items():
            words += ["--catalog", f"{key}={value}"]
    assert main(words) == 0
    assert [path for path in tmp_path.rglob("*") if path.is_dir() or path.stat().st_size] == []


def test_a_table_of_another_cluster_is_refused(cluster, tmp_path):
    table_job = TableJob(cluster, tmp_path, "parquet")
    table_job.write("a", [b"0"])
    sink = table_job.sink()
    # It dies between two steps.
    sink._table.commit(LakeState(), LakeState(batch=0, cluster="elsewhere"), [])
    with pytest.raises(ConfigError, match=r"records of cluster elsewhere, the metadata URI leads"):
        table_job.sink().plan()


def test_fields_of_json_become_columns_and_what_is_no_such_json_is_found(cluster, tmp_path):
    table_job = TableJob(cluster, tmp_path, "parquet")
    good = [{"carrier": "AA", "delay": 3, "on": True}, {"carrier": None, "delay": -1}]
    bad = [b"no json", b"[1]", b'{"delay": "three"}', b'{"delay": 5000000000}']
    table_job.write("a", [*(json.dumps(row).encode() for row in good), *bad])
    sink = table_job.sink_all(decode="carrier string, delay int, on boolean")
    rows = table_job.rows()
    assert [(row["carrier"], row["delay"], row["on"]) for row in rows[:2]] == [
        ("AA", 3, True), (None, -1, None),
    ]  # fmt: skip
    assert [row["value"] for row in rows] == [None, None, *bad]
    assert sink.undecoded == 4


def test_a_record_in_chunks_is_one_row_and_what_follows_is_there(cluster, tmp_path):
    table_job = TableJob(cluster, tmp_path, "parquet")
    large = bytes(2_500_000)

    async def write(namespace):
        await namespace.create_stream("a")
        async with namespace.stream("a").writer() as writer:
            for payload in (b"before", large):
                await writer.append(payload)

    table_job.run(write)
    table_job.sink_all()
    table_job.write("a", [b"after"])
    table_job.sink_all()
    assert payloads(table_job.rows()) == [b"before", large, b"after"]


def test_batches_are_bounded_and_records_keep_what_they_carry(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr("quorumbook.spark.jobs.batches._SPLIT_BYTES", 300)
    table_job = TableJob(cluster, tmp_path, "parquet")
    table_job.write(
        "a", [b"%03d" % n * 20 for n in range(100)], key=b"k", event_time_ms=1_700_000_000_000
    )
    sink = table_job.sink_all(max_bytes=1000)
    assert sink.batches > 3
    rows = table_job.rows()
    assert [row["seq"] for row in rows] == list(range(101))
    assert rows[-1]["key"] == b"k"
    assert rows[-1]["event_time"].timestamp() == 1_700_000_000
    assert LakeRows("").schema.names == list(rows[0])


def test_the_command_copies_and_goes_on(spark, cluster, tmp_path, capsys):
    table_job = TableJob(cluster, tmp_path, "parquet")
    table_job.write("a", [b'{"n": %d}' % n for n in range(30)])
    report_path = tmp_path / "report.json"

    def run(*words):
        report_path.unlink(missing_ok=True)
        code = main(
            [*table_job.words(), "--from", "stream:a", "--json-report", str(report_path),
             "--state-dir", str(tmp_path / "jobs"), *words]
        )  # fmt: skip
        return code, json.loads(report_path.read_text()) if report_path.exists() else None

    assert run("--dry-run")[1]["units"] == 1
    code, report = run("--decode", "n int")
    assert (code, report["rows_written"], report["batches"]) == (0, 30, 1)
    code, again = run("--decode", "n int", "--resume", report["job_id"])
    assert (code, again["rows_written"]) == (0, 0)
    found = spark.read.parquet(*committed_files(table_job.location)).orderBy("seq").collect()
    assert [row.n for row in found] == list(range(30))
    for words, what in (
        (["--decode", "n money"], "--decode"),
        (["--catalog", "uri=x"], "--catalog"),
        (["--from", "ledger:1"], "--from"),
        (["--format", "iceberg"], "NAMESPACE.TABLE"),
    ):
        capsys.readouterr()
        assert run(*words)[0] == 2
        assert what in capsys.readouterr().err.splitlines()[-1]
