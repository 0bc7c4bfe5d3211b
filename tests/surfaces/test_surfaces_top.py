"""``quorumbook top`` beside writers: what it says is busy."""

from __future__ import annotations

import json

from quorumbook import sync


def test_the_busiest_stream_is_seen_while_it_is_written(cluster, quorumbook):
    quorumbook("stream", "create", "busy")
    with (
        quorumbook.running("stream", "write", "busy") as writer,
        quorumbook.running("top", "--every", 0.2, "-o", "jsonl") as top,
    ):
        # Until a picture shows it; the time limit of the test ends what never comes.
        while not (seen := json.loads(top.stdout.readline()))["streams"]:
            writer.stdin.write(b"one\ntwo\n")
            writer.stdin.flush()
    assert seen["streams"][0]["stream"] == "/streams/busy"
    assert seen["streams"][0]["entries_per_s"] > 0
    assert seen["ledgers"][0]["stream"] == "/streams/busy"
    assert {row["bookie_id"] for row in seen["bookies"]} == set(cluster.bookie_ids)


def test_a_ledger_with_a_password_of_its_own_is_counted_and_not_read(cluster, quorumbook):
    with (
        sync.BookKeeper(cluster.metadata_uri) as bk,
        bk.create_ledger(password=b"of its own") as ledger,
    ):
        ledger.append(b"one")
        seen = json.loads(quorumbook("top", "--every", 0.2, "-o", "json").text)
        assert seen["open_ledgers"] >= 1
        assert seen["unasked_ledgers"] >= 1
        table = quorumbook("top", "--once", "--every", 0.2).text
    assert "of them not looked at" in table
    assert table.startswith("bookie ")
