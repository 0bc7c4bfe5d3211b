"""A user's own program against a simulated cluster, from one seed: ``quorumbook.testing.simulate``.

The program is an asyncio coroutine.  It starts processes on machines of their own, which are
killed, paused and cut off as bookies are, and are started again; it looks on, untouched by
mishaps, and says in the end whether everything is right, by ``assert`` or any other exception.
What processes share with it, Python objects, is outside of the simulated world: what it keeps
there no crash takes away, which is what a record of promises needs.

What a seed does to bookies and network is drawn as for every other run (``plan``, ``nemesis``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Generic, TextIO, TypeVar

from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_store
from quorumbook.errors import QuorumbookError
from quorumbook.sim.apart import apart
from quorumbook.sim.cluster import SimulatedCluster
from quorumbook.sim.histories.ledgers import History
from quorumbook.sim.histories.machines import watched_machines
from quorumbook.sim.kernel import MILLISECOND, SECOND, Kernel
from quorumbook.sim.nemesis import Nemesis
from quorumbook.sim.plan import draw
from quorumbook.sim.process import Machine, Process
from quorumbook.streams.format.binding import Binding
from quorumbook.streams.metadata.namespace_nodes import write_binding
from quorumbook.streams.namespace import Namespace

T = TypeVar("T")

_RESTART_NS = 300 * MILLISECOND


class SimulationError(Exception):
    """The simulated cluster itself went wrong, or the program took too long."""


@dataclass(frozen=True)
class SimulationResult(Generic[T]):
    """What came of a simulation."""

    seed: int
    #: What the program returned.
    value: T
    #: Two runs with the same hash were the same.
    trace_hash: str
    virtual_s: float
    #: How often each mishap came.
    mishaps: dict[str, int]


class SimulatedMachine:
    """A machine of the simulated world, as the process on it sees it."""

    def __init__(self, cluster: SimulatedCluster, machine: Machine) -> None:
        self._cluster = cluster
        self._machine = machine
        #: Chance that is a part of the seed.
        self.random = random.Random(cluster.kernel.tape.child().getrandbits(64))

    @property
    def name(self) -> str:
        """Its name."""
        return self._machine.name

    def time_s(self) -> float:
        """Return virtual seconds since the beginning, instead of ``time.monotonic``."""
        return self._cluster.kernel.now_ns / SECOND

    def connect(self, **options: Any) -> BookKeeper:
        """Return a client for ``async with``; ``options`` are those of ``ClientOptions``."""
        return self._cluster.client(self._process, **options)

    @contextlib.asynccontextmanager
    async def namespace(self, path: str = "/streams", **options: Any) -> AsyncIterator[Namespace]:
        """Open a namespace of streams, made if there is none, with a client of its own."""
        async with self.connect(**options) as client:
            store = client_store(client)
            binding = Binding(ledgers_path=store.ledgers_root)
            await write_binding(store, path, binding, exist_ok=True)
            address = f"memory://simulated#{path}"
            async with await Namespace.open(
                address, client=client, env=self._process.env
            ) as namespace:
                yield namespace

    @property
    def _process(self) -> Process:
        process = self._machine.process
        assert process is not None, "only its own process uses a machine"
        return process


#: What a process runs; an error of the cluster ends it, and it is started again.
Main = Callable[[SimulatedMachine], Awaitable[None]]


class Simulation(SimulatedMachine):
    """What the program gets: the simulated cluster, seen from a machine that has no mishaps."""

    def __init__(self, world: _World, machine: Machine) -> None:
        super().__init__(world.cluster, machine)
        self._world = world

    @property
    def seed(self) -> int:
        """The seed."""
        return self._world.kernel.seed

    def start(self, name: str, main: Main) -> None:
        """Start a process on a machine of its own; with the first one mishaps begin.

        If it is killed, or raises a ``QuorumbookError``, it is started again.  Any
        other exception of it ends the simulation.  When ``main`` returns, the process has ended,
        and is not started again.
        """
        self._world.start(name, main)

    def kill(self, name: str) -> None:
        """Kill a process; it is started again."""
        self._world.kill(name)

    def heal(self) -> None:
        """End all mishaps: bookies start, the network is whole, nobody is killed any more."""
        self._world.nemesis.heal()

    async def finished(self, *names: str) -> None:
        """Wait until processes have ended well."""
        for name in names:
            await self._world.ends[name].wait()


class _World:
    """One simulation under way."""

    def __init__(self, kernel: Kernel, *, bookies: int | None) -> None:
        self.kernel = kernel
        # It needs an extra that whoever runs this need not have.
        plan = replace(draw(kernel.tape), has_etcd=False)
        if bookies is not None:
            plan = replace(plan, bookies=bookies)
        self.history = History(self.kernel)
        self.cluster = SimulatedCluster(self.kernel, plan, self.history)
        self.nemesis = Nemesis(self.cluster, self._start_again)
        self.has_faults = True
        #: By process: whether its ``main`` has returned.
        self.ends: dict[str, asyncio.Event] = {}
        self._mains: dict[str, Main] = {}
        self.failure: BaseException | None = None
        self.is_over = False
        self.value: Any = None

    def run(self, program: Callable[[Simulation], Coroutine[Any, Any, T]], limit_s: float) -> None:
        self.cluster.start()
        self.cluster.clients.clear()
        machine = Machine(self.kernel, self.cluster.network, "program", self.cluster.error)

        async def control(process: Process) -> None:
            del process
            try:
                self.value = await program(Simulation(self, machine))
            except Exception as error:  # it is raised where the simulation was begun
                self.failure = self.failure or error
            self.is_over = True

        machine.start(control)
        limit_ns = self.kernel.now_ns + int(limit_s * SECOND)
        in_time = self.kernel.run(self._is_over, limit_ns)
        machine.bury()
        if self.failure is not None:
            raise self.failure
        if self.history.violations:
            raise SimulationError(self.history.violations[0])
        if not in_time:
            raise SimulationError(f"the program did not end within {limit_s:g} virtual seconds")

    def _is_over(self) -> bool:
        return self.is_over or self.failure is not None or bool(self.history.violations)

    def start(self, name: str, main: Main) -> None:
        if name in self._mains:
            raise ValueError(f"a process {name!r} was started before")
        self._mains[name] = main
        self.ends[name] = asyncio.Event()
        is_first = not self.cluster.clients
        self._start_again(self.cluster.add_client(name))
        if is_first and self.has_faults:
            self.nemesis.begin()

    def kill(self, name: str) -> None:
        for machine in self.cluster.clients:
            if machine.name == name and machine.process is not None:
                machine.kill()
                self.kernel.after(_RESTART_NS, self._start_again, machine)

    def _start_again(self, machine: Machine) -> None:
        has_ended = self.ends[machine.name].is_set()
        if machine.process is None and not has_ended and not self.is_over:
            machine.start(lambda process: self._live(machine, process))

    async def _live(self, machine: Machine, process: Process) -> None:
        try:
            await self._mains[machine.name](SimulatedMachine(self.cluster, machine))
        except QuorumbookError as error:
            self.kernel.trace.note(machine.name, "ends", f"{type(error).__name__}: {error}")
            self.kernel.after(0, self._ended, machine, process)
        except Exception as error:  # it is raised where the simulation was begun
            if not process.is_dead:
                self.failure = self.failure or error
        else:
            self.ends[machine.name].set()

    def _ended(self, machine: Machine, process: Process) -> None:
        if machine.process is process:
            machine.kill()
            self.kernel.after(_RESTART_NS, self._start_again, machine)


class _ToTrace(logging.Handler):
    """Shows what bookies and clients log between the lines of the trace.

    It is no part of the trace's hash: it names directories of the real machine.
    """

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(logging.INFO)
        self._kernel = kernel

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line down, if somebody will read it."""
        lines = self._kernel.trace.lines
        if lines is not None:
            lines.append(f"{self._kernel.now_ns / SECOND:12.6f} log          {record.getMessage()}")


def simulate(
    seed: int,
    program: Callable[[Simulation], Coroutine[Any, Any, T]],
    *,
    bookies: int | None = None,
    faults: bool = True,
    limit_s: float = 600.0,
    trace: TextIO | None = None,
) -> SimulationResult[T]:
    """Run an asyncio program against a simulated cluster; the same seed is the same run.

    Time is virtual: an hour of waiting costs nothing.  Threads, sockets, subprocesses and
    executors are refused; ``time`` and ``random`` of the machine would make runs differ.

    Args:
        seed: Which run.
        program: Gets a ``Simulation``, starts processes in it, and asserts what must hold.
        bookies: How many bookies there are; by default the seed decides.
        faults: Whether there are mishaps: kills, cuts of power, pauses, cut links, lost requests.
        limit_s: Virtual seconds that the program may take.
        trace: Gets everything that happened, for people.

    Returns:
        What the program returned, and a hash of all that happened.

    Raises:
        SimulationError: the program took too long, or the cluster broke a promise.
        BaseException: what the program or one of its processes raised, with the seed as a note.
    """
    kernel = Kernel(seed, keep_trace=trace is not None)
    try:
        with apart(_ToTrace(kernel)) as at_end:
            return _simulated(kernel, at_end, program, bookies, faults, limit_s)
    except BaseException as error:
        error.add_note(f"seed {seed} at {kernel.now_ns / SECOND:.3f} virtual seconds")
        raise
    finally:
        if trace is not None:
            trace.write("\n".join([*(kernel.trace.lines or ()), ""]))


def _simulated(
    kernel: Kernel,
    at_end: Callable[[Callable[[], None]], None],
    program: Callable[[Simulation], Coroutine[Any, Any, T]],
    bookies: int | None,
    faults: bool,
    limit_s: float,
) -> SimulationResult[T]:
    world = _World(kernel, bookies=bookies)
    at_end(world.cluster.bury)
    world.has_faults = faults
    with watched_machines(world.history):
        world.run(program, limit_s)
    return SimulationResult(
        kernel.seed,
        world.value,
        kernel.trace.digest(),
        kernel.now_ns / SECOND,
        dict(world.nemesis.counts),
    )
