"""One writer without pause, and an account of what it was acknowledged, to compare with reads.

Payloads are computed from (ledger, entry), so any lost, changed, swapped or repeated entry shows.
For faults of one machine; what goes wrong between many processes is the matter of ``torture``.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from dataclasses import dataclass, field

import quorumbook
from doubles.waiting import until
from quorumbook.errors import BackpressureError, QuorumbookError


def payload(ledger_id: int, entry_id: int) -> bytes:
    """Bytes that belong to this entry alone, between 32 and 1055 of them."""
    seed = hashlib.sha256(b"%d:%d" % (ledger_id, entry_id)).digest()
    return seed + seed[:1] * (int.from_bytes(seed[:2], "big") & 1023)


@dataclass
class Account:
    """What the cluster acknowledged, ledger by ledger."""

    cycles: int = 0
    acknowledged: dict[int, int] = field(default_factory=dict)
    verified_entries: int = 0
    adds_during_outage: int = 0
    fragments: int = 0


class Load:
    """One writer that never pauses, until it is fenced or stopped."""

    def __init__(self, writer: quorumbook.LedgerWriter, account: Account) -> None:
        self.writer = writer
        self.account = account
        self.account.acknowledged[writer.id] = -1
        self._running = True
        self._task = asyncio.create_task(self._run())

    @property
    def last_acknowledged(self) -> int:
        return self.account.acknowledged[self.writer.id]

    def _acknowledge(self, future: asyncio.Future[int]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        entry_id = future.result()
        assert entry_id == self.last_acknowledged + 1, "acknowledgements out of order"
        self.account.acknowledged[self.writer.id] = entry_id

    async def _run(self) -> None:
        next_id = 0
        while self._running:
            try:
                for _ in range(64):
                    future = self.writer.append_nowait(payload(self.writer.id, next_id))
                    future.add_done_callback(self._acknowledge)
                    next_id += 1
            except BackpressureError:
                await self.writer.drain()
            await asyncio.sleep(0.001)

    async def wait_acknowledged(self, more: int, what: str) -> None:
        """Wait for a number of further acknowledgements."""
        target = self.last_acknowledged + more

        def reached() -> bool:
            if self._task.done():
                self._task.result()
            return self.last_acknowledged >= target

        await until(reached, what)

    async def stop(self) -> None:
        """End without closing the ledger, as a writer that dies."""
        self._running = False
        with contextlib.suppress(QuorumbookError):
            await self._task
        with contextlib.suppress(QuorumbookError):
            await self.writer.abort()


async def verify(client: quorumbook.BookKeeper, ledger_id: int, account: Account) -> None:
    """Open with recovery, read everything, compare with what was acknowledged."""
    reader = await client.open_ledger(ledger_id)
    async with reader:
        last = reader.last_add_confirmed
        acknowledged = account.acknowledged[ledger_id]
        assert last >= acknowledged, (
            f"ledger {ledger_id}: closed at {last}, but {acknowledged} was acknowledged"
        )
        expected = 0
        async for entry in reader.read(0):
            assert entry.entry_id == expected, f"ledger {ledger_id}: entry {expected} is missing"
            assert entry.payload == payload(ledger_id, expected), (
                f"ledger {ledger_id}: entry {expected} holds other bytes"
            )
            expected += 1
        assert expected == last + 1, f"ledger {ledger_id}: {expected} of {last + 1} entries read"
        account.verified_entries += expected
        account.fragments += len(reader.metadata.fragments)
