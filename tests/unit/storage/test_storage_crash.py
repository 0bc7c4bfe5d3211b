"""Crashes at every step, and damage between two runs of a bookie: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sqlite3
from collections.abc import Awaitable
from pathlib import Path

import pytest

from doubles.inside import journals_of, opened
from doubles.records import entry
from doubles.storage_world import PowerLostError, World, run_of
from quorumbook.errors import CorruptIndexError, CorruptJournalError, StorageError
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.storage.index.tables import SCHEMA_VERSION
from quorumbook.storage.journal.marks import LogMark, encode_mark, read_mark
from quorumbook.storage.options import StorageOptions


class Promises:
    """What was acknowledged, and what was only asked for."""

    def __init__(self) -> None:
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.possible: dict[tuple[int, int], set[bytes]] = {}
        self.fenced: set[int] = set()
        self.lacs: dict[int, int] = {}

    async def append(self, world: World, run: EntryRun) -> None:
        for entry_id, body in run.entries():
            self.possible.setdefault((run.ledger_id, entry_id), set()).add(body)
        await world.append(run)
        for entry_id, body in run.entries():
            self.acknowledged[run.ledger_id, entry_id] = body
            self.possible[run.ledger_id, entry_id] = {body}

    async def fence(self, world: World, ledger_id: int) -> None:
        await world.fence(ledger_id)
        self.fenced.add(ledger_id)

    async def write_lac(self, world: World, ledger_id: int, lac: int) -> None:
        await world.write_lac(ledger_id, lac)
        self.lacs[ledger_id] = lac

    async def check(self, world: World) -> None:
        for (ledger_id, entry_id), body in self.acknowledged.items():
            found = await world.read_one(ledger_id, entry_id)
            assert found in self.possible[ledger_id, entry_id] | {body}
        for ledger_id in self.fenced:
            handle = world.storage.handle(ledger_id)
            assert handle is not None
            assert handle.is_fenced
        for ledger_id, lac in self.lacs.items():
            assert world.handle(ledger_id).last_add_confirmed >= lac


async def life(world: World, promises: Promises) -> None:
    """A bookie's life with everything in it: rolls, flushes, re-adds, states, two starts."""
    await world.start()
    world.watch_commits()
    await promises.append(world, run_of(1, range(20), b"a" * 300))
    await promises.append(world, run_of(2, [0, 2, 3, 5], b"b" * 3000))
    await promises.write_lac(world, 1, 12)
    await world.storage.flush()
    await promises.append(world, run_of(1, range(10, 30), b"c" * 900))
    await promises.fence(world, 2)
    await promises.append(world, run_of(3, range(40), b"d" * 700))
    await world.storage.flush()
    await promises.fence(world, 4)
    await promises.append(world, run_of(2, [1, 6], b"e" * 100))
    await world.storage.stop()
    await world.start()
    world.watch_commits()
    await promises.append(world, run_of(3, range(35, 45), b"f" * 2000))
    await promises.write_lac(world, 3, 41)
    await world.storage.flush()
    await promises.append(world, run_of(5, range(3)))


async def test_a_crash_at_any_disk_call_loses_nothing_acknowledged(tmp_path: Path) -> None:
    call = 0
    while True:
        call += 1
        directory = tmp_path / str(call)
        directory.mkdir()
        world = World(directory)
        promises = Promises()
        world.cut_power_at(call)
        try:
            await life(world, promises)
        except StorageError:
            if not world.has_lost_power:
                raise
        was_cut = world.has_lost_power
        rng = random.Random(call)
        await world.crash(rng, keep=rng.choice([0.0, 0.5, 1.0]))
        report = await world.start()
        await promises.check(world)
        assert not report.is_index_rebuilt
        # And the next one, from what the start has flushed.
        await world.crash(rng, keep=0.0)
        report = await world.start()
        assert report.replayed_entries == 0, "the mark is the end of the replay (S45)"
        await promises.check(world)
        await world.crash()
        if not was_cut:
            break
    assert call > 150


async def test_a_crash_while_starting_loses_nothing_acknowledged(tmp_path: Path) -> None:
    call = 0
    while True:
        call += 1
        directory = tmp_path / str(call)
        directory.mkdir()
        world = World(directory)
        promises = Promises()
        await world.start()
        await promises.append(world, run_of(1, range(60), b"a" * 900))
        await promises.fence(world, 2)
        await world.storage.flush()
        await promises.append(world, run_of(1, range(50, 200), b"b" * 900))
        await promises.write_lac(world, 3, 7)
        await world.crash()
        rng = random.Random(call)
        rebuilds = call % 2 == 0
        if rebuilds:
            Path(world.index_path).unlink()
        world.cut_power_at(call)
        with contextlib.suppress(PowerLostError):
            await world.start()
        was_cut = world.has_lost_power
        await world.crash(rng, keep=rng.choice([0.0, 0.5, 1.0]))
        await world.start()
        await promises.check(world)
        await world.crash()
        if not was_cut and not rebuilds:
            break
    assert call > 20


async def test_r21_s52_the_order_of_a_checkpoint(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    await world.append(run_of(1, range(10)))
    await world.storage.flush()  # a first one, so that names exist
    world.watch_commits()
    journals = [path for path in world.disk.files() if path.endswith(".txn")]
    await world.append(*[run_of(1, range(i * 20, i * 20 + 20), b"x" * 3000) for i in range(1, 3)])
    await world.fence(1)
    world.disk.faults.calls.clear()
    steps: list[str] = []

    def on_call(operation: str, path: str) -> None:
        name = path.rsplit("/", 1)[-1].removesuffix(".old")
        what = "log" if name.endswith(".log") else "journal" if name.endswith(".txn") else name
        steps.append(f"{operation} {what}")

    world.disk.faults.on_call = on_call
    await world.storage.flush()
    order = [
        steps.index("sync log"),
        steps.index("commit index"),
        steps.index("sync ledger-states"),
        steps.index("write lastMark"),
        steps.index("replace journal"),
    ]
    assert order == sorted(order)
    assert steps.count("sync ledger-states") == steps.count("sync lastMark") == 2
    assert max(i for i, s in enumerate(steps) if s == "sync log") < steps.index("commit index")
    assert max(i for i, s in enumerate(steps) if s == "sync lastMark") < order[-1]
    assert journals[0] not in world.disk.files()


async def test_r21_s37_a_checkpoint_without_entries_brings_the_states_along(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    await world.fence(1)
    await world.write_lac(2, 5)
    await world.storage.flush()
    mark = read_mark(world.disk, "/ledgers0/current")
    assert (mark,) == journals_of(world.storage).durable_marks()
    for path in world.disk.files():
        if path.endswith(".txn"):
            assert int(path.rsplit("/", 1)[-1][:-4], 16) >= mark.journal_id
    await world.crash()
    await world.start()
    assert world.report.replayed_entries == 0
    assert world.handle(1).is_fenced
    assert world.handle(2).last_add_confirmed == 5


async def test_s41_replay_starts_at_the_smallest_mark_of_all_directories(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    await world.append(run_of(1, range(10)))
    world.disk.faults.fail("sync", "/ledgers1/current/lastMark")
    with pytest.raises(StorageError):
        await world.storage.flush()
    assert read_mark(world.disk, "/ledgers0/current") > LogMark(0, 0)
    await world.crash()
    assert read_mark(world.disk, "/ledgers1/current") == LogMark(0, 0)
    await world.start()
    assert world.report.replayed_entries == 10
    assert read_mark(world.disk, "/ledgers1/current") == read_mark(world.disk, "/ledgers0/current")
    assert await world.ids(1) == list(range(10))


async def test_s42_marks_and_journals_advance_together_whatever_is_flushed_meanwhile(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await world.start()
    flushes: list[Awaitable[None]] = []
    for i in range(12):
        await world.append(run_of(1, range(i * 10, i * 10 + 10), b"m" * 1000))
        flushes.append(asyncio.ensure_future(world.storage.flush()))
        marks = [read_mark(world.disk, d + "/current") for d in world.directories]
        oldest = min(
            int(path.rsplit("/", 1)[-1][:-4], 16)
            for path in world.disk.files()
            if path.endswith(".txn")
        )
        assert all(mark.journal_id >= oldest or mark == LogMark(0, 0) for mark in marks)
    await asyncio.gather(*flushes)
    assert opened(world.storage).checkpointer.statistics.journals_deleted > 0
    await world.crash()
    await world.start()
    assert await world.ids(1) == list(range(120))


async def test_s45_a_bookie_that_only_restarts_does_not_replay_for_ever(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    await world.append(run_of(1, range(10)))
    await world.restart()
    assert world.report.replayed_entries == 10
    await world.restart()
    assert world.report.replayed_entries == 0
    assert await world.ids(1) == list(range(10))


async def test_r23_replay_restores_entries_keys_fences_and_lacs(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    await world.append(run_of(1, range(10)), run_of(2, [0, 3, 4]))
    await world.fence(1)
    await world.append(run_of(1, [9, 10], b"recovered"))
    await world.write_lac(2, 3)
    await world.crash()
    await world.start()
    assert world.disk.faults.count("sync", ".log") > 0, "all is flushed before anybody is served"
    assert world.cached_entry(1, 0) is None
    assert await world.ids(1) == list(range(11))
    assert await world.ids(2) == [0, 3, 4]
    assert await world.read_one(1, 9) == entry(1, 9, b"recovered", 8)
    assert world.handle(1).is_fenced
    assert world.handle(2).last_add_confirmed == 3


async def test_r22_a_damaged_journal_tail_demands_a_limbo_start_until_it_is_done(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await world.start()
    await world.append(run_of(1, range(10)))
    await world.storage.flush()
    await world.append(run_of(1, range(10, 15)))
    await world.crash()
    (path,) = (path for path in world.disk.files() if path.endswith(".txn"))
    data = bytearray(world.disk.get(path))
    place = data.index(entry(1, 12, b"payload", 9))
    data[place + 40] ^= 1
    world.disk.put(path, bytes(data))
    report = await world.start()
    assert report.has_damaged_journal_tail
    assert report.needs_limbo_start
    assert "damaged" in report.limbo_reason
    assert await world.ids(1) == list(range(12)), "what proves itself is kept"
    await world.crash()
    report = await world.start()
    assert report.needs_limbo_start, "the demand is stored before the journal goes"
    assert not report.has_damaged_journal_tail
    Path(world.index_path).unlink()
    await world.crash()
    report = await world.start()
    assert report.needs_limbo_start, "the copies of the states know it too"
    await world.storage.put_in_limbo([1])
    await world.storage.finish_limbo_start()
    for lost in (False, True):
        if lost:
            Path(world.index_path).unlink()
        await world.crash()
        report = await world.start()
        assert not report.needs_limbo_start
        assert report.ledgers_in_limbo == 1


async def test_damage_in_the_middle_of_the_journal_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    await world.append(run_of(1, range(10)))
    await world.append(run_of(1, range(10, 15)))
    await world.crash()
    (path,) = (path for path in world.disk.files() if path.endswith(".txn"))
    data = bytearray(world.disk.get(path))
    data[data.index(entry(1, 2, b"payload", -1)) + 40] ^= 1
    world.disk.put(path, bytes(data))
    with pytest.raises(CorruptJournalError, match="damaged"):
        await world.start()
    with pytest.raises(CorruptJournalError, match="damaged"):
        await world.start()  # and not: locked by the first attempt


@pytest.mark.parametrize("is_checkpointed", [False, True])
async def test_r09_a_journal_that_was_deleted_is_missed(
    tmp_path: Path, is_checkpointed: bool
) -> None:
    world = World(tmp_path)
    await world.start()
    if is_checkpointed:
        await world.append(run_of(1, range(10)))
        await world.storage.stop()
        await world.start()
    await world.append(run_of(1, range(10, 20)))
    await world.crash()
    newest = max(path for path in world.disk.files() if path.endswith(".txn"))
    world.disk.unlink(newest)
    with pytest.raises(CorruptJournalError, match="missing"):
        await world.start()


@pytest.mark.parametrize("ahead", [(0, 512), (0, 2048), (0, 1_000_000), (1, 0), (100, 512)])
async def test_r23_a_mark_that_claims_too_much_is_taken_back_and_nothing_is_skipped(
    tmp_path: Path, ahead: tuple[int, int]
) -> None:
    world = World(tmp_path)
    promises = Promises()
    await world.start()
    await promises.append(world, run_of(1, range(10)))
    await world.storage.flush()
    for first in range(10, 60, 10):
        await promises.append(world, run_of(1, range(first, first + 10)))
    await promises.fence(world, 1)
    mark = read_mark(world.disk, "/ledgers0/current")
    await world.crash()
    wrong = LogMark(mark.journal_id + ahead[0], mark.offset + ahead[1])
    for directory in world.directories:
        world.disk.put(f"{directory}/current/lastMark", encode_mark(wrong))
    for _ in range(2):
        await world.start()
        await promises.check(world)
        assert await world.ids(1) == list(range(60))
        await promises.append(world, run_of(2, range(5)))
        await world.crash()
    assert read_mark(world.disk, "/ledgers0/current") < LogMark(mark.journal_id + 90, 0)


# The index


async def test_an_index_of_a_newer_release_is_refused_with_one_line(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    await world.storage.stop()
    connection = sqlite3.connect(world.index_path)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(CorruptIndexError, match="newer release") as caught:
        await world.start()
    assert "\n" not in str(caught.value)
    assert Path(world.index_path).exists()


@pytest.mark.parametrize("how", ["missing", "garbage", "empty", "truncated", "old copy", "no wal"])
async def test_a_lost_or_damaged_index_is_rebuilt(tmp_path: Path, how: str) -> None:
    world = World(tmp_path)
    promises = Promises()
    await world.start()
    await promises.append(world, run_of(1, range(20), b"a" * 400))
    await promises.append(world, run_of(2, [0, 2, 5], b"b" * 400))
    await world.storage.stop()
    old_copy = Path(world.index_path).read_bytes()
    await world.start()
    await promises.append(world, run_of(1, range(10, 30), b"c" * 400))
    await promises.fence(world, 2)
    await promises.write_lac(world, 1, 25)
    await world.storage.flush()
    await promises.append(world, run_of(1, range(30, 35), b"d" * 400))
    path = Path(world.index_path)
    wal = Path(f"{path}-wal")
    saved = path.read_bytes()
    await world.crash()
    if how == "missing":
        path.unlink()
    elif how == "garbage":
        path.write_bytes(b"garbage" * 1000)
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "truncated":
        path.write_bytes(path.read_bytes()[:4096])
    elif how == "old copy":
        path.write_bytes(old_copy)
    else:
        path.write_bytes(saved)
    wal.unlink(missing_ok=True)
    report = await world.start()
    assert report.is_index_rebuilt
    assert not report.needs_limbo_start
    await promises.check(world)
    assert await world.ids(1) == list(range(35))
    assert await world.ids(2) == [0, 2, 5]
    await world.crash()
    assert not (await world.start()).is_index_rebuilt
    await promises.check(world)


async def test_an_index_ahead_of_a_replay_that_broke_off_is_still_trusted(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start(write_cache_size_bytes=1 << 20)
    for first in range(0, 300, 30):
        await world.append(run_of(first % 4, range(first, first + 30), b"x" * 1000))
    world.disk.faults.fail("sync", "/ledgers1/current/lastMark", permanent=True)
    with pytest.raises(StorageError):
        await world.storage.flush()
    await world.crash()
    world.disk.faults.fail("sync", ".log", at=4, permanent=True)
    with pytest.raises(StorageError):
        await world.start()
    await world.crash()
    assert not (await world.start()).is_index_rebuilt
    assert sum([len(await world.ids(ledger_id)) for ledger_id in range(4)]) == 300


async def test_r22_index_and_copies_lost_demand_a_limbo_start(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    await world.append(run_of(1, range(20)))
    await world.storage.stop()
    Path(world.index_path).unlink()
    for directory in world.directories:
        world.disk.unlink(f"{directory}/current/ledger-states")
    report = await world.start()
    assert report.needs_limbo_start
    assert "lost" in report.limbo_reason
    assert await world.ids(1) == list(range(20)), "entries are still there"
    assert world.handle(1).accepts_key(b"0" * 20), "its key is not"


async def test_r22_a_copy_that_is_written_as_a_whole_keeps_the_demand_for_a_limbo_start(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await world.start()
    await world.append(run_of(1, range(20)))
    await world.storage.stop()
    Path(world.index_path).unlink()
    copies = [f"{directory}/current/ledger-states" for directory in world.directories]
    for copy in copies:
        world.disk.unlink(copy)
    assert (await world.start()).needs_limbo_start
    await world.storage.stop()
    for copy in copies:
        world.disk.put(copy, b"QBSTgarbage" * 9)
    await world.start()
    await world.fence(2)
    await world.storage.stop()
    Path(world.index_path).unlink()
    report = await world.start()
    assert report.needs_limbo_start, "nothing but the new copies could know it"


async def test_r09_damage_found_while_rebuilding_demands_a_limbo_start(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    await world.append(run_of(1, range(20)))
    await world.storage.flush()
    await world.append(run_of(1, range(20, 30)))
    await world.storage.stop()
    Path(world.index_path).unlink()
    path = next(path for path in world.disk.files() if path.endswith(".log"))
    data = bytearray(world.disk.get(path))
    data[data.index(entry(1, 3, b"payload", -1)) + 40] ^= 1
    world.disk.put(path, bytes(data))
    report = await world.start()
    assert report.needs_limbo_start
    assert "entry logs" in report.limbo_reason


async def test_one_lost_copy_of_the_states_is_made_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    await world.fence(1)
    await world.storage.stop()
    world.disk.put("/ledgers0/current/ledger-states", b"QBSTgarbage" * 9)
    await world.start()
    await world.fence(2)
    await world.storage.stop()
    world.disk.unlink("/ledgers1/current/ledger-states")
    Path(world.index_path).unlink()
    report = await world.start()
    assert not report.needs_limbo_start
    assert world.handle(1).is_fenced
    assert world.handle(2).is_fenced


async def test_entry_logs_without_runs_are_removed_at_the_start(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.start()
    await world.append(run_of(1, range(10)))
    world.disk.faults.fail("sync", ".log")
    world.disk.faults.fail("unlink", ".log")
    with pytest.raises(StorageError):
        await world.storage.flush()
    await world.storage.flush()
    logs = [path for path in world.disk.files() if path.endswith(".log")]
    assert len(logs) == 2
    await world.storage.stop()
    await world.start()
    assert [path for path in world.disk.files() if path.endswith(".log")] == logs[1:]
    assert await world.ids(1) == list(range(10))
    await world.storage.delete_ledgers([1])
    await world.storage.stop()
    await world.start()
    assert not [path for path in world.disk.files() if path.endswith(".log")]
    await world.append(run_of(2, range(10)))
    await world.storage.stop()
    (log,) = (path for path in world.disk.files() if path.endswith(".log"))
    assert log.rsplit("/", 1)[-1] > logs[1].rsplit("/", 1)[-1], "ids are never used twice"


async def test_100_mb_of_unflushed_journal_replay_in_bounded_memory(tmp_path: Path) -> None:
    world = World(tmp_path)
    options = StorageOptions(write_cache_size_bytes=1 << 30, flush_interval_s=3600)
    world.options = options
    await world.start()
    for first in range(0, 100_000, 1000):
        await world.append(run_of(first // 1000 % 10, range(first, first + 1000), b"x" * 1000))
    assert opened(world.storage).checkpointer.statistics.checkpoints == 0
    world.options = StorageOptions(write_cache_size_bytes=32 << 20, flush_interval_s=3600)
    await world.restart()
    assert world.report.replayed_entries == 100_000
    assert world.report.replayed_bytes > 100_000_000
    assert opened(world.storage).checkpointer.statistics.checkpoints >= 3
    for entry_id in (0, 54_321, 99_999):
        body = await world.read_one(entry_id // 1000 % 10, entry_id)
        assert body == entry(
            entry_id // 1000 % 10, entry_id, b"x" * 1000, entry_id // 1000 * 1000 - 1
        )
