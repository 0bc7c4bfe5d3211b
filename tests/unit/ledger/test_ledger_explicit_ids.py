"""Ids that the writer chose, as pure order."""

from __future__ import annotations

import random

import pytest

from quorumbook.errors import DuplicateEntryIdError
from quorumbook.ledger.machines.explicit_ids import ExplicitIds


def test_whatever_order_entries_come_in_they_leave_in_the_order_of_their_ids() -> None:
    order = random.Random(7)
    for _ in range(50):
        ids = list(range(order.randrange(1, 40)))
        order.shuffle(ids)
        chosen: ExplicitIds[int] = ExplicitIds()
        left: list[int] = []
        for count, entry_id in enumerate(ids, 1):
            left += chosen.put(entry_id, entry_id)
            assert left == list(range(chosen.next_entry_id))
            assert chosen.waiting_count == count - len(left)
            assert chosen.last_entry_id == max(ids[:count])
        assert left == sorted(ids)


@pytest.mark.parametrize("entry_id", [0, 1, 4, -1, -(2**63)])
def test_s34_an_id_is_used_once_and_never_below_what_left(entry_id: int) -> None:
    chosen: ExplicitIds[str] = ExplicitIds()
    for used in (1, 0, 4):
        chosen.put(used, "x")
    with pytest.raises(DuplicateEntryIdError, match="lowest free one is 2") as refused:
        chosen.put(entry_id, "y")
    assert refused.value.code == -22


def test_what_waits_behind_a_hole_can_be_taken_back() -> None:
    chosen: ExplicitIds[str] = ExplicitIds(2**31 - 1)
    assert chosen.put(2**31 + 1, "c") == []
    assert chosen.put(2**31 + 5, "e") == []
    assert chosen.put(2**31 - 1, "a") == ["a"]
    assert chosen.take_back() == ["c", "e"]
    assert chosen.waiting_count == 0
    assert chosen.next_entry_id == 2**31
