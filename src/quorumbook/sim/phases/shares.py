"""The directed phase ``shares``: each bookie has its own share of what was sent and answered.

Several small ledgers are written at a time.  Links between a client and a bookie end just before
some piece gets through, one way or the other, and so do bookies, writers and those who recover: so
every entry is on some of its bookies, known to be there or not, and whatever comes next begins with
any step of the one before it undone.  Quorums differ with each ledger, which the plan of a seed
does not allow.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from quorumbook.errors import QuorumbookError
from quorumbook.ids import LedgerId
from quorumbook.sim.actors import ledgers as actors
from quorumbook.sim.cluster import BookieMachine, SimClient
from quorumbook.sim.histories.ledgers import PASSWORD
from quorumbook.sim.kernel import SECOND
from quorumbook.sim.phases.phase import ALONE, SearchPhase
from quorumbook.sim.process import Machine, Process

#: What it wants of the plan.
PLAN: dict[str, Any] = {
    **ALONE,
    "quorums": (3, 3, 2),
    "bookies": 4,
    "writers": 0,
    "payload_size_max": 100,
    "rough_s": 8.0,
    "rechunk": 0.0,
    "slow_syncs": 0.0,
    "flush_interval_s": 3600.0,
    "journal_file_size_bytes": 64 << 10,
    "journals": 1,
    "timeout_s": 0.3,
}
#: With four bookies a failed one of the last has no successor.
_QUORUMS = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (2, 2, 2), (3, 3, 3), (4, 3, 2), (4, 4, 3))
_TABLES = 6
_Visit = Callable[[actors.ActorsLife, Process, SimClient, LedgerId], Coroutine[Any, Any, Any]]
_VISITS: tuple[_Visit, ...] = (
    actors.read_closed,
    actors.read_closed,
    actors.read_confirmed,
    actors.follow,
)
#: Within so many pieces of a link something happens: a recovery sends about eight to a bookie.
_STEPS = (3, 8)


class Shares(SearchPhase):
    """Some ledgers at a time, one after the other at each of the tables."""

    def __init__(self, life: actors.ActorsLife) -> None:
        super().__init__(life)
        self._clients = 0
        self._network = life.cluster.network

    def _act(self) -> None:
        for _ in range(_TABLES):
            self._later(0.0, 0.2, self._deal)

    def _deal(self) -> None:
        """Have a ledger written, then recovered, mostly more than once."""
        tape = self._tape
        made: list[LedgerId] = []
        writer = self._client("w", lambda process: self._write(process, made))
        self._when(lambda: bool(made), 1.0, partial(self._begin, writer, made))
        if tape.chance(0.1):
            self._later(0.3, 1.0, self._cut_power)

    def _begin(self, writer: Machine, made: list[LedgerId]) -> None:
        """Have it followed from its beginning, or others come in a moment."""
        others = [writer]
        if made and self._tape.chance(0.3):
            self._visit(made[0], others, actors.follow)
        self._later(0.0, self._tape.pick((0.1, 0.5)), partial(self._meet, writer, made, others))

    def _client(self, kind: str, main: Callable[[Process], Any]) -> Machine:
        self._clients += 1
        machine = self._life.cluster.add_client(f"{kind}{self._clients}")
        machine.start(main)
        return machine

    # The writer

    async def _write(self, process: Process, made: list[LedgerId]) -> None:
        life, tape = self._life, self._tape
        ensemble_size, write_quorum_size, ack_quorum_size = tape.pick(_QUORUMS)
        async with actors.started(life, process) as client:
            with contextlib.suppress(QuorumbookError):
                writer = await client.create_ledger(
                    ensemble_size=ensemble_size,
                    write_quorum_size=write_quorum_size,
                    ack_quorum_size=ack_quorum_size,
                    digest_type=life.plan.digest_type,
                    password=PASSWORD,
                )
                history, who = life.history, process.name
                ledger = history.created(
                    writer.id, who, ack_quorum_size, lambda: writer.last_add_confirmed
                )
                self._let_links_end(process.machine)
                made.append(writer.id)
                appends = actors.Appends(life, process, writer, ledger, False, False)
                for _ in range(1 + tape.below(4)):
                    appends.check()
                    appends.burst(tape.pick((1, 1, 2, 12)))
                    # Those who recover it come in the middle, too.
                    await asyncio.sleep(tape.pick((0.0, 0.001, 0.02, 0.4)))
                if tape.chance(0.5):
                    # By then somebody has mostly been at the ledger.
                    await asyncio.sleep(tape.between(0.2, 0.8))
                    appends.burst(1 + tape.below(2))
                if appends.pending and tape.chance(0.5):
                    await asyncio.wait(appends.pending)
                if tape.chance(0.5):
                    await actors.close(history, process, writer)
        # Whoever still waits for answers is not to be closed by an end of his own.
        await asyncio.get_running_loop().create_future()

    # Those who come behind it

    def _meet(self, writer: Machine, made: list[LedgerId], others: list[Machine]) -> None:
        tape = self._tape
        if not made:
            self._deal()
            return
        ending = tape.pick(("dies", "stands still", "goes on", "half"))
        if ending == "dies":
            writer.kill()
        elif ending == "stands still" and writer.process is not None:
            writer.process.pause(int(tape.between(0.05, 1.0) * SECOND))
        if ending == "half":
            self._fence_half(made[0], writer, others)
            return
        self._visit(made[0], others, tape.pick(_VISITS))
        for _ in range(tape.below(3)):
            visit = partial(self._visit, made[0], others, tape.pick(_VISITS))
            self._later(0.0, 0.8, visit)
        self._later(0.8, 1.6, partial(self._part, others))

    def _fence_half(self, ledger_id: LedgerId, writer: Machine, others: list[Machine]) -> None:
        """Let one bookie hear of the fence, which the writer does not hear, and others hardly."""
        history, network = self._life.history, self._network
        metadata = history.ledgers[ledger_id].metadata
        if metadata is None or writer.process is None:
            self._part(others)
            return
        writer.process.pause(None)
        alone, *rest = metadata.last_fragment.ensemble
        network.cut(writer.name, alone)
        hunter = f"h{self._clients + 1}"
        self._visit(ledger_id, others, actors.read_closed, ends_links=False)
        for name in rest:
            if self._tape.chance(0.85):
                reset = partial(network.reset_between, hunter, name)
                network.at_piece(hunter, name, 1, partial(self._kernel.after, 0, reset))

        def is_closed() -> bool:
            now = history.ledgers[ledger_id].metadata
            return now is None or now.is_closed

        self._when(is_closed, 1.5, partial(self._after_half, writer, others))

    def _after_half(self, writer: Machine, others: list[Machine]) -> None:
        if writer.process is not None:
            writer.process.go_on()
        self._later(0.5, 1.0, partial(self._part, others))

    def _visit(
        self, ledger_id: LedgerId, others: list[Machine], read: _Visit, *, ends_links: bool = True
    ) -> None:
        """Have somebody recover the ledger, look what is confirmed of it, or follow it."""

        async def visit(process: Process) -> None:
            async with actors.started(self._life, process) as client:
                if ends_links:
                    self._let_links_end(process.machine)
                with contextlib.suppress(QuorumbookError):
                    await read(self._life, process, client, ledger_id)

        others.append(self._client("h", visit))

    def _part(self, others: list[Machine]) -> None:
        """Heal what was cut at this table, and go on with another ledger."""
        for machine in others:
            # What a link holds back of one that is dead never arrives.
            if self._tape.chance(0.7):
                machine.kill()
            self._heal(machine)
        self._deal()

    # What happens on links

    def _let_links_end(self, client: Machine) -> None:
        """Have some links of a client end at some step of what it does, often all the same way."""
        tape = self._tape
        draw = partial(self._draw, tape.pick(_STEPS))
        same = draw() if tape.chance(0.6) else None
        for machine in self._bookies:
            if tape.chance(0.4):
                self._let_link_end(client, machine, *(same or draw()))

    def _draw(self, steps: int) -> tuple[int, bool, str]:
        """Return at which piece, of which direction, and what happens."""
        kind = self._tape.pick(("cut", "cut", "cut", "reset", "reset", "crash", "die"))
        return 1 + self._tape.below(steps), self._tape.chance(0.6), kind

    def _let_link_end(
        self, client: Machine, machine: BookieMachine, step: int, is_forth: bool, kind: str
    ) -> None:
        ends = (client.name, machine.name) if is_forth else (machine.name, client.name)
        act: Callable[[], None]
        if kind == "cut":
            act = partial(self._cut, client, *ends)
        elif kind == "crash":
            act = partial(self._crash, machine)
        else:
            end = client.kill if kind == "die" else partial(self._network.reset_between, *ends)
            # Not in the middle of what the network does with its connections.
            act = partial(self._kernel.after, 0, end)
        self._network.at_piece(*ends, step, act)

    def _cut(self, client: Machine, source: str, target: str) -> None:
        self._network.cut(source, target)
        if self._tape.chance(0.3):
            self._later(0.05, 0.6, partial(self._heal, client))

    def _heal(self, client: Machine) -> None:
        for machine in self._bookies:
            self._network.heal(client.name, machine.name)
            self._network.heal(machine.name, client.name)

    def _crash(self, machine: BookieMachine) -> None:
        self._kernel.after(0, self._tape.pick((machine.kill, machine.cut_power)))
        self._boot(machine)

    def _cut_power(self) -> None:
        for machine in self._bookies:
            machine.cut_power()
            self._boot(machine)
