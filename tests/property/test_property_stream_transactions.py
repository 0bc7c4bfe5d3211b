"""Drivers, tasks and clean-ups killed between any two steps: each row is there once, in order."""

from __future__ import annotations

import asyncio
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from doubles.stepped_world import NAMESPACE, Process, World
from doubles.virtual_time import VirtualLoop, run_virtually
from quorumbook.errors import QuorumbookError
from quorumbook.streams.reading.entries import decode_user_records
from quorumbook.streams.segments import start_sequence_ids
from quorumbook.streams.stream_context import stream_context
from quorumbook.streams.transactions import (
    Application,
    AttemptResult,
    DraftOptions,
    Identity,
    Place,
    collect_orphans,
)

BATCHES, PARTS, STREAMS = 2, 2, ("a", "b")
#: Ledgers roll, so that an attempt has more of them than streams.
OPTIONS = DraftOptions(entry_bytes=8, max_ledger_bytes=12)


def rows(batch: int, part: int, stream: str) -> list[list[bytes]]:
    """What one task appends to one stream, call by call."""
    calls = 2 if stream == "a" else 1 + part
    return [[b"%d.%d.%d.%d" % (batch, part, n, k) for k in range(2)] for n in range(calls)]


class Query:
    """A streaming query as Spark runs it: a checkpoint, drivers, tasks."""

    def __init__(self, world: World) -> None:
        self.world = world
        #: The last batch in the checkpoint's log of commits.
        self.done = -1
        self.runs = 0
        self.drivers: list[Process] = []
        self.cleaners: list[Process] = []

    @property
    def is_over(self) -> bool:
        return self.done == BATCHES - 1

    def application(self, process: Process, run: str, ttl_s: float = 1e6) -> Application:
        place = Place(process.client, process.namespace, attempt_ttl_s=ttl_s)
        return Application(place, "app", Identity("q", run))

    def start_driver(self) -> None:
        process = Process(self.world, f"driver {self.runs}")
        process.start(self.drive(process, f"run {self.runs}"))
        self.drivers.append(process)
        self.runs += 1

    def start_cleaner(self) -> None:
        process = Process(self.world, "cleaner")
        place = Place(process.client, process.namespace, attempt_ttl_s=0)
        process.start(collect_orphans(place))
        self.cleaners.append(process)

    async def drive(self, process: Process, run: str) -> None:
        app = self.application(process, run)
        await app.prepare()
        while not self.is_over:
            batch = self.done + 1
            try:
                results = await asyncio.gather(
                    *(self.part(process, run, batch, part) for part in range(PARTS))
                )
                await app.commit(batch, results)
            except QuorumbookError:
                await app.abort(batch)
                return
            await process.step()  # it dies before Spark's own log is written
            self.done = max(self.done, batch)

    async def part(self, driver: Process, run: str, batch: int, part: int) -> AttemptResult:
        """Run one part until an attempt tells; of the first a second copy runs from the start."""
        copies = [self.start_task(run, batch, part, 0)]
        if part == 0:
            copies.append(self.start_task(run, batch, part, 1))
        attempt = 2
        while True:
            done, _ = await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            if driver.is_dead:
                raise asyncio.CancelledError
            for task in done:
                copies.remove(task)
                if task.exception() is None and task.result() is not None:
                    return task.result()
            if not copies:
                if attempt == 4:
                    raise QuorumbookError("a task failed four times")
                copies.append(self.start_task(run, batch, part, attempt))
                attempt += 1

    def start_task(self, run: str, batch: int, part: int, attempt: int) -> asyncio.Task:
        process = Process(self.world, f"{run}, batch {batch}, part {part}, attempt {attempt}")
        return process.start(self.task(process, run, batch, part, attempt))

    async def task(
        self, process: Process, run: str, batch: int, part: int, attempt: int
    ) -> AttemptResult:
        app = self.application(process, run)
        if await app.is_committed(batch):
            return app.skipped(batch, part, attempt)
        writer = app.attempt(batch, part, attempt, OPTIONS, 1000 + batch)
        for stream in STREAMS:
            for payloads in rows(batch, part, stream):
                await writer.append(stream, payloads)
        return await writer.finish()


async def run(seed: int, kills: int, steps: int) -> None:
    world = World(random.Random(seed), kills, steps)
    setup = Process(world, "setup")
    await setup.store.inner.create(NAMESPACE)
    making = setup.start(make_streams(setup))
    while not making.done():
        await world.advance_only(setup)
    query = Query(world)
    query.start_driver()
    query.start_driver()  # two drivers on one checkpoint
    query.start_cleaner()
    while not query.is_over or world.processes:
        await world.advance()
        if query.is_over:
            continue
        if not any(driver in world.processes for driver in query.drivers):
            query.start_driver()
        if world.is_rough and not any(each in world.processes for each in query.cleaners):
            query.start_cleaner()
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    loop.pass_time(2 * 3600)
    query.start_cleaner()
    while world.processes:
        await world.advance()
    await check(world)


async def make_streams(process: Process) -> None:
    for name in STREAMS:
        await process.namespace.create_stream(name)


async def check(world: World) -> None:
    reader = Process(world, "reader")
    looking = reader.start(look(world, reader))
    while not looking.done():
        await world.advance_only(reader)
    looking.result()


async def look(world: World, reader: Process) -> None:
    referenced = set()
    for name in STREAMS:
        nodes = stream_context(reader.namespace.stream(name)).nodes
        segments = await nodes.segments()
        assert [segment.number for segment in segments] == list(range(1, len(segments) + 1))
        assert not any(segment.is_in_progress for segment in segments)
        found: list[bytes] = []
        for segment, start in zip(segments, start_sequence_ids(segments), strict=True):
            assert start == len(found)
            referenced.add(segment.ledger_id)
            assert segment.ledger_id in world.closed
            count = 0
            for data in world.ledgers[segment.ledger_id]:
                entry = decode_user_records(data, is_enveloped=True, count_before=count)
                count = entry.count_after
                found += [payload for each in entry.runs for payload in each.payloads]
            assert count == segment.record_count
        assert found == [
            payload
            for batch in range(BATCHES)
            for part in range(PARTS)
            for payloads in rows(batch, part, name)
            for payload in payloads
        ]
        assert await nodes.max_txid() == 1000 + BATCHES - 1
    assert set(world.ledgers) == referenced
    for kind in "attempts", "garbage":
        assert await reader.store.children(f"{NAMESPACE}/.transactions/app/{kind}") == []


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from((15, 60, 250)), st.sampled_from((100, 400, 1000)))
def test_each_row_is_there_once_whoever_is_killed_between_which_steps(seed, kills, steps):
    run_virtually(run(seed, kills, steps))
