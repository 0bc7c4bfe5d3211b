"""The outside world as small interfaces, and the real one.

Storage, bookie and client reach time, randomness, disk, network and threads only through an
``Env``, so that the same code runs in production and on a simulated world.  The interfaces speak
batches: a file takes a list of buffers in one call, a worker takes one job for a whole group.

Blocking calls (``Disk``, ``File``) are made from jobs of a ``Worker``; the event loop only ever
submits a job and is called back once when it is done.  Coroutines, tasks and timers are plain
asyncio, which a simulation replaces by its own event loop.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from quorumbook.env.budget import Budget
from quorumbook.env.disk import RealDisk, UncachedFile
from quorumbook.env.interfaces import (
    Asker,
    Clock,
    Disk,
    DiskUsage,
    File,
    Network,
    Programs,
    T,
    Threads,
    Turns,
    Worker,
)
from quorumbook.env.log import Complaint, Recurrence, SparseLines, logger
from quorumbook.env.machine import (
    RealClock,
    RealNetwork,
    RealPrograms,
    RealThreads,
    raise_descriptor_limit,
)
from quorumbook.env.tls import TlsContexts, TlsOptions, explain

__all__ = [
    "Asker",
    "Budget",
    "Clock",
    "Complaint",
    "Disk",
    "DiskUsage",
    "Env",
    "File",
    "Network",
    "Programs",
    "RealClock",
    "RealDisk",
    "RealNetwork",
    "RealPrograms",
    "RealThreads",
    "Recurrence",
    "SparseLines",
    "Threads",
    "TlsContexts",
    "TlsOptions",
    "Turns",
    "UncachedFile",
    "Worker",
    "explain",
    "logger",
    "run_job",
]


async def run_job(worker: Worker, job: Callable[[], T]) -> T:
    """Run a job on a worker and wait for its result; for rare work, not per entry."""
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    def done(result: T | BaseException) -> None:
        if future.done():
            return
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)

    worker.submit(job, done)
    return await future


@dataclass(frozen=True, slots=True)
class Env:
    """One world; ``Env()`` is the real one."""

    clock: Clock = field(default_factory=RealClock)
    random: random.Random = field(default_factory=random.SystemRandom)
    disk: Disk = field(default_factory=RealDisk)
    network: Network = field(default_factory=RealNetwork)
    threads: Threads = field(default_factory=RealThreads)
    programs: Programs = field(default_factory=RealPrograms)
    #: How many files and connections the process may have open; raises that to what is allowed.
    descriptor_limit: Callable[[], int] = raise_descriptor_limit
    #: What all background I/O of this process shares.
    background: Budget = field(init=False, compare=False)
    #: What goes on in this process for nobody who waits for it; a loop keeps no task alive.
    late_tasks: set[asyncio.Task[None]] = field(init=False, compare=False, default_factory=set)

    def __post_init__(self) -> None:
        """Make the budget of this world's clock."""
        object.__setattr__(self, "background", Budget(self.clock, self.threads))
