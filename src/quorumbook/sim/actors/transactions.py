"""Who commits batches of an application: rivals, each of which goes on where the head says.

A batch has two parts, and rows for one or two streams.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from quorumbook.errors import ConfigError, QuorumbookError
from quorumbook.sim.actors.ledgers import ActorsLife, read_at_last
from quorumbook.sim.actors.streams import made, under_way
from quorumbook.sim.histories.invariants import Invariant
from quorumbook.sim.process import Process
from quorumbook.streams import Namespace, StreamPolicy
from quorumbook.streams.transactions import (
    Application,
    AttemptResult,
    DraftOptions,
    Identity,
    Place,
)

STREAMS = ("eu", "us")
_PARTS = 2


@contextlib.asynccontextmanager
async def _namespace(life: ActorsLife, process: Process) -> AsyncIterator[Namespace]:
    async def make(namespace: Namespace, policy: StreamPolicy) -> Namespace:
        for name in STREAMS:
            await namespace.create_stream(name, policy=policy, exist_ok=True)
        return namespace

    async with made(life, process, make) as namespace:
        yield namespace


async def commit(life: ActorsLife, process: Process) -> None:
    """Commit batches."""
    run, count = f"{process.name}.{process.number}", 0
    async with _namespace(life, process) as namespace:
        place = Place(namespace.client, namespace)
        app = Application(place, "nightly", Identity("orders", run))
        while life.is_rough:
            count += 1
            batch = -1
            try:
                with under_way(life, process, "preparing an application"):
                    await app.prepare()
                    life.history.operations += 1
                    batch = (await app.head()).batch + 1
                with under_way(life, process, f"committing batch {batch}"):
                    await _commit_one(life, app, batch, f"{run}.{count}")
            except ConfigError as error:
                text = f"{process.name} is told that it is wrong: {error}"
                life.history.violation(Invariant.NOBODY_IS_WRONG, text)
            except QuorumbookError as error:
                life.history.failed(process.name, error)
                if batch >= 0 and life.tape.chance(0.5):
                    with (
                        contextlib.suppress(QuorumbookError),
                        under_way(life, process, f"giving batch {batch} up"),
                    ):
                        await app.abort(batch)
            await asyncio.sleep(life.tape.between(0, 0.1))


async def _commit_one(life: ActorsLife, app: Application, batch: int, who: str) -> None:
    tape = life.tape
    names = tape.pick((STREAMS, STREAMS[:1], STREAMS[1:]))
    # Few rows are handed to the driver, or have a ledger.
    options = DraftOptions(handed_bytes=tape.pick((0, 0, 1 << 16)))
    rows: dict[str, list[bytes]] = {name: [] for name in names}
    results: list[AttemptResult] = []
    for part in range(_PARTS):
        attempt = app.attempt(batch, part, 0, options, planned_ms=0)
        try:
            for name in names:
                for _ in range(tape.below(3)):
                    first = len(rows[name])
                    count = 1 + tape.below(life.plan.burst_max)
                    payloads = [f"{batch} {who} {i}".encode() for i in range(first, first + count)]
                    rows[name] += payloads
                    await attempt.append(name, payloads)
                    life.history.operations += len(payloads)
            results.append(await attempt.finish())
            life.history.operations += 1
        except QuorumbookError:
            await attempt.give_up()
            raise
    life.transactions.tried(batch, who, rows)
    done = await app.commit(batch, results)
    if done.was_there:
        life.transactions.found(batch)
    else:
        life.transactions.committed(batch, who)


async def read_to_the_end(life: ActorsLife, process: Process) -> None:
    """When all is well again: read all streams."""
    async with _namespace(life, process) as namespace:

        async def read() -> None:
            rows: dict[str, list[bytes]] = {}
            for name in STREAMS:
                stream = namespace.stream(name)
                await stream.recover()
                async with stream.reader(tail=False) as reader:
                    rows[name] = [record.payload async for record in reader]
            life.transactions.read_all(rows)

        await read_at_last(life, process, read)
