"""Compaction: what lives moves, the rest goes, and no crash or full disk loses anything."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest
from test_storage_gc import OPTIONS, Garbage

from doubles.inside import opened
from doubles.storage_world import SMALL, World, run_of
from quorumbook.errors import StorageError
from quorumbook.protocol.digest import DigestType, digester
from quorumbook.storage.directories.reserve import COMPACTION_NAME
from quorumbook.storage.gc import gc_storage
from quorumbook.storage.gc.logs import EntryLogKeeper
from quorumbook.storage.options import Damage, GcOptions

#: Of a log of this size a third of the ledgers stays.
KEPT, DEAD = (3, 6), (1, 2, 4, 5)


async def half_dead(world: World) -> None:
    """Fill logs with six ledgers side by side, then delete four of them."""
    await world.start()
    for first in (0, 10, 20):
        for ledger_id in sorted((*KEPT, *DEAD)):
            await world.append(run_of(ledger_id, range(first, first + 10), b"%d" % first * 300))
    # One that was cut in two, one with holes.
    await world.append(run_of(3, [4, 5], b"again"))
    await world.append(run_of(6, [30, 33, 36], b"holes" * 50))
    await world.storage.flush()
    await world.storage.stop()
    await world.start()
    await world.storage.delete_ledgers(DEAD)


async def check(world: World) -> None:
    assert await world.ids(3) == list(range(30))
    assert await world.ids(6) == [*range(30), 30, 33, 36]
    for ledger_id in KEPT:
        for entry_id in await world.ids(ledger_id):
            body = await world.read_one(ledger_id, entry_id)
            if (ledger_id, entry_id) in ((3, 4), (3, 5)):
                assert body.endswith(b"again")
            elif entry_id >= 30:
                assert body.endswith(b"holes" * 50)
            else:
                assert body.endswith(b"%d" % (entry_id // 10 * 10) * 300)


def sizes(world: World) -> int:
    return sum(len(world.disk.get(path)) for path in world.disk.files() if path.endswith(".log"))


async def compact(garbage: Garbage) -> None:
    garbage.collector.trigger(major=True)
    await garbage.collect(minutes=0)


async def test_compaction_moves_what_lives_and_deletes_the_old_log(tmp_path: Path) -> None:
    world = World(tmp_path)
    await half_dead(world)
    garbage = Garbage(world, *KEPT)
    before, old = sizes(world), set(garbage.logs())
    await compact(garbage)
    assert sizes(world) < before / 2
    assert not old & set(garbage.logs())
    await check(world)
    statistics = garbage.collector.statistics
    assert statistics.major_compactions == 1
    assert statistics.reclaimed_compaction_bytes == before
    await compact(garbage)
    assert statistics.reclaimed_compaction_bytes == before, "what is whole stays"
    await world.restart()
    await check(world)
    await world.storage.stop()


async def test_r29_s62_a_crash_at_any_disk_call_of_compaction_loses_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    call = 0
    while True:
        call += 1
        directory = tmp_path / str(call)
        directory.mkdir()
        world = World(directory)
        await half_dead(world)
        garbage = Garbage(world, *KEPT)
        world.watch_commits()
        watch_moves(world)
        world.cut_power_at(call)
        await compact(garbage)
        was_cut = world.has_lost_power
        rng = random.Random(call)
        await world.crash(rng, keep=rng.choice([0.0, 0.5, 1.0]))
        await world.start()
        await check(world)
        garbage = Garbage(world, *KEPT)
        await compact(garbage)
        await check(world)
        index = opened(world.storage).index
        on_disk = {int(Path(path).stem, 16) for path in garbage.logs()}
        assert on_disk == set(index.live_bytes()), "nothing is left behind"
        await world.storage.stop()
        if not was_cut:
            break
        if call % 3 == 0:
            # And an index that is lost is rebuilt from what compaction wrote.
            Path(world.index_path).unlink()
            await world.start()
            await check(world)
            await world.storage.stop()
    assert call > 10


def watch_moves(world: World) -> None:
    index = opened(world.storage).index
    move_runs = index.move_runs

    def watched(*what: object) -> int:
        on_call = world.disk.faults.on_call or (lambda *_: None)
        on_call("move", "index")
        moved = move_runs(*what)  # type: ignore[arg-type]
        on_call("moved", "index")
        return moved

    index.move_runs = watched  # type: ignore[method-assign,assignment]


async def test_what_is_added_after_a_copy_wins_also_in_a_rebuilt_index(tmp_path: Path) -> None:
    world = World(tmp_path)
    await half_dead(world)
    # The log that is being flushed to is older than the one that compaction will begin.
    await world.append(run_of(9, range(3)))
    await world.storage.flush()
    garbage = Garbage(world, *KEPT, 9)
    await compact(garbage)
    await world.append(run_of(3, [7], b"newest"))
    await world.storage.flush()
    await world.storage.stop()
    Path(world.index_path).unlink()
    await world.start()
    assert (await world.read_one(3, 7)).endswith(b"newest")
    await world.storage.stop()


async def test_a_log_that_fell_off_the_list_is_kept_by_the_runs_in_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    await half_dead(world)
    index = opened(world.storage).index
    await world.storage.gc.remove_unused()
    kept = set(index.live_bytes())
    index._connection.execute("DELETE FROM entry_log")  # damage, and the machine's budget
    assert await world.storage.gc.remove_unused() == {}
    assert {int(Path(path).stem, 16) for path in Garbage(world).logs()} >= kept
    await check(world)
    await world.storage.stop()


async def test_what_compaction_reads_and_writes_comes_out_of_the_budget(tmp_path: Path) -> None:
    world = World(tmp_path)
    await half_dead(world)
    garbage = Garbage(world, *KEPT)
    await compact(garbage)
    moved = garbage.collector.statistics.compacted_bytes
    assert moved
    # Damage, and the machine's budget.
    assert garbage.collector._env.background.taken_bytes == {"compaction": 2 * moved}
    await world.storage.stop()


async def test_s63_a_damaged_run_stays_and_is_reported_and_all_others_move(tmp_path: Path) -> None:
    world = World(tmp_path)
    await half_dead(world)
    garbage = Garbage(world, *KEPT)
    row = opened(world.storage).index.find(6, 12)
    assert row is not None
    path = next(path for path in garbage.logs() if path.endswith(f"/{row.entry_log_id:x}.log"))
    world.disk._names[path].data[row.position + 200] ^= 1  # damage, and the machine's budget
    await compact(garbage)
    [damage] = garbage.damages
    assert isinstance(damage, Damage)
    assert (damage.ledger_id, damage.first_entry_id) == (6, row.first_entry_id)
    left = opened(world.storage).index.runs_in(row.entry_log_id)
    assert left == [row]
    usages = {usage.entry_log_id: usage for usage in await world.storage.gc.usages()}
    assert usages[row.entry_log_id].is_stuck
    # Scrub notes it down, since it was told.
    await world.storage.scrub.record([(row, [row.condemned(was_read=True)])])
    await compact(garbage)
    assert len(garbage.damages) == 1, "it is not tried again and again"
    usages = {usage.entry_log_id: usage for usage in await world.storage.gc.usages()}
    assert usages[row.entry_log_id].is_stuck
    assert await world.ids(3) == list(range(30))
    await world.storage.stop()


async def test_what_could_not_be_read_for_a_while_is_compacted_later(tmp_path: Path) -> None:
    world = World(tmp_path)
    await half_dead(world)
    garbage, before = Garbage(world, *KEPT), sizes(world)
    world.disk.faults.fail("read", ".log", permanent=True)
    await compact(garbage)
    assert sizes(world) == before
    world.disk.faults.heal()
    await compact(garbage)
    assert sizes(world) < before / 2
    await check(world)
    await world.storage.stop()


async def test_every_page_of_the_index_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    await half_dead(world)
    at_once = await world.storage.gc.usages()
    assert len([usage for usage in at_once if usage.runs]) == 2
    for logs in (1, 2):
        monkeypatch.setattr(gc_storage, "_LOGS_A_JOB", logs)
        assert await world.storage.gc.usages() == at_once
    await world.storage.stop()


@pytest.mark.parametrize("room", [12_000, 20_000, 60_000])
async def test_s62_on_a_full_disk_compaction_gives_space_back(tmp_path: Path, room: int) -> None:
    world = World(tmp_path)
    await half_dead(world)
    options = replace(OPTIONS, reserve_size_bytes=room)
    garbage = Garbage(world, *KEPT, options=options)
    await garbage.collect(minutes=0)
    assert any(path.endswith(COMPACTION_NAME) for path in world.disk.files())
    before = sizes(world)
    world.disk.capacity_bytes = world.disk.used_bytes()
    await compact(garbage)
    assert sizes(world) < before / 2
    await check(world)
    await world.storage.stop()
    Path(world.index_path).unlink()
    await world.start()
    assert not world.report.needs_limbo_start
    await check(world)
    await world.storage.stop()


async def test_s82_a_reserve_that_lost_its_length_in_a_crash_is_taken_again(
    tmp_path: Path,
) -> None:
    # Found by a seed of the simulator: the file was there, and empty.
    world = World(tmp_path)
    await half_dead(world)
    path = f"{world.storage.directories.ledgers[0]}/{COMPACTION_NAME}"
    world.disk.put(path, b"")
    garbage = Garbage(world, *KEPT, options=replace(OPTIONS, reserve_size_bytes=4096))
    await garbage.collect(minutes=0)
    assert len(world.disk.get(path)) == 4096
    await world.storage.stop()


@pytest.mark.parametrize("is_scrubbed", [False, True])
async def test_the_rest_of_a_run_whose_end_was_moved_stays_provable(
    tmp_path: Path, is_scrubbed: bool
) -> None:
    world = World(tmp_path)
    await half_dead(world)
    gc, index = world.storage.gc, opened(world.storage).index
    if is_scrubbed:
        # Which gives a part of a run that was cut a checksum of its own.
        for row in await world.storage.scrub.runs(3, 0, 9):
            parts = await world.storage.scrub.judge(row, digester(DigestType.CRC32C, b""))
            await world.storage.scrub.record([(row, parts)])
    first, second = index.find(3, 0), index.find(3, 6)
    assert first is not None
    assert second is not None
    assert is_scrubbed is (second.checksum is not None)
    assert first.entry_log_id == second.entry_log_id
    await gc.give_reserve()
    while index.find(3, 6) == second:
        assert not (await gc.compact_some(second.entry_log_id, 1)).is_done
    assert index.find(3, 0) == first
    await gc.finish_compaction()
    await world.storage.stop()
    Path(world.index_path).unlink()
    await world.start()
    assert not world.report.needs_limbo_start
    await check(world)
    await world.storage.stop()


async def test_a_copy_lies_behind_what_it_copies_even_if_the_last_pass_ended_badly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rebuild leaves out what lies before the birth of its ledger: copies may not get there."""
    world = World(tmp_path)
    await half_dead(world)
    garbage = Garbage(world, *KEPT, 7)
    with monkeypatch.context() as patch:
        patch.setattr(EntryLogKeeper, "finish", lambda _: None)
        await compact(garbage)
    for first in range(0, 100, 10):
        await world.append(run_of(7, range(first, first + 10), b"%d" % first * 300))
        await world.append(run_of(8, range(first, first + 10), b"%d" % first * 600))
        await world.storage.flush()
    await world.storage.delete_ledgers([8])
    await compact(garbage)
    assert garbage.collector.statistics.compacted_bytes
    await world.storage.stop()
    Path(world.index_path).unlink()
    assert (await world.start()).is_index_rebuilt
    assert await world.ids(7) == list(range(100))
    await check(world)


async def test_suspended_compaction_moves_nothing_and_goes_on_when_it_is_resumed(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await half_dead(world)
    garbage = Garbage(world, *KEPT)
    garbage.collector.suspend()
    old = garbage.logs()
    await compact(garbage)
    assert garbage.logs() == old
    garbage.collector.resume()
    await garbage.collect(minutes=0)
    assert not set(old) & set(garbage.logs()), "what was asked for meanwhile is still wanted"
    await world.storage.stop()


@pytest.mark.parametrize("is_suspended", [False, True])
@pytest.mark.parametrize("major_threshold", [0.8, 0])
async def test_a_plan_says_what_the_pass_then_compacts(
    tmp_path: Path, major_threshold: float, is_suspended: bool
) -> None:
    world = World(tmp_path)
    await half_dead(world)
    options = replace(
        OPTIONS, minor_compaction_threshold=0.7, major_compaction_threshold=major_threshold
    )
    garbage = Garbage(world, *KEPT, options=options)
    if is_suspended:
        garbage.collector.suspend()
    planned = await garbage.collector.plan(major=True)
    assert bool(planned.compacted_logs) is not is_suspended
    before = set(garbage.logs())
    await compact(garbage)
    assert len(before - set(garbage.logs())) == planned.compacted_logs + planned.removable_logs
    await world.storage.stop()


async def test_minor_and_major_compaction_come_at_their_times(tmp_path: Path) -> None:
    world = World(tmp_path)
    await half_dead(world)
    options = GcOptions(
        minor_compaction_interval_s=3600, major_compaction_interval_s=86400,
        reserve_size_bytes=0,
    )  # fmt: skip
    garbage = Garbage(world, *KEPT, options=options)
    statistics = garbage.collector.statistics
    counts = []
    for minutes in (59, 1, 60, 22 * 60, 60):
        await garbage.collect(minutes=minutes)
        counts.append((statistics.minor_compactions, statistics.major_compactions))
    assert counts == [(0, 0), (1, 0), (2, 0), (2, 1), (3, 1)]
    await world.storage.stop()


async def test_a_run_that_was_replaced_while_its_log_is_compacted_is_not_brought_back(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await half_dead(world)
    gc = world.storage.gc
    log = next(iter(opened(world.storage).index.live_bytes()))
    await gc.compact_some(log, 1)
    await world.append(run_of(3, range(30), b"new"))
    await world.storage.flush()
    for _ in range(50):
        if (await gc.compact_some(log, 1)).is_done:
            break
    await gc.finish_compaction()
    for entry_id in range(30):
        assert (await world.read_one(3, entry_id)).endswith(b"new")
    await world.storage.stop()


async def test_readers_go_on_while_logs_are_moved_under_them(tmp_path: Path) -> None:
    world = World(tmp_path)
    await half_dead(world)
    garbage = Garbage(world, *KEPT)
    is_over = False

    async def read() -> int:
        rounds = 0
        while not is_over:
            await check(world)
            rounds += 1
        return rounds

    reader = asyncio.create_task(read())
    for _ in range(3):
        await compact(garbage)
    is_over = True
    assert await reader
    assert world.damages == []
    await world.storage.stop()


async def test_s62_what_a_failed_commit_may_still_point_to_goes_behind_another_commit(
    tmp_path: Path,
) -> None:
    # Found by a seed of the simulator: the sync of a commit fails, its copies are removed, and
    # the next process finds the commit all the same.
    world = World(tmp_path, has_model_index=True)
    await half_dead(world)
    garbage = Garbage(world, *KEPT)
    world.disk.faults.fail("sync", "index.sqlite")
    await compact(garbage)
    copied = set(garbage.logs())
    garbage.collector.suspend()
    await garbage.collect(minutes=0)
    assert set(garbage.logs()) < copied
    storage = world.storage
    for index in (opened(storage).index, opened(storage).loop_index):
        # A killed process closes nothing.
        index.close = lambda: None  # type: ignore[method-assign]
    await world.kill()
    await world.start()
    await check(world)
    await world.storage.stop()


async def test_s64_an_index_that_fails_at_every_step_does_not_fill_the_disk(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, options=replace(SMALL))
    await half_dead(world)
    garbage = Garbage(world, *KEPT)
    index = opened(world.storage).index

    def failing(*what: object) -> int:
        raise StorageError("the index fails")

    index.move_runs = failing  # type: ignore[method-assign,assignment]
    before = sizes(world)
    live = sum(usage[0] for usage in index.live_bytes().values())
    for _ in range(10):
        await compact(garbage)
        assert sizes(world) <= before + 2 * live, "each pass removes what the one before left"
    await check(world)
    await world.restart()
    assert sizes(world) <= before + live
    await world.storage.stop()
