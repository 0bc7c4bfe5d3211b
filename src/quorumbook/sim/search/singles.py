"""The directed phase ``singles``: a single bookie has an entry that others must have as well.

A script, step by step, which waits until each step has been taken; what it begins with differs.
One ledger at a time, mostly with three bookies, of which the writer or a recovery reaches one; then

replaced    the one is replaced, and another gets what it had
returned    a writer without a spare bookie takes one back that missed entries
striped     entries behind one that a single bookie has are complete
denied      only the bookie that lacks an entry is left to be asked for it
lost        a recovery wrote back what one had, and all lose power
succeeded   a recovery replaces a bookie to which it wrote back, and then the successor
hasty       a recovery hears first from the only bookie that lacks an entry
chosen      a recovery has replaced a bookie that has what it reads next
kept        a recovery dies that wrote back to bookies of its own choice, and told one that the
            metadata name what it made of it (S19)
published   a recovery replaces a bookie, and dies before the new one has what the old one had (S11)

and the writer or the recovery dies, and what is promised must be found without the one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from quorumbook.errors import QuorumbookError
from quorumbook.ids import LedgerId
from quorumbook.sim.actors import ledgers as actors
from quorumbook.sim.cluster import BookieMachine
from quorumbook.sim.histories.ledgers import PASSWORD, LedgerHistory
from quorumbook.sim.kernel import MILLISECOND, SECOND
from quorumbook.sim.process import SYNC_NS, Machine, Process
from quorumbook.sim.search.phase import ALONE, SearchPhase

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
    # Nobody gives a bookie up that is only out of reach.
    "timeout_s": 5.0,
}
_SLOW_SYNC_NS = 80 * MILLISECOND
_LOOK_EVERY_S = 0.002
#: What takes a few messages is over by then.
_MOMENT_S = 0.03
#: So many entries does a recovery read at a time (``plan``).
_BATCH = 4


class _NotReachedError(Exception):
    """A step was not taken in time."""


@dataclass(frozen=True)
class _OneLedger:
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


class Singles(SearchPhase):
    """One script after the other."""

    def __init__(self, life: actors.ActorsLife) -> None:
        super().__init__(life)
        self._clients = 0
        self._network = life.cluster.network

    def begin(self) -> None:
        """Begin."""
        self._client("s", self._direct)

    async def _direct(self, process: Process) -> None:
        del process
        scripts = (
            self._replaced,
            self._returned,
            self._striped,
            self._denied,
            self._lost,
            self._succeeded,
            self._hasty,
            self._chosen,
            self._kept,
            self._published,
        )
        while self._life.is_rough:
            with contextlib.suppress(_NotReachedError):
                await self._tape.pick(scripts)()
            with contextlib.suppress(_NotReachedError):
                await self._mend()

    async def _mend(self) -> None:
        self._network.heal_all()
        for machine in self._bookies:
            machine.sync_ns = SYNC_NS
            machine.boot_up()
        for client in self._life.cluster.clients:
            if client.name[0] in "wh":
                self._end(client.kill)
        await self._until(lambda: self._life.cluster.is_whole, 5.0)

    # The scripts

    async def _replaced(self) -> None:
        ledger, (first, second, third), spares = await self._written((3, 3, 2))
        self._keep_from(ledger.writer, second, third)
        self._let_connect_only(ledger.writer, spares)
        ledger.burst(self._tape.pick((1, 2, 3)))
        await asyncio.sleep(_MOMENT_S)
        self._end(first.kill)
        # Whoever has everything may go unnoticed.
        ledger.burst(1)
        await self._until(lambda: first.name not in self._ensemble_of(ledger), 1.0)
        self._heal(ledger.writer, second)
        await asyncio.sleep(_MOMENT_S)
        await self._found_without(ledger, second)

    async def _returned(self) -> None:
        ledger, (first, second, third), spares = await self._written((3, 3, 2))
        for machine in (*spares, first):
            self._end(machine.kill)
        await self._append(ledger, 1)
        self._keep_from(ledger.writer, third)
        ledger.burst(self._tape.pick((1, 2, 3)))
        await asyncio.sleep(_MOMENT_S)
        first.boot_up()
        await self._until(lambda: first.serves, 2.0)
        with contextlib.suppress(_NotReachedError):
            await self._until(lambda: ledger.is_acknowledged, 2.0)
        await self._found_without(ledger, second)

    async def _striped(self) -> None:
        ledger, members, _ = await self._written(self._tape.pick(((3, 2, 2), (4, 2, 2))))
        away = self._tape.pick(members)
        self._keep_from(ledger.writer, away)
        ledger.burst(self._tape.pick((4, 6, 8)))
        await asyncio.sleep(_MOMENT_S)
        members.remove(away)
        await self._found_without(ledger, self._tape.pick(members))

    async def _denied(self) -> None:
        ledger, (first, second, third), _ = await self._written((3, 3, 2))
        self._keep_from(ledger.writer, third)
        await self._append(ledger, self._tape.pick((1, 2)))
        self._end(ledger.writer.kill)
        # It asks all, and waits for no more than it needs.
        reader = self._visit(ledger, actors.read_closed, cut_off=(third,))
        await self._until(lambda: self._is_closed(ledger), 1.0)
        self._end(reader.kill)
        self._end(first.kill)
        self._end(second.kill)
        self._visit(ledger, actors.read_closed)
        await asyncio.sleep(0.3)

    async def _lost(self) -> None:
        ledger = await self._torn()
        self._visit(ledger, actors.read_closed)
        # What was not waited for is not synced yet.
        await self._until(lambda: self._is_closed(ledger), 1.0, 0.0001)
        for machine in self._bookies:
            self._end(machine.cut_power)

    async def _succeeded(self) -> None:
        ledger, (first, second, third), spares = await self._written((3, 3, 2))
        confirmed = ledger.sent
        self._keep_from(ledger.writer, second, third)
        # More than a recovery reads at a time: a bookie has some of it when it fails.
        ledger.burst(self._tape.pick((6, 10)))
        await asyncio.sleep(_MOMENT_S)
        self._end(ledger.writer.kill)
        first.sync_ns, second.sync_ns = _SLOW_SYNC_NS, _SLOW_SYNC_NS // 8
        recovery = self._visit(ledger, actors.read_closed, cut_off=(third,))
        chosen = self._let_connect_only(recovery, spares)
        await self._until(lambda: self._last_entry_of(second, ledger) >= confirmed, 1.0)
        await asyncio.sleep(0.0005)
        self._end(second.kill)
        await self._until(lambda: bool(chosen), 1.0)
        # It is a member in the metadata, and denies what it did not get.
        second.boot_up()
        # The first has answered by then.
        await asyncio.sleep(2 * _SLOW_SYNC_NS / SECOND)
        self._heal(recovery, *spares)
        self._end(chosen[0].kill)
        await self._until(lambda: self._is_closed(ledger), 1.0)
        self._end(recovery.kill)

    async def _hasty(self) -> None:
        ledger, (first, second, third), _ = await self._written((3, 3, 2))
        self._keep_from(ledger.writer, third)
        await self._append(ledger, self._tape.pick((1, 2)))
        self._end(ledger.writer.kill)
        recovery = self._visit(ledger, actors.read_closed)

        def hold() -> None:
            for machine in (first, second):
                self._network.cut(machine.name, recovery.name)

        # It has asked for the last entry, and asks for more.
        self._network.at_piece(recovery.name, third.name, 2, hold)
        with contextlib.suppress(_NotReachedError):
            await self._until(lambda: self._is_closed(ledger), 0.2)
        for machine in (first, second):
            self._network.heal(machine.name, recovery.name)
        await self._until(lambda: self._is_closed(ledger), 1.0)

    async def _chosen(self) -> None:
        ledger, (first, second, third), _ = await self._written((3, 3, 2))
        self._keep_from(ledger.writer, third)
        # None of them tells that another one is confirmed: a recovery reads them all.
        await self._append(ledger, 10)
        self._end(ledger.writer.kill)
        recovery = self._visit(ledger, actors.read_closed)
        self._kill_at_write_back(recovery, second)
        await self._until(lambda: second.process is None, 1.0)
        self._network.cut(first.name, recovery.name)
        second.boot_up()
        with contextlib.suppress(_NotReachedError):
            await self._until(lambda: self._is_closed(ledger), 0.3)
        self._network.heal(first.name, recovery.name)
        await self._until(lambda: self._is_closed(ledger), 1.0)

    async def _kept(self) -> None:
        ledger, (first, second, third), spares = await self._written((3, 3, 2))
        confirmed = ledger.sent
        self._keep_from(ledger.writer, second, third)
        # What it reads first it writes back first, and tells with what it writes back later.
        ledger.burst(10)
        await asyncio.sleep(_MOMENT_S)
        self._end(ledger.writer.kill)
        for machine in (first, *spares):
            machine.sync_ns = _SLOW_SYNC_NS // 16
        recovery = self._visit(ledger, actors.read_closed)
        self._kill_at_write_back(recovery, second, third)
        await self._until(
            lambda: self._last_entry_of(spares[0], ledger) >= confirmed + _BATCH, 1.0, 0.0005
        )
        self._end(recovery.kill)
        second.boot_up()
        third.boot_up()
        await self._until(lambda: second.serves and third.serves, 2.0)
        self._visit(ledger, actors.read_closed)
        await self._until(lambda: self._is_closed(ledger), 2.0)

    async def _published(self) -> None:
        ledger, (first, second, third), spares = await self._written((3, 3, 2))
        self._keep_from(ledger.writer, second)
        await self._append(ledger, 1)
        self._end(ledger.writer.kill)
        late = [second, *spares]
        for machine in late:
            machine.sync_ns = _SLOW_SYNC_NS
        recovery = self._visit(ledger, actors.read_closed)
        self._kill_at_write_back(recovery, third)
        names = {each.name for each in spares}
        await self._until(
            lambda: self._is_closed(ledger) or not names.isdisjoint(self._ensemble_of(ledger)), 2.0
        )
        if not self._is_closed(ledger):
            self._end(recovery.kill)
            self._end(first.kill)
            for machine in late:
                self._end(machine.cut_power)
            await asyncio.sleep(_MOMENT_S)
            for machine in late:
                machine.sync_ns = SYNC_NS
                machine.boot_up()
            await self._until(lambda: all(machine.serves for machine in late), 2.0)
            self._visit(ledger, actors.read_closed)
            await self._until(lambda: self._is_closed(ledger), 2.0)

    # Their steps

    async def _written(
        self, quorums: tuple[int, int, int]
    ) -> tuple[_OneLedger, list[BookieMachine], list[BookieMachine]]:
        """Return a ledger that is being written, its bookies in any order, and the other ones."""
        life, tape = self._life, self._tape
        made: list[_OneLedger] = []

        async def write(process: Process) -> None:
            async with actors.started(life, process) as client:
                with contextlib.suppress(QuorumbookError):
                    writer = await client.create_ledger(
                        ensemble_size=quorums[0],
                        write_quorum_size=quorums[1],
                        ack_quorum_size=quorums[2],
                        digest_type=life.plan.digest_type,
                        password=PASSWORD,
                    )
                    history, who = life.history, process.name
                    ledger = history.created(
                        writer.id, who, quorums[2], lambda: writer.last_add_confirmed
                    )
                    appends = actors.Appends(life, process, writer, ledger, False, False)
                    made.append(_OneLedger(writer.id, process.machine, appends, ledger))
                await asyncio.get_running_loop().create_future()

        self._client("w", write)
        await self._until(lambda: bool(made), 2.0)
        ledger = made[0]
        await self._append(ledger, tape.pick((1, 2)))
        names = self._ensemble_of(ledger)
        members = [each for each in self._bookies if each.name in names]
        others = [each for each in self._bookies if each.name not in names]
        shuffled = [members.pop(tape.below(len(members))) for _ in range(len(members))]
        return ledger, shuffled, others

    async def _append(self, ledger: _OneLedger, count: int) -> None:
        """Have entries appended, and wait until they are acknowledged."""
        wanted = ledger.sent + count
        ledger.burst(count)
        await self._until(lambda: ledger.sent == wanted and ledger.is_acknowledged, 1.0)

    async def _torn(self) -> _OneLedger:
        """Return a ledger that lost its writer when one bookie had its last entries."""
        ledger, (_, second, third), _ = await self._written((3, 3, 2))
        self._keep_from(ledger.writer, second, third)
        ledger.burst(self._tape.pick((1, 2)))
        await asyncio.sleep(_MOMENT_S)
        self._end(ledger.writer.kill)
        return ledger

    async def _found_without(self, ledger: _OneLedger, gone: BookieMachine) -> None:
        """End the writer and a bookie, and have the ledger recovered by the others."""
        self._end(ledger.writer.kill)
        self._end(gone.kill)
        for machine in self._bookies:
            if machine is not gone:
                machine.boot_up()
        await asyncio.sleep(_MOMENT_S)
        self._visit(ledger, actors.read_closed)
        await self._until(lambda: self._is_closed(ledger), 2.0)

    async def _until(
        self, is_so: Callable[[], bool], limit_s: float, look_every_s: float = _LOOK_EVERY_S
    ) -> None:
        loop = asyncio.get_running_loop()
        given_up_s = loop.time() + limit_s
        while not is_so():
            if loop.time() >= given_up_s or not self._life.is_rough:
                raise _NotReachedError
            await asyncio.sleep(look_every_s)

    def _end(self, end: Callable[[], None]) -> None:
        """End a process, in no turn of another one."""
        self._kernel.after(0, end)

    def _client(self, kind: str, main: Callable[[Process], Coroutine[Any, Any, None]]) -> Machine:
        self._clients += 1
        machine = self._life.cluster.add_client(f"{kind}{self._clients}")
        machine.start(main)
        return machine

    def _visit(
        self, ledger: _OneLedger, read: Any, *, cut_off: Sequence[BookieMachine] = ()
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

    def _ensemble_of(self, ledger: _OneLedger) -> tuple[str, ...]:
        metadata = self._life.history.ledgers[ledger.ledger_id].metadata
        return () if metadata is None else metadata.last_fragment.ensemble

    def _is_closed(self, ledger: _OneLedger) -> bool:
        metadata = self._life.history.ledgers[ledger.ledger_id].metadata
        return metadata is not None and metadata.is_closed

    def _last_entry_of(self, machine: BookieMachine, ledger: _OneLedger) -> int:
        bookie = machine.bookie
        return -1 if bookie is None else bookie.storage.last_entry_id(ledger.ledger_id)
