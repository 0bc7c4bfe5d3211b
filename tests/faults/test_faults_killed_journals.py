"""Bookies killed with SIGKILL in the middle of large journal writes: none starts in doubt.

Ledgers with entries of 100 B to 1 MB are written at E3/Qw3/Qa2 without a pause, so that groups of
many sizes, up to 8 MiB, are under way at any time.  One bookie, or all of them, are killed and
started again; no ledger may be in limbo then, and every ledger is recovered with all that was
acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest

from quorumbook import BookKeeper, LedgerWriter
from quorumbook.errors import QuorumbookError
from quorumbook.testing import LocalCluster

SIZES = (100, 16 * 1024, 64 * 1024, 500 * 1024, 1024 * 1024)
#: One bookie is killed in the first, all of them in the second.
ROUNDS = 2
GROUP_BYTES = 4 * 1024 * 1024


class _Load:
    """One writer of entries of one size, until its bookies are gone."""

    def __init__(self, writer: LedgerWriter, size: int) -> None:
        self.writer, self.size = writer, size
        self.last_acknowledged = -1
        self.grown = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    def payload(self, entry_id: int) -> bytes:
        return b"%010d" % entry_id + bytes(self.size - 20) + b"%010d" % self.writer.id

    async def _run(self) -> None:
        pending: list[asyncio.Future[int]] = []
        with contextlib.suppress(QuorumbookError):
            for entry_id in range(1_000_000):
                future = self.writer.append_nowait(self.payload(entry_id))
                pending.append(future)
                if len(pending) * self.size >= GROUP_BYTES or len(pending) >= 256:
                    for one in pending:
                        self.last_acknowledged = await one
                    pending.clear()
                    self.grown.set()

    async def end(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        with contextlib.suppress(QuorumbookError):
            await self.writer.abort()


async def _loads(bk: BookKeeper) -> list[_Load]:
    """Start the writers, and wait until something of each is acknowledged."""
    loads = [_Load(await bk.create_ledger(), size) for size in SIZES]
    for load in loads:
        await asyncio.wait_for(load.grown.wait(), 60)
    return loads


def _doubted(directory: Path) -> int:
    """Count the ledgers in limbo, in the indexes of all bookies."""
    count = 0
    for index in directory.glob("bookie-*/ledgers/current/index.sqlite"):
        with contextlib.closing(sqlite3.connect(f"file:{index}?mode=ro", uri=True)) as connection:
            count += connection.execute("SELECT count(*) FROM ledger WHERE limbo").fetchone()[0]
    return count


@pytest.mark.faults
@pytest.mark.timeout(300)
async def test_r22_r23_bookies_killed_in_the_middle_of_journal_writes_doubt_nothing(
    tmp_path: Path,
) -> None:
    async with LocalCluster(bookies=3, data_dir=str(tmp_path), processes=True) as cluster:
        assert len(list(tmp_path.glob("bookie-*/ledgers/current/index.sqlite"))) == 3
        for number in range(ROUNDS):
            async with cluster.connect() as writing, cluster.connect() as reading:
                loads = await _loads(writing)
                victims = cluster.bookie_ids if number % 2 else cluster.bookie_ids[:1]
                await asyncio.gather(*(cluster.kill(victim) for victim in victims))
                for load in loads:
                    await load.end()
                for victim in victims:
                    await cluster.restart(victim)
                assert _doubted(tmp_path) == 0, f"round {number}: a kill was taken for damage"
                for load in loads:
                    async with reading.open_ledger(load.writer.id) as reader:
                        assert reader.last_add_confirmed >= load.last_acknowledged
                        async for entry in reader.read(0):
                            assert entry.payload == load.payload(entry.entry_id)
