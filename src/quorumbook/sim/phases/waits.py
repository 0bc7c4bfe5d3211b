"""The directed phase ``waits``: who is waited for does not come, and nobody may depend on him.

hung        a bookie stands still while the others deny what is behind the end (S04)
pair        every add needs both bookies of a ledger, and one is gone for the recovery (S05)
read_only   all bookies of a ledger take no adds, and are fenced all the same (S10)
idle        a writer has said its last for now, and whoever follows it waits for that (S38)
followed    a ledger is recovered while somebody waits for its next entry (S39)

What is waited for is there within a part of a time-out, or the promise that calls end is broken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from quorumbook.ids import LedgerId
from quorumbook.sim.actors import ledgers as actors
from quorumbook.sim.cluster import BookieMachine, SimClient
from quorumbook.sim.kernel import SECOND
from quorumbook.sim.phases.script import LIMIT_S, MOMENT_S, OneLedger, Script
from quorumbook.sim.process import Process


class Waits(Script):
    """Whoever is waited for."""

    _pause_s = 0.8

    @property
    def _scripts(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return (self._hung, self._pair, self._read_only, self._idle, self._followed)

    async def _hung(self) -> None:
        ledger, members, _ = await self._written((3, 3, 2))
        self._end(ledger.writer.kill)
        still = self._tape.pick(members)
        self._stand_still(still)
        try:
            await self._recovered(ledger, f"{still.name} stands still")
        finally:
            self._go_on(still)

    async def _pair(self) -> None:
        ledger, members, _ = await self._written((2, 2, 2))
        self._end(ledger.writer.kill)
        gone = self._tape.pick(members)
        self._end(gone.kill)
        await self._recovered(ledger, f"{gone.name} is gone")

    async def _read_only(self) -> None:
        ledger, members, _ = await self._written((3, 3, 2))
        self._end(ledger.writer.kill)
        self._take_adds(members, is_so=False)
        try:
            await asyncio.sleep(MOMENT_S)
            await self._recovered(ledger, "its bookies are read-only")
        finally:
            self._take_adds(members, is_so=True)

    async def _idle(self) -> None:
        ledger, _, _ = await self._written((3, 3, 2))
        reader = self._visit(ledger, actors.follow)
        if self._tape.chance(0.5):
            await asyncio.sleep(MOMENT_S)
            await self._append(ledger, 1)
        last = ledger.sent - 1
        what = f"{reader.name} is not shown entry {last}, which was confirmed to an idle writer"
        await self._must(lambda: ledger.history.shown >= last, what, ledger)

    async def _followed(self) -> None:
        ledger, _, _ = await self._written((3, 3, 2))
        has_ended = False

        async def follow(
            life: actors.ActorsLife, process: Process, client: SimClient, ledger_id: LedgerId
        ) -> None:
            nonlocal has_ended
            await actors.follow(life, process, client, ledger_id)
            has_ended = True

        reader = self._visit(ledger, follow)
        await asyncio.sleep(self._tape.between(0, 2 * MOMENT_S))
        self._end(ledger.writer.kill)
        await self._recovered(ledger, f"{reader.name} follows it")
        await self._must(lambda: has_ended, f"{reader.name} is not told of the end", ledger)

    # Their steps

    async def _recovered(self, ledger: OneLedger, though: str) -> None:
        """Have the ledger recovered by somebody who may not wait."""
        self._visit(ledger, actors.read_closed)
        await self._must(
            partial(self._is_closed, ledger), f"the ledger is not closed while {though}", ledger
        )

    def _stand_still(self, machine: BookieMachine) -> None:
        if machine.process is not None:
            # By then nobody needs it to any more, whatever becomes of the script.
            self._kernel.after(0, machine.process.pause, int(2 * LIMIT_S * SECOND))

    def _go_on(self, machine: BookieMachine) -> None:
        if machine.process is not None:
            self._kernel.after(0, machine.process.go_on)

    @staticmethod
    def _take_adds(machines: Sequence[BookieMachine], *, is_so: bool) -> None:
        for machine in machines:
            if machine.process is not None and machine.bookie is not None:
                take = partial(machine.bookie.disks.set_operators_word, is_read_only=not is_so)
                machine.process.loop.deliver(take)
