"""How far healing goes beyond its budget: the decision alone, and its driver on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worker_harness import healed, working, write

from doubles.clusters import scripted_cluster
from doubles.replicas import assert_fully_replicated
from doubles.virtual_time import VirtualClock, VirtualLoop, run_virtually
from quorumbook.autorecovery.copying.pace import FIRST_BYTES, LEAST_ANSWERS, HealingPace
from quorumbook.autorecovery.copying.pace_keeper import PaceKeeper
from quorumbook.client.context import client_context
from quorumbook.env.budget import Budget
from quorumbook.errors import BookieUnavailableError

MOST = 400_000_000
QUIET_S = 0.004
#: Surely calm, and surely slow, beside that.
CALM_S, SLOW_S = 0.005, 0.05

cluster = scripted_cluster(bookies=4)


def period(pace: HealingPace, seconds: float, *, answers: int = 10, is_wanted: bool = True) -> int:
    for _ in range(answers):
        pace.observe(seconds)
    pace.end_period(is_wanted=is_wanted)
    return pace.spare_bytes


def looked(pace: HealingPace, seconds: float = QUIET_S) -> HealingPace:
    while pace.is_looking:
        period(pace, seconds)
    return pace


def fast(most_bytes: int = MOST) -> HealingPace:
    """Return a pace that has found room for all that it may have."""
    pace = looked(HealingPace(most_bytes))
    while pace.spare_bytes < most_bytes:
        period(pace, CALM_S)
    return pace


def looking_again() -> HealingPace:
    """Return one that took all it may have, when it is time for another look."""
    pace = fast()
    for _ in range(45):
        if not pace.is_looking:
            period(pace, CALM_S)
    assert pace.is_looking
    return pace


# The decision


def test_it_begins_with_a_look_and_then_goes_faster_until_it_has_all_it_may() -> None:
    pace = HealingPace(MOST)
    # In the first period connections are made, the second one counts.
    assert [period(pace, seconds) for seconds in (SLOW_S, QUIET_S)] == [0, 0]
    rates = [period(pace, CALM_S) for _ in range(7)]
    assert rates == [FIRST_BYTES * 2**n for n in range(6)] + [MOST]


def test_it_yields_by_half_each_period_while_answers_are_slow_and_ends_with_nothing() -> None:
    pace = fast()
    rates = [period(pace, SLOW_S) for _ in range(6)]
    assert rates == [MOST // 2**n for n in range(1, 6)] + [0]


def test_when_nothing_is_left_to_give_back_it_looks_whether_others_have_more_to_do_now() -> None:
    pace = fast()
    while not pace.is_looking:
        period(pace, SLOW_S)
    looked(pace, SLOW_S)
    assert period(pace, SLOW_S) == FIRST_BYTES


def test_bookies_that_hang_are_never_at_rest() -> None:
    for pace in HealingPace(MOST), looking_again():
        for _ in range(100):
            assert period(pace, 2.0) == 0


def test_after_slow_answers_it_comes_back_in_small_steps() -> None:
    pace = fast()
    period(pace, SLOW_S)
    assert period(pace, CALM_S) == MOST // 2 * 1.2


def test_between_calm_and_slow_it_stays() -> None:
    pace = fast()
    period(pace, SLOW_S)
    assert period(pace, 1.9 * QUIET_S + 0.002) == MOST // 2


def test_one_slow_answer_of_many_is_no_reason_to_yield() -> None:
    pace = fast()
    pace.observe(SLOW_S)
    assert period(pace, CALM_S, answers=11) == MOST


def test_what_nobody_waits_for_is_not_taken() -> None:
    pace = looked(HealingPace(MOST))
    assert period(pace, CALM_S, is_wanted=False) == 0


def test_without_answers_it_goes_slower_and_takes_no_look() -> None:
    pace = fast()
    assert period(pace, CALM_S, answers=LEAST_ANSWERS - 1) == MOST // 2
    unheard = HealingPace(MOST)
    for _ in range(100):
        period(unheard, CALM_S, answers=0)
    assert unheard.is_looking


def test_it_looks_again_now_and_then_without_its_own_work_and_goes_on_as_before() -> None:
    pace = looking_again()
    assert pace.spare_bytes == 0
    period(pace, SLOW_S)  # what was begun before
    assert pace.is_looking
    period(pace, SLOW_S)  # others have more to do by now: that is the new quiet
    assert pace.spare_bytes == MOST
    assert period(pace, SLOW_S) == MOST


#: How long answers take in a period, how many come, and whether somebody waits.
PERIODS = st.lists(
    st.tuples(st.sampled_from([0.0, QUIET_S, CALM_S, 0.01, SLOW_S, 2.0]), st.integers(0, 12),
              st.booleans())
)  # fmt: skip


@given(PERIODS, st.integers(1, MOST))
def test_whatever_comes_it_keeps_within_its_bounds_and_never_takes_more_while_answers_are_slow(
    periods: list[tuple[float, int, bool]], most_bytes: int
) -> None:
    pace = HealingPace(most_bytes)
    for seconds, answers, is_wanted in periods:
        was_looking, before = pace.is_looking, pace.spare_bytes
        period(pace, seconds, answers=answers, is_wanted=is_wanted)
        assert 0 <= pace.spare_bytes <= most_bytes
        if pace.is_looking:
            assert pace.spare_bytes == 0
        if not was_looking and (answers < LEAST_ANSWERS or not is_wanted):
            assert pace.spare_bytes <= before
        if not was_looking and answers < LEAST_ANSWERS:
            assert pace.spare_bytes <= before / 2


@given(PERIODS)
def test_whatever_came_before_slow_answers_take_all_back_and_calm_ones_give_all(
    periods: list[tuple[float, int, bool]],
) -> None:
    pace = HealingPace(MOST)
    for seconds, answers, is_wanted in periods:
        period(pace, seconds, answers=answers, is_wanted=is_wanted)
    for _ in range(7):
        period(pace, 2.0)
    assert pace.spare_bytes == 0
    for _ in range(100):
        if period(pace, QUIET_S) == MOST:
            return
    raise AssertionError(f"{pace.spare_bytes} after 100 calm periods")


@given(st.integers(20_000_000, MOST))
def test_it_settles_where_others_feel_it_and_no_further(room_bytes: int) -> None:
    """Answers take twice their quiet time as soon as more than the room is taken."""
    pace = looked(HealingPace(MOST))
    rates = []
    for _ in range(200):
        over = pace.spare_bytes > room_bytes
        rates.append(period(pace, SLOW_S if over else CALM_S))
    going = [rate for rate in rates[20:] if rate]
    assert max(going) <= 1.2 * room_bytes
    assert sum(going) / len(going) >= 0.5 * room_bytes


# The driver


class Bookies:
    """Bookies that answer as slowly as they are told."""

    quarantined = frozenset({"bad"})

    def __init__(self) -> None:
        self.took_s: Callable[[], float] = lambda: QUIET_S
        self.asked: list[str] = []

    async def writable(self) -> frozenset[str]:
        return frozenset({"a", "b", "bad"})

    def control(self, bookie_id: str) -> SimpleNamespace:
        async def request(what: str, _encode: object) -> None:
            self.asked.append(bookie_id)
            if self.took_s() < 0:
                raise BookieUnavailableError("away", bookie_id=bookie_id)
            await asyncio.sleep(self.took_s())

        return SimpleNamespace(request=request)


class Cluster:
    """A keeper on virtual time, with a budget and bookies."""

    def __init__(self, rate_bytes: int = 20_000_000, most_bytes: int = MOST) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        clock = VirtualClock(loop)
        self.bookies = Bookies()
        self.budget = Budget(clock, SimpleNamespace(), rate_bytes)  # type: ignore[arg-type]
        env = SimpleNamespace(clock=clock, background=self.budget, random=_Turns())
        context = SimpleNamespace(env=env, bookies=self.bookies)
        self.keeper = PaceKeeper(context, most_bytes)  # type: ignore[arg-type]
        self.copied_bytes = 0

    async def heal(self, seconds: float) -> int:
        """Copy for so long; return how much that was a second."""
        until = asyncio.get_running_loop().time() + seconds
        before = self.copied_bytes
        with self.keeper.healing(7):
            while asyncio.get_running_loop().time() < until:
                await self.budget.take(1_000_000)
                self.copied_bytes += 1_000_000
        return round((self.copied_bytes - before) / seconds)


class _Turns:
    """Takes one after the other."""

    def __init__(self) -> None:
        self._count = count()

    def choice(self, names: list[str]) -> str:
        return names[next(self._count) % len(names)]


def test_healing_takes_what_is_idle_and_yields_when_answers_are_slow() -> None:
    async def run() -> None:
        idle = Cluster()
        idle.keeper.start()
        assert await idle.heal(20) >= 5 * 20_000_000
        assert idle.budget.rate_bytes == 20_000_000
        idle.bookies.took_s = lambda: SLOW_S if idle.budget.spare_bytes else QUIET_S
        await idle.heal(5)
        assert await idle.heal(20) <= 2 * 20_000_000
        assert set(idle.bookies.asked) == {"a", "b"}
        idle.bookies.took_s = lambda: QUIET_S
        await idle.heal(20)
        assert idle.budget.spare_bytes
        await asyncio.sleep(12)  # nothing is healed any more
        assert not idle.budget.spare_bytes
        asked = len(idle.bookies.asked)
        await asyncio.sleep(60)
        assert len(idle.bookies.asked) == asked
        await idle.heal(10)
        assert idle.budget.spare_bytes
        await idle.keeper.stop()
        assert not idle.budget.spare_bytes

    run_virtually(run())


@pytest.mark.parametrize(
    ("took_s", "why"), [(1000.0, "silent"), (-1.0, "away")], ids=["silent", "away"]
)
def test_bookies_that_do_not_answer_give_nothing(took_s: float, why: str) -> None:
    async def run() -> None:
        dead = Cluster()
        dead.bookies.took_s = lambda: took_s
        dead.keeper.start()
        rate = await dead.heal(30)
        assert rate <= 1.2 * 20_000_000, why
        await dead.keeper.stop()

    run_virtually(run())


@pytest.mark.parametrize(("rate_bytes", "most_bytes"), [(0, MOST), (20_000_000, 0)])
def test_nobody_is_asked_where_there_is_nothing_to_lend(rate_bytes: int, most_bytes: int) -> None:
    async def run() -> None:
        still = Cluster(rate_bytes, most_bytes)
        still.keeper.start()
        with still.keeper.healing(7):
            await asyncio.sleep(10)
        assert not still.bookies.asked
        await still.keeper.stop()

    run_virtually(run())


async def test_a_ledger_is_healed_in_seconds_that_the_budget_alone_would_take_minutes_for(cluster):
    async with cluster.connect() as client:
        ledger_id = await write(client, [b"x" * 10_000] * 300)
        metadata = await client.ledger_metadata(ledger_id)
        lost = cluster.by_id(metadata.ensemble[0])
        await cluster.unregister(metadata.ensemble[0])
        await lost.stop()
        budget = client_context(client).env.background
        budget.rate_bytes = 50_000
        async with working(client) as worker:
            await worker.queue.mark(ledger_id, [metadata.ensemble[0]])
            await healed(worker, ledger_id)
        assert budget.spare_bytes == 0
        await assert_fully_replicated(client, ledger_id)
