"""Directed phases: what seeds alone hardly ever come to is brought about again and again.

Half of all seeds have one.  It adds to the mishaps of the plan; when its steps come, and to
whom, is the tape's choice, so that a phase is a family of runs and not one.

overtaken    a writer stands still, often before its first entry or between two; somebody else
             recovers its ledger, or two do at once and one of them dies; a reader asks what is
             confirmed; bookies die right behind the fence; the writer goes on
checkpoints  bookies that flush all the time lose power in the middle of it, or right behind it
absences, answers, fences, garbage, healing, keys, losses, shares, singles, splits, stores,
unanswered, waits   see their modules
disks        see ``stores``
etcd, zookeeper   ``splits``, and the metadata are there, where requests and answers are lost
members, batches, rivals   see ``sharers``
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from quorumbook.errors import QuorumbookError
from quorumbook.ids import LedgerId
from quorumbook.ledger.metadata import LedgerState
from quorumbook.sim.actors import ledgers as actors
from quorumbook.sim.cluster import BookieMachine, SimClient
from quorumbook.sim.histories.ledgers import PASSWORD
from quorumbook.sim.kernel import MICROSECOND, MILLISECOND, SECOND
from quorumbook.sim.phases import (
    answers,
    fences,
    healing,
    keys,
    losses,
    script,
    sharers,
    shares,
    singles,
    splits,
    stores,
    waits,
)
from quorumbook.sim.phases.phase import SearchPhase
from quorumbook.sim.process import Process

_CALLS_MAX = 60

#: What a phase wants of the plan.
PLANS: Mapping[str, Mapping[str, Any]] = {
    "overtaken": {
        "zookeepers": 0,
        "has_etcd": False,
        "quorums": (3, 3, 2),
        "bookies": 4,
        "has_auto_recovery": False,
        "burst_max": 2,
        "entries_max": 60,
        "ledgers_max": 20,
        "mishap_interval_s": 3.0,
        "flush_interval_s": 0.2,
        "slow_syncs": 0.3,
        "timeout_s": 2.5,
        "session_timeout_s": 6.0,
    },
    "checkpoints": {
        "zookeepers": 0,
        "has_etcd": False,
        "flush_interval_s": 0.2,
        "journal_file_size_bytes": 8 << 10,
        "payload_size_max": 3000,
        "burst_max": 16,
        "ledgers_max": 12,
        "mishap_interval_s": 3.0,
    },
    "fences": fences.PLAN,
    "healing": healing.PLAN,
    "absences": healing.ABSENCES,
    "splits": splits.PLAN,
    "stores": stores.PLAN,
    "disks": stores.DISKS,
    "shares": shares.PLAN,
    "losses": losses.PLAN,
    "garbage": losses.GARBAGE,
    "unanswered": losses.UNANSWERED,
    "singles": script.PLAN,
    "waits": waits.PLAN,
    "answers": answers.PLAN,
    "members": sharers.MEMBERS,
    "batches": sharers.BATCHES,
    "rivals": sharers.RIVALS,
    "etcd": {**splits.PLAN, "has_etcd": True, "metadata_drops": 0.1},
    "zookeeper": {**splits.PLAN, "zookeepers": 3, "metadata_drops": 0.1},
    "keys": keys.PLAN,
}
#: Time is what does the work here: until a session is over, a ledger is given up, a copy is missed.
_SLOW_PHASES = ("healing",)
#: How many answers clients get in a virtual second of a seed that is told how many it has.
_OPERATIONS_A_SECOND = 25


def lengths(phase: str, operations: int) -> dict[str, Any]:
    """Return for how long a seed with so many operations has mishaps, if its phase does not say.

    A phase that says so keeps its own length: bookies and workers act after seconds.  In the slow
    ones people wait longer as well, so that few operations last as long as the phase does.
    """
    length_s = operations / _OPERATIONS_A_SECOND
    if phase in _SLOW_PHASES:
        return {"pace": max(PLANS[phase]["rough_s"] / length_s, 1.0)}
    return {"rough_s": length_s}


def begin(phase: str, life: actors.ActorsLife) -> None:
    """Begin a phase; it ends with the rough time."""
    if phase:
        _PHASES[phase](life).begin()


class _Overtaken(SearchPhase):
    """Recover ledgers under writers that stand still, and kill bookies behind the fence."""

    def __init__(self, life: actors.ActorsLife) -> None:
        super().__init__(life)
        self._hunters = 0

    def _act(self) -> None:
        """Wait for a ledger that has as many entries as wanted."""
        ledgers = self._life.history.ledgers
        wanted = self._tape.pick((0, 0, 1, 2, 5))
        seen = max(ledgers, default=-1)
        tries = 0

        def look() -> None:
            nonlocal tries
            tries += 1
            newest = max(ledgers, default=-1)
            if newest > seen and len(ledgers[newest].acknowledged) >= wanted:
                self._overtake(newest)
            elif tries < 400:
                self._kernel.after(3 * MILLISECOND, look)
            else:
                self._later(0.1, 0.5, self._act)

        look()

    def _overtake(self, ledger_id: LedgerId) -> None:
        tape = self._tape
        writers = [each for each in self._life.cluster.clients if each.name[0] == "w"]
        pause_ns = int(tape.between(0.4, 2.0) * SECOND)
        for writer in writers:
            if writer.process is not None and not writer.process.loop.is_paused:
                writer.process.pause(pause_ns)
        for _ in range(tape.pick((1, 1, 2))):
            self._hunters += 1
            hunter = self._life.cluster.add_client(f"h{self._hunters}")
            hunter.start(lambda process: self._hunt(process, ledger_id))
        if tape.chance(0.3):
            self._later(0.0, 0.1, hunter.kill)
        self._later(2.0, 3.5, self._act)

    async def _hunt(self, process: Process, ledger_id: LedgerId) -> None:
        life, tape = self._life, self._tape
        async with actors.started(life, process) as client:
            if tape.chance(0.3):
                await self._look(process, client, ledger_id)
            # What happens to bookies comes around the fence, or when it has been answered.
            kind = tape.pick(("none", "kill", "power", "power", "power of all"))
            chosen = [each for each in self._bookies if tape.chance(0.7)]
            if kind == "power of all":
                chosen = list(self._bookies)
            when = tape.pick(("at fence", "behind", "slow"))
            if kind != "none" and when == "at fence":
                self._at_fence(ledger_id, partial(self._strike_all, chosen, kind, 0.004))
                chosen = []
            elif when == "slow":
                self._at_fence(ledger_id, partial(self._slow_down, chosen))
            try:
                await actors.read_closed(life, process, client, ledger_id)
            except QuorumbookError:
                await self._look(process, client, ledger_id)
                return
            if kind != "none":
                # What answers should have waited for is not there yet; or a checkpoint has been.
                self._strike_all(chosen, kind, 0.02 if when == "slow" else tape.pick((0.1, 0.6)))
            with contextlib.suppress(QuorumbookError):
                await asyncio.sleep(tape.between(0.0, 0.6))
                await actors.read_closed(life, process, client, ledger_id)

    async def _look(self, process: Process, client: SimClient, ledger_id: LedgerId) -> None:
        """Ask what is confirmed."""
        with contextlib.suppress(QuorumbookError):
            reader = await client.open_ledger(ledger_id, password=PASSWORD, recover=False)
            self._life.history.confirmed(ledger_id, process.name, reader.last_add_confirmed)
            await reader.close()

    def _at_fence(self, ledger_id: LedgerId, act: Callable[[], None]) -> None:
        """Act when the metadata say that the ledger is being recovered."""
        tries = 0

        def look() -> None:
            nonlocal tries
            tries += 1
            metadata = self._life.history.ledgers[ledger_id].metadata
            if metadata is not None and metadata.state is not LedgerState.OPEN:
                act()
            elif tries < 200:
                self._kernel.after(100 * MICROSECOND, look)

        look()

    @staticmethod
    def _slow_down(machines: list[BookieMachine]) -> None:
        for machine in machines:
            if machine.process is not None:
                machine.process.threads.slow = 1.0

    def _strike_all(self, chosen: list[BookieMachine], kind: str, within_s: float) -> None:
        for machine in chosen:
            self._later(0.0, within_s, partial(self._strike, machine, kind))

    def _strike(self, machine: BookieMachine, kind: str) -> None:
        if kind == "kill":
            machine.kill()
        else:
            machine.cut_power()
        self._boot(machine)


class _Checkpoints(SearchPhase):
    """Cut power while files are being written, of one or of all."""

    def _act(self) -> None:
        tape = self._tape
        for machine in self._bookies:
            if tape.chance(0.6):
                machine.cut_power_in_job(1 + tape.below(_CALLS_MAX))
        self._later(0.3, 1.0, self._again)

    def _again(self) -> None:
        for machine in self._bookies:
            if machine.process is not None and machine.process.calls_left:
                machine.cut_power()
            if machine.process is None:
                self._boot(machine)
        self._later(0.5, 1.5, self._act)


_PHASES: Mapping[str, Callable[[actors.ActorsLife], SearchPhase]] = {
    "overtaken": _Overtaken,
    "checkpoints": _Checkpoints,
    "fences": fences.Fences,
    "healing": healing.HealingPhase,
    "absences": healing.Absences,
    "splits": splits.Splits,
    "stores": stores.Stores,
    "disks": stores.Disks,
    "shares": shares.Shares,
    "losses": losses.Losses,
    "garbage": losses.Garbage,
    "unanswered": losses.Garbage,
    "singles": singles.Singles,
    "waits": waits.Waits,
    "answers": answers.Answers,
    "members": sharers.Sharers,
    "batches": sharers.Sharers,
    "rivals": sharers.Sharers,
    "etcd": splits.Splits,
    "zookeeper": splits.Splits,
    "keys": keys.Keys,
}
