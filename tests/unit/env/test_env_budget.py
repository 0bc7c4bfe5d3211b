"""The budget for background I/O: on virtual time, so that a rate is exact."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles.sim_threads import StepThreads
from doubles.virtual_time import VirtualLoop, run_virtually, virtual_clock
from quorumbook.env import Env
from quorumbook.env.budget import Budget, TokenBucket

MB = 1_000_000
SECOND = 1_000_000_000
RATE = 10 * MB


class Work:
    """A budget on the running virtual loop, and work of several kinds on it."""

    def __init__(self, rate: int = RATE, seed: int = 0) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.rng = random.Random(seed)
        self.threads = StepThreads()
        self.threads.on_sleep = loop.pass_time
        self.budget: Budget = Env(clock=virtual_clock(), threads=self.threads).background
        self.budget.rate_bytes = rate
        #: When each piece was due, and its size.
        self.taken: list[tuple[float, int]] = []

    async def take(self, size: int, whom: str, *, in_jobs: bool = False) -> None:
        if in_jobs:
            self.budget.take_in_job(size, whom)
        else:
            await self.budget.take(size, whom)
        self.taken.append((self.loop.time(), size))

    async def go_on(self, whom: str, until_s: float, *, in_jobs: bool) -> None:
        while self.loop.time() < until_s:
            await self.take(self.rng.randrange(1, 512 * 1024), whom, in_jobs=in_jobs)
            # Reading and writing take their time, now and then a long one.
            await asyncio.sleep(self.rng.choice([0, 0.001, 0.02] * 10 + [0.3]))

    def bytes_between(self, first_s: float, last_s: float) -> int:
        return sum(size for at, size in self.taken if first_s <= at < last_s)


@pytest.mark.parametrize("seed", range(5))
def test_background_work_takes_its_budget_and_no_more_than_a_tenth_besides(seed: int) -> None:
    kinds = {"compaction": False, "scrub": True, "replication": False, "balance": False}

    async def run() -> Work:
        work = Work(seed=seed)
        await asyncio.gather(*(work.go_on(kind, 60, in_jobs=kinds[kind]) for kind in kinds))
        return work

    work = run_virtually(run())
    for start in range(50):
        assert 0.9 * 10 * RATE <= work.bytes_between(start, start + 10) <= 1.1 * 10 * RATE
    assert sum(work.budget.taken_bytes.values()) == sum(size for _, size in work.taken)
    assert set(work.budget.taken_bytes) == set(kinds)


@pytest.mark.parametrize("in_jobs", [False, True])
def test_a_rate_that_changes_counts_for_those_who_wait_already(in_jobs: bool) -> None:
    async def run() -> float:
        work = Work(rate=1)
        budget = work.budget

        def change(seconds: float = 0) -> None:
            work.loop.pass_time(seconds)
            budget.rate_bytes = RATE

        work.threads.on_sleep = change
        work.loop.call_later(5, change)
        await work.take(RATE, "scrub", in_jobs=in_jobs)
        return work.loop.time()

    assert run_virtually(run()) <= (1.5 if in_jobs else 6.5)


def test_without_a_limit_nobody_waits_and_a_limit_begins_at_once() -> None:
    async def run() -> None:
        work = Work(rate=0)
        for _ in range(1000):
            await work.take(MB, "scrub")
        assert work.loop.time() == 0
        work.budget.rate_bytes = RATE
        await work.take(2 * RATE, "scrub")
        assert work.loop.time() == pytest.approx(2, abs=0.11)
        assert work.budget.waiting_bytes == 0

    run_virtually(run())


def test_who_comes_first_is_served_first_however_much_the_others_ask_for() -> None:
    async def run() -> None:
        work = Work()
        turns: list[int] = []

        async def one(number: int, size: int) -> None:
            await work.take(size, "scrub")
            turns.append(number)

        await asyncio.gather(*(one(n, size) for n, size in enumerate((5 * MB, 9 * MB, 1, MB))))
        assert turns == [0, 1, 2, 3]

    run_virtually(run())


def test_what_was_not_taken_is_lost_but_for_a_tenth_of_a_second() -> None:
    bucket = TokenBucket(RATE, 0)
    ticket = bucket.ask(RATE, 100 * SECOND)
    assert bucket.wait_s(ticket, 100 * SECOND) == pytest.approx(0.9)


def test_who_gives_up_waiting_takes_nothing_and_holds_nobody_up() -> None:
    async def run() -> None:
        work = Work()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await work.take(1000 * RATE, "replication")
        assert work.budget.taken_bytes == {}
        await work.take(RATE, "replication")
        assert work.loop.time() <= 2.1
        work.budget.take_in_job(1000 * RATE, "scrub", lambda: True)
        await work.take(RATE, "replication")
        assert work.loop.time() <= 3.1
        assert work.budget.taken_bytes == {"replication": 2 * RATE}

    run_virtually(run())


@given(
    st.lists(
        st.tuples(st.integers(0, 2 * SECOND), st.integers(0, 5 * MB), st.integers(0, 20 * MB)),
        max_size=30,
    )
)
def test_no_schedule_of_rates_grants_more_than_they_allow(
    steps: list[tuple[int, int, int]],
) -> None:
    now, asked, rate, allowed = 0, 0, RATE, 0.0
    bucket = TokenBucket(rate, 0)
    for pause_ns, size, next_rate in steps:
        now += pause_ns
        asked += size
        bucket.ask(size, now)
        allowed = allowed + pause_ns / SECOND * rate if rate else float(asked)
        assert asked - bucket.waiting_bytes(now) <= allowed + 1
        bucket.set_rate(next_rate, now)
        rate = next_rate
