"""Entries that wait for acks of enough racks."""

from __future__ import annotations

from quorumbook.errors import ConnectionLostError, NotEnoughBookiesError
from quorumbook.ledger.machines.append import (
    AppendFailed,
    AppendState,
    ChangeEnsemble,
    Confirmed,
    Send,
)
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.ledger.placement.domains import AckDomains
from quorumbook.ledger.placement.policy import Shape
from quorumbook.ledger.transitions import changed_metadata

LOST = ConnectionLostError("gone")
LEDGER = LedgerMetadata(
    ledger_id=1,
    ensemble_size=3,
    write_quorum_size=3,
    ack_quorum_size=2,
    fragments=(Fragment(0, tuple("abc")),),
)


def by_rack(racks: dict[str, str], least: int = 2):
    """Return what tells in which racks the acks of an ensemble count."""

    def domains(metadata: LedgerMetadata) -> AckDomains:
        places = [racks[bookie_id] for bookie_id in metadata.ensemble]
        return AckDomains(Shape.of(metadata), places, least)

    return domains


def test_r01_an_entry_waits_for_acks_of_enough_fault_domains() -> None:
    state = AppendState(
        LEDGER, ack_domains=by_rack({"a": "/r1", "b": "/r1", "c": "/r2", "d": "/r2"})
    )
    state.push(30, 3)
    state.on_acks(0, "a", 0, 2)
    state.on_acks(1, "b", 0, 2)
    assert state.poll() == []
    state.on_acks(2, "c", 0, 1)
    assert state.poll() == [Confirmed(1)]
    # Without c no entry can be confirmed, although an ack quorum is there.
    assert state.is_viable
    state.on_failure(2, "c", LOST)
    assert not state.is_viable
    (effect,) = state.poll()
    assert isinstance(effect, ChangeEnsemble)
    state.on_ensemble_changed(*changed_metadata(state.metadata, effect, {2: "d"}))
    assert state.poll() == [Send(2, "d", range(2, 3))]
    state.on_acks(2, "d", 2, 2)
    assert state.poll() == [Confirmed(2)]


def test_r01_a_writer_whose_entries_cannot_reach_enough_fault_domains_stops() -> None:
    state = AppendState(LEDGER, ack_domains=by_rack({"a": "/r1", "b": "/r1", "c": "/r2"}))
    state.push(10, 1)
    state.on_failure(2, "c", LOST)
    state.poll()
    state.on_no_replacement()
    (failed,) = state.poll()
    assert isinstance(failed, AppendFailed)
    assert isinstance(failed.error, NotEnoughBookiesError)
