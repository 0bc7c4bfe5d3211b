"""Several journals: each ledger in one of them, marks of their own, nothing lost between them."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from doubles.storage_world import World, run_of
from quorumbook.errors import StorageError
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.storage.checkpoint.checkpoint import decode_index_marks, encode_index_marks
from quorumbook.storage.index.tables import DamagedIndexError
from quorumbook.storage.journal.marks import NO_MARK, LogMark, read_mark

LEDGERS = range(6)


def journals_of(world: World, directory: str) -> bytes:
    path = f"{directory}/current/"
    return b"".join(world.disk.get(p) for p in world.disk.files() if p.startswith(path))


def append_to_all(world: World, entry_id: int) -> asyncio.Future[None]:
    """Append to every ledger in one batch, as one connection's chunk does."""
    items = []
    for ledger_id in LEDGERS:
        run: EntryRun = run_of(ledger_id, [entry_id], b"of ledger %d" % ledger_id)
        items.append((world.handle(ledger_id), run))
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: BaseException | None) -> None:
        assert not future.done(), "a batch is done once"
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    world.storage.append(items, done)
    return future


async def test_everything_of_a_ledger_lies_in_the_journal_of_its_id(tmp_path: Path) -> None:
    world = World(tmp_path, journals=3)
    await world.start()
    await append_to_all(world, 0)
    await world.fence(4)
    for number, directory in enumerate(world.journals):
        content = journals_of(world, directory)
        for ledger_id in LEDGERS:
            assert (b"of ledger %d" % ledger_id in content) == (ledger_id % 3 == number)
    await world.crash()
    await world.start()
    for ledger_id in LEDGERS:
        assert await world.ids(ledger_id) == [0]
    handle = world.storage.handle(4)
    assert handle is not None
    assert handle.is_fenced
    await world.storage.stop()


@pytest.mark.parametrize("torn", [0, 1, 2])
async def test_a_batch_of_several_journals_is_acknowledged_when_all_are_durable(
    tmp_path: Path, torn: int
) -> None:
    world = World(tmp_path, journals=3)
    await world.start()
    await append_to_all(world, 0)
    broken = world.journals[torn]

    def fail(operation: str, path: str) -> None:
        if operation == "sync" and path.startswith(f"{broken}/"):
            raise StorageError("this disk is broken", path=path)

    world.disk.faults.on_call = fail
    with pytest.raises(StorageError, match="broken"):
        await append_to_all(world, 1)
    assert len(world.fatal) == 1, "one journal that fails ends the bookie, once"
    await world.crash()
    await world.start()
    for ledger_id in LEDGERS:
        assert 0 in await world.ids(ledger_id)
    await world.storage.stop()


async def test_a_force_waits_for_every_journal(tmp_path: Path) -> None:
    world = World(tmp_path, journals=2)
    await world.start()
    for ledger_id in LEDGERS:
        await world.append(run_of(ledger_id, [0]), deferred_sync=True)
    forced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    world.storage.force(lambda _: forced.set_result(None))
    await forced
    await world.crash()
    await world.start()
    for ledger_id in LEDGERS:
        assert await world.ids(ledger_id) == [0]
    await world.storage.stop()


async def test_s43_s44_each_journal_is_replayed_from_a_mark_of_its_own(tmp_path: Path) -> None:
    """One journal is idle while the other rolls: their marks drift apart, and neither waits."""
    world = World(tmp_path, journals=2)
    await world.start()
    await append_to_all(world, 0)
    await world.storage.flush()
    for entry_id in range(1, 200):
        await world.append(run_of(2, [entry_id], b"x" * 2000))
    await world.storage.flush()
    first, second = (read_mark(world.disk, "/ledgers0/current", f"lastMark.{i}") for i in (0, 1))
    assert first.journal_id > second.journal_id, "they have no order as a whole"
    assert not world.disk.exists("/ledgers0/current/lastMark")
    # What came since is in the idle journal alone.
    await world.append(run_of(1, [1], b"late"))
    await world.crash()
    report = await world.start()
    assert report.replayed_entries == 1
    assert await world.ids(1) == [0, 1]
    assert await world.ids(2) == list(range(200))
    await world.storage.stop()


async def test_s43_a_flush_that_only_one_journal_needs_is_made(tmp_path: Path) -> None:
    world = World(tmp_path, journals=2)
    await world.start()
    for ledger_id in (2, 1, 2):
        before = [read_mark(world.disk, "/ledgers1/current", f"lastMark.{i}") for i in (0, 1)]
        await world.fence(ledger_id + 10 * len(world.storage.ledger_ids()))
        await world.storage.flush()
        after = [read_mark(world.disk, "/ledgers1/current", f"lastMark.{i}") for i in (0, 1)]
        assert before != after
    await world.storage.stop()


async def test_s41_a_crash_at_any_disk_call_with_several_journals_loses_nothing(
    tmp_path: Path,
) -> None:
    call = 0
    while True:
        call += 1
        directory = tmp_path / str(call)
        directory.mkdir()
        world = World(directory, journals=2)
        await world.start()
        await append_to_all(world, 0)
        world.cut_power_at(call)
        acknowledged = [0]
        try:
            for entry_id in (1, 2):
                await append_to_all(world, entry_id)
                acknowledged.append(entry_id)
                await world.storage.flush()
        except StorageError:
            pass
        was_cut = world.has_lost_power
        rng = random.Random(call)
        await world.crash(rng, keep=rng.choice([0.0, 0.5, 1.0]))
        await world.start()
        for ledger_id in LEDGERS:
            assert set(acknowledged) <= set(await world.ids(ledger_id))
        await world.storage.stop()
        if not was_cut:
            break
    assert call > 10


async def test_an_index_that_is_behind_in_one_journal_is_made_anew(tmp_path: Path) -> None:
    world = World(tmp_path, journals=2)
    await world.start()
    await append_to_all(world, 0)
    await world.storage.stop()
    copy = Path(world.index_path).read_bytes()
    await world.start()
    await world.append(run_of(1, [1]))
    await world.storage.stop()
    Path(world.index_path).write_bytes(copy)
    assert (await world.start()).is_index_rebuilt
    assert await world.ids(1) == [0, 1]
    await world.storage.stop()


def test_the_index_remembers_a_mark_of_each_journal() -> None:
    marks = (LogMark(3, 512), LogMark(2, 1024))
    assert decode_index_marks(encode_index_marks(marks), 2) == marks
    assert decode_index_marks(None, 2) == (NO_MARK, NO_MARK)
    with pytest.raises(DamagedIndexError):
        decode_index_marks(encode_index_marks(marks), 1)
