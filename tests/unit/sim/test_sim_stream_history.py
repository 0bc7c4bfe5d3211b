"""What the judge of streams takes for a broken promise."""

from __future__ import annotations

import pytest

from quorumbook.sim.histories.ledgers import History
from quorumbook.sim.histories.streams import StreamHistory
from quorumbook.sim.kernel import Kernel


class Judge(StreamHistory):
    def __init__(self) -> None:
        self.all = History(Kernel(1))
        super().__init__(self.all)


@pytest.fixture
def judge() -> Judge:
    return Judge()


def test_a_stream_that_keeps_its_promises_is_not_complained_about(judge: Judge):
    for number in range(3):
        judge.acked("p0", number, 7 + number // 2, b"p0 %d" % number)
        judge.read("f0", number - 1 if number else None, number, 7 + number // 2, b"p0 %d" % number)
    judge.truncated = 2
    judge.read("f1", None, 2, 8, b"p0 2")
    judge.read_all("reader", 2, [b"p0 2"])
    judge.sought("reader", 2, 7, 2)
    assert judge.all.violations == []


def test_two_writers_that_are_told_the_same_sequence_id_are_seen(judge: Judge):
    judge.acked("p0", 4, 0, b"p0 0")
    judge.acked("p1", 4, 0, b"p1 0")
    assert "was told 4" in judge.all.violations[0]


@pytest.mark.parametrize(("before", "sequence_id"), [(None, 1), (3, 5), (3, 3)])
def test_holes_and_repetitions_are_seen(judge: Judge, before: int | None, sequence_id: int):
    judge.read("f0", before, sequence_id, 0, b"p0 0")
    assert len(judge.all.violations) == 1


def test_a_record_that_is_there_twice_is_seen(judge: Judge):
    judge.acked("p0", 0, 0, b"p0 0")
    judge.acked("p0", 1, 0, b"p0 0")
    assert "is at 0 and at 1" in judge.all.violations[0]


def test_another_record_under_a_sequence_id_is_seen(judge: Judge):
    judge.acked("p0", 0, 0, b"p0 0")
    judge.read("f0", None, 0, 0, b"p1 0")
    assert "others as" in judge.all.violations[0]


def test_what_was_acknowledged_and_is_not_there_is_seen(judge: Judge):
    judge.acked("p0", 1, 0, b"p0 1")
    judge.read_all("reader", 0, [b"p0 0"])
    assert "1 was acknowledged" in judge.all.violations[0]


def test_records_of_a_producer_out_of_order_are_seen(judge: Judge):
    judge.read_all("reader", 0, [b"p0 1", b"p1 0", b"p0 0"])
    assert "is behind number 1" in judge.all.violations[0]


@pytest.mark.parametrize(("sequence_id", "txid"), [(2, 6), (0, 8), (1, 8)])
def test_transaction_ids_that_fall_or_change_are_seen(judge: Judge, sequence_id: int, txid: int):
    judge.acked("p0", 1, 7, b"p0 1")
    judge.read("f0", sequence_id - 1, sequence_id, txid, b"p0 %d" % sequence_id)
    assert "as transaction id of" in judge.all.violations[0]


def test_a_transaction_id_that_leads_elsewhere_is_seen(judge: Judge):
    for number in range(3):
        judge.acked("p0", number, 7, b"p0 %d" % number)
    judge.sought("reader", 0, 7, 1)
    assert "and not to 0" in judge.all.violations[0]


def test_who_is_led_behind_a_record_while_the_stream_is_written_is_seen(judge: Judge):
    for number in range(4):
        judge.acked("p0", number, 7 + number, b"p0 %d" % number)
    assert judge.last_txid == 10
    judge.led("f1", 8, 1)
    judge.truncated = 3
    judge.led("f1", 8, 3)
    assert judge.all.violations == []
    judge.truncated = 0
    judge.led("f1", 8, 3)
    assert "behind 1" in judge.all.violations[0]
