"""What the judge of ledgers takes for a broken promise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quorumbook.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from quorumbook.sim.histories.ledgers import PASSWORD, History
from quorumbook.sim.kernel import Kernel


@pytest.fixture
def history() -> History:
    history = History(Kernel(1))
    confirmed = history.created(7, "w0", 2, lambda: 1)
    confirmed.sent += [b"a", b"b", b"c"]
    confirmed.metadata = LedgerMetadata(
        ledger_id=7,
        ensemble_size=3,
        write_quorum_size=3,
        ack_quorum_size=2,
        fragments=(Fragment(0, ("b0", "b1", "b2")),),
        password=PASSWORD,
    )
    for entry_id in (0, 1):
        history.acked(7, "w0", entry_id)
    return history


def _close(history: History, last: int) -> None:
    metadata = history.ledgers[7].metadata
    assert metadata is not None
    history.ledgers[7].metadata = replace(
        metadata, state=LedgerState.CLOSED, last_entry_id=last, length=last + 1
    )


def test_a_reader_is_told_what_is_confirmed_to_the_writer(history: History):
    history.confirmed(7, "t0", 1)
    assert history.violations == []


def test_nothing_is_confirmed_to_a_reader_that_is_not_to_the_writer(history: History):
    history.confirmed(7, "t0", 2)
    assert "t0 was told that 2 is confirmed, and only 1 is" in history.violations[0]


def test_the_end_of_a_closed_ledger_is_confirmed(history: History):
    _close(history, 2)
    history.confirmed(7, "t0", 2)
    assert history.violations == []


def test_a_failure_is_an_answer_and_a_copy_on_a_bookie_is_none(history: History):
    before = history.operations
    history.failed("w0", TimeoutError())
    assert history.operations == before + 1
    history.found(7, "b0", 2, b"c")
    assert (history.operations, history.audited) == (before + 1, 1)
    history.found(7, "b1", 2, b"another")
    assert "b1 was shown another content of entry 2" in history.violations[0]


@pytest.mark.parametrize(("end", "is_kept"), [(1, True), (2, False)])
def test_a_writer_closes_where_it_says(history: History, end: int, is_kept: bool):
    _close(history, end)
    history.closed(7, "w0", 1)
    assert (history.violations == []) == is_kept


def test_a_close_that_tells_nothing_of_an_append_that_failed_is_wrong(history: History):
    _close(history, 1)
    history.ledgers[7].has_failed = True
    history.closed(7, "w0", 1)
    assert "had been told that an append failed" in history.violations[0]
