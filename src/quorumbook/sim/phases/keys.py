"""The directed phase ``keys``: all that can come between a ledger's metadata and its key.

One ledger at a time is created, by a client that has its bookies take the key before anybody gets
the ledger.  Right behind its metadata, or at a piece of what is said about the key, one thing
happens:

creator     the client dies, or stands still
bookie      a bookie of it dies, loses power, or stands still
recovery    somebody recovers the ledger, which has no entries
stranger    somebody who saw the id makes bookies know the ledger by a key: mostly another one, at
            one of them or at all; or by the very same bytes

and whoever got the ledger writes to it.  What must hold beside all else: an id that was given up is
deleted when another one is handed out, a ledger whose client died is an empty one that can be
recovered unless a stranger had come, and a stranger alone, whenever he comes, never keeps anybody
from writing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from quorumbook.client.context import client_context
from quorumbook.errors import QuorumbookError
from quorumbook.ids import INVALID_ENTRY_ID, LedgerId
from quorumbook.protocol.digest import digester, master_key
from quorumbook.protocol.v3 import client as v3
from quorumbook.sim.actors import ledgers as actors
from quorumbook.sim.cluster import BookieMachine, SimClient
from quorumbook.sim.histories.invariants import Invariant
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
    "rough_s": 6.0,
    "rechunk": 0.0,
    "slow_syncs": 0.0,
    "flush_interval_s": 2.0,
    "timeout_s": 0.5,
}
_OTHERS_PASSWORD = b"a stranger's"
#: Within so many pieces of a link the key of a ledger is asked about, and taken.
_STEPS = 6
#: The look, the metadata and the key are over by then, if nothing happens.
_MOMENT_S = 0.004
#: By then bookies have answered the look, and have not got the key.
_LOOKED_S = 0.0003


class Keys(SearchPhase):
    """One ledger after the other."""

    def __init__(self, life: actors.ActorsLife) -> None:
        super().__init__(life)
        self._clients = 0
        self._network = life.cluster.network
        #: What the metadata got while a ledger was created.
        self._new: list[LedgerId] = []
        self._on_new: Callable[[LedgerId], None] = lambda _: None
        #: Has the stranger claim an id, once he knows the bookies.
        self._claim: Callable[[LedgerId], None] | None = None
        #: Whether the creator has done what it wanted.
        self._is_over = False

    def _act(self) -> None:
        self._life.history.on_new = self._appears
        self._claim, self._is_over = None, False
        strikes = (self._at_creator, self._at_bookie, self._at_recovery, None, None)
        strike = self._tape.pick(strikes)
        if strike is None:
            stranger = self._client("s", self._wait_to_claim)
            self._when(lambda: self._claim is not None, 2.0, partial(self._begin_beside, stranger))
        else:
            creator = self._client("w", partial(self._create, is_alone=False))
            self._on_new = partial(strike, creator)
            self._end_with(creator)

    def _begin_beside(self, stranger: Machine) -> None:
        creator = self._client("w", partial(self._create, is_alone=True))
        self._on_new = self._at_stranger
        self._end_with(creator, stranger)

    def _end_with(self, creator: Machine, *others: Machine) -> None:
        self._when(
            lambda: self._is_over or creator.process is None,
            4.0,
            partial(self._end, creator, *others),
        )

    def _end(self, *machines: Machine) -> None:
        self._on_new = lambda _: None
        for machine in machines:
            machine.kill()
        for bookie in self._bookies:
            if bookie.process is None:
                self._boot(bookie)
        # A stranger beside a bookie that stands still is not alone.
        self._when(self._is_calm, self._life.plan.rough_s, partial(self._later, 0, 0.1, self._act))

    def _is_calm(self) -> bool:
        return self._life.cluster.is_whole and not any(
            each.process is None or each.process.loop.is_paused for each in self._bookies
        )

    def _client(self, kind: str, main: Any) -> Machine:
        self._clients += 1
        machine = self._life.cluster.add_client(f"{kind}{self._clients}")
        machine.start(main)
        return machine

    # Who creates

    def _appears(self, ledger_id: LedgerId) -> None:
        # Until somebody has it, whoever made it may take it back.
        self._life.history.ledgers[ledger_id].is_doomed = True
        self._new.append(ledger_id)
        if self._life.is_rough:
            self._on_new(ledger_id)

    async def _create(self, process: Process, *, is_alone: bool) -> None:
        life, tape, plan = self._life, self._tape, self._life.plan
        history, who = life.history, process.name
        async with actors.started(life, process) as client:
            self._new.clear()
            try:
                writer = await client.create_ledger(
                    ensemble_size=3,
                    write_quorum_size=3,
                    ack_quorum_size=2,
                    digest_type=plan.digest_type,
                    password=PASSWORD,
                )
            except QuorumbookError as error:
                history.failed(who, error)
                if is_alone:
                    text = f"a stranger keeps {who} from creating a ledger: {error}"
                    history.violation(Invariant.STRANGERS_HINDER_NOBODY, text)
                self._is_over = True
                return
            self._judge(writer.id)
            ledger = history.created(writer.id, who, 2, lambda: writer.last_add_confirmed)
            appends = actors.Appends(life, process, writer, ledger, False, False)
            if tape.chance(0.3):
                await asyncio.sleep(tape.between(0, 3 * _MOMENT_S))
            appends.burst(1 + tape.below(3))
            await asyncio.wait(appends.pending)
            if is_alone and len(ledger.acknowledged) < len(ledger.sent):
                text = "a stranger keeps the writer from writing"
                history.violation(Invariant.STRANGERS_HINDER_NOBODY, text, writer.id)
            if tape.chance(0.5):
                with contextlib.suppress(QuorumbookError):
                    await actors.close(history, process, writer)
        self._is_over = True

    def _judge(self, ledger_id: LedgerId) -> None:
        history = self._life.history
        history.ledgers[ledger_id].is_doomed = False
        for each in self._new:
            if each != ledger_id and not history.is_gone(each):
                text = "the id was given up, and its ledger is still there"
                history.violation(Invariant.STRANGERS_HINDER_NOBODY, text, each)

    # What happens behind the metadata

    def _soon(self, ledger_id: LedgerId, act: Callable[[], object]) -> None:
        """Act within the moment in which a key is taken, or at a piece of it."""
        # Not in the middle of what the network does with its connections.
        then = partial(self._kernel.after, 0, act)
        if self._tape.chance(0.5):
            self._later(0.0, self._tape.pick((_LOOKED_S, _MOMENT_S)), then)
            return
        creators = [each.name for each in self._life.cluster.clients if each.name[0] == "w"]
        ends = creators[-1], self._tape.pick(self._members(ledger_id)).name
        if self._tape.chance(0.5):
            ends = ends[1], ends[0]
        self._network.at_piece(*ends, 1 + self._tape.below(_STEPS), then)

    def _members(self, ledger_id: LedgerId) -> list[BookieMachine]:
        metadata = self._life.history.ledgers[ledger_id].metadata
        names = () if metadata is None else metadata.fragments[0].ensemble
        return [each for each in self._bookies if each.name in names]

    def _pause(self, machine: Machine, longest_s: float) -> None:
        process = machine.process
        if process is not None and not process.loop.is_paused:
            process.pause(int(self._tape.between(0.05, longest_s) * SECOND))

    def _at_creator(self, creator: Machine, ledger_id: LedgerId) -> None:
        # Longer than its session lasts, now and then.
        pause = partial(self._pause, creator, self._tape.pick((0.5, 2.0)))
        acts: tuple[Callable[[], None], ...] = (creator.kill, pause)
        self._soon(ledger_id, self._tape.pick(acts))

    def _at_bookie(self, creator: Machine, ledger_id: LedgerId) -> None:
        del creator
        machine = self._tape.pick(self._members(ledger_id))
        pause = partial(self._pause, machine, 2.0)
        acts: tuple[Callable[[], None], ...] = (machine.kill, machine.cut_power, pause, pause)
        self._soon(ledger_id, self._tape.pick(acts))

    def _at_recovery(self, creator: Machine, ledger_id: LedgerId) -> None:
        del creator

        async def recover(process: Process) -> None:
            async with actors.started(self._life, process) as client:
                with contextlib.suppress(QuorumbookError):
                    await actors.read_closed(self._life, process, client, ledger_id)

        self._soon(ledger_id, partial(self._client, "h", recover))

    # The stranger

    def _at_stranger(self, ledger_id: LedgerId) -> None:
        if self._claim is not None:
            self._soon(ledger_id, partial(self._claim, ledger_id))

    async def _wait_to_claim(self, process: Process) -> None:
        """Know all bookies, and wait for an id."""
        async with actors.started(self._life, process) as client:
            for machine in self._bookies:
                # A connection is there when it is wanted.
                with contextlib.suppress(QuorumbookError):
                    await self._say(client, machine, 1 << 62, is_fence=False, password=b"")

            def begin(ledger_id: LedgerId) -> None:
                process.loop.create_task(self._claim_it(client, ledger_id))

            self._claim = partial(process.loop.deliver, begin)
            await asyncio.get_running_loop().create_future()

    async def _claim_it(self, client: SimClient, ledger_id: LedgerId) -> None:
        tape, members = self._tape, self._members(ledger_id)
        chosen = members if tape.chance(0.6) else [tape.pick(members)]
        password = _OTHERS_PASSWORD if tape.chance(0.8) else PASSWORD
        # With the ledger's own key he could fence it, as anybody may who knows it.
        is_fence = password is not PASSWORD and tape.chance(0.5)
        if password is not PASSWORD:
            self._life.history.ledgers[ledger_id].is_claimed = True
        for machine in chosen:
            with contextlib.suppress(QuorumbookError):
                await self._say(client, machine, ledger_id, is_fence=is_fence, password=password)

    async def _say(
        self,
        client: SimClient,
        machine: BookieMachine,
        ledger_id: LedgerId,
        *,
        is_fence: bool,
        password: bytes,
    ) -> None:
        """Tell a bookie a key, by a fence or by a last add confirmed of nothing."""
        key = master_key(password)
        packet = digester(self._life.plan.digest_type, password).lac_packet(
            ledger_id, INVALID_ENTRY_ID
        )

        def encode(txn_id: int) -> bytes:
            if is_fence:
                return v3.encode_read(txn_id, ledger_id, 0, master_key=key)
            return v3.encode_write_lac(txn_id, ledger_id, INVALID_ENTRY_ID, key, packet)

        await client_context(client).bookies.control(machine.name).request("a claim", encode)
