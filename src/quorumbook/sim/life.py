"""What one seed tells: a rough time, a recovery, an end, and an audit.

rough     clients work, mishaps happen; nothing acknowledged may be lost, ever
healed    all machines run, the network is whole
finish    every ledger can be recovered, and has its copies again, within a bound of virtual time
audit     each entry up to a ledger's end is read from each bookie that should have it
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from quorumbook.errors import QuorumbookError
from quorumbook.ids import EntryId, LedgerId
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.protocol.digest import DigestType, digester
from quorumbook.sim.actors import groups, streams, transactions
from quorumbook.sim.actors import ledgers as actors
from quorumbook.sim.apart import apart
from quorumbook.sim.cluster import SimulatedCluster
from quorumbook.sim.disks.looks import is_believed
from quorumbook.sim.histories.calls import BOUND_OF_STREAMS_S, BOUND_S
from quorumbook.sim.histories.groups import GroupHistory
from quorumbook.sim.histories.invariants import Invariant
from quorumbook.sim.histories.ledgers import PASSWORD, History, holders
from quorumbook.sim.histories.machines import watched_machines
from quorumbook.sim.histories.streams import StreamHistory
from quorumbook.sim.histories.transactions import TransactionHistory
from quorumbook.sim.kernel import SECOND, Calm, Kernel
from quorumbook.sim.nemesis import Nemesis
from quorumbook.sim.phases.directed import PLANS, lengths
from quorumbook.sim.phases.directed import begin as begin_phase
from quorumbook.sim.plan import PLAIN, LifePlan, draw
from quorumbook.sim.process import Machine, Process
from quorumbook.sim.search.sometimes import Sightings

_DIRECTED_SHARE = 0.5
_FINISH_NS = 180 * SECOND
#: What lacks copies is looked at again after ten seconds at most, and is copied in a moment.
_HEALED_NS = 60 * SECOND
_MEMBERS, _RIVALS = 3, 2
_Program = Callable[[actors.ActorsLife, Process], Coroutine[Any, Any, None]]
#: By way, who reads all there is when all is well again.
_ENDS: Mapping[str, _Program] = {
    "streams": streams.read_to_the_end,
    "groups": groups.consume_the_rest,
    "transactions": transactions.read_to_the_end,
}
_ATTEMPT_PAUSE_S = 1.0
#: The first letters of those who run auto-recovery, and of those who tell others what to do.
_RECOVERER, _DIRECTOR = "a", "s"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one seed."""

    seed: int
    plan: LifePlan
    phase: str
    violations: tuple[str, ...]
    trace_hash: str
    virtual_s: float
    events: int
    ledgers: int
    #: How often clients were told something, be it an error.
    operations: int
    #: How many copies of entries were looked at on bookies.
    audited: int
    acknowledged: int
    records: int
    mishaps: dict[str, int]
    trace: tuple[str, ...] = ()
    #: How often rare states were reached (``search.sometimes``).
    sightings: Mapping[str, int] = field(default_factory=dict)
    processor_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Variation:
    """What is otherwise than a seed says."""

    #: Fields of the plan.
    plan: Mapping[str, Any] = field(default_factory=dict)
    #: The directed phase, "" for none.
    phase: str | None = None
    calm: Calm | None = None


def of_operations(count: int) -> Variation:
    """Have mishaps until clients were told so many things, or for as long as that may take."""
    return Variation(plan={"operations_max": count})


class Life:
    """One seed's run.

    Args:
        seed: Which.
        keep_trace: Keep every line.
        variation: What is otherwise than the seed says.
    """

    def __init__(
        self,
        seed: int,
        *,
        keep_trace: bool = False,
        variation: Variation | None = None,
    ) -> None:
        variation = variation or Variation()
        self.kernel = Kernel(seed, keep_trace=keep_trace, calm=variation.calm)
        self.tape = self.kernel.tape
        plan = draw(self.tape)
        drawn = self.tape.pick(tuple(PLANS)) if self.tape.chance(_DIRECTED_SHARE) else ""
        #: The directed phase of this run, if it has one.
        self.phase = drawn if variation.phase is None else variation.phase
        changes = {**PLANS.get(self.phase, PLAIN), **variation.plan}
        if "operations_max" in variation.plan:
            changes = {**lengths(self.phase, variation.plan["operations_max"]), **changes}
        self.plan = replace(plan, **changes)
        self.history = History(self.kernel)
        self.streams = StreamHistory(self.history)
        self.groups = GroupHistory(self.history)
        self.transactions = TransactionHistory(self.history)
        self.cluster = SimulatedCluster(self.kernel, self.plan, self.history)
        self.is_rough = True
        #: Auto-recovery has looked for missing copies, and made them.
        self._are_counted = False
        self._programs: dict[str, _Program] = {}
        self.nemesis = Nemesis(self.cluster, self.start_client)

    def run(self) -> Outcome:
        """Run all of it."""
        kernel, plan, history = self.kernel, self.plan, self.history
        self.cluster.start()
        if not history.violations:
            self._start_clients()
            self.nemesis.begin()
            begin_phase(self.phase, self)
            kernel.run(self._is_enough, kernel.now_ns + int(plan.rough_s * SECOND))
        self.is_rough = False
        # What is to happen to a bookie in this very moment happens before it is mended.
        kernel.run(self._is_broken, kernel.now_ns)
        self.nemesis.heal()
        if not history.violations:
            self._finish()
        if not history.violations:
            self._audit()
        kernel.trace.note("kernel", f"{kernel.events} events", kernel.tape.count)
        return Outcome(
            kernel.seed,
            plan,
            self.phase,
            tuple(history.violations),
            kernel.trace.digest(),
            kernel.now_ns / SECOND,
            kernel.events,
            len(history.ledgers),
            history.operations,
            history.audited,
            history.acknowledged,
            self.streams.acknowledged,
            dict(self.nemesis.counts),
            tuple(kernel.trace.lines or ()),
            dict(history.sightings),
        )

    def _is_broken(self) -> bool:
        return bool(self.history.violations)

    def _is_enough(self) -> bool:
        return self._is_broken() or self.history.operations >= self.plan.operations_max

    def _start_clients(self) -> None:
        plan, programs = self.plan, self._programs
        programs |= {f"w{i}": actors.write for i in range(plan.writers)}
        programs |= {f"r{i}": actors.recover for i in range(plan.recoverers)}
        programs |= {f"t{i}": actors.tail for i in range(plan.tailers)}
        if plan.has("deletes"):
            programs["d0"] = actors.delete
        if plan.has("streams"):
            programs |= {f"p{i}": streams.produce for i in range(plan.writers)}
            programs["f0"] = streams.follow
        if plan.has("groups"):
            programs["q0"] = groups.produce
            programs |= {f"m{i}": groups.consume for i in range(_MEMBERS)}
        if plan.has("transactions"):
            programs |= {f"x{i}": transactions.commit for i in range(_RIVALS)}
        if plan.has_auto_recovery:
            programs["a0"] = actors.replicate
        self.cluster.clients.clear()
        for name in programs:
            self.start_client(self.cluster.add_client(name))

    def start_client(self, machine: Machine) -> None:
        """Start a client machine's program again, while that is wanted."""
        program = self._programs.get(machine.name)
        is_wanted = self.is_rough or machine.name[0] == _RECOVERER
        if machine.process is None and program is not None and is_wanted:
            machine.start(lambda process: program(self, process))

    def _finish(self) -> None:
        kernel, history, plan = self.kernel, self.history, self.plan
        self._end_some_clients()
        done: set[LedgerId] = set()

        async def close_all(process: Process) -> None:
            async with actors.started(self, process) as client:
                for ledger_id in sorted(history.own_ids):
                    while ledger_id not in done and not history.is_nobodys(ledger_id):
                        try:
                            await actors.read_closed(self, process, client, ledger_id)
                            done.add(ledger_id)
                        except QuorumbookError:
                            await asyncio.sleep(_ATTEMPT_PAUSE_S)
                    done.add(ledger_id)

        limit_ns = kernel.now_ns + _FINISH_NS
        if not kernel.run(lambda: self.cluster.is_whole, limit_ns):
            down = [each.name for each in self.cluster.bookies if not each.serves]
            text = f"bookies {down} do not start when all is well again"
            history.violation(Invariant.BOOKIES_START_AND_STAY, text)
            return
        if not self._let_calls_end():
            return
        limit_ns = kernel.now_ns + _FINISH_NS
        self.cluster.add_client("judge").start(close_all)
        everything = set(history.own_ids)
        is_over = kernel.run(lambda: done >= everything or self._is_broken(), limit_ns)
        if not is_over:
            open_id = min(everything - done)
            text = "a ledger cannot be recovered when all is well again"
            history.violation(Invariant.LEDGER_IS_CLOSED, text, open_id)
        elif not kernel.run(lambda: self.cluster.is_whole, limit_ns):
            text = "a bookie does not stay when all is well again"
            history.violation(Invariant.BOOKIES_START_AND_STAY, text)
        else:
            for way, read in _ENDS.items():
                name = f"reader of {way}"
                if plan.has(way) and not self._run_to_its_end(name, read, limit_ns):
                    text = f"{way} cannot be read when all is well again"
                    history.violation(Invariant.EVERY_CALL_ENDS, text)
            if plan.has_auto_recovery and not history.violations:
                self._wait_for_copies()
            if not history.violations:
                self._wait_for_rest()
                self._wait_for_disks()

    def _end_some_clients(self) -> None:
        """Kill some clients in the middle of what they do, and have all others go on."""
        for machine in self.cluster.clients:
            if machine.name[0] == _RECOVERER:
                self.start_client(machine)
            elif machine.name[0] == _DIRECTOR or self.tape.chance(0.5):
                machine.kill()
            if machine.process is not None:
                machine.process.go_on()

    def _let_calls_end(self) -> bool:
        """Wait until clients were told all they asked for, and end them; False if that fails."""
        kernel, calls = self.kernel, self.history.calls
        since_ns = kernel.now_ns

        def is_over() -> bool:
            return self._is_broken() or calls.are_over

        if not kernel.run(is_over, since_ns + int(BOUND_OF_STREAMS_S * SECOND)):
            for what in calls.overdue(since_ns):
                text = f"a call does not end when all is well again: {what}"
                self.history.violation(Invariant.EVERY_CALL_ENDS, text)
        self._let_clients_rest()
        for machine in self.cluster.clients:
            # Writers that live on would only be fenced; auto-recovery has work to do.
            if machine.name[0] != _RECOVERER:
                machine.kill()
        return not self._is_broken()

    def _let_clients_rest(self) -> None:
        """Wait until clients hold nothing for programs that ask them for nothing any more."""
        kernel = self.kernel
        programs = [name for name in self._programs if name[0] != _RECOVERER]
        clients = [each for each in self.cluster.open_clients if each.name in programs]

        def is_over() -> bool:
            return self._is_broken() or not any(each.held for each in clients)

        if not kernel.run(is_over, kernel.now_ns + int(BOUND_S * SECOND)):
            held = {each.name: each.held for each in clients if each.held}
            text = f"clients hold on to what nobody waits for: {held}"
            self.history.violation(Invariant.NOTHING_IS_HELD, text)

    def _wait_for_copies(self) -> None:
        history, kernel = self.history, self.kernel
        limit_ns = kernel.now_ns + _HEALED_NS
        # Who still stands still tells the auditor nothing of what was not sent to him.
        kernel.run(lambda: not any(each.stands_still for each in self.cluster.bookies), limit_ns)
        if not self._run_to_its_end("counter", actors.have_copies_counted, limit_ns):
            text = "the auditor does not count copies when all is well again"
            history.violation(Invariant.NO_LEDGER_STAYS_UNDERREPLICATED, text)
            return
        self._are_counted = True
        if not kernel.run(lambda: not history.marked or self._is_broken(), limit_ns):
            marked = min(history.marked)
            history.violation(
                Invariant.NO_LEDGER_STAYS_UNDERREPLICATED,
                f"ledgers {sorted(history.marked)} lack copies when all is well again",
                marked if marked in history.ledgers else None,
            )

    def _wait_for_rest(self) -> None:
        """Wait until nobody asks for anything, and bookies hold nothing for anybody."""
        bookies, kernel = self.cluster.bookies, self.kernel

        def is_over() -> bool:
            return self._is_broken() or all(each.serves and not each.held for each in bookies)

        if not kernel.run(is_over, kernel.now_ns + _HEALED_NS):
            held = {each.name: each.held for each in bookies if each.serves and each.held}
            text = f"bookies hold on to what nobody needs: {held}"
            self.history.violation(Invariant.NOTHING_IS_HELD, text)

    def _wait_for_disks(self) -> None:
        """Wait until bookies believe disks again that only failed for a while."""
        cluster, kernel = self.cluster, self.kernel
        whole = [each for each in cluster.bookies if each is not cluster.victim]
        is_verifiable = cluster.plan.digest_type is not DigestType.DUMMY

        def is_over() -> bool:
            return self._is_broken() or all(is_believed(each, is_verifiable) for each in whole)

        if not kernel.run(is_over, kernel.now_ns + _FINISH_NS):
            names = [each.name for each in whole if not is_believed(each, is_verifiable)]
            text = f"{names} do not believe what their disks give back again"
            self.history.violation(Invariant.MENDED_DISKS_ARE_BELIEVED, text)

    def _run_to_its_end(self, name: str, program: _Program, limit_ns: int) -> bool:
        is_over = False

        async def main(process: Process) -> None:
            nonlocal is_over
            await program(self, process)
            is_over = True

        self.cluster.add_client(name).start(main)
        return self.kernel.run(lambda: is_over or self._is_broken(), limit_ns)

    def _audit(self) -> None:
        """Read every entry from every bookie that should have it."""
        copies: dict[tuple[LedgerId, EntryId], int] = {}
        # What is closed while the bookies read was not asked for.
        closed = self._closed()
        waiting = len(self.cluster.bookies)

        def ask(machine: Any, wanted: list[tuple[LedgerId, EntryId]]) -> None:
            def done(found: list[bytes | BaseException]) -> None:
                nonlocal waiting
                waiting -= 1
                for (ledger_id, entry_id), entry in zip(wanted, found, strict=True):
                    if isinstance(entry, bytes):
                        is_good = self._judge(machine, ledger_id, entry_id, entry)
                        count = copies.get((ledger_id, entry_id), 0)
                        copies[ledger_id, entry_id] = count + is_good

            machine.bookie.storage.read(wanted, done)

        for machine in self.cluster.bookies:
            wanted = [
                (ledger_id, entry_id)
                for ledger_id, metadata in closed
                for entry_id in range(metadata.last_entry_id + 1)
                if machine.name in holders(metadata, entry_id)
            ]
            machine.process.loop.deliver(ask, machine, wanted)  # type: ignore[union-attr]
        if not self.kernel.run(lambda: not waiting, self.kernel.now_ns + _FINISH_NS):
            text = "the bookies do not answer the audit"
            self.history.violation(Invariant.EVERY_CALL_ENDS, text)
        for ledger_id, metadata in closed:
            if self.history.ledgers[ledger_id].metadata is None:
                continue  # a deletion that took its time came between
            for entry_id in range(metadata.last_entry_id + 1):
                count = copies.get((ledger_id, entry_id), 0)
                victim = self.cluster.victim
                is_damaged = victim is not None and victim.name in holders(metadata, entry_id)
                least = metadata.ack_quorum_size
                if self._are_counted:
                    # What lacked copies was found by the auditor, and a worker made them.
                    least = metadata.write_quorum_size
                if count < least - is_damaged:
                    text = f"entry {entry_id} has {count} copies, and not {least}"
                    broken = Invariant.ALL_COMMITTED_ENTRIES_REACH_ACK_QUORUM
                    self.history.violation(broken, text, ledger_id)

    def _closed(self) -> list[tuple[LedgerId, LedgerMetadata]]:
        ledgers = self.history.ledgers.items()
        return [(i, each.metadata) for i, each in ledgers if each.metadata is not None]

    def _judge(self, machine: Any, ledger_id: LedgerId, entry_id: EntryId, entry: bytes) -> bool:
        metadata = self.history.ledgers[ledger_id].metadata
        if metadata is None:  # a deletion that took its time came between
            return False
        digest_type = metadata.digest_type or DigestType.CRC32C
        seal = digester(digest_type, PASSWORD if metadata.password is None else metadata.password)
        try:
            seal.verify(entry, ledger_id, entry_id)
        except QuorumbookError as error:
            if machine is not self.cluster.victim:
                text = f"{machine.name} holds a wrong entry {entry_id}: {error}"
                self.history.violation(Invariant.ENTRIES_ARE_WHAT_WAS_SENT, text, ledger_id)
            return False
        if self.history.ledgers[ledger_id].is_of_stream:
            return True
        self.history.found(ledger_id, machine.name, entry_id, seal.payload(entry))
        return True


def run_seed(seed: int, *, keep_trace: bool = False, variation: Variation | None = None) -> Outcome:
    """Run one seed."""
    sightings = Sightings()
    with apart(sightings) as at_end:
        outcome = _lived(at_end, Life(seed, keep_trace=keep_trace, variation=variation))
    return replace(outcome, sightings={**outcome.sightings, **sightings.counts})


def _lived(at_end: Callable[[Callable[[], None]], None], life: Life) -> Outcome:
    at_end(life.cluster.bury)
    with watched_machines(life.history):
        return life.run()
