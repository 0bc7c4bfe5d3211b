"""The directed phases ``stores`` and ``disks``: what a bookie's storage promises.

Every entry needs both of its copies, so whatever one bookie loses is missed.

stores  bookies flush, roll, compact and collect all the time, and one after the other is killed or
        loses power: at some call of the disk, right behind it, and again while it starts

disks   a script of two bookies, of which one has

    compacted   no power when compaction has just moved what lives (S62), and was asked all the
                time for what it deletes (S53)
    failing     an index that cannot be written, pass after pass (S64)
    crammed     a disk without a free page when it starts (S55)
    given_back  a disk without a free page that deletions and compaction have to clear (S82)
    nearly      a disk that is too full for adds, and has room for those of a recovery (S82)
    read_only   its operator's word against adds, over restarts and beside a full disk (S81)
    lost        no index any more, and a run of entries that is damaged (S61, S63)
    unread      a run that is damaged, and that nobody reads (S76)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from quorumbook.bookie.server import Bookie
from quorumbook.errors import DiskFullError, QuorumbookError, StorageError
from quorumbook.ids import EntryId
from quorumbook.protocol.digest import DigestType
from quorumbook.sim.actors import ledgers as actors
from quorumbook.sim.cluster import BookieMachine
from quorumbook.sim.disks.looks import has_room, index_path, moved_bytes, place_of, sizes, tables
from quorumbook.sim.histories.invariants import Invariant
from quorumbook.sim.kernel import SECOND
from quorumbook.sim.phases import script
from quorumbook.sim.phases.phase import ALONE, SearchPhase
from quorumbook.sim.phases.script import MOMENT_S, SLOW_SYNC_NS, NotReachedError, OneLedger, Script
from quorumbook.sim.process import Process
from quorumbook.storage.collection.collector import Collector
from quorumbook.storage.directories.places import INDEX_NAME
from quorumbook.storage.directories.reserve import START_SIZE_BYTES
from quorumbook.storage.entrylog.format import entry_log_name
from quorumbook.storage.index.stored_run import StoredRun

#: What it wants of the plan.
PLAN: dict[str, Any] = {
    **ALONE,
    "quorums": (2, 2, 2),
    "bookies": 3,
    "writers": 2,
    "burst_max": 16,
    "entries_max": 20,
    "payload_size_max": 3000,
    "ledgers_max": 40,
    "rough_s": 10.0,
    "ways": ("early_turns", "compacts", "collects", "deletes"),
    "flush_interval_s": 0.2,
    "journal_file_size_bytes": 8 << 10,
    "timeout_s": 0.6,
}
#: What the script wants.
DISKS: dict[str, Any] = {
    **script.PLAN,
    "quorums": (2, 2, 2),
    "bookies": 2,
    "payload_size_max": 600,
    "rough_s": 40.0,
    "ways": ("early_turns", "compacts", "collects", "scrubs"),
    "flush_interval_s": 0.2,
}
_BOTH = (2, 2, 2)
#: A ledger is forgotten when it was missed in passes that are six seconds apart.
_FORGOTTEN_IN_S = 15.0
#: Bookies look at their disks every second.
_LOOKED_AT_S = 1.5
#: Scrub begins every two seconds, and what it finds is marked, and copied, within some more.
_HEALED_IN_S = 30.0
_PASSES = 8
#: For some commits of the index.
_INDEX_BYTES = 16 << 10
_CALLS_MAX = 80
#: A start makes about so many calls.
_CALLS_OF_A_START = 200
#: And about so many until it is through with the index.
_CALLS_OF_A_BELIEF = 40


class Stores(SearchPhase):
    """One crash after the other."""

    def __init__(self, life: actors.ActorsLife) -> None:
        super().__init__(life)
        self._hunters = 0

    def _act(self) -> None:
        tape = self._tape
        if tape.chance(0.4):
            self._hunt()
        machine = tape.pick(self._bookies)
        self._later(0.1, 0.5, self._act)
        if machine.process is not None:
            kind = tape.pick(("kill", "power", "job", "commit", "group"))
            if kind == "commit":
                machine.kill_in_sync(INDEX_NAME)
                self._when(lambda: machine.process is None, 1.0, partial(self._restart, machine))
                return
            if kind == "group":
                machine.cut_power_in_sync(".txn")
            elif kind == "kill":
                machine.kill()
            elif kind == "power":
                machine.cut_power()
            else:
                machine.cut_power_in_job(1 + tape.below(_CALLS_MAX))
        self._later(0.02, 0.3, partial(self._again, machine))

    def _restart(self, machine: BookieMachine) -> None:
        """Start it on what a commit left, and cut its power when it has begun to believe that."""
        if machine.process is None:
            machine.boot_up()
            machine.cut_power_in_job(1 + self._tape.below(_CALLS_OF_A_BELIEF))
        self._later(0.3, 0.6, partial(self._boot, machine))

    def _again(self, machine: BookieMachine) -> None:
        """Start it, and mostly end it once more before it has settled."""
        tape = self._tape
        if machine.process is None:
            machine.boot_up()
            kind = tape.pick(("start", "soon", "soon", "not"))
            if kind == "start":
                machine.cut_power_in_job(1 + tape.below(_CALLS_OF_A_START))
            elif kind == "soon":
                self._when(lambda: machine.serves, 1.0, partial(self._soon, machine))
        self._later(0.5, 1.0, partial(self._boot, machine))

    def _soon(self, machine: BookieMachine) -> None:
        self._later(0.0, 0.15, self._tape.pick((machine.kill, machine.cut_power)))

    def _hunt(self) -> None:
        """Recover a ledger, so that fences and what is written back are in the journals, too."""
        ids = self._life.history.own_ids
        if ids:
            self._hunters += 1
            hunter = self._life.cluster.add_client(f"h{self._hunters}")
            hunter.start(partial(self._recover, ledger_id=max(ids)))

    async def _recover(self, process: Process, ledger_id: int) -> None:
        async with actors.started(self._life, process) as client:
            try:
                await actors.read_closed(self._life, process, client, ledger_id)
            except QuorumbookError:
                return


class Disks(Script):
    """What one disk does, step by step."""

    _pause_s = 1.0

    def __init__(self, life: actors.ActorsLife) -> None:
        super().__init__(life)
        # A bookie whose disk was damaged may lack anything, so nothing else happens to it.
        self._has_damage = self._tape.chance(0.3)

    @property
    def _scripts(self) -> Sequence[Callable[[], Awaitable[None]]]:
        if self._has_damage:
            return (self._lost, self._unread)
        return (
            self._compacted,
            self._failing,
            self._crammed,
            self._given_back,
            self._nearly,
            self._read_only,
        )

    async def _mend(self) -> None:
        for machine in self._bookies:
            machine.disk.faults.heal()
            machine.disk.capacity_bytes = None
        for client in self._life.cluster.clients:
            if client.name[0] == "a":
                self._end(client.kill)
        await super()._mend()
        for machine in self._bookies:
            _collector(machine).resume()
            if _bookie(machine).operators_word.note is not None:
                self._run(machine, _bookie(machine).operators_word.set(None))
        await self._until(lambda: not any(_bookie(m).is_read_only for m in self._bookies), 5.0)

    async def _compacted(self) -> None:
        doomed, _ = await self._half_dead()
        machine = self._tape.pick(self._bookies)
        machine.sync_ns = SLOW_SYNC_NS
        statistics = _collector(machine).statistics
        await self._delete(doomed)
        # What is being deleted is asked for all the time.
        await self._until(lambda: self._last_entry_of(machine, doomed) < 0, _FORGOTTEN_IN_S)
        before = statistics.compacted_bytes
        await self._until(lambda: statistics.compacted_bytes > before, _FORGOTTEN_IN_S)
        await asyncio.sleep(self._tape.between(0, 2 * SLOW_SYNC_NS / SECOND))
        self._end(machine.cut_power)
        await asyncio.sleep(MOMENT_S)

    async def _failing(self) -> None:
        doomed, kept = await self._half_dead()
        machine = self._tape.pick(self._bookies)
        collector = _collector(machine)
        collector.suspend()
        await self._delete(doomed)
        await self._until(lambda: not _has(machine, doomed), _FORGOTTEN_IN_S)
        # What was under way is over.
        await asyncio.sleep(1.0)
        machine.was_struck = True
        is_flush = self._tape.chance(0.5)
        # A full disk is tried again until there is room.
        error = DiskFullError if is_flush else StorageError
        machine.disk.faults.fail("sync", INDEX_NAME, error=error, permanent=True)
        if is_flush:
            kept.burst(4)
        else:
            collector.resume()
        logs: list[list[int]] = []
        for _ in range(_PASSES):
            if not is_flush:
                self._deliver(machine, partial(collector.trigger, minor=True, force=False))
            await asyncio.sleep(1.0)
            logs.append(sizes(machine, ".log"))
        machine.disk.faults.heal()
        if self._tape.chance(0.5):
            # A pass that only cleans up; the next process finds in the index what this one was
            # told that it had not written.
            collector.suspend()
            await asyncio.sleep(1.2)
            self._end(machine.kill)
        else:
            collector.resume()
        early, late = logs[1], logs[-1]
        # What compaction copied in vain is there until its next pass.
        if sum(late) > sum(early) if is_flush else len(late) > len(early) + 2:
            text = f"the entry logs of {machine.name} grow from {early} to {late} in vain"
            self._life.history.violation(Invariant.SPACE_IS_GIVEN_BACK, text)

    async def _crammed(self) -> None:
        ledger, (machine, _), _ = await self._written(_BOTH)
        await self._append(ledger, 4)
        # Others fill what is given back, but for what the index needs.
        self._fill(machine, machine.disk.used_bytes() - START_SIZE_BYTES + _INDEX_BYTES)
        self._end(self._tape.pick((machine.kill, machine.cut_power)))
        await self._started(machine, "a disk without a free page")
        await self._must_have(machine, ledger, range(ledger.sent))
        machine.disk.capacity_bytes = None
        storage = _bookie(machine).storage
        await self._must(
            lambda: not storage.is_full,
            f"{machine.name} does not flush when its disk has space again",
            within_s=5.0,
            broken=Invariant.SPACE_IS_GIVEN_BACK,
        )

    async def _given_back(self) -> None:
        doomed, _ = await self._half_dead()
        machine = self._tape.pick(self._bookies)
        collector = _collector(machine)
        size = moved_bytes(machine, doomed.ledger_id)
        # Either the deletion needs the reserve, or compaction does, which comes behind it.
        is_forgotten = self._tape.chance(0.5)
        if is_forgotten:
            collector.suspend()
            await self._delete(doomed)
            await self._until(lambda: not _has(machine, doomed), _FORGOTTEN_IN_S)
        # By then it has kept its reserve.
        await asyncio.sleep(_LOOKED_AT_S)
        retired = sum(sizes(machine, ".old"))
        self._fill(machine, machine.disk.used_bytes() - retired)
        most = sum(sizes(machine, ".log")) - size // 2
        if is_forgotten:
            collector.resume()
        else:
            await self._delete(doomed)
        await self._must(
            lambda: sum(sizes(machine, ".log")) <= most,
            f"{machine.name} keeps what was deleted on a full disk",
            within_s=_FORGOTTEN_IN_S,
            broken=Invariant.SPACE_IS_GIVEN_BACK,
        )

    async def _nearly(self) -> None:
        ledger, (first, second), _ = await self._written(_BOTH)
        self._keep_from(ledger.writer, second)
        ledger.burst(1)
        await asyncio.sleep(MOMENT_S)
        await self._nearly_fill(first, second)
        self._heal(ledger.writer, second)
        await self._must_refuse(ledger, first, second)
        self._end(ledger.writer.kill)
        self._visit(ledger, actors.read_closed)
        text = "a ledger is not closed on disks that have room for what its recovery adds"
        await self._must(
            lambda: self._is_closed(ledger),
            text,
            ledger,
            within_s=3.0,
            broken=Invariant.LEDGER_IS_CLOSED,
        )

    async def _read_only(self) -> None:
        ledger, (machine, _), _ = await self._written(_BOTH)
        self._run(machine, _bookie(machine).operators_word.set("not now"))
        await self._until(lambda: _bookie(machine).operators_word.note is not None, 2.0)
        is_full = self._tape.chance(0.5)
        if is_full:
            await self._nearly_fill(machine)
            await self._let_write(machine)
        else:
            await self._restarted(machine)
        await self._must_refuse(ledger, machine)
        machine.disk.capacity_bytes = None
        if not is_full:
            await self._let_write(machine)
            await self._restarted(machine)
        await self._must(
            lambda: machine.serves and not _bookie(machine).is_read_only,
            f"{machine.name} stays read-only, and nobody wants it to",
            within_s=5.0,
            broken=Invariant.READ_ONLY_AS_LONG_AS_WANTED,
        )

    async def _lost(self) -> None:
        ledger, (machine, _), _ = await self._written(_BOTH)
        for _ in range(3):
            await self._append(ledger, self._tape.pick((1, 2, 3)))
            await self._flushed()
        machine = self._life.cluster.victim or machine
        self._end(machine.kill)
        await self._until(lambda: machine.process is None, 1.0)
        path = index_path(machine)
        rows = tables(machine).runs.get(ledger.ledger_id, [])
        spoilt: StoredRun | None = None
        if rows and self._tape.chance(0.8):
            spoilt = self._tape.pick(rows[:2])
            self._spoil(machine, spoilt, spoilt.first_entry_id)
        machine.disk.indexes.pop(path)
        await self._started(machine, "no index")
        for row in rows:
            if row is not spoilt:
                await self._must_have(
                    machine, ledger, range(row.first_entry_id, row.last_entry_id + 1)
                )

    async def _unread(self) -> None:
        ledger, (machine, _), _ = await self._written(_BOTH)
        await self._append(ledger, 4)
        self._end(ledger.writer.kill)
        self._visit(ledger, actors.read_closed)
        await self._until(lambda: self._is_closed(ledger), 2.0)
        await self._flushed()
        machine = self._life.cluster.victim or machine
        entry_id = self._tape.below(ledger.sent)
        place = place_of(machine, ledger.ledger_id, entry_id)
        row = tables(machine).between(ledger.ledger_id, entry_id, entry_id)[0]
        self._spoil(machine, row, entry_id)
        self._client("a", partial(actors.replicate, self._life))
        await self._must(
            lambda: place_of(machine, ledger.ledger_id, entry_id) not in (None, place),
            f"nobody copies entry {entry_id} back, which is damaged on {machine.name}",
            ledger,
            within_s=_HEALED_IN_S,
            broken=Invariant.NO_LEDGER_STAYS_UNDERREPLICATED,
        )

    # Their steps

    async def _half_dead(self) -> tuple[OneLedger, OneLedger]:
        """Return two ledgers that share their entry logs, with all that they will ever have."""
        doomed, _, _ = await self._written(_BOTH)
        kept, _, _ = await self._written(_BOTH)
        for _ in range(5):
            await self._append(doomed, 2)
            await self._append(kept, 1)
            await self._flushed()
        return doomed, kept

    async def _flushed(self) -> None:
        """Wait until all that was added lies in entry logs."""
        await asyncio.sleep(2 * DISKS["flush_interval_s"] + MOMENT_S)

    def _fill(self, machine: BookieMachine, capacity_bytes: int) -> None:
        machine.was_full = machine.was_struck = True
        machine.disk.capacity_bytes = capacity_bytes

    async def _nearly_fill(self, *machines: BookieMachine) -> None:
        """Leave less room than a bookie that takes adds has, and more than nothing."""
        for machine in machines:
            # It would use its reserve, which is a large part of a small disk.
            _collector(machine).suspend()
        await self._flushed()
        for machine in machines:
            self._fill(machine, machine.disk.used_bytes() * 100 // 97)
        await self._stay_full(_LOOKED_AT_S, *machines)

    async def _stay_full(self, duration_s: float, *machines: BookieMachine) -> None:
        """Wait, and give up if a disk has room meanwhile: a reserve is a large part of it."""
        try:
            await self._until(lambda: any(map(has_room, machines)), duration_s)
        except NotReachedError:
            if self._life.is_rough:
                return
        raise NotReachedError

    def _spoil(self, machine: BookieMachine, row: StoredRun, entry_id: EntryId) -> None:
        """Damage an entry of a run: its size, which becomes impossible, or what it is."""
        if self._life.plan.digest_type is DigestType.DUMMY:
            # Nobody would find it.
            raise NotReachedError
        self._life.cluster.victim = machine
        path = f"{tables(machine).entry_logs[row.entry_log_id]}/{entry_log_name(row.entry_log_id)}"
        at = row.position_of(entry_id)
        if self._tape.chance(0.5):
            machine.disk.damage(path, at, b"\x7f\xff\xff\xff")
            return
        at += 4 + self._tape.below(row.size_of(entry_id))
        machine.disk.damage(path, at, bytes([machine.disk.get(path)[at] ^ 1]))

    async def _restarted(self, machine: BookieMachine) -> None:
        self._end(self._tape.pick((machine.kill, machine.cut_power)))
        await self._started(machine, "nothing wrong")

    async def _started(self, machine: BookieMachine, on_what: str) -> None:
        """Start a bookie that was just ended."""
        await self._until(lambda: machine.process is None, 1.0)
        self._end(machine.boot_up)
        text = f"{machine.name} does not start on {on_what}"
        broken = Invariant.BOOKIES_START_AND_STAY
        await self._must(lambda: machine.serves, text, within_s=5.0, broken=broken)

    async def _let_write(self, machine: BookieMachine) -> None:
        """Have the operator take its word back, and be told so."""
        self._run(machine, _bookie(machine).operators_word.set(None))
        await self._until(lambda: _bookie(machine).operators_word.note is None, 2.0)

    async def _must_refuse(self, ledger: OneLedger, *machines: BookieMachine) -> None:
        """Have an entry added that read-only bookies have to refuse."""
        before = [self._last_entry_of(machine, ledger) for machine in machines]
        full = [machine for machine in machines if machine.disk.capacity_bytes is not None]
        ledger.burst(1)
        await self._stay_full(10 * MOMENT_S, *full)
        for machine, last in zip(machines, before, strict=True):
            if self._last_entry_of(machine, ledger) > last:
                text = f"{machine.name} takes an add of a writer"
                broken = Invariant.READ_ONLY_AS_LONG_AS_WANTED
                self._life.history.violation(broken, text, ledger.ledger_id)

    async def _must_have(
        self, machine: BookieMachine, ledger: OneLedger, entry_ids: Sequence[EntryId]
    ) -> None:
        found: list[bytes | BaseException] = []
        wanted = [(ledger.ledger_id, entry_id) for entry_id in entry_ids]
        self._deliver(machine, partial(_bookie(machine).storage.read, wanted, found.extend))
        await self._until(lambda: len(found) == len(wanted), 2.0)
        for entry_id, entry in zip(entry_ids, found, strict=True):
            if not isinstance(entry, bytes):
                text = f"{machine.name} does not have entry {entry_id}: {entry}"
                broken = Invariant.ALL_COMMITTED_ENTRIES_REACH_ACK_QUORUM
                self._life.history.violation(broken, text, ledger.ledger_id)


def _bookie(machine: BookieMachine) -> Bookie:
    """Return the bookie that serves, or give up."""
    if machine.bookie is None or not machine.serves:
        raise NotReachedError
    return machine.bookie


def _collector(machine: BookieMachine) -> Collector:
    collector = _bookie(machine).collector
    assert collector is not None
    return collector


def _has(machine: BookieMachine, ledger: OneLedger) -> bool:
    return ledger.ledger_id in _bookie(machine).storage.ledger_ids()
