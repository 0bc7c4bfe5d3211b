"""What goes wrong with the disks of bookies: calls fail, space runs out, sectors change, disks go.

Calls that fail and full disks can come to every bookie.  Damage comes to one bookie of a seed,
because more copies than a ledger can lose would be lost for good.  A disk that is empty, or
another bookie's, must be refused by the cookie, and is taken out again.
"""

from __future__ import annotations

from quorumbook.protocol.digest import DigestType
from quorumbook.sim.cluster import BookieMachine, SimulatedCluster
from quorumbook.sim.disks.disk import SECTOR, SimDisk
from quorumbook.sim.kernel import SECOND, Kernel, Tape
from quorumbook.storage.directories.places import INDEX_NAME
from quorumbook.storage.states.state_file import NAME as STATES_NAME

_CALLS_MAX = 30
_LONGEST_FULL_NS = 6 * SECOND
_HEADER_BYTES = 1024
_PERMANENT_SHARE = 0.2
_CHANGING = ("write", "allocate", "truncate", "create", "replace", "sync_directory")


class DiskMishaps:
    """Does them.

    Args:
        cluster: Whose disks they are.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._kernel: Kernel = cluster.kernel
        self._tape: Tape = cluster.kernel.tape

    def strike(self, name: str) -> None:
        """Do one of ``plan.DISK_MISHAPS``."""
        machine = self._tape.pick(self._cluster.bookies)
        machine.was_struck = True
        getattr(self, f"_{name}")(machine)

    def heal(self) -> None:
        """End them; what is damaged stays so."""
        for machine in self._cluster.bookies:
            # First: its own may have gone bad before it was exchanged.
            machine.give_disk_back()
            machine.disk.faults.heal()
            machine.disk.capacity_bytes = None

    def _fail_read(self, machine: BookieMachine) -> None:
        # Of all reads, few are those of an index, and those of a start are the journals'.
        name = self._tape.pick(("", ".log", ".txn", INDEX_NAME))
        self._fail(machine, "read", name)

    def _fail_sync(self, machine: BookieMachine) -> None:
        self._fail(machine, "sync")

    def _fail(self, machine: BookieMachine, operation: str, name: str = "") -> None:
        """Let a call fail once, or all calls from then on until the disk is mended."""
        at = 1 + self._tape.below(_CALLS_MAX)
        is_permanent = self._tape.chance(_PERMANENT_SHARE)
        machine.disk.faults.fail(operation, name, at=at, permanent=is_permanent)

    def _fail_write(self, machine: BookieMachine) -> None:
        operation = self._tape.pick(_CHANGING)
        # Systems write whole blocks or nothing of them.
        written = self._tape.below(4) * SECTOR if operation == "write" else None
        at = 1 + self._tape.below(_CALLS_MAX)
        machine.disk.faults.fail(operation, at=at, written_bytes=written)

    def _fill_disk(self, machine: BookieMachine) -> None:
        machine.was_full = True
        machine.disk.capacity_bytes = machine.disk.used_bytes() + self._tape.below(8192)
        self._kernel.trace.note(machine.name, "has a full disk", machine.disk.capacity_bytes)

        def empty() -> None:
            machine.disk.capacity_bytes = None

        self._kernel.after(int(self._tape.unit() * _LONGEST_FULL_NS), empty)

    def _damage_log(self, machine: BookieMachine) -> None:
        """Damage an entry log, a journal, or the copy of the ledgers' states."""
        plan = self._cluster.plan
        if plan.digest_type is DigestType.DUMMY or plan.quorums[2] < 2:
            return
        victim = self._cluster.victim = self._cluster.victim or machine
        self._tape.pick(
            (self._damage_entries, self._damage_entries, self._damage_journal, self._damage_states)
        )(victim)

    def _damage_entries(self, victim: BookieMachine) -> None:
        """Flip a bit of an entry log, or put other bytes in a sector's place."""
        found = self._chosen(victim, ".log", _HEADER_BYTES)
        if found is None:
            return
        path, size = found
        if self._tape.chance(0.5):
            self._flip(victim, path, _HEADER_BYTES, size)
            return
        disk = victim.disk
        sector = (_HEADER_BYTES + self._tape.below(size - _HEADER_BYTES)) // SECTOR
        content = b""
        older = {each: held for each, held in sorted(disk.older_sectors(path).items())
                 if each * SECTOR >= _HEADER_BYTES}  # fmt: skip
        if older and self._tape.chance(0.5):
            # A write that the disk took and did not do.
            sector = self._tape.pick([*older])
            content = older[sector]
        at = sector * SECTOR
        self._kernel.trace.note(victim.name, "has another sector", f"{path} {at}")
        disk.damage(path, at, content.ljust(SECTOR, b"\0")[: size - at])

    def _damage_journal(self, victim: BookieMachine) -> None:
        """Kill a bookie, and flip a bit in the first half of one of its journals.

        A bookie that refuses it gets an empty disk, which only some metadata stores allow here.
        """
        if not victim.can_lose_disk or not victim.serves:
            return
        found = self._chosen(victim, ".txn", 2 * SECTOR)
        victim.kill()
        if found is not None:
            path, _ = found
            size = len(victim.disk.get(path).rstrip(b"\0"))
            if size > 2 * SECTOR:
                self._flip(victim, path, SECTOR, size // 2)
                victim.damaged_journals.add(path)
        victim.boot_up()

    def _damage_states(self, victim: BookieMachine) -> None:
        """Flip a bit of the copy of the ledgers' states, which a start reads."""
        found = self._chosen(victim, f"/{STATES_NAME}", 0)
        if found is not None:
            self._flip(victim, found[0], 0, found[1])

    def _chosen(self, victim: BookieMachine, ending: str, least: int) -> tuple[str, int] | None:
        """Return one of the files of a kind that are longer than so much, and its length."""
        disk = victim.disk
        sizes = {path: len(disk.get(path)) for path in disk.files() if path.endswith(ending)}
        longer = [path for path in sizes if sizes[path] > least]
        if not longer:
            return None
        path = self._tape.pick(longer)
        return path, sizes[path]

    def _flip(self, victim: BookieMachine, path: str, start: int, end: int) -> None:
        """Flip a bit between two places of a file."""
        disk = victim.disk
        at = start + self._tape.below(end - start)
        self._kernel.trace.note(victim.name, "has a flipped bit", f"{path} {at}")
        disk.damage(path, at, bytes([disk.get(path)[at] ^ 1 << self._tape.below(8)]))

    def _lose_disk(self, machine: BookieMachine) -> None:
        if machine.serves and not machine.has_wrong_disk:
            machine.kill()
            machine.take_wrong_disk(SimDisk())
            machine.boot_up()

    def _swap_disks(self, machine: BookieMachine) -> None:
        other = self._tape.pick(self._cluster.bookies)
        pair = (machine, other)
        if other is machine or any(each.has_wrong_disk or not each.serves for each in pair):
            return
        for each in pair:
            each.kill()
        disks = [each.disk for each in pair]
        machine.take_wrong_disk(disks[1].copy((other.root, machine.root)))
        other.take_wrong_disk(disks[0].copy((machine.root, other.root)))
        for each in pair:
            each.boot_up()
