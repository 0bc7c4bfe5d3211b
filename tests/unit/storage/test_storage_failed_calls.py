"""Calls of a disk that fail, at every one there is, until it is mended: nothing is lost by them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_storage_gc import Garbage

from doubles.storage_world import SMALL, World, run_of
from doubles.waiting import until
from quorumbook.errors import BookieIOError, QuorumbookError, StorageError
from quorumbook.protocol.digest import Digester
from quorumbook.sim.disks.faults import DiskFault
from quorumbook.storage.options import ScrubOptions
from quorumbook.storage.scrub.scrubber import Scrubber
from unit.storage.test_storage_crash import Promises

_SMALL_LOGS = replace(SMALL, entry_log_size_bytes=16 * 1024)


def scrubber_of(world: World) -> Scrubber:
    """Return one that knows no digests."""

    async def unknown(_: int) -> Digester | None:
        return None

    return Scrubber(
        world.storage.scrub,
        ScrubOptions(rate_bytes=0),
        world.storage._env,  # the same machine
        digester=unknown,
        on_damage=lambda _: None,
        on_index_damaged=lambda _: None,
    )


async def fill(world: World, promises: Promises) -> None:
    """Have entries in logs, one run of them cut by another, and others in the journal only."""
    await world.start()
    await promises.append(world, run_of(1, range(60), b"a" * 900))
    await promises.fence(world, 2)
    await world.storage.flush()
    await promises.append(world, run_of(1, range(50, 200), b"b" * 900))
    await promises.write_lac(world, 3, 7)
    await world.crash(keep=1.0)


async def live_with_failures(world: World, promises: Promises) -> None:
    """Start, read all there is, and have scrub note down what it makes of that."""
    try:
        await world.start()
    except StorageError:
        return  # a start that cannot read refuses, and says so
    for _ in range(2):
        with contextlib.suppress(StorageError, BookieIOError):
            await scrubber_of(world).cycle()
        with contextlib.suppress(StorageError, BookieIOError):
            await promises.check(world)


@pytest.mark.parametrize("operation", ["read", "open", "list", "exists"])
@pytest.mark.parametrize("is_permanent", [False, True])
@pytest.mark.parametrize("has_index", [True, False])
async def test_a_disk_that_is_mended_gives_everything_back_whatever_read_failed(
    tmp_path: Path, has_index: bool, is_permanent: bool, operation: str
) -> None:
    """Where nothing but checksums, sizes and ids can tell what was written."""
    was_hit, call = True, 0
    while was_hit:
        call += 1
        directory = tmp_path / str(call)
        directory.mkdir()
        world, promises = World(directory), Promises()
        await fill(world, promises)
        if not has_index:
            Path(world.index_path).unlink()
        fault = world.disk.faults.fail(operation, at=call, permanent=is_permanent)
        await live_with_failures(world, promises)
        was_hit = fault.hits > 0
        world.disk.faults.heal()
        await world.crash(random.Random(call), keep=1.0)
        report = await world.start()
        assert not report.needs_limbo_start, report.limbo_reason
        for row in await world.storage.scrub.damaged_runs():
            await scrubber_of(world).redeem(row)
        assert await world.storage.scrub.damaged_runs() == []
        await promises.check(world)
        await world.crash()
    assert call > 10


class Life:
    """A bookie's life with everything in it, each step of which may fail, or never end."""

    def __init__(self, world: World, promises: Promises, fault: DiskFault) -> None:
        self._world = world
        self._promises = promises
        self._fault = fault

    async def live(self) -> None:
        world, promises = self._world, self._promises
        try:
            await world.start()
        except StorageError:
            return
        await self._try(promises.append(world, run_of(1, range(20), b"a" * 300)))
        await self._try(promises.append(world, run_of(2, [0, 2, 3, 5], b"b" * 3000)))
        await self._try(promises.write_lac(world, 1, 12))
        await self._try(world.storage.flush())
        await self._try(promises.append(world, run_of(1, range(10, 30), b"c" * 900)))
        await self._try(promises.fence(world, 2))
        for first in range(0, 40, 10):
            await self._try(promises.append(world, run_of(3, range(first, first + 10), b"d" * 700)))
            await self._try(world.append(run_of(7, range(first, first + 10), b"g" * 900)))
            await self._try(world.storage.flush())
        await self._try(promises.fence(world, 4))
        await self._try(promises.append(world, run_of(2, [1, 6], b"e" * 100)))
        await self._try(world.storage.delete_ledgers([7]))
        await self._try(scrubber_of(world).cycle())
        garbage = Garbage(world, 1, 2, 3, 4, 5)
        garbage.collector.trigger(major=True)
        await self._try(garbage.collect(minutes=0))
        await self._try(promises.append(world, run_of(3, range(35, 45), b"f" * 2000)))
        await self._try(promises.write_lac(world, 3, 41))
        await self._try(world.storage.flush())
        await self._try(promises.append(world, run_of(5, range(3))))

    async def stop(self) -> None:
        await self._try(self._world.storage.stop())

    async def _try(self, step: Awaitable[Any]) -> None:
        task, hits = asyncio.ensure_future(step), self._fault.hits

        def is_over() -> bool:
            # A bookie that has to end answers nothing more, and a full one only tries again.
            return task.done() or bool(self._world.fatal) or self._fault.hits > hits + 2

        await until(is_over)
        for _ in range(100):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(QuorumbookError, asyncio.CancelledError):
            await task


@pytest.mark.parametrize(
    "operation",
    ["create", "write", "sync", "allocate", "truncate", "sync_directory", "replace", "unlink"],
)
@pytest.mark.parametrize("is_permanent", [False, True])
async def test_nothing_acknowledged_is_lost_or_doubted_whatever_write_failed(
    tmp_path: Path, is_permanent: bool, operation: str
) -> None:
    was_hit, call = True, 0
    while was_hit:
        call += 1
        directory = tmp_path / str(call)
        directory.mkdir()
        world, promises = World(directory, options=_SMALL_LOGS), Promises()
        fault = world.disk.faults.fail(operation, at=call, permanent=is_permanent)
        life, rng = Life(world, promises, fault), random.Random(call)
        await life.live()
        was_hit = fault.hits > 0
        if world._has_storage and rng.random() < 0.3:  # a start that failed leaves none
            await life.stop()
        world.disk.faults.heal()
        await world.crash(rng, keep=rng.choice([0.0, 0.5, 1.0]))
        report = await world.start()
        # What became of a group whose sync failed nobody can know.
        assert not report.needs_limbo_start or operation == "sync", report.limbo_reason
        await scrubber_of(world).cycle()
        assert await world.storage.scrub.damaged_runs() == []
        await promises.check(world)
        await promises.append(world, run_of(9, range(3)))
        await world.storage.flush()
        await world.crash(rng, keep=0.0)
        await world.start()
        await promises.check(world)
        await world.crash()
    assert call > 2
