"""The directed phase ``splits``: each sees another part of the cluster, and never for long.

About once a second the newest ledger's entries are kept from some of its bookies; somebody may
look at it, and one or two clients recover it, which have other bookies out of reach, and some
bookies die meanwhile.  Metadata answers get lost.  So what is found differs with who asks whom, and
ensembles change while ledgers are recovered.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

from quorumbook.errors import QuorumbookError
from quorumbook.ids import LedgerId
from quorumbook.sim.actors import ledgers as actors
from quorumbook.sim.cluster import BookieMachine
from quorumbook.sim.kernel import SECOND
from quorumbook.sim.phases.phase import ALONE, SearchPhase
from quorumbook.sim.process import Machine, Process

#: What it wants of the plan.
PLAN: dict[str, Any] = {
    **ALONE,
    "quorums": (3, 3, 2),
    "bookies": 5,
    "writers": 2,
    "burst_max": 4,
    "entries_max": 20,
    "payload_size_max": 300,
    "ledgers_max": 40,
    "rough_s": 10.0,
    "tail": 0.005,
    "metadata_drops": 0.05,
    "slow_syncs": 0.0,
    "flush_interval_s": 0.5,
    "timeout_s": 0.4,
}


class Splits(SearchPhase):
    """One thing after the other."""

    def __init__(self, life: actors.ActorsLife) -> None:
        super().__init__(life)
        self._others = 0

    def _act(self) -> None:
        """Keep the newest ledger's entries from some of its bookies; then others come."""
        tape, newest = self._tape, max(self._life.history.own_ids, default=None)
        if newest is None:
            self._later(0.1, 0.3, self._act)
            return
        self._life.cluster.network.reset_one()
        ensemble = self._ensemble(newest)
        for writer in self._writers():
            for machine in ensemble:
                if tape.chance(0.4):
                    self._cut(writer.name, machine.name)
        self._later(0.0, 0.3, partial(self._meet, newest))

    def _writers(self) -> list[Machine]:
        return [each for each in self._life.cluster.clients if each.name[0] == "w"]

    def _ensemble(self, ledger_id: LedgerId) -> list[BookieMachine]:
        metadata = self._life.history.ledgers[ledger_id].metadata
        names = metadata.last_fragment.ensemble if metadata is not None else ()
        return [each for each in self._bookies if each.name in names]

    def _cut(self, client: str, bookie: str) -> None:
        """Hold back for a while what goes one way."""
        network = self._life.cluster.network
        ends = (client, bookie) if self._tape.chance(0.7) else (bookie, client)
        network.cut(*ends)
        duration_ns = int(self._tape.between(0.05, 1.0) * SECOND)
        self._kernel.after(duration_ns, network.heal, *ends)

    def _kill(self, machine: BookieMachine) -> None:
        machine.kill()
        self._boot(machine)

    def _meet(self, ledger_id: LedgerId) -> None:
        tape = self._tape
        for writer in self._writers():
            if writer.process is not None and tape.chance(0.3):
                writer.process.pause(int(tape.between(0.1, 1.2) * SECOND))
        if tape.chance(0.5):
            self._start("l", lambda process: self._look(process, ledger_id))
            self._later(0.01, 0.05, partial(self._hunters, ledger_id))
        else:
            self._hunters(ledger_id)
        self._later(0.6, 1.2, self._act)

    def _hunters(self, ledger_id: LedgerId) -> None:
        """Recover it once or twice, with mishaps in the few milliseconds that this takes."""
        tape, ensemble = self._tape, self._ensemble(ledger_id)
        for _ in range(tape.pick((1, 1, 2))):
            hunter = self._start("h", lambda process: self._hunt(process, ledger_id))
            if tape.chance(0.2):
                self._later(0.0, 0.05, hunter.kill)
            for machine in ensemble:
                if tape.chance(0.3):
                    self._later(0.0, 0.012, partial(self._cut, hunter.name, machine.name))
        for machine in ensemble:
            if tape.chance(0.25):
                self._later(0.0, 0.012, partial(self._kill, machine))

    def _start(self, kind: str, main: Any) -> Machine:
        self._others += 1
        machine = self._life.cluster.add_client(f"{kind}{self._others}")
        machine.start(main)
        return machine

    async def _hunt(self, process: Process, ledger_id: LedgerId) -> None:
        async with actors.started(self._life, process) as client:
            with contextlib.suppress(QuorumbookError):
                await actors.read_closed(self._life, process, client, ledger_id)

    async def _look(self, process: Process, ledger_id: LedgerId) -> None:
        async with actors.started(self._life, process) as client:
            with contextlib.suppress(QuorumbookError):
                await actors.read_confirmed(self._life, process, client, ledger_id)
