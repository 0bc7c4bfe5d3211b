"""A worker on a cluster of scripted bookies, and how to wait for it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from doubles.waiting import until
from quorumbook import BookKeeper
from quorumbook.autorecovery.copying.worker import ReplicationWorker
from quorumbook.autorecovery.options import WorkerOptions

PAYLOADS = [b"entry %d " % n * (n % 7 + 1) for n in range(60)]


@contextlib.asynccontextmanager
async def working(
    client: BookKeeper, name: str = "w", **options: float
) -> AsyncIterator[ReplicationWorker]:
    """Run a worker."""
    worker = ReplicationWorker(client, name, WorkerOptions(**options))
    worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


async def healed(worker: ReplicationWorker, ledger_id: int) -> None:
    """Wait until a ledger is off the queue."""

    async def is_gone() -> bool:
        return await worker.queue.read(ledger_id) is None

    await until(is_gone)


async def failed(worker: ReplicationWorker, ledger_id: int, attempts: int = 1) -> str:
    """Wait until a ledger could not be healed so often; return why."""

    async def has_failed() -> bool:
        failure = await worker.quarantine.read(ledger_id)
        return failure is not None and failure.attempts >= attempts

    await until(has_failed)
    failure = await worker.quarantine.read(ledger_id)
    assert failure is not None
    return failure.reason


async def write(client: BookKeeper, payloads: list[bytes] = PAYLOADS, **shape: int) -> int:
    """Write a ledger, close it, return its id."""
    async with client.create_ledger(**shape) as ledger:
        for payload in payloads:
            ledger.append_nowait(payload)
    return ledger.id
