"""Many seeds, in one process or several; every hundredth is run twice and must be the same run.

A process that dies ends the run with an error; it is not waited for.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing.sharedctypes import Synchronized

from quorumbook.sim.life import Outcome, Variation, run_seed

_TWICE_EVERY = 100
#: Fresh processes now and then, so that nothing piles up.  A pool that replaces them itself
#: (``max_tasks_per_child``) waits forever for the first that is due: Python's issue 115634.
_SEEDS_A_POOL = 1000
_CHUNK = 5


class NotTheSameError(RuntimeError):
    """A seed was two different runs."""


def run_checked(seed: int, variation: Variation | None = None) -> Outcome:
    """Run a seed, every hundredth twice."""
    began = time.process_time()
    outcome = run_seed(seed, variation=variation)
    outcome = replace(outcome, processor_s=time.process_time() - began)
    if seed % _TWICE_EVERY == 0:
        again = run_seed(seed, variation=variation)
        if again.trace_hash != outcome.trace_hash:
            raise NotTheSameError(f"seed {seed} is not the same run twice: replay it with --trace")
    return outcome


@contextlib.contextmanager
def outcomes_of(
    seeds: Sequence[int], jobs: int, variation: Variation | None = None
) -> Iterator[Iterable[Outcome]]:
    """Run seeds in so many processes; the outcomes come in the order of the seeds."""
    run = partial(run_checked, variation=variation)
    if jobs == 1:
        yield map(run, seeds)
        return
    with contextlib.closing(_in_processes(run, seeds, jobs)) as outcomes:
        yield outcomes


def _stay_on_one_processor(taken: Synchronized[int]) -> None:
    """Keep this process to the next of its processors, if that can be said here.

    Jobs of simulated workers are threads that take turns (``carriers.py``).  One that is woken on
    another processor takes up to twice as long as what it does.
    """
    if hasattr(os, "sched_setaffinity"):
        processors = sorted(os.sched_getaffinity(0))
        with taken.get_lock():
            taken.value += 1
            number = taken.value
        os.sched_setaffinity(0, {processors[number % len(processors)]})


def _in_processes(
    run: Callable[[int], Outcome], seeds: Sequence[int], jobs: int
) -> Generator[Outcome, None, None]:
    context = multiprocessing.get_context("spawn")
    for begin in range(0, len(seeds), _SEEDS_A_POOL):
        pool = ProcessPoolExecutor(
            jobs, context, initializer=_stay_on_one_processor, initargs=(context.Value("i", 0),)
        )
        try:
            yield from pool.map(run, seeds[begin : begin + _SEEDS_A_POOL], chunksize=_CHUNK)
        finally:
            pool.shutdown(cancel_futures=True)
