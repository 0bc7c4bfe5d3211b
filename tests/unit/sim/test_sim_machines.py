"""A run looks at the machines of its clients after every event, and at none of anybody else."""

from __future__ import annotations

import pytest

from quorumbook.errors import InternalError
from quorumbook.ledger.machines.recovery import RecoveryState
from quorumbook.ledger.metadata import Fragment, LedgerMetadata
from quorumbook.sim.histories.ledgers import History
from quorumbook.sim.histories.machines import watched_machines
from quorumbook.sim.kernel import Kernel
from quorumbook.testing import Simulation, simulate

LEDGER = LedgerMetadata(
    ledger_id=1,
    ensemble_size=3,
    write_quorum_size=3,
    ack_quorum_size=2,
    fragments=(Fragment(0, ("a", "b", "c")),),
)


def _broken() -> RecoveryState:
    state = RecoveryState(LEDGER)
    # No event leads there.
    state._answered = 1
    return state


def test_a_machine_that_contradicts_itself_is_a_violation() -> None:
    history = History(Kernel(1))
    with watched_machines(history), pytest.raises(InternalError):
        _broken().poll()
    assert history.violations == ["M accounts_fit: RecoveryState: an answer of who did not respond"]


def test_nobody_looks_before_or_after_a_run() -> None:
    poll = RecoveryState.poll
    with watched_machines(History(Kernel(1))):
        assert RecoveryState.poll is not poll
    assert RecoveryState.poll is poll
    assert _broken().poll()


def test_a_users_program_has_them_looked_at_too() -> None:
    async def program(world: Simulation) -> None:
        del world
        _broken().poll()

    with pytest.raises(InternalError, match="did not respond"):
        simulate(1, program, bookies=3, faults=False)
