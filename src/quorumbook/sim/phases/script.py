"""A directed phase that is a set of scripts: one after the other, as the tape picks them.

A script goes on step by step, and waits until each step has been taken; what it begins with
differs.  One ledger at a time, mostly with three bookies.  A step that is not taken in time ends
its script, and everything is mended before the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from quorumbook.errors import QuorumbookError
from quorumbook.ids import LedgerId
from quorumbook.sim.actors import ledgers as actors
from quorumbook.sim.cluster import BookieMachine, SimClient
from quorumbook.sim.histories.invariants import Invariant
from quorumbook.sim.histories.ledgers import PASSWORD, LedgerHistory
from quorumbook.sim.kernel import MILLISECOND
from quorumbook.sim.phases.phase import ALONE, SearchPhase
from quorumbook.sim.process import SYNC_NS, Machine, Process

T = TypeVar("T")
#: What it wants of the plan.
PLAN: dict[str, Any] = {
    **ALONE,
    "quorums": (3, 3, 2),
    "bookies": 5,
    "writers": 0,
    "payload_size_max": 100,
    "rough_s": 6.0,
    "rechunk": 0.0,
    "slow_syncs": 0.0,
    "flush_interval_s": 3600.0,
    "journal_file_size_bytes": 64 << 10,
    "journals": 1,
    "ledger_directories": 1,
    # Nobody gives a bookie up that is only out of reach.
    "timeout_s": 5.0,
}
SLOW_SYNC_NS = 80 * MILLISECOND
_LOOK_EVERY_S = 0.002
#: Half of the shortest time-out that may be waited for.
LIMIT_S = 2.5
#: All time-outs of a call are over by then.
_ANSWER_S = 30.0
#: What takes a few messages is over by then.
MOMENT_S = 0.03
#: So many entries does a recovery read at a time (``plan``).
BATCH = 4


class NotReachedError(Exception):
    """A step was not taken in time."""


@dataclass(frozen=True)
class OneLedger:
    """One that is written."""

    ledger_id: LedgerId
    writer: Machine
    appends: actors.Appends
    history: LedgerHistory

    @property
    def sent(self) -> int:
        """How many entries were appended."""
        return len(self.history.sent)

    @property
    def is_acknowledged(self) -> bool:
        """Tell whether nothing is waited for."""
        return not self.appends.pending

    def burst(self, count: int) -> None:
        """Have entries appended."""
        if self.writer.process is not None:
            self.writer.process.loop.deliver(self.appends.burst, count)


class Script(SearchPhase):
    """One script after the other."""

    #: How long nothing happens between two, at most.
    _pause_s = 0.0

    def __init__(self, life: actors.ActorsLife) -> None:
        super().__init__(life)
        self._clients = 0
        self._network = life.cluster.network

    @property
    def _scripts(self) -> Sequence[Callable[[], Awaitable[None]]]:
        raise NotImplementedError

    def begin(self) -> None:
        """Begin."""
        self._client("s", self._direct)

    async def _direct(self, process: Process) -> None:
        del process
        while self._life.is_rough:
            with contextlib.suppress(NotReachedError):
                await self._tape.pick(self._scripts)()
            with contextlib.suppress(NotReachedError):
                await self._mend()
            if self._pause_s:
                await asyncio.sleep(self._tape.between(0, self._pause_s))

    async def _mend(self) -> None:
        self._network.heal_all()
        for machine in self._bookies:
            machine.sync_ns = SYNC_NS
            machine.boot_up()
        for client in self._life.cluster.clients:
            if client.name[0] in "wh":
                self._end(client.kill)
        await self._until(lambda: self._life.cluster.is_whole, 5.0)

    # Steps

    async def _written(
        self, quorums: tuple[int, int, int], count: int | None = None, **options: Any
    ) -> tuple[OneLedger, list[BookieMachine], list[BookieMachine]]:
        """Return a ledger that is being written, its bookies in any order, and the other ones.

        Args:
            quorums: Its sizes.
            count: How many entries it has; some if not given.
            options: What else its writer wants.
        """
        life, tape = self._life, self._tape
        made: list[OneLedger] = []

        async def write(process: Process) -> None:
            async with actors.started(life, process) as client:
                with contextlib.suppress(QuorumbookError):
                    writer = await client.create_ledger(
                        ensemble_size=quorums[0],
                        write_quorum_size=quorums[1],
                        ack_quorum_size=quorums[2],
                        digest_type=life.plan.digest_type,
                        password=PASSWORD,
                        **options,
                    )
                    history, who = life.history, process.name
                    ledger = history.created(
                        writer.id, who, quorums[2], lambda: writer.last_add_confirmed
                    )
                    has_chosen_ids = "explicit_entry_ids" in options
                    appends = actors.Appends(life, process, writer, ledger, False, has_chosen_ids)
                    made.append(OneLedger(writer.id, process.machine, appends, ledger))
                await asyncio.get_running_loop().create_future()

        self._client("w", write)
        await self._until(lambda: bool(made), 2.0)
        ledger = made[0]
        await self._append(ledger, tape.pick((1, 2)) if count is None else count)
        names = self._ensemble_of(ledger)
        members = [each for each in self._bookies if each.name in names]
        others = [each for each in self._bookies if each.name not in names]
        shuffled = [members.pop(tape.below(len(members))) for _ in range(len(members))]
        return ledger, shuffled, others

    async def _append(self, ledger: OneLedger, count: int) -> None:
        """Have entries appended, and wait until they are acknowledged."""
        wanted = ledger.sent + count
        ledger.burst(count)
        await self._until(lambda: ledger.sent == wanted and ledger.is_acknowledged, 1.0)

    async def _torn(self) -> OneLedger:
        """Return a ledger that lost its writer when one bookie had its last entries."""
        ledger, (_, second, third), _ = await self._written((3, 3, 2))
        self._keep_from(ledger.writer, second, third)
        ledger.burst(self._tape.pick((1, 2)))
        await asyncio.sleep(MOMENT_S)
        self._end(ledger.writer.kill)
        return ledger

    async def _found_without(self, ledger: OneLedger, gone: BookieMachine) -> None:
        """End the writer and a bookie, and have the ledger recovered by the others."""
        self._end(ledger.writer.kill)
        self._end(gone.kill)
        for machine in self._bookies:
            if machine is not gone:
                machine.boot_up()
        await asyncio.sleep(MOMENT_S)
        self._visit(ledger, actors.read_closed)
        await self._until(lambda: self._is_closed(ledger), 2.0)

    async def _delete(self, ledger: OneLedger) -> None:
        """End the writer, and have somebody delete the ledger."""

        async def delete(
            life: actors.ActorsLife, process: Process, client: SimClient, ledger_id: int
        ) -> None:
            life.history.doomed(ledger_id, process.name)
            await client.delete_ledger(ledger_id)

        self._end(ledger.writer.kill)
        self._visit(ledger, delete)
        await self._until(lambda: self._life.history.is_gone(ledger.ledger_id), 2.0)

    async def _until(
        self, is_so: Callable[[], bool], limit_s: float, look_every_s: float = _LOOK_EVERY_S
    ) -> None:
        loop = asyncio.get_running_loop()
        given_up_s = loop.time() + limit_s
        while not is_so():
            if loop.time() >= given_up_s or not self._life.is_rough:
                raise NotReachedError
            await asyncio.sleep(look_every_s)

    async def _must(
        self,
        is_so: Callable[[], bool],
        what: str,
        ledger: OneLedger | None = None,
        *,
        within_s: float = LIMIT_S,
        broken: Invariant = Invariant.EVERY_CALL_ENDS,
        look_every_s: float = _LOOK_EVERY_S,
    ) -> None:
        """Wait for what has to happen, by default within a part of a time-out.

        Args:
            is_so: Tells whether it has.
            what: What is told if it does not.
            ledger: The ledger that this is about, if it is about one.
            within_s: How long it may take.
            broken: The promise that is broken then.
            look_every_s: How often that is looked at.
        """
        try:
            await self._until(is_so, within_s, look_every_s)
        except NotReachedError:
            if self._life.is_rough:
                ledger_id = None if ledger is None else ledger.ledger_id
                self._life.history.violation(broken, what, ledger_id)
            raise

    def _ask(self, machine: Machine, ask: Callable[[], Awaitable[T]]) -> list[T | QuorumbookError]:
        """Have a process ask for something; what it is told will be in the list."""
        told: list[T | QuorumbookError] = []

        async def run() -> None:
            try:
                told.append(await ask())
            except QuorumbookError as error:
                told.append(error)
            except Exception as error:  # nobody awaits it, so nobody else would hear of it
                wrong = {"message": "what it is asked to do ends", "exception": error}
                asyncio.get_running_loop().call_exception_handler(wrong)

        process = machine.process
        if process is None:
            raise NotReachedError
        process.loop.deliver(lambda: process.loop.create_task(run()))
        return told

    async def _asked(
        self, machine: Machine, ask: Callable[[], Awaitable[T]]
    ) -> T | QuorumbookError:
        """Have a process ask for something, and return what it is told."""
        told = self._ask(machine, ask)
        await self._until(lambda: bool(told) or machine.process is None, _ANSWER_S)
        if not told:
            raise NotReachedError
        return told[0]

    def _end(self, end: Callable[[], None]) -> None:
        """End a process, in no turn of another one."""
        self._kernel.after(0, end)

    def _client(self, kind: str, main: Callable[[Process], Coroutine[Any, Any, None]]) -> Machine:
        self._clients += 1
        machine = self._life.cluster.add_client(f"{kind}{self._clients}")
        machine.start(main)
        return machine

    async def _user(self, **options: Any) -> tuple[Machine, SimClient]:
        """Return a client that was started, and its machine."""
        clients: list[SimClient] = []

        async def use(process: Process) -> None:
            client = self._life.cluster.client(process, **options)
            with contextlib.suppress(QuorumbookError):
                await client.start()
                clients.append(client)
            await asyncio.get_running_loop().create_future()

        machine = self._client("h", use)
        await self._until(lambda: bool(clients), 2.0)
        return machine, clients[0]

    def _visit(
        self, ledger: OneLedger, read: Any, *, cut_off: Sequence[BookieMachine] = ()
    ) -> Machine:
        """Have somebody recover the ledger who does not reach some bookies."""

        async def visit(process: Process) -> None:
            async with actors.started(self._life, process) as client:
                self._keep_from(process.machine, *cut_off)
                with contextlib.suppress(QuorumbookError):
                    await read(self._life, process, client, ledger.ledger_id)

        return self._client("h", visit)

    def _keep_from(self, client: Machine, *bookies: BookieMachine) -> None:
        for machine in bookies:
            self._network.cut(client.name, machine.name)

    def _kill_at_write_back(self, recovery: Machine, *bookies: BookieMachine) -> None:
        """Kill bookies before a recovery, which has asked them twice, gets to write to them."""
        for machine in bookies:
            end = partial(self._end, machine.kill)
            self._network.at_piece(recovery.name, machine.name, 3, end)

    def _let_connect_only(
        self, client: Machine, bookies: Sequence[BookieMachine]
    ) -> list[BookieMachine]:
        """Keep from some bookies all that a client says, which can choose them all the same.

        Returns:
            Those who were spoken to, in time.
        """
        spoken_to: list[BookieMachine] = []

        def keep(machine: BookieMachine) -> None:
            self._keep_from(client, machine)
            spoken_to.append(machine)

        for machine in bookies:
            self._network.at_piece(client.name, machine.name, 1, partial(keep, machine))
        return spoken_to

    def _heal(self, client: Machine, *bookies: BookieMachine) -> None:
        for machine in bookies:
            self._network.heal(client.name, machine.name)

    def _ensemble_of(self, ledger: OneLedger) -> tuple[str, ...]:
        metadata = self._life.history.ledgers[ledger.ledger_id].metadata
        return () if metadata is None else metadata.last_fragment.ensemble

    def _is_closed(self, ledger: OneLedger) -> bool:
        metadata = self._life.history.ledgers[ledger.ledger_id].metadata
        return metadata is not None and metadata.is_closed

    def _last_entry_of(self, machine: BookieMachine, ledger: OneLedger) -> int:
        bookie = machine.bookie
        return -1 if bookie is None else bookie.storage.last_entry_id(ledger.ledger_id)

    def _deliver(self, machine: BookieMachine, do: Callable[[], object]) -> None:
        if machine.process is not None:
            machine.process.loop.deliver(do)

    def _run(self, machine: BookieMachine, work: Coroutine[Any, Any, None]) -> None:
        """Have a bookie do something that takes its time."""
        if machine.process is not None:
            machine.process.loop.deliver(partial(machine.process.loop.create_task, work))
