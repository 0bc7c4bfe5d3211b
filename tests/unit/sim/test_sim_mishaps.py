"""What goes wrong in a simulation goes wrong as it does on machines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quorumbook.sim.disks.disk import SimDisk
from quorumbook.sim.kernel import SECOND, Kernel
from quorumbook.sim.life import Life, Variation
from quorumbook.sim.network import SimulatedNetwork
from quorumbook.sim.process import Machine, Process


class Sink(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = b""
        self.error: Exception | None = None
        self.is_paused = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False


class Pair:
    """Two machines and a connection from one to the other."""

    def __init__(self, seed: int = 1) -> None:
        self.kernel = Kernel(seed)
        self.network = SimulatedNetwork(self.kernel)
        self.near, self.far = Sink(), Sink()
        self.machines = {name: self.machine(name) for name in ("a", "b")}
        self.machines["b"].start(self.listen)
        self.run(lambda: bool(self.network.listeners))
        self.machines["a"].start(self.connect)
        self.run(lambda: self.near.transport is not None and self.far.transport is not None)

    def machine(self, name: str) -> Machine:
        return Machine(self.kernel, self.network, name, lambda *_: None)

    async def listen(self, process: Process) -> None:
        await process.env.network.listen("b", 1, lambda: self.far)
        await asyncio.get_running_loop().create_future()

    async def connect(self, process: Process) -> None:
        await process.env.network.connect("b", 1, lambda: self.near)
        await asyncio.get_running_loop().create_future()

    def run(self, is_over: Callable[[], bool], seconds: float = 60) -> bool:
        return self.kernel.run(is_over, self.kernel.now_ns + int(seconds * SECOND))

    def send(self, data: bytes) -> None:
        self.machines["a"].process.loop.deliver(self.near.transport.write, data)


def test_a_connection_is_reset_at_a_byte():
    pair = Pair()
    pair.near.transport.carries_bytes = 10
    pair.send(b"0123456")
    pair.send(b"789abcdef")
    assert pair.run(lambda: pair.near.error is not None and pair.far.error is not None)
    assert pair.far.received == b"0123456789"
    assert isinstance(pair.near.error, ConnectionResetError)


def test_a_process_that_takes_nothing_in_stops_its_sender_until_it_goes_on():
    pair = Pair()
    pair.machines["b"].process.pause(5 * SECOND)
    for _ in range(20):
        pair.send(bytes(50_000))
    assert pair.run(lambda: pair.near.is_paused, 4)
    pair.run(lambda: False, 1)
    assert not pair.far.received
    assert pair.near.is_paused
    assert pair.run(lambda: len(pair.far.received) == 1_000_000)
    assert pair.run(lambda: not pair.near.is_paused)


def test_damage_outlives_a_loss_of_power():
    disk = SimDisk()
    disk.put("/d/x", bytes(2000))
    disk.damage("/d/x", 700, b"\1")
    assert disk.crash().get("/d/x")[700] == 1


def test_a_disk_in_another_machine_has_its_files_where_that_one_looks():
    disk = SimDisk()
    disk.put("/root/b0/ledgers/current/VERSION", b"5")
    moved = disk.copy(("/root/b0", "/root/b1"))
    assert moved.files() == ["/root/b1/ledgers/current/VERSION"]
    assert moved.list_directory("/root/b1/ledgers") == ["current"]


def _arrivals(seed: int, sent: bytes) -> list[bytes]:
    pair = Pair(seed)
    pair.network.rechunk = 1.0
    received: list[bytes] = []
    pair.far.data_received = received.append  # type: ignore[method-assign]
    pair.send(sent)
    assert pair.run(lambda: sum(map(len, received)) == len(sent))
    return received


def test_a_piece_of_any_size_is_cut_within_the_length_of_its_first_frame():
    firsts = {len(_arrivals(seed, bytes(2000))[0]) for seed in range(40)}
    assert {1, 2, 3, 4, 5, 6, 7, 8} <= firsts
    assert max(firsts) > 100


def _takes_ns(slow: dict[str, float]) -> int:
    pair = Pair()
    pair.network.slow = slow
    before_ns = pair.kernel.now_ns
    pair.send(b"1")
    assert pair.run(lambda: pair.far.received == b"1")
    return pair.kernel.now_ns - before_ns


def test_a_slow_machine_is_slow_on_its_links_alone():
    plain = _takes_ns({"c": 1000.0})
    assert plain < 2_000_000
    assert _takes_ns({"a": 1000.0}) > 20 * plain
    assert _takes_ns({"b": 1000.0}) > 20 * plain


def test_in_some_seeds_one_bookie_is_slow_until_all_is_well_again():
    slow = []
    for seed in range(20):
        life = Life(seed, variation=Variation(plan={"mishaps": ("kill_bookie",)}, phase=""))
        life.nemesis.begin()
        slow.append(dict(life.cluster.network.slow))
        life.nemesis.heal()
        assert not life.cluster.network.slow
        life.cluster.bury()
    assert {len(each) for each in slow} == {0, 1}
    assert {name[0] for each in slow for name in each} == {"b"}
