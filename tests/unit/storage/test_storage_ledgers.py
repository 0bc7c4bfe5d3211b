"""Ledger handles: the readers that wait for news, and which handles are forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from doubles.inside import opened
from doubles.storage_world import World, run_of
from quorumbook.storage.checkpoint import begun
from quorumbook.storage.states.ledgers import LedgerHandle, LedgerTable


class Callback:
    """A waiting reader that notices when it is compared with another one."""

    compared = 0

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1

    def __eq__(self, other: object) -> bool:
        Callback.compared += 1
        return self is other

    __hash__ = object.__hash__


def test_a_watch_is_cancelled_without_a_search_through_all_others() -> None:
    """Ten thousand readers of one ledger that leave at once must not stop the bookie."""
    handle = LedgerHandle(1, b"")
    readers = [Callback() for _ in range(300)]
    for reader in readers:
        handle.watch_lac(0, reader)
    Callback.compared = 0
    for reader in reversed(readers[100:]):
        handle.unwatch_lac(0, reader)
        handle.unwatch_lac(0, reader)
    assert Callback.compared == 0
    handle.raise_lac(5)
    for callback in handle.take_woken(1000):
        callback()
    assert [reader.calls for reader in readers] == [1] * 100 + [0] * 200
    assert not handle.has_waiters


def test_readers_are_woken_in_the_order_in_which_they_came() -> None:
    handle = LedgerHandle(1, b"")
    order: list[int] = []
    for number in range(5):
        handle.watch_lac(number, lambda number=number: order.append(number))  # type: ignore[misc]
    handle.raise_lac(3)
    for callback in handle.take_woken(1000):
        callback()
    assert order == [0, 1, 2]
    handle.delete()
    for callback in handle.take_woken(1000):
        callback()
    assert order == [0, 1, 2, 3, 4]


async def test_a_ledger_that_is_new_here_is_not_looked_for_in_the_index(tmp_path: Path) -> None:
    """This is the first add of nearly every ledger; of others the index is asked."""
    world = World(tmp_path)
    await world.start()
    await world.append(run_of(5, [0]))
    await world.storage.put_in_limbo([9])
    await world.storage.stop()
    await world.start()
    looked: list[int] = []
    index = opened(world.storage).loop_index
    state, was_deleted = index.ledger_state, index.was_deleted
    index.ledger_state = lambda ledger_id: looked.append(ledger_id) or state(ledger_id)  # type: ignore[method-assign,func-returns-value]
    index.was_deleted = lambda ledger_id: looked.append(ledger_id) or was_deleted(ledger_id)  # type: ignore[method-assign,func-returns-value]
    # Not in order: a client has bookies know the key of one of its newest ledgers first.
    for ledger_id in (10, 1000, 11, 999):
        await world.append(run_of(ledger_id, [0]))
    assert looked == []
    handle = world.storage.handle(9)
    assert handle is not None
    assert handle.is_in_limbo
    assert world.storage.handle(6) is None
    assert looked == [9, 9, 6]
    await world.storage.delete_ledgers([11, 12])
    assert [world.handle(each).was_deleted for each in (11, 12, 13)] == [True, True, False]
    await world.storage.stop()


def test_of_the_ledgers_that_began_the_highest_are_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(begun, "_REMEMBERED_MAX", 8)
    ledgers = begun.BegunLedgers(100)
    began = [*range(101, 117, 2), 1000, *range(117, 150, 2)]
    for ledger_id in began:
        ledgers.add(ledger_id)
        assert all(map(ledgers.may_have, (1, 100, *began[: began.index(ledger_id) + 1])))
    assert not any(map(ledgers.may_have, range(146, 1000, 2)))
    assert not ledgers.may_have(1001)
    # What is below is asked for, be it new: nobody remembers it.
    assert ledgers.may_have(102)


def test_a_rise_looks_at_nobody_whom_it_does_not_wake() -> None:
    class Counted(int):
        looks = 0

        def __lt__(self, other: int) -> bool:
            Counted.looks += 1
            return int(self) < other

    handle = LedgerHandle(1, b"")
    woken: list[int] = []
    for above in range(1000):
        handle.watch_lac(Counted(10 + above), lambda above=above: woken.append(above))
    Counted.looks = 0
    handle.raise_lac(12)
    for callback in handle.take_woken(100):
        callback()
    assert woken == [0, 1]
    assert Counted.looks < 100


def test_readers_of_one_rise_are_woken_in_pieces_and_cancelled_ones_leave_nothing() -> None:
    handle = LedgerHandle(1, b"")
    readers = [Callback() for _ in range(1000)]
    for reader in readers:
        handle.watch_lac(5, reader)
    for reader in readers[:900]:
        handle.unwatch_lac(5, reader)
    handle.raise_lac(6)
    assert len(handle.take_woken(60)) == 60
    assert len(handle.take_woken(60)) == 40
    assert not handle.has_waiters


def test_handles_that_wait_to_be_stored_are_not_looked_through_again_and_again() -> None:
    table = LedgerTable(limit=10, loader=lambda _: None)
    handles = [LedgerHandle(ledger_id, b"") for ledger_id in range(100)]
    for handle in handles:
        table.add(handle)
        table.mark_dirty(handle)
        assert not table.is_over_limit
    being_stored = table.take_dirty()
    assert not table.is_over_limit, "a checkpoint has them"
    assert table.evict() == 0
    for handle in handles[:5]:
        table.mark_dirty(handle)
    table.settle(being_stored)
    assert table.is_over_limit
    assert table.evict() == 85
    assert not table.is_over_limit
    kept = {handle.ledger_id for handle in table}
    assert kept == {*range(5), *range(90, 100)}, "those that wait, and the ten used last"
