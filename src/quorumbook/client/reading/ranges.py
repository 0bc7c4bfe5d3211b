"""Reads a range of entries ahead of its consumer, in bounded memory.

The range is cut into chunks of about one batch read each; some chunks are asked for at a time, of
different bookies, and handed out in order.  Each chunk has a read machine (``ledger.read``), which
asks the next replica when one fails, is silent or lies.  A chunk holds one answer at most: it asks
for more only when the consumer has taken what there was.

That no replica gives an entry is not believed before the metadata were read again: the replicas
may have moved, and whoever was asked does not have them any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

from quorumbook.client.context import Context
from quorumbook.client.reading.entries import EntryBatch, blamed
from quorumbook.client.waiting.outcomes import copy_error
from quorumbook.errors import ClientClosedError, DigestMismatchError, QuorumbookError
from quorumbook.ids import EntryId
from quorumbook.ledger.machines.read import Delivered, ReadFailed, ReadState, SendRead
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.protocol.digest import Digester
from quorumbook.protocol.status import error_for, status_of_v2
from quorumbook.protocol.v2 import packets as v2

_NS = 1_000_000_000
#: What entries are taken to weigh until some were seen.
_GUESSED_ENTRY_BYTES = 1024
_MAX_CHUNK_ENTRIES = 10_000
#: Where the ensemble is striped, entries are asked for one by one, so many at a time.
_STRIPED_IN_FLIGHT = 64
#: Until it is known how large they are.
_STRIPED_UNWEIGHED = 4
_MAX_CHUNKS = 8


class Sticky:
    """The position that one reader reads from, until that gives it reason to move."""

    def __init__(self, index: int) -> None:
        self.index = index

    def move_from(self, index: int, ensemble_size: int) -> None:
        """Go to the next position, unless another read has done so already."""
        if self.index == index:
            self.index = (index + 1) % ensemble_size


class ChunkRead:
    """Entries ``first_entry_id`` to ``last_entry_id`` under way."""

    def __init__(
        self,
        context: Context,
        digester: Digester,
        metadata: LedgerMetadata,
        first_entry_id: EntryId,
        last_entry_id: EntryId,
        number: int,
        refresh: Callable[[QuorumbookError], Awaitable[None]],
        sticky: Sticky | None = None,
        batch_bytes: int | None = None,
    ) -> None:
        """Ask for the first entries.

        Args:
            context: The client's.
            digester: The ledger's.
            metadata: The ledger's.
            first_entry_id: The first entry wanted.
            last_entry_id: The last one.
            number: By which chunks take turns with the bookies.
            refresh: Has ``on_metadata`` called if the metadata are not the newest; gets what the
                read is about to fail with, and raises what is to be said instead.
            sticky: Whom to ask instead of that.
            batch_bytes: Bytes of one answer; the option ``read_batch_bytes`` if not given.
        """
        self._context = context
        self._digester = digester
        self._refresh = refresh
        self._ledger_id = metadata.ledger_id
        self._is_striped = metadata.write_quorum_size < metadata.ensemble_size
        self._ensemble_size = metadata.ensemble_size
        self._last = last_entry_id
        self._next = first_entry_id
        options = context.options
        self._batch_bytes = batch_bytes or options.read_batch_bytes
        self._sticky = None if self._is_striped else sticky
        self._silence_s = options.speculative_read_s
        self._state = ReadState(
            metadata,
            first_entry_id,
            last_entry_id,
            batch_entries=_MAX_CHUNK_ENTRIES,
            max_in_flight=_STRIPED_IN_FLIGHT if self._is_striped else 1,
            sticky_index=number % metadata.ensemble_size if sticky is None else sticky.index,
            ranks=context.bookies.read_ranks(metadata.fragment_of(first_entry_id).ensemble),
        )
        self._arrived: dict[EntryId, EntryBatch] = {}
        self._ready: deque[EntryBatch] = deque()
        self._error: QuorumbookError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._asked: dict[asyncio.Future[v2.BatchReadAnswer], SendRead] = {}
        self._asked_ns = 0
        self._is_over = False
        self._poll()

    @property
    def is_done(self) -> bool:
        """Tell whether everything was handed out."""
        return self._next > self._last

    async def next_batch(self) -> EntryBatch:
        """Return the next entries of the chunk.

        Raises:
            QuorumbookError: no replica gives the next entry.
        """
        while not self._ready:
            if (error := self._error) is not None:
                await self._refresh(error)
                if self._error is not None:
                    raise error
                continue
            self._poll()
            if self._ready or self._error is not None:
                continue
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        batch = self._ready.popleft()
        self._next = batch.last_entry_id + 1
        return batch

    def on_metadata(self, metadata: LedgerMetadata) -> None:
        """Replicas moved: what is missing may be had elsewhere."""
        has_failed = self._state.error is not None
        self._state.on_metadata(metadata)
        if has_failed and self._state.error is None:
            self._error = None
        self._poll()

    def fail(self, error: QuorumbookError) -> None:
        """Want nothing any more, and tell whoever waits why."""
        self.close()
        self._error = error
        self._wake()

    def close(self) -> None:
        """Want nothing any more."""
        self._is_over = True
        for future in self._asked:
            future.cancel()
        self._arrived.clear()
        self._ready.clear()

    def _poll(self) -> None:
        for effect in self._state.poll():
            if isinstance(effect, SendRead):
                self._ask(effect)
            elif isinstance(effect, Delivered):
                self._deliver(effect.last_entry_id)
            elif isinstance(effect, ReadFailed):
                self._error = effect.error
        if self._ready or self._error is not None:
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        self._waiter = None

    def _ask(self, effect: SendRead) -> None:
        future = self._context.bookies.fast(effect.bookie_id).read_run(
            self._ledger_id,
            effect.first_entry_id,
            effect.last_entry_id - effect.first_entry_id + 1,
            self._batch_bytes,
        )
        self._asked[future] = effect
        self._asked_ns = self._context.env.clock.now_ns()
        if self._silence_s:
            self._context.ticker.watch(self._check)
        future.add_done_callback(partial(self._on_answer, effect))

    def _on_answer(self, effect: SendRead, future: asyncio.Future[v2.BatchReadAnswer]) -> None:
        self._asked.pop(future, None)
        if self._is_over or future.cancelled():
            return
        problem = future.exception()
        if problem is None:
            answer = future.result()
            if answer.code:
                problem = error_for(
                    status_of_v2(answer.code),
                    ledger_id=self._ledger_id,
                    entry_id=effect.first_entry_id,
                    bookie_id=effect.bookie_id,
                )
            else:
                problem = self._take(effect, answer.data)
        if problem is not None:
            if not isinstance(problem, QuorumbookError):
                raise problem
            if isinstance(problem, ClientClosedError):
                self._error = copy_error(problem)
            # A damaged entry counts for the entry that is damaged, not for the first asked for.
            damaged = problem.entry_id if isinstance(problem, DigestMismatchError) else None
            self._turn_away(effect, is_bad=isinstance(problem, DigestMismatchError))
            entry_id = effect.first_entry_id if damaged is None else damaged
            self._state.on_error(effect, entry_id, problem)
        if problem is not None or self._is_striped or not self._arrived:
            self._poll()
        else:
            self._wake()

    def _turn_away(self, effect: SendRead, *, is_bad: bool) -> None:
        """Read from other bookies from now on: this one is silent, or does not give an entry."""
        if self._sticky is not None and self._state.is_present(effect):
            self._sticky.move_from(effect.bookie_index, self._ensemble_size)
        if is_bad:
            self._context.bookies.note_slow_read(effect.bookie_id)

    def _take(self, effect: SendRead, data: bytes) -> DigestMismatchError | None:
        """Verify an answer, keep what is new of it, and return what is wrong with the rest."""
        first = effect.first_entry_id
        problem: DigestMismatchError | None = None
        try:
            payloads = self._digester.open_run(data, self._ledger_id, first)
        except DigestMismatchError as error:
            problem = error
            good = 0 if error.entry_id is None else error.entry_id - first
            payloads = self._digester.open_run(data, self._ledger_id, first, good) if good else []
        wanted = effect.last_entry_id - first + 1
        del payloads[wanted:]
        if not payloads and problem is None:
            problem = DigestMismatchError(
                f"an answer without entry {first}", ledger_id=self._ledger_id, entry_id=first
            )
        problem = problem and blamed(problem, effect.bookie_id)
        if not payloads:
            return problem
        new = self._state.on_entries(effect, first + len(payloads) - 1)
        if new is not None:
            offset = self._digester.payload_offset
            batch = EntryBatch(self._ledger_id, first, data, payloads, offset)
            self._arrived[new[0]] = batch.part(*new)
        return problem

    def _deliver(self, last_entry_id: EntryId) -> None:
        batches: list[EntryBatch] = []
        while self._arrived:
            first = min(self._arrived)
            if first > last_entry_id:
                break
            batches.append(self._arrived.pop(first))
        if batches and self._is_striped:
            self._ready.append(EntryBatch.joined(batches))
        else:
            self._ready.extend(batches)

    def _check(self, now_ns: int) -> bool:
        if self._is_over or not self._asked:
            return False
        if now_ns - self._asked_ns >= int(self._silence_s * _NS):
            options = self._context.options
            longest_s = max(options.max_speculative_read_s, options.speculative_read_s)
            self._silence_s = min(self._silence_s * options.speculative_read_factor, longest_s)
            self._asked_ns = now_ns
            for effect in list(self._asked.values()):
                self._turn_away(effect, is_bad=True)
            self._state.on_speculative_timeout()
            self._poll()
        return True


class RangeRead:
    """A range under way: chunks ahead of the consumer."""

    def __init__(
        self,
        context: Context,
        digester: Digester,
        metadata: Callable[[], LedgerMetadata],
        first_entry_id: EntryId,
        last_entry_id: EntryId,
        refresh: Callable[[QuorumbookError], Awaitable[None]],
        sticky: Sticky | None = None,
    ) -> None:
        """Prepare to read; nothing is asked for before ``batches`` runs.

        Args:
            context: The client's.
            digester: The ledger's.
            metadata: Returns the newest metadata known.
            first_entry_id: The first entry wanted.
            last_entry_id: The last one.
            refresh: See ``ChunkRead``.
            sticky: Whom to read from; all in turn if not given.
        """
        self._context = context
        self._digester = digester
        self._metadata = metadata
        self._refresh = refresh
        self._sticky = sticky
        self._uncut = first_entry_id
        self._last = last_entry_id
        self._chunks: deque[ChunkRead] = deque()
        self._number = first_entry_id
        self._entry_bytes = _GUESSED_ENTRY_BYTES
        self._is_weighed = False
        options = context.options
        ahead = max(1, options.read_ahead_bytes // options.read_batch_bytes)
        self._max_chunks = min(ahead, _MAX_CHUNKS)

    async def batches(self) -> AsyncIterator[EntryBatch]:
        """Yield everything in order."""
        try:
            self._ask()
            while self._chunks:
                chunk = self._chunks[0]
                batch = await chunk.next_batch()
                if chunk.is_done:
                    self._chunks.popleft()
                self._entry_bytes = max(1, batch.size_bytes // len(batch))
                self._is_weighed = True
                self._ask()
                yield batch
        finally:
            self.close()

    def close(self) -> None:
        """Want nothing any more."""
        for chunk in self._chunks:
            chunk.close()
        self._chunks.clear()

    def fail(self, error: QuorumbookError) -> None:
        """Want nothing any more, and tell whoever waits why."""
        for chunk in self._chunks:
            chunk.fail(error)

    def on_metadata(self, metadata: LedgerMetadata) -> None:
        """Replicas moved."""
        for chunk in list(self._chunks):
            chunk.on_metadata(metadata)

    def _ask(self) -> None:
        while self._uncut <= self._last and len(self._chunks) < self._max_chunks:
            metadata = self._metadata()
            count = max(1, self._context.options.read_batch_bytes // self._entry_bytes)
            is_striped = metadata.write_quorum_size < metadata.ensemble_size
            if is_striped:
                most = _STRIPED_IN_FLIGHT if self._is_weighed else _STRIPED_UNWEIGHED
            else:
                most = _MAX_CHUNK_ENTRIES
            count = min(count, most)
            last = min(self._last, self._uncut + count - 1)
            self._chunks.append(
                ChunkRead(
                    self._context,
                    self._digester,
                    metadata,
                    self._uncut,
                    last,
                    self._number,
                    self._refresh,
                    self._sticky,
                )
            )
            self._number += 1
            self._uncut = last + 1
            if not self._is_weighed:
                return  # how large entries are is not known before the first answer
