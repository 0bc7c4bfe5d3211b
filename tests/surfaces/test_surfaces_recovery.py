"""``quorumbook recovery`` as an operator uses it."""

from __future__ import annotations

import asyncio
import json

import pytest

from quorumbook.cli.main import main
from quorumbook.metadata.cluster import init_cluster
from quorumbook.metadata.election import Election
from quorumbook.metadata.paths import TreePaths
from quorumbook.metadata.underreplication import Check, UnderreplicationQueue
from quorumbook.metadata.uri import open_store


@pytest.fixture
def uri(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return f"sqlite:///{tmp_path}/metadata.db"


@pytest.fixture
def run(uri, capsys):
    def run(*words, code=0):
        assert main(["recovery", *words, "--metadata", uri, "-o", "json"]) == code
        captured = capsys.readouterr()
        return json.loads(captured.out) if code == 0 else captured.err

    return run


@pytest.fixture
def cluster(uri):
    """Run a coroutine on a session of the cluster."""

    def do(main):
        async def with_store():
            store = await open_store(uri, create=True)
            try:
                await main(store)
            finally:
                await store.close()

        asyncio.run(with_store())

    do(init_cluster)
    return do


def test_ledgers_that_lack_copies_are_listed(cluster, run):
    assert run("underreplicated") == []

    async def mark(store):
        queue = UnderreplicationQueue(store)
        await queue.mark(7, ["b1:3181", "b2:3181"], 5)
        await queue.mark(8, [])

    cluster(mark)
    assert run("underreplicated") == [
        {"ledger_id": 7, "missing_on": ["b1:3181", "b2:3181"], "marked_at_ms": 5},
        {"ledger_id": 8, "missing_on": [], "marked_at_ms": None},
    ]


def test_repair_is_switched_off_and_on(cluster, run):
    assert run("status")["enabled"]
    assert run("enable") == {"enabled": True, "changed": False}
    assert run("disable") == {"enabled": False, "changed": True}
    assert run("disable") == {"enabled": False, "changed": False}
    assert not run("status")["enabled"]
    assert run("enable") == {"enabled": True, "changed": True}
    assert run("status")["enabled"]


def test_the_status_says_who_is_auditor_and_what_was_checked(cluster, run):
    nothing = dict.fromkeys(
        ("auditor", "lost_bookie_delay_s", "checked_ledgers_at_ms", "checked_placement_at_ms",
         "checked_replicas_at_ms")
    )  # fmt: skip
    assert run("status") == {"enabled": True, **nothing}
    seen = []

    async def be_auditor(store):
        queue = UnderreplicationQueue(store)
        await queue.set_lost_bookie_delay_s(60)
        for at_ms, check in enumerate(Check, 1):
            await queue.set_checked_at_ms(check, at_ms)
        election = Election(store, TreePaths(store.ledgers_root).auditor_election, "b1:3181")
        election.stand()
        while await election.leader() is None:
            await asyncio.sleep(0.01)
        seen.append(await asyncio.to_thread(run, "status"))
        await election.resign()

    cluster(be_auditor)
    assert seen == [
        {
            "enabled": True,
            "auditor": "b1:3181",
            "lost_bookie_delay_s": 60,
            "checked_ledgers_at_ms": 1,
            "checked_placement_at_ms": 2,
            "checked_replicas_at_ms": 3,
        }
    ]


@pytest.mark.parametrize("command", ["underreplicated", "status", "enable", "disable"])
def test_where_there_is_no_cluster_that_is_said(uri, run, command):
    async def make_empty_store():
        await (await open_store(uri, create=True)).close()

    asyncio.run(make_empty_store())
    error = run(command, code=3)
    assert error.count("\n") == 1
    assert "quorumbook cluster init" in error
