"""Replication by real processes that are killed in the middle; every copy compared at the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from doubles.replicas import assert_fully_replicated
from quorumbook.client.context import client_store
from quorumbook.metadata.recovery.quarantine import Quarantine
from quorumbook.metadata.recovery.queue import UnderreplicationQueue
from quorumbook.testing import LocalCluster

pytestmark = pytest.mark.faults

PATIENCE_S = 60.0
LEDGERS = 15
PAYLOADS = [b"%06d" % n * 40 for n in range(120)]
#: The first process gets so little that it cannot be done before it is killed.
SLOW = [
    *("--set", f"background.io_rate_bytes={3 * 3 * 240 * 120}"),
    *("--set", "recovery.idle_io_rate_bytes=0"),
]


@contextlib.contextmanager
def command(cluster, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of ours until the end of the block, if it has not ended by then."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "quorumbook", *words, "--metadata", cluster.metadata_uri),
            *("--set", "metadata.session_timeout_s=1", "-o", "jsonl"),
        ],
        stdout=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


async def fill(client) -> list[int]:
    async def one(number: int) -> int:
        shape = (3, 2) if number % 3 else (3, 3)
        async with client.create_ledger(
            ensemble_size=shape[0], write_quorum_size=shape[1], ack_quorum_size=2
        ) as ledger:
            await ledger.append_batch_nowait(PAYLOADS)
        return ledger.id

    return list(await asyncio.gather(*(one(number) for number in range(LEDGERS))))


async def naming(client, bookie_id) -> int:
    return sum([bookie_id in m.ensemble async for m in client.list_ledgers()])


async def until_between(client, lost, first: int, last: int) -> None:
    """Wait until some ledgers are moved, and some are not."""
    async with asyncio.timeout(PATIENCE_S):
        while not first <= await naming(client, lost) <= last:
            await asyncio.sleep(0.05)


async def test_s73_what_a_killed_worker_leaves_another_finishes() -> None:
    async with LocalCluster(bookies=4, processes=True) as cluster, cluster.connect() as client:
        ledgers = await fill(client)
        lost = cluster.bookie_ids[1]
        await cluster.stop(lost)
        all_of_them = await naming(client, lost)
        with command(cluster, "recovery", "run", *SLOW) as first:
            await until_between(client, lost, 1, all_of_them - 2)
            first.send_signal(signal.SIGKILL)
            first.wait()
        left = await naming(client, lost)
        assert 0 < left < all_of_them
        queue = UnderreplicationQueue(client_store(client))
        with command(cluster, "recovery", "run"):
            await until_between(client, lost, 0, 0)
            async with asyncio.timeout(PATIENCE_S):
                while [mark async for mark in queue.list()]:
                    await asyncio.sleep(0.05)
        queue.close()
        assert [failure async for failure in Quarantine(client_store(client)).list()] == []
        for ledger_id in ledgers:
            await assert_fully_replicated(client, ledger_id, PAYLOADS)


async def test_a_bookie_recovery_that_was_killed_is_given_again_and_goes_on() -> None:
    async with LocalCluster(bookies=4, processes=True) as cluster, cluster.connect() as client:
        ledgers = await fill(client)
        lost = cluster.bookie_ids[2]
        await cluster.stop(lost)
        all_of_them = await naming(client, lost)
        with command(cluster, "bookie", "recover", lost, *SLOW) as first:
            await until_between(client, lost, 1, all_of_them - 2)
            first.send_signal(signal.SIGKILL)
            first.wait()
        left = await naming(client, lost)
        assert 0 < left < all_of_them
        with command(cluster, "bookie", "recover", lost) as second:
            said, _ = await asyncio.to_thread(second.communicate)
        assert second.returncode == 0
        assert json.loads(said)["ledgers"] == left
        assert await naming(client, lost) == 0
        for ledger_id in ledgers:
            await assert_fully_replicated(client, ledger_id, PAYLOADS)
