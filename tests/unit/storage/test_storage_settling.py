"""A bookie is killed before a sync, and the next one acts upon what it finds: then power is cut."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from test_storage_compaction import KEPT, check, compact, half_dead
from test_storage_gc import Garbage

from doubles.inside import opened
from doubles.storage_world import PowerLostError, World, run_of
from quorumbook.errors import StorageError


def fail_at(world: World, operation: str, part: str) -> None:
    """Let a call of the disk fail, and all that come behind it."""
    is_over = False

    def on_call(called: str, path: str) -> None:
        nonlocal is_over
        is_over = is_over or (called == operation and part in path)
        if is_over:
            raise PowerLostError(f"killed at {called}", path=path)

    world.disk.faults.on_call = on_call


async def test_a_rebuild_does_not_believe_copies_of_compaction_that_are_not_durable(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await half_dead(world)
    fail_at(world, "sync", ".log")
    # The error goes to the collector's log: the pass is given up.
    await compact(Garbage(world, *KEPT))
    await world.kill()
    Path(world.index_path).unlink()
    assert (await world.start()).is_index_rebuilt
    garbage = Garbage(world, *KEPT)
    before = garbage.logs()
    await garbage.collect()
    assert set(garbage.logs()) < set(before), "nothing is to be found out here"
    await world.crash()
    await world.start()
    await check(world)


class _IndexFiles:
    """The index's file and its log of changes, as they are now."""

    def __init__(self, path: str) -> None:
        self._content = {
            path + suffix: Path(path + suffix).read_bytes()
            for suffix in ("", "-wal")
            if Path(path + suffix).exists()
        }
        self._shared = Path(f"{path}-shm")

    def put_back(self) -> None:
        self._shared.unlink(missing_ok=True)
        for path, content in self._content.items():
            Path(path).write_bytes(content)


async def test_a_start_does_not_remove_a_log_for_the_sake_of_a_commit_that_is_not_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    await half_dead(world)
    await world.storage.flush()
    index = opened(world.storage).index
    move, files = index.move_runs, []

    def move_runs(*what: Any) -> int:
        files.append(_IndexFiles(world.index_path))
        move(*what)
        files.append(_IndexFiles(world.index_path))
        raise PowerLostError("killed in the commit")

    index.move_runs = move_runs  # type: ignore[method-assign]
    await compact(Garbage(world, *KEPT))
    await world.kill()
    durable, cached = files
    # In one process SQLite ends well, which a kill does not.
    cached.put_back()
    synced = set()
    sync = os.fsync

    def fsync(fd: int) -> None:
        synced.add(os.path.realpath(f"/proc/self/fd/{fd}"))
        sync(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    before = {path for path in world.disk.files() if path.endswith(".log")}
    assert not (await world.start()).is_index_rebuilt
    assert {path for path in world.disk.files() if path.endswith(".log")} < before
    await world.crash()
    if os.path.realpath(f"{world.index_path}-wal") not in synced:
        durable.put_back()
    await world.start()
    await check(world)


@pytest.mark.parametrize("operation", ["open", "write", "sync"])
async def test_a_ledger_in_limbo_stays_so_when_the_bookie_dies_before_the_copies_tell(
    tmp_path: Path, operation: str
) -> None:
    world = World(tmp_path, directories=1)
    await world.start()
    await world.append(run_of(1, range(10)))
    await world.storage.flush()
    fail_at(world, operation, "ledger-states")
    with pytest.raises(StorageError):
        await world.storage.put_in_limbo([1], fence=False)
    await world.kill()
    await world.start()
    await world.crash()
    Path(world.index_path).unlink()
    assert (await world.start()).is_index_rebuilt
    assert world.handle(1).is_in_limbo


async def test_a_fence_that_is_served_from_memory_on_a_full_disk_is_durable(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    await world.append(run_of(1, range(200), b"x" * 200))
    fail_at(world, "sync", ".txn")
    with pytest.raises(StorageError):
        await world.fence(1)
    await world.kill()
    world.disk.capacity_bytes = 1000
    assert (await world.start()).is_full
    assert world.handle(1).is_fenced, "nothing is to be found out here"
    await world.crash()
    world.disk.capacity_bytes = None
    await world.start()
    assert world.handle(1).is_fenced
    assert await world.ids(1) == list(range(200))


async def test_a_start_writes_the_log_of_the_index_into_the_file(tmp_path: Path) -> None:
    """Found by the simulator: a sync of it failed, and later ones, which succeeded, did nothing."""
    world = World(tmp_path)
    await world.start()
    await world.append(run_of(1, range(10)))
    await world.storage.flush()
    index, log = Path(world.index_path), Path(f"{world.index_path}-wal")
    killed = index.read_bytes(), log.read_bytes()
    assert killed[1]
    await world.kill()
    # That closed the index, which SIGKILL does not.
    index.write_bytes(killed[0])
    log.write_bytes(killed[1])
    await world.start()
    assert not log.exists() or not log.stat().st_size
    assert index.stat().st_size > len(killed[0])
    assert await world.ids(1) == list(range(10))
