"""``quorumbook status``: what it says of a cluster whose bookies die, and its exit codes."""

from __future__ import annotations

import json

import pytest

from quorumbook.testing import LocalCluster
from surfaces.conftest import CommandLine


@pytest.fixture
def running():
    with LocalCluster(bookies=3) as cluster:
        yield cluster


def test_one_verdict_says_what_is_wrong_from_well_to_critical(running, tmp_path):
    quorumbook = CommandLine(running.metadata_uri, str(tmp_path))
    quorumbook("ledger", "write", "--ensemble-size", 2, stdin=b"one\ntwo\n")
    # Nothing audits these bookies, which is all that is wrong.
    first = json.loads(quorumbook("status", "-o", "json", code=1).text)
    assert [reason["code"] for reason in first["reasons"]] == ["no-auditor"]
    assert (first["writable_bookies"], first["ledgers"]) == (3, 1)

    lost, other = (b for b in json.loads(quorumbook("ledger", "show", 0, "-o", "json").text)
                   ["fragments"][0]["ensemble"])  # fmt: skip
    running.stop(lost)
    done = quorumbook("status", code=1)
    assert done.text.startswith("WARNING")
    assert f"1 bookie down: {lost} (replicas of 1 ledger are there)" in done.text
    assert f"`quorumbook bookie recover {lost}`" in done.text

    running.stop(other)
    critical = json.loads(quorumbook("cluster", "health", "-o", "jsonl", code=2).text)
    codes = {reason["code"]: reason["level"] for reason in critical["reasons"]}
    assert codes["entries-unreadable"] == "critical"
    assert critical["unreadable_ledgers"] == 1

    listed = json.loads(quorumbook("bookie", "ls", "-o", "json").text)
    down = {row["bookie_id"]: row for row in listed if row["state"] == "down"}
    assert down.keys() == {lost, other}
    assert down[lost]["reasons"] == ["not registered; known by its cookie and 1 ledger"]
    up = json.loads(quorumbook("bookie", "ls", "--registered", "-o", "json").text)
    assert [row["state"] for row in up] == ["writable"]


def test_the_form_of_monitoring_plugins_is_one_line(running, tmp_path):
    quorumbook = CommandLine(running.metadata_uri, str(tmp_path))
    line = quorumbook("status", "-o", "plugin", code=1).text
    assert line.startswith("QUORUMBOOK WARNING - there is no auditor")
    assert " | writable_bookies=3 read_only_bookies=0 down_bookies=0" in line
    assert line.count("\n") == 1


def test_without_a_cluster_there_is_no_verdict(tmp_path):
    nowhere = CommandLine(f"sqlite:///{tmp_path}/none.db", str(tmp_path))
    assert nowhere("status", code=3).out == b""
    line = nowhere("status", "-o", "plugin", code=3).text
    assert line.startswith("QUORUMBOOK UNKNOWN - ")
    away = CommandLine("zk://127.0.0.1:1/ledgers", str(tmp_path))
    away.environment["QUORUMBOOK_METADATA_SESSION_TIMEOUT_S"] = "1"
    away("status", "--set", "metadata.session_timeout_s=1", "-o", "json", code=2)


def test_a_watch_looks_again_until_it_is_interrupted(running, tmp_path):
    quorumbook = CommandLine(running.metadata_uri, str(tmp_path))
    with quorumbook.running("status", "--watch", "--every", 0.2, "-o", "jsonl") as process:
        lines = [json.loads(process.stdout.readline()) for _ in range(3)]
    assert [line["status"] for line in lines] == ["warning"] * 3
    assert lines[0]["at_ms"] < lines[2]["at_ms"]
