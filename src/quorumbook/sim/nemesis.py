"""Mishaps: when they come, and to whom.

A mishap ends by itself after a while; ``heal`` ends them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from quorumbook.sim.cluster import SimulatedCluster
from quorumbook.sim.disks.mishaps import DiskMishaps
from quorumbook.sim.kernel import SECOND
from quorumbook.sim.metadata.etcd_members import NAMES as ETCD_NAMES
from quorumbook.sim.metadata.zookeeper import LEADER, Server
from quorumbook.sim.plan import DISK_MISHAPS
from quorumbook.sim.process import SYNC_NS, Machine

_LONGEST_S = 12.0
_CALLS_MAX = 40
_RESET_WITHIN_BYTES = 2000
_SKEW_MS = 3_600_000
#: How often one of the bookies is slow all the time, and how slow: its answers come in
#: milliseconds, or in tenths of a second, where time-outs are half a second or more.
_SLOW_SHARE = 0.3
_SLOW_FACTORS = (10.0, 100.0, 600.0)


class Nemesis:
    """The source of mishaps of one run.

    Args:
        cluster: Whose.
        start_client: Starts a client machine's program again.
    """

    def __init__(self, cluster: SimulatedCluster, start_client: Callable[[Machine], None]) -> None:
        self._cluster = cluster
        self._kernel = cluster.kernel
        self._tape = cluster.kernel.tape
        self._start_client = start_client
        self._disks = DiskMishaps(cluster)
        self._is_over = False
        #: How often each came.
        self.counts: Counter[str] = Counter()

    def begin(self) -> None:
        """Begin."""
        plan, network = self._cluster.plan, self._cluster.network
        if plan.has("wrong_clocks"):
            for machine in [*self._cluster.bookies, *self._cluster.clients]:
                machine.skew_ms = int(self._tape.between(-_SKEW_MS, _SKEW_MS))
        network.tail, network.rechunk = plan.tail, plan.rechunk
        if plan.mishaps and self._tape.chance(_SLOW_SHARE):
            slow = self._bookie().name
            network.slow[slow] = self._tape.pick(_SLOW_FACTORS)
            self._kernel.trace.note(slow, "is slow", network.slow[slow])
        self._drop(plan.metadata_drops)
        if plan.mishaps:
            self._wait()

    def heal(self) -> None:
        """End all mishaps, and start what is down."""
        self._is_over = True
        cluster = self._cluster
        self._kernel.trace.note("nemesis", "heals")
        cluster.network.heal_all()
        cluster.network.tail = 0.0
        cluster.network.slow.clear()
        self._drop(0.0)
        self._disks.heal()
        for server in cluster.servers:
            server.boot_up()
        if cluster.etcd is not None:
            cluster.etcd.members.heal()
        for machine in cluster.bookies:
            machine.slow_syncs, machine.sync_ns = 0.0, SYNC_NS
            if machine.process is not None:
                machine.process.calls_left, machine.process.dies_at = 0, ""
            machine.boot_up()

    def _drop(self, probability: float) -> None:
        self._cluster.tree.drops = probability
        if self._cluster.etcd is not None:
            self._cluster.etcd.drops = probability
        if self._cluster.zookeeper is not None:
            self._cluster.zookeeper.drops = probability

    def _wait(self) -> None:
        mean_ns = int(self._cluster.plan.mishap_interval_s * SECOND)
        self._kernel.after(int(mean_ns * self._tape.between(0.2, 1.8)), self._strike)

    def _strike(self) -> None:
        if self._is_over:
            return
        name = self._tape.pick(self._cluster.plan.mishaps)
        self.counts[name] += 1
        if name in DISK_MISHAPS:
            self._disks.strike(name)
        else:
            getattr(self, f"_{name}")()
        self._wait()

    def _a_while_ns(self) -> int:
        # Mostly short: a time-out is a second or two.
        return int(self._tape.unit() ** 2 * _LONGEST_S * SECOND)

    def _bookie(self) -> Machine:
        return self._tape.pick(self._cluster.bookies)

    def _boot_later(self) -> None:
        for machine in self._cluster.bookies:
            if machine.process is None:
                self._kernel.after(self._a_while_ns(), machine.boot_up)

    def _kill_bookie(self) -> None:
        self._bookie().kill()
        self._boot_later()

    def _cut_power(self) -> None:
        self._bookie().cut_power()
        self._boot_later()

    def _cut_power_in_job(self) -> None:
        machine = self._bookie()
        machine.cut_power_in_job(1 + self._tape.below(_CALLS_MAX))
        self._kernel.after(SECOND, self._boot_later)

    def _cut_power_of_all(self) -> None:
        for machine in self._cluster.bookies:
            machine.cut_power()
        self._boot_later()

    def _pause_bookie(self) -> None:
        self._pause(self._bookie())

    def _pause_client(self) -> None:
        self._pause(self._tape.pick(self._cluster.clients))

    def _pause(self, machine: Machine) -> None:
        if machine.process is not None and not machine.process.loop.is_paused:
            machine.process.pause(self._a_while_ns())

    def _kill_client(self) -> None:
        machine = self._tape.pick(self._cluster.clients)
        if machine.process is not None:
            machine.kill()
            self._kernel.after(self._a_while_ns(), self._start_client, machine)

    def _names(self) -> list[str]:
        return [each.name for each in [*self._cluster.bookies, *self._cluster.clients]]

    def _cut(self, source: str, target: str, duration_ns: int) -> None:
        network = self._cluster.network
        self._kernel.trace.note(source, "is cut off from", target)
        network.cut(source, target)
        self._kernel.after(duration_ns, network.heal, source, target)

    def _cut_link(self) -> None:
        source, target = self._tape.pick(self._names()), self._tape.pick(self._names())
        duration_ns = self._a_while_ns()
        self._cut(source, target, duration_ns)
        if self._tape.chance(0.5):
            self._cut(target, source, duration_ns)

    def _isolate(self) -> None:
        alone, duration_ns = self._tape.pick(self._names()), self._a_while_ns()
        with_metadata = self._tape.chance(0.5)
        metadata = self._cluster.metadata_names if with_metadata else []
        for name in [*self._names(), *metadata]:
            self._cut(alone, name, duration_ns)
            self._cut(name, alone, duration_ns)

    def _cut_metadata(self) -> None:
        name, duration_ns = self._tape.pick(self._names()), self._a_while_ns()
        metadata = self._cluster.metadata_names
        if self._tape.chance(0.5):
            metadata = [self._tape.pick(metadata)]
        for each in metadata:
            self._cut(name, each, duration_ns)
            if self._tape.chance(0.5):
                self._cut(each, name, duration_ns)

    def _reset_connection(self) -> None:
        self._cluster.network.reset_one()

    def _reset_within(self) -> None:
        self._cluster.network.reset_within(self._tape.below(_RESET_WITHIN_BYTES))

    def _swizzle(self) -> None:
        """Clog the links of a few machines one by one, and let them go in another order."""
        names = self._names()
        clogged = [self._tape.pick(names) for _ in range(1 + self._tape.below(3))]
        for name in clogged:
            since_ns = int(self._tape.unit() * SECOND)
            self._kernel.after(since_ns, self._clog, name, self._a_while_ns())

    def _clog(self, name: str, duration_ns: int) -> None:
        if not self._is_over:
            for other in self._names():
                self._cut(name, other, duration_ns)

    def _zookeeper(self) -> Server | None:
        servers = self._cluster.servers
        return self._tape.pick(servers) if servers else None

    def _kill_metadata_server(self) -> None:
        server, etcd = self._zookeeper(), self._cluster.etcd
        if server is not None:
            server.machine.kill()
            self._kernel.after(self._a_while_ns(), server.boot_up)
        elif etcd is not None:
            name = self._tape.pick(ETCD_NAMES)
            etcd.members.kill(name)
            self._kernel.after(self._a_while_ns(), etcd.members.boot_up, name)

    def _pause_metadata_server(self) -> None:
        server, etcd = self._zookeeper(), self._cluster.etcd
        if server is not None:
            self._pause(server.machine)
        elif etcd is not None:
            etcd.members.stand_still(self._tape.pick(ETCD_NAMES), self._a_while_ns())

    def _part_metadata_server(self) -> None:
        server, etcd = self._zookeeper(), self._cluster.etcd
        if server is not None:
            self._cut(server.name, LEADER, self._a_while_ns())
        elif etcd is not None:
            etcd.members.part(self._tape.pick(ETCD_NAMES), self._a_while_ns())
