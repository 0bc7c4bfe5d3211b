from __future__ import annotations

import asyncio
import logging
import struct
from pathlib import Path

import pytest

from doubles.records import Recorder, entry, in_journal_order, noted_writes, run
from doubles.sim_threads import StepClock, StepThreads, StepWorker, turn
from quorumbook.env import Env
from quorumbook.errors import DiskFullError, LocalProtocolError, StorageError
from quorumbook.sim.disks.disk import SimDisk
from quorumbook.storage.journal.format import (
    fence_record,
    journal_id_of,
    key_record,
    lac_record,
)
from quorumbook.storage.journal.group_commit import (
    ZERO_STEP_BYTES,
    Journal,
    JournalStoppedError,
)
from quorumbook.storage.journal.marks import NO_MARK, LogMark
from quorumbook.storage.journal.removal import JournalRemoval
from quorumbook.storage.journal.replay import replay

DIRECTORY = "/journal/current"


class World:
    """A journal on a simulated disk, whose groups run when the test says so."""

    def __init__(self, *, auto: bool = True, disk: SimDisk | None = None, **options: object):
        self.disk = disk or SimDisk()
        self.disk.make_directory(DIRECTORY)
        self.threads = StepThreads(auto=auto)
        self.env = Env(clock=StepClock(), disk=self.disk, threads=self.threads)
        self.failures: list[BaseException] = []
        self.log: list[object] = []
        self.journal = Journal(self.env, DIRECTORY, on_failed=self.failures.append, **options)  # type: ignore[arg-type]

    @property
    def worker(self) -> StepWorker:
        return self.threads.workers["journal"]

    def add(self, name: object, buffers: list[bytes] | None = None, **options: object) -> None:
        if buffers is None:
            buffers = [run(1, 0, [b"x"]).data]
        self.journal.enqueue(buffers, lambda error: self.log.append((name, error)), **options)  # type: ignore[arg-type]

    async def step(self) -> None:
        self.worker.run_next()
        await turn()

    def replayed(self, disk: SimDisk | None = None, mark: LogMark = NO_MARK) -> Recorder:
        recorder = Recorder()
        replay(Env(disk=disk or self.disk), DIRECTORY, mark, recorder)
        return recorder

    def journals(self) -> list[str]:
        return sorted(
            (name for name in self.disk.list_directory(DIRECTORY) if name.endswith(".txn")),
            key=lambda name: journal_id_of(name) or 0,
        )


async def test_the_end_of_a_group_is_told_once_behind_all_who_wait_for_it() -> None:
    world = World(auto=False, on_told=lambda: world.log.append("told"))
    world.add("first")
    for name in "second", "third":
        world.add(name)
    await world.step()
    assert world.log == [("first", None), "told"]
    await world.step()
    assert world.log[2:] == [("second", None), ("third", None), "told"]


async def test_what_is_enqueued_comes_back_in_order() -> None:
    world = World()
    world.add("key", [key_record(1, b"k" * 20)])
    world.add("run", [run(1, 0, [b"a", b"b"]).data, run(1, 2, [b"c"]).data])
    world.add("fence", [fence_record(1)])
    world.add("lac", [lac_record(1, b"p" * 20)])
    await turn(10)
    assert world.log == [("key", None), ("run", None), ("fence", None), ("lac", None)]
    assert world.replayed().events == [
        ("key", 1, b"k" * 20),
        ("entry", 1, 0, entry(1, 0, b"a")),
        ("entry", 1, 1, entry(1, 1, b"b")),
        ("entry", 1, 2, entry(1, 2, b"c")),
        ("fence", 1),
        ("lac", 1, b"p" * 20),
    ]
    await world.journal.stop()


async def test_everything_enqueued_during_a_sync_is_one_group() -> None:
    world = World(auto=False)
    world.add(0)
    for name in range(1, 50):
        world.add(name)
    assert len(world.worker.jobs) == 1
    await world.step()
    assert world.log == [(0, None)]
    assert len(world.worker.jobs) == 1
    await world.step()
    assert [name for name, _ in world.log] == list(range(50))  # type: ignore[misc]
    statistics = world.journal.statistics()
    assert (statistics.groups, statistics.last_group_enqueued) == (2, 49)
    assert world.disk.faults.count("write", ".txn") == 3, "header and one write a group"


async def test_s49_a_single_add_is_written_at_once() -> None:
    world = World(auto=False)
    world.add("only")
    assert len(world.worker.jobs) == 1
    await world.step()
    assert world.log == [("only", None)]


async def test_r07_nothing_is_acknowledged_before_its_sync_and_every_sync_before_it() -> None:
    world = World(auto=False)
    order: list[object] = []
    world.disk.faults.on_call = lambda operation, path: order.append((operation, path[-4:]))
    for name in range(3):
        world.journal.enqueue(
            [run(1, name, [b"x"]).data], lambda error, name=name: order.append(name)
        )
        if name == 0:
            order.append("enqueued")
    await world.step()
    await world.step()
    writes = [item for item in order if item in (("write", ".txn"), ("sync", ".txn"), 0, 1, 2)]
    write, sync = ("write", ".txn"), ("sync", ".txn")
    assert writes == [write, sync, write, sync, 0, write, sync, 1, 2]
    directory = ("sync_directory", "rent")
    assert order.index(directory) < order.index(0)


async def test_r07_a_group_waits_for_the_one_before() -> None:
    world = World(auto=False)
    world.add("first")
    world.add("second")
    assert len(world.worker.jobs) == 1, "never two groups in flight"
    world.worker.run_next()
    assert world.log == []
    assert not world.worker.jobs
    await turn()
    assert world.log == [("first", None)]
    assert len(world.worker.jobs) == 1


@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
async def test_r07_what_was_acknowledged_survives_a_power_cut(keep: float) -> None:
    world = World(auto=False, file_size_bytes=4096)
    for name in range(12):
        world.add(name, [run(1, name, [bytes([name]) * 700]).data])
        await world.step()
    world.add("late", [run(1, 12, [b"late" * 300]).data])
    file = world.journals()[-1]
    world.disk.faults.fail("sync", file)
    await world.step()
    events = world.replayed(world.disk.crash(keep=keep)).events
    assert events[:12] == [("entry", 1, i, entry(1, i, bytes([i]) * 700)) for i in range(12)]
    assert [event[2] for event in events[12:]] in ([], [12])


async def test_s65_a_file_and_its_name_are_durable_before_the_first_ack() -> None:
    world = World()
    world.add("first")
    await turn(5)
    assert world.log == [("first", None)]
    assert world.replayed(world.disk.crash()).events == [("entry", 1, 0, entry(1, 0, b"x"))]


async def test_a_waiter_that_raises_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World(auto=False)

    def broken(error: BaseException | None) -> None:
        raise ConnectionResetError("gone")

    with caplog.at_level(logging.ERROR):
        world.add("hold")
        world.add(1)
        world.journal.enqueue([fence_record(1)], broken)
        world.add(2)
        await world.step()
        await world.step()
    assert world.log == [("hold", None), (1, None), (2, None)]
    assert "ConnectionResetError" in caplog.text


async def test_s54_every_waiter_is_called_exactly_once() -> None:
    world = World(auto=False, group_size_bytes_max=2000)
    for name in range(100):
        world.add(name)
    for _ in range(100):
        await world.step()
    assert world.log == [(name, None) for name in range(100)]
    assert world.journal.pending_bytes == 0


async def test_a_group_is_bounded_and_a_larger_piece_goes_alone() -> None:
    world = World(auto=False, group_size_bytes_max=1000)
    world.add("hold")
    world.add("a", [run(1, 0, [b"x" * 500]).data])
    world.add("b", [run(1, 1, [b"x" * 3000]).data])
    world.add("c", [run(1, 2, [b"x" * 300]).data])
    world.add("d", [run(1, 3, [b"x" * 300]).data])
    sizes = []
    for _ in range(4):
        await world.step()
        sizes.append(world.journal.statistics().last_group_enqueued)
    assert sizes == [1, 1, 1, 2]
    assert world.journal.pending_bytes == 0


async def test_large_pieces_of_a_group_are_not_joined_with_the_small_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(auto=False)
    written = noted_writes(monkeypatch)
    runs = [run(1, entry_id, [b"x" * 10]) for entry_id in range(40)]
    runs[20:22] = [run(1, entry_id, [b"y" * 1_000_000]) for entry_id in (20, 21)]
    world.add("first")
    for one in runs:
        world.add(one.first_entry_id, [one.data])
    await world.step()
    await world.step()
    assert sum(len(one) > 300_000 for one in written) == 2
    assert all(any(one is each.data for one in written) for each in runs[20:22])
    assert len(written) < 15
    assert [event[2] for event in world.replayed().events][1:] == list(range(40))


async def test_a_piece_that_no_group_can_hold_is_refused_alone() -> None:
    world = World()
    world.add("huge", [bytes(2**27), b"x"])
    world.add("fine")
    await turn(5)
    results = dict(world.log)  # type: ignore[arg-type]
    assert isinstance(results["huge"], LocalProtocolError)
    assert results["fine"] is None


async def test_a_group_without_bytes_still_syncs() -> None:
    world = World()
    world.add("data")
    await turn(5)
    syncs = world.disk.faults.count("sync", ".txn")
    writes = world.disk.faults.count("write", ".txn")
    world.add("force", [])
    await turn(5)
    assert world.log[-1] == ("force", None)
    assert world.disk.faults.count("sync", ".txn") == syncs + 1
    assert world.disk.faults.count("write", ".txn") == writes


async def test_a_force_on_an_empty_journal_makes_no_file() -> None:
    world = World()
    world.add("force", [])
    await turn(5)
    assert world.log == [("force", None)]
    assert world.journals() == []


async def test_deferred_sync_is_told_between_write_and_sync() -> None:
    world = World(auto=False)
    world.add("first", on_written=lambda: world.log.append("written"))
    world.disk.faults.on_call = lambda operation, path: (
        world.log.append(operation) if operation in ("write", "sync") else None
    )
    world.worker.run_next()
    await turn()
    # The header and two notes come before the group, and what is synced is noted behind it.
    before = ["write", "sync"] * 3
    assert world.log == [*before, "write", "sync", "write", "written", ("first", None)]


async def test_deferred_sync_on_the_real_disk_is_told_first(tmp_path: Path) -> None:
    failures: list[BaseException] = []
    journal = Journal(Env(), str(tmp_path), on_failed=failures.append)
    order: list[str] = []
    done = asyncio.Event()

    def finish(error: BaseException | None) -> None:
        order.append(f"done {error}")
        done.set()

    journal.enqueue([fence_record(1)], finish, on_written=lambda: order.append("written"))
    await done.wait()
    assert order == ["written", "done None"]
    await journal.stop()
    assert failures == []


async def test_written_is_not_told_when_the_write_fails() -> None:
    world = World()
    world.disk.faults.fail("write", ".txn", at=2)
    world.add("first", on_written=lambda: world.log.append("written"))
    await turn(5)
    assert [name for name, _ in world.log] == ["first"]  # type: ignore[misc]


# --- the end of a journal -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "at", "error"),
    [
        ("create", 1, StorageError),
        ("allocate", 1, StorageError),
        ("write", 1, StorageError),
        ("sync", 1, StorageError),
        ("sync_directory", 1, StorageError),
        ("write", 2, StorageError),
        ("write", 2, DiskFullError),
        ("sync", 2, StorageError),
        ("write", 3, StorageError),
        ("sync", 3, StorageError),
        ("write", 4, StorageError),
        ("sync", 4, StorageError),
        ("write", 5, StorageError),
        ("write", 6, StorageError),
        ("sync", 5, StorageError),
        ("list", 1, StorageError),
    ],
)
async def test_r08_a_failure_is_the_end_for_all_that_wait_and_all_that_come(
    operation: str, at: int, error: type[StorageError]
) -> None:
    world = World(auto=False)
    world.disk.faults.fail(operation, "/journal", at=at, error=error)
    world.add(0)
    world.add(1)
    world.add(2)
    await world.step()
    await world.step()
    assert [name for name, _ in world.log] == [0, 1, 2]  # type: ignore[misc]
    acked = [name for name, result in world.log if result is None]  # type: ignore[misc]
    # Of the calls of a kind: the header, the empty note of what is synced, the one of the newest,
    # a group, and for writes what is synced; then a second group.
    assert acked == ([0] if (operation, at) in (("write", 6), ("sync", 5)) else [])
    assert [type(failure) for failure in world.failures] == [error]
    calls = len(world.disk.faults.calls)
    world.add("later")
    world.add("force", [])
    await turn()
    assert [name for name, _ in world.log] == [0, 1, 2, "later", "force"]  # type: ignore[misc]
    assert all(isinstance(result, error) for _, result in world.log[-2:])  # type: ignore[misc]
    assert len(world.failures) == 1
    assert len(world.disk.faults.calls) == calls, "nothing touches the disk any more"
    assert isinstance(world.journal.error, error)
    await world.journal.stop()


async def test_r08_a_failed_sync_is_never_repeated_not_even_by_stop() -> None:
    world = World()
    world.disk.faults.fail("sync", ".txn", at=2)
    world.add(0)
    await turn(5)
    syncs = world.disk.faults.count("sync")
    await world.journal.stop()
    assert world.disk.faults.count("sync") == syncs


async def test_r08_a_short_write_is_a_failure() -> None:
    world = World()
    world.disk.faults.fail("write", ".txn", at=2, error=DiskFullError, written_bytes=100)
    world.add(0)
    await turn(5)
    assert isinstance(world.log[0][1], DiskFullError)  # type: ignore[index]
    assert world.journal.durable_mark() == NO_MARK


async def test_s50_an_error_nobody_thought_of_also_ends_the_journal() -> None:
    world = World()

    def explode(operation: str, path: str) -> None:
        if operation == "write":
            raise MemoryError

    world.disk.faults.on_call = explode
    world.add(0)
    await turn(5)
    assert isinstance(world.log[0][1], MemoryError)  # type: ignore[index]
    assert len(world.failures) == 1


async def test_an_owner_that_raises_on_the_failure_does_not_hide_it() -> None:
    world = World()

    def broken(error: BaseException) -> None:
        raise RuntimeError

    world.journal._on_failed = broken  # who is told of the failure fails too
    world.disk.faults.fail("sync", ".txn")
    world.add(0)
    await turn(5)
    assert isinstance(world.log[0][1], StorageError)  # type: ignore[index]
    await world.journal.stop()


async def test_a_reserve_that_does_not_fit_is_no_failure() -> None:
    world = World(disk=SimDisk(capacity_bytes=64 * 1024))
    for name in range(50):
        world.add(name)
        await turn(4)
    assert [result for _, result in world.log] == [None] * 50  # type: ignore[misc]
    world.add("too much", [run(2, 0, [b"x" * 65536]).data])
    await turn(4)
    assert isinstance(world.log[-1][1], DiskFullError)  # type: ignore[index]


# --- marks and files ------------------------------------------------------------------------


async def test_r21_the_mark_covers_a_group_only_when_all_its_waiters_were_called() -> None:
    world = World(auto=False)
    seen: list[LogMark] = []
    world.add("hold")
    await world.step()
    before = world.journal.durable_mark()
    world.add("next")
    for _ in range(2):
        world.journal.enqueue(
            [run(1, 1, [b"y"]).data], lambda error: seen.append(world.journal.durable_mark())
        )
    await world.step()
    middle = world.journal.durable_mark()
    await world.step()
    assert middle > before
    assert seen == [middle, middle]
    assert world.journal.durable_mark() > middle


async def test_replay_from_the_durable_mark_brings_what_came_later() -> None:
    world = World()
    world.add(0, [run(1, 0, [b"old"]).data])
    await turn(5)
    mark = world.journal.durable_mark()
    assert world.replayed(mark=mark).events == []
    world.add(1, [run(1, 1, [b"new"]).data])
    await turn(5)
    assert world.replayed(mark=mark).events == [("entry", 1, 1, entry(1, 1, b"new"))]


async def test_files_roll_at_their_size_with_ids_that_follow() -> None:
    world = World(file_size_bytes=4096)
    for name in range(30):
        world.add(name, [run(1, name, [b"x" * 900]).data])
        await turn(4)
    ids = [journal_id_of(name) for name in world.journals()]
    assert ids[0] == 1_700_000_000_000
    assert ids == list(range(ids[0], ids[0] + len(ids)))
    assert len(ids) >= 8
    assert all(len(world.disk.get(f"{DIRECTORY}/{n}")) <= 4096 for n in world.journals())
    assert [event[2] for event in world.replayed().events] == list(range(30))
    assert world.disk.open_files == 2, "the newest, and the note of what is synced"


async def test_a_restart_begins_the_next_file() -> None:
    world = World()
    world.add(0)
    await turn(5)
    mark = world.journal.durable_mark()
    await world.journal.stop()
    again = World(disk=world.disk, mark=mark)
    assert again.journal.durable_mark() == mark
    again.add(1)
    await turn(5)
    assert again.journal.durable_mark().journal_id == mark.journal_id + 1
    assert len(again.replayed().events) == 2


async def test_the_next_id_follows_the_mark_even_if_no_file_is_left() -> None:
    world = World(mark=LogMark(5000, 512))
    world.add(0)
    await turn(5)
    assert world.journals() == [f"{5001:x}.txn"]


async def test_file_names_are_lower_case_hex() -> None:
    world = World(mark=LogMark(0xABCDEE, 0))
    world.add(0)
    await turn(5)
    assert world.journals() == ["abcdef.txn"]


async def test_only_files_wholly_below_the_mark_are_deleted() -> None:
    world = World(file_size_bytes=2048)
    for name in range(6):
        world.add(name, [run(1, name, [b"x" * 900]).data])
        await turn(4)
    world.disk.put(f"{DIRECTORY}/VERSION", b"5")
    names = world.journals()
    keep = journal_id_of(names[2])
    assert keep is not None
    removal = JournalRemoval(Env(disk=world.disk), [DIRECTORY])
    assert removal.retire([LogMark(keep, 10**9)]) == 2
    assert world.journals() == names[2:]
    assert world.disk.exists(f"{DIRECTORY}/VERSION")
    assert removal.retire([LogMark(keep, 10**9)]) == 0
    crashed = world.disk.crash()
    assert not crashed.exists(f"{DIRECTORY}/{names[0]}")


async def test_a_small_group_takes_zeros_along_so_that_the_next_ones_only_overwrite() -> None:
    world = World()
    written: list[tuple[int, int]] = []
    put = world.disk.open

    def opened(*arguments: object, **options: object) -> object:
        file = put(*arguments, **options)  # type: ignore[arg-type]
        write = file.write

        def noted(buffers: list[bytes], offset: int) -> None:
            if file.path.endswith(".txn"):
                written.append((offset, offset + sum(map(len, buffers))))
            write(buffers, offset)

        file.write = noted  # type: ignore[method-assign,assignment]
        return file

    world.disk.open = opened  # type: ignore[method-assign,assignment]
    big = run(1, 9, [b"x" * ZERO_STEP_BYTES]).data
    for name, buffers in enumerate([None, None, [big], None]):
        world.add(name, buffers)
        await turn(5)
    (header, first, second, large, last), end = written, len(big)
    assert header == (0, 512)
    assert first == (512, ZERO_STEP_BYTES)
    assert second == (1024, 1536), "there are zeros already"
    assert large[1] - large[0] < end + 1024, "a large group takes nothing along"
    assert last == (large[1], 2 * ZERO_STEP_BYTES)
    assert len(world.replayed().events) == 4
    await world.journal.stop()


async def test_space_is_reserved_ahead_and_given_back_at_a_roll() -> None:
    world = World(file_size_bytes=32 * 1024 * 1024)
    world.add(0)
    await turn(5)
    first = f"{DIRECTORY}/{world.journals()[0]}"
    assert len(world.disk.get(first)) == 16 * 1024 * 1024
    world.add(1, [run(1, 1, [b"x" * 2**20] * 31).data])
    await turn(5)
    world.add(2, [run(1, 1, [b"x" * 2**20] * 2).data])
    await turn(5)
    assert len(world.journals()) == 2
    assert len(world.disk.get(first)) % 512 == 0
    assert len(world.disk.get(first)) < 32 * 1024 * 1024


@pytest.mark.parametrize("entries", range(1, 9))
async def test_a_journal_never_ends_with_its_data_so_that_losing_power_does_not_look_like_damage(
    entries: int,
) -> None:
    # Found by a seed of the simulator: a group filled the file up to its limit exactly.
    world = World(file_size_bytes=4096)
    for name in range(4):
        world.add(name, [run(1, entries * name, [b"x" * 400] * entries).data])
        await turn(4)
        newest = world.disk.get(f"{DIRECTORY}/{world.journals()[-1]}")
        assert not any(newest[-512:])
        # The note beside the journal is not synced: a loss of power takes it.
        lost = world.disk.crash()
        assert not replay(
            Env(disk=lost), DIRECTORY, NO_MARK, Recorder(), was_unclean=True
        ).damaged_tail
    await world.journal.stop()


async def test_stop_waits_for_what_is_enqueued_and_refuses_the_rest() -> None:
    world = World()
    for name in range(5):
        world.add(name)
    await world.journal.stop()
    assert world.log == [(name, None) for name in range(5)]
    assert world.worker.is_stopped
    assert world.disk.open_files == 0
    world.add("late")
    await turn()
    assert isinstance(world.log[-1][1], JournalStoppedError)  # type: ignore[index]
    assert world.failures == []


async def test_a_waiter_may_enqueue_more() -> None:
    world = World()

    def again(error: BaseException | None) -> None:
        world.add("second")

    world.journal.enqueue([fence_record(1)], again)
    await turn(10)
    assert world.log == [("second", None)]
    assert world.journal.durable_mark().offset == 512 * 3


# --- the peer's view ------------------------------------------------------------------------


def read_plainly(data: bytes) -> list[bytes]:
    """Read a journal straight from the text of the peer's format, knowing nothing of checks."""
    assert data[:4] == b"BKLG"
    version = int.from_bytes(data[4:8], "big")
    assert version == 6
    position, records = 512, []
    while position + 4 <= len(data):
        length = int.from_bytes(data[position : position + 4], "big", signed=True)
        if length == 0:
            break
        if length == -0x100:
            skip = int.from_bytes(data[position + 4 : position + 8], "big", signed=True)
            assert skip >= 0
            position += 8 + skip
            assert position % 512 == 0
            continue
        assert length > 0
        records.append(data[position + 4 : position + 4 + length])
        position += 4 + length
    assert not any(data[position:])
    return records


async def test_r24_the_peer_reads_our_journals_without_knowing_of_the_checks() -> None:
    world = World(file_size_bytes=16384)
    expected: list[bytes] = []
    for size in [0, 1, 100, *range(380, 480), 511, 512, 513, 5000]:
        buffers = [run(1, size, [b"z" * size]).data, fence_record(size)]
        world.add(size, buffers)
        expected += [entry(1, size, b"z" * size), struct.pack(">qq", size, -0x2000)]
        await turn(4)
    records: list[bytes] = []
    for name in world.journals():
        records += read_plainly(world.disk.get(f"{DIRECTORY}/{name}"))
    assert records == expected
    assert len(world.journals()) > 3


async def test_a_real_disk_gives_back_what_was_enqueued(tmp_path: Path) -> None:
    env = Env()
    failures: list[BaseException] = []
    journal = Journal(env, str(tmp_path), on_failed=failures.append, file_size_bytes=200_000)
    results: list[BaseException | None] = []
    all_done = asyncio.Event()
    total = 200

    def done(error: BaseException | None) -> None:
        results.append(error)
        if len(results) == total:
            all_done.set()

    for i in range(total):
        journal.enqueue([run(i % 3, i, [bytes([i]) * 3000]).data], done)
        if i % 10 == 0:
            await asyncio.sleep(0)
    await all_done.wait()
    mark = journal.durable_mark()
    await journal.stop()
    recorder = Recorder()
    report = replay(env, str(tmp_path), NO_MARK, recorder)
    assert results == [None] * total
    expected = [("entry", i % 3, i, entry(i % 3, i, bytes([i]) * 3000)) for i in range(total)]
    assert in_journal_order(recorder.events, expected) == expected
    assert report.end == mark
    assert not report.damaged_tail
    assert failures == []
