"""Writes one ledger that may become a segment of a stream, or be one of rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from quorumbook.client.waiting.window import ENTRY_OVERHEAD_BYTES
from quorumbook.client.writing.writer import LedgerWriter
from quorumbook.errors import BackpressureError
from quorumbook.streams.errors import RecordTooLargeError
from quorumbook.streams.format.compression import Codec
from quorumbook.streams.transactions.grafting import Draft
from quorumbook.streams.writing.packing import PackState
from quorumbook.streams.writing.pending import PackedRun, PendingAppend

#: So much is handed to the client at once; its window has room for several of these.
_CHUNK_ENTRIES = 500
_CHUNK_BYTES = 1 << 20


class DraftWriter(Protocol):
    """A ledger that is being written."""

    @property
    def size_bytes(self) -> int:
        """How many bytes of rows it has taken."""
        ...

    async def append(
        self,
        payloads: Sequence[bytes],
        txids: Sequence[int] | None,
        attributes: Sequence[bytes] | None,
    ) -> None:
        """Take rows in; returns when there is room for more."""
        ...

    async def finish(self) -> Draft:
        """Seal the ledger, and return what it holds."""
        ...

    async def give_up(self) -> None:
        """Let go of the ledger, which somebody else deletes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRules:
    """What a stream demands of what is written for it."""

    name: str
    codec: Codec
    entry_bytes: int
    #: What records without a transaction id get.
    txid: int
    checks_txids: bool


class StreamDraft:
    """Records, in entries as a stream's writer makes them."""

    def __init__(
        self, ledger: LedgerWriter, rules: StreamRules, wall_ms: Callable[[], int]
    ) -> None:
        """Take a new ledger."""
        self._ledger = ledger
        self._rules = rules
        self._wall_ms = wall_ms
        self._pack = PackState(
            next_sequence_id=0,
            last_txid=-1,
            codec=rules.codec,
            batch_bytes=rules.entry_bytes,
            checks_txids=rules.checks_txids,
        )
        # Which segment it will be is not known, and is not in its entries either.
        self._tail = self._pack.begin_segment(0, ledger.id)
        self._queued_bytes = 0
        self._first_txid = 0
        self._has_own_txids = False
        self.size_bytes = 0

    async def append(
        self,
        payloads: Sequence[bytes],
        txids: Sequence[int] | None,
        attributes: Sequence[bytes] | None,
    ) -> None:
        """Take records in; returns when there is room for more.

        Raises:
            TxidOutOfOrderError: a transaction id is below one before it.
            RecordTooLargeError: a record fits into no entry.
        """
        if not payloads:
            return
        pending = PendingAppend(list(payloads), None, attributes=attributes)
        try:
            pending.check_size()
        except RecordTooLargeError as error:
            raise RecordTooLargeError(
                f"stream {self._rules.name}: {error}; only a writer of the stream itself stores "
                "larger records, in chunks"
            ) from error
        if txids is None:
            txids = [self._rules.txid] * pending.count
        else:
            self._has_own_txids = True
        if not self.size_bytes and not self._queued_bytes:
            self._first_txid = txids[0]
        self._pack.append(pending, txids)
        self._queued_bytes += pending.size_bytes
        self.size_bytes += pending.size_bytes
        while self._queued_bytes >= self._rules.entry_bytes and await self._send():
            pass

    async def _send(self) -> bool:
        entry = self._pack.pack(self._wall_ms())
        if entry is None:
            return False
        self._queued_bytes -= sum(
            pending.size_of(first, count) for pending, first, count, _ in entry.parts
        )
        future = await append_entry(self._ledger, entry.entries[0])
        future.add_done_callback(lambda done: self._on_stored(entry, done))
        return True

    def _on_stored(self, entry: PackedRun, done: asyncio.Future[int]) -> None:
        # A failure ends the ledger's writer too, which says so to whoever appends or closes.
        if not done.cancelled() and done.exception() is None:
            self._pack.on_confirmed(entry)

    async def finish(self) -> Draft:
        """Seal the ledger, and return what it holds."""
        while await self._send():
            pass
        await self._ledger.close()
        tail = self._tail
        return Draft(
            stream=self._rules.name,
            ledger_id=self._ledger.id,
            record_count=tail.confirmed_count,
            size_bytes=self._ledger.length,
            last_entry=tail.confirmed_entry,
            last_slot=tail.confirmed_slot,
            first_txid=self._first_txid,
            last_txid=tail.confirmed_txid,
            has_own_txids=self._has_own_txids,
        )

    async def give_up(self) -> None:
        """Let go of the ledger, which somebody else deletes."""
        await self._ledger.abort()


class LedgerDraft:
    """Rows, each an entry."""

    def __init__(self, ledger: LedgerWriter) -> None:
        """Take a new ledger."""
        self._ledger = ledger
        self.size_bytes = 0
        self._count = 0

    async def append(
        self,
        payloads: Sequence[bytes],
        txids: Sequence[int] | None,
        attributes: Sequence[bytes] | None,
    ) -> None:
        """Take rows in; returns when there is room for more."""
        del txids, attributes
        for chunk in _chunks(payloads):
            while True:
                try:
                    future = self._ledger.append_batch_nowait(chunk)
                except BackpressureError:
                    await self._ledger.drain()
                else:
                    break
            # A failure ends the ledger's writer too, which says so to whoever appends or closes.
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._count += len(chunk)
            self.size_bytes += sum(map(len, chunk))

    async def finish(self) -> Draft:
        """Seal the ledger, and return what it holds."""
        await self._ledger.close()
        return Draft(
            stream="",
            ledger_id=self._ledger.id,
            record_count=self._count,
            size_bytes=self._ledger.length,
            last_entry=self._count - 1,
        )

    async def give_up(self) -> None:
        """Let go of the ledger, which somebody else deletes."""
        await self._ledger.abort()


async def append_entry(ledger: LedgerWriter, payload: bytes) -> asyncio.Future[int]:
    """Append an entry when there is room; who stored it is told by the ledger's writer as well."""
    while True:
        try:
            future = ledger.append_nowait(payload)
        except BackpressureError:
            await ledger.drain()
        else:
            # A failure ends the ledger's writer too, which says so to whoever appends or closes.
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            return future


def _chunks(payloads: Sequence[bytes]) -> list[list[bytes]]:
    """Cut rows so that each part fits into the client's window, one row at least."""
    found: list[list[bytes]] = []
    size = _CHUNK_BYTES
    for payload in payloads:
        size += len(payload) + ENTRY_OVERHEAD_BYTES
        if size > _CHUNK_BYTES or len(found[-1]) == _CHUNK_ENTRIES:
            found.append([])
            size = len(payload) + ENTRY_OVERHEAD_BYTES
        found[-1].append(payload)
    return found
