"""ConcurrencyLimit: few at a time, everybody once, and nobody who has nothing to do any more."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial

from quorumbook.client.waiting.concurrency import ConcurrencyLimit, LoopTurns


class Guest:
    def __init__(self, begun: list[str], name: str, *, wants: bool = True) -> None:
        self.begun, self.name, self.wants = begun, name, wants

    def begin(self) -> bool:
        if self.wants:
            self.begun.append(self.name)
        return self.wants


def test_no_more_than_so_many_are_under_way_and_the_others_follow_in_order() -> None:
    begun: list[str] = []
    turns = ConcurrencyLimit(at_a_time=2)
    for name in "abcd":
        turns.enter(Guest(begun, name))
    assert begun == ["a", "b"]
    turns.leave()
    assert begun == ["a", "b", "c"]
    turns.leave()
    turns.leave()
    assert begun == ["a", "b", "c", "d"]


def test_who_has_nothing_to_do_any_more_takes_no_place() -> None:
    begun: list[str] = []
    turns = ConcurrencyLimit(at_a_time=1)
    turns.enter(Guest(begun, "a"))
    turns.enter(Guest(begun, "b", wants=False))
    turns.enter(Guest(begun, "c"))
    turns.leave()
    assert begun == ["a", "c"]


async def test_calls_are_made_in_order_some_for_each_turn_of_the_loop() -> None:
    turns = LoopTurns(at_a_time=2)
    called: list[int] = []
    for number in range(5):
        turns.call(partial(called.append, number))
    assert called == []
    seen = []
    while len(called) < 5:
        await asyncio.sleep(0)
        seen.append(len(called))
    assert called == [0, 1, 2, 3, 4]
    assert max(b - a for a, b in itertools.pairwise([0, *seen])) <= 2


async def test_a_call_that_raises_does_not_cost_the_others_their_turn() -> None:
    turns = LoopTurns(at_a_time=4)
    called: list[int] = []
    problems: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))

    def fail() -> None:
        raise ValueError("a bug")

    turns.call(fail)
    turns.call(partial(called.append, 1))
    while not called:
        await asyncio.sleep(0)
    assert len(problems) == 1
    turns.call(partial(called.append, 2))
    while len(called) < 2:
        await asyncio.sleep(0)
