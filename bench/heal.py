"""How long five bookies take to heal when one is lost, and what a writer keeps meanwhile.

    python bench/heal.py [--ledgers 2000] [--bytes 2000000000] [--rate 1000] [--set KEY=VALUE]

Fills the ledgers (E3/Qw3/Qa2, 1 KB entries), starts auto-recovery and, if a rate is given, a
writer with so many entries due a second, kills a bookie with SIGKILL, and waits until no ledger
names it and no mark is left.  Everything runs on this machine, with default options but for those
that auto-recovery is given.  Healing begins when the dead bookie's session is over.  Every copy of
some ledgers is compared byte by byte at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import quorumbook
from quorumbook.client.context import client_store
from quorumbook.metadata.recovery.queue import UnderreplicationQueue
from quorumbook.testing import LocalCluster

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "tests"))

from doubles.replicas import assert_fully_replicated  # noqa: E402

ENTRY_BYTES = 1000
IN_FLIGHT = 5000
WARM_UP_S, BEFORE_S = 3.0, 15.0
COMPARED = 40


async def write_for_ever(uri: str, rate: int) -> None:
    """Append what is due; print each second how long acknowledgements took since it was, in ms."""
    payload, clock = os.urandom(ENTRY_BYTES), time.monotonic
    async with quorumbook.connect(uri, max_pending_entries=IN_FLIGHT) as client:
        ledger = await client.create_ledger()
        await ledger.append(payload)
        took_ms: list[float] = []
        began, sent, until = clock(), 0, clock() + 1

        def note(due: float) -> Callable[[object], None]:
            return lambda _: took_ms.append(round((clock() - due) * 1e3, 3))

        while True:
            while (due := began + sent / rate) <= clock():
                ledger.append_nowait(payload).add_done_callback(note(due))
                sent += 1
            await asyncio.sleep(0.001)
            if clock() >= until:
                print(json.dumps(took_ms), flush=True)
                took_ms.clear()
                until += 1


async def fill(client: quorumbook.BookKeeper, ledgers: int, size_bytes: int) -> None:
    payloads = [random.randbytes(ENTRY_BYTES)] * (size_bytes // ledgers // ENTRY_BYTES)

    async def one() -> None:
        async with client.create_ledger() as ledger:
            await ledger.append_batch_nowait(payloads)

    for start in range(0, ledgers, 10):
        await asyncio.gather(*(one() for _ in range(start, min(start + 10, ledgers))))


class Writer:
    """What the writer's process prints."""

    def __init__(self, uri: str, rate: int) -> None:
        command = [sys.executable, __file__, "--writer", uri, "--rate", str(rate)]
        command = command if rate else ["true"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.seconds: list[list[float]] = []

    def shown(self, first: int) -> str:
        """Return the percentiles of all acknowledgements from a second on."""
        took_ms = sorted(chain.from_iterable(self.seconds[first:]))
        if not took_ms:
            return "no writer"
        p50, p99, p999 = (took_ms[int((len(took_ms) - 1) * part)] for part in (0.5, 0.99, 0.999))
        return f"p50 {p50:.1f}, p99 {p99:.1f}, p99.9 {p999:.1f} ms"

    async def __aenter__(self) -> Writer:
        def read() -> None:
            assert self._process.stdout is not None
            for line in self._process.stdout:
                self.seconds.append(json.loads(line))

        self._reader = asyncio.create_task(asyncio.to_thread(read))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        await self._reader


@contextlib.contextmanager
def auto_recovery(uri: str, log: Path, settings: list[str]):
    command = [sys.executable, "-m", "quorumbook", "recovery", "run", "--metadata", uri]
    command += chain.from_iterable(("--set", setting) for setting in settings)
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
        with auto_recovery(cluster.metadata_uri, log, arguments.set):
            async with Writer(cluster.metadata_uri, arguments.rate) as writer:
                await asyncio.sleep(WARM_UP_S)
                first = len(writer.seconds)
                await asyncio.sleep(BEFORE_S)
                before = writer.shown(first)
                lost = cluster.bookie_ids[0]
                places = await names(client, lost)
                await cluster.kill(lost)
                killed, first = time.monotonic(), len(writer.seconds)
                left = places
                while left:
                    await asyncio.sleep(2)
                    left = await names(client, lost)
                    print(
                        f"{time.monotonic() - killed:4.0f} s: {left} of {places} ledgers left, "
                        f"writer: {writer.shown(-2)}",
                        file=sys.stderr,
                    )
                while [mark async for mark in queue.list()]:
                    await asyncio.sleep(0.5)
                healed_s = time.monotonic() - killed
                meanwhile = writer.shown(first)
        closed = [m.ledger_id async for m in client.list_ledgers() if m.is_closed]
        for ledger_id in random.sample(closed, min(COMPARED, len(closed))):
            await assert_fully_replicated(client, ledger_id)
    return {
        "ledgers": arguments.ledgers,
        "bytes": arguments.bytes,
        "ledgers_of_the_lost_bookie": places,
        "healed_s": round(healed_s, 1),
        "writer_before": before,
        "writer_meanwhile": meanwhile,
        "ledgers_compared": min(COMPARED, len(closed)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ledgers", type=int, default=2000)
    parser.add_argument("--bytes", type=int, default=2_000_000_000)
    parser.add_argument("--rate", type=int, default=0, help="of the writer; 0: none")
    parser.add_argument("--set", action="append", default=[], help="for auto-recovery")
    parser.add_argument("--log", default="")
    parser.add_argument("--writer", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.writer:
        asyncio.run(write_for_ever(arguments.writer, arguments.rate))
    print(json.dumps(asyncio.run(measure(arguments)), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
