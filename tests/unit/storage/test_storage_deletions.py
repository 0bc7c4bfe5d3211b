"""What a storage remembers of ledgers that were deleted: so that their old writers are refused."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from doubles.inside import opened
from doubles.storage_world import World, run_of
from quorumbook.storage.index.files import remove_index
from quorumbook.storage.index.tables import DamagedIndexError


async def deleted_world(tmp_path: Path) -> World:
    """Return a world with ledger 1, and ledger 2 that was fenced and deleted."""
    world = World(tmp_path)
    await world.start()
    for ledger_id in (1, 2):
        await world.append(run_of(ledger_id, range(5)))
    await world.fence(2)
    await world.storage.flush()
    await world.storage.delete_ledgers([2])
    return world


def doubted(world: World, *ledger_ids: int) -> list[bool]:
    return [world.handle(ledger_id).was_deleted for ledger_id in ledger_ids]


@pytest.mark.parametrize("loss", ["nothing", "restart", "power", "index", "index and a copy"])
async def test_s14_a_deleted_ledger_is_remembered_whatever_is_lost_with_the_process(
    tmp_path: Path, loss: str
) -> None:
    world = await deleted_world(tmp_path)
    if loss == "restart":
        await world.storage.stop()
        await world.start()
    elif loss != "nothing":
        await world.crash(random.Random(1), keep=0.0)
        if loss != "power":
            remove_index(world.index_path)
        if loss == "index and a copy":
            world.disk.unlink("/ledgers0/current/ledger-states")
        report = await world.start()
        assert report.is_index_rebuilt == (loss != "power")
        assert not report.needs_limbo_start
    assert world.storage.ledger_ids() == [1]
    # Of a ledger that was never here nothing is remembered, wherever its id lies.
    assert doubted(world, 0, 1, 2, 3) == [False, False, True, False]
    await world.storage.stop()


async def test_s14_a_copy_that_is_written_as_a_whole_keeps_what_was_deleted(
    tmp_path: Path,
) -> None:
    world = await deleted_world(tmp_path)
    await world.crash(random.Random(1), keep=0.0)
    for directory in world.directories:
        world.disk.unlink(f"{directory}/current/ledger-states")
    await world.start()
    await world.append(run_of(3, range(5)))
    await world.storage.flush()
    await world.crash(random.Random(1), keep=0.0)
    remove_index(world.index_path)
    await world.start()
    assert doubted(world, 1, 2, 3) == [False, True, False]
    await world.storage.stop()


async def test_s14_whatever_begins_a_deleted_ledger_again_its_writers_stay_doubted(
    tmp_path: Path,
) -> None:
    for number, begin in enumerate(("add", "lac", "limbo")):
        directory = tmp_path / str(number)
        directory.mkdir()
        world = await deleted_world(directory)
        if begin == "add":
            # A recovery or replication; plain ones ask the metadata first.
            await world.append(run_of(2, [7]))
        elif begin == "lac":
            await world.write_lac(2, 3)
        else:
            await world.storage.put_in_limbo([2], fence=False)
        assert doubted(world, 2) == [True]
        await world.restart()
        assert world.storage.ledger_ids() == [1, 2]
        assert doubted(world, 2) == [True]
        await world.storage.flush()
        await world.storage.stop()
        await world.start()
        assert doubted(world, 2) == [True]
        await world.storage.stop()


async def test_a_ledger_that_was_only_emptied_is_not_taken_for_deleted(tmp_path: Path) -> None:
    world = await deleted_world(tmp_path)
    gc = world.storage.gc
    assert gc.empty_ledgers([1], gc.checkpoints) == [1]
    assert doubted(world, 1) == [False]
    await world.storage.flush()
    assert doubted(world, 1) == [False]
    await world.restart()
    assert doubted(world, 1, 2) == [False, True]
    assert world.handle(1).is_fenced
    await world.storage.stop()


async def test_the_deletions_remembered_are_bounded_by_age_and_number(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    clock = world.storage._env.clock  # the clock, and another's times
    for ledger_id in range(1, 7):
        await world.append(run_of(ledger_id, range(2)))
        await world.storage.flush()
        clock.wall = ledger_id * 1000  # type: ignore[attr-defined]
        await world.storage.delete_ledgers([ledger_id])
    gc = world.storage.gc
    assert await gc.forget_deletions(3000, 100) == 2
    assert doubted(world, *range(1, 7)) == [False, False, True, True, True, True]
    assert await gc.forget_deletions(3000, 3) == 1
    assert await gc.forget_deletions(3000, 3) == 0
    await world.restart()
    assert doubted(world, *range(1, 7)) == [False, False, False, True, True, True]
    assert await world.storage.gc.forget_deletions(10_000, 3) == 3
    await world.restart()
    assert doubted(world, *range(1, 7)) == [False] * 6
    await world.storage.stop()


async def test_a_changed_bit_of_a_remembered_deletion_is_a_damaged_index(tmp_path: Path) -> None:
    world = await deleted_world(tmp_path)
    await world.storage.stop()
    with sqlite3.connect(world.index_path) as connection:
        connection.execute("UPDATE deleted SET at_ms = at_ms + 1")
    connection.close()
    report = await world.start()
    assert report.is_index_rebuilt
    assert doubted(world, 1, 2) == [False, True]
    index = opened(world.storage).index
    # The clock, and another's times.
    index._connection.execute("UPDATE deleted SET at_ms = at_ms + 1")
    with pytest.raises(DamagedIndexError):
        index.was_deleted(2)
    with pytest.raises(DamagedIndexError):
        index.check_whole()
    await world.crash()


async def test_an_index_of_a_release_that_remembered_nothing_is_taken_over(tmp_path: Path) -> None:
    world = await deleted_world(tmp_path)
    await world.storage.stop()
    with sqlite3.connect(world.index_path) as connection:
        connection.execute("DROP TABLE deleted")
    connection.close()
    report = await world.start()
    assert not report.is_index_rebuilt
    await world.storage.delete_ledgers([1])
    assert doubted(world, 1, 2) == [True, False]
    await world.storage.stop()
