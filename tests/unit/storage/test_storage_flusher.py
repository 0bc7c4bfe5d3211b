"""When checkpoints run, and what a caller of ``flush`` may rely on."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from doubles.inside import flush_by_time, flusher_of, opened
from doubles.sim_threads import turn
from doubles.storage_world import KEY, SMALL, World, run_of
from doubles.waiting import until
from quorumbook.errors import DiskFullError
from quorumbook.storage.cache import write as write_module
from quorumbook.storage.cache.write import WriteCache
from quorumbook.storage.checkpoint import schedule as flusher_module
from quorumbook.storage.checkpoint.checkpoint import Checkpoint
from quorumbook.storage.directories.places import current
from quorumbook.storage.journal.marks import LogMark
from quorumbook.storage.states.state_file import NAME, decode_states

#: More than one piece of a checkpoint, which rests behind each.
PIECE = 1024 * 1024


async def test_a_flush_waits_for_the_checkpoint_that_took_its_changes_along(
    tmp_path: Path,
) -> None:
    """A timer may begin it in the very moment in which the checkpoint before it ends."""
    world = World(tmp_path)
    await world.start()
    worker = world.threads.workers["storage-flush"]
    await world.append(run_of(1, range(3)))
    worker.auto = False
    before = asyncio.ensure_future(world.storage.flush())
    await until(lambda: worker.jobs)
    limbo = asyncio.ensure_future(world.storage.put_in_limbo([7]))
    await turn()
    job, done = worker.jobs.popleft()
    done(job())
    flush_by_time(world.storage)
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
    flusher = flusher_of(world.storage)
    size = world.options.write_cache_size_bytes
    for entry_id, (saved, begins) in enumerate([(0, False), (size // 3, True)]):
        flusher._random_below = lambda below, saved=saved: min(saved, below - 1)  # type: ignore[misc]
        await world.append(run_of(1, [10 * entry_id]))
        await world.storage.flush()
        await world.append(run_of(1, [10 * entry_id + 1], b"x" * (size * 3 // 4)))
        await turn()
        assert (world.cached_entry(1, 10 * entry_id + 1) is None) is begins
        await world.storage.flush()


async def paced(tmp_path: Path) -> tuple[World, list[float]]:
    """Return a storage with a checkpoint of six pieces to make, and its rests."""
    world = World(tmp_path, options=replace(SMALL, write_cache_size_bytes=16 * PIECE))
    await world.start()
    rests: list[float] = []
    world.threads.on_sleep = rests.append
    await six_pieces(world, 0)
    return world, rests


async def six_pieces(world: World, entry_id: int) -> None:
    for ledger_id in range(6):
        await world.append(run_of(ledger_id, [entry_id], b"x" * PIECE))


async def test_a_checkpoint_that_nobody_waits_for_rests_between_its_pieces(tmp_path: Path) -> None:
    world, rests = await paced(tmp_path)
    flush_by_time(world.storage)
    await until(lambda: world.cached_entry(1, 0) is None)
    assert len(rests) == 6
    await world.storage.stop()


async def test_a_checkpoint_of_many_ledgers_rests_however_little_each_has(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    rests: list[float] = []
    world.threads.on_sleep = rests.append
    for ledger_id in range(1000):
        world.handle(ledger_id)
    await asyncio.gather(*[world.append(run_of(one, [0])) for one in range(1000)])
    flush_by_time(world.storage)
    await until(lambda: world.cached_entry(999, 0) is None)
    # And pauses between four pieces of their states, and behind each of eight slices of rows.
    lengths = (flusher_module._REST_S, flusher_module._PAUSE_S)
    assert [rests.count(length) for length in lengths] == [3, 3 + 8]
    await world.storage.stop()


async def test_a_checkpoint_does_not_pause_while_the_next_one_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    await world.start()
    pauses: list[float] = []

    def change(seconds: float) -> None:
        if seconds == flusher_module._PAUSE_S:  # no rest
            pauses.append(seconds)
            monkeypatch.setattr(flusher_module, "_CHANGED_LEDGERS_MAX", 0)

    world.threads.on_sleep = change
    for ledger_id in range(1000):
        world.handle(ledger_id)
    await asyncio.gather(*[world.append(run_of(one, [0])) for one in range(1000)])
    flush_by_time(world.storage)
    await until(lambda: world.cached_entry(999, 0) is None)
    assert len(pauses) == 1
    await world.storage.stop()


async def test_a_checkpoint_hurries_when_many_ledgers_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher_module, "_CHANGED_LEDGERS_MAX", 20)
    world, rests = await paced(tmp_path)
    table = opened(world.storage).visible.table

    def change(seconds: float) -> None:
        rests.append(seconds)
        for ledger_id in range(10):
            table.mark_dirty(world.handle(ledger_id))

    world.threads.on_sleep = change
    flush_by_time(world.storage)
    await until(lambda: world.cached_entry(1, 0) is None)
    assert len(rests) == 1
    await world.storage.stop()


async def test_ledgers_that_are_new_have_no_copy_of_states_written_anew(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    content = b""
    for start in range(0, 3000, 1000):
        await asyncio.gather(*[world.append(run_of(start + one, [0])) for one in range(1000)])
        await world.storage.flush()
        before, content = content, world.disk.get(f"/ledgers0/current/{NAME}")
        assert content.startswith(before)
    assert len(content) > 3000 * len(KEY)
    await world.storage.stop()


async def test_a_checkpoint_hurries_when_the_next_cache_fills(tmp_path: Path) -> None:
    world, rests = await paced(tmp_path)

    def fill(seconds: float) -> None:
        rests.append(seconds)
        opened(world.storage).visible.add(
            world.handle(9), run_of(9, [len(rests)], b"x" * 10 * PIECE), 0
        )

    world.threads.on_sleep = fill
    flush_by_time(world.storage)
    await until(lambda: world.cached_entry(1, 0) is None)
    assert len(rests) == 1, "what came in its first rest leaves no time for another"
    await world.storage.stop()


async def test_a_checkpoint_that_somebody_waits_for_does_not_rest(tmp_path: Path) -> None:
    world, rests = await paced(tmp_path)
    await world.storage.flush()
    await six_pieces(world, 1)
    await world.storage.stop()
    assert rests == []


async def test_a_checkpoint_under_way_rests_no_more_when_room_is_wanted_or_the_storage_stops(
    tmp_path: Path,
) -> None:
    world, rests = await paced(tmp_path)
    asked: list[Callable[[], object]] = [
        lambda: world.storage.on_room(lambda: None),
        flusher_of(world.storage).halt,
    ]
    for entry_id, ask in enumerate(asked, start=1):
        rests.clear()
        world.threads.on_sleep = lambda seconds, ask=ask: (rests.append(seconds), ask())  # type: ignore[misc]
        flush_by_time(world.storage)
        await until(lambda before=entry_id - 1: world.cached_entry(1, before) is None)
        assert len(rests) == 1
        await six_pieces(world, entry_id)


async def test_a_full_disk_gets_the_space_of_deleted_journals_at_once(tmp_path: Path) -> None:
    world, _ = await paced(tmp_path)
    await world.storage.flush()
    world.disk.put("/journal/current/1.txn", bytes(1000))
    assert opened(world.storage).checkpointer.journals.retire([LogMark(2, 0)]) == 1
    world.disk.faults.fail("write", ".log", error=DiskFullError)
    await world.append(run_of(1, [1]))
    with pytest.raises(DiskFullError):
        await world.storage.flush()
    assert not [path for path in world.disk.files() if path.endswith(".old")]
    await world.storage.flush()
    await world.storage.stop()


async def test_a_full_disk_has_no_other_filled_with_the_same_states_again_and_again(
    tmp_path: Path,
) -> None:
    world, _ = await paced(tmp_path)
    await world.storage.flush()
    await six_pieces(world, 1)
    world.handle(7)
    await world.append(run_of(7, [0]))
    name = f"{current(world.directories[0])}/{NAME}"
    full = f"{current(world.directories[1])}/{NAME}"
    world.disk.faults.fail("write", full, error=DiskFullError, permanent=True)
    sizes = set()
    for _ in range(3):
        with pytest.raises(DiskFullError):
            await world.storage.flush()
        sizes.add(len(world.disk.get(name)))
    assert len(sizes) == 1
    world.disk.faults.heal()
    await world.storage.flush()
    states = [decode_states(world.disk.get(each)).states for each in (name, full)]
    assert states[0] == states[1]
    assert 7 in states[0]
    await world.storage.stop()


async def test_fences_of_very_many_ledgers_are_stored_and_leave_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flusher_module, "_CHANGED_LEDGERS_MAX", 50)
    world = World(tmp_path)
    await world.start(max_idle_handles=10)
    table = opened(world.storage).visible.table
    for ledger_id in range(200):
        done: list[BaseException | None] = []
        handle = world.storage.create_handle(ledger_id, KEY)
        world.storage.fence(handle, done.append)
        del handle
        await until(lambda done=done: done)
    await until(lambda: len(table) <= 60 and len(table.dirty) < 50)
    for ledger_id in range(200):
        handle = world.storage.handle(ledger_id)
        assert handle is not None
        assert handle.is_fence_durable


async def test_what_a_checkpoint_held_is_freed_in_several_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[bool] = []
    take_apart = Checkpoint.take_apart

    def counted(checkpoint: Checkpoint, count: int) -> bool:
        freed.append(take_apart(checkpoint, count))
        if not freed[-1]:
            assert not any([checkpoint.handles, checkpoint.states, checkpoint.runs])
        return freed[-1]

    monkeypatch.setattr(Checkpoint, "take_apart", counted)
    monkeypatch.setattr(flusher_module, "_FREED_A_TURN", 10)
    world = World(tmp_path)
    await world.start()
    for ledger_id in range(25):
        await world.append(run_of(ledger_id, [0]))
    await world.storage.flush()
    await until(lambda: not freed[-1])
    assert freed == [True, True, False]
    assert all(world.handle(ledger_id).last_entry_id == 0 for ledger_id in range(25))
    await world.storage.stop()


def test_a_cache_is_taken_apart_by_ledgers() -> None:
    cache = WriteCache()
    for ledger_id in range(5):
        cache.add(run_of(ledger_id, [0, 1]))
    assert [cache.take_apart(2) for _ in range(4)] == [True, True, False, False]
    assert cache.find(0, 0) is None


def test_a_cache_of_large_entries_is_taken_apart_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_module, "_FREED_AT_ONCE_BYTES", 3000)
    cache = WriteCache()
    for ledger_id in range(2):
        for entry_id in range(5):
            cache.add(run_of(ledger_id, [entry_id], b"x" * 1000))
    assert [cache.take_apart(100) for _ in range(4)] == [True, True, True, False]
