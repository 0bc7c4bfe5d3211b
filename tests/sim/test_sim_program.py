"""A user's own program in the simulated cluster."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

from quorumbook.testing import SimulatedMachine, Simulation, SimulationError, simulate

ROOT = Path(__file__).parents[2]


async def _write(machine: SimulatedMachine) -> None:
    async with machine.connect() as client, await client.create_ledger() as writer:
        await writer.append(b"hello")


async def _program(world: Simulation) -> float:
    world.start("writer", _write)
    await asyncio.sleep(3)
    world.heal()
    await world.finished("writer")
    return world.time_s()


def test_the_same_seed_is_the_same_run():
    one, other = (simulate(5, _program, bookies=3) for _ in range(2))
    assert one == other
    assert one.value <= one.virtual_s


def test_a_process_that_is_killed_is_started_again_and_its_notes_are_kept():
    starts: list[float] = []

    async def count(machine: SimulatedMachine) -> None:
        starts.append(machine.time_s())
        await asyncio.sleep(1)

    async def program(world: Simulation) -> None:
        world.start("one", count)
        await asyncio.sleep(0.5)
        world.kill("one")
        await world.finished("one")

    simulate(1, program, bookies=3, faults=False)
    assert len(starts) == 2


def test_what_a_process_raises_is_raised_with_the_seed():
    async def wrong(machine: SimulatedMachine) -> None:
        await asyncio.sleep(0.1)
        raise AssertionError(machine.name)

    async def program(world: Simulation) -> None:
        world.start("one", wrong)
        await world.finished("one")

    with pytest.raises(AssertionError, match="one") as raised:
        simulate(1, program, bookies=3)
    assert raised.value.__notes__[0].startswith("seed 1 at ")


def test_a_program_that_does_not_end_is_told():
    async def program(world: Simulation) -> None:
        await asyncio.sleep(3600)

    with pytest.raises(SimulationError, match="60 virtual seconds"):
        simulate(1, program, bookies=3, limit_s=60)


def test_the_example_of_the_page_prints_what_it_says():
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=200
    )
    assert (done.stdout, done.stderr) == ("True True\n", "")


def test_a_seat_is_sold_once_and_a_bug_is_found_out():
    words = [sys.executable, str(ROOT / "examples" / "simulation.py"), "0"]
    well = subprocess.run(words, capture_output=True, text=True, check=False, timeout=200)
    assert well.returncode == 0, well.stdout + well.stderr
    assert re.fullmatch(r"seed 0: 60 seats, \d+ virtual seconds\n", well.stdout)
    bug = subprocess.run(
        [*words[:2], "0..300", "--bug"], capture_output=True, text=True, check=False, timeout=200
    )
    assert bug.returncode == 1
    assert re.search(r"seat\d+ was promised to \S+ and ", bug.stdout)
