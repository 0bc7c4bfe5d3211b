"""Deletions that wait for an operator's word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_storage_gc import Garbage, filled

from doubles.storage_world import World
from quorumbook.errors import StorageError
from quorumbook.storage.gc.hold import (
    NAME,
    NEVER_HELD,
    Hold,
    decode_hold,
    encode_hold,
    judge,
)
from quorumbook.storage.gc.ledger_ranges import LedgerRanges


def judged(
    hold: Hold, due: range | list[int], known: int, next_id: int, missing: list[int] | None = None
) -> tuple[Hold, list[int]]:
    now, free = judge(
        hold, LedgerRanges.of(due), LedgerRanges.of(due if missing is None else missing),
        known=known, next_id=next_id, share_max=0.5, now_ms=7,
    )  # fmt: skip
    return now, list(free)


async def put_back(tmp_path: Path) -> tuple[World, Garbage]:
    """Return a bookie whose metadata were put back to a backup, and lack one of its ledgers."""
    world = World(tmp_path)
    await filled(world, *range(12), 40)
    garbage = Garbage(world, *range(12), 40)
    garbage.cluster.next_id = 41
    await garbage.collect()
    garbage.cluster.ledger_ids.remove(40)
    garbage.cluster.next_id = 30
    return world, garbage


@pytest.mark.parametrize("known", [8, 30, 100, 5000])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.6, 1.0])
def test_r27_a_large_share_waits_and_a_small_one_or_a_few_do_not(known: int, share: float) -> None:
    due = range(int(known * share))
    hold, free = judged(Hold(next_id=known), due, known, known)
    waits = share > 0.5 and len(due) > NEVER_HELD
    assert (sorted(hold.held), free) == ((list(due), []) if waits else ([], list(due)))


def test_r27_one_ledger_behind_a_counter_that_fell_waits_and_those_before_it_go() -> None:
    hold, free = judged(Hold(next_id=50), [10, 39, 40, 60], 1000, 40)
    assert (sorted(hold.held), free) == ([40, 60], [10, 39])
    assert (hold.next_id, hold.back_to, hold.since_ms) == (50, 40, 7)
    assert "from" not in hold.reason
    assert "50, and fell to 40" in hold.reason
    # New ledgers raise the counter, and unsay nothing.
    hold, free = judged(hold, [11, 40, 41, 60], 1000, 99)
    assert (sorted(hold.held), free) == ([40, 41, 60], [11])
    assert (hold.next_id, hold.back_to) == (99, 40)


def test_r27_a_fall_is_remembered_before_anything_is_proven() -> None:
    hold, free = judged(Hold(next_id=50), [], 1000, 40, missing=[45])
    hold, free = judged(hold, [45], 1000, 60)
    assert (sorted(hold.held), free) == ([45], [])


def test_what_the_metadata_have_again_waits_no_longer() -> None:
    hold, _ = judged(Hold(next_id=50), [40, 41], 1000, 40)
    hold, free = judged(hold, [41], 1000, 40)
    assert (sorted(hold.held), free) == ([41], [])
    hold, free = judged(hold, [], 1000, 50)
    assert hold == Hold(next_id=50)
    hold, free = judged(hold, [42], 1000, 50)
    assert (list(hold.held), free) == ([], [42])


def test_exactly_the_approved_set_goes() -> None:
    hold, _ = judged(Hold(next_id=50), [40, 41], 1000, 40)
    approved = hold.approve()
    hold, free = judged(approved, [40, 41], 1000, 40)
    assert (list(hold.held), free, hold.next_id) == ([], [40, 41], 40)
    # The counter was approved of as well; a large set is another matter.
    hold, free = judged(hold, [40, *range(100, 700)], 1000, 45)
    assert (len(hold.held), free) == (600, [40])
    # An approval ends with what it was for.
    hold, free = judged(hold, [], 1000, 46)
    assert not hold.approved


def test_a_note_comes_back_and_a_damaged_one_holds_everything() -> None:
    hold = Hold(50, 40, LedgerRanges.of([1, 2, 3, 9]), LedgerRanges.of([4]), "why", 5)
    assert decode_hold(encode_hold(hold)) == hold
    assert hold.shown()["ledgers"] == [(1, 3), (9, 9)]
    assert hold.set_id != Hold(held=LedgerRanges.of([1])).set_id
    for data in (b"", b"{}", b"[1]", encode_hold(hold)[:-9]):
        damaged, free = judged(decode_hold(data), [1], 1000, 5)
        assert (list(damaged.held), free) == ([1], [])
        assert NAME in damaged.reason


async def test_r27_what_waits_is_kept_over_restarts_and_the_loss_of_the_index(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    await filled(world, *range(12), 40)
    garbage = Garbage(world, *range(12))
    garbage.cluster.next_id = 41
    garbage.cluster.ledger_ids.add(40)
    await garbage.collect()
    garbage.cluster.ledger_ids.remove(40)
    garbage.cluster.next_id = 30
    await garbage.collect()
    garbage.cluster.next_id = 50
    await world.crash()
    await world.start()
    garbage.restart()
    for _ in range(3):
        # Neither time nor an operator's pass is a word.
        await garbage.collect(is_forced=True)
    assert garbage.collector.statistics.held_ledgers == 1
    await world.restart()
    garbage.restart()
    hold = await garbage.collector.hold()
    assert list(hold.held) == [40]
    assert not await garbage.collector.approve("another")
    assert not await garbage.collector.approve("")
    assert await garbage.collector.approve(hold.set_id)
    await world.restart()
    garbage.restart()
    await garbage.collect()
    await garbage.collect()
    assert world.storage.ledger_ids() == list(range(12))
    await world.storage.stop()


async def test_r27_an_approval_counts_that_comes_while_a_pass_judges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, garbage = await put_back(tmp_path)
    await garbage.collect()
    await garbage.collect()
    # The verdict is another one than before, and written down.
    garbage.cluster.next_id = 50
    collector = garbage.collector
    hold = await collector.hold()
    assert list(hold.held) == [40]
    decide = world.storage.gc.decide
    answers: list[bool] = []

    async def approve_behind_the_verdict(decision: Callable[[], Any]) -> Any:
        found = await decide(decision)
        if isinstance(found, tuple) and not answers:
            answers.append(await collector.approve(hold.set_id))
        return found

    monkeypatch.setattr(world.storage.gc, "decide", approve_behind_the_verdict)
    await garbage.collect()
    assert answers == [True]
    assert world.storage.ledger_ids() == list(range(12))
    assert not (await collector.hold()).held
    await world.storage.stop()


async def test_r27_a_full_disk_keeps_no_small_deletion_waiting_for_a_note(tmp_path: Path) -> None:
    world = World(tmp_path)
    await filled(world, 1, 2)
    garbage = Garbage(world, 2)
    failing = world.disk.faults.fail("write", NAME, permanent=True)
    for _ in range(2):
        await garbage.collect()
    assert failing.hits
    assert world.storage.ledger_ids() == [2]
    await world.storage.stop()


async def test_r27_what_a_full_disk_refused_of_a_note_is_written_by_the_next_pass(
    tmp_path: Path,
) -> None:
    world, garbage = await put_back(tmp_path)
    failing = world.disk.faults.fail("write", NAME)
    await garbage.collect()
    assert failing.hits == 1
    # Nothing more is proven in the next pass; the one after it could tell by no counter any more.
    await garbage.collect(minutes=0)
    garbage.cluster.next_id = 50
    await world.restart()
    garbage.restart()
    for _ in range(3):
        await garbage.collect(is_forced=True)
    assert list((await garbage.collector.hold()).held) == [40]
    assert world.storage.ledger_ids() == [*range(12), 40]
    await world.storage.stop()


async def test_r27_a_note_that_cannot_be_looked_at_lets_nothing_go_and_is_looked_at_again(
    tmp_path: Path,
) -> None:
    world, garbage = await put_back(tmp_path)
    await garbage.collect()
    await garbage.collect()
    await world.restart()
    garbage.restart()
    # By now no counter tells of the backup: all there is is the note.
    garbage.cluster.next_id = 50
    failing = world.disk.faults.fail("exists", NAME)
    for _ in range(3):
        await garbage.collect(is_forced=True)
    assert failing.hits == 1
    assert list((await garbage.collector.hold()).held) == [40]
    assert world.storage.ledger_ids() == [*range(12), 40]
    await world.storage.stop()


async def test_r27_an_approval_that_was_not_written_down_lets_nothing_go(tmp_path: Path) -> None:
    world, garbage = await put_back(tmp_path)
    await garbage.collect()
    await garbage.collect()
    hold = await garbage.collector.hold()
    world.disk.faults.fail("write", NAME)
    with pytest.raises(StorageError):
        await garbage.collector.approve(hold.set_id)
    await garbage.collect()
    assert garbage.collector.statistics.held_ledgers == 1
    assert world.storage.ledger_ids() == [*range(12), 40]
    assert await garbage.collector.approve(hold.set_id)
    await garbage.collect()
    assert world.storage.ledger_ids() == list(range(12))
    await world.storage.stop()


@pytest.mark.parametrize("is_same_set", [True, False])
async def test_r27_a_set_that_changes_while_its_approval_is_written_down_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_same_set: bool
) -> None:
    world = World(tmp_path)
    await filled(world, *range(12), 40, 41)
    garbage = Garbage(world, *range(12), 40, 41)
    garbage.cluster.next_id = 42
    await garbage.collect()
    garbage.cluster.ledger_ids.remove(40)
    garbage.cluster.next_id = 30
    await garbage.collect()
    await garbage.collect()
    if not is_same_set:
        garbage.cluster.ledger_ids.remove(41)
        await garbage.collect(minutes=0)
    hold = await garbage.collector.hold()
    assert list(hold.held) == [40]
    write = world.storage.gc.write_hold

    async def be_late(note: Hold) -> None:
        monkeypatch.undo()
        garbage.cluster.next_id = 60
        await garbage.collect()
        await write(note)

    monkeypatch.setattr(world.storage.gc, "write_hold", be_late)
    assert await garbage.collector.approve(hold.set_id) is is_same_set
    # What the disk says is what counts here.
    await garbage.collect(minutes=0)
    found = await garbage.collector.hold()
    assert list(found.held) == ([] if is_same_set else [40, 41])
    await world.restart()
    garbage.restart()
    assert await garbage.collector.hold() == found
    await world.storage.stop()


def test_very_many_ledgers_that_wait_are_written_in_pieces_and_shown_in_part() -> None:
    hold = Hold(next_id=5, held=LedgerRanges.of(range(0, 5000, 2)), reason='"why"', since_ms=7)
    assert decode_hold(encode_hold(hold)) == hold
    shown = hold.shown()
    assert shown["held_ledgers"] == 2500
    assert shown["ledgers"] == [(each, each) for each in range(0, 2000, 2)]
    other = Hold(held=LedgerRanges.of(range(0, 5002, 2)))
    assert shown["set"] == hold.set_id != other.set_id
    assert hold.held.ends == (0, 4998)
