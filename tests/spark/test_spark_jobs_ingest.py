"""``quorumbook spark ingest``: files become records, each row once, whatever is given again."""

from __future__ import annotations

import asyncio
import json
from uuid import uuid4

import pytest

from quorumbook import connect
from quorumbook.cli.main import main
from quorumbook.streams import Namespace
from quorumbook.streams.transactions import Application, Identity, Place

ROWS = 400


@pytest.fixture
def source(tmp_path):
    """Three CSV files with rows in no order."""
    directory = tmp_path / "csv"
    directory.mkdir()
    for number in range(3):
        lines = [f"{(row * 7) % ROWS},name {row}" for row in range(number, ROWS, 3)]
        (directory / f"{number}.csv").write_text("\n".join(["id,name", *lines]) + "\n")
    return str(directory / "*.csv")


@pytest.fixture
def run(cluster, tmp_path):
    """Return what runs the job and gives its exit code and report."""
    asyncio.run(Namespace.bind(f"{cluster.metadata_uri}#/ingested", exist_ok=True))

    def call(*words, form="csv"):
        report = tmp_path / "report.json"
        report.unlink(missing_ok=True)
        code = main(
            ["spark", "ingest", "--metadata", cluster.metadata_uri, "--namespace", "/ingested",
             "--json-report", str(report), "--state-dir", str(tmp_path / "jobs"),
             "--format", form, *words]
        )  # fmt: skip
        return code, json.loads(report.read_text()) if report.exists() else None

    return call


def read(cluster, name):
    async def records():
        async with Namespace.open(f"{cluster.metadata_uri}#/ingested") as namespace:
            async with namespace.stream(name).reader(tail=False) as reader:
                return [(record.key, record.payload) async for record in reader]

    return asyncio.run(records())


def test_rows_are_there_once_and_in_order_however_often_it_is_given(
    spark, cluster, run, source, tmp_path
):
    name = f"s{uuid4().hex[:8]}"
    words = ["--src", source, "--option", "header=true", "--schema", "id int, name string",
             "--to", f"stream:{name}", "--create-stream", "--order-by", "id",
             "--max-bookie-mbps", "100", "--txn", name]  # fmt: skip
    code, report = run(*words, "--dry-run")
    assert code == 0
    assert len(report["planned"]) == 3
    code, report = run(*words)
    assert (code, report["rows_written"], report["was_there"]) == (0, ROWS, False)
    assert report["seconds"] > 0
    records = [json.loads(payload) for _, payload in read(cluster, name)]
    assert [record["id"] for record in records] == list(range(ROWS))
    assert {record["name"] for record in records} == {f"name {row}" for row in range(ROWS)}
    code, again = run(*words)
    assert (code, again["rows_written"], again["was_there"]) == (0, 0, True)
    # Killed between the commit and the job's own note of it.
    path = tmp_path / "jobs" / f"{report['job_id']}.jsonl"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    code, resumed = run(*words, "--resume", report["job_id"])
    assert (code, resumed["was_there"]) == (0, True)
    assert len(read(cluster, name)) == ROWS


def test_lines_become_records_and_a_column_a_payload(spark, cluster, run, tmp_path, source):
    (tmp_path / "log.txt").write_text("".join(f"line {n}\n" for n in range(50)))
    name = f"t{uuid4().hex[:8]}"
    words = ["--to", f"stream:{name}", "--create-stream"]
    code, report = run("--src", str(tmp_path / "log.txt"), *words, form="text")
    assert (code, report["rows_written"]) == (0, 50)
    assert read(cluster, name) == [(None, b"line %d" % n) for n in range(50)]
    code, _ = run(
        "--src", source, "--option", "header=true", "--value", "name", "--key", "id",
        "--order-by", "name", *words,
    )  # fmt: skip
    assert code == 0
    expected = {b"name %d" % row: b"%d" % (row * 7 % ROWS) for row in range(ROWS)}
    assert read(cluster, name)[50:] == [(expected[value], value) for value in sorted(expected)]


def test_rows_become_ledgers_too(spark, cluster, run, source):
    name = f"l{uuid4().hex[:8]}"
    words = ["--src", source, "--option", "header=true", "--to", "ledger", "--txn", name]
    code, report = run(*words)
    assert (code, report["rows_written"]) == (0, ROWS)
    assert run(*words)[1]["was_there"]

    async def count():
        async with connect(cluster.metadata_uri) as client:
            app = Application(Place(client), name, Identity("", ""))
            return sum([each.record_count async for each in app.ledgers()])

    assert asyncio.run(count()) == ROWS


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--to", "topic:t"], "stream:NAME, or ledger"),
        (["--to", "stream:s", "--create-stream", "--value", "nothing"], "nothing"),
        (["--to", "stream:s", "--option", "header"], "key=value"),
        (["--to", "stream:not-there"], "not-there"),
        (["--to", "ledger", "--key", "id"], "--key is for records of a stream"),
    ],
)
def test_bad_input_is_told_before_anything_is_written(spark, run, source, words, what, capsys):
    code, _ = run("--src", source, *words)
    assert code == (3 if what == "not-there" else 2)
    lines = capsys.readouterr().err.splitlines()
    assert what in lines[-1]
    assert lines[-1].startswith(("quorumbook: ", "quorumbook spark ingest: "))
