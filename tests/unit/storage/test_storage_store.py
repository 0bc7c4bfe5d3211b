"""The storage facade: what is visible when, what survives, what is refused."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from pathlib import Path

import pytest

from doubles.inside import opened
from doubles.records import entry, lac_packet
from doubles.storage_world import KEY, World, run_of
from doubles.waiting import until
from quorumbook.errors import (
    DirectoryLockedError,
    NoSuchLedgerError,
    StorageError,
)
from quorumbook.ids import INVALID_ENTRY_ID
from quorumbook.sim.disks.disk import SimDisk


async def started(tmp_path: Path, **options: object) -> World:
    world = World(tmp_path, **options)  # type: ignore[arg-type]
    await world.start()
    return world


# Visibility


async def test_r07_an_entry_is_unknown_until_its_group_is_durable(tmp_path: Path) -> None:
    world = await started(tmp_path)
    order: list[str] = []
    handle = world.handle(1)
    world.threads.workers["journal"].auto = False
    handle.watch_lac(-1, lambda: order.append("woken"))
    future = world.append(run_of(1, range(3), lac=1))
    future.add_done_callback(lambda _: order.append("answered"))
    await asyncio.sleep(0)
    assert world.cached_entry(1, 0) is None
    assert handle.last_add_confirmed == INVALID_ENTRY_ID
    assert isinstance((await world.read((1, 0)))[0], NoSuchLedgerError)
    await world.storage.flush()
    assert world.disk.faults.count("sync", ".log") == 0
    world.threads.workers["journal"].run_next()
    await future
    await asyncio.sleep(0)
    assert order == ["woken", "answered"]
    assert world.cached_entry(1, 0) == entry(1, 0, b"payload", 1)
    assert handle.last_add_confirmed == 1
    assert handle.last_entry_id == 2


async def test_r07_nothing_is_acknowledged_after_a_failed_sync(tmp_path: Path) -> None:
    world = await started(tmp_path)
    await world.append(run_of(1, range(2)))
    world.disk.faults.fail("sync", ".txn")
    for first in (2, 4):
        with pytest.raises(StorageError):
            await world.append(run_of(1, range(first, first + 2)))
    assert len(world.fatal) == 1, "the bookie is told once that it must stop"
    assert world.cached_entry(1, 2) is None
    await world.storage.stop()
    world.disk = world.disk.crash()
    await world.start()
    assert await world.ids(1) == [0, 1]


async def test_deferred_entries_are_shown_when_written_and_forced_by_force(tmp_path: Path) -> None:
    world = await started(tmp_path)
    await world.append(run_of(1, [0]))
    world.disk.faults.fail("sync", ".txn")
    await world.append(run_of(1, [1]), deferred_sync=True)
    assert world.cached_entry(1, 1) is not None
    await until(lambda: world.fatal)
    forced: list[BaseException | None] = []
    world.storage.force(forced.append)
    await until(lambda: forced)
    assert isinstance(forced[0], StorageError)


async def test_deferred_entries_in_a_row_wait_for_no_sync_of_their_own(tmp_path: Path) -> None:
    world = await started(tmp_path)
    await world.append(run_of(1, [0]))
    journal = world.threads.workers["journal"]
    journal.auto = False
    row = [world.append(run_of(1, [entry_id]), deferred_sync=True) for entry_id in (1, 2, 3)]
    journal.run_next()  # the first of them; the others came while it was under way
    await until(lambda: row[0].done() and journal.jobs)
    world.disk.faults.fail("sync", ".txn")
    journal.run_next()
    await until(lambda: world.fatal)
    for future in row:
        assert future.exception() is None
    assert world.cached_entry(1, 3) is not None


async def test_a_deferred_entry_never_overtakes_an_older_version(tmp_path: Path) -> None:
    world = await started(tmp_path)
    world.threads.workers["journal"].auto = False
    world.append(run_of(2, [0]))  # on its way, so that the next two share a group
    older = world.append(run_of(1, [0], b"first"))
    newer = world.append(run_of(1, [0], b"second"), deferred_sync=True)
    while not newer.done():
        world.threads.workers["journal"].run_next()
        await asyncio.sleep(0)
    assert older.done()
    assert world.cached_entry(1, 0) == entry(1, 0, b"second", -1)


async def test_s39_readers_of_a_fenced_ledger_are_woken_by_recovery_adds(tmp_path: Path) -> None:
    world = await started(tmp_path)
    await world.append(run_of(1, range(5)))
    await world.fence(1)
    woken: list[str] = []
    handle = world.handle(1)
    handle.watch_lac(0, lambda: woken.append("a"))
    cancelled = partial(woken.append, "cancelled")
    handle.watch_lac(0, cancelled)
    handle.watch_lac(7, lambda: woken.append("later"))
    handle.unwatch_lac(0, cancelled)
    await world.append(run_of(1, [5], lac=3))
    assert woken == ["a"]
    await world.write_lac(1, 8)
    assert woken == ["a", "later"]


async def test_a_failing_waiter_does_not_stop_the_others(tmp_path: Path) -> None:
    world = await started(tmp_path)
    handle = world.handle(1)
    woken: list[int] = []
    handle.watch_lac(-1, lambda: 1 // 0)  # type: ignore[arg-type, return-value]
    handle.watch_lac(-1, lambda: woken.append(1))
    await world.append(run_of(1, [0, 1], lac=0))
    assert woken == [1]
    assert world.fatal == []


# Fences, keys, explicit LACs


async def test_r10_s07_a_fence_survives_restart_and_eviction(tmp_path: Path) -> None:
    world = await started(tmp_path)
    await world.append(run_of(1, range(3)))
    await world.fence(1)
    await world.fence(99)  # never heard of
    await world.restart()
    assert world.handle(1).is_fenced
    assert world.handle(99).is_fenced
    await world.storage.flush()
    table = opened(world.storage).visible.table
    for ledger_id in range(200, 300):
        await world.append(run_of(ledger_id, [0]))
    await world.storage.flush()
    table._limit = 5  # so many handles stay in memory
    assert table.evict() > 50
    assert table.peek(1) is None, "it was evicted"
    assert world.handle(1).is_fenced
    await world.storage.stop()
    await world.start()
    assert world.handle(1).is_fenced
    assert world.handle(99).is_fenced


async def test_r10_a_second_fence_waits_for_the_first_to_be_durable(tmp_path: Path) -> None:
    world = await started(tmp_path)
    world.threads.workers["journal"].auto = False
    first, second = world.fence(1), world.fence(1)
    await asyncio.sleep(0)
    assert world.handle(1).is_fenced, "adds are refused at once"
    assert not first.done()
    assert not second.done()
    world.threads.workers["journal"].run_next()
    await first
    await second
    assert world.fence(1).done(), "a durable fence is answered at once"


async def test_r10_a_fence_that_could_not_be_journaled_is_tried_again(tmp_path: Path) -> None:
    world = await started(tmp_path)
    world.disk.faults.fail("write", ".txn")
    first, second = world.fence(1), world.fence(1)
    for future in (first, second, world.fence(1)):
        with pytest.raises(StorageError):
            await future
    handle = world.handle(1)
    assert handle.is_fenced
    assert not handle.is_fence_durable
    assert not handle.is_idle, "a fence that is not stored must not be evicted"
    with pytest.raises(StorageError):
        await world.fence(1)


async def test_r11_s08_there_is_one_handle_of_a_ledger_whatever_is_evicted(tmp_path: Path) -> None:
    world = await started(tmp_path)
    await world.append(run_of(1, [0]))
    await world.storage.flush()
    mine = world.handle(1)
    table = opened(world.storage).visible.table
    table._limit = 0  # so many handles stay in memory
    table.evict()
    assert len(table) == 0
    assert world.handle(1) is mine
    add = world.append(run_of(1, [1]))
    fence = world.fence(1)
    assert mine.is_fenced, "the next add of this loop step sees it"
    await add
    await fence
    assert world.cached_entry(1, 1) is not None


async def test_a_table_over_its_limit_forgets_between_steps_not_within(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start(max_idle_handles=10)
    for ledger_id in range(40):
        await world.append(run_of(ledger_id, [0]))
    await world.storage.flush()
    handles = [world.handle(ledger_id) for ledger_id in range(40)]
    assert len({id(handle) for handle in handles}) == 40
    del handles
    await asyncio.sleep(0)
    assert len(opened(world.storage).visible.table) <= 11


async def test_r13_s48_the_key_is_durable_before_the_first_answer_and_after_replay(
    tmp_path: Path,
) -> None:
    for what in ("append", "fence", "lac"):
        (tmp_path / what).mkdir()
        world = await started(tmp_path / what)
        if what == "append":
            await world.append(run_of(1, [0]))
        elif what == "fence":
            await world.fence(1)
        else:
            await world.write_lac(1, 4)
        for _ in range(2):  # the second start finds it in the index alone
            await world.crash()
            await world.start()
            handle = world.storage.handle(1)
            assert handle is not None, what
            assert handle.master_key == KEY
            assert handle.accepts_key(KEY)
            assert not handle.accepts_key(b"x" * 20)


async def test_r13_a_ledger_without_a_key_keeps_the_first_one_offered(tmp_path: Path) -> None:
    world = await started(tmp_path)
    await world.storage.put_in_limbo([1], fence=False)
    handle = world.handle(1)
    assert handle.master_key == b""
    assert handle.accepts_key(KEY)
    assert not handle.accepts_key(b"y" * 20)
    await world.append(run_of(1, [0]))
    await world.storage.flush()
    await world.crash()
    await world.start()
    assert world.handle(1).master_key == KEY


async def test_r15_s36_the_last_add_confirmed_survives_a_restart(tmp_path: Path) -> None:
    world = await started(tmp_path)
    await world.append(run_of(1, range(10), lac=7))
    await world.append(run_of(2, range(3), lac=-1))
    await world.write_lac(2, 2)
    await world.append(run_of(3, range(10), lac=8))
    await world.append(run_of(3, [10], lac=4))  # a recovery writes with an older LAC (R19)
    await world.append(run_of(4, [5], lac=1))
    await world.append(run_of(4, [3], lac=2))
    expected = {1: 7, 2: 2, 3: 8, 4: 2}

    def known() -> dict[int, int]:
        return {ledger_id: world.handle(ledger_id).last_add_confirmed for ledger_id in expected}

    assert known() == expected
    await world.crash()
    await world.start()
    assert known() == expected, "after replay"
    await world.restart()
    assert known() == expected, "from the index"
    Path(world.index_path).unlink()
    await world.restart()
    assert world.report.is_index_rebuilt
    assert known() == expected, "from entry logs and side files"
    assert world.handle(2).explicit_lac == lac_packet(2, 2)


async def test_r15_an_explicit_lac_is_not_shown_before_it_is_durable(tmp_path: Path) -> None:
    world = await started(tmp_path)
    world.threads.workers["journal"].auto = False
    future = world.write_lac(1, 5)
    await asyncio.sleep(0)
    assert world.handle(1).explicit_lac is None
    assert world.handle(1).last_add_confirmed == INVALID_ENTRY_ID
    world.threads.workers["journal"].run_next()
    await future
    assert world.handle(1).last_add_confirmed == 5


async def test_s40_the_stored_explicit_lac_never_falls(tmp_path: Path) -> None:
    world = await started(tmp_path)
    await asyncio.gather(*(world.write_lac(1, lac) for lac in (3, 9, 4, 1, 7)))
    for _ in range(3):
        assert world.handle(1).explicit_lac == lac_packet(1, 9)
        assert world.handle(1).last_add_confirmed == 9
        await world.restart()


# Life cycle


async def test_a_second_bookie_on_a_directory_is_refused(tmp_path: Path) -> None:
    world = await started(tmp_path)
    other = World(tmp_path / "other")
    (tmp_path / "other").mkdir()
    other.disk = world.disk
    with pytest.raises(DirectoryLockedError):
        await other.start()
    await world.storage.stop()
    await world.storage.stop()
    await other.start()
    await other.storage.stop()


async def test_a_clean_stop_leaves_nothing_to_replay(tmp_path: Path) -> None:
    world = await started(tmp_path)
    await world.append(run_of(1, range(20)))
    await world.write_lac(1, 3)
    await world.storage.stop()
    assert world.disk.open_files == 0
    world.disk = world.disk.crash(random.Random(2), keep=0.5)
    report = await world.start()
    assert (report.replayed_entries, report.needs_limbo_start) == (0, False)
    assert await world.ids(1) == list(range(20))
    assert world.handle(1).last_add_confirmed == 3


async def test_s53_a_flush_racing_with_a_deletion_brings_nothing_back(tmp_path: Path) -> None:
    world = await started(tmp_path)
    await world.append(run_of(1, range(5)), run_of(2, range(5)))
    world.threads.workers["storage-flush"].auto = False
    flush = asyncio.ensure_future(world.storage.flush())
    await asyncio.sleep(0.001)
    await world.append(run_of(1, range(5, 8)))
    late = world.append(run_of(1, [8]))
    deletion = asyncio.ensure_future(world.storage.delete_ledgers([1]))
    await asyncio.sleep(0)
    await late
    assert world.storage.handle(1) is None
    world.threads.workers["storage-flush"].auto = True
    world.threads.workers["storage-flush"].run_next()
    await flush
    await deletion
    for _ in range(2):
        assert world.storage.handle(1) is None
        assert world.storage.ledger_ids() == [2]
        assert isinstance((await world.read((1, 0)))[0], NoSuchLedgerError)
        assert await world.ids(2) == list(range(5))
        await world.storage.flush()
        await world.restart()
    await world.append(run_of(1, [100]))
    await world.storage.flush()
    assert await world.ids(1) == [100]
    Path(world.index_path).unlink()
    await world.restart()
    assert await world.ids(2) == list(range(5))


async def test_s53_a_deleted_ledger_is_gone_before_the_index_knows(tmp_path: Path) -> None:
    world = await started(tmp_path)
    await world.append(run_of(1, range(5)), run_of(2, range(5)))
    await world.storage.flush()
    world.threads.workers["storage-flush"].auto = False
    deletion = asyncio.ensure_future(world.storage.delete_ledgers([1]))
    for _ in range(5):
        await asyncio.sleep(0)
        assert world.storage.handle(1) is None
        assert isinstance((await world.read((1, 0)))[0], NoSuchLedgerError)
    world.threads.workers["storage-flush"].auto = True
    world.threads.workers["storage-flush"].run_next()
    await deletion
    assert world.storage.handle(1) is None
    # Its entries still lie in the log beside those of the other ledger.
    await world.storage.stop()
    Path(world.index_path).unlink()
    await world.start()
    assert world.report.is_index_rebuilt
    assert world.storage.ledger_ids() == [2]


async def test_r15_a_handle_loaded_again_knows_what_is_not_flushed_yet(tmp_path: Path) -> None:
    world = await started(tmp_path)
    await world.append(run_of(1, range(5), lac=2))
    await world.storage.flush()
    await world.append(run_of(1, range(5, 9), lac=6))
    table = opened(world.storage).visible.table
    table._limit = 0  # so many handles stay in memory
    table.evict()
    assert table.peek(1) is None
    assert world.handle(1).last_add_confirmed == 6
    assert world.handle(1).last_entry_id == 8


async def test_a_read_that_was_overtaken_by_a_flush_leaves_nothing_old_behind(
    tmp_path: Path,
) -> None:
    world = await started(tmp_path)
    await world.append(run_of(1, range(10), b"old"))
    await world.storage.flush()
    worker = world.threads.workers["storage-read"]
    worker.auto = False
    batch = asyncio.ensure_future(world.read_batch(1, 0))
    await asyncio.sleep(0)
    job, done = worker.jobs.popleft()
    loaded = job()
    await world.append(run_of(1, range(4, 6), b"new"))
    await world.storage.flush()
    done(loaded)
    await batch
    worker.auto = True
    assert await world.read_one(1, 4) == entry(1, 4, b"new", 3)


async def test_statistics_are_numbers(tmp_path: Path) -> None:
    world = await started(tmp_path)
    await world.append(run_of(1, range(5)))
    await world.storage.flush()
    numbers = world.storage.statistics()
    assert all(isinstance(number, int) for number in numbers.values())
    assert numbers["entries_appended"] == 5
    assert numbers["flush_runs"] == 1
    assert isinstance(world.disk, SimDisk)
    assert len(await world.storage.usage()) == 3


@pytest.mark.parametrize("is_clean", [True, False])
async def test_r25_a_ledger_directory_that_is_added_takes_its_share(
    tmp_path: Path, is_clean: bool
) -> None:
    world = World(tmp_path, directories=1)
    await world.start()
    for first in range(0, 60, 10):
        await world.append(run_of(1, range(first, first + 10), b"x" * 2000))
        await world.storage.flush()
    await world.append(run_of(2, range(5)))
    if is_clean:
        await world.storage.stop()
    else:
        await world.crash()
    world.directories.append("/ledgers1")
    for number in range(3):
        await world.start()
        assert await world.ids(1) == list(range(60))
        assert await world.ids(2) == list(range(5 + number))
        await world.append(run_of(2, [5 + number]))
        await world.storage.stop()
    assert any(
        path.startswith("/ledgers1/") and path.endswith(".log") for path in world.disk.files()
    )
    assert world.disk.exists("/ledgers1/current/lastMark")
