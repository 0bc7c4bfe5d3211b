"""Machines and the processes on them: born, paused, killed, without power, born again.

A ``Machine`` outlives its processes: its disk, its boot, its wall clock's error.  A ``Process`` is
one life: an event loop, an ``Env`` around it, and the coroutine it was started for.

    kill        nothing of it runs again, no ``finally`` either; the disk keeps what was written
    power cut   the same, and the disk keeps what was synced and a part of the rest; also in the
                middle of a worker's job, between any two calls of the disk or during a sync
    pause       nothing runs; what becomes due waits

What jobs take in virtual time is here too: each call of the disk has a price.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from quorumbook.env import Env
from quorumbook.errors import QuorumbookError
from quorumbook.sim.disks.disk import SimDisk
from quorumbook.sim.kernel import MICROSECOND, MILLISECOND, SECOND, Kernel
from quorumbook.sim.loop import EscapeError, ProcessLoop
from quorumbook.sim.network import SimulatedNetwork
from quorumbook.sim.threads import ProcessDied, SimThreads

_START_WALL_MS = 1_700_000_000_000
_CALL_NS = 5 * MICROSECOND
SYNC_NS = 300 * MICROSECOND
_SLOWEST_SYNC_NS = 4 * SECOND
_SYNCS = frozenset(("sync", "sync_directory"))


class SimClock:
    """The clocks of a process."""

    def __init__(self, kernel: Kernel, machine: Machine, threads: SimThreads) -> None:
        self._kernel = kernel
        self._machine = machine
        self._threads = threads
        self._boot = machine.boot

    def now_ns(self) -> int:
        """Return virtual nanoseconds, of a job those of its own progress."""
        run = self._threads.running
        return self._kernel.now_ns if run is None else self._kernel.now_ns + run.elapsed_ns

    def wall_ms(self) -> int:
        """Return milliseconds since 1970, as wrong as this machine's clock is."""
        return _START_WALL_MS + self._machine.skew_ms + self.now_ns() // MILLISECOND

    def boot_id(self) -> str:
        """Return which boot this is."""
        return f"{self._machine.name} {self._boot}"


class NoPrograms:
    """There are none."""

    def run(self, words: Sequence[str], *, timeout_s: float) -> str:
        """Refuse."""
        raise EscapeError(f"a simulated process wants to run {words[0]}")


class Machine:
    """A name in the network, with a disk.

    Args:
        kernel: Time and chance.
        network: All machines.
        name: Its host name and address.
        on_error: Gets what asyncio would log, with the machine's name.
    """

    def __init__(
        self,
        kernel: Kernel,
        network: SimulatedNetwork,
        name: str,
        on_error: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self.kernel = kernel
        self.network = network
        self.name = name
        self.disk = SimDisk()
        self.boot = 1
        self.skew_ms = 0
        #: What a sync takes.
        self.sync_ns = SYNC_NS
        #: The probability that one takes long.
        self.slow_syncs = 0.0
        #: The probability that a job of a worker begins late.
        self.slow_threads = 0.0
        #: What a power cut leaves of each sector that was not synced.
        self.kept_share = 0.5
        self.process: Process | None = None
        #: How many processes there were.
        self.lives = 0
        self.on_error = on_error
        self._buried: list[ProcessLoop] = []

    @property
    def is_up(self) -> bool:
        """Tell whether a process runs, or stands still."""
        return self.process is not None

    @property
    def stands_still(self) -> bool:
        """Tell whether its process runs and does nothing."""
        return self.process is not None and self.process.loop.is_paused

    def start(self, main: Callable[[Process], Coroutine[Any, Any, None]]) -> Process:
        """Start a process; its life ends when the machine says so, not with the coroutine."""
        assert self.process is None
        self.kernel.trace.note(self.name, "starts")
        self.lives += 1
        process = self.process = Process(self)
        self._buried.append(process.loop)
        process.loop.deliver(lambda: process.begin(main(process)))
        return process

    def kill(self) -> None:
        """End the process as SIGKILL does."""
        if self.process is not None:
            self.kernel.trace.note(self.name, "is killed")
            self._end(is_silent=False)
            self._start_over_on(self.disk.after_kill())

    def cut_power(self, *, keeps_some: bool = False) -> None:
        """End the process, and lose what is not durable; or else only some of it."""
        if self.process is not None:
            tape = self.kernel.tape
            self.kernel.trace.note(self.name, "loses power")
            self._end(is_silent=tape.chance(0.5))
            keep = self.kept_share if keeps_some else tape.pick((0.0, self.kept_share, 1.0))
            self._start_over_on(self.disk.crash(tape.child(), keep=keep))
            self.boot += 1

    def _start_over_on(self, disk: SimDisk) -> None:
        self.disk.faults.outlive(disk.faults)
        self.disk = disk

    def cut_power_in_job(self, calls: int) -> None:
        """Lose power at a later call of the disk that changes something."""
        if self.process is not None:
            self.process.calls_left = calls

    def kill_in_sync(self, name: str) -> None:
        """Kill the process when it next syncs a file of some name, which is written by then."""
        if self.process is not None:
            self.process.dies_at, self.process.loses_power = name, False

    def cut_power_in_sync(self, name: str) -> None:
        """Lose power when the process next syncs a file of some name: some of it is durable."""
        if self.process is not None:
            self.process.dies_at, self.process.loses_power = name, True

    def bury(self) -> None:
        """Let go of everything, at the end of the simulation."""
        if self.process is not None:
            self._end(is_silent=True)
        for loop in self._buried:
            loop.bury()
        self._buried.clear()

    def _end(self, *, is_silent: bool) -> None:
        process, self.process = self.process, None
        assert process is not None
        process.is_dead = True
        process.loop.die()
        process.threads.die()
        self.network.forget(self.name, is_silent=is_silent)
        for goodbye in process.at_death:
            goodbye()


class Process:
    """One life of a machine."""

    def __init__(self, machine: Machine) -> None:
        kernel = machine.kernel
        self.kernel = kernel
        self.machine = machine
        self.name = machine.name
        #: Which life of its machine it is, from 1 on.
        self.number = machine.lives
        self.is_dead = False
        #: Calls of the disk until the power goes, 0 if it stays.
        self.calls_left = 0
        #: The name of the file in whose sync it is killed, "" if in none.
        self.dies_at = ""
        #: Then its machine loses power.
        self.loses_power = False
        #: Called when it dies, on no loop.
        self.at_death: list[Callable[[], None]] = []
        self.main: Any = None
        self.loop = ProcessLoop(kernel, self._error)  # type: ignore[abstract]
        self.threads = SimThreads(kernel, self.loop, machine.slow_threads)
        network = machine.network.of(self)
        self.loop.connector = network.connect
        machine.disk.faults.on_call = self._on_disk_call
        machine.disk.faults.keeps_calls = False
        self.env = Env(
            clock=SimClock(kernel, machine, self.threads),
            random=kernel.tape.child(),
            disk=machine.disk,
            network=network,
            threads=self.threads,
            programs=NoPrograms(),
            descriptor_limit=lambda: 1024,
        )

    @property
    def is_machine_up(self) -> bool:
        """Tell whether its machine runs this or another process."""
        return self.machine.is_up

    def begin(self, main: Coroutine[Any, Any, None]) -> None:
        """Run what it was started for; called on its loop."""
        self.main = self.loop.create_task(self._run(main))

    def pause(self, duration_ns: int | None) -> None:
        """Stand still for a time, or until somebody says so."""
        self.kernel.trace.note(self.name, "stands still", duration_ns)
        self.loop.pause()
        if duration_ns is not None:
            self.kernel.after(duration_ns, self.go_on)

    def go_on(self) -> None:
        """End a pause."""
        if not self.is_dead:
            self.kernel.trace.note(self.name, "goes on")
            self.loop.go_on()
            self.threads.go_on()

    def _on_disk_call(self, operation: str, path: str) -> None:
        if self.is_dead:
            raise ProcessDied
        if operation == "exists":
            # Changes nothing, so a cut at it is one at the next call; takes no time, so that
            # seeds which were found before these calls were told are the same runs.
            return
        machine = self.machine
        if self.dies_at and operation == "sync" and path.endswith(self.dies_at):
            if self.loses_power:
                machine.cut_power(keeps_some=True)
            else:
                machine.kill()
            raise ProcessDied
        if self.calls_left and operation not in ("read", "open", "list"):
            self.calls_left -= 1
            if not self.calls_left:
                machine.cut_power()
                raise ProcessDied
        if operation in _SYNCS:
            tape = self.kernel.tape
            self.threads.rest(tape.heavy_ns(machine.sync_ns, machine.slow_syncs, _SLOWEST_SYNC_NS))
        else:
            self.threads.spend(_CALL_NS)

    async def _run(self, main: Coroutine[Any, Any, None]) -> None:
        try:
            await main
        except QuorumbookError as error:
            self.kernel.trace.note(self.name, "ends", type(error).__name__)
        except Exception as error:  # nobody awaits it, so nobody else would hear of a bug in it
            self._error({"message": "its program ends", "exception": error})

    def _error(self, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self.machine.on_error(self.name, context)
