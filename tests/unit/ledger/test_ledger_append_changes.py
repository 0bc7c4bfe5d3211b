"""The append machine while an ensemble change is under way, and when it found too few bookies."""

from __future__ import annotations

import pytest

from quorumbook.errors import ConnectionLostError
from quorumbook.ledger.machines.append import AppendState, ChangeEnsemble, DegradedWarning, Send
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.ledger.transitions import changed_metadata

LOST = ConnectionLostError("gone")


def writer(ensemble: str, **options: bool) -> AppendState:
    metadata = LedgerMetadata(
        ledger_id=1,
        ensemble_size=len(ensemble),
        write_quorum_size=len(ensemble),
        ack_quorum_size=2,
        fragments=(Fragment(0, tuple(ensemble)),),
    )
    state = AppendState(metadata, **options)
    state.push(10, 1)
    return state


def test_a_bookie_that_comes_back_during_a_change_waits_for_its_result() -> None:
    state = writer("abc")
    state.on_failure(0, "a", LOST)
    assert state.poll() == [ChangeEnsemble({0: "a"}, 0, 1)]
    state.on_bookie_back(0, "a")
    assert state.failed == {0: "a"}
    state.on_no_replacement()
    assert state.poll() == [DegradedWarning({0: "a"})]
    state.on_bookie_back(0, "a")
    assert state.poll() == [Send(0, "a", range(1))]
    assert not state.is_degraded


def test_a_delayed_writer_replaces_what_failed_during_a_change_if_quorums_are_out_of_reach() -> (
    None
):
    state = writer("abc", delay_ensemble_change=True)
    state.on_failure(0, "a", LOST)
    assert state.poll() == []
    state.on_failure(1, "b", LOST)
    [effect] = state.poll()
    state.on_failure(2, "c", LOST)
    state.on_ensemble_changed(*changed_metadata(state.metadata, effect, {0: "d"}))
    assert state.poll() == [
        Send(0, "d", range(1)),
        ChangeEnsemble({1: "b", 2: "c"}, 0, 2),
    ]


@pytest.mark.parametrize("require_replacement", [False, True])
def test_a_change_that_found_some_bookies_is_no_reason_to_stop(require_replacement: bool) -> None:
    state = writer("abcd", require_replacement=require_replacement)
    state.on_failure(0, "a", LOST)
    state.on_failure(1, "b", LOST)
    [effect] = state.poll()
    state.on_ensemble_changed(*changed_metadata(state.metadata, effect, {1: "x"}))
    assert state.poll() == [Send(1, "x", range(1)), DegradedWarning({0: "a"})]
    assert state.is_open
