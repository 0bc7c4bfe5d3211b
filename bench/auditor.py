"""An auditor's cycle over many ledgers: time, and memory that does not grow with them.

    python -m bench.auditor [--ledgers 100000] [--metadata URI] [--step audit --step lost]

Five bookies as processes, closed ledgers of one entry at E3/Qw3/Qa2; the auditor in this process.
First nobody is lost, then copies are counted by the bookies' lists, then every copy is read, then
a bookie is stopped and its ledgers are marked.  Memory is this process's resident set, its highest
during the step: the auditor holds no list of ledgers, so it must not depend on their number.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import time

import quorumbook
from quorumbook.autorecovery.options import AuditorOptions, RecoveryOptions
from quorumbook.autorecovery.process import AutoRecovery
from quorumbook.client.context import client_store
from quorumbook.metadata.recovery.queue import UnderreplicationQueue
from quorumbook.metadata.recovery.switches import PeriodicCheck
from quorumbook.testing import LocalCluster

_CHECKS = {
    "count": (PeriodicCheck.REPLICAS, "copies counted by lists"),
    "read": (PeriodicCheck.ALL_LEDGERS, "all copies read and verified"),
}
_STEPS = ["audit", *_CHECKS, "lost"]
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def _rss_mb() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES / 1e6


class Step:
    """One measured step: how long, and the most memory in it."""

    def __init__(self, title: str, ledgers: int) -> None:
        self._title, self._ledgers = title, ledgers

    async def __aenter__(self) -> None:
        gc.collect()
        self._began, self._rss_mb = time.monotonic(), _rss_mb()
        self._most_mb = self._rss_mb
        self._watch = asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        while True:
            self._most_mb = max(self._most_mb, _rss_mb())
            await asyncio.sleep(0.05)

    async def __aexit__(self, *_: object) -> None:
        self._watch.cancel()
        seconds = time.monotonic() - self._began
        print(
            f"| {self._title} | {seconds:.1f} s | {self._ledgers / seconds:,.0f} | "
            f"{self._rss_mb:.0f} MB | {self._most_mb:.0f} MB |",
            flush=True,
        )


async def _make(client: quorumbook.BookKeeper, count: int, at_once: int = 64) -> None:
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            shape = {"ensemble_size": 3, "write_quorum_size": 3, "ack_quorum_size": 2}
            async with client.create_ledger(**shape) as writer:
                await writer.append(b"x" * 100)

    await asyncio.gather(*(work() for _ in range(at_once)))


async def _until(condition) -> None:
    while not await condition():
        await asyncio.sleep(0.02)


async def _run(count: int, uri: str | None, steps: list[str]) -> None:
    async with contextlib.AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(
            LocalCluster(bookies=5, processes=True, metadata_uri=uri)
        )
        client = await stack.enter_async_context(cluster.connect())
        began = time.monotonic()
        await _make(client, count)
        print(f"made in {time.monotonic() - began:.0f} s")
        auditor_client = await stack.enter_async_context(cluster.connect())
        queue = UnderreplicationQueue(client_store(client))
        options = AuditorOptions(ledger_check_interval_s=0, replica_check_interval_s=0)
        auditor = AutoRecovery(auditor_client, RecoveryOptions(name="a", auditor=options)).auditor
        audits = auditor.numbers.times
        print(f"{count} ledgers, {cluster.metadata_uri.partition(':')[0]}\n")
        print("| step | time | ledgers/s | memory before | most |\n|---|---|---|---|---|")
        stack.push_async_callback(auditor.stop)
        auditor.start()
        await _until(queue.lost_bookie_delay)

        async def audited(times: int) -> bool:
            return audits["AUDIT_BOOKIES_TIME", True][0] >= times

        await queue.set_lost_bookie_delay_s(0)
        async with Step("audit, no bookie lost", count):
            await _until(lambda: audited(1))
        for name, (check, title) in _CHECKS.items():
            if name not in steps:
                continue
            async with Step(title, count):
                await queue.ask_for_check(check)
                await _until(lambda check=check: queue.checked_at_ms(check))
        if "lost" not in steps:
            return
        assert [mark async for mark in queue.list()] == []
        before = audits["AUDIT_BOOKIES_TIME", True][0]
        await cluster.stop(cluster.bookie_ids[0])
        async with Step("audit, one of five lost", count):
            await _until(lambda: audited(before + 1))
        print(f"\n{auditor.numbers.gauges['NUM_UNDER_REPLICATED_LEDGERS']:.0f} ledgers marked")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ledgers", type=int, default=100_000)
    parser.add_argument("--metadata", metavar="URI")
    parser.add_argument("--step", choices=_STEPS, action="append", default=[])
    arguments = parser.parse_args()
    asyncio.run(_run(arguments.ledgers, arguments.metadata, arguments.step or _STEPS))


if __name__ == "__main__":
    main()
