"""Jobs of simulated workers: what a sync promises while it lasts, and who goes on meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from quorumbook.sim.disks.disk import SimDisk
from quorumbook.sim.kernel import MICROSECOND, MILLISECOND, SECOND, Kernel
from quorumbook.sim.network import SimulatedNetwork
from quorumbook.sim.process import Machine, Process

PATH = "/d/x"


class World:
    """A machine with a process that has workers, and what they told."""

    def __init__(self) -> None:
        self.kernel = Kernel(1)
        network = SimulatedNetwork(self.kernel)
        self.machine = Machine(self.kernel, network, "m", lambda who, context: None)
        self.machine.disk.make_directory("/d")
        self.machine.disk.put(PATH, b"")
        #: Every sync takes longer than all else.
        self.machine.slow_syncs = 1.0
        self.told: list[object] = []
        self.process = self.machine.start(self._idle)

    async def _idle(self, process: Process) -> None:
        del process

    def begin(self, *jobs: Callable[[], Any]) -> list[Any]:
        """Have each job begin on a worker of its own."""
        workers = [self.process.env.threads.start_worker("w") for _ in jobs]
        for worker, job in zip(workers, jobs, strict=True):
            worker.submit(job, self.told.append)
        return workers

    def until(self, condition: Callable[[], bool]) -> None:
        """Let things happen in steps that are shorter than a sync."""
        while not condition():
            self.kernel.run(lambda: False, self.kernel.now_ns + 50 * MICROSECOND)

    def write_and_sync(self) -> str:
        file = self.process.env.disk.open(PATH)
        file.write([b"before"], 0)
        self.told.append("is syncing")
        file.sync()
        self.told.append("has synced")
        return "done"

    def after_a_power_cut(self) -> bytes:
        self.machine.cut_power()
        return self.machine.disk.crash(random.Random(0), keep=0.0).get(PATH)


@pytest.fixture
def world():
    world = World()
    # The tape says what else is left of what was not synced.
    world.machine.kept_share = 0.0
    world.kernel.tape.pick = lambda items: items[0]
    yield world
    world.machine.bury()
    world.kernel.forget()


def test_a_sync_makes_nothing_durable_before_it_ends(world):
    world.begin(world.write_and_sync)
    world.until(lambda: "is syncing" in world.told)
    assert "has synced" not in world.told
    assert world.after_a_power_cut() == b""


def test_what_is_synced_outlives_the_power_cut_after_it(world):
    world.begin(world.write_and_sync)
    world.until(lambda: "done" in world.told)
    assert world.after_a_power_cut() == b"before"


def test_a_write_during_a_sync_is_not_promised_by_it(world):
    def write_meanwhile() -> None:
        world.process.env.disk.open(PATH).write([b"meanwhile"], 6)

    world.begin(world.write_and_sync)
    world.until(lambda: "is syncing" in world.told)
    world.begin(write_meanwhile)
    world.until(lambda: "done" in world.told)
    assert world.machine.disk.get(PATH) == b"beforemeanwhile"
    assert world.after_a_power_cut() == b"before"


def test_a_name_is_durable_when_the_sync_of_its_directory_has_ended(world):
    def create_and_sync() -> str:
        disk = world.process.env.disk
        disk.open("/d/new", create=True)
        world.told.append("is syncing")
        disk.sync_directory("/d")
        return "done"

    world.begin(create_and_sync)
    world.until(lambda: "is syncing" in world.told)
    assert "/d/new" not in world.machine.disk.crash().files()
    world.until(lambda: "done" in world.told)
    assert "/d/new" in world.machine.disk.crash().files()


def test_of_two_syncs_at_once_the_later_one_takes_nothing_back(world):
    """The first to begin ends last: what the other made durable meanwhile stays so."""
    disk = SimDisk()
    disk.make_directory("/d")
    disk.open("/d/new", create=True)

    def meanwhile(operation: str, path: str) -> None:
        disk.faults.on_call = None
        disk.unlink("/d/new")
        disk.sync_directory("/d")

    disk.faults.on_call = meanwhile
    disk.sync_directory("/d")
    assert "/d/new" not in disk.crash().files()


def test_a_job_goes_no_further_when_its_process_dies_in_its_sync(world):
    seen: list[type[BaseException]] = []

    def job() -> None:
        try:
            world.write_and_sync()
        except BaseException as error:
            seen.append(type(error))
            raise

    world.begin(job)
    world.until(lambda: "is syncing" in world.told)
    world.machine.kill()
    assert [each.__name__ for each in seen] == ["ProcessDied"]
    assert world.told == ["is syncing"]
    # What a killed process wrote, the system has.
    assert world.machine.disk.get(PATH) == b"before"


def test_a_job_that_rests_stands_still_with_its_process(world):
    def rest() -> str:
        world.process.threads.sleep(0.01)
        return "has rested"

    world.begin(rest)
    world.process.pause(5 * SECOND)
    world.kernel.run(lambda: False, world.kernel.now_ns + 4 * SECOND)
    assert world.told == []
    world.until(lambda: "has rested" in world.told)
    assert world.kernel.now_ns >= 5 * SECOND


def test_who_stops_a_worker_has_the_job_under_way_finished_first(world):
    worker, *_ = world.begin(world.write_and_sync)
    worker.submit(lambda: world.told.append("second"), world.told.append)
    world.until(lambda: "is syncing" in world.told)
    before_ns = world.kernel.now_ns
    worker.stop()
    assert world.told == ["is syncing", "has synced", "second"]
    world.until(lambda: None in world.told)
    assert world.told[3:] == ["done", None]
    assert world.kernel.now_ns - before_ns < MILLISECOND
