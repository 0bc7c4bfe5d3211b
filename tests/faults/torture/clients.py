"""The clients of the torture: writers, rivals who recover, readers; each a process of its own.

What a client does is in its ``Job``; whatever it is told by the cluster it writes down before it
goes on.  It decides nothing about right and wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import quorumbook
from faults.torture.history import SMALLEST, Scribe, payload, writer_of
from faults.torture.network import DivertedNetwork
from quorumbook.client.client import BookKeeper
from quorumbook.client.options import ClientOptions
from quorumbook.client.reading.reader import LedgerReader
from quorumbook.client.writing.writer import LedgerWriter
from quorumbook.env import Env
from quorumbook.errors import (
    BackpressureError,
    LedgerClosedError,
    LedgerExistsError,
    NoSuchLedgerInMetadataError,
    QuorumbookError,
)

OPTIONS: dict[str, Any] = {
    "connect_timeout_s": 1.0,
    "add_timeout_s": 1.5,
    "add_quorum_timeout_s": 10.0,
    "read_timeout_s": 1.5,
    "request_timeout_s": 1.5,
    "operation_timeout_s": 20.0,
    "max_pending_entries": 1000,
    "long_poll_timeout_s": 0.5,
    "speculative_read_s": 0.5,
    "quarantine_s": 0.5,
    "session_timeout_s": 4.0,
}
#: What a writer writes before it only trickles.
FULL_BYTES, FULL_ENTRIES = 12 << 20, 3000
RETRY_S = 0.1


@dataclasses.dataclass(frozen=True)
class Job:
    """What one client is to do.

    Attributes:
        kind: ``write``, ``recover``, ``tail``.
        name: Of its file of facts.
        number: Of the writer, in its payloads.
        uri: The metadata, through its proxy.
        proxies: For each bookie's port the proxy's, as pairs.
        history: Where facts go.
        ledger_id: Which.
        seed: For its dice.
        begin: ``create``; or of an unwritten ledger ``claim``, or ``make and claim``.
        shape: Ensemble, write quorum, ack quorum.
        sizes: Of entries: one is drawn for each burst.
        burst_bytes: About so much at once.
        end: ``close`` when it is full, ``trickle`` for ever.
        tries_s: How long it tries to recover.
        deletes: Whether it deletes the ledger when it has read it whole.
    """

    kind: str
    name: str
    number: int
    uri: str
    proxies: list[tuple[int, int]]
    history: str
    ledger_id: int
    seed: int = 0
    begin: str = "create"
    shape: tuple[int, int, int] = (3, 3, 2)
    sizes: tuple[int, ...] = (100,)
    burst_bytes: int = 1 << 20
    end: str = "trickle"
    tries_s: float = 3.0
    deletes: bool = False


def work(args: dict[str, Any]) -> int:
    """Do a job; the result is the exit code of its process."""
    job = Job(**args)
    return asyncio.run({"write": _write, "recover": _recover, "tail": _tail}[job.kind](job))


@contextlib.asynccontextmanager
async def _client(job: Job, scribe: Scribe) -> AsyncIterator[quorumbook.BookKeeper]:
    env = Env(network=DivertedNetwork(dict(job.proxies)))
    client = BookKeeper(job.uri, options=ClientOptions(**OPTIONS), env=env)
    deadline = time.monotonic() + 20
    while True:
        try:
            await client.start()
            break
        except QuorumbookError as error:
            _failed(scribe, job, "connect", error)
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(RETRY_S)
    try:
        yield client
    finally:
        with contextlib.suppress(QuorumbookError, TimeoutError):
            async with asyncio.timeout(5):
                await client.close()


def _failed(scribe: Scribe, job: Job, operation: str, error: BaseException) -> None:
    scribe.note(
        "failed", ledger=job.ledger_id, of=operation, error=f"{type(error).__name__}: {error}"
    )


# Writing -----------------------------------------------------------------------------------


class _Acks:
    """Gathers acknowledgements, and writes down what came together as one fact."""

    def __init__(self, job: Job, scribe: Scribe) -> None:
        self._job, self._scribe = job, scribe
        self._first = self._last = -1
        self._loop = asyncio.get_running_loop()

    def take(self, future: asyncio.Future[int]) -> None:
        """Note an append's future that is done."""
        if future.cancelled() or future.exception() is not None:
            return
        entry_id = future.result()
        if self._first >= 0 and entry_id == self._last + 1:
            self._last = entry_id
            return
        if self._first >= 0:
            self.write_down()
        self._first = self._last = entry_id
        self._loop.call_soon(self.write_down)

    def write_down(self) -> None:
        """Write down what was gathered."""
        if self._first < 0:
            return
        first, self._first = self._first, -1
        job = self._job
        self._scribe.note(
            "acked", ledger=job.ledger_id, first=first, last=self._last, writer=job.number
        )


async def _write(job: Job) -> int:
    scribe = Scribe(Path(job.history), job.name)
    async with _client(job, scribe) as client:
        writer = await _begin_writing(job, scribe, client)
        if writer is None:
            return 1
        try:
            await _append_all(job, scribe, writer)
        except QuorumbookError as error:
            _failed(scribe, job, "append", error)
            # Whoever was overtaken tries once more, and tries to close.
            with contextlib.suppress(QuorumbookError):
                await writer.append(
                    payload(job.ledger_id, writer.last_add_pushed + 1, job.number, 100)
                )
                scribe.note("hung", ledger=job.ledger_id, why="a failed writer appends again")
        try:
            await writer.close()
            scribe.note("closed", ledger=job.ledger_id, last=writer.last_add_confirmed)
        except QuorumbookError as error:
            _failed(scribe, job, "close", error)
    return 0


async def _begin_writing(
    job: Job, scribe: Scribe, client: quorumbook.BookKeeper
) -> LedgerWriter | None:
    ensemble, write, ack = job.shape
    shape: dict[str, Any] = {
        "ensemble_size": ensemble,
        "write_quorum_size": write,
        "ack_quorum_size": ack,
    }
    makes = job.begin == "make and claim"
    deadline = time.monotonic() + job.tries_s
    while time.monotonic() < deadline:
        try:
            if job.begin.endswith("claim"):
                if makes:
                    makes = False  # once, lest a ledger that was deleted since be made again
                    await client.create_unwritten_ledger(ledger_id=job.ledger_id, **shape)
                    scribe.note("made", ledger=job.ledger_id)
                writer = await client.claim_unwritten_ledger(job.ledger_id)
                scribe.note("claimed", ledger=job.ledger_id)
            else:
                writer = await client.create_ledger(ledger_id=job.ledger_id, **shape)
                scribe.note("created", ledger=job.ledger_id)
            return writer
        except (LedgerExistsError, LedgerClosedError) as error:
            _failed(scribe, job, job.begin, error)
            return None
        except QuorumbookError as error:
            # Too few bookies, or nobody knows whether it was made: then the id is given up.
            _failed(scribe, job, job.begin, error)
            await asyncio.sleep(RETRY_S)
    return None


async def _append_all(job: Job, scribe: Scribe, writer: LedgerWriter) -> None:
    dice, acks, next_id, total = random.Random(job.seed), _Acks(job, scribe), 0, 0
    futures: list[asyncio.Future[int]] = []
    while True:
        is_full = total >= FULL_BYTES or next_id >= FULL_ENTRIES
        if is_full and job.end == "close":
            await writer.drain()
            return
        size = SMALLEST + 68 if is_full else dice.choice(job.sizes)
        count = 1 if is_full else min(500, max(1, job.burst_bytes // size))
        for _ in range(count):
            try:
                future = writer.append_nowait(payload(job.ledger_id, next_id, job.number, size))
            except BackpressureError:
                await writer.drain()
                break
            future.add_done_callback(acks.take)
            futures.append(future)
            next_id += 1
            total += size
        await asyncio.sleep(dice.random() * (0.05 if is_full else 0.01))
        for future in [each for each in futures if each.done()]:
            future.result()
        futures = [each for each in futures if not each.done()]


# Taking over -------------------------------------------------------------------------------


async def _recover(job: Job) -> int:
    """Recover and read whole, again and again; 0 when that was done or the ledger is gone."""
    scribe = Scribe(Path(job.history), job.name)
    deadline = time.monotonic() + job.tries_s
    async with _client(job, scribe) as client:
        while True:
            try:
                async with client.open_ledger(job.ledger_id) as reader:
                    last = reader.last_add_confirmed
                    scribe.note("closed", ledger=job.ledger_id, last=last)
                    await _read(job, scribe, reader, 0, last)
                    scribe.note("whole", ledger=job.ledger_id, last=last)
                if job.deletes:
                    await _delete(job, scribe, client)
                return 0
            except NoSuchLedgerInMetadataError as error:
                _failed(scribe, job, "recover", error)
                return 0
            except QuorumbookError as error:
                _failed(scribe, job, "recover", error)
                if time.monotonic() > deadline:
                    return 1
                await asyncio.sleep(RETRY_S)


async def _delete(job: Job, scribe: Scribe, client: quorumbook.BookKeeper) -> None:
    scribe.note("deleting", ledger=job.ledger_id)
    while True:
        try:
            await client.delete_ledger(job.ledger_id)
        except NoSuchLedgerInMetadataError:
            return
        except QuorumbookError as error:
            _failed(scribe, job, "delete", error)
            await asyncio.sleep(RETRY_S)


async def _read(job: Job, scribe: Scribe, reader: LedgerReader, first: int, last: int) -> None:
    """Read a stretch and write down whose it is, also what was read before a failure."""
    expected, begun, author = first, first, -1

    def write_down() -> None:
        if expected > begun:
            scribe.note("read", ledger=job.ledger_id, first=begun, last=expected - 1, writer=author)

    try:
        async for entry in reader.read(first, last):
            writer = writer_of(entry.payload, job.ledger_id, entry.entry_id)
            if entry.entry_id != expected or writer is None:
                scribe.note("alien", ledger=job.ledger_id, entry=entry.entry_id)
                writer = -2
            if writer != author:
                write_down()
                begun, author = expected, writer
            expected += 1
    finally:
        write_down()


async def _tail(job: Job) -> int:
    """Follow a ledger while others write and close it."""
    scribe = Scribe(Path(job.history), job.name)
    deadline = time.monotonic() + job.tries_s
    seen, handle = -1, 0
    async with _client(job, scribe) as client:
        while time.monotonic() < deadline:
            told, handle = -2, handle + 1
            try:
                async with client.open_ledger(job.ledger_id, recover=False) as reader:
                    while time.monotonic() < deadline:
                        last = await reader.read_last_add_confirmed()
                        if last != told:
                            scribe.note("lac", ledger=job.ledger_id, last=last, handle=handle)
                            told = last
                        if last > seen:
                            await _read(job, scribe, reader, seen + 1, last)
                            seen = last
                        if reader.is_closed:
                            # It may have closed since ``last`` was asked for.
                            end = reader.metadata.last_entry_id
                            scribe.note("closed", ledger=job.ledger_id, last=end)
                            return 0
                        await asyncio.sleep(0.02)
            except QuorumbookError as error:
                _failed(scribe, job, "tail", error)
                await asyncio.sleep(RETRY_S)
    return 1
