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
from collections.abc import Awaitable, Callable, Sequence

from quorumbook.sim.actors import ledgers as actors
from quorumbook.sim.kernel import SECOND
from quorumbook.sim.phases.script import (
    BATCH,
    MOMENT_S,
    SLOW_SYNC_NS,
    NotReachedError,
    Script,
)
from quorumbook.sim.process import SYNC_NS


class Singles(Script):
    """Whatever one bookie has alone."""

    @property
    def _scripts(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return (
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

    async def _replaced(self) -> None:
        ledger, (first, second, third), spares = await self._written((3, 3, 2))
        self._keep_from(ledger.writer, second, third)
        self._let_connect_only(ledger.writer, spares)
        ledger.burst(self._tape.pick((1, 2, 3)))
        await asyncio.sleep(MOMENT_S)
        self._end(first.kill)
        # Whoever has everything may go unnoticed.
        ledger.burst(1)
        await self._until(lambda: first.name not in self._ensemble_of(ledger), 1.0)
        self._heal(ledger.writer, second)
        await asyncio.sleep(MOMENT_S)
        await self._found_without(ledger, second)

    async def _returned(self) -> None:
        ledger, (first, second, third), spares = await self._written((3, 3, 2))
        for machine in (*spares, first):
            self._end(machine.kill)
        await self._append(ledger, 1)
        self._keep_from(ledger.writer, third)
        ledger.burst(self._tape.pick((1, 2, 3)))
        await asyncio.sleep(MOMENT_S)
        first.boot_up()
        await self._until(lambda: first.serves, 2.0)
        with contextlib.suppress(NotReachedError):
            await self._until(lambda: ledger.is_acknowledged, 2.0)
        await self._found_without(ledger, second)

    async def _striped(self) -> None:
        ledger, members, _ = await self._written(self._tape.pick(((3, 2, 2), (4, 2, 2))))
        away = self._tape.pick(members)
        self._keep_from(ledger.writer, away)
        ledger.burst(self._tape.pick((4, 6, 8)))
        await asyncio.sleep(MOMENT_S)
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
        fast = self._tape.pick(self._ensemble_of(ledger))
        for machine in self._bookies:
            machine.sync_ns = SYNC_NS if machine.name == fast else SLOW_SYNC_NS // 16
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
        await asyncio.sleep(MOMENT_S)
        self._end(ledger.writer.kill)
        first.sync_ns, second.sync_ns = SLOW_SYNC_NS, SLOW_SYNC_NS // 8
        recovery = self._visit(ledger, actors.read_closed, cut_off=(third,))
        chosen = self._let_connect_only(recovery, spares)
        await self._until(lambda: self._last_entry_of(second, ledger) >= confirmed, 1.0)
        await asyncio.sleep(0.0005)
        self._end(second.kill)
        await self._until(lambda: bool(chosen), 1.0)
        # It is a member in the metadata, and denies what it did not get.
        second.boot_up()
        # The first has answered by then.
        await asyncio.sleep(2 * SLOW_SYNC_NS / SECOND)
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
        with contextlib.suppress(NotReachedError):
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
        with contextlib.suppress(NotReachedError):
            await self._until(lambda: self._is_closed(ledger), 0.3)
        self._network.heal(first.name, recovery.name)
        await self._until(lambda: self._is_closed(ledger), 1.0)

    async def _kept(self) -> None:
        ledger, (first, second, third), spares = await self._written((3, 3, 2))
        confirmed = ledger.sent
        self._keep_from(ledger.writer, second, third)
        # What it reads first it writes back first, and tells with what it writes back later.
        ledger.burst(10)
        await asyncio.sleep(MOMENT_S)
        self._end(ledger.writer.kill)
        for machine in (first, *spares):
            machine.sync_ns = SLOW_SYNC_NS // 16
        recovery = self._visit(ledger, actors.read_closed)
        self._kill_at_write_back(recovery, second, third)
        await self._until(
            lambda: self._last_entry_of(spares[0], ledger) >= confirmed + BATCH, 1.0, 0.0005
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
            machine.sync_ns = SLOW_SYNC_NS
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
            await asyncio.sleep(MOMENT_S)
            for machine in late:
                machine.sync_ns = SYNC_NS
                machine.boot_up()
            await self._until(lambda: all(machine.serves for machine in late), 2.0)
            self._visit(ledger, actors.read_closed)
            await self._until(lambda: self._is_closed(ledger), 2.0)
