"""What the append machine makes of bookies that have another's key of its ledger (R4)."""

from __future__ import annotations

import pytest

from quorumbook.errors import ConnectionLostError, QuorumbookError, UnauthorizedError
from quorumbook.ledger.machines.append import AppendState
from quorumbook.ledger.machines.append_effects import AppendFailed, ChangeEnsemble, Send
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.ledger.transitions import changed_metadata

NO = UnauthorizedError("no")


def writer(**options: bool) -> AppendState:
    """Return the machine of a ledger at three bookies, with one entry on its way."""
    metadata = LedgerMetadata(
        ledger_id=1,
        ensemble_size=3,
        write_quorum_size=3,
        ack_quorum_size=2,
        fragments=(Fragment(0, tuple("abc")),),
    )
    state = AppendState(metadata, **options)
    state.push(10, 1)
    return state


def fail(state: AppendState, index: int, error: QuorumbookError = NO) -> None:
    state.on_failure(index, state.ensemble[index], error)
    state.check()


@pytest.mark.parametrize("is_patient", [False, True])
def test_r04_a_bookie_that_refuses_the_key_alone_is_replaced(is_patient: bool) -> None:
    state = writer(delay_ensemble_change=is_patient)
    fail(state, 1)
    [effect] = state.poll()
    assert effect == ChangeEnsemble({1: "b"}, 0, 1)
    state.on_ensemble_changed(*changed_metadata(state.metadata, effect, {1: "d"}))
    assert state.poll() == [Send(1, "d", range(1))]
    fail(state, 1)
    [effect] = state.poll()
    assert effect == ChangeEnsemble({1: "d"}, 0, 2)
    assert set(state.refusals) == {"b", "d"}


def test_r04_a_bookie_that_failed_and_then_refuses_the_key_keeps_its_place_no_longer() -> None:
    state = writer(delay_ensemble_change=True)
    fail(state, 1, ConnectionLostError("gone"))
    assert state.poll() == []
    fail(state, 1)
    assert state.poll() == [ChangeEnsemble({1: "b"}, 0, 1)]


def test_r04_a_refused_key_without_a_spare_bookie_ends_the_writer() -> None:
    state = writer()
    fail(state, 1)
    state.poll()
    state.on_no_replacement()
    assert state.is_viable
    assert state.poll() == [AppendFailed(NO)]


def test_r04_a_key_that_all_bookies_refuse_ends_the_writer_at_once() -> None:
    state = writer()
    for index in range(3):
        fail(state, index)
    assert state.poll() == [AppendFailed(NO)]


def test_r04_with_deferred_sync_a_refused_key_ends_the_writer_with_that_reason() -> None:
    state = writer(is_deferred_sync=True)
    fail(state, 1)
    assert state.poll() == [AppendFailed(NO)]
