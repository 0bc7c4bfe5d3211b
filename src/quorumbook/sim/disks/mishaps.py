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

_CALLS_MAX = 30
_LONGEST_FULL_NS = 6 * SECOND
_HEADER_BYTES = 1024
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
            machine.disk.faults.heal()
            machine.disk.capacity_bytes = None
            machine.give_disk_back()

    def _fail_read(self, machine: BookieMachine) -> None:
        machine.disk.faults.fail("read", at=1 + self._tape.below(_CALLS_MAX))

    def _fail_sync(self, machine: BookieMachine) -> None:
        machine.disk.faults.fail("sync", at=1 + self._tape.below(_CALLS_MAX))

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
        """Flip a bit of an entry log, or put another sector in a sector's place."""
        plan = self._cluster.plan
        if plan.digest_type is DigestType.DUMMY or plan.quorums[2] < 2:
            return
        victim = self._cluster.victim = self._cluster.victim or machine
        disk = victim.disk
        logs = [path for path in disk.files() if path.endswith(".log")]
        logs = [path for path in logs if len(disk.get(path)) > _HEADER_BYTES]
        if not logs:
            return
        path = self._tape.pick(logs)
        size = len(disk.get(path))
        at = _HEADER_BYTES + self._tape.below(size - _HEADER_BYTES)
        self._kernel.trace.note(
            victim.name, "has a damaged log", f"{path[len(victim.root) :]} {at}"
        )
        if self._tape.chance(0.5):
            disk.damage(path, at, bytes([disk.get(path)[at] ^ 1 << self._tape.below(8)]))
            return
        at -= at % SECTOR
        stale = disk.get(path)[_HEADER_BYTES : _HEADER_BYTES + SECTOR]
        disk.damage(path, at, stale[: size - at] if self._tape.chance(0.5) else bytes(1))

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
