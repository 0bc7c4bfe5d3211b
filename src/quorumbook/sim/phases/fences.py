"""The directed phase ``fences``: what stands between a writer and those who recover its ledger.

Again and again a writer stands still or dies, with its last entries on some bookies only, and
somebody recovers its ledger.  Then one of two things is tried:

fence   the bookies' syncs take long, one or two clients recover, and as soon as the first is done
        all bookies lose power; they are back before the writer goes on, and must refuse it
torn    a bookie is gone before the recovery or in the middle of it, and is back afterwards; what
        was found must be where the metadata says
"""

from __future__ import annotations

from functools import partial
from typing import Any

from quorumbook.errors import QuorumbookError
from quorumbook.ids import LedgerId
from quorumbook.sim.actors import ledgers as actors
from quorumbook.sim.cluster import BookieMachine
from quorumbook.sim.kernel import MILLISECOND
from quorumbook.sim.phases.phase import ALONE, SearchPhase
from quorumbook.sim.process import SYNC_NS, Machine, Process

#: What it wants of the plan: nothing else happens, so that much of it fits into a seed.
PLAN: dict[str, Any] = {
    **ALONE,
    "quorums": (3, 3, 2),
    "bookies": 4,
    "writers": 1,
    "burst_max": 2,
    "entries_max": 20,
    "payload_size_max": 300,
    "ledgers_max": 40,
    "rough_s": 20.0,
    "slow_syncs": 0.0,
    "flush_interval_s": 0.2,
    "timeout_s": 2.0,
}
_STALLED_SYNC_NS = 200 * MILLISECOND
_PATIENCE_S = 4.0


class Fences(SearchPhase):
    """One attempt after the other."""

    def __init__(self, life: actors.ActorsLife) -> None:
        super().__init__(life)
        self._hunters = 0
        self._is_hunted = False

    def _act(self) -> None:
        """Wait for a new ledger with as many entries as wanted."""
        self._is_hunted = False
        history = self._life.history
        act = self._tape.pick((self._fence, self._tear))
        if act == self._fence and self._tape.chance(0.7):
            # Its writer does not know yet that it has the ledger: nothing is to be written back.
            history.on_new = self._fence
            return
        wanted = self._tape.pick((0, 1, 3))
        seen = max(history.ledgers, default=-1)

        def is_there() -> bool:
            newest = max(history.ledgers, default=-1)
            return newest > seen and len(history.ledgers[newest].acknowledged) >= wanted

        self._when(is_there, 10.0, lambda: act(max(history.ledgers)))

    @property
    def _writer(self) -> Machine:
        return next(each for each in self._life.cluster.clients if each.name == "w0")

    def _ensemble(self, ledger_id: LedgerId) -> list[BookieMachine]:
        metadata = self._life.history.ledgers[ledger_id].metadata
        names = metadata.last_fragment.ensemble if metadata is not None else ()
        return [each for each in self._bookies if each.name in names]

    # The writer is not to write behind a fence

    def _fence(self, ledger_id: LedgerId) -> None:
        tape = self._tape
        self._life.history.on_new = lambda _: None
        if not self._life.is_rough:
            return  # nobody would have the writer go on
        self._stop_writer()
        if tape.chance(0.7):
            for machine in self._bookies:
                machine.sync_ns = _STALLED_SYNC_NS
        for _ in range(tape.pick((1, 2))):
            self._later(0.0, 0.02, partial(self._hunt, ledger_id))
        # A checkpoint may have come meanwhile, which keeps the fence without the journal.
        delay_s = tape.pick((0.0, 0.0, 0.002, 0.8))
        strike = partial(self._strike, tape.pick(("power", "power", "kill", "nothing")))
        self._when(
            lambda: self._is_hunted, _PATIENCE_S, partial(self._later, delay_s, delay_s, strike)
        )

    def _strike(self, kind: str) -> None:
        for machine in self._bookies:
            machine.sync_ns = SYNC_NS
            if kind == "nothing":
                continue
            if kind == "power":
                machine.cut_power()
            else:
                machine.kill()
            self._boot(machine)
        self._when(self._is_whole, _PATIENCE_S, partial(self._later, 0.0, 0.05, self._go_on))

    # What is found is not to be lost

    def _tear(self, ledger_id: LedgerId) -> None:
        """Keep the next entries from some bookies, and end the writer in the middle of them."""
        tape = self._tape
        ensemble = self._ensemble(ledger_id)
        for machine in ensemble[:1] if tape.chance(0.4) else ensemble[1:]:
            self._life.cluster.network.cut("w0", machine.name)
        self._later(0.0, 0.4, partial(self._recover_torn, ledger_id))

    def _recover_torn(self, ledger_id: LedgerId) -> None:
        tape = self._tape
        if tape.chance(0.7):
            self._writer.kill()
        else:
            self._stop_writer()
        gone = tape.pick(self._ensemble(ledger_id) or self._bookies)
        if tape.chance(0.7):
            self._later(0.0, tape.pick((0.0, 0.003, 0.02)), gone.kill)
        self._later(0.0, 0.01, partial(self._hunt, ledger_id))
        self._when(lambda: self._is_hunted, _PATIENCE_S, self._mend)

    def _mend(self) -> None:
        self._life.cluster.network.heal_all()
        for machine in self._bookies:
            machine.boot_up()
        self._when(self._is_whole, _PATIENCE_S, self._go_on)

    # Both

    def _stop_writer(self) -> None:
        process = self._writer.process
        if process is not None and not process.loop.is_paused:
            process.pause(None)

    def _go_on(self) -> None:
        if self._writer.process is not None:
            self._writer.process.go_on()
        else:
            self._life.start_client(self._writer)
        self._later(0.3, 1.0, self._act)

    def _is_whole(self) -> bool:
        return self._life.cluster.is_whole

    def _hunt(self, ledger_id: LedgerId) -> None:
        self._hunters += 1
        hunter = self._life.cluster.add_client(f"h{self._hunters}")
        hunter.start(lambda process: self._recover(process, ledger_id))

    async def _recover(self, process: Process, ledger_id: LedgerId) -> None:
        async with actors.started(self._life, process) as client:
            try:
                await actors.read_closed(self._life, process, client, ledger_id)
            except QuorumbookError:
                return
            self._is_hunted = True
