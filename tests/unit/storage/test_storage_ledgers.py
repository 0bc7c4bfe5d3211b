"""Ledger handles: the readers that wait for news."""

from __future__ import annotations

from quorumbook.storage.ledgers import LedgerHandle


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
    cancels = [handle.watch_lac(0, reader) for reader in readers]
    Callback.compared = 0
    for cancel in reversed(cancels[100:]):
        cancel()
        cancel()
    assert Callback.compared == 0
    handle.raise_lac(5)
    for callback in handle.take_woken():
        callback()
    assert [reader.calls for reader in readers] == [1] * 100 + [0] * 200
    assert not handle.has_waiters


def test_readers_are_woken_in_the_order_in_which_they_came() -> None:
    handle = LedgerHandle(1, b"")
    order: list[int] = []
    for number in range(5):
        handle.watch_lac(number, lambda number=number: order.append(number))  # type: ignore[misc]
    handle.raise_lac(3)
    for callback in handle.take_woken():
        callback()
    assert order == [0, 1, 2]
    handle.is_deleted = True
    for callback in handle.take_woken():
        callback()
    assert order == [0, 1, 2, 3, 4]
