"""Scripted dialogues with the read machine."""

from __future__ import annotations

import pytest

from quorumbook.errors import (
    BookieIOError,
    ConnectFailedError,
    ConnectionLostError,
    DigestMismatchError,
    LocalProtocolError,
    NoSuchEntryError,
    NoSuchLedgerError,
    QuorumbookError,
    ReadFailedError,
    UnauthorizedError,
)
from quorumbook.ledger.machines.read import Delivered, ReadFailed, ReadState, SendRead, worst_error
from quorumbook.ledger.metadata import Fragment, LedgerMetadata, LedgerState

LOST = ConnectionLostError("gone")
NO = NoSuchEntryError("no")


def ledger(
    *fragments: tuple[int, str], write_quorum: int | None = None, ack_quorum: int = 2
) -> LedgerMetadata:
    fragments = fragments or ((0, "abc"),)
    size = len(fragments[0][1])
    return LedgerMetadata(
        ledger_id=1,
        ensemble_size=size,
        write_quorum_size=write_quorum or size,
        ack_quorum_size=ack_quorum,
        fragments=tuple(Fragment(first, tuple(names)) for first, names in fragments),
        state=LedgerState.CLOSED,
        last_entry_id=10**6,
        length=1,
    )


class Dialogue(ReadState):
    """A read machine whose answers are named by the position they come from."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.asked: list[SendRead] = []

    def poll(self):
        effects = super().poll()
        self.asked += [effect for effect in effects if isinstance(effect, SendRead)]
        return effects

    def _asked_of(self, index: int, entry_id: int) -> SendRead:
        """The newest request to a position that an entry belongs to."""
        return next(
            asked
            for asked in reversed(self.asked)
            if asked.bookie_index == index
            and asked.first_entry_id <= entry_id <= asked.last_entry_id
        )

    def gets(self, index: int, first_entry_id: int, last_entry_id: int):
        return self.on_entries(self._asked_of(index, first_entry_id), last_entry_id)

    def refuses(self, index: int, entry_id: int, error: QuorumbookError) -> None:
        self.on_error(self._asked_of(index, entry_id), entry_id, error)


def test_a_range_is_asked_for_in_pieces() -> None:
    state = Dialogue(ledger(), 0, 24, batch_entries=10, max_in_flight=2)
    assert state.poll() == [SendRead("a", 0, 0, 9), SendRead("b", 1, 10, 19)]
    assert state.poll() == []
    assert state.gets(0, 0, 9) == (0, 9)
    assert state.poll() == [Delivered(9), SendRead("c", 2, 20, 24)]
    assert state.gets(2, 20, 24) == (20, 24)
    assert state.poll() == [], "what comes early waits"
    assert state.gets(1, 10, 19) == (10, 19)
    assert state.poll() == [Delivered(24)]
    assert state.is_done


def test_a_sticky_read_asks_the_same_bookie_first() -> None:
    state = Dialogue(ledger(), 0, 29, batch_entries=10, sticky_index=1)
    assert [effect.bookie_id for effect in state.poll()] == ["b", "b", "b"]


def test_pieces_end_where_fragments_do() -> None:
    metadata = ledger((0, "abc"), (5, "abd"), (7, "xyz"))
    state = Dialogue(metadata, 3, 9, sticky_index=2)
    assert state.poll() == [SendRead("c", 2, 3, 4), SendRead("d", 2, 5, 6), SendRead("z", 2, 7, 9)]


def test_a_striped_ledger_is_read_entry_by_entry_from_its_write_sets() -> None:
    state = Dialogue(ledger((0, "abc"), write_quorum=2), 1, 3, max_in_flight=3, sticky_index=0)
    assert state.poll() == [SendRead("b", 1, 1, 1), SendRead("c", 2, 2, 2), SendRead("a", 0, 3, 3)]
    state.refuses(1, 1, NO)
    assert state.poll() == [SendRead("c", 2, 1, 1)]


def test_bookies_to_avoid_are_asked_last() -> None:
    state = Dialogue(ledger(), 0, 5, ranks={"a": 1, "b": 1})
    assert state.poll() == [SendRead("c", 2, 0, 5)]
    state.refuses(2, 0, LOST)
    assert state.poll() == [SendRead("a", 0, 0, 5)]


@pytest.mark.parametrize("error", [NO, LOST, DigestMismatchError("x"), BookieIOError("x")])
def test_the_next_replica_is_asked_on_any_error(error: QuorumbookError) -> None:
    state = Dialogue(ledger(), 0, 5)
    state.poll()
    state.refuses(0, 0, error)
    assert state.poll() == [SendRead("b", 1, 0, 5)]
    assert state.gets(1, 0, 5) == (0, 5)
    assert state.poll() == [Delivered(5)]


def test_the_rest_of_a_short_answer_is_asked_of_the_same_bookie() -> None:
    state = Dialogue(ledger(), 0, 9)
    state.poll()
    assert state.gets(0, 0, 3) == (0, 3)
    assert state.poll() == [Delivered(3), SendRead("a", 0, 4, 9)]


def test_s35_behind_a_damaged_second_entry_the_next_replica_goes_on() -> None:
    state = Dialogue(ledger(), 0, 9)
    state.poll()
    assert state.gets(0, 0, 0) == (0, 0)
    state.refuses(0, 1, DigestMismatchError("x"))
    assert state.poll() == [Delivered(0), SendRead("b", 1, 1, 9)]
    assert state.gets(1, 1, 9) == (1, 9)
    assert state.poll() == [Delivered(9)]


def test_s35_an_answer_after_the_end_is_not_new() -> None:
    state = Dialogue(ledger(), 0, 4)
    state.poll()
    state.on_speculative_timeout()
    assert state.poll() == [SendRead("b", 1, 0, 4)]
    assert state.gets(1, 0, 4) == (0, 4)
    assert state.gets(0, 0, 4) is None
    assert state.poll() == [Delivered(4)]
    assert state.gets(0, 0, 4) is None
    state.refuses(0, 0, LOST)
    assert state.poll() == []


def test_s35_a_late_answer_that_reaches_further_is_used() -> None:
    state = Dialogue(ledger(), 0, 9)
    state.poll()
    state.on_speculative_timeout()
    state.poll()
    assert state.gets(1, 0, 3) == (0, 3)
    assert state.gets(0, 0, 2) is None, "nothing of it is new"
    assert state.gets(0, 0, 7) == (4, 7)
    assert state.poll() == [Delivered(7), SendRead("a", 0, 8, 9)]


def test_a_bookie_that_gave_something_is_not_doubted_when_it_is_slow() -> None:
    state = Dialogue(ledger(), 0, 9)
    state.poll()
    state.gets(0, 0, 3)
    state.poll()
    state.on_speculative_timeout()
    assert state.poll() == []


def test_speculation_ends_with_the_last_replica() -> None:
    state = Dialogue(ledger(), 0, 9)
    for index in range(3):
        assert [effect.bookie_index for effect in state.poll()] == [index]
        state.on_speculative_timeout()
    assert state.poll() == []
    for index in range(3):
        state.refuses(index, 0, LOST)
    [failed] = state.poll()
    assert isinstance(failed, ReadFailed)


def test_a_failed_entry_is_told_after_all_before_it() -> None:
    state = Dialogue(ledger(), 0, 19, batch_entries=10, max_in_flight=2)
    state.poll()
    for index in (1, 2, 0):
        state.refuses(index, 10, NO)
        effects = state.poll()
    assert effects == []
    state.gets(0, 0, 9)
    delivered, failed = state.poll()
    assert delivered == Delivered(9)
    assert failed.entry_id == 10
    assert isinstance(failed.error, NoSuchEntryError)
    assert state.is_done
    assert state.poll() == []


def test_s33_replicas_that_moved_are_found_in_newer_metadata() -> None:
    state = Dialogue(ledger((0, "abc"), (50, "abd")), 0, 9)
    state.poll()
    for index in (0, 1):
        state.refuses(index, 0, ConnectFailedError("decommissioned"))
        state.poll()
    state.on_metadata(ledger((0, "xyz"), (50, "abd")))
    assert state.poll() == [SendRead("x", 0, 0, 9)]
    assert state.gets(0, 0, 9) == (0, 9)


def test_s33_what_a_replaced_bookie_says_late_is_not_charged_to_its_successor() -> None:
    state = Dialogue(ledger(), 0, 9)
    (late,) = state.poll()
    state.on_metadata(ledger((0, "dbc")))
    assert state.poll() == [SendRead("d", 0, 0, 9)]
    state.on_error(late, 0, NO)
    assert state.poll() == [], "d is still waited for"
    assert state.on_entries(late, 2) == (0, 2), "what it gives is as good as ever"
    assert state.poll() == [Delivered(2), SendRead("d", 0, 3, 9)]


def test_s33_a_bookie_that_came_back_is_not_judged_by_what_it_said_before_it_left() -> None:
    state = Dialogue(ledger(), 0, 9)
    (late,) = state.poll()
    state.on_metadata(ledger((0, "dbc")))
    state.on_metadata(ledger())
    assert state.poll() == [SendRead("a", 0, 0, 9)]
    state.on_error(late, 0, NO)
    assert state.poll() == []
    assert state.gets(0, 0, 9) == (0, 9)


def test_s33_damage_behind_a_good_entry_is_charged_to_the_bookie_that_gave_both() -> None:
    state = Dialogue(ledger((0, "abc"), (50, "xyz")), 0, 9)
    (late,) = state.poll()
    state.on_metadata(ledger((0, "dbc"), (50, "xyz")))
    assert state.poll() == [SendRead("d", 0, 0, 9)]
    assert state.on_entries(late, 0) == (0, 0)
    state.on_error(late, 1, DigestMismatchError("x"))
    assert state.poll() == [Delivered(0), SendRead("b", 1, 1, 9)]
    state.refuses(1, 1, NO)
    assert state.poll() == [SendRead("c", 2, 1, 9)]
    state.refuses(2, 1, NO)
    assert state.poll() == [SendRead("d", 0, 1, 9)], "it has said nothing yet"


def test_s33_a_read_that_failed_goes_on_when_newer_metadata_name_another_bookie() -> None:
    state = Dialogue(ledger(), 0, 9)
    for index in range(3):
        state.poll()
        state.refuses(index, 0, NO)
    assert isinstance(state.poll()[-1], ReadFailed)
    state.on_metadata(ledger((0, "abc"), (10, "xyz")))
    assert state.is_done, "nobody else stores the entry"
    state.on_metadata(ledger((0, "abd"), (10, "xyz")))
    assert state.poll() == [SendRead("d", 2, 0, 9)]
    assert state.gets(2, 0, 9) == (0, 9)
    assert state.poll() == [Delivered(9)]


@pytest.mark.parametrize(("first", "last"), [(-1, 3), (4, 3)])
def test_an_impossible_range_is_refused(first: int, last: int) -> None:
    with pytest.raises(LocalProtocolError):
        Dialogue(ledger(), first, last)


@pytest.mark.parametrize(
    ("errors", "expected", "code"),
    [
        ([NO, NO], NoSuchEntryError, -13),
        ([NO, NoSuchLedgerError("x")], NoSuchEntryError, -13),
        ([NoSuchLedgerError("x"), NoSuchLedgerError("x")], NoSuchLedgerError, -7),
        ([NO, LOST], ReadFailedError, -8),
        ([LOST, BookieIOError("x"), NO], ReadFailedError, -1),
        ([BookieIOError("x"), LOST], ReadFailedError, -1),
        ([NO, DigestMismatchError("x")], DigestMismatchError, -5),
        ([UnauthorizedError("x"), NO], UnauthorizedError, -102),
        ([LOST, LOST], ReadFailedError, -8),
    ],
)
def test_the_outcome_is_negative_only_if_every_replica_says_so(errors, expected, code) -> None:
    error = worst_error(errors, 1, 5)
    assert type(error) is expected
    assert (error.code, error.ledger_id, error.entry_id) == (code, 1, 5)
