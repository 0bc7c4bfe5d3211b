"""Single acknowledgements and refusals of a cursor against sets of numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quorumbook.streams.cursors import acks as acks_module
from quorumbook.streams.cursors.acks import AckedRange, Acks
from quorumbook.streams.errors import AckLimitError
from quorumbook.streams.format.position import Position

_RECORDS = 60


def place(sequence_id: int) -> Position:
    """Where a record is in a stream of entries of three records, behind a control record."""
    segment, rest = divmod(sequence_id, 20)
    entry, slot = divmod(rest, 3)
    return Position(segment + 1, entry, slot + 1)


def acked(first: int, last: int | None = None) -> AckedRange:
    last = first if last is None else last
    return AckedRange(first, last, place(last).next)


def leads_to(position: Position) -> int:
    """The first record that is read from a position on."""
    return next((n for n in range(_RECORDS) if place(n) >= position), _RECORDS)


class Acknowledging(RuleBasedStateMachine):
    """A cursor's acks, and the records that an application says are done."""

    def __init__(self) -> None:
        super().__init__()
        self.acks = Acks(0)
        self.position = place(0)
        self.done: set[int] = set()
        self.refused: dict[int, int] = {}

    def take(self, found: tuple[Acks, Position | None]) -> None:
        self.acks, position = found
        if position is not None:
            assert position > self.position
            self.position = position

    def mark_done(self, ids: Iterable[int]) -> None:
        self.done |= set(ids)
        for sequence_id in ids:
            self.refused.pop(sequence_id, None)

    @rule(ids=st.lists(st.integers(0, _RECORDS - 1), max_size=8))
    def ack(self, ids: list[int]) -> None:
        self.take(self.acks.with_acked(map(acked, ids)))
        self.mark_done(ids)

    @rule(first=st.integers(0, _RECORDS - 1), count=st.integers(1, 10))
    def ack_a_range(self, first: int, count: int) -> None:
        last = min(first + count, _RECORDS) - 1
        self.take(self.acks.with_acked([acked(first, last)]))
        self.mark_done(range(first, last + 1))

    @precondition(lambda self: self.acks.floor < _RECORDS)
    @rule(data=st.data())
    def nack(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.integers(self.acks.floor, _RECORDS - 1))
        self.acks = self.acks.without(sequence_id, place(sequence_id))
        self.done.discard(sequence_id)

    @precondition(lambda self: self.acks.floor < _RECORDS)
    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        sequence_id = data.draw(st.integers(self.acks.floor, _RECORDS - 1))
        self.acks = self.acks.with_refused(sequence_id, place(sequence_id), 1000 + sequence_id)
        self.done.discard(sequence_id)
        self.refused[sequence_id] = self.refused.get(sequence_id, 0) + 1

    @precondition(lambda self: self.acks.floor < _RECORDS)
    @rule(data=st.data(), is_done=st.booleans())
    def commit(self, data: st.DataObject, is_done: bool) -> None:
        last = data.draw(st.integers(self.acks.floor, _RECORDS - 1))
        if is_done:
            self.acks = self.acks.without_refusal(last)
            self.refused.pop(last, None)
        self.acks, moved = self.acks.passed(last + 1, place(last).next)
        self.position = moved or self.position
        self.done |= set(range(last + 1)) - self.refused.keys()

    @rule()
    def store_and_read(self) -> None:
        assert Acks.from_json(json.loads(json.dumps(self.acks.to_json()))) == self.acks

    @invariant()
    def what_is_done_is_what_is_covered(self) -> None:
        assert {n for n in range(_RECORDS) if self.acks.covers(n)} == self.done
        floor = next((n for n in range(_RECORDS) if n not in self.done), _RECORDS)
        assert self.acks.floor == floor
        assert leads_to(self.position) == floor
        assert self.acks.count == len(self.done) - floor
        for n in 0, 7, 30:
            assert self.acks.count_from(n) == len({d for d in self.done if d >= max(n, floor)})

    @invariant()
    def what_was_refused_is_kept_with_its_count(self) -> None:
        assert {
            sequence_id: (deliveries, position, due_ms)
            for sequence_id, position, deliveries, due_ms in self.acks.refused
        } == {n: (times, place(n), 1000 + n) for n, times in self.refused.items()}
        assert list(self.acks.refused) == sorted(self.acks.refused)
        for first, count in (0, _RECORDS), (11, 9):
            unseen = {
                first + n
                for start, stop in self.acks.unseen(first, count)
                for n in range(start, stop)
            }
            assert unseen == set(range(first, first + count)) - self.done - self.refused.keys()

    @invariant()
    def ranges_are_few_and_lead_where_they_say(self) -> None:
        before = self.acks.floor
        for first, last, end in self.acks.ranges:
            assert before < first <= last
            assert leads_to(end) == last + 1
            before = last + 1

    @invariant()
    def gaps_are_what_is_left(self) -> None:
        for first, count in (0, _RECORDS), (13, 20), (self.acks.floor, 5):
            left = [n for n in range(first, first + count) if not self.acks.covers(n)]
            slices = self.acks.gaps(first, count)
            assert [first + n for start, stop in slices for n in range(start, stop)] == left
            assert all(start < stop for start, stop in slices)


TestAcknowledging = Acknowledging.TestCase


@given(st.integers(1, 5))
def test_more_holes_than_a_cursor_keeps_are_an_error_that_says_what_to_do(limit: int) -> None:
    original, acks_module.MAX_RANGES = acks_module.MAX_RANGES, limit
    try:
        full, _ = Acks(0).with_acked(acked(2 * n) for n in range(1, limit + 1))
        with pytest.raises(AckLimitError, match="sequence id 0"):
            full.with_acked([acked(2 * limit + 2)])
        assert full.with_acked([acked(3)])[0].count == limit + 1
        assert full.with_acked([acked(0)])[1] == place(0).next
    finally:
        acks_module.MAX_RANGES = original


@pytest.mark.parametrize(
    "damaged",
    [[], {}, {"floor": 1}, {"floor": "x", "ranges": []}, {"floor": 1, "ranges": [[0, 1, 1, 1, 1]]},
     {"floor": 1, "ranges": [[1, 0, 1, 1, 1]]}, {"floor": 1, "ranges": [[1, 1]]},
     {"floor": 1, "ranges": [], "refused": [[1, 1]]}],
)  # fmt: skip
def test_what_no_cursor_wrote_is_not_read(damaged: object) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        Acks.from_json(damaged)
