"""``export``: what streams and ledgers hold, in files that anything reads."""

from __future__ import annotations

import asyncio
import base64
import csv
import itertools
import json

import pytest

pytest.importorskip("pyspark", reason="pip install 'quorumbook[spark]'")

from datetime import UTC, datetime

import pyarrow.parquet as pq
from inline import do_units, run_inline

from quorumbook.cli.main import main
from quorumbook.spark.connection import Connection
from quorumbook.spark.jobs.data import export
from quorumbook.spark.jobs.frame import JobPlan, Unit
from quorumbook.spark.jobs.options import ExportOptions
from quorumbook.streams import Namespace

_numbers = itertools.count()
RECORDS = [b"record %d" % number for number in range(50)]


@pytest.fixture
def stream(cluster):
    """A stream with two segments; its name."""
    name = f"s{next(_numbers)}"

    async def write():
        address = f"{cluster.metadata_uri}#/exported"
        async with Namespace.open(address, bind=True) as namespace:
            await namespace.create_stream(name)
            for half in (RECORDS[:20], RECORDS[20:]):
                async with namespace.stream(name).writer() as writer:
                    for start in range(0, len(half), 7):
                        await writer.append_batch(half[start : start + 7])

    asyncio.run(write())
    return name


def run(cluster, stream, tmp_path, **options):
    wanted = ExportOptions(source="stream:*", out=str(tmp_path / "out"), **options)
    return run_inline(
        cluster,
        lambda namespace: export.plan_streams(namespace, [stream], wanted),
        export.conclude,
        namespace="/exported",
    )


def paths(tmp_path):
    return sorted(str(path) for path in (tmp_path / "out").iterdir())


def test_parquet_has_every_record_once_however_often_it_is_written(
    cluster, stream, tmp_path, monkeypatch
):
    for rows in (10_000, 10):
        monkeypatch.setattr(export, "_ROWS", rows)  # handed on together
        report = run(cluster, stream, tmp_path)
        assert (report.exit_code, report.summary["rows_written"]) == (0, 50)
        table = pq.read_table(paths(tmp_path))
        assert table.column("value").to_pylist() == RECORDS
        assert table.column("seq").to_pylist() == list(range(50))
        assert set(table.column("stream").to_pylist()) == {stream}
        assert None not in table.column("timestamp").to_pylist()


@pytest.mark.parametrize("form", ["jsonl", "csv"])
@pytest.mark.parametrize("encoding", ["text", "base64"])
def test_text_formats_hold_the_same(cluster, stream, tmp_path, form, encoding):
    run(cluster, stream, tmp_path, format=form, encoding=encoding)
    rows = []
    for path in paths(tmp_path):
        with open(path, encoding="utf-8", newline="") as file:
            rows += map(json.loads, file) if form == "jsonl" else csv.DictReader(file)
    values = [row["value"] for row in rows]
    if encoding == "base64":
        assert [base64.b64decode(value) for value in values] == RECORDS
    else:
        assert [value.encode() for value in values] == RECORDS
    assert [int(row["seq"]) for row in rows] == list(range(50))


def test_a_range_and_a_time_choose_records(cluster, stream, tmp_path):
    report = run(cluster, stream, tmp_path, span="15-24")
    assert report.summary["rows_written"] == 10
    assert pq.read_table(paths(tmp_path)).column("value").to_pylist() == RECORDS[15:25]
    times = pq.read_table(paths(tmp_path)).column("timestamp").cast("int64").to_pylist()
    when = datetime.fromtimestamp(times[0] / 1000, UTC).isoformat()
    first = run(cluster, stream, tmp_path, until=when)
    then = run(cluster, stream, tmp_path, since=when)
    assert first.summary["rows_written"] + then.summary["rows_written"] == 50
    assert then.summary["rows_written"] > 0


def test_what_is_no_text_is_an_error_that_says_what_to_do_and_leaves_no_file(cluster, tmp_path):
    with cluster.connect() as client, client.create_ledger() as ledger:
        ledger.append(b"\xff\xfe")
    wanted = ExportOptions(source="stream:*", out=str(tmp_path / "out"), format="jsonl")
    report = run_inline(
        cluster,
        lambda client: export.plan_ledgers(client, [(ledger.id, ledger.id)], wanted),
        export.conclude,
    )
    assert report.exit_code == 1
    (message,) = report.errors.values()
    assert "--encoding base64" in message
    assert paths(tmp_path) == []


def test_ledgers_are_exported_by_the_command(spark, cluster, tmp_path):
    with cluster.connect() as client, client.create_ledger() as ledger:
        for number in range(30):
            ledger.append_nowait(b"entry %d" % number)
    words = ["--from", f"ledger:{ledger.id}", "--out", str(tmp_path / "out"), "--range", "5-"]
    common = ["--metadata", cluster.metadata_uri, "--state-dir", str(tmp_path / "jobs")]
    assert main(["spark", "export", *common, *words]) == 0
    values = pq.read_table(paths(tmp_path)).column("value").to_pylist()
    assert values == [b"entry %d" % number for number in range(5, 30)]


def test_a_ledger_that_is_being_written_stays_its_writers(cluster, tmp_path, monkeypatch):
    options = ExportOptions(source="stream:*", out=str(tmp_path / "out")).of_unit()
    connection = Connection(metadata_uri=cluster.metadata_uri, namespace_path="/exported")
    with cluster.connect() as client, client.create_ledger() as ledger:
        for number in range(5):
            ledger.append(b"entry %d" % number)
        unit = Unit("part", 1, {"ledger_id": ledger.id, "from": 0, "to": 3, **options})
        monkeypatch.setattr(export, "_ROWS", 3)
        results, errors = do_units(connection, JobPlan("export", [unit], export.work))
        assert (errors, results["part"]["rows"]) == ({}, 4)
        values = pq.read_table(paths(tmp_path)).column("value").to_pylist()
        assert values == [b"entry %d" % number for number in range(4)]
        ledger.append(b"more")  # nobody was shut out


@pytest.mark.parametrize(
    "words",
    [
        ["--from", "stream:", "--out", "x"],
        ["--from", "topic:t", "--out", "x"],
        ["--from", "ledger:1", "--out", "x", "--since", "2026-01-01"],
        ["--from", "stream:s", "--out", "x", "--range", "5"],
    ],
)
def test_bad_input_is_one_line(cluster, words, capsys):
    assert main(["spark", "export", "--metadata", cluster.metadata_uri, *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
