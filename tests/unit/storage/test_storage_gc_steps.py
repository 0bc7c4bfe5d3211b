"""What may happen at any step of a collector's pass: a session ends, the power fails."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from test_storage_gc import FakeCluster, Garbage, filled

from doubles.storage_world import World, run_of
from quorumbook.storage.index.files import remove_index

#: More passes than a deletion takes.
PASSES = 4
LIVING, DEAD = 1, 2


class Misled(FakeCluster):
    """A store that denies a ledger in its first session, and has it in the next.

    ``step`` is called where the answer is made up, and again before it is handed over.
    """

    def __init__(self, step: Callable[[], None]) -> None:
        super().__init__(LIVING)
        self.step = step

    def _there(self) -> set[int]:
        return self.ledger_ids if self.sessions > 1 else set()

    async def listing(self) -> AsyncIterator[int]:
        self.step()
        for ledger_id in sorted(self._there()):
            yield ledger_id
        self.step()

    async def missing(self, ledger_ids: list[int]) -> list[int]:
        self.step()
        found = [ledger_id for ledger_id in ledger_ids if ledger_id not in self._there()]
        self.step()
        return found


async def test_r27_s59_a_session_that_ends_at_any_step_before_the_deletion_prevents_it(
    tmp_path: Path,
) -> None:
    ended_at = 0
    while True:
        ended_at += 1
        steps = 0
        directory = tmp_path / str(ended_at)
        directory.mkdir()
        world = World(directory)
        await filled(world, LIVING, DEAD)
        garbage = Garbage(world)

        def step(ended_at: int = ended_at, garbage: Garbage = garbage) -> None:
            nonlocal steps
            steps += 1
            if steps == ended_at:
                garbage.cluster.sessions += 1

        garbage.cluster = Misled(step)
        garbage.restart()
        for _ in range(PASSES):
            await garbage.collect()
            if LIVING not in world.storage.ledger_ids():
                break
        was_deleted = LIVING not in world.storage.ledger_ids()
        assert was_deleted == (garbage.cluster.sessions == 1), f"it ended at step {ended_at}"
        await world.storage.stop()
        if was_deleted:
            break
    assert ended_at > 8


async def test_r27_s59_what_proves_a_deletion_was_all_said_in_one_session(tmp_path: Path) -> None:
    """The store denies the ledger in every session; only one change of sessions is in the way."""
    for ended_at in range(1, 40):
        directory = tmp_path / str(ended_at)
        directory.mkdir()
        world = World(directory)
        await filled(world, DEAD)
        garbage = Garbage(world)
        #: The session of each answer, by pass.
        said: list[list[int]] = []

        def step(
            ended_at: int = ended_at, garbage: Garbage = garbage, said: list[list[int]] = said
        ) -> None:
            if sum(map(len, said)) + 1 == ended_at:
                garbage.cluster.sessions += 1
            said[-1].append(garbage.cluster.sessions)

        garbage.cluster = Misled(step)
        garbage.cluster.ledger_ids.clear()
        garbage.restart()
        while world.storage.ledger_ids():
            said.append([])
            await garbage.collect()
        assert len(set(said[-1] + said[-2])) == 1, f"it ended at step {ended_at}"
        await world.storage.stop()
        if sum(map(len, said)) < ended_at:
            break
    assert ended_at > 8


async def test_r27_s14_a_crash_at_any_step_of_a_pass_deletes_nothing_that_lives_and_no_fence(
    tmp_path: Path,
) -> None:
    call = 0
    was_cut = True
    while was_cut:
        call += 1
        for loses_index in (False, True):
            directory = tmp_path / f"{call}{loses_index}"
            directory.mkdir()
            world = World(directory)
            await filled(world, LIVING, DEAD)
            for ledger_id in (LIVING, DEAD):
                await world.fence(ledger_id)
            await world.storage.flush()
            # Behind the mark, so that a replay sees the deleted ledger again.
            await world.append(run_of(DEAD, [30]))
            await world.append(run_of(LIVING, [30]))
            garbage = Garbage(world, LIVING)
            await garbage.collect()
            world.watch_commits()
            world.cut_power_at(call)
            await garbage.collect()
            was_cut = world.has_lost_power
            rng = random.Random(call)
            await world.crash(rng, keep=rng.choice([0.0, 0.5, 1.0]))
            if loses_index:
                remove_index(world.index_path)
            report = await world.start()
            assert not report.needs_limbo_start
            assert await world.ids(LIVING) == [*range(20), 30]
            assert await world.read_one(LIVING, 11)
            for ledger_id in (LIVING, DEAD):
                handle = world.handle(ledger_id)
                assert handle.is_fenced or handle.was_deleted, f"{ledger_id} at call {call}"
            assert world.handle(LIVING).is_fenced
            await world.storage.stop()
    assert call > 5
