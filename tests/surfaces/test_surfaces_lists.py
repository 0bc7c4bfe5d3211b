"""Long lists of ledgers and streams: filters, order, pages."""

from __future__ import annotations

import json


def _rows(done):
    return [json.loads(line) for line in done.text.splitlines()]


def test_ledgers_are_found_by_size_age_and_metadata(quorumbook):
    ids = []
    for count, app in ((1, "billing"), (5, "mail"), (3, "billing")):
        words = ("ledger", "write", "--custom", f"app={app}")
        ids.append(int(quorumbook(*words, stdin=b"12345678\n" * count).text))
    waiting = int(quorumbook("ledger", "create", "--custom", "app=billing").text)

    def found(*words):
        listed = quorumbook("ledger", "ls", "-o", "jsonl", "--find", "app=", *words)
        return [row["ledger_id"] for row in _rows(listed)]

    assert found() == [*ids, waiting]
    assert found("--min-size", 20) == ids[1:]
    assert found("--max-size", 20, "--state", "closed") == ids[:1]
    assert found("--custom", "app=billing", "--sort", "-bytes") == [ids[2], ids[0], waiting]
    assert found("--older-than", "1h") == []
    assert found("--newer-than", "1h", "--sort", "entries") == [ids[0], ids[2], ids[1], waiting]
    assert found("--find", "MAIL") == [ids[1]]
    page = quorumbook("ledger", "ls", "-o", "jsonl", "--find", "app=", "--limit", 2)
    assert [row["ledger_id"] for row in _rows(page)] == ids[:2]
    assert "--page 2 shows the next 2" in page.err
    assert found("--limit", 2, "--page", 2) == [ids[2], waiting]
    row = _rows(quorumbook("ledger", "ls", "-o", "jsonl", "--custom", "app=mail"))[0]
    assert row["created"].endswith("Z")
    table = quorumbook("ledger", "ls", "--custom", "app=mail").text
    assert "ago" in table or "now" in table
    assert "no ledger fits" in quorumbook("ledger", "ls", "--min-size", "1G").err


def test_streams_are_found_by_size_age_and_policy(quorumbook):
    for name, count, words in (
        ("few", 2, ()),
        ("many", 40, ("--policy", "retain_time_s=7d")),
        ("none", 0, ("--policy", "retain_time_s=1d")),
    ):
        quorumbook("stream", "create", f"lists/{name}", *words)
        if count:
            quorumbook("stream", "write", f"lists/{name}", stdin=b"record\n" * count)

    def found(*words):
        names = quorumbook("stream", "ls", "lists/", *words).text.split()
        return [name.removeprefix("lists/") for name in names]

    assert found() == ["few", "many", "none"]
    assert found("--sort", "-bytes") == ["many", "few", "none"]
    assert found("--sort", "completed", "--limit", 1, "--page", 2) == ["many"]
    assert found("--min-size", 1, "--max-size", 300) == ["few"]
    assert found("--policy", "retain_time_s") == ["many", "none"]
    assert found("--policy", "retain_time_s=168h") == ["many"]
    assert found("--newer-than", "1h", "--limit", 2) == ["few", "many"]
    assert found("--older-than", "1h") == []
    table = quorumbook("stream", "ls", "lists/", "--long").text.splitlines()
    assert table[0].split()[:3] == ["name", "segments", "records"]
    assert table[2].split()[:3] == ["lists/many", "1", "40"]
    assert "ago" in table[1] or "now" in table[1]
    rows = json.loads(quorumbook("stream", "ls", "lists/", "--long", "-o", "json").text)
    assert [(row["records"], row["completed"] is None) for row in rows] == [
        (2, False), (40, False), (0, True),
    ]  # fmt: skip
    assert rows[0]["created"].endswith("Z")
