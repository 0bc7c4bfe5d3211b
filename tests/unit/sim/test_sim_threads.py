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


class Life:
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
def life():
    life = Life()
    # The tape says what else is left of what was not synced.
    life.machine.kept_share = 0.0
    life.kernel.tape.pick = lambda items: items[0]
    yield life
    life.machine.bury()
    life.kernel.forget()


def test_a_sync_makes_nothing_durable_before_it_ends(life):
    life.begin(life.write_and_sync)
    life.until(lambda: "is syncing" in life.told)
    assert "has synced" not in life.told
    assert life.after_a_power_cut() == b""


def test_what_is_synced_outlives_the_power_cut_after_it(life):
    life.begin(life.write_and_sync)
    life.until(lambda: "done" in life.told)
    assert life.after_a_power_cut() == b"before"


def test_a_write_during_a_sync_is_not_promised_by_it(life):
    def write_meanwhile() -> None:
        life.process.env.disk.open(PATH).write([b"meanwhile"], 6)

    life.begin(life.write_and_sync)
    life.until(lambda: "is syncing" in life.told)
    life.begin(write_meanwhile)
    life.until(lambda: "done" in life.told)
    assert life.machine.disk.get(PATH) == b"beforemeanwhile"
    assert life.after_a_power_cut() == b"before"


def test_a_name_is_durable_when_the_sync_of_its_directory_has_ended(life):
    def create_and_sync() -> str:
        disk = life.process.env.disk
        disk.open("/d/new", create=True)
        life.told.append("is syncing")
        disk.sync_directory("/d")
        return "done"

    life.begin(create_and_sync)
    life.until(lambda: "is syncing" in life.told)
    assert "/d/new" not in life.machine.disk.crash().files()
    life.until(lambda: "done" in life.told)
    assert "/d/new" in life.machine.disk.crash().files()


def test_of_two_syncs_at_once_the_later_one_takes_nothing_back(life):
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


def test_a_job_goes_no_further_when_its_process_dies_in_its_sync(life):
    seen: list[type[BaseException]] = []

    def job() -> None:
        try:
            life.write_and_sync()
        except BaseException as error:
            seen.append(type(error))
            raise

    life.begin(job)
    life.until(lambda: "is syncing" in life.told)
    life.machine.kill()
    assert [each.__name__ for each in seen] == ["ProcessDied"]
    assert life.told == ["is syncing"]
    # What a killed process wrote, the system has.
    assert life.machine.disk.get(PATH) == b"before"


def test_a_job_that_rests_stands_still_with_its_process(life):
    def rest() -> str:
        life.process.threads.sleep(0.01)
        return "has rested"

    life.begin(rest)
    life.process.pause(5 * SECOND)
    life.kernel.run(lambda: False, life.kernel.now_ns + 4 * SECOND)
    assert life.told == []
    life.until(lambda: "has rested" in life.told)
    assert life.kernel.now_ns >= 5 * SECOND


def test_who_stops_a_worker_has_the_job_under_way_finished_first(life):
    worker, *_ = life.begin(life.write_and_sync)
    worker.submit(lambda: life.told.append("second"), life.told.append)
    life.until(lambda: "is syncing" in life.told)
    before_ns = life.kernel.now_ns
    worker.stop()
    assert life.told == ["is syncing", "has synced", "second"]
    life.until(lambda: None in life.told)
    assert life.told[3:] == ["done", None]
    assert life.kernel.now_ns - before_ns < MILLISECOND
