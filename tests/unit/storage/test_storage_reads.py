"""The storage facade: what a read gives, and what it says where there is nothing to give."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from doubles.inside import log_reader_of, opened, reads_of
from doubles.records import entry
from doubles.storage_world import World, run_of
from doubles.waiting import until
from quorumbook.errors import (
    BookieIOError,
    NoSuchEntryError,
    NoSuchLedgerError,
    StorageError,
    UnknownLedgerStateError,
)
from quorumbook.storage.options import StorageOptions


async def started(tmp_path: Path, **options: object) -> World:
    world = World(tmp_path, **options)  # type: ignore[arg-type]
    await world.start()
    return world


async def test_r14_adding_an_entry_again_is_accepted_and_the_last_one_counts(
    tmp_path: Path,
) -> None:
    world = await started(tmp_path)
    await world.append(run_of(1, range(10), b"old"))
    await world.append(run_of(1, range(3, 6), b"new"))
    wanted = {
        i: entry(1, i, b"new" if 3 <= i < 6 else b"old", 2 if 3 <= i < 6 else -1) for i in range(10)
    }

    async def check() -> None:
        assert await world.read(*((1, i) for i in range(10))) == list(wanted.values())
        data, count = await world.read_batch(1, 0)
        assert count == 10
        assert data == b"".join(len(b).to_bytes(4, "big") + b for b in wanted.values())

    await check()
    await world.storage.flush()
    await check()
    await world.append(run_of(1, [4], b"newest"))
    wanted[4] = entry(1, 4, b"newest", 3)
    await check()
    await world.storage.flush()
    await check()
    await world.restart()
    await check()
    Path(world.index_path).unlink()
    await world.restart()
    await check()


async def test_r09_absence_is_stated_only_where_it_is_proven(tmp_path: Path) -> None:
    world = await started(tmp_path)
    await world.append(run_of(1, [0, 2, 3]))
    for _ in range(2):
        for entry_id, error in ((1, NoSuchEntryError), (4, NoSuchEntryError)):
            assert isinstance((await world.read((1, entry_id)))[0], error)
            with pytest.raises(error):
                await world.read_batch(1, entry_id)
        assert isinstance((await world.read((2, 0)))[0], NoSuchLedgerError)
        assert isinstance((await world.read((2, -1)))[0], NoSuchLedgerError)
        assert (await world.read((1, -1)))[0] == entry(1, 3, b"payload", -1)
        await world.storage.flush()


async def test_r09_an_index_that_fails_is_an_io_error(tmp_path: Path) -> None:
    world = await started(tmp_path)
    await world.append(run_of(1, range(3)), run_of(78, range(3)))
    await world.storage.flush()
    # Of ledgers that are new since a start nobody asks the index.
    await world.restart()
    world.storage._read_index.close()  # the log goes away between two steps
    assert isinstance((await world.read((1, 0)))[0], BookieIOError)
    with pytest.raises(BookieIOError):
        await world.read_batch(1, 0)
    opened(world.storage).loop_index.close()
    assert isinstance((await world.read((77, 0)))[0], BookieIOError)


async def test_r09_a_read_is_answered_although_the_index_fails_before_the_read_ahead(
    tmp_path: Path,
) -> None:
    world = await started(tmp_path)
    for first in (0, 10):
        await world.append(run_of(1, range(first, first + 10), b"x" * 100))
        await world.storage.flush()
    worker = world.threads.workers["storage-read"]
    worker.auto = False
    answers = [asyncio.ensure_future(world.read((1, 0), (1, 1)))]
    answers.append(asyncio.ensure_future(world.read_batch(1, 0)))
    await until(lambda: len(worker.jobs) == 2)

    def broken(ledger_id: int) -> None:
        raise StorageError("the index failed")

    reads_of(world.storage)._handle = broken  # type: ignore[assignment]
    worker.auto = True
    for _ in answers:
        worker.run_next()
    async with asyncio.timeout(60):
        found, batch = await asyncio.gather(*answers)
    assert found == [entry(1, entry_id, b"x" * 100, -1) for entry_id in (0, 1)]
    assert batch[1] == 20


async def test_the_repair_mark_names_the_run_that_is_damaged(tmp_path: Path) -> None:
    """A batch read goes over several runs; the good ones before it are not to be copied anew."""
    world = await started(tmp_path)
    for first in (0, 10):
        await world.append(run_of(1, range(first, first + 10), b"x" * 100))
        await world.storage.flush()
    (path,) = (path for path in world.disk.files() if path.endswith(".log"))
    data = bytearray(world.disk.get(path))
    data[data.index(entry(1, 15, b"x" * 100, 9)) + 80] ^= 1
    world.disk.put(path, bytes(data))
    await world.restart()
    assert (await world.read_batch(1, 0))[1] == 10
    assert [(found.first_entry_id, found.last_entry_id) for found in world.damages] == [(10, 19)]


async def test_r09_s06_unreadable_bytes_are_an_io_error_and_a_repair_mark(tmp_path: Path) -> None:
    world = await started(tmp_path)
    await world.append(run_of(1, range(10), b"x" * 100))
    await world.storage.flush()
    (path,) = (path for path in world.disk.files() if path.endswith(".log"))
    data = bytearray(world.disk.get(path))
    place = data.index(entry(1, 5, b"x" * 100, -1))
    data[place + 9] ^= 1  # inside the entry id
    data[place + 150] ^= 1  # inside the payload of the next entry
    world.disk.put(path, bytes(data))
    await world.restart()
    result = (await world.read((1, 5)))[0]
    assert isinstance(result, BookieIOError)
    assert world.damages[0].first_entry_id == 5
    with pytest.raises(BookieIOError):
        await world.read_batch(1, 0)
    assert world.storage.damaged[-1].first_entry_id == 0
    assert world.storage.damaged[-1].last_entry_id == 9
    # Neighbours can still be read one by one, even where a whole run would be read.
    results = await world.read(*((1, i) for i in range(5)))
    assert results == [entry(1, i, b"x" * 100, -1) for i in range(5)]
    world.disk.unlink(path)
    log_reader_of(world.storage).close()
    assert isinstance((await world.read((1, 0)))[0], BookieIOError)
    world.disk.put(path, bytes(data[:1100]))
    log_reader_of(world.storage).close()
    assert isinstance((await world.read((1, 9)))[0], BookieIOError)


async def test_r09_a_ledger_in_limbo_says_unknown_instead_of_no(tmp_path: Path) -> None:
    world = await started(tmp_path)
    await world.append(run_of(1, range(3)))
    await world.storage.put_in_limbo([1, 50])
    for _ in range(2):
        assert (await world.read((1, 1)))[0] == entry(1, 1, b"payload", -1)
        for request in ((1, 3), (50, 0), (50, -1)):
            assert isinstance((await world.read(request))[0], UnknownLedgerStateError)
            with pytest.raises(UnknownLedgerStateError):
                await world.read_batch(*request)
        assert world.handle(50).is_fenced
        await world.crash()
        assert (await world.start()).ledgers_in_limbo == 2
    await world.storage.clear_limbo([1])
    await world.crash()
    await world.start()
    assert isinstance((await world.read((1, 3)))[0], NoSuchEntryError)
    assert world.handle(1).is_fenced, "what is fenced stays fenced"


async def test_batches_are_bounded_and_stop_at_what_is_missing(tmp_path: Path) -> None:
    world = await started(tmp_path)
    await world.append(run_of(1, [*range(10), *range(12, 20)], b"z" * 60))
    size = 4 + 36 + 60
    for _ in range(2):
        for first, count, limit, expected in (
            (0, 0, 0, 10),
            (0, 3, 0, 3),
            (0, 100, 5 * size, 5),
            (0, 100, 5 * size - 1, 4),
            (2, 100, 1, 1),
            (12, 0, 0, 8),
            (19, 5, 0, 1),
            (-1, 5, 0, 1),
        ):
            data, got = await world.read_batch(1, first, count, limit)
            ids = [19] if first < 0 else range(first, first + expected)
            wanted = [entry(1, i, b"z" * 60, -1) for i in ids]
            assert data == b"".join(len(b).to_bytes(4, "big") + b for b in wanted)
            assert got == expected
        await world.storage.flush()
    assert await world.ids(1) == [*range(10), *range(12, 20)]


async def test_reads_in_a_row_read_ahead_and_single_ones_do_not(tmp_path: Path) -> None:
    world = World(tmp_path, options=StorageOptions(flush_interval_s=3600))
    await world.start()
    for first in range(0, 30, 10):  # three flushes, three runs
        await world.append(run_of(1, range(first * 10, first * 10 + 100), b"p" * 500))
        await world.storage.flush()
    statistics = reads_of(world.storage).statistics
    await world.read_one(1, 50)
    await world.read_one(1, 20)
    assert (statistics.disk_reads, statistics.run_reads) == (2, 0)
    await world.read_one(1, 21)
    assert statistics.run_reads >= 1
    for entry_id in range(22, 300):
        assert await world.read_one(1, entry_id) == entry(
            1, entry_id, b"p" * 500, entry_id // 100 * 100 - 1
        )
    assert statistics.run_reads == 3
    assert statistics.disk_reads == 2
    assert statistics.read_ahead_runs == 2


async def test_a_log_that_is_gone_is_looked_up_once_more(tmp_path: Path) -> None:
    world = await started(tmp_path)
    await world.append(run_of(1, range(4)))
    await world.storage.flush()
    index = opened(world.storage).index
    (run,) = index.runs(1)
    name = f"{world.disk.files()[0].rsplit('/', 1)[0]}"
    path = next(path for path in world.disk.files() if path.endswith(".log"))
    moved = world.disk.get(path)
    read = reads_of(world.storage)._loader._read_log  # the log goes away between two steps

    def compacted(entry_log_id: int, position: int, size: int) -> bytes:
        """Compaction comes between the look-up and the read."""
        if entry_log_id == run.entry_log_id:
            world.disk.put(f"{path.rsplit('/', 1)[0]}/77.log", moved)
            index.repoint(run, 0x77, run.position)
            world.disk.unlink(path)
        return read(entry_log_id, position, size)

    reads_of(world.storage)._loader._read_log = compacted  # the log goes away between two steps
    assert await world.read_one(1, 2) == entry(1, 2, b"payload", -1), name
    assert world.damages == []
