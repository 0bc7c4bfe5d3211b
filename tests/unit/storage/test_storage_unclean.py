"""The mark of a bookie that did not stop cleanly, and what a cut journal means then."""

from __future__ import annotations

from pathlib import Path

import pytest

from doubles.inside import journals_of
from doubles.storage_world import World, run_of
from quorumbook.errors import StorageError
from quorumbook.storage.directories.unclean import NAME
from quorumbook.storage.journal.synced import SYNCED_NAME

MARKS = [f"/ledgers{i}/current/{NAME}" for i in range(2)]


def marks(world: World) -> list[str]:
    return [path for path in world.disk.files() if path.endswith(f"/{NAME}")]


async def test_r22_a_bookie_that_runs_is_marked_until_it_stops_cleanly(tmp_path: Path) -> None:
    world = World(tmp_path)
    assert not (await world.start()).was_unclean
    assert marks(world) == MARKS
    await world.append(run_of(1, range(5)))
    assert (await world.restart()).was_unclean
    await world.storage.stop()
    assert marks(world) == []
    assert not (await world.start()).was_unclean


@pytest.mark.parametrize("killed", [True, False])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("is_noted", [True, False])
async def test_r22_a_journal_that_was_cut_behind_a_group_of_a_killed_bookie_is_doubted(
    tmp_path: Path, killed: bool, groups: int, is_noted: bool
) -> None:
    world = World(tmp_path)
    await world.start()
    await world.append(run_of(1, range(5)))
    ends = [journals_of(world.storage).durable_marks()[0].offset]
    await world.append(run_of(1, range(5, 10)))
    ends.append(journals_of(world.storage).durable_marks()[0].offset)
    if killed:
        await world.crash(keep=1.0)
    else:
        await world.storage.stop()
    (path,) = [path for path in world.disk.files() if path.endswith(".txn")]
    world.disk.put(path, world.disk.get(path)[: ends[groups - 1]])
    if not is_noted:
        world.disk.unlink(f"{path.rpartition('/')[0]}/{SYNCED_NAME}")
    report = await world.start()
    # Where it is known that nothing was durable behind the second group, nothing is missing.
    is_doubted = killed and not (is_noted and groups == 2)
    assert report.has_damaged_journal_tail is is_doubted
    assert report.needs_limbo_start is is_doubted
    assert await world.ids(1) == list(range(10 if not killed else 5 * groups))


async def test_a_journal_whose_name_a_kill_left_undurable_is_not_missed_after_a_loss_of_power(
    tmp_path: Path,
) -> None:
    # Found by a seed of the simulator: the next life put the journal into a mark without writing
    # there, then the power went, and no start was possible any more.
    world = World(tmp_path, journals=2)
    await world.start()
    world.disk.faults.fail("sync_directory", "/journal")
    with pytest.raises(StorageError):
        await world.append(run_of(2, range(5)))
    killed = world.disk.after_kill()
    await world.crash()
    world.disk = killed
    await world.start()
    await world.append(run_of(1, range(5)))
    await world.storage.flush()
    await world.crash(keep=0.0)
    await world.start()
    assert await world.ids(1) == list(range(5))
    await world.storage.stop()
