"""The directed phase ``healing``: replication workers beside all that can change under them.

Every entry needs both of its copies.  Bookies are away for long enough to be replaced; a worker
stands still, mostly when it has just made copies and not recorded them, until its session is over
and others have healed the ledger, or collected the copies as nobody's; writers stand still as well,
and go on in ledgers that were healed meanwhile, with the bookie that was away.  Now and then one
bookie is left, so that workers fail: there is nowhere to copy to.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from quorumbook.ledger.metadata import LedgerMetadata, LedgerState
from quorumbook.sim.actors import ledgers as actors
from quorumbook.sim.cluster import BookieMachine
from quorumbook.sim.histories.invariants import Invariant
from quorumbook.sim.histories.ledgers import LedgerHistory
from quorumbook.sim.kernel import SECOND
from quorumbook.sim.phases.phase import ALONE, SearchPhase
from quorumbook.sim.process import Machine

#: What it wants of the plan.
PLAN: dict[str, Any] = {
    **ALONE,
    "quorums": (2, 2, 2),
    "bookies": 4,
    "writers": 2,
    "has_auto_recovery": True,
    "burst_max": 4,
    "entries_max": 20,
    "payload_size_max": 300,
    "ledgers_max": 20,
    "rough_s": 25.0,
    "ways": ("collects",),
    "slow_syncs": 0.0,
    "flush_interval_s": 2.0,
    "timeout_s": 0.6,
    "session_timeout_s": 2.0,
}
#: What is left open is healed by then: three seconds of patience, and twice the time of a session.
_HEALED_IN_S = 15.0


class HealingPhase(SearchPhase):
    """One bookie after the other is away."""

    def begin(self) -> None:
        """Begin, with a second worker."""
        second = self._life.cluster.add_client("a1")
        second.start(lambda process: actors.replicate(self._life, process))
        super().begin()

    def _act(self) -> None:
        tape = self._tape
        written = self._written()
        if written and self._workers_run() and tape.chance(0.5):
            self._leave_open(tape.pick(written))
            return
        if tape.chance(0.3):
            self._leave_one()
            return
        machine = tape.pick(self._bookies)
        machine.kill()
        self._later(2.5, 7.0, partial(self._back, machine))
        if tape.chance(0.5):
            self._stop("w", tape.between(3.0, 8.0))
        if tape.chance(0.6):
            self._when(self._has_nobodys_copies, 6.0, self._stop_workers)

    def _leave_one(self) -> None:
        """Have all bookies but one away for long enough to be missed, and come back one by one."""
        stays = self._tape.pick(self._bookies)
        away = [machine for machine in self._bookies if machine is not stays]
        for machine in away:
            machine.kill()
            self._later(5.0, 9.0, machine.boot_up)
        self._later(9.0, 11.0, self._act)

    def _back(self, machine: BookieMachine) -> None:
        machine.boot_up()
        self._later(0.5, 2.0, self._act)

    def _workers_run(self) -> bool:
        workers = [each for each in self._life.cluster.clients if each.name.startswith("a")]
        return all(each.process is not None and not each.process.loop.is_paused for each in workers)

    def _written(self) -> list[LedgerHistory]:
        """Return the ledgers that are being written and have entries."""
        return [
            each
            for each in self._life.history.ledgers.values()
            if each.metadata is not None
            and each.metadata.state is LedgerState.OPEN
            and each.acknowledged
        ]

    def _leave_open(self, ledger: LedgerHistory) -> None:
        """Have a bookie of a ledger away until somebody healed it, and its writer not notice.

        The ledger has to be closed for that, and will be when the workers' patience is over.
        """
        assert ledger.metadata is not None
        before = ledger.metadata
        names = before.last_fragment.ensemble
        machine = self._tape.pick([each for each in self._bookies if each.name in names])
        self._stop("w", None)
        machine.kill()
        self._when(
            lambda: ledger.metadata != before,
            _HEALED_IN_S,
            partial(self._back_to_writers, machine, ledger, before),
        )

    def _back_to_writers(
        self, machine: BookieMachine, ledger: LedgerHistory, before: LedgerMetadata
    ) -> None:
        if ledger.metadata == before:
            text = f"nobody heals a ledger that nobody writes and {machine.name} has lost"
            self._life.history.violation(Invariant.WRITERS_ARE_HEALED, text, ledger.ledger_id)
        machine.boot_up()
        self._when(lambda: machine.serves, 3.0, self._let_writers_go_on)

    def _let_writers_go_on(self) -> None:
        for machine in self._life.cluster.clients:
            if machine.name.startswith("w") and machine.process is not None:
                machine.process.go_on()
        self._later(0.5, 2.0, self._act)

    def _has_nobodys_copies(self) -> bool:
        """Tell whether a bookie holds a ledger that does not name it: copies were just made."""
        for machine in self._bookies:
            if not machine.serves or machine.bookie is None:
                continue
            for ledger_id in machine.bookie.storage.ledger_ids():
                ledger = self._life.history.ledgers.get(ledger_id)
                if ledger is None or ledger.metadata is None:
                    continue
                if all(machine.name not in each.ensemble for each in ledger.metadata.fragments):
                    return True
        return False

    def _stop_workers(self) -> None:
        """Stop the first one, and now and then the other as well, so that nobody takes over."""
        self._stop("a0", self._tape.between(3.0, 9.0))
        if self._tape.chance(0.7):
            self._stop("a1", self._tape.between(3.0, 9.0))

    def _stop(self, name: str, duration_s: float | None) -> None:
        for machine in self._life.cluster.clients:
            if machine.name.startswith(name):
                _pause(machine, duration_s)


def _pause(machine: Machine, duration_s: float | None) -> None:
    if machine.process is not None and not machine.process.loop.is_paused:
        machine.process.pause(None if duration_s is None else int(duration_s * SECOND))
