"""How long five bookies take to heal when one is lost, and what a writer keeps meanwhile.

    python bench/heal.py [--ledgers 2000] [--bytes 2000000000]

Fills the ledgers (E3/Qw3/Qa2, 1 KB entries), starts auto-recovery and a writer, kills a bookie
with SIGKILL, and waits until no ledger names it and no mark is left.  Everything runs on this
machine with default options: the healing keeps to ``background.io_rate_bytes``, and begins when
the dead bookie's session is over.  Every copy of some ledgers is compared byte by byte at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import quorumbook
from quorumbook.client.context import client_store
from quorumbook.metadata.recovery.queue import UnderreplicationQueue
from quorumbook.testing import LocalCluster

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "tests"))

from doubles.replicas import assert_fully_replicated  # noqa: E402

ENTRY_BYTES = 1000
IN_FLIGHT = 20
WARM_UP_S, BEFORE_S = 3.0, 15.0
COMPARED = 40


async def write_for_ever(uri: str) -> None:
    """Append with a bounded number in flight; print how many were acknowledged each second."""
    payload = os.urandom(ENTRY_BYTES)
    async with quorumbook.connect(uri, max_pending_entries=IN_FLIGHT) as client:
        ledger = await client.create_ledger()
        done, until = 0, time.monotonic() + 1
        while True:
            await asyncio.wait([ledger.append_nowait(payload) for _ in range(IN_FLIGHT)])
            done += IN_FLIGHT
            if (now := time.monotonic()) >= until:
                print(done / (now - until + 1), flush=True)
                done, until = 0, now + 1


async def fill(client: quorumbook.BookKeeper, ledgers: int, size_bytes: int) -> None:
    payloads = [random.randbytes(ENTRY_BYTES)] * (size_bytes // ledgers // ENTRY_BYTES)

    async def one() -> None:
        async with client.create_ledger() as ledger:
            await ledger.append_batch_nowait(payloads)

    for start in range(0, ledgers, 10):
        await asyncio.gather(*(one() for _ in range(start, min(start + 10, ledgers))))


class Rates:
    """What the writer's process prints."""

    def __init__(self, uri: str) -> None:
        command = [sys.executable, __file__, "--writer", uri]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.values: list[float] = []

    async def __aenter__(self) -> Rates:
        def read() -> None:
            assert self._process.stdout is not None
            for line in self._process.stdout:
                self.values.append(float(line))

        self._reader = asyncio.create_task(asyncio.to_thread(read))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        await self._reader


@contextlib.contextmanager
def auto_recovery(uri: str, log: Path):
    command = [sys.executable, "-m", "quorumbook", "recovery", "run", "--metadata", uri]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


async def names(client: quorumbook.BookKeeper, bookie_id: str) -> int:
    """Return how many ledgers a bookie has a place in."""
    return sum(
        [
            any(bookie_id in fragment.ensemble for fragment in metadata.fragments)
            async for metadata in client.list_ledgers()
        ]
    )


async def measure(arguments: argparse.Namespace) -> dict[str, object]:
    async with LocalCluster(bookies=5, processes=True) as cluster, cluster.connect() as client:
        began = time.monotonic()
        await fill(client, arguments.ledgers, arguments.bytes)
        print(f"filled in {time.monotonic() - began:.0f} s", file=sys.stderr)
        queue = UnderreplicationQueue(client_store(client))
        log = Path(arguments.log or f"{cluster.directory}/recovery.log")
        with auto_recovery(cluster.metadata_uri, log):
            async with Rates(cluster.metadata_uri) as rates:
                await asyncio.sleep(WARM_UP_S)
                first = len(rates.values)
                await asyncio.sleep(BEFORE_S)
                before = statistics.mean(rates.values[first:])
                lost = cluster.bookie_ids[0]
                places = await names(client, lost)
                await cluster.kill(lost)
                killed, first = time.monotonic(), len(rates.values)
                left = places
                while left:
                    await asyncio.sleep(2)
                    left = await names(client, lost)
                    print(
                        f"{time.monotonic() - killed:4.0f} s: {left} of {places} ledgers left, "
                        f"writer {rates.values[-1]:,.0f}/s",
                        file=sys.stderr,
                    )
                while [mark async for mark in queue.list()]:
                    await asyncio.sleep(0.5)
                healed_s = time.monotonic() - killed
                meanwhile = statistics.mean(rates.values[first:])
        closed = [m.ledger_id async for m in client.list_ledgers() if m.is_closed]
        for ledger_id in random.sample(closed, min(COMPARED, len(closed))):
            await assert_fully_replicated(client, ledger_id)
    return {
        "ledgers": arguments.ledgers,
        "bytes": arguments.bytes,
        "ledgers_of_the_lost_bookie": places,
        "healed_s": round(healed_s, 1),
        "writer_before_per_s": round(before),
        "writer_meanwhile_per_s": round(meanwhile),
        "writer_share": round(meanwhile / before, 2),
        "ledgers_compared": min(COMPARED, len(closed)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledgers", type=int, default=2000)
    parser.add_argument("--bytes", type=int, default=2_000_000_000)
    parser.add_argument("--log", default="")
    parser.add_argument("--writer", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.writer:
        asyncio.run(write_for_ever(arguments.writer))
    print(json.dumps(asyncio.run(measure(arguments)), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
