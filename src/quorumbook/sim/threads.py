"""Workers of a simulated process: a job goes on until it rests, and its result comes later.

Jobs of different workers, and what the loop does, meet in every order: a job begins late, and
others run while it waits for a sync or rests.  Between two rests it is one event of the kernel, and
what its other calls of the disk cost passes with the next rest, or before its result arrives.

A job whose process dies while it rests goes no further: it finds ``ProcessDied`` raised there, and
at whatever it still asks of the disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from quorumbook.env import Worker
from quorumbook.sim.carriers import Carrier
from quorumbook.sim.kernel import MICROSECOND, SECOND, Kernel
from quorumbook.sim.loop import ProcessLoop

_HOP_NS = 60 * MICROSECOND
_SLOWEST_HOP_NS = SECOND // 2
_Job = tuple[Callable[[], Any], Callable[[Any], None]]


class ProcessDied(BaseException):
    """Raised in a job of a process that is no more."""


class Run:
    """A job under way."""

    __slots__ = ("carrier", "elapsed_ns", "is_done", "is_hurried", "job", "on_end", "result")

    def __init__(
        self, job: Callable[[], Any], carrier: Carrier | None, on_end: Callable[[Run], None]
    ) -> None:
        self.job = job
        #: Without one it does not stop in the middle, however long it rests.
        self.carrier = carrier
        #: How long it has taken since its beginning or its last rest.
        self.elapsed_ns = 0
        self.is_done = False
        #: Somebody waits for its end, and nothing else happens meanwhile.
        self.is_hurried = carrier is None
        self.on_end = on_end
        self.result: Any = None

    def work(self) -> None:
        """Do it."""
        try:
            self.result = self.job()
        except BaseException as error:  # it is handed to whoever waits
            self.result = error
        self.is_done = True


class SimThreads:
    """Where the workers of a process come from."""

    def __init__(self, kernel: Kernel, loop: ProcessLoop, slow: float) -> None:
        self.kernel = kernel
        self.loop = loop
        #: The probability that a job begins late, as on a machine that has other things to do.
        self.slow = slow
        #: The job under way.
        self.running: Run | None = None
        self._resting: list[Run] = []
        self._held: list[Callable[[], None]] = []

    @property
    def elapsed_ns(self) -> int:
        """How far the job under way is ahead of the kernel's time."""
        return 0 if self.running is None else self.running.elapsed_ns

    def start_worker(self, name: str) -> Worker:
        """Start a worker."""
        del name
        return SimWorker(self)

    def sleep(self, seconds: float) -> None:
        """Rest, in a job."""
        self.rest(int(seconds * SECOND))

    def loop_is_busy(self, *, is_busy: bool) -> None:
        """Do nothing: nobody waits for an interpreter here."""

    def spend(self, duration_ns: int) -> None:
        """Let the job under way take so much longer; the loop does not notice."""
        if self.running is not None:
            self.running.elapsed_ns += duration_ns

    def rest(self, duration_ns: int) -> None:
        """Let time pass in the middle of the job under way."""
        run = self.running
        if run is None:
            return
        if self.loop.is_dead:
            raise ProcessDied
        run.elapsed_ns += duration_ns
        if run.is_hurried or run.carrier is None:
            return
        self._resting.append(run)
        self.kernel.after(run.elapsed_ns, self.when_awake, lambda: self._go_on(run))
        run.carrier.pause()
        if self.loop.is_dead:
            raise ProcessDied

    def begin(self, job: Callable[[], Any], on_end: Callable[[Run], None]) -> Run:
        """Run a job up to its first rest, or to its end."""
        carrier = self.kernel.carriers.take()
        run = Run(job, carrier, on_end)
        outer, self.running = self.running, run
        carrier.begin(run.work)
        self.running = outer
        self._stopped(run)
        return run

    def run_through(self, job: Callable[[], Any]) -> Any:
        """Run a job to its end, while nothing else happens; return what came of it."""
        run = Run(job, None, lambda _: None)
        outer, self.running = self.running, run
        run.work()
        self.running = outer
        return run.result

    def hurry(self, run: Run) -> None:
        """Have a job that rests come to its end now."""
        run.is_hurried = True
        if run in self._resting:
            self._wake(run)

    def die(self) -> None:
        """End what rests."""
        while self._resting:
            self._wake(self._resting[0])

    def when_awake(self, callback: Callable[[], None]) -> None:
        """Go on with a worker, now or when the process does."""
        if self.loop.is_paused:
            self._held.append(callback)
        else:
            callback()

    def go_on(self) -> None:
        """End a pause."""
        held, self._held = self._held, []
        for callback in held:
            callback()

    def _go_on(self, run: Run) -> None:
        # One that was hurried rests no more.
        if run in self._resting:
            self._wake(run)

    def _wake(self, run: Run) -> None:
        self._resting.remove(run)
        carrier = run.carrier
        assert carrier is not None
        run.elapsed_ns = 0
        outer, self.running = self.running, run
        carrier.go_on()
        self.running = outer
        self._stopped(run)

    def _stopped(self, run: Run) -> None:
        if run.is_done and run.carrier is not None:
            self.kernel.carriers.give_back(run.carrier)
            run.carrier = None
            if not self.loop.is_dead:
                run.on_end(run)


class SimWorker:
    """One job after the other."""

    def __init__(self, threads: SimThreads) -> None:
        self._threads = threads
        self._kernel = threads.kernel
        self._loop = threads.loop
        self._jobs: deque[_Job] = deque()
        self._run: Run | None = None
        self._is_busy = False
        self._is_stopped = False

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Have a job run, then ``done`` on the loop."""
        assert not self._is_stopped
        self._jobs.append((job, done))
        if not self._is_busy:
            self._is_busy = True
            self._hop(self._begin)

    def call_on_loop(self, callback: Callable[[], None]) -> None:
        """From inside a job: run a callback on the loop, while the job goes on."""
        self._kernel.after(self._threads.elapsed_ns, self._loop.deliver, callback)

    def stop(self) -> None:
        """Run what waits, and end."""
        self._is_stopped = True
        if self._run is not None:
            self._threads.hurry(self._run)
        while self._jobs:
            job, done = self._jobs.popleft()
            self._loop.deliver(done, self._threads.run_through(job))

    def _hop(self, callback: Callable[[], None]) -> None:
        kernel, slow = self._kernel, self._threads.slow
        hop_ns = kernel.tape.heavy_ns(_HOP_NS // 2, slow, _SLOWEST_HOP_NS)
        kernel.after(hop_ns, self._threads.when_awake, callback)

    def _begin(self) -> None:
        if self._loop.is_dead:
            return
        if not self._jobs:
            self._is_busy = False
            return
        job, done = self._jobs.popleft()
        run = self._threads.begin(job, lambda run: self._ended(run, done))
        self._run = None if run.is_done else run

    def _ended(self, run: Run, done: Callable[[Any], None]) -> None:
        self._run = None
        if run.is_hurried:
            self._loop.deliver(done, run.result)
        else:
            self._kernel.after(run.elapsed_ns, self._finish, done, run.result)

    def _finish(self, done: Callable[[Any], None], result: Any) -> None:
        self._loop.arrive(done, result)
        if self._jobs:
            self._hop(self._begin)
        else:
            self._is_busy = False
