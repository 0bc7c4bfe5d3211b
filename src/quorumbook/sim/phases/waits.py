"""The directed phase ``waits``: who is waited for does not come, and nobody may depend on him.

hung        a bookie stands still while the others deny what is behind the end (S04)
pair        every add needs both bookies of a ledger, and one is gone for the recovery (S05)
read_only   all bookies of a ledger take no adds, and are fenced all the same (S10)
idle        a writer has said its last for now, and whoever follows it waits for that (S38)
followed    a ledger is recovered while somebody waits for its next entry (S39)
unread      a client asks for much, and never reads its answers (S84)
clogged     a bookie takes nothing of what a writer goes on to send (S84)
overloaded  bookies get more than they can store for a time (S31, S85)
back        a bookie that failed is reached again (S91)
proven      a bookie that refused an add syncs its journal (S91)
apart       many have seen the same bookie fail (S91)
left        a writer that misses a bookie is closed, and leaves nothing behind (S88)
ended       a journal cannot be synced, and nobody has anything of its bookie any more (S50)

What is waited for is there within a part of a time-out, or the promise that calls end is broken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from quorumbook.client.cluster.bookies import ClientBookies
from quorumbook.client.context import client_context
from quorumbook.client.transport.connection import Channel
from quorumbook.client.waiting.window import ENTRY_OVERHEAD_BYTES
from quorumbook.ids import LedgerId
from quorumbook.sim.actors import ledgers as actors
from quorumbook.sim.cluster import BookieMachine, SimClient
from quorumbook.sim.histories.invariants import Invariant
from quorumbook.sim.kernel import SECOND
from quorumbook.sim.phases import script
from quorumbook.sim.phases.script import LIMIT_S, MOMENT_S, NotReachedError, OneLedger, Script
from quorumbook.sim.plan import LOW_LIMITS
from quorumbook.sim.process import SYNC_NS, Machine, Process

#: What it wants of the plan.
PLAN: dict[str, Any] = {
    **script.PLAN,
    "payload_size_max": 1000,
    "ways": (LOW_LIMITS,),
}
#: How often somebody asks who does not read, and for how much.
_QUESTIONS = 200
_ANSWER_BYTES = 20_000
#: So much may lie there for all of them, or be in the making (``plan.LOW_LIMITS``).
_UNREAD_BYTES_MAX = (1 << 20) + _ANSWER_BYTES
#: How many entries a writer may have pending, of which bookies get so many at once.
_WINDOW = 500
_BURST = 50
#: How many bytes it may have, and how often it tries to have more.
_WINDOW_BYTES = 100_000
_BURSTS = 20
#: How many clients see the same bookie fail, and what is no difference.
_CLIENTS = 5
_TOGETHER_S = 0.005


class Waits(Script):
    """Whoever is waited for."""

    _pause_s = 0.8

    @property
    def _scripts(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return (
            self._hung,
            self._pair,
            self._read_only,
            self._idle,
            self._followed,
            self._unread,
            self._clogged,
            self._overloaded,
            self._back,
            self._proven,
            self._apart,
            self._left,
            self._ended,
        )

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

    async def _unread(self) -> None:
        ledger, members, _ = await self._written((3, 3, 2))
        await self._append(ledger, 20)
        asked = self._tape.pick(members)
        if self._tape.chance(0.7):
            # What is read from a file is under way for a while, and not what lies in a cache.
            self._end(asked.kill)
            await asyncio.sleep(MOMENT_S)
            asked.boot_up()
            await self._until(lambda: asked.serves, 2.0)
        silent, client = await self._user()

        async def ask() -> None:
            channel = client_context(client).bookies.fast(asked.name)
            await channel.connected()
            _transport_of(channel).pause_reading()
            for _ in range(_QUESTIONS):
                channel.batch_read(ledger.ledger_id, 0, 20, _ANSWER_BYTES)

        await self._asked(silent, ask)
        await asyncio.sleep(MOMENT_S)
        bookie = asked.bookie
        if bookie is None:
            raise NotReachedError
        used = bookie.connections.answer_budget.used_bytes
        if used > _UNREAD_BYTES_MAX:
            text = f"{asked.name} holds {used} bytes of answers for one who does not read them"
            self._life.history.violation(Invariant.LIMITS_ARE_KEPT, text, ledger.ledger_id)
        channel = client_context(client).bookies.fast(asked.name)
        what = f"{silent.name} never reads its answers, and is not cut"
        await self._must(lambda: not channel.is_connected, what, ledger)

    async def _clogged(self) -> None:
        ledger, (slow, *_), _ = await self._written((3, 3, 2), max_pending_bytes=_WINDOW_BYTES)
        self._keep_from(ledger.writer, slow)
        writer, most = ledger.appends.writer, self._life.plan.payload_size_max
        for _ in range(_BURSTS):
            if writer.pending_bytes + _BURST * (most + ENTRY_OVERHEAD_BYTES) <= _WINDOW_BYTES:
                ledger.burst(_BURST)
            await asyncio.sleep(MOMENT_S / 10)
        unsent = self._known_to(ledger.writer).fast(slow.name).unsent_bytes
        if unsent > _WINDOW_BYTES:
            text = f"a writer holds {unsent} bytes that {slow.name} does not take"
            self._life.history.violation(Invariant.LIMITS_ARE_KEPT, text, ledger.ledger_id)

    async def _overloaded(self) -> None:
        # Nothing is confirmed without one that sheds load, which would leave a hole there.
        ledger, members, _ = await self._written((3, 3, 3), max_pending_entries=_WINDOW)
        bookies = [each.bookie for each in members if each.bookie is not None]

        def rejected() -> int:
            return sum(each.metrics.adds_rejected for each in bookies)

        before = rejected()
        for machine in members:
            machine.sync_ns = SECOND
        writer = ledger.appends.writer
        for _ in range(_WINDOW // _BURST):
            ledger.burst(_BURST)
            await asyncio.sleep(MOMENT_S / 10)

        async def overdo() -> None:
            if writer.pending_entries == _WINDOW:
                writer.append_nowait(b"too much")

        await self._asked(ledger.writer, overdo)
        if writer.pending_entries > _WINDOW:
            text = f"a writer has {writer.pending_entries} entries pending"
            self._life.history.violation(Invariant.LIMITS_ARE_KEPT, text, ledger.ledger_id)
        what = "bookies that are overloaded say so to nobody"
        await self._must(lambda: rejected() > before, what, ledger)
        for machine in members:
            machine.sync_ns = SYNC_NS
        what = "what was appended to overloaded bookies is not stored when they have room"
        await self._must(lambda: ledger.is_acknowledged, what, ledger)
        if set(self._ensemble_of(ledger)) != {each.name for each in members}:
            text = "bookies were replaced that were only overloaded"
            self._life.history.violation(Invariant.NO_BOOKIE_IS_SHUNNED, text, ledger.ledger_id)

    async def _back(self) -> None:
        machine, client = await self._user()
        failed = self._tape.pick(self._bookies)
        bookies = client_context(client).bookies
        await self._asked(machine, partial(bookies.refusing, [failed.name]))
        self._network.reset_between(machine.name, failed.name)
        await self._until(lambda: bookies.is_suspect(failed.name), 1.0)
        await self._asked(machine, partial(bookies.refusing, [failed.name]))
        if bookies.is_suspect(failed.name):
            text = f"{machine.name} has reached {failed.name} again, and leaves it alone"
            self._life.history.violation(Invariant.NO_BOOKIE_IS_SHUNNED, text)

    async def _proven(self) -> None:
        ledger, (failed, *_), _ = await self._written((3, 3, 2))
        bookies = self._known_to(ledger.writer)
        self._take_adds([failed], is_so=False)
        try:
            await asyncio.sleep(MOMENT_S)
            await self._append(ledger, 1)
            await self._until(lambda: bookies.is_suspect(failed.name), 1.0)
            what = f"{failed.name} can sync its journal, and is left alone"
            await self._must(lambda: not bookies.is_suspect(failed.name), what, ledger)
        finally:
            self._take_adds([failed], is_so=True)

    async def _apart(self) -> None:
        users = [await self._user(quarantine_s=1.0) for _ in range(_CLIENTS)]
        failed = self._tape.pick(self._bookies)
        known = [client_context(client).bookies for _, client in users]
        for (machine, _), bookies in zip(users, known, strict=True):
            await self._asked(machine, partial(bookies.refusing, [failed.name]))
        self._end(failed.kill)
        await self._until(lambda: all(each.is_suspect(failed.name) for each in known), 1.0)
        loop, ends_s = asyncio.get_running_loop(), dict[int, float]()

        def are_over() -> bool:
            for number, bookies in enumerate(known):
                if number not in ends_s and not bookies.is_suspect(failed.name):
                    ends_s[number] = loop.time()
            return len(ends_s) == len(known)

        await self._until(are_over, LIMIT_S)
        if max(ends_s.values()) - min(ends_s.values()) < _TOGETHER_S:
            text = f"{_CLIENTS} clients come back to {failed.name} at the same time"
            self._life.history.violation(Invariant.NO_BOOKIE_IS_SHUNNED, text)

    async def _left(self) -> None:
        ledger, (gone, *_), spares = await self._written((3, 3, 2))
        process = ledger.writer.process
        if process is None:
            raise NotReachedError
        await asyncio.sleep(MOMENT_S)
        before = process.loop.tasks_under_way
        for machine in (gone, *spares):
            self._end(machine.kill)
        await self._append(ledger, self._tape.pick((1, 2)))
        await self._until(lambda: ledger.appends.writer.is_degraded, 1.0)
        await self._asked(ledger.writer, ledger.appends.writer.close)
        what = "a writer that was closed leaves tasks behind"
        await self._must(lambda: process.loop.tasks_under_way <= before, what, ledger)

    async def _ended(self) -> None:
        ledger, (machine, *_), _ = await self._written((3, 3, 2))
        process = machine.process
        machine.was_struck = True
        machine.disk.faults.fail("sync", ".txn", at=1)
        ledger.burst(1)
        await self._must(
            lambda: machine.process is not process or not machine.serves,
            f"{machine.name} goes on when nobody knows what its journal has",
            ledger,
            broken=Invariant.BOOKIES_START_AND_STAY,
        )

    # Their steps

    async def _recovered(self, ledger: OneLedger, though: str) -> None:
        """Have the ledger recovered by somebody who may not wait."""
        self._visit(ledger, actors.read_closed)
        await self._must(
            partial(self._is_closed, ledger), f"the ledger is not closed while {though}", ledger
        )

    def _known_to(self, machine: Machine) -> ClientBookies:
        clients = self._life.cluster.open_clients
        return client_context(next(each for each in clients if each.name == machine.name)).bookies

    def _stand_still(self, machine: BookieMachine) -> None:
        if machine.process is not None:
            # By then nobody needs it to any more, whatever becomes of the script.
            self._kernel.after(0, machine.process.pause, int(2 * LIMIT_S * SECOND))

    def _go_on(self, machine: BookieMachine) -> None:
        if machine.process is not None:
            self._kernel.after(0, machine.process.go_on)

    def _take_adds(self, machines: Sequence[BookieMachine], *, is_so: bool) -> None:
        for machine in machines:
            if machine.bookie is not None:
                take = partial(machine.bookie.disks.set_operators_word, is_read_only=not is_so)
                self._deliver(machine, take)


def _transport_of(channel: Channel) -> asyncio.Transport:
    stream = channel._stream  # noqa: SLF001 - no client would stop reading
    if stream is None or stream.transport is None:
        raise NotReachedError
    return stream.transport
