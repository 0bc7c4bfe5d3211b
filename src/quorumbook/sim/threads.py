"""Workers of a simulated process: a job happens at one moment, and its result comes later.

A job is one event of the kernel, so jobs of different workers, and what the loop does, meet in
every order, but nothing happens in the middle of a job, except that its process dies there.  What
its calls of the disk cost, and the time for which it rests, pass before its result arrives and
before the worker's next job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from quorumbook.env import Worker
from quorumbook.sim.kernel import MICROSECOND, SECOND, Kernel
from quorumbook.sim.loop import ProcessLoop

_HOP_NS = 60 * MICROSECOND
_SLOWEST_HOP_NS = SECOND // 2
_Job = tuple[Callable[[], Any], Callable[[Any], None]]


class SimThreads:
    """Where the workers of a process come from."""

    def __init__(self, kernel: Kernel, loop: ProcessLoop, slow: float) -> None:
        self.kernel = kernel
        self.loop = loop
        #: The probability that a job begins late, as on a machine that has other things to do.
        self.slow = slow
        #: How long the job under way has taken.
        self.elapsed_ns = 0
        self._is_in_job = False
        self._held: list[Callable[[], None]] = []

    def start_worker(self, name: str) -> Worker:
        """Start a worker."""
        del name
        return SimWorker(self)

    def sleep(self, seconds: float) -> None:
        """Rest, in a job."""
        self.spend(int(seconds * SECOND))

    def spend(self, duration_ns: int) -> None:
        """Let the job under way take so much longer; the loop does not notice."""
        if self._is_in_job:
            self.elapsed_ns += duration_ns

    def run(self, job: Callable[[], Any]) -> tuple[Any, int]:
        """Run a job; return what came of it and how long it took."""
        outer = self._is_in_job, self.elapsed_ns
        self._is_in_job, self.elapsed_ns = True, 0
        try:
            result = job()
        except BaseException as error:  # it is handed to whoever waits
            result = error
        elapsed_ns = self.elapsed_ns
        self._is_in_job, self.elapsed_ns = outer
        return result, elapsed_ns

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


class SimWorker:
    """One job after the other."""

    def __init__(self, threads: SimThreads) -> None:
        self._threads = threads
        self._kernel = threads.kernel
        self._loop = threads.loop
        self._jobs: deque[_Job] = deque()
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
        while self._jobs:
            job, done = self._jobs.popleft()
            result, _ = self._threads.run(job)
            self._loop.deliver(done, result)

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
        result, elapsed_ns = self._threads.run(job)
        if not self._loop.is_dead:
            self._kernel.after(elapsed_ns, self._finish, done, result)

    def _finish(self, done: Callable[[Any], None], result: Any) -> None:
        self._loop.deliver(done, result)
        if self._jobs:
            self._hop(self._begin)
        else:
            self._is_busy = False
