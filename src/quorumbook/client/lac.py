"""Asks bookies for the last add confirmed of a ledger: all at once, or waiting for news."""

from __future__ import annotations

import asyncio
from typing import Any

from quorumbook.client.context import Context
from quorumbook.client.entries import EntryBatch
from quorumbook.errors import QuorumbookError
from quorumbook.ids import INVALID_ENTRY_ID, BookieId, EntryId
from quorumbook.ledger.lac_read import LacReadState
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.ledger.placement.schedule import write_set
from quorumbook.protocol import v3
from quorumbook.protocol.digest import Digester, entry_header
from quorumbook.protocol.run import SIZE
from quorumbook.protocol.status import Status, error_for

#: Where every bookie stores every entry, so many of them are asked for news at a time: one that
#: is dead or behind must not hold a reader up, and all of them would only say the same.
_POLLED_BOOKIES = 2
#: A bookie that gave no news is left alone for so long, and twice as long each further time.
_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.5
_NS = 1_000_000_000


async def read_lac(
    context: Context,
    digester: Digester,
    metadata: LedgerMetadata,
    *,
    known: EntryId = INVALID_ENTRY_ID,
    is_try: bool = False,
) -> EntryId:
    """Ask the last ensemble for the last add confirmed.

    Args:
        context: The client's.
        digester: The ledger's.
        metadata: The ledger's.
        known: What is known already; the result is never below.
        is_try: Be content with the first progress beyond ``known``, or with any answer at all.

    Returns:
        The greatest heard: a lower bound of what the writer knows.

    Raises:
        QuorumbookError: too few bookies answered.
    """
    ledger_id = metadata.ledger_id
    state = LacReadState(metadata, known=known, is_try=is_try)
    waiting = {
        context.bookies.control(bookie_id).request(
            "a read of the last add confirmed",
            lambda txn_id: v3.encode_read_lac(txn_id, ledger_id),
        ): (index, bookie_id)
        for index, bookie_id in state.bookies
    }
    try:
        while not state.is_done:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                index, bookie_id = waiting.pop(future)
                try:
                    state.on_answer(index, _lac_of(future.result(), bookie_id, digester, metadata))
                except QuorumbookError as error:
                    state.on_error(index, error)
    finally:
        for future in waiting:
            future.cancel()
    if state.error is not None:
        raise state.error
    return state.last_add_confirmed


def _lac_of(
    response: v3.V3Response, bookie_id: BookieId, digester: Digester, metadata: LedgerMetadata
) -> EntryId:
    """Return what one answer says, verified."""
    ledger_id = metadata.ledger_id
    if response.status is not Status.OK:
        raise error_for(response.status, ledger_id=ledger_id, bookie_id=bookie_id)
    lac = INVALID_ENTRY_ID
    if response.lac_body:
        lac = digester.parse_lac_packet(response.lac_body, ledger_id)
    if response.last_entry:
        digester.verify(response.last_entry, ledger_id, None)
        lac = max(lac, entry_header(response.last_entry)[2])
    return lac


class LacPolls:
    """Long polls of one tailing reader; they stay out while it reads what they brought."""

    def __init__(self, context: Context, digester: Digester) -> None:
        self._context = context
        self._digester = digester
        self._polls: dict[BookieId, asyncio.Future[v3.V3Response]] = {}
        #: Bookies that gave no news: how often, and until when they are left alone.
        self._resting: dict[BookieId, tuple[int, int]] = {}
        self._asked_ns: dict[BookieId, int] = {}
        self._turn = 0

    async def wait(
        self, metadata: LedgerMetadata, known: EntryId, other: asyncio.Future[None]
    ) -> tuple[EntryId, EntryBatch | None]:
        """Wait until somebody knows of more than ``known``, or something else happened.

        Args:
            metadata: The ledger's.
            known: The last add confirmed known so far.
            other: Ends the wait as well; whoever owns it resolves it.

        Returns:
            The last add confirmed known now, and entry ``known + 1`` if it came along.
        """
        while True:
            pause_s = self._ask(metadata, known)
            waiting: list[asyncio.Future[Any]] = [*self._polls.values(), other]
            await asyncio.wait(waiting, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
            lac, batch = known, None
            for bookie_id, poll in list(self._polls.items()):
                if poll.done():
                    del self._polls[bookie_id]
                    heard, entry = self._hear(bookie_id, poll, metadata, known)
                    lac = max(lac, heard)
                    batch = batch or entry
            if lac > known or other.done():
                return lac, batch

    def close(self) -> None:
        """Take the polls back."""
        for poll in self._polls.values():
            poll.cancel()
        self._polls.clear()

    def _ask(self, metadata: LedgerMetadata, known: EntryId) -> float | None:
        """Have a poll out at as many bookies as are needed; return when to look again."""
        ensemble = metadata.ensemble
        size = metadata.ensemble_size
        is_striped = metadata.write_quorum_size < size
        wanted = size if is_striped else min(size, _POLLED_BOOKIES)
        for bookie_id in self._polls.keys() - set(ensemble):
            self._polls.pop(bookie_id).cancel()
        now_ns = self._context.env.clock.now_ns()
        pauses_ns: list[int] = []
        for index in write_set(self._turn, size, size):
            if len(self._polls) >= wanted:
                return None
            bookie_id = ensemble[index]
            if bookie_id in self._polls:
                continue
            _, until_ns = self._resting.get(bookie_id, (0, 0))
            if until_ns > now_ns:
                pauses_ns.append(until_ns - now_ns)
            else:
                self._asked_ns[bookie_id] = now_ns
                self._polls[bookie_id] = self._poll(bookie_id, metadata.ledger_id, known)
        return min(pauses_ns) / _NS if pauses_ns else None

    def _poll(
        self, bookie_id: BookieId, ledger_id: int, known: EntryId
    ) -> asyncio.Future[v3.V3Response]:
        options = self._context.options
        timeout_s = options.long_poll_timeout_s

        def encode(txn_id: int) -> bytes:
            return v3.encode_read(
                txn_id,
                ledger_id,
                INVALID_ENTRY_ID,
                previous_lac=known,
                timeout_ms=int(timeout_s * 1000),
                is_piggyback=True,
            )

        return self._context.bookies.control(bookie_id).request(
            "a long poll", encode, timeout_s=timeout_s + options.request_timeout_s
        )

    def _hear(
        self,
        bookie_id: BookieId,
        poll: asyncio.Future[v3.V3Response],
        metadata: LedgerMetadata,
        known: EntryId,
    ) -> tuple[EntryId, EntryBatch | None]:
        """Return what an answer says; after an error another bookie is asked."""
        try:
            response = poll.result()
            if response.status is not Status.OK:
                raise error_for(response.status, ledger_id=metadata.ledger_id, bookie_id=bookie_id)
            batch = None
            if response.body and response.entry_id == known + 1:
                batch = self._batch(response.body, metadata.ledger_id, known + 1)
        except QuorumbookError:
            # Also of a bookie that has nothing of the ledger yet, which answers at once.
            self._rest(bookie_id)
            return known, None
        lac = INVALID_ENTRY_ID if response.max_lac is None else response.max_lac
        if batch is not None and lac <= known:
            lac = known + 1
        waited_ns = self._context.env.clock.now_ns() - self._asked_ns.get(bookie_id, 0)
        if lac > known or waited_ns >= self._context.options.long_poll_timeout_s * _NS / 2:
            self._resting.pop(bookie_id, None)
        else:
            # No news, and at once: of a fenced ledger a bookie does not wait for any.
            self._rest(bookie_id)
        return lac, batch

    def _rest(self, bookie_id: BookieId) -> None:
        """Leave a bookie alone for a while, and ask another one first."""
        self._turn += 1
        times, _ = self._resting.get(bookie_id, (0, 0))
        pause_s = min(_FIRST_PAUSE_S * 2**times, _LONGEST_PAUSE_S)
        until_ns = self._context.env.clock.now_ns() + int(pause_s * _NS)
        self._resting[bookie_id] = min(times + 1, 10), until_ns

    def _batch(self, body: bytes, ledger_id: int, entry_id: EntryId) -> EntryBatch:
        self._digester.verify(body, ledger_id, entry_id)
        buffer = SIZE.pack(len(body)) + body
        payload = self._digester.payload(body)
        return EntryBatch(ledger_id, entry_id, buffer, [payload], self._digester.payload_offset)
