"""``quorumbook recovery`` as an operator uses it."""

from __future__ import annotations

import asyncio
import json

import pytest

from quorumbook.autorecovery.pages import ROOT, RecoveryPages
from quorumbook.cli.main import main
from quorumbook.metadata.cluster import init_cluster
from quorumbook.metadata.election import Election
from quorumbook.metadata.nodes import create_with_parents
from quorumbook.metadata.paths import TreePaths
from quorumbook.metadata.recovery.quarantine import FailedHealing, Quarantine
from quorumbook.metadata.recovery.queue import UnderreplicationQueue
from quorumbook.metadata.recovery.switches import LastCheck, PeriodicCheck
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
def in_cluster(uri):
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


def test_ledgers_that_lack_copies_are_listed(in_cluster, run):
    assert run("underreplicated") == []

    async def mark(store):
        queue = UnderreplicationQueue(store)
        await queue.mark(7, ["b1:3181", "b2:3181"], 5)
        await queue.mark(8, [])

    in_cluster(mark)
    untried = {
        "worker": None,
        "attempts": 0,
        "retry_at": None,
        "quarantined": False,
        "reason": None,
    }
    assert run("underreplicated") == [
        {
            "ledger_id": 7,
            "missing_on": ["b1:3181", "b2:3181"],
            "marked_at": "1970-01-01T00:00:00Z",
            **untried,
        },
        {"ledger_id": 8, "missing_on": [], "marked_at": None, **untried},
    ]


def test_the_list_of_ledgers_that_lack_copies_is_cut_by_bookie_and_counted(in_cluster, run):
    seen = []

    async def mark(store):
        queue = UnderreplicationQueue(store, "w1")
        await queue.mark(7, ["b1:3181", "b2:3181"])
        await queue.mark(8, ["b2:3181"])
        await queue.mark(9, [])
        work = await queue.take()
        seen.append((work.ledger_id, await asyncio.to_thread(run, "underreplicated")))

    in_cluster(mark)

    def ids(*words):
        return [row["ledger_id"] for row in run("underreplicated", *words)]

    assert ids("--missing-on", "b2:3181") == [7, 8]
    assert ids("--not-missing-on", "b1:3181") == [8, 9]
    assert ids("--missing-on", "b2:3181", "--not-missing-on", "b1:3181") == [8]
    assert run("underreplicated", "--count") == {"underreplicated_ledgers": 3}
    assert run("underreplicated", "--count", "--missing-on", "b1:3181") == {
        "underreplicated_ledgers": 1
    }
    taken, rows = seen[0]
    assert {row["ledger_id"]: row["worker"] for row in rows} == {
        ledger_id: "w1" if ledger_id == taken else None for ledger_id in (7, 8, 9)
    }


@pytest.mark.parametrize("form", ["table", "json", "jsonl"])
def test_a_damaged_mark_is_said_behind_the_others(in_cluster, uri, capsys, form):
    async def mark(store):
        queue = UnderreplicationQueue(store)
        for ledger_id in (5, 6, 7):
            await queue.mark(ledger_id, [f"b{ledger_id}:3181"])
        await store.set(TreePaths("/ledgers").underreplicated(5), b"damaged")

    in_cluster(mark)
    assert main(["recovery", "underreplicated", "--metadata", uri, "-o", form]) == 1
    said = capsys.readouterr()
    assert "b6:3181" in said.out
    assert "b7:3181" in said.out
    assert "urL0000000005" in said.err


def test_a_damaged_mark_or_lock_ends_neither_list_nor_count(in_cluster, uri, capsys):
    async def mark(store):
        queue, paths = UnderreplicationQueue(store), TreePaths("/ledgers")
        for ledger_id in (5, 6, 7):
            await queue.mark(ledger_id, [f"b{ledger_id}:3181"])
        await store.set(paths.underreplicated(5), b"damaged")
        await create_with_parents(store, paths.underreplicated_lock(6), b"damaged")
        pages = RecoveryPages(store)
        status, rows = await pages.answer("GET", f"{ROOT}/list_under_replicated_ledger", {})
        pages.close()
        assert status == 200
        assert [row["ledger_id"] for row in rows] == [6, 7, 5]
        assert "urL0000000005" in rows[2]["error"]

    in_cluster(mark)
    words = ["recovery", "underreplicated", "--metadata", uri, "-o", "jsonl"]
    assert main([*words, "--count"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {"underreplicated_ledgers": 2}
    assert "urL0000000005" in said.err
    assert main(words) == 1
    said = capsys.readouterr()
    assert [json.loads(line)["worker"] for line in said.out.splitlines()] == ["?", None]


def test_s69_a_ledger_that_could_not_be_healed_is_listed_with_the_reason(in_cluster, run):
    async def fail(store):
        await UnderreplicationQueue(store).mark(7, ["b1:3181"])
        await Quarantine(store).write(
            FailedHealing(7, "no bookie is left", 5, 10, 20, ("b1:3181",))
        )

    in_cluster(fail)
    (row,) = run("underreplicated")
    assert row["reason"] == "no bookie is left"
    assert (row["attempts"], row["retry_at"], row["quarantined"]) == (
        5, "1970-01-01T00:00:00Z", True,
    )  # fmt: skip


def test_repair_is_switched_off_and_on(in_cluster, run):
    assert run("status")["enabled"]
    assert run("enable") == {"enabled": True, "changed": False}
    assert run("disable") == {"enabled": False, "changed": True}
    assert run("disable") == {"enabled": False, "changed": False}
    assert not run("status")["enabled"]
    assert run("enable") == {"enabled": True, "changed": True}
    assert run("status")["enabled"]


def test_the_status_says_who_is_auditor_and_what_was_checked(in_cluster, run):
    nothing = dict.fromkeys(
        ("auditor", "lost_bookie_delay_s", "checked_ledgers_at", "checked_placement_at",
         "checked_replicas_at")
    )  # fmt: skip
    assert run("status") == {"enabled": True, **nothing}
    seen = []

    async def be_auditor(store):
        queue = UnderreplicationQueue(store)
        await queue.set_lost_bookie_delay_s(60)
        for at_s, check in enumerate(PeriodicCheck, 1):
            await queue.end_check(check, at_s * 1000, await queue.last_check(check))
        election = Election(store, TreePaths(store.ledgers_root).auditor_election, "b1:3181")
        election.stand()
        while await election.leader() is None:
            await asyncio.sleep(0.01)
        seen.append(await asyncio.to_thread(run, "status"))
        await election.resign()

    in_cluster(be_auditor)
    assert seen == [
        {
            "enabled": True,
            "auditor": "b1:3181",
            "lost_bookie_delay_s": 60,
            "checked_ledgers_at": "1970-01-01T00:00:01Z",
            "checked_placement_at": "1970-01-01T00:00:02Z",
            "checked_replicas_at": "1970-01-01T00:00:03Z",
        }
    ]


def test_the_delay_for_lost_bookies_is_shown_and_set(in_cluster, run):
    assert run("delay") == {"lost_bookie_delay_s": None}
    assert run("delay", "600") == {"lost_bookie_delay_s": 600}
    assert run("delay") == {"lost_bookie_delay_s": 600}
    assert "-5" in run("delay", "--", "-5", code=2)


def test_only_an_auditor_that_may_audit_is_triggered(in_cluster, run):
    assert "recovery run" in run("auditor", code=4)
    assert "recovery run" in run("trigger", code=4)
    done = []

    async def be_auditor(store):
        queue = UnderreplicationQueue(store)
        election = Election(store, TreePaths(store.ledgers_root).auditor_election, "b1:3181")
        election.stand()
        while await election.leader() is None:
            await asyncio.sleep(0.01)
        done.append(await asyncio.to_thread(run, "auditor"))
        await queue.set_lost_bookie_delay_s(60)
        before = await queue.lost_bookie_delay()
        done.append(await asyncio.to_thread(run, "trigger"))
        after = await queue.lost_bookie_delay()
        assert (after.seconds, after.revision > before.revision) == (60, True)
        await queue.end_check(PeriodicCheck.REPLICAS, 5, LastCheck(None, None))
        names = ("--check", "replicas", "--check", "ledgers")
        done.append(await asyncio.to_thread(run, "trigger", *names))
        assert await queue.lost_bookie_delay() == after
        assert await queue.checked_at_ms(PeriodicCheck.REPLICAS) == 0
        assert await queue.checked_at_ms(PeriodicCheck.ALL_LEDGERS) == 0
        assert await queue.checked_at_ms(PeriodicCheck.PLACEMENT) is None
        await queue.disable()
        done.append(await asyncio.to_thread(run, "trigger", code=4))
        await election.resign()

    in_cluster(be_auditor)
    assert done[:3] == [
        {"auditor": "b1:3181"},
        {"auditor": "b1:3181", "triggered": ["lost-bookies"]},
        {"auditor": "b1:3181", "triggered": ["replicas", "ledgers"]},
    ]
    assert "recovery enable" in done[3]


@pytest.mark.parametrize(
    "command", ["underreplicated", "status", "enable", "disable", "auditor", "delay", "trigger"]
)
def test_where_there_is_no_cluster_that_is_said(uri, run, command):
    async def make_empty_store():
        await (await open_store(uri, create=True)).close()

    asyncio.run(make_empty_store())
    error = run(command, code=3)
    assert error.count("\n") == 1
    assert "quorumbook cluster init" in error
