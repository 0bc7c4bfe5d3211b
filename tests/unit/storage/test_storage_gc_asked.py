"""What is asked of garbage collection beyond what it does by itself: done once, by a whole pass."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_storage_compaction import KEPT, check, half_dead
from test_storage_gc import Garbage, filled

from doubles.storage_world import World, run_of
from quorumbook.errors import MetadataUnavailableError, StorageError
from quorumbook.storage.gc.decisions import LogUsage


async def test_what_is_asked_for_while_a_pass_counts_is_left_to_one_that_counts_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorumbook.storage.gc.decisions.LEDGERS_ALWAYS", 2)
    world = World(tmp_path)
    await filled(world, *range(10))
    garbage = Garbage(world)
    collector, usages = garbage.collector, world.storage.gc.usages

    async def asked_meanwhile() -> list[LogUsage]:
        found = await usages()
        collector.trigger(major=True)
        return found

    await garbage.collect()
    with monkeypatch.context() as patched:
        patched.setattr(world.storage.gc, "usages", asked_meanwhile)
        await garbage.collect()
    assert len(world.storage.ledger_ids()) == 8
    assert collector.statistics.major_compactions == 0, "it had counted before it was asked"
    await garbage.collect()
    assert world.storage.ledger_ids() == []
    assert collector.statistics.major_compactions == 1
    await garbage.collect()
    assert collector.statistics.major_compactions == 1, "it was asked once"
    await world.storage.stop()


@pytest.mark.parametrize("what", ["metadata", "session", "disk", "index"])
async def test_what_a_pass_could_not_do_that_was_asked_for_is_left_to_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr("quorumbook.storage.gc.decisions.LEDGERS_ALWAYS", 2)
    world = World(tmp_path)
    await filled(world, *range(10))
    garbage = Garbage(world)
    collector, gc = garbage.collector, world.storage.gc
    await garbage.collect()

    async def fails(*_: object) -> None:
        raise StorageError("the disk fails")

    def session_ends() -> None:
        garbage.cluster.sessions += 1

    collector.trigger(major=True)
    with monkeypatch.context() as patched:
        if what == "metadata":
            patched.setattr(garbage.cluster, "error", MetadataUnavailableError("away"))
        elif what == "session":
            patched.setattr(garbage.cluster, "on_missing", session_ends)
        else:
            patched.setattr(gc, "keep_reserve" if what == "disk" else "usages", fails)
        await garbage.collect()
    assert len(world.storage.ledger_ids()) == (0 if what == "index" else 10)
    before = collector.statistics.major_compactions
    await garbage.collect()
    assert collector.statistics.major_compactions == before + 1
    if what == "disk":
        assert world.storage.ledger_ids() == [], "more than its share"
    if what == "index":
        # What was done is asked for no more, least of all to delete without a limit.
        await world.append(*(run_of(ledger_id, range(9)) for ledger_id in range(20, 30)))
        await world.storage.flush()
        await garbage.collect()
        await garbage.collect()
        assert len(world.storage.ledger_ids()) == 8
    await garbage.collect()
    assert collector.statistics.major_compactions == before + 1
    await world.storage.stop()


async def test_a_compaction_that_an_operator_held_back_midway_goes_on_when_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    await half_dead(world)
    garbage = Garbage(world, *KEPT)
    collector, compact_some = garbage.collector, world.storage.gc.compact_some

    async def held_back_meanwhile(entry_log_id: int, size_bytes: int) -> object:
        collector.suspend()
        return await compact_some(entry_log_id, 1)

    old = set(garbage.logs())
    collector.trigger(major=True)
    with monkeypatch.context() as patched:
        patched.setattr(world.storage.gc, "compact_some", held_back_meanwhile)
        await garbage.collect(minutes=0)
    assert old & set(garbage.logs())
    collector.resume()
    await garbage.collect(minutes=0)
    assert not old & set(garbage.logs())
    await check(world)
    await world.storage.stop()
