"""The directed phases ``healing`` and ``absences``: replication workers, and who is away.

In ``healing`` workers run beside all that can change under them.

Every entry needs both of its copies.  Bookies are away for long enough to be replaced; a worker
stands still, mostly when it has just made copies and not recorded them, until its session is over
and others have healed the ledger, or collected the copies as nobody's; writers stand still as well,
and go on in ledgers that were healed meanwhile, with the bookie that was away.  Now and then one
bookie is left, so that workers fail: there is nowhere to copy to.

In ``absences`` a bookie of one ledger is gone, and others are to have its copies, and only those.

empty           the ledger has no entry (S66)
back_in_time    the bookie is back before it counts as lost (S67)
nowhere_to_go   it is back when its ledger is marked, and nobody else was there to copy to (S67)
before_auditor  it was gone before there was an auditor (S70)
striped         it stood for a part of the entries, some of them larger than a batch (S74, S75)
above_end       its last fragment begins behind the end of the ledger (S75)
session_over    the metadata store was away, and the sessions of workers are over (S77)
copied_again    what a bookie need not hold any more is copied to it again (S60)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from quorumbook.client.context import client_store
from quorumbook.ids import EntryId
from quorumbook.ledger.metadata import LedgerMetadata, LedgerState
from quorumbook.metadata.paths import TreePaths
from quorumbook.metadata.recovery.switches import RecoverySwitches
from quorumbook.metadata.store import DEFAULT_LEDGERS_ROOT
from quorumbook.sim.actors import ledgers as actors
from quorumbook.sim.cluster import BookieMachine
from quorumbook.sim.histories.invariants import Invariant
from quorumbook.sim.histories.ledgers import LedgerHistory, holders
from quorumbook.sim.kernel import SECOND
from quorumbook.sim.metadata.memory import METADATA
from quorumbook.sim.phases import script
from quorumbook.sim.phases.phase import ALONE, SearchPhase
from quorumbook.sim.phases.script import OneLedger, Script
from quorumbook.sim.process import Machine, Process

#: What it wants of the plan.
PLAN: dict[str, Any] = {
    **ALONE,
    "quorums": (2, 2, 2),
    "bookies": 4,
    "writers": 2,
    "has_auto_recovery": True,
    "burst_max": 4,
    "entries_max": 20,
    "payload_size_max": 300,
    "ledgers_max": 20,
    "rough_s": 25.0,
    "ways": ("collects",),
    "slow_syncs": 0.0,
    "flush_interval_s": 2.0,
    "timeout_s": 0.6,
    "session_timeout_s": 2.0,
}
ABSENCES: dict[str, Any] = {
    **script.PLAN,
    "has_auto_recovery": True,
    # With small frames a batch has 4 KB.
    "ways": ("collects", "small_frames"),
    "payload_size_max": 6000,
    "rough_s": 30.0,
    "flush_interval_s": 0.2,
    "timeout_s": 0.6,
    "session_timeout_s": 2.0,
}
_SESSION_S = ABSENCES["session_timeout_s"]
#: So long a bookie may be away where that is said.
_DELAY_S = 4
#: A session ends, an auditor that was interrupted waits for ten seconds and a session more.
_COPIED_IN_S = 20.0
_LOOK_EVERY_S = 0.02
#: What is left open is healed by then: three seconds of patience, and twice the time of a session.
_HEALED_IN_S = 15.0


class HealingPhase(SearchPhase):
    """One bookie after the other is away."""

    def begin(self) -> None:
        """Begin, with a second worker."""
        second = self._life.cluster.add_client("a1")
        second.start(lambda process: actors.replicate(self._life, process))
        super().begin()

    def _act(self) -> None:
        tape = self._tape
        written = self._written()
        if written and self._workers_run() and tape.chance(0.5):
            self._leave_open(tape.pick(written))
            return
        if tape.chance(0.3):
            self._leave_one()
            return
        machine = tape.pick(self._bookies)
        machine.kill()
        self._later(2.5, 7.0, partial(self._back, machine))
        if tape.chance(0.5):
            self._stop("w", tape.between(3.0, 8.0))
        if tape.chance(0.6):
            self._when(self._has_nobodys_copies, 6.0, self._stop_workers)

    def _leave_one(self) -> None:
        """Have all bookies but one away for long enough to be missed, and come back one by one."""
        stays = self._tape.pick(self._bookies)
        away = [machine for machine in self._bookies if machine is not stays]
        for machine in away:
            machine.kill()
            self._later(5.0, 9.0, machine.boot_up)
        self._later(9.0, 11.0, self._act)

    def _back(self, machine: BookieMachine) -> None:
        machine.boot_up()
        self._later(0.5, 2.0, self._act)

    def _workers_run(self) -> bool:
        workers = [each for each in self._life.cluster.clients if each.name.startswith("a")]
        return all(each.process is not None and not each.process.loop.is_paused for each in workers)

    def _written(self) -> list[LedgerHistory]:
        """Return the ledgers that are being written and have entries."""
        return [
            each
            for each in self._life.history.ledgers.values()
            if each.metadata is not None
            and each.metadata.state is LedgerState.OPEN
            and each.acknowledged
        ]

    def _leave_open(self, ledger: LedgerHistory) -> None:
        """Have a bookie of a ledger away until somebody healed it, and its writer not notice.

        The ledger has to be closed for that, and will be when the workers' patience is over.
        """
        assert ledger.metadata is not None
        before = ledger.metadata
        names = before.last_fragment.ensemble
        machine = self._tape.pick([each for each in self._bookies if each.name in names])
        self._stop("w", None)
        machine.kill()
        self._when(
            lambda: ledger.metadata != before,
            _HEALED_IN_S,
            partial(self._back_to_writers, machine, ledger, before),
        )

    def _back_to_writers(
        self, machine: BookieMachine, ledger: LedgerHistory, before: LedgerMetadata
    ) -> None:
        if ledger.metadata == before:
            text = f"nobody heals a ledger that nobody writes and {machine.name} has lost"
            self._life.history.violation(Invariant.WRITERS_ARE_HEALED, text, ledger.ledger_id)
        machine.boot_up()
        self._when(lambda: machine.serves, 3.0, self._let_writers_go_on)

    def _let_writers_go_on(self) -> None:
        for machine in self._life.cluster.clients:
            if machine.name.startswith("w") and machine.process is not None:
                machine.process.go_on()
        self._later(0.5, 2.0, self._act)

    def _has_nobodys_copies(self) -> bool:
        """Tell whether a bookie holds a ledger that does not name it: copies were just made."""
        for machine in self._bookies:
            if not machine.serves or machine.bookie is None:
                continue
            for ledger_id in machine.bookie.storage.ledger_ids():
                ledger = self._life.history.ledgers.get(ledger_id)
                if ledger is None or ledger.metadata is None:
                    continue
                if all(machine.name not in each.ensemble for each in ledger.metadata.fragments):
                    return True
        return False

    def _stop_workers(self) -> None:
        """Stop the first one, and now and then the other as well, so that nobody takes over."""
        self._stop("a0", self._tape.between(3.0, 9.0))
        if self._tape.chance(0.7):
            self._stop("a1", self._tape.between(3.0, 9.0))

    def _stop(self, name: str, duration_s: float | None) -> None:
        for machine in self._life.cluster.clients:
            if machine.name.startswith(name):
                _pause(machine, duration_s)


def _pause(machine: Machine, duration_s: float | None) -> None:
    if machine.process is not None and not machine.process.loop.is_paused:
        machine.process.pause(None if duration_s is None else int(duration_s * SECOND))


class Absences(Script):
    """One ledger at a time, and a bookie of it that is gone."""

    _pause_s = 0.5

    def __init__(self, life: actors.ActorsLife) -> None:
        super().__init__(life)
        #: What auto-recovery begins with (``actors.replicate``).
        self._delay_s = 0

    @property
    def _scripts(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return (
            self._empty,
            self._back_in_time,
            self._nowhere_to_go,
            self._before_auditor,
            self._striped,
            self._above_end,
            self._session_over,
            self._copied_again,
        )

    async def _mend(self) -> None:
        for machine in self._workers():
            self._life.start_client(machine)
        await self._have_delay(0)
        await super()._mend()

    async def _empty(self) -> None:
        ledger, members, _ = await self._written((3, 3, 2), count=0)
        await self._closed(ledger)
        await self._lost(ledger, self._tape.pick(members))

    async def _back_in_time(self) -> None:
        await self._have_delay(_DELAY_S)
        ledger, members, _ = await self._written((3, 3, 2))
        await self._closed(ledger)
        ensemble, gone = self._ensemble_of(ledger), self._tape.pick(members)
        self._end(gone.kill)
        # Its session ends, and it is back long before it counts as lost.
        await asyncio.sleep(_SESSION_S + self._tape.between(0.2, 1.5))
        gone.boot_up()
        await asyncio.sleep(_DELAY_S)
        if self._is_marked(ledger) or self._ensemble_of(ledger) != ensemble:
            text = f"{gone.name} was back in time, and counts as lost"
            self._life.history.violation(Invariant.WHO_IS_BACK_IS_NOT_LOST, text, ledger.ledger_id)

    async def _nowhere_to_go(self) -> None:
        """Have nobody there to copy to until the lost bookie is back."""
        ledger, members, _ = await self._written((5, 3, 2))
        await self._closed(ledger)
        gone = self._tape.pick(members)
        self._end(gone.kill)
        await self._until(lambda: self._is_marked(ledger), _HEALED_IN_S)
        await asyncio.sleep(self._tape.between(0.0, 2.0))
        gone.boot_up()
        await self._must_heal(
            lambda: not self._is_marked(ledger),
            f"{gone.name} is back, and the ledger lacks copies all the same",
            ledger,
        )

    async def _before_auditor(self) -> None:
        ledger, members, _ = await self._written((3, 3, 2))
        await self._closed(ledger)
        for machine in self._workers():
            self._end(machine.kill)
        gone = self._tape.pick(members)
        self._end(gone.kill)
        await asyncio.sleep(_SESSION_S + self._tape.between(0.5, 1.5))
        for machine in self._workers():
            self._life.start_client(machine)
        await self._moved(ledger, gone)

    async def _striped(self) -> None:
        ledger, members, _ = await self._written((3, 2, 2))
        await self._append(ledger, 6)
        await self._closed(ledger)
        await self._lost(ledger, self._tape.pick(members))
        await self._check_copies(ledger)

    async def _above_end(self) -> None:
        """Have a writer change its last ensemble and write nothing there."""
        ledger, (first, _, third), _ = await self._written((3, 3, 2))
        self._end(third.kill)
        await self._append(ledger, 1)
        await self._until(lambda: third.name not in self._ensemble_of(ledger), 2.0)
        third.boot_up()
        await self._closed(ledger)
        await self._lost(ledger, first)

    async def _session_over(self) -> None:
        """Have those who copy lose their sessions, and be needed afterwards."""
        ledger, members, _ = await self._written((3, 3, 2))
        await self._closed(ledger)
        away_s = _SESSION_S + self._tape.between(0.2, 3.0)
        for machine in self._workers():
            self._keep_from_metadata(machine, away_s)
        elections = self._elections
        await asyncio.sleep(away_s)
        if self._tape.chance(0.5):
            # And once more, when the next term of an auditor has just begun.
            await self._until(lambda: self._elections != elections, 5.0, 0.0002)
            tree = self._life.cluster.tree
            tree.drops = 1.0
            await asyncio.sleep(self._tape.between(0.005, 0.5))
            tree.drops = 0.0
        await self._lost(ledger, self._tape.pick(members))

    async def _copied_again(self) -> None:
        """Have a bookie hold what it need not, and then what it must."""
        ledger, (first, second, _), spares = await self._written((3, 3, 2))
        await self._closed(ledger)
        for machine in spares[1:]:
            self._end(machine.kill)
        await self._lost(ledger, first)
        first.boot_up()
        await self._until(lambda: first.serves, 2.0)
        # It looks for what it need not hold every other second, and drops it two seconds later;
        # a worker begins when the session of the second one is over.
        await asyncio.sleep(self._tape.between(1.4, 2.6))
        self._end(second.kill)
        (worker,) = self._workers()
        # It makes the copies, and records them only when the store is there again.
        keep = partial(self._keep_from_metadata, worker, _SESSION_S * 0.8)
        self._network.at_piece(first.name, worker.name, 1 + self._tape.below(2), keep)
        await self._moved(ledger, second)
        await self._check_copies(ledger)

    # Their steps

    @property
    def _elections(self) -> int:
        """How often somebody became the auditor."""
        row = self._life.cluster.tree.tree.find(TreePaths(DEFAULT_LEDGERS_ROOT).auditor_election)
        return 0 if row is None else row.version

    def _workers(self) -> list[Machine]:
        return [each for each in self._life.cluster.clients if each.name == "a0"]

    def _keep_from_metadata(self, machine: Machine, duration_s: float) -> None:
        for ends in ((machine.name, METADATA), (METADATA, machine.name)):
            self._network.cut(*ends)
            self._kernel.after(int(duration_s * SECOND), self._network.heal, *ends)

    async def _have_delay(self, delay_s: int) -> None:
        """Say how long a bookie may be away; to say the same again would have ledgers audited."""
        if delay_s == self._delay_s:
            return
        self._delay_s = delay_s
        is_said = False

        async def say(process: Process) -> None:
            nonlocal is_said
            async with actors.started(self._life, process) as client:
                switches = RecoverySwitches(client_store(client))
                await actors.insist(partial(switches.set_lost_bookie_delay_s, delay_s))
            is_said = True

        self._client("h", say)
        await self._until(lambda: is_said, 2.0)

    async def _closed(self, ledger: OneLedger) -> None:
        """End its writer, and have it closed."""
        self._end(ledger.writer.kill)
        self._visit(ledger, actors.read_closed)
        await self._until(lambda: self._is_closed(ledger), 2.0)

    async def _lost(self, ledger: OneLedger, gone: BookieMachine) -> None:
        """Have a bookie gone until others have its copies."""
        self._end(gone.kill)
        await self._moved(ledger, gone)

    async def _moved(self, ledger: OneLedger, gone: BookieMachine) -> None:
        def is_so() -> bool:
            return not (self._is_named(ledger, gone) or self._is_marked(ledger))

        await self._must_heal(is_so, f"nobody copies what {gone.name} held", ledger)

    async def _must_heal(self, is_so: Callable[[], bool], what: str, ledger: OneLedger) -> None:
        broken = Invariant.NO_LEDGER_STAYS_UNDERREPLICATED
        await self._must(
            is_so, what, ledger,
            within_s=_COPIED_IN_S, broken=broken, look_every_s=_LOOK_EVERY_S,
        )  # fmt: skip

    def _is_marked(self, ledger: OneLedger) -> bool:
        return ledger.ledger_id in self._life.history.marked

    def _is_named(self, ledger: OneLedger, machine: BookieMachine) -> bool:
        metadata = ledger.history.metadata
        return metadata is not None and any(
            machine.name in each.ensemble for each in metadata.fragments
        )

    async def _check_copies(self, ledger: OneLedger) -> None:
        """Have all bookies of a closed ledger list what they hold, which must be their share."""
        metadata = ledger.history.metadata
        assert metadata is not None
        held: dict[str, set[EntryId]] = {}

        def ask(machine: BookieMachine) -> None:
            def done(found: list[range] | BaseException) -> None:
                if isinstance(found, list):
                    held[machine.name] = {each for run in found for each in run}

            assert machine.bookie is not None
            machine.bookie.storage.entry_ids(ledger.ledger_id, done)

        asked = [each for each in self._bookies if self._is_named(ledger, each)]
        for machine in asked:
            if machine.process is not None and machine.serves:
                machine.process.loop.deliver(ask, machine)
        await self._until(lambda: len(held) == len(asked), 2.0)
        for name, entries in held.items():
            share = {
                each
                for each in range(metadata.last_entry_id + 1)
                if name in holders(metadata, each)
            }
            if entries != share:
                text = f"{name} stands for entries {sorted(share)}, and holds {sorted(entries)}"
                broken = Invariant.BOOKIES_HOLD_THEIR_SHARE
                self._life.history.violation(broken, text, ledger.ledger_id)
