"""Who uses the cluster: writers, those who recover ledgers, those who follow them, auto-recovery.

Each is a program for a process, with a client of its own.  They go on until the rough time is
over; errors of the cluster are what they live with, and what they are told goes to the history.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Protocol

from quorumbook.autorecovery.options import AuditorOptions, RecoveryOptions, WorkerOptions
from quorumbook.autorecovery.process import AutoRecovery
from quorumbook.client.reading.reader import LedgerReader
from quorumbook.client.writing.writer import LedgerWriter
from quorumbook.errors import NoSuchEntryError, QuorumbookError
from quorumbook.ids import EntryId, LedgerId
from quorumbook.sim.cluster import Cluster, SimClient
from quorumbook.sim.history import History
from quorumbook.sim.kernel import Kernel, Tape
from quorumbook.sim.plan import Plan
from quorumbook.sim.process import Process

_WINDOW = 32


class Life(Protocol):
    """What they live in."""

    kernel: Kernel
    tape: Tape
    plan: Plan
    history: History
    cluster: Cluster
    #: Whether there may still be mishaps.
    is_rough: bool


@contextlib.asynccontextmanager
async def started(life: Life, process: Process) -> AsyncIterator[SimClient]:
    """Start a client, however often that takes."""
    while True:
        client = life.cluster.client(process)
        try:
            await client.start()
            break
        except QuorumbookError:
            await asyncio.sleep(0.5)
    yield client


async def write(life: Life, process: Process) -> None:
    """Write ledgers, one after the other."""
    async with started(life, process) as client:
        while life.is_rough and len(life.history.ledgers) < life.plan.ledgers_max:
            try:
                await _write_one(life, process, client)
            except QuorumbookError as error:
                life.kernel.trace.note(process.name, "fails", type(error).__name__)
            await asyncio.sleep(life.tape.between(0, 0.5))


async def _write_one(life: Life, process: Process, client: SimClient) -> None:
    plan, tape, history = life.plan, life.tape, life.history
    ensemble, write_quorum, ack_quorum = plan.quorums
    writer = await client.create_ledger(
        ensemble_size=ensemble,
        write_quorum_size=write_quorum,
        ack_quorum_size=ack_quorum,
        digest_type=plan.digest_type,
        password=b"secret",
    )
    ledger = history.created(writer.id, process.name, ack_quorum)
    count = 1 + tape.below(plan.entries_max)
    pending: set[asyncio.Future[EntryId]] = set()
    while len(ledger.sent) < count and life.is_rough:
        for _ in range(min(1 + tape.below(plan.burst_max), count - len(ledger.sent))):
            _append(life, process, writer, ledger.sent, pending)
        await asyncio.sleep(tape.between(0, 0.3) if tape.chance(0.7) else 0)
        while len(pending) > _WINDOW or (pending and writer.is_closed):
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    ending = tape.below(4)
    if ending < 2:
        await writer.close()
        end = writer.metadata
        history.opened(writer.id, process.name, end.last_entry_id, end.length)
    elif ending == 2:
        await writer.abort()


def _append(
    life: Life,
    process: Process,
    writer: LedgerWriter,
    sent: list[bytes],
    pending: set[asyncio.Future[EntryId]],
) -> None:
    entry_id, ledger_id = len(sent), writer.id
    size = life.tape.below(life.plan.payload_size_max)
    payload = f"{ledger_id}/{entry_id}/{process.name} ".encode().ljust(size, b"x")
    future = writer.append_nowait(payload)
    sent.append(payload)
    pending.add(future)

    def done(future: asyncio.Future[EntryId]) -> None:
        pending.discard(future)
        if future.cancelled() or future.exception() is not None:
            return
        if future.result() != entry_id:
            life.history.violation(f"entry {entry_id} became {future.result()}", ledger_id)
        life.history.acked(ledger_id, process.name, entry_id)

    future.add_done_callback(done)


async def recover(life: Life, process: Process) -> None:
    """Recover ledgers at random, also such as are being written."""
    async with started(life, process) as client:
        while life.is_rough:
            await asyncio.sleep(life.tape.between(0.2, 3))
            ids = list(life.history.ledgers)
            if not ids:
                continue
            ledger_id = life.tape.pick(ids)
            with contextlib.suppress(QuorumbookError):
                await read_closed(life, process, client, ledger_id)


async def read_closed(
    life: Life, process: Process, client: SimClient, ledger_id: LedgerId
) -> LedgerReader:
    """Recover one ledger and read all of it."""
    history = life.history
    history.tell(ledger_id, process.name, "is to be recovered")
    try:
        reader = await client.open_ledger(ledger_id, password=b"secret")
    except QuorumbookError as error:
        history.tell(ledger_id, process.name, f"not recovered: {type(error).__name__}: {error}")
        raise
    last = reader.last_add_confirmed
    history.opened(ledger_id, process.name, last, reader.length)
    try:
        if last >= 0:
            async for entry in reader.read(0, last):
                history.read(ledger_id, process.name, entry.entry_id, entry.payload)
    except NoSuchEntryError as error:
        history.violation(f"{process.name} was denied an entry: {error}", ledger_id)
        raise
    finally:
        await reader.close()
    return reader


async def tail(life: Life, process: Process) -> None:
    """Follow ledgers while they are written."""
    async with started(life, process) as client:
        while life.is_rough:
            await asyncio.sleep(life.tape.between(0.05, 0.5))
            ids = list(life.history.ledgers)
            if not ids:
                continue
            ledger_id = life.tape.pick(ids)
            with contextlib.suppress(QuorumbookError, TimeoutError):
                async with asyncio.timeout(life.tape.between(0.5, 5)):
                    await _follow(life, process, client, ledger_id)


async def _follow(life: Life, process: Process, client: SimClient, ledger_id: LedgerId) -> None:
    reader = await client.open_ledger(ledger_id, password=b"secret", recover=False)
    try:
        life.history.confirmed(ledger_id, process.name, reader.last_add_confirmed)
        async for entry in reader.tail():
            life.history.read(ledger_id, process.name, entry.entry_id, entry.payload)
            life.history.confirmed(ledger_id, process.name, reader.last_add_confirmed)
    finally:
        await reader.close()


async def replicate(life: Life, process: Process) -> None:
    """Run auditor and replication worker."""
    async with started(life, process) as client:
        options = RecoveryOptions(
            name=process.name,
            auditor=AuditorOptions(stream_retention_interval_s=0),
            worker=WorkerOptions(open_ledger_grace_s=3.0, max_retry_s=10.0),
        )
        AutoRecovery(client, options).start()
        await asyncio.get_running_loop().create_future()
