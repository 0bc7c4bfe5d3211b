"""Racks and labels from the command line, with real bookies."""

from __future__ import annotations

import json

from quorumbook.testing import LocalCluster
from surfaces.conftest import CommandLine

SHAPE = ("--ensemble-size", 2, "--write-quorum", 2, "--ack-quorum", 2)


def rows(done) -> list[dict]:
    return [json.loads(line) for line in done.text.splitlines()]


def test_racks_and_labels_from_the_command_line(tmp_path):
    with LocalCluster(bookies=2, processes=True) as cluster:
        run = CommandLine(cluster.metadata_uri, str(tmp_path))
        slow = cluster.bookie_ids
        fast = [cluster.add(tier="ssd", site="a") for _ in range(2)]
        one, two, three, four = cluster.bookie_ids
        run("cluster", "racks", "set", f"{one}=/r1", "127.0.0.1=/r2", "10.0.0.9=/r3")
        listed = rows(run("cluster", "racks", "ls", "-o", "jsonl"))
        assert {r["bookie_id"]: (r["location"], r["row"]) for r in listed if "bookie_id" in r} == {
            one: ("/r1", one),
            **dict.fromkeys((two, three, four), ("/r2", "127.0.0.1")),
        }
        assert {"location": "/r3", "row": "10.0.0.9"} in listed
        bookies = {r["bookie_id"]: r for r in rows(run("bookie", "ls", "-o", "jsonl"))}
        assert bookies[one]["rack"] == "/r1"
        assert "labels" not in bookies[one]
        assert bookies[three]["labels"] == "site=a,tier=ssd"

        # The odd rack is in every ensemble; a ledger with labels is on bookies that carry them.
        for _ in range(3):
            made = run("ledger", "write", *SHAPE, stdin=b"x\n").text.strip()
            (shown,) = rows(run("ledger", "show", made, "-o", "jsonl"))
            assert one in json.dumps(shown)
        made = run("ledger", "write", *SHAPE, "--bookie-label", "tier=ssd", stdin=b"x\n")
        (shown,) = rows(run("ledger", "show", made.text.strip(), "-o", "jsonl"))
        assert not any(each in json.dumps(shown) for each in slow[:2])
        assert all(each in json.dumps(shown) for each in fast)

        refused = run(
            "ledger", "create", "--ensemble-size", 3, "--bookie-label", "tier=ssd", code=4
        )
        assert "3 bookies with the labels tier=ssd is wanted, 2 of 4 writable" in refused.err
        wrong = run("ledger", "create", "--bookie-label", "tier", code=2)
        assert "--bookie-label" in wrong.err
        assert run("cluster", "racks", "set", "h=west", code=2).err.count("\n") == 1
        run("cluster", "racks", "remove", one, "127.0.0.1", "10.0.0.9")
        listed = rows(run("cluster", "racks", "ls", "-o", "jsonl"))
        assert [set(row) for row in listed] == [{"bookie_id"}] * 4
