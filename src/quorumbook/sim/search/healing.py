"""The directed phase ``healing``: replication workers beside all that can change under them.

Every entry needs both of its copies.  Bookies are away for long enough to be replaced; a worker
stands still, mostly when it has just made copies and not recorded them, until its session is over
and others have healed the ledger, or collected the copies as nobody's; writers stand still as well,
and go on in ledgers that were healed meanwhile.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from quorumbook.sim.actors import ledgers as actors
from quorumbook.sim.cluster import BookieMachine
from quorumbook.sim.kernel import SECOND
from quorumbook.sim.process import Machine
from quorumbook.sim.search.phase import ALONE, SearchPhase

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


class HealingPhase(SearchPhase):
    """One bookie after the other is away."""

    def begin(self) -> None:
        """Begin, with a second worker."""
        second = self._life.cluster.add_client("a1")
        second.start(lambda process: actors.replicate(self._life, process))
        super().begin()

    def _act(self) -> None:
        tape = self._tape
        machine = tape.pick(self._bookies)
        machine.kill()
        self._later(2.5, 7.0, partial(self._back, machine))
        if tape.chance(0.5):
            self._stop("w", tape.between(3.0, 8.0))
        if tape.chance(0.6):
            self._when(self._has_nobodys_copies, 6.0, self._stop_workers)

    def _back(self, machine: BookieMachine) -> None:
        machine.boot_up()
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

    def _stop(self, name: str, duration_s: float) -> None:
        for machine in self._life.cluster.clients:
            if machine.name.startswith(name):
                _pause(machine, duration_s)


def _pause(machine: Machine, duration_s: float) -> None:
    if machine.process is not None and not machine.process.loop.is_paused:
        machine.process.pause(int(duration_s * SECOND))
