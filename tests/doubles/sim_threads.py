"""Workers and a clock under the test's control: a job runs when the test says so."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from quorumbook.env import Worker


class StepWorker:
    """A worker whose jobs run on the loop: at once, or one by one with ``run_next``."""

    def __init__(self, name: str, *, auto: bool) -> None:
        self.name = name
        self.auto = auto
        self.jobs: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self.is_stopped = False
        self._loop = asyncio.get_running_loop()

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        assert not self.is_stopped
        self.jobs.append((job, done))
        if self.auto:
            self._loop.call_soon(self.run_next)

    def call_on_loop(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def run_next(self) -> None:
        """Run the oldest job; its result reaches the loop in the next turn."""
        if not self.jobs:
            return
        job, done = self.jobs.popleft()
        try:
            result = job()
        except BaseException as error:
            result = error
        self._loop.call_soon(done, result)

    def stop(self) -> None:
        while self.jobs:
            self.run_next()
        self.is_stopped = True


class StepThreads:
    """Makes ``StepWorker``s and remembers them by name."""

    def __init__(self, *, auto: bool = True) -> None:
        self.auto = auto
        self.workers: dict[str, StepWorker] = {}
        #: What happens while a job rests.
        self.on_sleep: Callable[[float], None] = lambda _: None

    def start_worker(self, name: str) -> Worker:
        worker = self.workers[name] = StepWorker(name, auto=self.auto)
        return worker

    def sleep(self, seconds: float) -> None:
        self.on_sleep(seconds)

    def loop_is_busy(self, *, is_busy: bool) -> None:
        """A worker runs when a test says so."""


class StepClock:
    """A clock that advances by one nanosecond a look, or when the test says so."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self.now = 0
        self.wall = wall_ms
        self.boot = "a boot"

    def now_ns(self) -> int:
        self.now += 1
        return self.now

    def wall_ms(self) -> int:
        return self.wall

    def boot_id(self) -> str:
        return self.boot


async def turn(times: int = 3) -> None:
    """Let the loop call what is due."""
    for _ in range(times):
        await asyncio.sleep(0)
