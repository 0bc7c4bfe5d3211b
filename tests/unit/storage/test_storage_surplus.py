"""Copies that other bookies keep: when they go, what stays of them, and when they never go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from test_storage_gc import FakeCluster, Garbage, filled

from doubles.storage_world import KEY, World, run_of
from quorumbook.errors import MetadataUnavailableError, NoSuchEntryError
from quorumbook.storage.options import GcOptions

DAY = 24 * 60
GRACE = 60
OPTIONS = GcOptions(confirm_interval_s=60.0, reserve_size_bytes=0)


async def surplus(world: World, *ledger_ids: int) -> Garbage:
    """Return a collector that found the copy of ledger 1 to be surplus, and all others not."""
    await filled(world, *ledger_ids)
    await world.append(run_of(1, [19], lac=18))
    await world.storage.flush()
    await world.restart()  # its entry log is complete
    garbage = Garbage(world, *ledger_ids, options=OPTIONS)
    garbage.cluster.kept_elsewhere = {1}
    await garbage.collect(minutes=DAY)
    assert garbage.collector.statistics.surplus_copies == 1
    return garbage


async def ids(world: World) -> list[int]:
    return await world.ids(1)


async def test_r28_a_copy_kept_elsewhere_goes_after_its_grace_and_its_fence_stays(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    garbage = await surplus(world, 1, 2)
    handle = world.storage.handle(1)
    assert handle is not None
    assert handle.last_add_confirmed == 18
    await garbage.collect(minutes=GRACE - 1)
    assert await ids(world) == list(range(20))
    await garbage.collect(minutes=1)
    assert garbage.collector.statistics.dropped_copies == 1
    for _ in range(2):
        assert await ids(world) == []
        assert isinstance((await world.read((1, 0)))[0], NoSuchEntryError)
        assert await world.ids(2) == list(range(20))
        handle = world.storage.handle(1)
        assert handle is not None
        assert handle.is_fenced, "a writer that slept through the ledger's recovery is refused"
        assert handle.last_add_confirmed == 18, "what a reader was told stays told"
        assert handle.accepts_key(KEY)
        assert not handle.accepts_key(b"another key of 20 by")
        await world.restart()
    await world.storage.stop()


async def test_r28_a_dropped_copy_that_is_needed_again_is_stored_like_any_other(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    garbage = await surplus(world, 1)
    await garbage.collect(minutes=GRACE)
    await world.append(run_of(1, range(5, 9), b"copied again"))
    garbage.cluster.kept_elsewhere.clear()
    await garbage.collect(minutes=DAY)
    for _ in range(2):
        assert await ids(world) == [5, 6, 7, 8]
        await world.restart()
    Path(world.index_path).unlink()
    await world.crash()
    await world.start()
    assert await ids(world) == [5, 6, 7, 8], "what was dropped does not come back from the logs"
    await world.storage.stop()


@pytest.mark.parametrize("is_flushed", [False, True])
async def test_r28_s60_a_copy_that_is_being_made_is_never_dropped(
    tmp_path: Path, is_flushed: bool
) -> None:
    world = World(tmp_path)
    garbage = await surplus(world, 1)
    await world.append(run_of(1, range(3)))
    if is_flushed:
        await world.storage.flush()
    await garbage.collect(minutes=GRACE)
    assert await ids(world) == list(range(20))
    # It counts as found anew: the grace begins again.
    await garbage.collect(minutes=DAY)
    await garbage.collect(minutes=GRACE - 1)
    assert await ids(world) == list(range(20))
    await world.storage.stop()


async def test_r28_s60_a_copy_that_begins_while_the_old_one_is_dropped_stays_whole(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    garbage = await surplus(world, 1)
    adds = []

    def begin() -> None:
        adds.append(world.append(run_of(1, range(5))))

    garbage.cluster.on_surplus = begin
    await garbage.collect(minutes=GRACE)
    garbage.cluster.on_surplus = lambda: None
    for add in adds:
        await add
    assert set(range(5)) <= set(await ids(world))
    await world.storage.stop()


async def test_r28_s60_while_somebody_copies_the_ledger_nothing_is_dropped(tmp_path: Path) -> None:
    world = World(tmp_path)
    garbage = await surplus(world, 1)
    garbage.cluster.busy = {1}
    for _ in range(3):
        await garbage.collect(minutes=GRACE)
    assert await ids(world) == list(range(20))
    await world.storage.stop()


async def test_r28_what_is_looked_at_again_under_the_lock_decides(tmp_path: Path) -> None:
    world = World(tmp_path)
    garbage = await surplus(world, 1)
    garbage.cluster.kept_elsewhere.clear()
    await garbage.collect(minutes=GRACE)
    assert await ids(world) == list(range(20))
    garbage.cluster.kept_elsewhere = {1}
    await garbage.collect(minutes=DAY)
    garbage.cluster.on_surplus = garbage.cluster.locked.clear
    await garbage.collect(minutes=GRACE)
    assert await ids(world) == list(range(20)), "the lock was lost with its session"
    await world.storage.stop()


async def test_r28_a_store_that_fails_drops_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    garbage = await surplus(world, 1)
    garbage.cluster.error = MetadataUnavailableError("away")
    for _ in range(3):
        await garbage.collect(minutes=DAY)
    assert await ids(world) == list(range(20))
    await world.storage.stop()


async def test_r28_nothing_is_dropped_before_a_limbo_start_is_over_or_if_it_is_off(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    garbage = await surplus(world, 1)
    world.storage.needs_limbo_start = True
    await garbage.collect(minutes=GRACE)
    assert await ids(world) == list(range(20))
    world.storage.needs_limbo_start = False
    garbage.options = GcOptions(surplus_interval_s=0, reserve_size_bytes=0)
    garbage.restart()
    for _ in range(3):
        await garbage.collect(minutes=DAY)
    assert await ids(world) == list(range(20))
    assert isinstance(garbage.cluster, FakeCluster)
    await world.storage.stop()


async def moved(garbage: Garbage, *dead: int) -> None:
    """Have compaction move what lives beside ledgers that are deleted now."""
    before = garbage.collector.statistics.compacted_bytes
    await garbage.world.storage.delete_ledgers(dead)
    garbage.collector.trigger(major=True)
    await garbage.collect(minutes=0)
    assert garbage.collector.statistics.compacted_bytes > before


@pytest.mark.parametrize("moves", [1, 2])
async def test_r28_a_copy_that_compaction_moved_goes_after_its_grace(
    tmp_path: Path, moves: int
) -> None:
    world = World(tmp_path)
    garbage = await surplus(world, 1, 2, 3, 4, 5)
    await moved(garbage, 2, 3)
    if moves == 2:
        await moved(garbage, 4, 5)
    await garbage.collect(minutes=GRACE - 1)
    assert await ids(world) == list(range(20))
    await garbage.collect(minutes=1)
    assert await ids(world) == []
    assert garbage.collector.statistics.dropped_copies == 1
    await world.storage.stop()


@pytest.mark.parametrize("is_before", [True, False])
async def test_r28_s60_a_copy_made_again_before_or_after_a_move_begins_its_grace_again(
    tmp_path: Path, is_before: bool
) -> None:
    world = World(tmp_path)
    garbage = await surplus(world, 1, 2, 3, 4)
    for is_copy in (is_before, not is_before):
        if is_copy:
            # The very run that is here already, as a worker sends it.
            await world.append(run_of(1, [19], lac=18))
            await world.storage.flush()
        else:
            await moved(garbage, 2, 3, 4)
    await garbage.collect(minutes=GRACE)
    assert await ids(world) == list(range(20))
    assert garbage.collector.statistics.surplus_copies == 0
    await world.storage.stop()


async def held_by_a_worker(garbage: Garbage) -> None:
    garbage.cluster.busy = {1}
    await garbage.collect(minutes=GRACE)
    garbage.cluster.busy = set()


async def under_a_failing_store(garbage: Garbage) -> None:
    garbage.cluster.error = MetadataUnavailableError("away")
    await garbage.collect(minutes=GRACE)
    garbage.cluster.error = None


async def with_a_lost_lock(garbage: Garbage) -> None:
    garbage.cluster.on_surplus = garbage.cluster.locked.clear
    await garbage.collect(minutes=GRACE)
    garbage.cluster.on_surplus = lambda: None


async def beside_a_checkpoint(garbage: Garbage) -> None:
    book = garbage.world.storage.gc._visible  # the table that the collector sees

    def checkpoint() -> None:
        book.checkpoints += 1

    garbage.cluster.on_surplus = checkpoint
    await garbage.collect(minutes=GRACE)
    garbage.cluster.on_surplus = lambda: None


@pytest.mark.parametrize(
    "hindered", [held_by_a_worker, under_a_failing_store, with_a_lost_lock, beside_a_checkpoint]
)
async def test_r28_a_copy_that_could_not_go_now_goes_in_the_next_pass(
    tmp_path: Path, hindered: Callable[[Garbage], object]
) -> None:
    world = World(tmp_path)
    garbage = await surplus(world, 1)
    await hindered(garbage)  # type: ignore[misc]
    assert await ids(world) == list(range(20))
    await garbage.collect(minutes=1)
    assert await ids(world) == []
    await world.storage.stop()


async def test_r28_s60_a_search_that_finds_more_of_a_copy_begins_its_grace_again(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await filled(world, 1)
    garbage = Garbage(world, 1, options=replace(OPTIONS, surplus_interval_s=20 * 60))
    garbage.cluster.kept_elsewhere = {1}
    await garbage.collect(minutes=20)
    await world.append(run_of(1, range(20), b"x" * 400))
    await world.storage.flush()
    await garbage.collect(minutes=20)
    await garbage.collect(minutes=GRACE - 1)
    assert await ids(world) == list(range(20))
    await garbage.collect(minutes=1)
    assert await ids(world) == []
    await world.storage.stop()
