"""The directed phase ``stores``: what a bookie's storage promises, crash after crash.

Every entry needs both of its copies, so whatever one bookie loses is missed.  Bookies flush, roll,
compact and collect all the time, and one after the other is killed or loses power: at some call of
the disk, right behind it, and again while it starts.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from quorumbook.errors import QuorumbookError
from quorumbook.sim.actors import ledgers as actors
from quorumbook.sim.cluster import BookieMachine
from quorumbook.sim.phases.phase import ALONE, SearchPhase
from quorumbook.sim.process import Process
from quorumbook.storage.directories.places import INDEX_NAME

#: What it wants of the plan.
PLAN: dict[str, Any] = {
    **ALONE,
    "quorums": (2, 2, 2),
    "bookies": 3,
    "writers": 2,
    "burst_max": 16,
    "entries_max": 20,
    "payload_size_max": 3000,
    "ledgers_max": 40,
    "rough_s": 10.0,
    "ways": ("early_turns", "compacts", "collects", "deletes"),
    "flush_interval_s": 0.2,
    "journal_file_size_bytes": 8 << 10,
    "timeout_s": 0.6,
}
_CALLS_MAX = 80
#: A start makes about so many calls.
_CALLS_OF_A_START = 200
#: And about so many until it is through with the index.
_CALLS_OF_A_BELIEF = 40


class Stores(SearchPhase):
    """One crash after the other."""

    def __init__(self, life: actors.ActorsLife) -> None:
        super().__init__(life)
        self._hunters = 0

    def _act(self) -> None:
        tape = self._tape
        if tape.chance(0.4):
            self._hunt()
        machine = tape.pick(self._bookies)
        self._later(0.1, 0.5, self._act)
        if machine.process is not None:
            kind = tape.pick(("kill", "power", "job", "commit", "group"))
            if kind == "commit":
                machine.kill_in_sync(INDEX_NAME)
                self._when(lambda: machine.process is None, 1.0, partial(self._restart, machine))
                return
            if kind == "group":
                machine.cut_power_in_sync(".txn")
            elif kind == "kill":
                machine.kill()
            elif kind == "power":
                machine.cut_power()
            else:
                machine.cut_power_in_job(1 + tape.below(_CALLS_MAX))
        self._later(0.02, 0.3, partial(self._again, machine))

    def _restart(self, machine: BookieMachine) -> None:
        """Start it on what a commit left, and cut its power when it has begun to believe that."""
        if machine.process is None:
            machine.boot_up()
            machine.cut_power_in_job(1 + self._tape.below(_CALLS_OF_A_BELIEF))
        self._later(0.3, 0.6, partial(self._boot, machine))

    def _again(self, machine: BookieMachine) -> None:
        """Start it, and mostly end it once more before it has settled."""
        tape = self._tape
        if machine.process is None:
            machine.boot_up()
            kind = tape.pick(("start", "soon", "soon", "not"))
            if kind == "start":
                machine.cut_power_in_job(1 + tape.below(_CALLS_OF_A_START))
            elif kind == "soon":
                self._when(lambda: machine.serves, 1.0, partial(self._soon, machine))
        self._later(0.5, 1.0, partial(self._boot, machine))

    def _soon(self, machine: BookieMachine) -> None:
        self._later(0.0, 0.15, self._tape.pick((machine.kill, machine.cut_power)))

    def _hunt(self) -> None:
        """Recover a ledger, so that fences and what is written back are in the journals, too."""
        ids = self._life.history.own_ids
        if ids:
            self._hunters += 1
            hunter = self._life.cluster.add_client(f"h{self._hunters}")
            hunter.start(partial(self._recover, ledger_id=max(ids)))

    async def _recover(self, process: Process, ledger_id: int) -> None:
        async with actors.started(self._life, process) as client:
            try:
                await actors.read_closed(self._life, process, client, ledger_id)
            except QuorumbookError:
                return
