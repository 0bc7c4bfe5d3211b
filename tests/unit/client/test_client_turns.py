"""Turns: few at a time, everybody once, and nobody who has nothing to do any more."""

from __future__ import annotations

from quorumbook.client.turns import Turns


class Guest:
    def __init__(self, begun: list[str], name: str, *, wants: bool = True) -> None:
        self.begun, self.name, self.wants = begun, name, wants

    def begin(self) -> bool:
        if self.wants:
            self.begun.append(self.name)
        return self.wants


def test_no_more_than_so_many_are_under_way_and_the_others_follow_in_order() -> None:
    begun: list[str] = []
    turns = Turns(at_a_time=2)
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
    turns = Turns(at_a_time=1)
    turns.enter(Guest(begun, "a"))
    turns.enter(Guest(begun, "b", wants=False))
    turns.enter(Guest(begun, "c"))
    turns.leave()
    assert begun == ["a", "c"]
