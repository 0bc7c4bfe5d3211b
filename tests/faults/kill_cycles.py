"""Kill bookies at random moments under load and account for every acknowledged entry.

Four bookies run as processes over sqlite metadata.  A writer appends without pause at E3/Qw3/Qa2.
Each cycle kills one bookie with SIGKILL, demands that adds go on without it, starts it again, and
every few cycles the ledger is taken over by a second client: opened with recovery, read whole, and
compared.  Payloads are computed from (ledger, entry), so any lost, changed, swapped or repeated
entry shows.  In the end every ledger is read once more from the start.

    python tests/faults/kill_cycles.py --cycles 500 --report docs/reports/torture.md
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import platform
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import quorumbook
from quorumbook.errors import BackpressureError, QuorumbookError
from quorumbook.testing import LocalCluster

ADDS_WITHOUT_THE_BOOKIE = 200
CYCLES_PER_LEDGER = 5
WAIT_S = 60.0


def payload(ledger_id: int, entry_id: int) -> bytes:
    """Bytes that belong to this entry alone, between 32 and 1055 of them."""
    seed = hashlib.sha256(b"%d:%d" % (ledger_id, entry_id)).digest()
    return seed + seed[:1] * (int.from_bytes(seed[:2], "big") & 1023)


async def until(condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
    """Wait for a condition; the limit only turns a hang into a failure."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"hangs: {what} for {timeout_s:.0f} s")
        await asyncio.sleep(0.002)


@dataclass
class Account:
    """What the cluster acknowledged, ledger by ledger."""

    cycles: int = 0
    acknowledged: dict[int, int] = field(default_factory=dict)
    verified_entries: int = 0
    adds_during_outage: int = 0
    fragments: int = 0


class Load:
    """One writer that never pauses, until it is fenced or stopped."""

    def __init__(self, writer: quorumbook.LedgerWriter, account: Account) -> None:
        self.writer = writer
        self.account = account
        self.account.acknowledged[writer.id] = -1
        self._running = True
        self._task = asyncio.create_task(self._run())

    @property
    def last_acknowledged(self) -> int:
        return self.account.acknowledged[self.writer.id]

    def _acknowledge(self, future: asyncio.Future[int]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        entry_id = future.result()
        assert entry_id == self.last_acknowledged + 1, "acknowledgements out of order"
        self.account.acknowledged[self.writer.id] = entry_id

    async def _run(self) -> None:
        next_id = 0
        while self._running:
            try:
                for _ in range(64):
                    future = self.writer.append_nowait(payload(self.writer.id, next_id))
                    future.add_done_callback(self._acknowledge)
                    next_id += 1
            except BackpressureError:
                await self.writer.drain()
            await asyncio.sleep(0.001)

    async def wait_acknowledged(self, more: int, what: str) -> None:
        """Wait for a number of further acknowledgements."""
        target = self.last_acknowledged + more

        def reached() -> bool:
            if self._task.done():
                self._task.result()
            return self.last_acknowledged >= target

        await until(reached, what)

    async def stop(self) -> None:
        """End without closing the ledger, as a writer that dies."""
        self._running = False
        with contextlib.suppress(QuorumbookError):
            await self._task
        with contextlib.suppress(QuorumbookError):
            await self.writer.abort()


async def verify(client: quorumbook.BookKeeper, ledger_id: int, account: Account) -> None:
    """Open with recovery, read everything, compare with what was acknowledged."""
    reader = await client.open_ledger(ledger_id)
    async with reader:
        last = reader.last_add_confirmed
        acknowledged = account.acknowledged[ledger_id]
        assert last >= acknowledged, (
            f"ledger {ledger_id}: closed at {last}, but {acknowledged} was acknowledged"
        )
        expected = 0
        async for entry in reader.read(0):
            assert entry.entry_id == expected, f"ledger {ledger_id}: entry {expected} is missing"
            assert entry.payload == payload(ledger_id, expected), (
                f"ledger {ledger_id}: entry {expected} holds other bytes"
            )
            expected += 1
        assert expected == last + 1, f"ledger {ledger_id}: {expected} of {last + 1} entries read"
        account.verified_entries += expected
        account.fragments += len(reader.metadata.fragments)


async def run(
    cycles: int, directory: Path, seed: int, say: Callable[[str], None] = lambda _: None
) -> Account:
    """Run the cycles; any promise broken raises AssertionError."""
    dice = random.Random(seed)
    account = Account()
    async with LocalCluster(bookies=4, data_dir=str(directory), processes=True) as cluster:
        async with cluster.connect() as writing, cluster.connect() as reading:
            load = None
            for cycle in range(cycles):
                if load is None:
                    load = Load(await writing.create_ledger(), account)
                await load.wait_acknowledged(dice.randrange(1, 3000), "adds before the kill")
                victim = dice.choice(cluster.bookie_ids)
                await cluster.kill(victim)
                before = load.last_acknowledged
                await load.wait_acknowledged(ADDS_WITHOUT_THE_BOOKIE, f"adds without {victim}")
                account.adds_during_outage += load.last_acknowledged - before
                take_over_early = dice.random() < 0.5
                last_of_ledger = cycle % CYCLES_PER_LEDGER == CYCLES_PER_LEDGER - 1
                if last_of_ledger and take_over_early:
                    await verify(reading, load.writer.id, account)
                await cluster.restart(victim)
                account.cycles += 1
                if last_of_ledger:
                    await verify(reading, load.writer.id, account)
                    await load.stop()
                    load = None
                say(f"cycle {cycle + 1}: {sum(account.acknowledged.values()):,} acknowledged")
            if load is not None:
                await load.stop()
            for ledger_id in account.acknowledged:
                await verify(reading, ledger_id, account)
    return account


def report(account: Account, seed: int, took_s: float) -> str:
    """Describe a run in a page."""
    acknowledged = sum(last + 1 for last in account.acknowledged.values())
    return "\n".join(
        [
            "# Kill cycles",
            "",
            f"`make torture` with seed {seed} on Linux {platform.release()}, "
            f"Python {platform.python_version()}, {took_s:.0f} s.",
            "",
            "| what | count |",
            "|---|---|",
            f"| bookies killed with SIGKILL under load | {account.cycles} |",
            f"| ledgers (E3/Qw3/Qa2 over four bookies) | {len(account.acknowledged)} |",
            f"| entries acknowledged | {acknowledged:,} |",
            f"| of them while a bookie was dead | {account.adds_during_outage:,} |",
            f"| entries read back and compared | {account.verified_entries:,} |",
            f"| fragments in the ledgers read | {account.fragments} |",
            "| acknowledged entries lost or changed | 0 |",
            "",
        ]
    )


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--report", type=Path)
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    began = time.monotonic()
    account = asyncio.run(
        run(
            arguments.cycles,
            arguments.data_dir,
            arguments.seed,
            lambda line: print(line, flush=True),
        )
    )
    page = report(account, arguments.seed, time.monotonic() - began)
    print(page)
    if arguments.report is not None:
        arguments.report.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
