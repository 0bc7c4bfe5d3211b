"""Ledger directories of real bookies are swapped, or lost."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from doubles.replicas import assert_fully_replicated
from faults.test_faults_replication import PATIENCE_S, PAYLOADS, command, naming
from quorumbook.errors import ConnectFailedError
from quorumbook.testing import LocalCluster

pytestmark = pytest.mark.faults


async def write(client) -> int:
    async with client.create_ledger() as ledger:
        await ledger.append_batch_nowait(PAYLOADS)
    return ledger.id


def ledgers_of(directory: Path, cluster: LocalCluster, bookie_id: str) -> Path:
    return directory / f"bookie-{cluster.bookie_ids.index(bookie_id) + 1}" / "ledgers"


async def refused(cluster: LocalCluster, ledgers: Path) -> str:
    """Start the bookie of a ledger directory, which must fail; return its last word."""
    bookie_id = cluster.bookie_ids[int(ledgers.parent.name.removeprefix("bookie-")) - 1]
    with pytest.raises(ConnectFailedError):
        await cluster.restart(bookie_id)
    return (ledgers.parent / "bookie.log").read_text().strip().splitlines()[-1]


async def test_r25_swapped_ledger_directories_are_refused_until_they_are_swapped_back(
    tmp_path: Path,
) -> None:
    async with LocalCluster(bookies=3, processes=True, data_dir=str(tmp_path)) as cluster:
        async with cluster.connect() as client:
            ledger_id = await write(client)
        swapped = cluster.bookie_ids[:2]
        one, other = (ledgers_of(tmp_path, cluster, bookie_id) for bookie_id in swapped)
        aside = tmp_path / "aside"
        for bookie_id in swapped:
            await cluster.stop(bookie_id)
        for source, target in ((one, aside), (other, one), (aside, other)):
            os.rename(source, target)
        for ledgers in (one, other):
            reason = await refused(cluster, ledgers)
            assert "cookie" in reason, reason
            assert str(ledgers) in reason, reason
        for source, target in ((one, aside), (other, one), (aside, other)):
            os.rename(source, target)
        for bookie_id in swapped:
            await cluster.restart(bookie_id)
        async with cluster.connect() as client:
            await assert_fully_replicated(client, ledger_id, PAYLOADS)


@pytest.mark.parametrize("is_stamped", [False, True])
async def test_r25_r26_a_lost_ledger_directory_is_refused_or_distrusted_and_heals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stamped: bool
) -> None:
    async with LocalCluster(bookies=4, processes=True, data_dir=str(tmp_path)) as cluster:
        async with cluster.connect() as client:
            ledger_id = await write(client)
            lost = (await client.ledger_metadata(ledger_id)).ensemble[0]
        await cluster.stop(lost)
        ledgers = ledgers_of(tmp_path, cluster, lost)
        shutil.rmtree(ledgers)
        reason = await refused(cluster, ledgers)
        assert "cookie" in reason, reason
        if is_stamped:
            # A journal that is there still would bring everything back.
            shutil.rmtree(ledgers.parent / "journal")
            monkeypatch.setenv("QUORUMBOOK_BOOKIE_STAMP_MISSING_COOKIES", "true")
            await cluster.restart(lost)
        async with cluster.connect() as client:
            if is_stamped:
                # What it lost it calls unknown, so that no recovery cuts anything off.
                with pytest.raises(AssertionError):
                    await assert_fully_replicated(client, ledger_id, PAYLOADS)
            with command(cluster, "recovery", "run"):
                async with asyncio.timeout(PATIENCE_S):
                    while not await is_whole(client, ledger_id):
                        await asyncio.sleep(0.1)
            # With its cookies it gets back what it lost; without, others have taken its place.
            assert await naming(client, lost) == is_stamped


async def is_whole(client, ledger_id: int) -> bool:
    writable, _ = await client.bookies()
    if not set((await client.ledger_metadata(ledger_id)).ensemble) <= writable:
        return False
    try:
        await assert_fully_replicated(client, ledger_id, PAYLOADS)
    except AssertionError:
        return False
    return True
