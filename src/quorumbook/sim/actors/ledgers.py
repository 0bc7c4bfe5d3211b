"""Who uses the cluster: writers, those who recover ledgers, those who follow them, auto-recovery.

Each is a program for a process, with a client of its own.  They go on until the rough time is
over; errors of the cluster are what they live with, and what they are told goes to the history.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Protocol, TypeVar

from quorumbook.autorecovery.options import AuditorOptions, RecoveryOptions, WorkerOptions
from quorumbook.autorecovery.process import AutoRecovery
from quorumbook.client.context import client_store
from quorumbook.client.reading.reader import LedgerReader
from quorumbook.client.writing.writer import LedgerWriter, check_accounts
from quorumbook.env.tasks import finish_all
from quorumbook.errors import (
    ConfigError,
    InternalError,
    LocalProtocolError,
    NoSuchEntryError,
    QuorumbookError,
)
from quorumbook.ids import EntryId, LedgerId
from quorumbook.metadata.recovery.queue import UnderreplicationQueue
from quorumbook.metadata.recovery.switches import PeriodicCheck
from quorumbook.sim.cluster import SimClient, SimulatedCluster
from quorumbook.sim.histories.groups import GroupHistory
from quorumbook.sim.histories.invariants import Invariant
from quorumbook.sim.histories.ledgers import PASSWORD, History, LedgerHistory
from quorumbook.sim.histories.readers import Reading
from quorumbook.sim.histories.streams import StreamHistory
from quorumbook.sim.histories.transactions import TransactionHistory
from quorumbook.sim.kernel import Kernel, Tape
from quorumbook.sim.plan import LifePlan
from quorumbook.sim.process import Machine, Process

T = TypeVar("T")
_WINDOW = 32


class ActorsLife(Protocol):
    """What they live in."""

    kernel: Kernel
    tape: Tape
    plan: LifePlan
    history: History
    cluster: SimulatedCluster
    streams: StreamHistory
    groups: GroupHistory
    transactions: TransactionHistory
    #: Whether there may still be mishaps.
    is_rough: bool

    def start_client(self, machine: Machine) -> None:
        """Start a client machine's program again."""


@contextlib.asynccontextmanager
async def started(life: ActorsLife, process: Process) -> AsyncIterator[SimClient]:
    """Start a client, however often that takes."""
    while True:
        client = life.cluster.client(process)
        try:
            await client.start()
            break
        except QuorumbookError:
            await asyncio.sleep(0.5)
    yield client


@contextlib.contextmanager
def tried(
    life: ActorsLife, process: Process, wrong: tuple[type[QuorumbookError], ...] = (ConfigError,)
) -> Iterator[None]:
    """Go on after a failure; to be told that one is wrong is a violation."""
    try:
        yield
    except wrong as error:
        # The cluster has nothing to do with it.
        text = f"{process.name} is told that it is wrong: {error}"
        life.history.violation(Invariant.NOBODY_IS_WRONG, text)
    except QuorumbookError as error:
        life.history.failed(process.name, error)


async def read_at_last(
    life: ActorsLife, process: Process, read: Callable[[], Awaitable[None]]
) -> None:
    """Read once all is well again, and once more after a failure, until none is left."""
    while True:
        try:
            await read()
            return
        except ConfigError:
            raise
        except QuorumbookError as error:
            life.kernel.trace.note(process.name, "reads again", type(error).__name__)
            await asyncio.sleep(1)


async def write(life: ActorsLife, process: Process) -> None:
    """Write ledgers one after the other, now and then some at the same time."""
    async with started(life, process) as client:
        while life.is_rough and len(life.history.own_ids) < life.plan.ledgers_max:
            at_once = life.tape.pick((1, 1, 1, 1, 4))
            with tried(life, process, (ConfigError, LocalProtocolError)):
                await finish_all(*(_write_one(life, process, client) for _ in range(at_once)))
            await asyncio.sleep(life.tape.between(0, 0.5 * life.plan.pace))


async def _write_one(life: ActorsLife, process: Process, client: SimClient) -> None:
    plan, tape, history = life.plan, life.tape, life.history
    ensemble, write_quorum, ack_quorum = plan.quorums
    is_deferred = plan.has("deferred_sync") and tape.chance(0.5)
    has_chosen_ids = plan.has("chosen_ids") and tape.chance(0.5)
    writer = await client.create_ledger(
        ensemble_size=ensemble,
        write_quorum_size=write_quorum,
        ack_quorum_size=ack_quorum,
        digest_type=plan.digest_type,
        password=PASSWORD,
        deferred_sync=is_deferred,
        explicit_entry_ids=has_chosen_ids,
    )
    ledger = history.created(writer.id, process.name, ack_quorum, lambda: writer.last_add_confirmed)
    appends = Appends(life, process, writer, ledger, is_deferred, has_chosen_ids)
    count = 1 + tape.below(plan.entries_max)
    while len(ledger.sent) < count and life.is_rough:
        appends.check()
        appends.burst(min(1 + tape.below(plan.burst_max), count - len(ledger.sent)))
        await asyncio.sleep(tape.between(0, 0.3 * plan.pace) if tape.chance(0.7) else 0)
        while len(appends.pending) > _WINDOW or (appends.pending and writer.is_closed):
            await asyncio.wait(appends.pending, return_when=asyncio.FIRST_COMPLETED)
        if is_deferred and tape.chance(0.3):
            with history.calls.under_way(process, f"forcing ledger {writer.id}"):
                last = await writer.force()
            history.forced(writer.id, process.name, last)
    ending = tape.below(4)
    if ending < 2:
        await close(history, process, writer)
    elif ending == 2:
        with history.calls.under_way(process, f"letting go of ledger {writer.id}"):
            await writer.abort()


async def close(history: History, process: Process, writer: LedgerWriter) -> None:
    """Close a ledger, and tell where it ends."""
    with history.calls.under_way(process, f"closing ledger {writer.id}"):
        await writer.close()
    end, who = writer.metadata, process.name
    history.closed(writer.id, who, writer.last_add_confirmed)
    history.opened(writer.id, who, end.last_entry_id, end.length)


class Appends:
    """What one writer has under way."""

    def __init__(
        self,
        life: ActorsLife,
        process: Process,
        writer: LedgerWriter,
        ledger: LedgerHistory,
        is_deferred: bool,
        has_chosen_ids: bool,
    ) -> None:
        self._life = life
        self._process = process
        self._who = process.name
        self.writer = writer
        self._ledger = ledger
        self._is_deferred = is_deferred
        self._has_chosen_ids = has_chosen_ids
        self.pending: set[asyncio.Future[EntryId]] = set()

    def burst(self, count: int) -> None:
        """Append entries; where their ids are chosen, in any order."""
        tape, sent = self._life.tape, self._ledger.sent
        first = len(sent)
        for entry_id in range(first, first + count):
            size = tape.below(self._life.plan.payload_size_max)
            sent.append(f"{self.writer.id}/{entry_id}/{self._who} ".encode().ljust(size, b"x"))
        if not self._has_chosen_ids:
            for entry_id in range(first, first + count):
                # Whose buffer it is may write on in it at once (S22).
                buffer: Any = bytearray(sent[entry_id])
                self._watch(entry_id, self.writer.append_nowait(buffer))
                buffer[:] = bytes(len(buffer))
            return
        waiting = list(range(first, first + count))
        while waiting:
            entry_id = waiting.pop(tape.below(len(waiting)))
            self._watch(entry_id, self.writer.append_at_nowait(entry_id, sent[entry_id]))

    def check(self) -> None:
        """Have the machine behind the writer look at itself."""
        try:
            check_accounts(self.writer)
        except InternalError as error:
            self._life.history.violation(Invariant.ACCOUNTS_FIT, str(error), self.writer.id)

    def _watch(self, entry_id: EntryId, future: asyncio.Future[EntryId]) -> None:
        self.pending.add(future)
        calls = self._life.history.calls
        call = calls.begin(self._process, f"appending entry {entry_id} to ledger {self.writer.id}")

        def done(future: asyncio.Future[EntryId]) -> None:
            self.pending.discard(future)
            calls.end(call)
            self.check()
            history, ledger_id = self._life.history, self.writer.id
            if future.cancelled():
                return
            error = future.exception()
            if error is not None:
                self._ledger.has_failed = True
                history.failed(self._who, error)
                return
            if future.result() != entry_id:
                text = f"entry {entry_id} became {future.result()}"
                history.violation(Invariant.NO_OUT_OF_ORDER_ENTRIES, text, ledger_id)
            # What is not synced is not promised.
            if not self._is_deferred:
                history.acked(ledger_id, self._who, entry_id)

        future.add_done_callback(done)


async def recover(life: ActorsLife, process: Process) -> None:
    """Recover ledgers at random, also such as are being written."""
    async with started(life, process) as client:
        while life.is_rough:
            await asyncio.sleep(life.tape.between(0.2, 3) * life.plan.pace)
            ids = life.history.own_ids
            if not ids:
                continue
            ledger_id = life.tape.pick(ids)
            with tried(life, process, ()):
                await read_closed(life, process, client, ledger_id)


async def read_closed(
    life: ActorsLife, process: Process, client: SimClient, ledger_id: LedgerId
) -> LedgerReader:
    """Recover one ledger and read all of it."""
    history = life.history
    history.tell(ledger_id, process.name, "is to be recovered")
    try:
        reader = await client.open_ledger(ledger_id, password=PASSWORD)
    except QuorumbookError as error:
        history.tell(ledger_id, process.name, f"not recovered: {type(error).__name__}: {error}")
        raise
    last = reader.last_add_confirmed
    history.opened(ledger_id, process.name, last, reader.length)
    await _read_all(process, Reading(history, ledger_id, process.name), reader, last)
    return reader


async def read_confirmed(
    life: ActorsLife, process: Process, client: SimClient, ledger_id: LedgerId
) -> None:
    """Ask what is confirmed of a ledger, which may be written, and read it."""
    history = life.history
    reader = await client.open_ledger(ledger_id, password=PASSWORD, recover=False)
    last = reader.last_add_confirmed
    reading = Reading(history, ledger_id, process.name)
    reading.confirmed(last)
    await _read_all(process, reading, reader, last)


async def _read_all(
    process: Process, reading: Reading, reader: LedgerReader, last: EntryId
) -> None:
    """Read a ledger up to what is confirmed of it, and close the reader."""
    history = reading.history
    try:
        with history.calls.under_way(process, f"reading ledger {reader.id}"):
            if last >= 0:
                async for entry in reader.read(0, last):
                    reading.shown(entry.entry_id, entry.payload)
        reading.ended(last)
        reading.confirmed(reader.last_add_confirmed)
    except NoSuchEntryError as error:
        if not history.ledgers[reader.id].is_doomed:
            text = f"{reading.who} was denied an entry: {error}"
            history.violation(Invariant.NO_ENTRY_IS_DENIED, text, reader.id)
        raise
    finally:
        with history.calls.under_way(process, f"closing a reader of ledger {reader.id}"):
            await reader.close()


async def delete(life: ActorsLife, process: Process) -> None:
    """Delete ledgers at random, also such as are being written."""
    async with started(life, process) as client:
        while life.is_rough:
            await asyncio.sleep(life.tape.between(0.5, 4) * life.plan.pace)
            ids = [i for i in life.history.own_ids if not life.history.ledgers[i].is_doomed]
            if len(ids) < 2:
                continue
            ledger_id = life.tape.pick(ids)
            life.history.doomed(ledger_id, process.name)
            with tried(life, process, ()):
                await client.delete_ledger(ledger_id)
                life.history.operations += 1


async def tail(life: ActorsLife, process: Process) -> None:
    """Follow ledgers while they are written."""
    async with started(life, process) as client:
        while life.is_rough:
            await asyncio.sleep(life.tape.between(0.05, 0.5) * life.plan.pace)
            ids = life.history.own_ids
            if not ids:
                continue
            ledger_id = life.tape.pick(ids)
            with tried(life, process, ()), contextlib.suppress(TimeoutError):
                async with asyncio.timeout(life.tape.between(0.5, 5)):
                    await follow(life, process, client, ledger_id)


async def follow(
    life: ActorsLife, process: Process, client: SimClient, ledger_id: LedgerId
) -> None:
    """Read a ledger while it is written, and on and on."""
    reader = await client.open_ledger(ledger_id, password=PASSWORD, recover=False)
    reading = Reading(life.history, ledger_id, process.name)
    try:
        reading.confirmed(reader.last_add_confirmed)
        async for entry in reader.tail():
            reading.shown(entry.entry_id, entry.payload)
            reading.confirmed(reader.last_add_confirmed)
        reading.left()
    finally:
        calls = life.history.calls
        with calls.under_way(process, f"closing a reader of ledger {ledger_id}"):
            await reader.close()


async def replicate(life: ActorsLife, process: Process) -> None:
    """Run auditor and replication worker."""
    life.history.has_workers = True
    async with started(life, process) as client:
        options = RecoveryOptions(
            name=process.name,
            auditor=AuditorOptions(stream_retention_interval_s=0),
            worker=WorkerOptions(open_ledger_grace_s=3.0, max_retry_s=10.0),
        )
        AutoRecovery(client, options).start()
        await asyncio.get_running_loop().create_future()


async def have_copies_counted(life: ActorsLife, process: Process) -> None:
    """Ask the auditor to count all copies, and wait until it has."""
    async with started(life, process) as client:
        queue = UnderreplicationQueue(client_store(client), process.name)
        await insist(lambda: queue.ask_for_check(PeriodicCheck.REPLICAS))
        checked_at_ms: int | None = 0
        while not checked_at_ms:
            await asyncio.sleep(0.2)
            checked_at_ms = await insist(lambda: queue.checked_at_ms(PeriodicCheck.REPLICAS))


async def insist(do: Callable[[], Awaitable[T]]) -> T:
    """Do something again and again until it succeeds."""
    while True:
        try:
            return await do()
        except ConfigError:
            raise
        except QuorumbookError:
            await asyncio.sleep(0.2)
