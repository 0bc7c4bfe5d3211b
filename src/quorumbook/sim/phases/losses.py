"""The directed phases ``losses`` and ``garbage``: what bookies forget, and what they must not.

losses      ``shares``, and one bookie's disk is lost for good now and then
garbage     bookies collect garbage all the time, and one ledger lies there for so long that whoever
            takes it for deleted has collected it; the metadata are in a ZooKeeper
unanswered  ``garbage`` in a store without servers

In ``losses`` the bookie begins anew on an empty disk, under its name and as a new one, and its
cookie is deleted as an operator does it.  What it had promised, fences as well, it does not know
any more: it must neither deny what it had nor take what it would have refused.  So many copies as
others have stay.

In the others ledgers have ids of several ranges, which lie apart in the metadata (S57).

outdated   a bookie asks a server of the metadata store that is late and does not know the ledger;
           in the middle of that the server cannot be asked (S58, S59)
silent     nobody is answered by the metadata store for as long as deletions take (S58, S59)
emptied    a bookie is started on an empty disk, which is not the one it has (S78)
forgotten  a bookie is started, and somebody has deleted its cookie (S78)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from quorumbook.ids import LedgerId
from quorumbook.sim.actors import ledgers as actors
from quorumbook.sim.cluster import BookieMachine
from quorumbook.sim.disks.disk import SimDisk
from quorumbook.sim.phases import script, shares
from quorumbook.sim.phases.script import NotReachedError, Script

#: What it wants of the plan.
PLAN: dict[str, Any] = shares.PLAN
GARBAGE: dict[str, Any] = {
    **script.PLAN,
    "zookeepers": 3,
    "bookies": 3,
    "ways": ("collects",),
    "flush_interval_s": 0.2,
    "rough_s": 24.0,
}
UNANSWERED: dict[str, Any] = {**GARBAGE, "zookeepers": 0}
#: Ledgers of different ones are not listed together.
_RANGES = (0, 20_000, 3_000_000, 1 << 31)
#: A ledger is suspected by then, and must not be collected: that takes six seconds (``plan``).
_SUSPECTED_S = 3.5
#: So long nobody is asked.
_AWAY_S = 1.5
#: And so long nobody is answered: deletions take less.
_SILENT_S = 8.0


class Losses(shares.Shares):
    """Ledgers beside a bookie that forgets."""

    def __init__(self, life: actors.ActorsLife) -> None:
        super().__init__(life)
        self._forgetful = self._tape.pick(self._bookies)

    def begin(self) -> None:
        """Begin."""
        super().begin()
        self._later(0.5, 2.0, self._lose)

    def _lose(self) -> None:
        # A bookie that starts reads its cookie, and must find it as it is.
        if self._forgetful.serves:
            self._forgetful.lose_disk()
            self._later(0.5, 1.5, self._lose)
        else:
            self._later(0.05, 0.1, self._lose)


class Garbage(Script):
    """Ledgers that lie there."""

    def __init__(self, life: actors.ActorsLife) -> None:
        super().__init__(life)
        self._ids = 0

    @property
    def _scripts(self) -> Sequence[Callable[[], Awaitable[None]]]:
        if self._life.cluster.zookeeper is not None:
            return (self._outdated, self._emptied)
        return (self._silent, self._emptied, self._forgotten)

    def _next_id(self) -> LedgerId:
        self._ids += 1
        return self._tape.pick(_RANGES) + self._ids

    async def _outdated(self) -> None:
        machine = self._tape.pick(self._bookies)
        late = machine.server
        if late is None:
            raise NotReachedError
        others = [each for each in self._life.cluster.servers if each is not late]
        for server in others:
            self._part(machine.name, server.name)
        late.is_late = True
        try:
            await self._written((3, 3, 2), ledger_id=self._next_id())
            await asyncio.sleep(_SUSPECTED_S)
            self._end(late.machine.kill)
            await asyncio.sleep(_AWAY_S)
            late.boot_up()
            await asyncio.sleep(_SUSPECTED_S)
        finally:
            late.boot_up()
            late.go_on()

    async def _silent(self) -> None:
        await self._written((3, 3, 2), ledger_id=self._next_id())
        tree = self._life.cluster.tree
        tree.drops = 1.0
        await asyncio.sleep(_SILENT_S)
        tree.drops = 0.0

    async def _emptied(self) -> None:
        machine = await self._one_of_a_ledger()

        def empty() -> None:
            machine.kill()
            machine.take_wrong_disk(SimDisk())
            machine.boot_up()

        self._end(empty)
        await self._until(lambda: machine.has_wrong_disk, 1.0)
        await self._until(lambda: not machine.has_wrong_disk and machine.serves, 10.0)

    async def _forgotten(self) -> None:
        machine = await self._one_of_a_ledger()
        self._end(machine.lose_cookie)
        await self._until(lambda: machine.has_lost_cookie, 1.0)
        await self._until(lambda: not machine.has_lost_cookie and machine.serves, 10.0)

    async def _one_of_a_ledger(self) -> BookieMachine:
        await self._written((3, 3, 2), ledger_id=self._next_id())
        return self._tape.pick(self._bookies)

    def _part(self, one: str, other: str) -> None:
        self._network.cut(one, other)
        self._network.cut(other, one)
