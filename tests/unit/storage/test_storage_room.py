"""The storage facade: room for adds, and disks that are full."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from doubles.inside import caches_of, opened, writes_of
from doubles.records import entry
from doubles.storage_world import World, run_of
from doubles.waiting import until
from quorumbook.errors import DiskFullError, StorageError


async def started(tmp_path: Path, **options: object) -> World:
    world = World(tmp_path, **options)  # type: ignore[arg-type]
    await world.start()
    return world


async def test_room_is_counted_from_the_journal_to_the_flush(tmp_path: Path) -> None:
    world = await started(tmp_path)
    limit = 2 * world.options.write_cache_size_bytes
    assert world.storage.has_room(10 * limit), "an empty storage admits one frame of any size"
    world.threads.workers["storage-flush"].auto = False
    entry_id = 0
    while world.storage.has_room(9000):
        await world.append(run_of(1, range(entry_id, entry_id + 8), b"r" * 1000))
        entry_id += 8
    assert limit - 9000 < caches_of(world.storage).unflushed_bytes <= limit
    assert world.storage.has_room(9000, reserve=True), "recovery adds have a reserve"
    room = asyncio.ensure_future(world.wait_room(9000))
    await asyncio.sleep(0)
    assert not room.done()
    world.threads.workers["storage-flush"].auto = True
    world.threads.workers["storage-flush"].run_next()
    await room
    assert await world.ids(1) == list(range(entry_id))


async def test_what_the_journal_holds_counts_too(tmp_path: Path) -> None:
    world = await started(tmp_path)
    world.threads.workers["journal"].auto = False
    limit = 2 * world.options.write_cache_size_bytes
    world.append(run_of(1, range(4), b"j" * (limit // 4)))
    assert not world.storage.has_room(100)
    world.append(run_of(2, [0], b"second"))
    while world.threads.workers["journal"].jobs or writes_of(world.storage).journaling_bytes:
        world.threads.workers["journal"].run_next()
        await asyncio.sleep(0)
    assert writes_of(world.storage).journaling_bytes == 0


async def test_a_full_disk_is_reported_once_reads_go_on_and_flushing_resumes(
    tmp_path: Path,
) -> None:
    world = await started(tmp_path)
    await world.append(run_of(1, range(50), b"f" * 500))
    world.disk.capacity_bytes = world.disk.used_bytes()
    with pytest.raises(StorageError):
        await world.storage.flush()
    with pytest.raises(StorageError):
        await world.storage.flush()
    assert world.full == ["full"]
    assert world.storage.is_full
    assert await world.read_one(1, 49) == entry(1, 49, b"f" * 500, -1)
    assert world.fatal == []
    world.disk.capacity_bytes = None
    await until(lambda: not world.storage.is_full)
    assert world.full == ["full", "space"]
    assert world.cached_entry(1, 49) is None
    assert await world.read_one(1, 49) == entry(1, 49, b"f" * 500, -1)


async def test_s55_a_start_on_a_full_disk_comes_up_and_flushes_when_there_is_space(
    tmp_path: Path,
) -> None:
    world = await started(tmp_path)
    await world.append(run_of(1, range(300), b"f" * 500))
    await world.append(run_of(1, range(300, 400), b"f" * 500))
    await world.fence(2)
    await world.crash()
    world.disk.capacity_bytes = world.disk.used_bytes()
    for _ in range(2):
        report = await world.start()
        assert report.is_full
        assert world.storage.is_full
        assert await world.read_one(1, 399) == entry(1, 399, b"f" * 500, 299)
        assert await world.ids(1) == list(range(400))
        assert world.handle(2).is_fenced
        await world.crash()
    await world.start()
    world.disk.capacity_bytes = None
    await until(lambda: not world.storage.is_full)
    await world.storage.flush()
    await world.crash()
    assert (await world.start()).replayed_entries == 0
    assert await world.ids(1) == list(range(400))


async def test_a_flush_that_fails_for_other_reasons_is_tried_again_then_fatal(
    tmp_path: Path,
) -> None:
    world = await started(tmp_path)
    await world.append(run_of(1, range(5)))
    world.disk.faults.fail("sync", ".log")
    with pytest.raises(StorageError):
        await world.storage.flush()
    await world.storage.flush()
    assert world.cached_entry(1, 0) is None
    assert await world.ids(1) == list(range(5))
    await world.append(run_of(1, range(5, 9)))
    world.disk.faults.fail("write", ".log", permanent=True)
    await until(lambda: (world.storage.flush and _try_flush(world)) or world.fatal)
    assert world.full == []
    world.disk.faults.heal()
    await world.restart()
    assert await world.ids(1) == list(range(9))


def _try_flush(world: World) -> bool:
    task = asyncio.ensure_future(world.storage.flush())
    task.add_done_callback(lambda task: task.exception())
    return False


async def test_an_entry_larger_than_what_is_left_has_the_cache_flushed_for_it(
    tmp_path: Path,
) -> None:
    """Waiting for the interval would refuse it for a minute although nothing is wrong."""
    world = await started(tmp_path)
    await world.append(run_of(1, range(4)))
    size = 2 * world.options.write_cache_size_bytes
    assert not world.storage.has_room(size)
    async with asyncio.timeout(60):
        await world.wait_room(size)
    assert world.cached_entry(1, 0) is None, "it was flushed"


async def test_an_entry_that_waits_behind_the_journal_has_the_cache_flushed_for_it(
    tmp_path: Path,
) -> None:
    world = await started(tmp_path)
    world.threads.workers["journal"].auto = False
    first = world.append(run_of(1, range(4)))
    size = 2 * world.options.write_cache_size_bytes
    room = asyncio.ensure_future(world.wait_room(size))
    await asyncio.sleep(0)
    world.threads.workers["journal"].auto = True
    world.threads.workers["journal"].run_next()
    await first
    async with asyncio.timeout(60):
        await room


async def test_a_flush_tried_again_on_a_full_disk_takes_no_more_space_each_time(
    tmp_path: Path,
) -> None:
    """What a failed flush left in entry logs would eat up every byte that somebody frees."""
    world = await started(tmp_path)
    await world.append(run_of(1, range(50), b"f" * 500))
    await world.storage.flush()
    await world.append(run_of(1, range(50, 100), b"f" * 500))

    def in_logs() -> int:
        return sum(len(world.disk.get(path)) for path in world.disk.files() if ".log" in path)

    used, logs = world.disk.used_bytes(), in_logs()
    world.disk.capacity_bytes = used + 4000
    for _ in range(4):
        with pytest.raises(StorageError):
            await world.storage.flush()
    assert in_logs() == logs
    world.disk.capacity_bytes = used + 40_000
    await until(lambda: not world.storage.is_full)
    assert await world.read_one(1, 10) == entry(1, 10, b"f" * 500, -1)
    assert await world.read_one(1, 99) == entry(1, 99, b"f" * 500, 49)
    await world.restart()
    assert await world.ids(1) == list(range(100))


async def test_a_flush_that_only_the_index_refused_does_not_write_its_entries_again(
    tmp_path: Path,
) -> None:
    """The index may be on a full disk, and every copy would fill the disk of the entry logs."""
    world = await started(tmp_path)
    await world.append(run_of(1, range(50), b"i" * 500))
    index = opened(world.storage).index
    commit = index.commit

    def full(**what: object) -> list[tuple[int, int, int]]:
        raise DiskFullError("no space left for the index")

    index.commit = full  # type: ignore[method-assign, assignment]
    for _ in range(3):
        with pytest.raises(StorageError):
            await world.storage.flush()
    written = opened(world.storage).entry_logs.bytes_written
    assert written < 2 * 50 * 540
    await world.append(run_of(2, range(5), b"later"))
    index.commit = commit  # type: ignore[method-assign]
    await until(lambda: not world.storage.is_full)
    await world.storage.flush()
    await world.crash()
    await world.start()
    assert await world.ids(1) == list(range(50))
    assert await world.read_one(1, 49) == entry(1, 49, b"i" * 500, -1)
    assert await world.ids(2) == list(range(5))
