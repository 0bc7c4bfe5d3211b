"""What the space of several disks allows."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from bookie_harness import options_in

from doubles.waiting import until
from quorumbook.bookie.disks import DiskMonitor
from quorumbook.bookie.metrics import BookieMetrics
from quorumbook.env import DiskUsage, Env, RealDisk
from quorumbook.errors import StorageError

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


class Measured:
    """A bookie's two disks: how many thousandths of them are free, None if one is silent."""

    def __init__(self, tmp_path: Path) -> None:
        frees = self._frees = [500, 500]

        class Disks(RealDisk):
            def usage(self, path: str) -> DiskUsage:
                free = frees[int(path[-1])]
                if free is None:
                    raise StorageError("Input/output error", path=path)
                return DiskUsage(1000, free)

        options = options_in(
            tmp_path,
            journal_directories=(f"{tmp_path}/0",),
            ledger_directories=(f"{tmp_path}/1",),
            max_disk_usage=0.95,
            disk_usage_writable=0.9,
        )
        self.monitor = DiskMonitor(
            Env(disk=Disks()), options, BookieMetrics(),
            storage_is_full=lambda: False, on_change=lambda: None,
        )  # fmt: skip

    async def is_read_only(self, journal: int | None, ledgers: int) -> bool:
        """Return what follows from these; the second differs from call to call."""
        self._frees[:] = [journal, ledgers]
        self.monitor.storage_has_space()
        await until(lambda: self.monitor.free_bytes == ledgers)
        return self.monitor.writability.is_read_only


async def test_s81_a_disk_that_does_not_answer_once_is_not_taken_for_one_that_was_full(
    tmp_path: Path,
) -> None:
    disks = Measured(tmp_path)
    await disks.monitor.start()
    assert not await disks.is_read_only(80, 400)
    assert await disks.is_read_only(None, 401)
    assert disks.monitor.reasons() == [f"disk: the space of {tmp_path}/0 cannot be told"]
    disks.monitor.set_operators_word(is_read_only=False)
    assert disks.monitor.writability.is_read_only
    assert not await disks.is_read_only(80, 402)
    assert disks.monitor.reasons() == []
    disks.monitor.stop()


async def test_s81_a_disk_that_was_full_has_to_get_room_also_when_it_was_silent_meanwhile(
    tmp_path: Path,
) -> None:
    disks = Measured(tmp_path)
    await disks.monitor.start()
    assert await disks.is_read_only(40, 400)
    assert await disks.is_read_only(None, 401)
    assert await disks.is_read_only(80, 402)
    assert not await disks.is_read_only(120, 403)
    disks.monitor.stop()
