"""When checkpoints run, and what a caller of ``flush`` may rely on."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from doubles.sim_threads import turn
from doubles.storage_world import World, run_of, until


async def test_a_flush_waits_for_the_checkpoint_that_took_its_changes_along(
    tmp_path: Path,
) -> None:
    """A timer may begin it in the very moment in which the checkpoint before it ends."""
    world = World(tmp_path)
    await world.start()
    worker = world.threads.workers["storage-flush"]
    flusher = world.storage._flusher
    await world.append(run_of(1, range(3)))
    worker.auto = False
    before = asyncio.ensure_future(world.storage.flush())
    await until(lambda: worker.jobs)
    limbo = asyncio.ensure_future(world.storage.put_in_limbo([7]))
    await turn()
    job, done = worker.jobs.popleft()
    done(job())
    flusher._by_time()
    await before
    await turn()
    assert not limbo.done(), "the limbo is on no disk yet"
    worker.auto = True
    worker.run_next()
    await limbo
    await world.crash()
    await world.start()
    handle = world.storage.handle(7)
    assert handle is not None
    assert handle.is_in_limbo


async def test_r10_a_fence_behind_a_deletion_is_in_the_copies_too(tmp_path: Path) -> None:
    """One checkpoint brings the end of a ledger and its new beginning; the later one counts."""
    world = World(tmp_path)
    await world.start()
    worker = world.threads.workers["storage-flush"]
    await world.append(run_of(1, range(3)))
    worker.auto = False
    first = asyncio.ensure_future(world.storage.flush())
    await until(lambda: worker.jobs)
    deletion = asyncio.ensure_future(world.storage.delete_ledgers([1]))
    await turn()
    await world.fence(1)
    worker.auto = True
    worker.run_next()
    await first
    await deletion
    await world.storage.flush()
    await world.crash()
    for name in os.listdir(tmp_path):
        if name.startswith("index.sqlite"):
            os.unlink(tmp_path / name)
    report = await world.start()
    assert report.is_index_rebuilt
    handle = world.storage.handle(1)
    assert handle is not None
    assert handle.is_fenced


async def test_a_bookie_may_flush_up_to_a_third_before_its_cache_is_full(tmp_path: Path) -> None:
    """So that those of one ensemble fall out of step; each flush has a size of its own."""
    world = World(tmp_path)
    await world.start()
    flusher = world.storage._flusher
    size = world.options.write_cache_size_bytes
    for entry_id, (saved, begins) in enumerate([(0, False), (size // 3, True)]):
        flusher._random_below = lambda below, saved=saved: min(saved, below - 1)  # type: ignore[misc]
        await world.append(run_of(1, [10 * entry_id]))
        await world.storage.flush()
        await world.append(run_of(1, [10 * entry_id + 1], b"x" * (size * 3 // 4)))
        await turn()
        assert (world.cached_entry(1, 10 * entry_id + 1) is None) is begins
        await world.storage.flush()
