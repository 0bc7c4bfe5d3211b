"""A bookie's garbage collection against a real metadata store: deleted, away, another one."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest
from bookie_harness import KEY, cluster, options_in, running
from click.testing import CliRunner

from doubles.storage_world import run_of
from quorumbook.bookie.garbage import ClusterLedgers
from quorumbook.bookie.server import Bookie
from quorumbook.cli.main import root
from quorumbook.env import Env
from quorumbook.errors import MetadataError, MetadataUnavailableError
from quorumbook.ids import LedgerId
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.metadata.cluster import read_instance_id
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.store import MetadataStore
from quorumbook.storage.gc.decisions import GcOptions

EAGER = GcOptions(
    interval_s=0.02, confirm_interval_s=0.02, compaction_rate_bytes=0, reserve_size_bytes=0
)


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
    async with asyncio.timeout(20):
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
            async with asyncio.timeout(20):
                while log_bytes(tmp_path):
                    await asyncio.sleep(0.01)
            assert full > 1_000_000
            assert bookie.storage.ledger_ids() == []
            await passes(bookie, 2)
            text = bookie.render_metrics().decode()
            assert "bookie_DELETED_LEDGER_COUNT 2.0" in text
            assert "bookie_ACTIVE_ENTRY_LOG_COUNT 0.0" in text


async def test_garbage_collection_is_asked_for_held_back_and_explained_over_http(
    tmp_path: Path,
) -> None:
    async with cluster() as store:
        gc = GcOptions(confirm_interval_s=0, compaction_rate_bytes=0, reserve_size_bytes=0)
        options = options_in(tmp_path, gc=gc, http_port=-1)
        async with running(Bookie(Env(), options, store)) as bookie:
            await create(store, 1)
            await add(bookie, 1)
            await add(bookie, 2)
            await bookie.storage.flush()

            async def command(*words: str) -> dict[str, Any]:
                address = f"127.0.0.1:{bookie.http_port}"
                arguments = ["bookie", *words, "--http", address, "--output", "json"]
                result = await asyncio.to_thread(CliRunner().invoke, root, arguments)
                assert result.exit_code == 0, result.output
                found = json.loads(result.stdout)
                return cast(dict[str, Any], found[0] if isinstance(found, list) else found)

            assert (await command("explain-gc"))["fate"] == "it is being written"
            assert (await command("gc", "--suspend"))["is_suspended"] is True
            assert (await command("gc", "--resume"))["is_suspended"] is False
            assert bookie.collector is not None
            for _ in range(2):
                done = bookie.collector.statistics.passes
                await command("gc", "--minor")
                async with asyncio.timeout(20):
                    while bookie.collector.statistics.passes == done:
                        await asyncio.sleep(0.01)
            assert bookie.storage.ledger_ids() == [1]
            assert bookie.collector.statistics.minor_compactions == 2
            words = ["bookie", "explain-gc", "--http", "127.0.0.1:1"]
            nobody = await asyncio.to_thread(CliRunner().invoke, root, words, standalone_mode=False)
            assert nobody.return_value != 0
            assert "bookie ls" in nobody.output


async def test_r27_of_another_cluster_nothing_is_believed(tmp_path: Path) -> None:
    async with cluster() as store:
        ledgers = ClusterLedgers(store, await read_instance_id(store))
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
        ledgers = ClusterLedgers(store, await read_instance_id(store))
        before = ledgers.session()
        assert ledgers.session() == before
        ledgers._session_ended()
        assert ledgers.session() != before
        ledgers.close()
