"""What happens to the cluster, cycle by cycle, chosen from one seed.

Some ledgers are written at any time, each by a process of its own.  A cycle lets them go on for a
moment, has one mishap, and has two rivals take one of the ledgers over while it lasts; when all
is well again that ledger must be recovered and read whole, within a limit.  Writers that were
paused may stay so for some cycles, while their ledger is closed, deleted and collected.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from faults.torture.history import Scribe, facts_of
from faults.torture.network import Way
from faults.torture.nursery import Process
from faults.torture.world import GROUPS, BookieProcess, World

LANES = 2
#: Sizes of entries: each writer has one of these, or all.
SIZES = (
    (100,), (1_000,), (16_000,), (64_000,), (500_000,), (1_000_000,),
    (100, 1_000, 16_000, 64_000, 500_000, 1_000_000),
)  # fmt: skip
SHAPES = ((3, 3, 2), (3, 3, 2), (4, 3, 2), (3, 2, 2), (4, 4, 3))
#: How long a ledger may withstand being recovered when all is well.
STUCK_S = 60.0
#: How long a writer may go on after it was resumed and its ledger is not its own any more.
RESUMED_S = 30.0
#: Cycles for which auto-recovery runs, and then does not.
PHASE = 20
ALL_WAYS = (
    (Way.HELD, Way.FLOWS), (Way.FLOWS, Way.HELD), (Way.LOST, Way.FLOWS), (Way.FLOWS, Way.LOST),
)  # fmt: skip


@dataclass
class Lane:
    """One ledger that is written, and who writes it."""

    ledger_id: int
    writers: list[Process]
    tail: Process | None
    #: By name those of the writers who make it.
    makers: dict[str, Process] = field(default_factory=dict)


@dataclass
class Sleeper:
    """A writer that is paused beyond the end of its ledger."""

    ledger_id: int
    process: Process
    until_cycle: int
    is_deleted: bool


@dataclass
class Counts:
    """How often what was done."""

    cycles: int = 0
    mishaps: Counter[str] = field(default_factory=Counter)


class Cycles:
    """One run."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.dice = random.Random(seed)
        self.counts = Counts()
        self.scribe = Scribe(world.history, "harness")
        #: Ledgers to be read once more in the end.
        self.kept: list[int] = []
        self._ids = itertools.count(1)
        self._numbers = itertools.count(1)
        self._lanes: list[Lane | None] = [None] * LANES
        self._sleepers: list[Sleeper] = []
        self._limbo = 0
        self._happenings: dict[str, Callable[[Lane], object]] = {
            "kill": self._kill,
            "pause bookies": self._pause_bookies,
            "pause writer": self._pause_writer,
            "cut": self._cut,
            "kill writer": self._kill_writer,
            "metadata": self._metadata,
        }

    async def run(self, cycles: int, say: Callable[[str], None]) -> None:
        """Run so many cycles, and read everything once more in the end."""
        for number in range(cycles):
            began = time.monotonic()
            what = await self._cycle(number)
            self.counts.cycles += 1
            say(f"cycle {number + 1}: {what}, {time.monotonic() - began:.1f} s")
        await self._finish()

    async def _cycle(self, number: int) -> str:
        await self.world.set_recovery(runs=number // PHASE % 2 == 1)
        for index, lane in enumerate(self._lanes):
            if lane is None or not any(each.is_alive for each in lane.writers):
                if lane is not None:
                    await self._settle(lane)
                self._lanes[index] = await self._begin()
        await asyncio.sleep(0.05 + 0.2 * self.dice.random())
        index = self.dice.randrange(LANES)
        lane = self._lanes[index]
        assert lane is not None
        self._lanes[index] = None
        what = self.dice.choices(list(self._happenings), (50, 10, 12, 12, 6, 10))[0]
        if self.dice.random() < 0.25:
            what += self._lose_metadata()
        await self._happenings[what.partition(",")[0]](lane)  # type: ignore[misc]
        await self.world.heal()
        await self._settle(lane)
        await self._wake(number)
        self._look_for_limbo()
        return what

    # A ledger's life ------------------------------------------------------------------------

    async def _begin(self) -> Lane:
        """Have one process write a new ledger, or two who both want to."""
        ledger_id, dice = next(self._ids), self.dice
        begin = dice.choices(("create", "claim"), (2, 1))[0]
        rivals = 2 if begin == "claim" or dice.random() < 0.1 else 1
        begins = (f"make and {begin}", begin) if begin == "claim" else (begin, begin)
        writers = [
            await self.world.client(
                GROUPS[rival], "write", f"write-{ledger_id}-{rival}", ledger_id,
                number=next(self._numbers), seed=dice.getrandbits(32), begin=begins[rival],
                shape=dice.choice(SHAPES), sizes=dice.choice(SIZES),
                burst_bytes=dice.choice((100_000, 1 << 20, 4 << 20, 8 << 20)),
                end=dice.choices(("trickle", "close"), (4, 1))[0], tries_s=10.0,
            )
            for rival in range(rivals)
        ]  # fmt: skip
        tail = None
        if dice.random() < 0.3:
            tail = await self.world.client(
                GROUPS[1], "tail", f"tail-{ledger_id}", ledger_id, tries_s=30.0
            )
        makers = {
            f"write-{ledger_id}-{rival}": each
            for rival, each in enumerate(writers)
            if begins[rival] != "claim"
        }
        return Lane(ledger_id, writers, tail, makers)

    async def _take_over(
        self, lane: Lane, tries_s: float, deletes: bool = False, rivals: int = 2
    ) -> bool:
        """Have rivals recover a ledger at once; tell whether one could."""
        both = [
            await self.world.client(
                GROUPS[1 - rival], "recover", f"recover-{lane.ledger_id}-{next(self._numbers)}",
                lane.ledger_id, tries_s=tries_s, deletes=deletes and not rival,
            )
            for rival in range(rivals)
        ]  # fmt: skip
        await asyncio.gather(*(each.wait(STUCK_S) for each in both))
        for each in both:
            await each.kill()
        return any(each.status == 0 for each in both)

    async def _settle(self, lane: Lane) -> None:
        """With everything well, close and read a ledger whose writers may live or not."""
        deletes = self.dice.random() < 0.6 and not self._may_be_made(lane)
        before = time.monotonic()
        while not await self._take_over(lane, 10.0, deletes, rivals=1):
            if time.monotonic() - before > STUCK_S:
                why = f"cannot be recovered and read for {STUCK_S:.0f} s while all bookies are up"
                self.scribe.note("stuck", ledger=lane.ledger_id, why=why)
                break
        if not deletes:
            self.kept.append(lane.ledger_id)
        asleep = [each for each in lane.writers if each in [s.process for s in self._sleepers]]
        for process in lane.writers:
            if process in asleep:
                continue
            await self._end(lane, process, "its writer does not end")
        if lane.tail is not None:
            if not deletes and not await lane.tail.wait(RESUMED_S):
                self.scribe.note("hung", ledger=lane.ledger_id, why="its reader does not end")
            await lane.tail.kill()
        for sleeper in self._sleepers:
            if sleeper.ledger_id == lane.ledger_id:
                sleeper.is_deleted = deletes

    async def _wake(self, number: int) -> None:
        """Resume writers whose time has come: none may be told that it still writes."""
        for sleeper in [each for each in self._sleepers if each.until_cycle <= number]:
            self._sleepers.remove(sleeper)
            if sleeper.is_deleted:
                await self._wait_collected(sleeper.ledger_id)
            sleeper.process.send(signal.SIGCONT)
            lane = Lane(sleeper.ledger_id, [sleeper.process], None)
            await self._end(lane, sleeper.process, "a resumed writer goes on")
            self.counts.mishaps["writers resumed after their ledger was closed"] += 1

    async def _end(self, lane: Lane, writer: Process, otherwise: str) -> None:
        """Wait for the end of a writer who was overtaken.

        One who had yet to make the ledger when others looked for it is overtaken when it has.
        """
        deadline = time.monotonic() + RESUMED_S
        while not await writer.wait(0.5 if time.monotonic() < deadline else 0):
            if time.monotonic() > deadline:
                self.scribe.note("hung", ledger=lane.ledger_id, why=otherwise)
                await writer.kill()
            elif not self._was_closed(lane.ledger_id):
                await self._take_over(lane, 10.0, rivals=1)

    def _may_be_made(self, lane: Lane) -> bool:
        """Tell whether a writer may make the ledger yet, or again if it were deleted."""
        return any(
            writer.is_alive
            and not any(
                fact["what"] in ("made", "created") or fact.get("of") == "make and claim"
                for fact in facts_of(self.world.history / f"{name}.jsonl")
            )
            for name, writer in lane.makers.items()
        )

    def _was_closed(self, ledger_id: int) -> bool:
        """Tell whether one who took the ledger over was told its end."""
        files = self.world.history.glob(f"recover-{ledger_id}-*.jsonl")
        return any(fact["what"] == "closed" for file in files for fact in facts_of(file))

    async def _wait_collected(self, ledger_id: int) -> None:
        deadline = time.monotonic() + 10
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            while time.monotonic() < deadline:
                if not any([await bookie.holds(ledger_id) for bookie in self.world.bookies]):
                    what = "writers resumed after their ledger was deleted and collected"
                    self.counts.mishaps[what] += 1
                    return
                await asyncio.sleep(0.1)

    # What happens ---------------------------------------------------------------------------

    def _some(self, count: int) -> list[BookieProcess]:
        return self.dice.sample(self.world.bookies, count)

    def _count(self, what: str) -> None:
        self.counts.mishaps[what] += 1

    def _lose_metadata(self) -> str:
        for group in GROUPS:
            self.world.metadata[group].lose(self.dice.choice((0.02, 0.1, 0.3)))
        self._count("metadata requests and answers lost meanwhile")
        return ", metadata lost"

    async def _kill(self, lane: Lane) -> None:
        count = self.dice.choices((1, 2, len(self.world.bookies)), (4, 3, 3))[0]
        await self.world.kill(self._some(count))
        self._count({1: "one bookie killed", 2: "two bookies killed at once"}.get(
            count, "all bookies killed at once"))  # fmt: skip
        if self.dice.random() < 0.3:
            await self._take_over(lane, 0.5)
        else:
            await asyncio.sleep(self.dice.random() * 0.2)

    async def _pause_bookies(self, lane: Lane) -> None:
        victims = self._some(self.dice.choices((1, 2), (3, 1))[0])
        for victim in victims:
            victim.pause()
        self._count("bookies paused")
        await asyncio.sleep(self.dice.random() * 0.3)
        deletes = self.dice.random() < 0.2 and not self._may_be_made(lane)
        await self._take_over(lane, 1.0, deletes=deletes)
        for victim in victims:
            victim.resume()

    async def _pause_writer(self, lane: Lane) -> None:
        self._count("writers paused")
        for process in lane.writers:
            process.send(signal.SIGSTOP)
        await self._take_over(lane, 3.0)
        if self.dice.random() < 0.5:
            until = self.counts.cycles + self.dice.randrange(3, 8)
            self._sleepers += [
                Sleeper(lane.ledger_id, process, until, is_deleted=False)
                for process in lane.writers
                if process.is_alive
            ]
            return
        for process in lane.writers:
            process.send(signal.SIGCONT)

    async def _cut(self, lane: Lane) -> None:
        group, ways = self.dice.choice(GROUPS), self.dice.choice(ALL_WAYS)
        for proxy in self.dice.sample(self.world.proxies[group], self.dice.choice((1, 1, 2))):
            proxy.cut(*ways)
        self._count("one-way cuts")
        await asyncio.sleep(self.dice.random() * 0.3)
        await self._take_over(lane, 1.0)

    async def _kill_writer(self, lane: Lane) -> None:
        self._count("writers killed")
        await asyncio.gather(*(process.kill() for process in lane.writers))

    async def _metadata(self, lane: Lane) -> None:
        """Expire sessions, or cut their connections, while rivals are at it."""
        group = self.world.metadata[self.dice.choice(GROUPS)]
        taking = asyncio.create_task(self._take_over(lane, 3.0))
        await asyncio.sleep(0.02 + self.dice.random() * 0.1)
        if self.dice.random() < 0.5:
            self._count("metadata sessions ended")
            await group.expire()
        else:
            self._count("metadata connections cut")
            group.cut()
        await taking

    # The end ----------------------------------------------------------------------------------

    def _look_for_limbo(self) -> None:
        starts = sum(bookie.limbo_starts() for bookie in self.world.bookies)
        for _ in range(starts - self._limbo):
            self.scribe.note("limbo", why="a bookie starts with ledgers in limbo after a kill")
        self._limbo = starts

    async def _finish(self) -> None:
        await self.world.set_recovery(runs=False)
        for sleeper in self._sleepers:
            sleeper.until_cycle = 0
        await self._wake(0)
        for lane in self._lanes:
            if lane is not None:
                await self._settle(lane)
        for ledger_id in self.kept:
            process = await self.world.client(
                "nobody's", "recover", f"final-{ledger_id}", ledger_id, tries_s=20.0
            )
            if not await process.wait(STUCK_S) or process.status != 0:
                self.scribe.note("stuck", ledger=ledger_id, why="unreadable in the end")
                await process.kill()
