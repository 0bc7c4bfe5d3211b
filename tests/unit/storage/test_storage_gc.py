"""Garbage collection: what is deleted, on which proof, and what never is."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from doubles.inside import opened
from doubles.sim_threads import StepClock
from doubles.storage_world import World, run_of
from quorumbook.env import Env
from quorumbook.errors import (
    ClusterNotInitializedError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    StorageError,
)
from quorumbook.storage.collection.collector import Collector
from quorumbook.storage.gc import gc_storage
from quorumbook.storage.gc.decisions import (
    LEDGERS_ALWAYS,
    GcPlan,
    LogUsage,
    Suspicions,
    fate,
    ledgers_at_a_time,
    plan,
    removable,
    worth_compacting,
)
from quorumbook.storage.gc.ledger_ranges import LedgerRanges
from quorumbook.storage.options import GcOptions

MINUTE_NS = 60 * 1_000_000_000
OPTIONS = GcOptions(confirm_interval_s=60.0, reserve_size_bytes=0)


class FakeCluster:
    """A metadata store as the collector sees it."""

    def __init__(self, *ledger_ids: int) -> None:
        self.ledger_ids = set(ledger_ids)
        #: Listed wrongly as if they were not there.
        self.unlisted: set[int] = set()
        self.error: Exception | None = None
        self.listing_error: Exception | None = None
        self.sessions = 1
        #: Of the id generator.
        self.next_id = 1000
        self.on_missing = lambda: None
        #: Closed, and kept by other bookies.
        self.kept_elsewhere: set[int] = set()
        self.busy: set[int] = set()
        self.locked: set[int] = set()
        self.on_surplus = lambda: None

    async def listing(self) -> AsyncIterator[int]:
        for ledger_id in sorted(self.ledger_ids - self.unlisted):
            yield ledger_id
        if self.listing_error or self.error:
            raise self.listing_error or self.error or AssertionError

    async def missing(self, ledger_ids: list[int]) -> list[int]:
        if self.error:
            raise self.error
        found = [ledger_id for ledger_id in ledger_ids if ledger_id not in self.ledger_ids]
        self.on_missing()
        return found

    async def next_ledger_id(self) -> int:
        if self.error:
            raise self.error
        return self.next_id

    def session(self) -> object:
        return self.sessions

    async def surplus(self, ledger_ids: list[int]) -> list[int]:
        if self.error:
            raise self.error
        found = [ledger_id for ledger_id in ledger_ids if ledger_id in self.kept_elsewhere]
        self.on_surplus()
        return found

    async def take_lock(self, ledger_id: int) -> bool:
        if ledger_id not in self.busy:
            self.locked.add(ledger_id)
        return ledger_id in self.locked

    def is_locked(self, ledger_id: int) -> bool:
        return ledger_id in self.locked

    async def release_locks(self) -> None:
        self.locked.clear()


class Garbage:
    """A world with a collector."""

    def __init__(self, world: World, *ledger_ids: int, options: GcOptions = OPTIONS) -> None:
        self.world = world
        self.cluster = FakeCluster(*ledger_ids)
        self.clock = StepClock()
        self.damages: list[object] = []
        self.options = options
        self.restart()

    def restart(self) -> None:
        self.collector = Collector(
            self.world.storage, self.cluster, self.options, Env(clock=self.clock),
            on_damage=self.damages.append,
        )  # fmt: skip

    async def collect(self, minutes: int = 2, *, is_forced: bool = False) -> None:
        self.clock.now += minutes * MINUTE_NS
        await self.collector.collect(is_forced=is_forced)

    def logs(self) -> list[str]:
        return [path for path in self.world.disk.files() if path.endswith(".log")]


async def filled(world: World, *ledger_ids: int) -> None:
    await world.start()
    for ledger_id in ledger_ids:
        await world.append(run_of(ledger_id, range(20), b"x" * 400))
    await world.storage.flush()


async def test_r27_a_deleted_ledger_goes_in_the_second_pass_and_its_space_comes_back(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await filled(world, 1, 2, 3)
    garbage = Garbage(world, 2)
    assert garbage.logs()
    await garbage.collect()
    assert world.storage.ledger_ids() == [1, 2, 3]
    await garbage.collect()
    assert world.storage.ledger_ids() == [2]
    assert isinstance((await world.read((1, 0)))[0], NoSuchLedgerError)
    assert await world.read_one(2, 19)
    garbage.cluster.ledger_ids.clear()
    await garbage.collect()
    await garbage.collect()
    assert world.storage.ledger_ids() == []
    assert garbage.logs() == []
    assert garbage.collector.statistics.deleted_ledgers == 3
    await world.restart()
    assert world.storage.ledger_ids() == []
    await world.storage.stop()


async def test_a_pass_goes_by_pages_of_the_ledgers_that_are_known_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc_storage, "_LEDGERS_AT_A_TIME", 3)
    world = World(tmp_path)
    known = [2, 3, 5, 6, 7, 11, 12, 20]
    await filled(world, *known)
    # Others of the cluster lie before, between and behind those that are known here.
    garbage = Garbage(world, 0, 1, 3, 4, 6, 8, 9, 10, 12, 20, 21, 30)
    garbage.cluster.unlisted = {6}
    asked: list[list[int]] = []
    missing = garbage.cluster.missing

    async def noted(ledger_ids: list[int]) -> list[int]:
        asked.append(ledger_ids)
        return await missing(ledger_ids)

    monkeypatch.setattr(garbage.cluster, "missing", noted)
    await garbage.collect()
    assert asked == [[2, 5], [6, 7, 11]], "a page at a time, those that are not listed"
    assert garbage.collector.statistics.suspected_ledgers == 4
    # What breaks off behind the last known ledger is not whole either.
    garbage.cluster.listing_error = MetadataUnavailableError("away")
    await garbage.collect()
    assert garbage.collector.statistics.suspected_ledgers == 0
    garbage.cluster.listing_error = None
    for _ in range(2):
        await garbage.collect()
    assert world.storage.ledger_ids() == [3, 6, 12, 20]
    await world.storage.stop()


async def test_r27_two_findings_too_close_together_delete_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    await filled(world, 1)
    garbage = Garbage(world)
    await garbage.collect()
    await garbage.collect(minutes=0)
    assert world.storage.ledger_ids() == [1]
    await garbage.collect(minutes=1)
    assert world.storage.ledger_ids() == []
    await world.storage.stop()


async def test_r27_s56_s57_a_ledger_left_out_of_the_listing_is_asked_for_and_stays(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await filled(world, 1, 2)
    garbage = Garbage(world, 1, 2)
    garbage.cluster.unlisted = {1, 2}
    for _ in range(4):
        await garbage.collect()
    assert world.storage.ledger_ids() == [1, 2]
    await world.storage.stop()


@pytest.mark.parametrize("error", [MetadataUnavailableError, ClusterNotInitializedError])
@pytest.mark.parametrize("where", ["error", "listing_error"])
async def test_r27_s58_s59_a_store_that_fails_deletes_nothing_and_suspicion_starts_anew(
    tmp_path: Path, error: type[Exception], where: str
) -> None:
    world = World(tmp_path)
    await filled(world, 1)
    garbage = Garbage(world)
    await garbage.collect()
    setattr(garbage.cluster, where, error("away"))
    for _ in range(3):
        await garbage.collect()
    setattr(garbage.cluster, where, None)
    await garbage.collect()
    assert world.storage.ledger_ids() == [1], "what was found before the failure counts no more"
    await garbage.collect()
    assert world.storage.ledger_ids() == []
    await world.storage.stop()


async def test_r27_s59_the_end_of_a_session_makes_every_finding_doubtful(tmp_path: Path) -> None:
    world = World(tmp_path)
    await filled(world, 1)
    garbage = Garbage(world)
    await garbage.collect()
    garbage.cluster.sessions += 1
    await garbage.collect()
    assert world.storage.ledger_ids() == [1]

    def end_session() -> None:
        garbage.cluster.sessions += 1

    garbage.cluster.on_missing = end_session
    for _ in range(3):
        await garbage.collect()
    assert world.storage.ledger_ids() == [1]
    await world.storage.stop()


async def test_r27_nothing_is_deleted_before_a_limbo_start_is_over(tmp_path: Path) -> None:
    world = World(tmp_path)
    await filled(world, 1)
    world.storage.needs_limbo_start = True
    garbage = Garbage(world)
    for _ in range(3):
        await garbage.collect()
    assert world.storage.ledger_ids() == [1]
    await world.storage.stop()


async def test_r27_a_ledger_that_was_made_again_between_question_and_deletion_stays(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await filled(world, 1, 2)
    garbage = Garbage(world)
    await garbage.collect()
    adds = []

    def add() -> None:
        # Behind the last question, in front of the deletion.
        adds.append(world.append(run_of(1, range(20, 25))))

    garbage.cluster.on_missing = add
    await garbage.collect()
    for future in adds:
        await future
    assert world.storage.ledger_ids() == [1]
    assert await world.read_one(1, 0)
    assert await world.read_one(1, 24)
    await world.storage.stop()


async def test_r27_a_ledger_that_is_there_when_asked_for_the_last_time_stays(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await filled(world, 1, 2)
    garbage = Garbage(world)
    await garbage.collect()
    garbage.cluster.on_missing = lambda: garbage.cluster.ledger_ids.add(1)
    await garbage.collect()
    assert world.storage.ledger_ids() == [1]
    await world.storage.stop()


async def test_r27_after_a_checkpoint_nobody_knows_what_came_so_nothing_is_deleted(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await filled(world, 1)
    gc = world.storage.gc
    checkpoints = gc.checkpoints
    await world.append(run_of(1, [30]))
    await world.storage.flush()
    assert gc.forget_ledgers([1], checkpoints) == []
    assert gc.forget_ledgers([1], gc.checkpoints) == [1]
    await world.storage.stop()


async def test_a_ledger_deleted_and_added_to_again_keeps_what_came_later(tmp_path: Path) -> None:
    world = World(tmp_path)
    await filled(world, 1)
    gc = world.storage.gc
    assert gc.forget_ledgers([1], gc.checkpoints) == [1]
    await world.append(run_of(1, [7], b"new"))
    await world.storage.flush()
    await gc.remove_unused()
    assert await world.ids(1) == [7]
    await world.restart()
    assert await world.ids(1) == [7]
    await world.storage.stop()


async def test_r27_one_pass_deletes_no_more_than_its_share_unless_it_is_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorumbook.storage.gc.decisions.LEDGERS_ALWAYS", 2)
    world = World(tmp_path)
    await filled(world, *range(10))
    garbage = Garbage(world)
    await garbage.collect()
    await garbage.collect()
    assert len(world.storage.ledger_ids()) == 8
    await garbage.collect(is_forced=True)
    assert world.storage.ledger_ids() == []
    await world.storage.stop()


async def test_no_log_goes_while_a_checkpoint_may_have_runs_in_it(tmp_path: Path) -> None:
    world = World(tmp_path)
    await filled(world, 1)
    gc = world.storage.gc
    checkpointer = opened(world.storage).checkpointer
    await world.storage.delete_ledgers([1])
    index = opened(world.storage).index
    commit = index.commit

    def failing(**what: object) -> object:
        raise StorageError("the index fails")

    index.commit = failing  # type: ignore[method-assign,assignment]
    await world.append(run_of(2, range(5)))
    with pytest.raises(StorageError):
        await world.storage.flush()
    assert checkpointer.has_unindexed_runs
    assert await gc.remove_unused() == {}
    index.commit = commit  # type: ignore[method-assign]
    await world.storage.flush()
    assert await gc.remove_unused() == {}
    assert await world.ids(2) == [0, 1, 2, 3, 4]
    await world.restart()
    assert await world.ids(2) == [0, 1, 2, 3, 4]
    await world.storage.stop()


async def test_a_crash_at_any_disk_call_of_a_pass_loses_nothing_that_lives(tmp_path: Path) -> None:
    call = 0
    while True:
        call += 1
        directory = tmp_path / str(call)
        directory.mkdir()
        world = World(directory)
        await filled(world, 1, 2)
        await world.storage.stop()
        await filled(world, 3, 4)
        garbage = Garbage(world, 2, 4)
        await garbage.collect()
        world.watch_commits()
        world.cut_power_at(call)
        await garbage.collect()
        was_cut = world.has_lost_power
        rng = random.Random(call)
        await world.crash(rng, keep=rng.choice([0.0, 0.5, 1.0]))
        await world.start()
        for ledger_id in (2, 4):
            assert await world.ids(ledger_id) == list(range(20))
            assert await world.read_one(ledger_id, 11)
        await world.storage.stop()
        if not was_cut:
            break
    assert call > 5


# The decisions


def test_suspicions_need_two_passes_even_without_a_distance() -> None:
    suspicions = Suspicions(0)

    def see(missing: list[int], session: str, now_ns: int) -> list[int]:
        return list(suspicions.see(LedgerRanges.of(missing), session, now_ns))

    assert see([1, 2], "s", 5) == []
    assert see([2, 3], "s", 6) == [2]
    assert see([1, 3], "s", 7) == [3], "1 was there in between"
    assert see([1, 3], "t", 8) == []
    suspicions.forget()
    assert see([1, 3], "t", 9) == []


def test_a_suspicion_is_as_old_as_the_first_of_the_passes_that_found_it() -> None:
    suspicions = Suspicions(10)

    def see(missing: list[int], now_ns: int) -> list[int]:
        return list(suspicions.see(LedgerRanges.of(missing), "s", now_ns))

    assert see([1, 2], 0) == []
    assert see([1, 2, 3], 5) == []
    assert see([1, 2, 3, 4], 5) == []
    assert see([2, 3, 4], 10) == [2]
    assert see([2, 3, 4], 15) == [2, 3, 4]
    assert len(suspicions) == 3


def test_the_share_of_a_pass_has_a_floor_and_an_operator_may_go_beyond() -> None:
    assert ledgers_at_a_time(500, 600, 0.2, is_forced=False) == 500
    assert ledgers_at_a_time(50_000, 100_000, 0.2, is_forced=False) == 20_000
    assert ledgers_at_a_time(5_000, 5_000, 0.0, is_forced=False) == LEDGERS_ALWAYS
    assert ledgers_at_a_time(5_000, 5_000, 0.0, is_forced=True) == 5_000


#: A log with 1,000 bytes behind its header.
FULL = 2024


def test_logs_that_give_most_back_are_compacted_first_and_open_ones_not_at_all() -> None:
    usages = [
        LogUsage(1, FULL, 150, 3, 1),
        LogUsage(2, FULL, 50, 3, 1),
        LogUsage(3, FULL, 10, 3, 1, is_open=True),
        LogUsage(4, FULL, 10, 3, 1, is_stuck=True),
        LogUsage(5, FULL, 200, 3, 1),
        LogUsage(6, FULL, 0, 0, 0),
    ]
    assert [usage.entry_log_id for usage in worth_compacting(usages, 0.2)] == [2, 1]
    assert removable([1, 2, 3], {2}) == [1, 3]
    assert plan(7, usages, 0.2) == GcPlan(7, 1, FULL, 2, 200, 1800)
    assert plan(7, usages, 0) == GcPlan(7, 1, FULL, 0, 0, 0)


def test_a_small_log_that_is_full_is_not_written_anew_for_its_header() -> None:
    usage = LogUsage(1, FULL, 950, 1, 1)
    assert worth_compacting([usage], 0.9) == []
    assert "stays until more of it is deleted" in fate(usage, GcOptions())


@pytest.mark.parametrize(
    ("minor", "major", "is_minor", "is_major", "threshold"),
    [
        (0.2, 0.8, True, False, 0.2),
        (0.2, 0.8, False, True, 0.8),
        (0.2, 0.8, True, True, 0.8),
        (0.2, 0.8, False, False, 0),
        (0.2, 0, False, True, 0.2),
        (0, 0.8, True, False, 0),
    ],
)
def test_a_pass_compacts_by_the_greatest_threshold_that_is_turned_on(
    minor: float, major: float, is_minor: bool, is_major: bool, threshold: float
) -> None:
    options = GcOptions(minor_compaction_threshold=minor, major_compaction_threshold=major)
    assert options.compaction_threshold(minor=is_minor, major=is_major) == threshold


@pytest.mark.parametrize(
    ("usage", "words"),
    [
        (LogUsage(1, FULL, 100, 2, 1, is_open=True), "it is being written"),
        (LogUsage(1, FULL, 0, 0, 0), "the next pass deletes it"),
        (LogUsage(1, FULL, 100, 2, 1), "2 runs of 1 ledger keep 100 of 1000 bytes (10%); "
         "the next minor compaction moves them"),
        (LogUsage(1, FULL, 500, 2, 1), "the next major compaction"),
        (LogUsage(1, FULL, 900, 2, 1), "stays until more of it is deleted"),
        (LogUsage(1, FULL, 100, 2, 1, is_stuck=True), "cannot be read"),
    ],
)  # fmt: skip
def test_each_log_is_told_what_keeps_it_and_what_comes_next(usage: LogUsage, words: str) -> None:
    assert words in fate(usage, GcOptions())
