"""What a flush has just written is read from memory, and what it must not bring back."""

from __future__ import annotations

import asyncio
from pathlib import Path

from doubles.inside import caches_of
from doubles.records import entry
from doubles.storage_world import World, run_of
from doubles.waiting import until
from quorumbook.errors import NoSuchLedgerError
from quorumbook.storage.options import StorageOptions

MIB = 1024 * 1024
LARGE = StorageOptions(flush_interval_s=3600)


async def started(tmp_path: Path, options: StorageOptions = LARGE) -> World:
    world = World(tmp_path, options=options)
    await world.start()
    return world


def disk_reads(world: World) -> int:
    statistics = world.storage.statistics()
    return statistics["read_disk_reads"] + statistics["read_run_reads"]


async def test_a_freshly_flushed_stretch_is_served_without_the_disk(tmp_path: Path) -> None:
    world = await started(tmp_path)
    for first in range(0, 4000, 100):
        await world.append(run_of(1, range(first, first + 100), b"x" * 1000))
    await world.storage.flush()
    assert world.storage.statistics()["write_cache_bytes"] == 0
    for entry_id in (3999, 0, 1, 1777):
        body = entry(1, entry_id, b"x" * 1000, entry_id // 100 * 100 - 1)
        assert await world.read_one(1, entry_id) == body
        assert world.cached_entry(1, entry_id) == body
    assert (await world.read_batch(1, 500, 2000))[1] == 2000
    assert disk_reads(world) == 0


async def test_of_entries_added_again_the_newer_ones_are_served(tmp_path: Path) -> None:
    world = await started(tmp_path)
    await world.append(run_of(1, range(200), b"old" * 300))
    await world.storage.flush()
    await world.append(run_of(1, range(50, 150), b"new" * 300, 0))
    await world.storage.flush()
    await world.append(run_of(1, [60], b"newest", 1))
    for _ in range(2):
        for entry_id, payload, lac in (
            (49, b"old" * 300, -1),
            (50, b"new" * 300, 0),
            (60, b"newest", 1),
            (149, b"new" * 300, 0),
            (150, b"old" * 300, -1),
        ):
            assert await world.read_one(1, entry_id) == entry(1, entry_id, payload, lac)
        await world.storage.flush()


async def test_a_ledger_deleted_during_its_flush_is_not_served_afterwards(tmp_path: Path) -> None:
    world = await started(tmp_path)
    for ledger_id in (1, 2):
        await world.append(run_of(ledger_id, range(200), b"x" * 1000))
    worker = world.threads.workers["storage-flush"]
    worker.auto = False
    flushed = asyncio.ensure_future(world.storage.flush())
    await until(lambda: worker.jobs)
    worker.run_next()
    # The stretches are on their way to the loop, and so is the end of the flush.
    worker.auto = True
    await world.storage.delete_ledgers([1])
    await flushed
    assert world.cached_entry(1, 7) is None
    assert isinstance((await world.read((1, 7)))[0], NoSuchLedgerError)
    assert world.cached_entry(2, 7) is not None


async def test_kept_stretches_stay_within_the_limit_of_the_read_cache(tmp_path: Path) -> None:
    world = await started(
        tmp_path, StorageOptions(flush_interval_s=3600, read_cache_size_bytes=2 * MIB)
    )
    highest = 0
    put = caches_of(world.storage).read.put

    def watched(run: object) -> None:
        nonlocal highest
        put(run)  # type: ignore[arg-type]
        highest = max(highest, world.storage.statistics()["read_cache_bytes"])

    caches_of(world.storage).read.put = watched  # type: ignore[method-assign]
    for first in range(0, 8000, 100):
        await world.append(run_of(1, range(first, first + 100), b"x" * 1000))
    await world.storage.flush()
    assert MIB < highest <= 2 * MIB
    # The first ones went to make room.
    assert world.cached_entry(1, 0) is None
    assert world.cached_entry(1, 7999) is not None


async def test_thousands_of_short_stretches_are_left_to_the_disk(tmp_path: Path) -> None:
    world = await started(tmp_path)
    await world.append(*(run_of(ledger_id, range(3), b"x" * 100) for ledger_id in range(1, 2000)))
    await world.storage.flush()
    assert world.storage.statistics()["read_cache_bytes"] == 0
    assert await world.read_one(77, 1) == entry(77, 1, b"x" * 100, -1)
