"""Reads that fail, at every one there is, until the disk is mended: nothing is lost by them."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from doubles.storage_world import World, run_of
from quorumbook.errors import BookieIOError, StorageError
from quorumbook.protocol.digest import Digester
from quorumbook.storage.options import ScrubOptions
from quorumbook.storage.scrub.scrubber import Scrubber
from unit.storage.test_storage_crash import Promises


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


async def life(world: World, promises: Promises) -> None:
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


@pytest.mark.parametrize("operation", ["read", "open", "list"])
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
        await life(world, promises)
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
