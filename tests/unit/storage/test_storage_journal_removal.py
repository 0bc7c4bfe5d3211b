"""Journals that nobody needs go out of the order at once and off the disk piece by piece."""

from __future__ import annotations

from pathlib import Path

from doubles.inside import opened
from doubles.storage_world import World, run_of
from quorumbook.env import Env
from quorumbook.sim.disks.disk import SimDisk
from quorumbook.storage.journal.marks import LogMark
from quorumbook.storage.journal.removal import RELEASE_BYTES, JournalRemoval

DIRECTORY = "/journal/current"


def disk_with(*sizes: int) -> SimDisk:
    disk = SimDisk()
    disk.make_directory(DIRECTORY)
    for journal_id, size in enumerate(sizes):
        disk.put(f"{DIRECTORY}/{journal_id:x}.txn", bytes(size))
    return disk


def retired(disk: SimDisk) -> list[str]:
    return [path for path in disk.files() if path.endswith(".old")]


def test_the_space_of_a_deleted_journal_is_given_back_piece_by_piece() -> None:
    """All of it at once would hold up every sync of the disk."""
    disk = disk_with(2 * RELEASE_BYTES + 5)
    removal = JournalRemoval(Env(disk=disk), [DIRECTORY])
    assert removal.retire([LogMark(1, 0)]) == 1
    assert disk.used_bytes() == 2 * RELEASE_BYTES + 5
    sizes = []
    while removal.release_some():
        sizes.append(disk.used_bytes())
    assert sizes == [RELEASE_BYTES + 5, 5]
    assert disk.files() == []
    assert not removal.release_some()


def test_what_a_crash_left_of_deleted_journals_is_given_back_after_the_next_start() -> None:
    disk = disk_with(1, 1, 1)
    JournalRemoval(Env(disk=disk), [DIRECTORY]).retire([LogMark(3, 0)])
    assert len(retired(disk)) == 3
    disk.put(f"{DIRECTORY}/notes.old", b"not ours")
    removal = JournalRemoval(Env(disk=disk), [DIRECTORY])
    while removal.release_some():
        pass
    assert disk.files() == [f"{DIRECTORY}/notes.old"]


def test_deleted_journals_do_not_heap_up_without_calls_to_release_them() -> None:
    disk = disk_with(*[1] * 20)
    removal = JournalRemoval(Env(disk=disk), [DIRECTORY])
    for journal_id in range(20):
        removal.retire([LogMark(journal_id + 1, 0)])
        assert len(retired(disk)) <= 4
    removal.release_all()
    assert disk.files() == []


async def test_checkpoints_give_the_space_back_and_a_stop_leaves_none(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    removal = opened(world.storage).checkpointer.journals
    for entry_id in range(8):
        await world.append(run_of(1, [entry_id], b"x" * 40_000))
        await world.storage.flush()
    assert opened(world.storage).checkpointer.statistics.journals_deleted > 4
    assert retired(world.disk) == [], "each was small enough for one step"
    for journal_id in range(3):
        world.disk.put(f"{DIRECTORY}/{journal_id:x}.txn", bytes(3 * RELEASE_BYTES))
    assert removal.retire([LogMark(3, 0)]) == 3
    await world.storage.stop()
    assert retired(world.disk) == []


def test_a_journal_that_a_power_cut_left_both_names_is_given_back_once() -> None:
    """Found by the simulator: every later checkpoint failed on the file that was gone."""
    disk = disk_with(1, 1)
    disk.put(f"{DIRECTORY}/0.txn.old", bytes(1))
    removal = JournalRemoval(Env(disk=disk), [DIRECTORY])
    assert removal.retire([LogMark(1, 0)]) == 1
    assert not removal.release_some()
    assert disk.files() == [f"{DIRECTORY}/1.txn"]
    assert not removal.release_some()
