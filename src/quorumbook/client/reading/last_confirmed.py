"""Asks bookies for the last add confirmed of a ledger: all at once, or waiting for news."""

from __future__ import annotations

import asyncio
from typing import Any

from quorumbook.client.context import Context
from quorumbook.client.reading.entries import EntryBatch, blamed
from quorumbook.client.reading.ranges import Sticky
from quorumbook.env import logger
from quorumbook.errors import DigestMismatchError, QuorumbookError
from quorumbook.ids import INVALID_ENTRY_ID, BookieId, EntryId, LedgerId
from quorumbook.ledger.machines.lac_read import LacReadState
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.ledger.placement.schedule import write_set
from quorumbook.protocol.digest import Digester, entry_header
from quorumbook.protocol.entry_run import SIZE
from quorumbook.protocol.status import Status, error_for
from quorumbook.protocol.v3 import client as v3

_log = logger("client.reader")
#: Where every bookie stores every entry, so many of them are asked for news at a time: one that
#: is dead or behind must not hold a reader up, and all of them would only say the same.
_POLLED_BOOKIES = 2
#: Entries that polls brought and nothing has confirmed yet; more are read again.
_HELD_ENTRIES = 4
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
                    lac = _lac_of(future.result(), bookie_id, digester, ledger_id)
                    state.on_answer(index, lac)
                except QuorumbookError as error:
                    state.on_error(index, error)
    finally:
        for future in waiting:
            future.cancel()
    if state.error is not None:
        raise state.error
    return state.last_add_confirmed


def _lac_of(
    response: v3.V3Response, bookie_id: BookieId, digester: Digester, ledger_id: LedgerId
) -> EntryId:
    """Return what one answer proves: only what is under a digest counts."""
    if response.status is not Status.OK:
        raise error_for(response.status, ledger_id=ledger_id, bookie_id=bookie_id)
    lac = INVALID_ENTRY_ID
    try:
        if response.lac_body:
            lac = digester.parse_lac_packet(response.lac_body, ledger_id)
        if response.last_entry:
            digester.verify(response.last_entry, ledger_id, None)
            lac = max(lac, entry_header(response.last_entry)[2])
    except DigestMismatchError as error:
        raise blamed(error, bookie_id) from error
    return lac


class LacPolls:
    """Long polls of one tailing reader; they stay out while it reads what they brought.

    The number in a long poll's answer is under no digest, so a poll asks for the bookie's last
    entry: that one carries what its writer had confirmed, under its digest.  It is kept, and
    handed out when the next answer confirms it: whoever follows entry by entry needs no other
    request.  What an idle writer published by itself is asked for only where no entry proves it.

    What did not come along is best read where the news came from.  That bookie has it, and it
    answers: one that hangs would hold the reader up until the read goes to another one as well.

    Which bookies are asked first is drawn by lot: the many readers of one ledger share them out.
    """

    def __init__(self, context: Context, digester: Digester) -> None:
        self._context = context
        self._digester = digester
        self._polls: dict[BookieId, asyncio.Task[EntryId]] = {}
        #: The greatest number proven so far.
        self._proven: EntryId = INVALID_ENTRY_ID
        self._held: dict[EntryId, EntryBatch] = {}
        #: Bookies that gave no news: how often, and until when they are left alone.
        self._resting: dict[BookieId, tuple[int, int]] = {}
        #: The position that is asked first, modulo the ensemble's size.
        self._turn = context.env.random.getrandbits(16)
        #: The position whose bookie told the newest; None until one has.
        self.source: Sticky | None = None

    async def wait(
        self, metadata: LedgerMetadata, known: EntryId, other: asyncio.Future[None]
    ) -> tuple[EntryId, EntryBatch | None]:
        """Wait until somebody knows of more than ``known``, or something else happened.

        Args:
            metadata: The ledger's.
            known: The last add confirmed known so far.
            other: Ends the wait as well; whoever owns it resolves it.

        Returns:
            The last add confirmed known now, and the first entries from ``known + 1`` to there
            if they came along.
        """
        self._proven = max(self._proven, known)
        while True:
            pause_s = self._ask(metadata, known)
            waiting: list[asyncio.Future[Any]] = [*self._polls.values(), other]
            await asyncio.wait(waiting, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
            for bookie_id, poll in list(self._polls.items()):
                if poll.done():
                    del self._polls[bookie_id]
                    self._learn(poll.result(), bookie_id, metadata)
            if self._proven > known or other.done():
                return self._proven, self._release(known + 1)

    def close(self) -> None:
        """Take the polls back."""
        for poll in self._polls.values():
            poll.cancel()
        self._polls.clear()

    def _learn(self, lac: EntryId, bookie_id: BookieId, metadata: LedgerMetadata) -> None:
        if lac > self._proven:
            self._proven = lac
            if bookie_id in metadata.ensemble:
                self.source = Sticky(metadata.ensemble.index(bookie_id))

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
                poll = self._poll(bookie_id, metadata, known)
                self._polls[bookie_id] = asyncio.get_running_loop().create_task(poll)
        return min(pauses_ns) / _NS if pauses_ns else None

    async def _poll(self, bookie_id: BookieId, metadata: LedgerMetadata, known: EntryId) -> EntryId:
        """Ask one bookie, and return what it proves; after an error another one is asked."""
        options, clock = self._context.options, self._context.env.clock
        asked_ns = clock.now_ns()
        try:
            lac = await self._news(bookie_id, metadata.ledger_id, known)
        except QuorumbookError as error:
            # Also of a bookie that has nothing of the ledger yet, which answers at once.
            _log.debug("ledger %d: %s", metadata.ledger_id, error)
            self._rest(bookie_id)
            return known
        waited_ns = clock.now_ns() - asked_ns
        if lac > known or waited_ns >= options.long_poll_timeout_s * _NS / 2:
            self._resting.pop(bookie_id, None)
        else:
            # No news, and at once: of a fenced ledger a bookie does not wait for any.
            self._rest(bookie_id)
        return lac

    async def _news(self, bookie_id: BookieId, ledger_id: LedgerId, known: EntryId) -> EntryId:
        options = self._context.options
        timeout_s = options.long_poll_timeout_s
        control = self._context.bookies.control(bookie_id)

        def encode(txn_id: int) -> bytes:
            return v3.encode_read(
                txn_id,
                ledger_id,
                INVALID_ENTRY_ID,
                previous_lac=known,
                timeout_ms=int(timeout_s * 1000),
            )

        response = await control.request(
            "a long poll", encode, timeout_s=timeout_s + options.request_timeout_s
        )
        lac = claimed = known
        if response.status is Status.OK:
            lac = max(lac, self._hold(response.body or b"", bookie_id, ledger_id))
            claimed = known if response.max_lac is None else response.max_lac
        elif response.status is not Status.NO_ENTRY:
            raise error_for(response.status, ledger_id=ledger_id, bookie_id=bookie_id)
        # A bookie without an entry may still have been told of the last add confirmed.
        if claimed > max(lac, self._proven) or response.status is Status.NO_ENTRY:
            lac = max(lac, await self._published(bookie_id, ledger_id))
        if lac < claimed and self._proven < claimed:
            _log.warning(
                "ledger %d: bookie %s says that entry %d is confirmed, and proves only %d",
                ledger_id,
                bookie_id,
                claimed,
                lac,
            )
        return lac

    async def _published(self, bookie_id: BookieId, ledger_id: LedgerId) -> EntryId:
        """Return what a bookie can prove of what the writer published without an entry."""
        stored = await self._context.bookies.control(bookie_id).request(
            "a read of the last add confirmed", lambda txn_id: v3.encode_read_lac(txn_id, ledger_id)
        )
        if stored.status is Status.NO_ENTRY:
            return INVALID_ENTRY_ID
        return _lac_of(stored, bookie_id, self._digester, ledger_id)

    def _rest(self, bookie_id: BookieId) -> None:
        """Leave a bookie alone for a while, and ask another one first."""
        self._turn += 1
        times, _ = self._resting.get(bookie_id, (0, 0))
        pause_s = min(_FIRST_PAUSE_S * 2**times, _LONGEST_PAUSE_S)
        until_ns = self._context.env.clock.now_ns() + int(pause_s * _NS)
        self._resting[bookie_id] = min(times + 1, 10), until_ns

    def _hold(self, entry: bytes, bookie_id: BookieId, ledger_id: LedgerId) -> EntryId:
        """Keep an entry until it is confirmed; return what it says is."""
        digester = self._digester
        try:
            digester.verify(entry, ledger_id, None)
        except DigestMismatchError as error:
            raise blamed(error, bookie_id) from error
        _, entry_id, lac, _ = entry_header(entry)
        if entry_id > self._proven and entry_id not in self._held:
            if len(self._held) == _HELD_ENTRIES:
                del self._held[min(self._held)]
            self._held[entry_id] = EntryBatch(
                ledger_id,
                entry_id,
                SIZE.pack(len(entry)) + entry,
                [digester.payload(entry)],
                digester.payload_offset,
            )
        return lac

    def _release(self, first_entry_id: EntryId) -> EntryBatch | None:
        """Return what is confirmed and here from an entry on, and forget everything confirmed."""
        confirmed = {i: self._held.pop(i) for i in sorted(self._held) if i <= self._proven}
        batches: list[EntryBatch] = []
        while (batch := confirmed.get(first_entry_id + len(batches))) is not None:
            batches.append(batch)
        return EntryBatch.joined(batches) if batches else None
