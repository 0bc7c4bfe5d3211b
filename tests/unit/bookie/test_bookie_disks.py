"""What the space of several disks allows."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from bookie_harness import options_in

from quorumbook.bookie.disks import DiskMonitor
from quorumbook.bookie.metrics import BookieMetrics
from quorumbook.env import DiskUsage, Env, RealDisk

LEAST = 10_000_000


@pytest.mark.parametrize("frees", list(itertools.product((0, LEAST - 1, LEAST), repeat=3)))
async def test_s82_the_disk_with_least_space_decides_over_recovery_adds_also_with_none(
    tmp_path: Path, frees: tuple[int, ...]
) -> None:
    class Disks(RealDisk):
        def usage(self, path: str) -> DiskUsage:
            return DiskUsage(10**9, frees[int(path[-1])])

    options = options_in(
        tmp_path,
        journal_directories=(f"{tmp_path}/0",),
        ledger_directories=(f"{tmp_path}/1", f"{tmp_path}/2"),
        min_high_priority_free_bytes=LEAST,
    )
    monitor = DiskMonitor(
        Env(disk=Disks()), options, BookieMetrics(),
        storage_is_full=lambda: False, on_change=lambda: None,
    )  # fmt: skip
    await monitor.start()
    monitor.stop()
    assert monitor.writability.takes_high_priority == (min(frees) >= LEAST)
