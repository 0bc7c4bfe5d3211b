"""The LAC read."""

from __future__ import annotations

import pytest

from quorumbook.errors import (
    BookieIOError,
    ConnectionLostError,
    DigestMismatchError,
    NoSuchEntryError,
    NoSuchLedgerError,
    ReadFailedError,
    UnknownLedgerStateError,
)
from quorumbook.ledger.machines.lac_read import LacReadState
from quorumbook.ledger.metadata import Fragment, LedgerMetadata


def ledger(ensemble: str = "abc", write_quorum: int = 3, first: int = 0) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=1,
        ensemble_size=len(ensemble),
        write_quorum_size=write_quorum,
        ack_quorum_size=2,
        fragments=(Fragment(first, tuple(ensemble)),),
    )


def test_the_greatest_lac_counts_once_the_answers_cover_every_ack_quorum() -> None:
    state = LacReadState(ledger())
    assert state.bookies == ((0, "a"), (1, "b"), (2, "c"))
    state.on_answer(0, 7)
    assert not state.is_done
    state.on_answer(2, 5)
    assert (state.is_done, state.last_add_confirmed, state.error) == (True, 7, None)
    state.on_answer(1, 99)
    assert state.last_add_confirmed == 7, "what was told stays"


@pytest.mark.parametrize("error", [NoSuchEntryError("x"), NoSuchLedgerError("x")])
def test_a_bookie_without_the_ledger_has_answered(error) -> None:
    state = LacReadState(ledger())
    state.on_answer(0, 7)
    state.on_error(1, error)
    assert state.is_done
    assert state.error is None


@pytest.mark.parametrize(
    "error",
    [ConnectionLostError("x"), UnknownLedgerStateError("x"), DigestMismatchError("x")],
)
def test_errors_and_limbo_cover_nothing(error) -> None:
    state = LacReadState(ledger())
    state.on_answer(0, 7)
    state.on_error(1, error)
    assert not state.is_done
    state.on_answer(2, 8)
    assert state.last_add_confirmed == 8


def test_a_read_without_coverage_fails() -> None:
    state = LacReadState(ledger())
    state.on_answer(0, 7)
    state.on_error(1, ConnectionLostError("x"))
    state.on_error(2, BookieIOError("x"))
    assert state.is_done
    assert isinstance(state.error, ReadFailedError)
    assert state.error.code == BookieIOError.code


def test_coverage_is_counted_in_windows_where_the_ensemble_stripes() -> None:
    state = LacReadState(ledger("abcdef", 2))
    for index in (0, 2):
        state.on_answer(index, index)
    assert not state.is_done
    state.on_answer(4, 1)
    assert (state.is_done, state.last_add_confirmed) == (True, 2)


def test_the_lac_is_never_below_what_is_known_or_recorded() -> None:
    state = LacReadState(ledger(first=10), known=3)
    state.on_answer(0, -1)
    state.on_answer(1, 4)
    assert state.last_add_confirmed == 9


def test_a_try_is_content_with_the_first_progress() -> None:
    state = LacReadState(ledger(), known=5, is_try=True)
    state.on_answer(0, 5)
    assert not state.is_done
    state.on_answer(1, 6)
    assert (state.is_done, state.last_add_confirmed) == (True, 6)


def test_a_try_without_progress_is_content_with_any_answer() -> None:
    state = LacReadState(ledger(), known=5, is_try=True)
    state.on_answer(0, 3)
    state.on_error(1, ConnectionLostError("x"))
    state.on_error(2, ConnectionLostError("x"))
    assert (state.is_done, state.error, state.last_add_confirmed) == (True, None, 5)


def test_a_try_without_any_answer_fails() -> None:
    state = LacReadState(ledger(), is_try=True)
    for index in range(3):
        state.on_error(index, ConnectionLostError("x"))
    assert isinstance(state.error, ReadFailedError)


def test_a_read_whose_answers_all_came_without_coverage_is_over() -> None:
    state = LacReadState(ledger(first=3))
    assert state.last_add_confirmed == 2, "what stands before the last fragment was confirmed"
    state.on_error(2, BookieIOError("x"))
    state.on_answer(1, 7)
    assert not state.is_done
    state.on_error(0, ConnectionLostError("x"))
    assert state.is_done
    assert isinstance(state.error, ReadFailedError)
