"""What the judges of readers, of calls and of changes of the metadata take for a broken promise."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from quorumbook.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from quorumbook.sim.histories.calls import BOUND_S, Calls
from quorumbook.sim.histories.fragments import wrong_change, wrong_shape
from quorumbook.sim.histories.ledgers import PASSWORD, History
from quorumbook.sim.histories.readers import Reading
from quorumbook.sim.kernel import SECOND, Kernel

_FIRST, _LATER = Fragment(0, ("b0", "b1")), Fragment(2, ("b0", "b2"))
PLAIN = LedgerMetadata(
    ledger_id=7,
    ensemble_size=2,
    write_quorum_size=2,
    ack_quorum_size=2,
    fragments=(_FIRST, _LATER),
    password=PASSWORD,
)
CLOSED = replace(PLAIN, state=LedgerState.CLOSED, last_entry_id=2, length=3)


@pytest.fixture
def reading() -> Reading:
    history = History(Kernel(1))
    ledger = history.created(7, "w0", 2, lambda: 2)
    ledger.sent += [b"a", b"b", b"c"]
    ledger.metadata = CLOSED
    return Reading(history, 7, "r0")


def test_a_reader_may_see_each_entry_once_and_in_order(reading: Reading):
    reading.confirmed(0)
    reading.shown(0, b"a")
    reading.confirmed(2)
    reading.shown(1, b"b")
    reading.shown(2, b"c")
    reading.ended(2)
    reading.left()
    assert reading.history.violations == []


@pytest.mark.parametrize("ids", [(1,), (0, 2), (0, 0), (0, 1, 0)])
def test_a_reader_may_see_no_entry_twice_and_none_too_early(reading: Reading, ids: tuple[int, ...]):
    for entry_id in ids:
        reading.shown(entry_id, b"abc"[entry_id : entry_id + 1])
    assert "was next" in reading.history.violations[0]


def test_a_read_does_not_end_before_its_end(reading: Reading):
    reading.shown(0, b"a")
    reading.left()
    assert "read up to entry 2, and was shown entries up to 0" in reading.history.violations[0]


def test_an_open_ledger_does_not_end(reading: Reading):
    reading.history.ledgers[7].metadata = PLAIN
    reading.left()
    assert "was told that an open ledger ends" in reading.history.violations[0]


@pytest.mark.parametrize("less", [-1, 0])
def test_what_is_confirmed_to_a_reader_does_not_go_back(reading: Reading, less: int):
    reading.confirmed(1)
    reading.confirmed(less)
    assert f"knew 1 as last add confirmed, and now {less}" in reading.history.violations[0]


def test_what_a_reader_was_shown_is_confirmed(reading: Reading):
    for entry_id in (0, 1):
        reading.shown(entry_id, b"ab"[entry_id : entry_id + 1])
    reading.confirmed(0)
    assert "was shown entry 1, and knows 0 as confirmed" in reading.history.violations[0]


def test_a_call_is_overdue_when_its_time_is_over_and_its_process_lives():
    kernel = Kernel(1)
    calls = Calls(kernel)
    living: Any = SimpleNamespace(name="w0", is_dead=False)
    dying: Any = SimpleNamespace(name="w1", is_dead=False)
    calls.begin(living, "appending")
    calls.begin(dying, "deleting")
    with calls.under_way(living, "closing"):
        pass
    kernel.now_ns = int(BOUND_S * SECOND)
    dying.is_dead = True
    assert not calls.are_over
    assert calls.overdue(0) == ["w0: appending"]
    # All was well only later.
    assert calls.overdue(1) == []


def test_a_call_that_ended_is_over():
    calls = Calls(Kernel(1))
    process: Any = SimpleNamespace(name="w0", is_dead=False)
    call = calls.begin(process, "appending")
    assert not calls.are_over
    calls.end(call)
    assert calls.are_over


@pytest.mark.parametrize(
    "fragments",
    [
        (Fragment(1, ("b0", "b1")),),
        (_FIRST, Fragment(0, ("b0", "b2"))),
        (Fragment(0, ("b0", "b0")),),
        (Fragment(0, ("b0", "b1", "b2")),),
    ],
)
def test_a_version_of_the_metadata_that_cannot_be(fragments: tuple[Fragment, ...]):
    metadata: Any = SimpleNamespace(ensemble_size=2, fragments=fragments)
    assert wrong_shape(metadata) is not None
    assert wrong_shape(PLAIN) is None


_MOVED = replace(PLAIN, fragments=(Fragment(0, ("b3", "b1")), _LATER))


@pytest.mark.parametrize(
    ("before", "after", "has_workers"),
    [
        (PLAIN, replace(PLAIN, fragments=(_FIRST,)), True),
        (PLAIN, replace(PLAIN, fragments=(_FIRST, replace(_LATER, first_entry_id=1))), True),
        (PLAIN, replace(PLAIN, ack_quorum_size=1), True),
        (PLAIN, _MOVED, False),
        (CLOSED, replace(CLOSED, fragments=(_FIRST, _LATER, Fragment(3, ("b0", "b3")))), True),
    ],
)
def test_a_change_of_the_metadata_that_may_not_be(
    before: LedgerMetadata, after: LedgerMetadata, has_workers: bool
):
    assert wrong_change(before, after, has_workers=has_workers) is not None


@pytest.mark.parametrize(
    ("after", "has_workers"),
    [
        (PLAIN, False),
        (CLOSED, False),
        (_MOVED, True),
        (replace(PLAIN, fragments=(_FIRST, Fragment(2, ("b0", "b3")))), False),
        (replace(PLAIN, fragments=(_FIRST, _LATER, Fragment(3, ("b0", "b3")))), False),
    ],
)
def test_a_change_of_the_metadata_that_may_be(after: LedgerMetadata, has_workers: bool):
    assert wrong_change(PLAIN, after, has_workers=has_workers) is None
