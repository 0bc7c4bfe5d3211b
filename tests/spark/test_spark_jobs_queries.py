"""``quorumbook spark transform`` and ``analytics``: queries that go on where they ended."""

from __future__ import annotations

import asyncio
import json
from uuid import uuid4

import pytest

from quorumbook.cli.main import main
from quorumbook.spark.jobs.engine import Limits
from quorumbook.spark.jobs.queries import spread_state
from quorumbook.streams import Namespace
from quorumbook.streams.stream_context import stream_context

PATH = "/queried"


class Command:
    """Streams of the tests' cluster, and the jobs' command."""

    def __init__(self, cluster, tmp_path):
        self.cluster, self.tmp_path = cluster, tmp_path
        asyncio.run(Namespace.bind(f"{cluster.metadata_uri}#{PATH}", exist_ok=True))

    def write(self, name, payloads):
        async def work():
            async with Namespace.open(f"{self.cluster.metadata_uri}#{PATH}") as namespace:
                if not await stream_context(namespace.stream(name)).nodes.exists():
                    await namespace.create_stream(name)
                async with namespace.stream(name).writer() as writer:
                    await writer.append_batch(payloads)

        asyncio.run(work())

    def read(self, name):
        async def work():
            async with Namespace.open(f"{self.cluster.metadata_uri}#{PATH}") as namespace:
                async with namespace.stream(name).reader(tail=False) as reader:
                    return [record.payload async for record in reader]

        return asyncio.run(work())

    def run(self, job, *words):
        report = self.tmp_path / "report.json"
        report.unlink(missing_ok=True)
        code = main(
            ["spark", job, "--metadata", self.cluster.metadata_uri, "--namespace", PATH,
             "--json-report", str(report), "--state-dir", str(self.tmp_path / "jobs"), *words]
        )  # fmt: skip
        return code, json.loads(report.read_text()) if report.exists() else None


@pytest.fixture
def command(spark, cluster, tmp_path):
    return Command(cluster, tmp_path)


def names():
    return (f"a{uuid4().hex[:8]}", f"b{uuid4().hex[:8]}")


def test_a_replay_has_every_record_once_in_order_and_goes_on_where_it_ended(command):
    source, target = names()
    command.write(source, [b"%d" % n for n in range(300)])
    words = ["--from", f"stream:{source}", "--to", f"stream:{target}", "--create-stream"]
    code, report = command.run("transform", *words, "--max-bookie-mbps", "100")
    assert (code, report["input_rows"]) == (0, 300)
    assert command.read(target) == [b"%d" % n for n in range(300)]
    # It came to its end: nothing is done again.
    code, again = command.run("transform", *words, "--resume", report["job_id"])
    assert (code, again["resumed"]) == (0, 1)
    # Killed before it noted its end, and more came: it goes on at the very record.
    command.write(source, [b"more"])
    path = command.tmp_path / "jobs" / f"{report['job_id']}.jsonl"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    code, again = command.run("transform", *words, "--resume", report["job_id"])
    assert (code, again["input_rows"]) == (0, 1)
    assert command.read(target) == [*(b"%d" % n for n in range(300)), b"more"]


def test_sql_and_python_choose_and_change_records(command):
    source, target = names()
    command.write(source, [b"%d" % n for n in range(100)])
    function = command.tmp_path / "doubling.py"
    function.write_text(
        "def transform(records):\n"
        "    return records.selectExpr('seq', 'cast(cast(value AS string) AS int) * 2 AS number')\n"
    )
    sql = "SELECT concat(seq, '=', number) AS value FROM records WHERE number % 4 = 0"
    code, _ = command.run(
        "transform", "--from", f"stream:{source}", "--to", f"stream:{target}", "--create-stream",
        "--udf", str(function), "--sql", sql, "--range", "10-19",
    )  # fmt: skip
    assert code == 0
    assert command.read(target) == [b"%d=%d" % (n, 2 * n) for n in range(10, 20, 2)]


def test_state_is_in_as_many_partitions_as_tasks_run_at_once_unless_somebody_says(spark):
    name = "spark.sql.shuffle.partitions"
    before = spark.conf.get(name)
    try:
        for given, expected in ("200", "2"), ("7", "7"):
            spark.conf.set(name, given)
            spread_state(spark, Limits())
            assert spark.conf.get(name) == expected
    finally:
        spark.conf.set(name, before)


def event(carrier, minute, delay):
    at = f"2013-01-01T{minute // 60:02d}:{minute % 60:02d}:00Z"
    return json.dumps({"carrier": carrier, "at": at, "delay": delay}).encode()


def test_windows_are_written_once_complete_and_what_is_too_late_is_left_out(command):
    source, target = names()
    words = [
        "--from", f"stream:{source}", "--to", f"stream:{target}", "--create-stream", "--schema",
        "carrier string, at timestamp, delay int", "--time", "at", "--window", "10 minutes",
        "--watermark", "5 minutes", "--group-by", "carrier", "--measure", "count(*) AS flights",
        "--measure", "sum(delay) AS delay",
    ]  # fmt: skip
    command.write(source, [event("AA", 1, 5), event("UA", 4, 1), event("AA", 9, 7)])
    command.write(source, [event("AA", 16, 2), event("AA", 8, 1)])  # late, and not too late
    code, report = command.run("analytics", *words)
    assert code == 0
    rows = {
        (row["carrier"], row["window_start"]): row for row in map(json.loads, command.read(target))
    }
    assert {key: (row["flights"], row["delay"]) for key, row in rows.items()} == {
        ("AA", "2013-01-01T00:00:00.000Z"): (3, 13),
        ("UA", "2013-01-01T00:00:00.000Z"): (1, 1),
    }
    # Its window was written; this one comes too late for it.
    command.write(source, [event("AA", 2, 100), event("AA", 40, 0)])
    path = command.tmp_path / "jobs" / f"{report['job_id']}.jsonl"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    code, _ = command.run("analytics", *words, "--resume", report["job_id"])
    assert code == 0
    rows = [json.loads(row) for row in command.read(target)]
    assert [(r["carrier"], r["window_start"], r["delay"]) for r in rows[2:]] == [
        ("AA", "2013-01-01T00:10:00.000Z", 2)
    ]


@pytest.mark.parametrize(
    ("job", "words", "what"),
    [
        ("transform", ["--to", "stream:b", "--sql", "SELEKT"], "--sql"),
        ("transform", ["--to", "stream:b", "--sql", "SELECT x AS value FROM records"], "--sql"),
        ("transform", ["--to", "stream:b", "--udf", "/not/there.py"], "--udf"),
        ("transform", ["--to", "file"], "stream:NAME"),
        (
            "analytics",
            ["--to", "stream:b", "--schema", "a int", "--time", "b", "--window", "1 day"],
            "--time b",
        ),
    ],
)
def test_bad_input_is_one_line_before_anything_runs(command, job, words, what, capsys):
    source, _ = names()
    command.write(source, [b"record"])
    capsys.readouterr()
    code, _ = command.run(job, "--from", f"stream:{source}", *words, "--dry-run")
    assert code == 2
    # Spark may have warned before.
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("quorumbook: ")
    assert what in line
