"""A bookie's garbage collection against a real metadata store: deleted, away, another one."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from datetime import datetime
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest
from bookie_harness import KEY, ask_http, cluster, options_in, real_bookie, running
from click.testing import CliRunner

from doubles.storage_world import run_of
from quorumbook.admin.facts.bookies import BookieFacts, ask_all
from quorumbook.bookie.membership.cluster_ledgers import ClusterLedgers
from quorumbook.bookie.options import HttpOptions
from quorumbook.bookie.server import Bookie
from quorumbook.cli.bookie.commands import _directories_of
from quorumbook.cli.main import root
from quorumbook.env import Env
from quorumbook.errors import ForeignLayoutError, MetadataError, MetadataUnavailableError
from quorumbook.ids import LedgerId
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.metadata.cluster import Layout, read_instance_id
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.nodes import create_with_parents
from quorumbook.metadata.paths import LayoutKind, TreePaths
from quorumbook.metadata.recovery.queue import UnderreplicationQueue
from quorumbook.metadata.store import MetadataStore
from quorumbook.storage.options import GcOptions, ScrubOptions

EAGER = GcOptions(interval_s=0.02, confirm_interval_s=0.02, reserve_size_bytes=0)


async def create(store: MetadataStore, ledger_id: LedgerId) -> None:
    metadata = LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=1,
        write_quorum_size=1,
        ack_quorum_size=1,
        fragments=(Fragment(0, ("b:1",)),),
        password=b"",
    )
    await LedgerManager(store).create(metadata)


async def add(bookie: Bookie, ledger_id: LedgerId) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    handle = bookie.storage.create_handle(ledger_id, KEY)
    run = run_of(ledger_id, range(100), b"x" * 5000)
    bookie.storage.append([(handle, run)], lambda _: done.set_result(None))
    await done


async def passes(bookie: Bookie, count: int) -> None:
    assert bookie.collector is not None
    statistics = bookie.collector.statistics
    start = statistics.passes
    async with asyncio.timeout(60):
        while statistics.passes < start + count:
            await asyncio.sleep(0.01)


def log_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.glob("ledgers/current/*.log"))


async def test_a_ledger_deleted_in_the_cluster_gives_its_disk_space_back(tmp_path: Path) -> None:
    async with cluster() as store:
        for ledger_id in (1, 2):
            await create(store, ledger_id)
        options = options_in(tmp_path, gc=EAGER)
        async with running(Bookie(Env(), options, store)) as bookie:
            for ledger_id in (1, 2):
                await add(bookie, ledger_id)
                await bookie.storage.flush()
            await passes(bookie, 4)
            assert bookie.storage.ledger_ids() == [1, 2]
            full = log_bytes(tmp_path)
            await LedgerManager(store).delete(1)
            await LedgerManager(store).delete(2)
            async with asyncio.timeout(60):
                while log_bytes(tmp_path):
                    await asyncio.sleep(0.01)
            assert full > 1_000_000
            assert bookie.storage.ledger_ids() == []
            await passes(bookie, 2)
            text = bookie.render_metrics().decode()
            assert "bookie_DELETED_LEDGER_COUNT 2.0" in text
            assert "bookie_ACTIVE_ENTRY_LOG_COUNT 0.0" in text


async def command(bookie: Bookie, *words: str) -> dict[str, Any]:
    """Run a command against a bookie's HTTP; return its first row."""
    arguments = ["bookie", *words, f"http://127.0.0.1:{bookie.http_port}", "--output", "json"]
    result = await asyncio.to_thread(CliRunner().invoke, root, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    return cast(dict[str, Any], found[0] if isinstance(found, list) else found)


async def test_the_budget_of_background_work_is_shown_and_changed_while_it_runs(
    tmp_path: Path,
) -> None:
    async with cluster() as store, real_bookie(tmp_path, store, http=HttpOptions()) as bookie:
        # The machine's budget, and what the store says when a session ends.
        budget = bookie._env.background
        budget.rate_bytes = 1000
        assert bookie.http_port is not None
        waiting = asyncio.create_task(budget.take(1_000_000_000, "scrub"))
        await asyncio.sleep(0)
        shown = await command(bookie, "background-io")
        assert shown["rate_bytes"] == 1000
        assert 0 < shown["waiting_bytes"] <= 1_000_000_000
        changed = await command(bookie, "background-io", "--rate-bytes", "0")
        assert changed["rate_bytes"] == 0
        await waiting
        assert (await command(bookie, "background-io"))["taken_bytes"] == {"scrub": 1_000_000_000}
        await command(bookie, "background-io", "--rate-bytes", "5M")
        assert budget.rate_bytes == 5 * 1024 * 1024
        text = bookie.render_metrics().decode()
        assert 'background_io_bytes{whom="scrub"} 1e+09' in text
        assert "background_io_rate_bytes 5.24288e+06" in text
        words = ["bookie", "background-io", "http://127.0.0.1:1", "--rate-bytes", "much"]
        refused = await asyncio.to_thread(CliRunner().invoke, root, words, standalone_mode=False)
        assert "background.io_rate_bytes" in refused.output
        path = "/api/v1/background_io?rate_bytes=-5"
        status, body = await ask_http(bookie.http_port, f"PUT {path} HTTP/1.1\r\n\r\n")
        assert status == 400
        assert "-5" in body


async def test_garbage_collection_is_asked_for_held_back_and_explained_over_http(
    tmp_path: Path,
) -> None:
    async with cluster() as store:
        gc = GcOptions(confirm_interval_s=0, reserve_size_bytes=0)
        options = options_in(tmp_path, gc=gc, http=HttpOptions())
        async with running(Bookie(Env(), options, store)) as bookie:
            await create(store, 1)
            await add(bookie, 1)
            await add(bookie, 2)
            await bookie.storage.flush()

            assert (await command(bookie, "explain-gc"))["fate"] == "it is being written"
            assert (await command(bookie, "gc", "--suspend"))["is_suspended"] is True
            assert (await command(bookie, "gc", "--resume"))["is_suspended"] is False
            assert bookie.collector is not None
            for _ in range(3):
                planned = await command(bookie, "gc", "--major", "--dry-run")
                assert (planned["missing_ledgers"], planned["removable_logs"]) == (1, 0)
            assert bookie.storage.ledger_ids() == [1, 2]
            assert bookie.collector.statistics.passes == 0
            with mock.patch.object(
                LedgerManager, "exists", side_effect=MetadataUnavailableError("away")
            ):
                path = "/api/v1/bookie/gc_plan"
                status, body = await ask_http(bookie.http_port, f"GET {path} HTTP/1.1\r\n\r\n")
                assert (status, "away" in body) == (503, True)
            for _ in range(2):
                done = bookie.collector.statistics.passes
                await command(bookie, "gc", "--minor")
                async with asyncio.timeout(60):
                    while bookie.collector.statistics.passes == done:
                        await asyncio.sleep(0.01)
            assert bookie.storage.ledger_ids() == [1]
            assert bookie.collector.statistics.minor_compactions == 2
            words = ["bookie", "explain-gc", "http://127.0.0.1:1"]
            nobody = await asyncio.to_thread(CliRunner().invoke, root, words, standalone_mode=False)
            assert nobody.return_value != 0
            assert "bookie ls" in nobody.output


@pytest.mark.parametrize(
    ("body", "is_suspended", "compactions"),
    [
        ('{"forceMajor":true}', False, (0, 1)),
        ('{"forceMajor":"true","forceMinor":"false"}', False, (0, 1)),
        ('{"forceMajor":false,"forceMinor":true}', False, (1, 0)),
        ('{"forceMajor":false}', False, (1, 0)),
        ('{"forceMajor":false,"forceMinor":false}', False, (0, 0)),
        ('{"forceMajor":true}', True, (0, 0)),
        ("", False, (0, 0)),
    ],
)
async def test_a_collection_is_asked_for_with_the_peers_body(
    tmp_path: Path, body: str, is_suspended: bool, compactions: tuple[int, int]
) -> None:
    async with cluster() as store, real_bookie(tmp_path, store, http=HttpOptions()) as bookie:
        assert bookie.collector is not None
        if is_suspended:
            bookie.collector.suspend()
        request = f"PUT /api/v1/bookie/gc HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        assert bookie.http_port is not None
        status, answer = await ask_http(bookie.http_port, request)
        assert (status, json.loads(answer)) == (200, {"triggered": True})
        await passes(bookie, 1)
        statistics = bookie.collector.statistics
        assert (statistics.minor_compactions, statistics.major_compactions) == compactions


async def test_the_peers_body_asks_for_no_compaction_that_is_suspended(tmp_path: Path) -> None:
    async with cluster() as store, real_bookie(tmp_path, store, http=HttpOptions()) as bookie:
        collector, body = bookie.collector, '{"forceMinor": false}'
        assert collector is not None
        collector.suspend()
        head = f"PUT /api/v1/bookie/gc HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
        assert bookie.http_port is not None
        assert (await ask_http(bookie.http_port, head + body))[0] == 200
        await passes(bookie, 1)
        collector.resume()
        collector.trigger()
        await passes(bookie, 1)
        assert collector.statistics.major_compactions == 0


@pytest.mark.parametrize("body", ["forceMajor", "[true]", '"x"', "{", "[" * 5000])
async def test_a_body_that_is_not_an_object_is_refused_and_starts_nothing(
    tmp_path: Path, body: str
) -> None:
    async with cluster() as store, real_bookie(tmp_path, store, http=HttpOptions()) as bookie:
        request = f"PUT /api/v1/bookie/gc HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n{body}"
        assert bookie.http_port is not None
        assert (await ask_http(bookie.http_port, request))[0] == 400
        assert bookie.collector is not None
        # The machine's budget, and what the store says when a session ends.
        assert not bookie.collector._wake.is_set()
        assert bookie.collector.statistics.passes == 0


#: The hierarchical layout has both trees; every other pair has nodes that one of them lacks.
KINDS_AND_FOREIGN = [
    (kind, foreign)
    for kind in LayoutKind
    for foreign in LayoutKind
    if kind is not foreign and (kind is not LayoutKind.HIERARCHICAL or foreign is LayoutKind.FLAT)
]


@pytest.mark.parametrize(("kind", "foreign"), KINDS_AND_FOREIGN)
async def test_no_ledger_is_deleted_while_some_lie_in_another_layout(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: LayoutKind, foreign: LayoutKind
) -> None:
    # Of the hierarchical layout's two families the legacy one has only the long one against it.
    is_long = (kind, foreign) == (LayoutKind.LEGACY_HIERARCHICAL, LayoutKind.HIERARCHICAL)

    def path(ledger_id: LedgerId) -> str:
        return TreePaths(store.ledgers_root).ledger(foreign, ledger_id + 2**40 * is_long)

    async with cluster() as store:
        await store.set(TreePaths(store.ledgers_root).layout, Layout(kind).encode())
        options = options_in(tmp_path, gc=EAGER)
        async with running(Bookie(Env(), options, store)) as bookie:
            assert bookie.collector is not None
            for ledger_id in (1, 2):
                await create_with_parents(store, path(ledger_id), b"a ledger")
                await add(bookie, ledger_id)
            await bookie.storage.flush()
            bookie.collector.trigger(major=True)
            await passes(bookie, 5)
            assert bookie.storage.ledger_ids() == [1, 2]
            assert bookie.collector.statistics.deleted_ledgers == 0
            assert f"LAYOUT says {kind.value}, but ledger" in caplog.text
            with pytest.raises(ForeignLayoutError, match=r"docs/pulsar\.md"):
                await bookie.collector.plan()
            # What was written by mistake is gone, and its empty parents harm nobody.
            for ledger_id in (1, 2):
                await store.delete(path(ledger_id))
            async with asyncio.timeout(60):
                while bookie.storage.ledger_ids():
                    await asyncio.sleep(0.01)


async def test_a_ledger_that_another_layout_takes_in_during_a_listing_ends_it(
    tmp_path: Path,
) -> None:
    async with cluster() as store:
        await create(store, 1)
        ledgers = LedgerManager(store)
        listing = ledgers.list()
        assert await anext(listing) == 1
        path = TreePaths(store.ledgers_root).ledger(LayoutKind.FLAT, 7)
        await create_with_parents(store, path, b"a ledger")
        with pytest.raises(ForeignLayoutError, match="ledger 7 lies where the flat layout"):
            await anext(listing)


async def test_scrub_is_asked_for_over_http_and_says_how_far_it_is(tmp_path: Path) -> None:
    async with cluster() as store:
        scrub = ScrubOptions(interval_s=0, rate_bytes=0)
        async with real_bookie(tmp_path, store, http=HttpOptions(), scrub=scrub) as bookie:
            await add(bookie, 1)
            await bookie.storage.flush()
            shown = await command(bookie, "scrub")
            assert (shown["is_running"], shown["done_bytes"]) == (False, 0)
            assert shown["total_bytes"] > 100 * 5000
            assert shown["finished_at"] is None
            # It waits for its share of the budget.
            bookie._env.background.rate_bytes = 1
            assert (await command(bookie, "scrub", "--now"))["is_running"]
            # The machine's budget, and what the store says when a session ends.
            bookie._env.background.rate_bytes = 0
            async with asyncio.timeout(60):
                while (shown := await command(bookie, "scrub"))["is_running"]:
                    await asyncio.sleep(0.01)
            assert datetime.fromisoformat(shown["finished_at"]).year > 2000
            assert shown["damaged_ledgers"] == shown["ledgers_in_limbo"] == 0
            assert bookie.healing is not None
            assert bookie.healing.scrubber.statistics.checked_bytes == shown["total_bytes"]
            assert bookie.http_port is not None
            path = "/api/v1/bookie/scrub/er"
            assert (await ask_http(bookie.http_port, f"PUT {path} HTTP/1.1\r\n\r\n"))[0] == 404


async def test_r27_of_another_cluster_nothing_is_believed(tmp_path: Path) -> None:
    async with cluster() as store:
        ledgers = ClusterLedgers(store, await read_instance_id(store), "b:1")
        await create(store, 1)
        assert [ledger_id async for ledger_id in ledgers.listing()] == [1]
        assert await ledgers.missing([1, 2]) == [2]
        await LedgerManager(store).delete(1)
        await store.delete("/ledgers/INSTANCEID")
        with pytest.raises(MetadataError):
            await ledgers.missing([1])
        with pytest.raises(MetadataError):
            _ = [ledger_id async for ledger_id in ledgers.listing()]
        await store.create("/ledgers/INSTANCEID", b"another")
        with pytest.raises(MetadataError, match="another cluster"):
            await ledgers.missing([1])
        with pytest.raises(MetadataError, match="another cluster"):
            _ = [ledger_id async for ledger_id in ledgers.listing()]


async def test_r27_s59_a_bookie_whose_metadata_store_is_away_deletes_nothing(
    tmp_path: Path,
) -> None:
    async with cluster() as store:
        options = options_in(tmp_path, gc=EAGER)
        async with running(Bookie(Env(), options, store)) as bookie:
            away = mock.AsyncMock(side_effect=MetadataUnavailableError("away"))
            with mock.patch.object(LedgerManager, "exists", away):
                await add(bookie, 1)
                await bookie.storage.flush()
                await passes(bookie, 5)
                assert away.await_count
                assert bookie.storage.ledger_ids() == [1]
            await passes(bookie, 5)
            assert bookie.storage.ledger_ids() == []


async def test_r27_the_end_of_a_session_shows(tmp_path: Path) -> None:
    async with cluster() as store:
        ledgers = ClusterLedgers(store, await read_instance_id(store), "b:1")
        before = ledgers.session()
        assert ledgers.session() == before
        # The machine's budget, and what the store says when a session ends.
        ledgers._session_ended()
        assert ledgers.session() != before
        ledgers.close()


async def test_r28_a_copy_is_surplus_only_if_its_ledger_is_closed_unmarked_and_kept_elsewhere(
    tmp_path: Path,
) -> None:
    async with cluster() as store:
        ledgers = LedgerManager(store)
        for ledger_id in range(1, 6):
            await create(store, ledger_id)
        for ledger_id in (1, 2, 4, 5):
            metadata, version = await ledgers.read(ledger_id)
            await ledgers.write(metadata.closed(9, 900), version)
        for ledger_id in (1, 3, 4):
            metadata, version = await ledgers.read(ledger_id)
            moved = dataclasses.replace(metadata, fragments=(Fragment(0, ("b:2",)),))
            await ledgers.write(moved, version)
        metadata, version = await ledgers.read(5)
        half = (Fragment(0, ("b:1",)), Fragment(5, ("b:2",)))
        await ledgers.write(dataclasses.replace(metadata, fragments=half), version)
        await UnderreplicationQueue(store).mark(4, [])
        mine = ClusterLedgers(store, await read_instance_id(store), "b:1")
        assert await mine.surplus(list(range(1, 8))) == [1]
        await store.set("/ledgers/INSTANCEID", b"another")
        with pytest.raises(MetadataError, match="another cluster"):
            await mine.surplus([1])


async def test_r28_s60_a_bookie_drops_its_copy_when_the_worker_is_done(tmp_path: Path) -> None:
    async with cluster() as store:
        gc = dataclasses.replace(EAGER, surplus_interval_s=0.01, surplus_grace_s=0.01)
        options = options_in(tmp_path, gc=gc)
        async with running(Bookie(Env(), options, store)) as bookie:
            await create(store, 1)
            await add(bookie, 1)
            await bookie.storage.flush()
            queue = UnderreplicationQueue(store, "worker")
            await queue.mark(1, [])
            work = await queue.take()
            assert work is not None
            ledgers = LedgerManager(store)
            metadata, version = await ledgers.read(1)
            await ledgers.write(metadata.closed(9, 900), version)
            await store.delete(TreePaths(store.ledgers_root).underreplicated(1))
            await passes(bookie, 5)
            assert bookie.collector is not None
            assert bookie.collector.statistics.surplus_copies == 1
            assert bookie.storage.last_entry_id(1) >= 0, "the worker holds the lock"
            await queue.release(work)
            async with asyncio.timeout(60):
                while bookie.storage.last_entry_id(1) >= 0:
                    await passes(bookie, 1)
            assert bookie.collector.statistics.dropped_copies == 1
            assert await store.children("/ledgers/underreplication/locks") == []
            assert bookie.storage.ledger_ids() == [1], "its fence is kept"


async def test_each_directory_is_shown_with_its_disk_and_its_speed(tmp_path: Path) -> None:
    async with cluster() as store:
        several = {"journal_directories": (f"{tmp_path}/journal", f"{tmp_path}/journal2")}
        async with real_bookie(tmp_path, store, http=HttpOptions(), **several) as bookie:
            await add(bookie, 1)
            await bookie.storage.flush()
            assert bookie.http_port is not None
            path = "/api/v1/bookie/directories"
            status, body = await ask_http(bookie.http_port, f"GET {path} HTTP/1.1\r\n\r\n")
            assert status == 200
            rows = {(row["use"], row["path"]): row for row in json.loads(body)}
            first, second = (
                rows["journal", f"{tmp_path}/{name}"] for name in ("journal", "journal2")
            )
            ledgers = rows["ledgers", f"{tmp_path}/ledgers"]
            assert len(rows) == 3
            assert (first["syncs"], second["syncs"], ledgers["syncs"]) == (0, 1, 1)
            assert ledgers["sync_ms_mean"] > 0
            assert 0 < ledgers["free_bytes"] <= ledgers["total_bytes"]
            text = bookie.render_metrics().decode()
            label = f'path="{tmp_path}/ledgers",use="ledgers"'
            assert f"bookie_directory_sync_count{{{label}}} 1.0" in text
            assert f'bookie_directory_free_bytes{{path="{tmp_path}/ledgers"}}' in text
            known = BookieFacts("one", "writable", http=f"http://127.0.0.1:{bookie.http_port}")
            listed = _directories_of((await ask_all((known,), disks=True))[0])
            assert [row["path"] for row in listed] == [row["path"] for row in json.loads(body)]
            assert {row["bookie_id"] for row in listed} == {"one"}
        [gone] = _directories_of((await ask_all((known,), disks=True))[0])
        assert "no answer" in str(gone["error"])
        [silent] = await ask_all((BookieFacts("two", "writable"),), disks=True)
        assert "http.enabled" in str(_directories_of(silent)[0]["error"])
