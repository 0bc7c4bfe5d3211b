"""Single reads of what the operating system has in memory, and when they are left to the worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from doubles.inside import log_reader_of, reads_of
from doubles.records import entry
from doubles.storage_world import World, run_of
from quorumbook.errors import BookieIOError, NoSuchLedgerError
from quorumbook.storage.reading import peeking


async def flushed(tmp_path: Path, *, ledgers: int = 1) -> World:
    """Ledgers of ten short entries on disk; every row is known, and everything in memory."""
    world = World(tmp_path)
    await world.start()
    for ledger_id in range(1, ledgers + 1):
        await world.append(run_of(ledger_id, [*range(5), *range(6, 11)], b"old"))
    await world.storage.flush()
    for ledger_id in range(1, ledgers + 1):
        await world.read_one(ledger_id, 9)
    world.disk.reads_without_waiting = True
    return world


def hold_worker(world: World) -> None:
    world.threads.workers["storage-read"].auto = False


def peeked(world: World) -> int:
    return world.storage.statistics()["read_page_cache_reads"]


async def test_what_is_in_memory_is_read_without_the_worker(tmp_path: Path) -> None:
    world = await flushed(tmp_path)
    hold_worker(world)
    for entry_id in (8, 6, 3):
        assert await world.read_one(1, entry_id) == entry(1, entry_id, b"old", -1)
    assert (await world.read_batch(1, 1, 1))[1] == 1
    assert peeked(world) == 4


async def test_what_is_not_in_memory_is_left_to_the_worker(tmp_path: Path) -> None:
    world = await flushed(tmp_path)
    world.disk.reads_without_waiting = False
    assert await world.read_one(1, 7) == entry(1, 7, b"old", -1)
    assert peeked(world) == 0


async def test_r14_an_entry_added_again_is_not_read_where_it_lay_before(tmp_path: Path) -> None:
    world = await flushed(tmp_path)
    await world.append(run_of(1, [3], b"new", 8))
    await world.storage.flush()
    assert await world.read_one(1, 3) == entry(1, 3, b"new", 8)
    assert await world.read_one(1, 7) == entry(1, 7, b"old", -1)


async def test_a_deleted_ledger_is_not_read_where_it_lay_before(tmp_path: Path) -> None:
    world = await flushed(tmp_path)
    await world.storage.delete_ledgers([1])
    assert isinstance((await world.read((1, 3)))[0], NoSuchLedgerError)
    await world.append(run_of(1, [8], b"another"))
    assert await world.read_one(1, 8) == entry(1, 8, b"another", 7)
    await world.storage.flush()
    assert await world.read_one(1, 8) == entry(1, 8, b"another", 7)
    assert not isinstance((await world.read((1, 3)))[0], bytes)
    assert peeked(world) == 0


async def test_r09_damage_is_left_to_the_worker_who_says_what_it_means(tmp_path: Path) -> None:
    world = await flushed(tmp_path)
    (path,) = (path for path in world.disk.files() if path.endswith(".log"))
    data = bytearray(world.disk.get(path))
    data[data.index(entry(1, 3, b"old", -1)) + 9] ^= 1  # inside the entry id
    world.disk.put(path, bytes(data))
    world.storage._peek_reader.close()  # its file is closed under it, and how much it remembers
    log_reader_of(world.storage).close()
    assert isinstance((await world.read((1, 3)))[0], BookieIOError)
    assert [damage.first_entry_id for damage in world.damages] == [3]


async def test_the_rows_that_are_remembered_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peeking, "_ROWS_MAX", 10)
    world = await flushed(tmp_path, ledgers=25)
    # Its file is closed under it, and how much it remembers.
    assert 0 < len(reads_of(world.storage)._peeks) <= 10
    for ledger_id in range(1, 26):
        assert await world.read_one(ledger_id, 3) == entry(ledger_id, 3, b"old", -1)


async def test_who_reads_in_a_row_is_read_ahead_for_all_the_same(tmp_path: Path) -> None:
    world = await flushed(tmp_path)
    for entry_id in (0, 1, 2, 3):
        await world.read_one(1, entry_id)
    statistics = world.storage.statistics()
    assert (statistics["read_run_reads"], peeked(world)) == (1, 1)
