"""Scrub: damage is found, put on record, answered with an I/O error, and healed by a re-add."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from doubles.records import entry
from doubles.storage_world import World, run_of
from doubles.waiting import until
from quorumbook.env import Env
from quorumbook.errors import BookieIOError, NoSuchEntryError, StorageError
from quorumbook.protocol.digest import Digester, DigestType, digester
from quorumbook.storage.options import Damage, GcOptions, ScrubOptions
from quorumbook.storage.scrub.decisions import ScrubPosition
from quorumbook.storage.scrub.scrub_storage import ScrubStorage
from quorumbook.storage.scrub.scrubber import Scrubber

PAYLOAD = b"payload" * 20


class Scrub:
    """A scrubber over a world's storage."""

    def __init__(
        self,
        world: World,
        *,
        digest: DigestType | None = DigestType.CRC32C,
        interval_s: float = 86400.0,
    ) -> None:
        self.damages: list[Damage] = []
        self.index_errors: list[StorageError] = []
        self.digest = digest

        async def digester_of(ledger_id: int) -> Digester | None:
            return None if self.digest is None else digester(self.digest, b"")

        self.env = world.storage._env  # the same machine and index
        self.scrub: ScrubStorage = world.storage.scrub
        self.scrubber = Scrubber(
            self.scrub,
            ScrubOptions(interval_s=interval_s, rate_bytes=0),
            self.env,
            digester=digester_of,
            on_damage=self.damages.append,
            on_index_damaged=self.index_errors.append,
        )

    async def cycle(self) -> list[tuple[int, int, int]]:
        self.damages.clear()
        await self.scrubber.cycle()
        return [(one.ledger_id, one.first_entry_id, one.last_entry_id) for one in self.damages]


async def filled(tmp_path: Path, **changes: Any) -> World:
    """Return a world whose entries are on disk and in no cache."""
    world = World(tmp_path)
    await world.start(**changes)
    await world.append(run_of(1, range(20), PAYLOAD), run_of(2, range(0, 30, 3), PAYLOAD))
    await world.storage.flush()
    await world.storage.stop()
    await world.start(**changes)
    return world


def logs(world: World) -> list[str]:
    return [path for path in world.disk.files() if path.endswith(".log")]


def flip(world: World, body: bytes, at: int = 60) -> None:
    """Flip a bit of an entry, wherever its entry log is."""
    for path in logs(world):
        data = bytearray(world.disk.get(path))
        place = data.find(body)
        if place >= 0:
            data[place + at] ^= 1
            world.disk.put(path, bytes(data))
            return
    raise AssertionError("no entry log has the entry")


def body_of(ledger_id: int, entry_id: int) -> bytes:
    return entry(ledger_id, entry_id, PAYLOAD, -1)


async def test_a_whole_storage_is_read_as_a_whole_and_nothing_is_found(tmp_path: Path) -> None:
    world = await filled(tmp_path)
    scrub = Scrub(world)
    assert await scrub.cycle() == []
    statistics = scrub.scrubber.statistics
    assert (statistics.cycles, statistics.checked_runs) == (1, 2)
    # The same machine and index.
    stored = sum(run.size_bytes for log in range(9) for run in scrub.scrub._index.runs_in(log))
    assert statistics.checked_bytes == stored
    assert scrub.env.background.taken_bytes == {"scrub": stored}


async def test_r32_a_flipped_bit_costs_its_entry_alone_until_it_is_added_again(
    tmp_path: Path,
) -> None:
    world = await filled(tmp_path)
    flip(world, body_of(1, 7))
    scrub = Scrub(world)
    assert await scrub.cycle() == [(1, 7, 7)]
    with pytest.raises(BookieIOError):
        await world.read_one(1, 7)
    assert await world.ids(1) == [*range(7), *range(8, 20)], "a list leaves it out"
    assert await world.read_one(1, 6) == body_of(1, 6)
    assert await world.read_one(1, 8) == body_of(1, 8)
    assert (await world.read_batch(1, 0))[1] == 7, "what stands before it is served"
    assert (await world.read_batch(1, 8))[1] == 12
    assert await scrub.cycle() == [], "it is known already"
    await world.restart()
    with pytest.raises(BookieIOError):
        await world.read_one(1, 7)
    await world.append(run_of(1, [7], PAYLOAD, lac=-1))
    await world.storage.flush()
    assert await world.read_one(1, 7) == body_of(1, 7)
    assert await world.ids(1) == list(range(20))
    assert await Scrub(world).scrub.damaged_runs() == []
    await world.restart()
    assert await world.read_one(1, 7) == body_of(1, 7)


@pytest.mark.parametrize("digest", [None, DigestType.CRC32C])
async def test_a_striped_run_is_judged_entry_by_entry_or_doubted_as_a_whole(
    tmp_path: Path, digest: DigestType | None
) -> None:
    world = await filled(tmp_path)
    flip(world, body_of(2, 9))
    damages = await Scrub(world, digest=digest).cycle()
    assert damages == ([(2, 0, 27)] if digest is None else [(2, 9, 9)])
    for entry_id in range(0, 30, 3):
        if digest is None or entry_id == 9:
            with pytest.raises(BookieIOError):
                await world.read_one(2, entry_id)
        else:
            assert await world.read_one(2, entry_id) == body_of(2, entry_id)
    with pytest.raises(NoSuchEntryError):
        await world.read_one(2, 10)


async def test_entries_that_prove_themselves_later_are_trusted_again(tmp_path: Path) -> None:
    world = await filled(tmp_path)
    flip(world, body_of(1, 7))
    scrub = Scrub(world, digest=None)
    assert await scrub.cycle() == [(1, 0, 19)]
    scrub.digest = DigestType.CRC32C
    for row in await scrub.scrub.damaged_runs(1):
        await scrub.scrubber.redeem(row)
    assert scrub.scrubber.statistics.redeemed_entries == 19
    assert await world.ids(1) == [*range(7), *range(8, 20)]
    assert await scrub.cycle() == [], "the new runs have checksums of their own"


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize("digest", [None, DigestType.CRC32C])
async def test_what_a_disk_gives_back_again_is_believed_again(
    tmp_path: Path, digest: DigestType | None, is_cut: bool, is_restarted: bool
) -> None:
    """Without a digest its checksum alone can tell, or that nobody saw damage in it."""
    world = await (cut if is_cut else filled)(tmp_path)
    world.disk.faults.fail("read", ".log", permanent=True)
    found = await Scrub(world, digest=digest).cycle()
    assert sum(last - first + 1 for ledger_id, first, last in found if ledger_id == 1) == 20
    world.disk.faults.heal()
    if is_restarted:
        await world.restart()
    scrub = Scrub(world, digest=digest)
    for row in await scrub.scrub.damaged_runs():
        await scrub.scrubber.redeem(row)
    assert await world.ids(1) == list(range(20))
    assert await world.ids(2) == list(range(0, 30, 3))
    assert await scrub.cycle() == [], "they have their checksums again"
    flip(world, body_of(2, 9))
    assert await scrub.cycle() == ([(2, 0, 27)] if digest is None else [(2, 9, 9)])
    for row in await scrub.scrub.damaged_runs():
        assert await scrub.scrubber.redeem(row) == [row], "other bytes than were written"


async def cut(tmp_path: Path) -> World:
    """Return a world whose first run lost its end, and its checksum, to a later add."""
    world = await filled(tmp_path)
    await world.append(run_of(1, [19], PAYLOAD))
    await world.storage.flush()
    return world


async def test_other_bytes_of_a_run_that_was_cut_are_not_believed_later(tmp_path: Path) -> None:
    world = await cut(tmp_path)
    (path,) = [path for path in logs(world) if body_of(1, 7) in world.disk.get(path)]
    data = bytearray(world.disk.get(path))
    data[data.index(body_of(1, 7)) + 15] ^= 1  # in its id, which sizes and ids can tell
    right = world.disk.get(path)
    world.disk.put(path, bytes(data))
    scrub = Scrub(world, digest=None)
    assert await scrub.cycle() == [(1, 7, 7)]
    world.disk.put(path, right)
    for row in await scrub.scrub.damaged_runs():
        assert await scrub.scrubber.redeem(row) == [row], "what it held shows nothing any more"


@pytest.mark.parametrize("is_cut", [False, True])
async def test_a_part_of_what_could_not_be_read_is_believed_again(
    tmp_path: Path, is_cut: bool
) -> None:
    world = await (cut if is_cut else filled)(tmp_path)
    world.disk.faults.fail("read", ".log", permanent=True)
    await Scrub(world, digest=None).cycle()
    world.disk.faults.heal()
    await world.append(run_of(1, [5], PAYLOAD))
    await world.storage.flush()
    scrub = Scrub(world, digest=None)
    for row in await scrub.scrub.damaged_runs():
        await scrub.scrubber.redeem(row)
    assert await world.ids(1) == list(range(20))


@pytest.mark.parametrize("is_back_while_it_runs", [False, True])
async def test_a_log_that_was_away_while_the_index_was_rebuilt_is_not_taken_for_a_leftover(
    tmp_path: Path, is_back_while_it_runs: bool
) -> None:
    world = await filled(tmp_path)
    (path,) = [path for path in logs(world) if body_of(1, 15) in world.disk.get(path)]
    data = world.disk.get(path)
    await world.storage.stop()
    world.disk.unlink(path)
    Path(world.index_path).unlink()
    assert (await world.start()).is_index_rebuilt
    if is_back_while_it_runs:
        world.disk.put(path, data)
        await world.storage.gc.remove_unused()
    await world.storage.stop()
    if not is_back_while_it_runs:
        world.disk.put(path, data)
    assert (await world.start()).is_index_rebuilt
    assert await world.ids(1) == list(range(20))
    assert await world.read_one(1, 7) == body_of(1, 7)
    await world.storage.stop()
    assert not (await world.start()).is_index_rebuilt


async def test_readers_see_what_was_put_back_before_it_is_believed(tmp_path: Path) -> None:
    """They have the file open that was there before, and without a digest nothing tells."""
    world = await filled(tmp_path)
    (path,) = [path for path in logs(world) if body_of(1, 7) in world.disk.get(path)]
    right = world.disk.get(path)
    flip(world, body_of(1, 7))
    assert await world.read_one(1, 7) != body_of(1, 7)
    scrub = Scrub(world, digest=None)
    assert await scrub.cycle() == [(1, 0, 19)]
    world.disk.put(path, right)
    for row in await scrub.scrub.damaged_runs():
        await scrub.scrubber.redeem(row)
    assert await world.read_one(1, 7) == body_of(1, 7)


async def test_a_log_that_could_not_be_read_is_opened_by_the_next_read(tmp_path: Path) -> None:
    world = await filled(tmp_path)
    (path,) = [path for path in logs(world) if body_of(1, 7) in world.disk.get(path)]
    right = world.disk.get(path)
    world.disk.put(path, right[: right.index(body_of(1, 7))])
    with pytest.raises(BookieIOError):
        await world.read_one(1, 7)
    world.disk.put(path, right)
    assert await world.read_one(1, 7) == body_of(1, 7)


async def test_a_log_that_was_away_is_believed_again(tmp_path: Path) -> None:
    world = await cut(tmp_path)
    (path,) = [path for path in logs(world) if body_of(1, 15) in world.disk.get(path)]
    data = world.disk.get(path)
    await world.storage.stop()
    world.disk.unlink(path)
    await world.start()
    await world.storage.stop()
    world.disk.put(path, data)
    await world.start()
    scrub = Scrub(world, digest=None)
    assert await world.ids(1) == [19]
    for row in await scrub.scrub.damaged_runs():
        await scrub.scrubber.redeem(row)
    assert await world.ids(1) == list(range(20))
    assert await scrub.scrub.damaged_runs() == []


async def test_a_lost_or_cut_log_is_damage_and_what_is_left_of_it_is_not(tmp_path: Path) -> None:
    world = await filled(tmp_path)
    (path,) = [path for path in logs(world) if body_of(1, 15) in world.disk.get(path)]
    data = world.disk.get(path)
    world.disk.put(path, data[: data.index(body_of(1, 15)) - 2])
    assert (1, 15, 19) in await Scrub(world).cycle()
    assert (await world.ids(1))[-1] == 14
    await world.storage.stop()
    world.disk.unlink(path)
    await world.start()
    assert await world.ids(1) == [], "what was in a log that is gone is on record from the start"
    with pytest.raises(BookieIOError):
        await world.read_one(1, 3)


async def test_what_a_reader_or_compaction_stumbles_over_is_judged(tmp_path: Path) -> None:
    world = await filled(tmp_path)
    flip(world, body_of(1, 7))
    scrub = Scrub(world)
    with pytest.raises(BookieIOError):
        await world.read_batch(1, 0)
    assert world.damages
    for damage in world.damages:
        scrub.scrubber.suspect(damage)
    await scrub.scrubber.settle_suspects()
    assert [damage.first_entry_id for damage in scrub.damages] == [7]
    told = len(world.damages)
    with pytest.raises(BookieIOError):
        await world.read_batch(1, 7)
    assert len(world.damages) == told, "what is on record is not told again"


@pytest.mark.parametrize("is_read_first", [False, True])
async def test_what_was_read_and_is_wrong_is_believed_by_its_checksum_alone(
    tmp_path: Path, is_read_first: bool
) -> None:
    """Also if it could not be read before, or after that."""
    world = await filled(tmp_path)
    (row,) = await Scrub(world).scrub.runs(1, 0, 19)
    wrong = row.condemned(was_read=is_read_first).condemned(was_read=not is_read_first)
    assert wrong == row.condemned(was_read=True)
    assert wrong.written_checksum == row.checksum
    assert not wrong.part(0, 4).is_believed_unproven
    assert row.condemned(was_read=False).part(0, 4).is_believed_unproven


async def test_what_was_replaced_while_it_was_judged_stays_as_it_is(tmp_path: Path) -> None:
    world = await filled(tmp_path)
    flip(world, body_of(1, 7))
    scrub = Scrub(world)
    (row,) = await scrub.scrub.runs(1, 0, 19)
    parts = await scrub.scrub.judge(row, None)
    assert [part.is_damaged for part in parts] == [True]
    await world.append(run_of(1, [7], PAYLOAD, lac=-1))
    await world.storage.flush()
    assert await scrub.scrub.record([(row, parts)]) == 0
    assert await world.read_one(1, 7) == body_of(1, 7)


async def test_a_log_that_was_judged_does_not_stay_open(tmp_path: Path) -> None:
    """Removed while it is open, it would keep its space."""
    world = await filled(tmp_path)
    scrub = Scrub(world)
    (row,) = await scrub.scrub.runs(1, 0, 19)
    before = world.disk.open_files
    await scrub.scrub.judge(row, None)
    assert world.disk.open_files == before


async def test_a_cycle_goes_on_where_it_was_after_a_restart(tmp_path: Path) -> None:
    world = await filled(tmp_path)
    scrub = Scrub(world)
    last = (await scrub.scrub.entry_log_ids())[-1]
    await scrub.scrub.write_position(ScrubPosition(last, 1 << 40, 5))
    await world.restart()
    scrub = Scrub(world)
    assert await scrub.cycle() == []
    assert scrub.scrubber.statistics.checked_runs == 0, "all before it was read already"
    position = await scrub.scrub.read_position()
    assert not position.is_within
    assert position.finished_ms == scrub.env.clock.wall_ms()
    assert await scrub.cycle() == []
    assert scrub.scrubber.statistics.checked_runs == 2


async def test_a_cycle_that_is_asked_for_reads_all_although_another_was_cut_short(
    tmp_path: Path,
) -> None:
    world = await filled(tmp_path)
    scrub = Scrub(world)
    last = (await scrub.scrub.entry_log_ids())[-1]
    await scrub.scrub.write_position(ScrubPosition(last, 1 << 40, 5))
    scrub.scrubber.trigger()
    scrub.scrubber.start()
    await until(lambda: scrub.scrubber.statistics.cycles == 1)
    await scrub.scrubber.stop()
    assert scrub.scrubber.statistics.checked_runs == 2


async def test_a_cycle_that_was_cut_short_goes_on_although_no_other_is_due(tmp_path: Path) -> None:
    world = await filled(tmp_path)
    scrub = Scrub(world, interval_s=0)
    last = (await scrub.scrub.entry_log_ids())[-1]
    await scrub.scrub.write_position(ScrubPosition(last, 1 << 40, 5))
    assert (await scrub.scrubber.progress()).next_in_s == 0
    scrub.scrubber.start()
    await until(lambda: scrub.scrubber.statistics.cycles == 1)
    await scrub.scrubber.stop()
    assert scrub.scrubber.statistics.checked_runs == 0, "all before it was read already"
    assert (await scrub.scrubber.progress()).next_in_s is None


async def test_a_cycle_that_was_asked_for_and_failed_is_made_by_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await filled(tmp_path)
    scrub = Scrub(world, interval_s=0)

    async def fails(*_: object) -> None:
        raise StorageError("the index fails")

    with monkeypatch.context() as patched:
        patched.setattr(scrub.scrub, "check_some", fails)
        scrub.scrubber.trigger()
        scrub.scrubber.start()
        await until(lambda: scrub.scrubber.statistics.failed_cycles == 1)
        await scrub.scrubber.stop()
    await world.restart()
    scrub = Scrub(world, interval_s=0)
    scrub.scrubber.start()
    await until(lambda: scrub.scrubber.statistics.cycles == 1)
    await scrub.scrubber.stop()
    assert scrub.scrubber.statistics.checked_runs == 2


def test_the_next_cycle_is_due_an_interval_after_the_last(tmp_path: Path) -> None:
    assert ScrubPosition().wait_s(1_000_000, 60) == 0
    assert ScrubPosition(3, 4, 1_000_000).wait_s(1_000_000, 60) == 0, "one was begun"
    assert ScrubPosition(finished_ms=1_000_000).wait_s(1_010_000, 60) == 50
    assert ScrubPosition(finished_ms=1_000_000).wait_s(9_000_000, 60) == 0
    assert ScrubPosition(finished_ms=1_000_000).wait_s(1_000, 60) == 60, "the clock went back"
    for text in (None, "", "1", "a:b:c", "1:2:3:4"):
        assert ScrubPosition.decode(text) == ScrubPosition()
    assert ScrubPosition.decode(ScrubPosition(3, 4, 5).encode()) == ScrubPosition(3, 4, 5)


async def test_an_index_that_scrub_finds_damaged_is_rebuilt_by_the_next_start(
    tmp_path: Path,
) -> None:
    world = await filled(tmp_path)
    scrub = Scrub(world)
    connection = sqlite3.connect(world.index_path)
    connection.execute("UPDATE run SET last = last - 1 WHERE ledger = 1")
    connection.commit()
    connection.close()
    with pytest.raises(StorageError):
        await scrub.cycle()
    (error,) = scrub.index_errors
    world.storage.distrust_index(error)
    assert world.fatal == [error]
    await world.storage.stop()
    report = await world.start()
    assert report.is_index_rebuilt
    assert await world.ids(1) == list(range(20))
    await world.storage.stop()
    assert not (await world.start()).is_index_rebuilt


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE run SET last = last - 1",
        "UPDATE run SET first = first + 1",
        "UPDATE run SET ledger = 5 WHERE ledger = 1",
        "UPDATE run SET position = position + 1",
        "UPDATE run SET entry_log = entry_log + 1",
        "UPDATE run SET checksum = checksum + 1",
        "UPDATE run SET lac = 7",
        "UPDATE run SET sizes = zeroblob(40) WHERE ledger = 2",
        "UPDATE run SET sizes = 1.5",
        "UPDATE ledger SET fenced = 0",
        "UPDATE ledger SET limbo = 1",
        "UPDATE ledger SET id = 9 WHERE id = 1",
        "UPDATE ledger SET lac = 3",
        "UPDATE ledger SET master_key = x'00'",
        "DELETE FROM ledger WHERE id = 1",
        "UPDATE meta SET value = 'x' WHERE key = 'mark'",
    ],
)
async def test_a_changed_value_in_the_index_is_noticed_at_the_start(
    tmp_path: Path, change: str
) -> None:
    world = await filled(tmp_path)
    await world.fence(1)
    await world.storage.stop()
    connection = sqlite3.connect(world.index_path)
    connection.execute(change)
    connection.commit()
    connection.close()
    assert (await world.start()).is_index_rebuilt
    assert world.handle(1).is_fenced
    assert await world.ids(1) == list(range(20))
    assert await world.ids(2) == list(range(0, 30, 3))


async def test_s61_a_list_of_logs_that_lost_one_unlinks_none(tmp_path: Path) -> None:
    world = await filled(tmp_path)
    await world.storage.stop()
    connection = sqlite3.connect(world.index_path)
    connection.execute("DELETE FROM entry_log")
    connection.commit()
    connection.close()
    await world.start()
    assert await world.read_one(1, 7) == body_of(1, 7)


async def test_a_compaction_leaves_what_is_known_to_be_damaged(tmp_path: Path) -> None:
    from test_storage_gc import Garbage

    world = await filled(tmp_path)
    flip(world, body_of(1, 7))
    scrub = Scrub(world)
    await scrub.cycle()
    garbage = Garbage(world, 1, 2)
    garbage.collector.options = GcOptions(reserve_size_bytes=0)
    garbage.collector.trigger(major=True)
    await garbage.collect(minutes=0)
    assert [run.first_entry_id for run in await scrub.scrub.damaged_runs(1)] == [7]
    assert await world.ids(1) == [*range(7), *range(8, 20)]


async def test_a_cycle_that_ends_while_somebody_looks_is_not_one_that_never_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await filled(tmp_path)
    scrub = Scrub(world)
    sizes = scrub.scrub.sizes
    looks = 0

    async def ends_meanwhile() -> dict[int, int]:
        nonlocal looks
        looks += 1
        if looks == 1:
            await cycle
        return await sizes()

    monkeypatch.setattr(scrub.scrub, "sizes", ends_meanwhile)
    cycle = asyncio.get_running_loop().create_task(scrub.cycle())
    await asyncio.sleep(0)
    seen = await scrub.scrubber.progress()
    assert looks == 1
    assert (seen.is_running, seen.finished_at_ms) == (True, None)
    seen = await scrub.scrubber.progress()
    assert not seen.is_running
    assert seen.finished_at_ms is not None


async def test_scrub_runs_by_itself_and_stops(tmp_path: Path) -> None:
    world = await filled(tmp_path)
    flip(world, body_of(1, 7))
    scrub = Scrub(world)
    scrub.scrubber.start()
    await until(lambda: scrub.scrubber.statistics.cycles == 1)
    assert [damage.first_entry_id for damage in scrub.damages] == [7]
    scrub.scrubber.trigger()
    await until(lambda: scrub.scrubber.statistics.cycles == 2)
    await scrub.scrubber.stop()
    assert isinstance(scrub.env, Env)
