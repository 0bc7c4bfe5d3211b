"""The slowest operations of a bookie: which are kept, and that their stages are all of the time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from bookie_harness import ask_http, cluster, real_bookie, serve, v2_adds
from click.testing import CliRunner

import quorumbook
from doubles.waiting import until
from quorumbook.bookie import slow_operations
from quorumbook.bookie.options import HttpOptions
from quorumbook.bookie.server import Bookie
from quorumbook.bookie.slow_operations import (
    KEPT,
    Asked,
    SlowOperations,
    add_stages,
    read_stages,
)
from quorumbook.cli.main import root
from quorumbook.protocol.requests import Read
from quorumbook.protocol.v3 import client as v3
from quorumbook.storage.times import GroupTimes, JobTimes

MS, MINUTE = 1_000_000, 60 * 1_000_000_000
ASKED = Asked("127.0.0.1:1", 7, 0)


def add(slow: SlowOperations, took_ms: int, now_ns: int = MINUTE) -> None:
    """Note an add if it is wanted, as the bookie does."""
    slow.adds.turn(now_ns)
    if took_ms * MS > slow.adds.floor_ns:
        at_ns = (now_ns - took_ms * MS, None, now_ns, now_ns)
        slow.note_add(ASKED, at_ns, entries=1, size_bytes=1)


def took(slow: SlowOperations, now_ns: int = MINUTE) -> list[object]:
    return [row["took_ms"] for row in slow.rows(now_ns, 0)]


def test_the_slowest_are_kept_and_what_is_quick_is_not_looked_at():
    slow = SlowOperations()
    for took_ms in (1, *range(2, 100)):
        add(slow, took_ms)
    assert took(slow) == list(range(99, 99 - KEPT, -1))
    assert slow.adds.floor_ns == (100 - KEPT) * MS
    add(slow, 50)
    assert len(took(slow)) == KEPT
    add(slow, 500)
    assert took(slow)[0] == 500
    assert took(slow)[-1] == 100 - KEPT + 1


def test_a_window_keeps_the_one_before_it_and_no_older_one():
    slow = SlowOperations()
    for took_ms in range(2, 60):
        add(slow, took_ms)
    # Behind ten minutes little is enough again.
    add(slow, 5, now_ns=12 * MINUTE)
    assert took(slow, 12 * MINUTE) == [*range(59, 59 - KEPT, -1), 5]
    add(slow, 3, now_ns=23 * MINUTE)
    assert took(slow, 23 * MINUTE) == [5, 3]
    assert took(slow, 60 * MINUTE) == []


def test_a_journal_group_turns_the_windows_of_all_kinds():
    slow = SlowOperations()
    for took_ms in range(2, 60):
        add(slow, took_ms)
    group = GroupTimes(11 * MINUTE, 11 * MINUTE + 1, 11 * MINUTE + 2, 11 * MINUTE + 3, 1, 1)
    slow.journal_group(group)
    assert slow.adds.floor_ns == MS


def test_the_stages_of_an_add_are_all_of_its_time():
    group = GroupTimes(
        began_ns=30, written_ns=45, synced_ns=100, told_ns=107, requests=3, size_bytes=9
    )
    stages = add_stages(10, 12, group, 109, 110)
    assert stages == {
        "admission": 2, "journal_wait": 18, "journal_write": 15, "journal_sync": 55, "loop": 7,
        "memory": 2, "answer": 1,
    }  # fmt: skip
    assert sum(stages.values()) == 100
    # Answered before the sync, and a group that was over before the add came.
    early = add_stages(10, 12, group._replace(synced_ns=0, told_ns=50), 52, 53)
    assert (early["journal_sync"], sum(early.values())) == (0, 43)
    assert add_stages(200, 240, group, 260, 261) == {"admission": 40, "answer": 1}


def test_the_stages_of_a_read_are_all_of_its_time():
    stages = read_stages(10, 15, JobTimes(began_ns=20, ended_ns=50, disk_ns=22), 60)
    assert stages == {
        "admission": 5, "worker_wait": 5, "index": 8, "disk": 22, "loop": 10,
    }  # fmt: skip
    assert read_stages(10, 60, None, 60) == {"admission": 50}


def test_a_sync_that_waits_for_a_disk_is_the_sync_of_its_group_and_a_write_is_none():
    slow = SlowOperations()
    slow.journal_group(GroupTimes(0, 5 * MS, 0, 6 * MS, 1, 10))
    assert took(slow) == []
    slow.journal_group(GroupTimes(0, 5 * MS, 45 * MS, 46 * MS, 4, 10))
    (row,) = slow.rows(50 * MS, 1000)
    assert row == {
        "kind": "sync", "at_ms": 995, "took_ms": 45.0, "entries": 4, "bytes": 10,
        "stages_ms": {"journal_write": 5.0, "journal_sync": 40.0},
    }  # fmt: skip


async def test_a_bookie_tells_where_the_time_of_adds_reads_and_syncs_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow_operations, "_LEAST_NS", 0)
    sizes = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
    how = {"bookie_id": "b", "http": HttpOptions()}
    async with cluster("slow") as store:
        async with real_bookie(tmp_path, store, **how), quorumbook.connect("memory://slow") as bk:
            async with bk.create_ledger(**sizes) as writer:
                await writer.append_batch([b"x" * 100] * 10)
        async with real_bookie(tmp_path, store, **how) as bookie:
            async with quorumbook.connect("memory://slow") as bk:
                async with bk.create_ledger(**sizes) as second:
                    await second.append(b"y")
                # From disk: the bookie was started again.
                async with await bk.open_ledger(writer.id) as reader:
                    assert len([each async for each in reader.read(0, 9)]) == 10
            await _look(bookie, second.id)


async def test_a_wait_that_the_client_wanted_makes_no_read_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serve() as server:
        clock, hour_ns = server.env.clock, 3600 * 1_000_000_000
        client, reader = await server.connect(), await server.connect()
        client.send(v2_adds(1, [0, 1]))
        await client.add_codes(2)
        reads, pumped = server.operations.reads, []
        pump = reads.pump
        monkeypatch.setattr(reads, "pump", lambda each: (pumped.append(each), pump(each)))
        reader.send(v3.encode_read(7, 1, 1, previous_lac=0, timeout_ms=60_000))
        await until(lambda: server.metrics.long_polls_waiting == 1)
        before_ns = clock.now_ns()
        monkeypatch.setattr(type(clock), "now_ns", lambda _: before_ns + hour_ns)
        server.metrics.slow.reads.turn(clock.now_ns())
        client.send(v2_adds(1, [2], lac=1))
        await reader.v3_answer()
        # One that brings the next entry along, and a read behind it in the same sweep.
        connection = pumped[-1]
        poll = Read(3, 8, 1, -1, previous_lac=0, is_piggyback=True)
        reads.enqueue(connection, (poll, before_ns, True, False))
        reads.enqueue(connection, (Read(3, 9, 1, 0), clock.now_ns(), None, False))
        reads.pump(connection)
        assert [(await reader.v3_answer()).txn_id for _ in range(2)] == [8, 9]
        took = [row["took_ms"] for row in server.metrics.slow.rows(clock.now_ns(), 0)
                if row["kind"] == "read"]  # fmt: skip
        assert took == []
        assert server.metrics.read.succeeded.count == 2


async def _look(bookie: Bookie, ledger_id: int) -> None:
    assert bookie.http_port is not None
    status, text = await ask_http(bookie.http_port, "GET /api/v1/bookie/slow HTTP/1.1\r\n\r\n")
    assert status == 200
    rows = json.loads(text)["operations"]
    kinds = {row["kind"]: row for row in rows}
    assert {"add", "read", "sync"} == kinds.keys()
    for row in rows:
        assert sum(row["stages_ms"].values()) == pytest.approx(row["took_ms"], abs=0.01), row
    assert kinds["add"]["stages_ms"]["journal_sync"] > 0
    assert kinds["add"]["ledger_id"] == ledger_id
    assert any("disk" in row["stages_ms"] for row in rows if row["kind"] == "read")
    words = ["bookie", "slow", f"http://127.0.0.1:{bookie.http_port}", "--kind", "sync"]
    result = await asyncio.to_thread(CliRunner().invoke, root, [*words, "-o", "json"])
    assert {row["kind"] for row in json.loads(result.stdout)} == {"sync"}
    shown = await asyncio.to_thread(CliRunner().invoke, root, words)
    assert "journal sync" in shown.stdout
    for request, code in (("PUT /api/v1/bookie/slow", 405), ("GET /api/v1/bookie/slowly", 404)):
        assert (await ask_http(bookie.http_port, f"{request} HTTP/1.1\r\n\r\n"))[0] == code
