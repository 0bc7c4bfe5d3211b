"""A batch of which records are taken one by one, some at a time, and all that are left."""

from __future__ import annotations

from quorumbook.streams.format.position import Position
from quorumbook.streams.reading.batches import Record, RecordBatch
from quorumbook.streams.reading.hand_out import HandOut


def hand_with(count: int) -> HandOut[Record]:
    payloads = [b"%d" % number for number in range(count)]
    hand: HandOut[Record] = HandOut()
    hand.begin(RecordBatch(Position(1, 2, 3), 40, range(count), payloads, None, 7))
    return hand


def taken(hand: HandOut[Record], count: int) -> list[bytes]:
    return [next(hand.records)[0].payload for _ in range(count)]


def test_what_was_handed_out_is_told_of_however_it_was() -> None:
    hand = hand_with(6)
    hand.one_by_one(iter)
    assert hand.count == 0
    assert hand.news() is None
    assert taken(hand, 2) == [b"0", b"1"]
    assert hand.count == 2
    assert hand.news() == ((Position(1, 2, 3), 40), (Position(1, 2, 4), 41))
    assert hand.news() is None
    assert hand.part(2).payloads == [b"2", b"3"]
    assert hand.news() is None  # who takes some at a time knows of it
    assert list(hand.records) == []
    hand.one_by_one(iter)
    assert taken(hand, 1) == [b"4"]
    assert hand.news() == ((Position(1, 2, 6), 43), (Position(1, 2, 7), 44))
    rest = hand.rest()
    assert rest is not None
    assert rest.payloads == [b"5"]
    assert hand.is_over
    assert hand.rest() is None


def test_nothing_more_comes_one_by_one_when_it_is_stopped() -> None:
    hand = hand_with(3)
    hand.one_by_one(iter)
    taken(hand, 1)
    hand.stop()
    assert list(hand.records) == []
    assert (hand.count, hand.is_over) == (1, False)
    assert hand.place(hand.count) == (Position(1, 2, 4), 41)
    hand.begin(None)
    hand.one_by_one(iter)
    assert (list(hand.records), hand.count, hand.is_over) == ([], 0, True)


def test_a_batch_that_is_all_handed_out_is_over() -> None:
    hand = hand_with(2)
    hand.one_by_one(iter)
    assert [record.sequence_id for record, _ in hand.records] == [40, 41]
    assert (hand.count, hand.is_over) == (2, True)
    assert hand.news() == ((Position(1, 2, 3), 40), (Position(1, 2, 4), 41))
    hand.one_by_one(iter)
    assert list(hand.records) == []
