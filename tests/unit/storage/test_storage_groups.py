"""Groups against a list that is sorted each time, and what is left of groups that are gone."""

from __future__ import annotations

import random

import pytest

from quorumbook.storage.states.groups import OrderedGroups


@pytest.mark.parametrize("keys", [1, 5, 1000])
def test_things_come_out_by_key_and_then_in_the_order_in_which_they_came(keys: int) -> None:
    dice = random.Random(keys)
    groups: OrderedGroups[int, int] = OrderedGroups()
    there: list[tuple[int, int]] = []
    for thing in range(3000):
        match dice.random():
            case chance if chance < 0.6:
                key = dice.randrange(keys)
                groups.add(key, thing)
                there.append((key, thing))
            case chance if chance < 0.8 and there:
                key, other = there.pop(dice.randrange(len(there)))
                groups.remove(key, other)
                groups.remove(key, other)  # no error
            case _:
                count = dice.choice([1, 3, None])
                there.sort()
                first = [one for one in there if one[0] == there[0][0]][:count]
                assert groups.take(count) == [other for _, other in first]
                there = there[len(first) :]
        assert groups.lowest == min((key for key, _ in there), default=None)
        assert bool(groups) is bool(there)


def test_keys_of_groups_that_are_gone_leave_memory_wherever_they_lie() -> None:
    groups: OrderedGroups[int, str] = OrderedGroups()
    groups.add(0, "stays in front")
    for key in range(1, 10_000):
        groups.add(key, "leaves")
        groups.remove(key, "leaves")
    assert len(groups._keys) <= 32  # how much it remembers
    for _ in range(1000):
        groups.add(7, "again")
        groups.remove(7, "again")
    assert len(groups._keys) <= 32  # how much it remembers
    assert groups.take() == ["stays in front"]
    assert groups.take() == []


def test_a_thing_of_a_group_that_has_others_costs_no_look_at_keys() -> None:
    class Counted(int):
        looks = 0

        def __lt__(self, other: int) -> bool:
            Counted.looks += 1
            return int(self) < other

    groups: OrderedGroups[int, int] = OrderedGroups()
    for key in range(100):
        groups.add(Counted(key), 0)
    Counted.looks = 0
    for thing in range(1, 1000):
        groups.add(Counted(50), thing)
    for thing in range(1, 1000):
        groups.remove(Counted(50), thing)
    assert Counted.looks == 0
