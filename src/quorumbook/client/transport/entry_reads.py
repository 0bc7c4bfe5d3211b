"""Reads over a v2 connection: many entries with one request, or one by one where that is all.

Bookies of the peer know batch reads since 4.17.  An older one closes the connection, another may
say "bad request"; what they are asked for then is read entry by entry, many requests at a time,
for as long as that connection lasts.  The caller sees one kind of answer.

A writer must not lose its connection that way: where one is attached, a connection made for the
purpose finds out.  Nor does it speak against the bookie that it closed one.  A connection that
breaks for another reason at the first batch read looks the same; that costs speed and nothing
else, and is tried anew on the next connection.
"""

from __future__ import annotations

import asyncio
from typing import Any

from quorumbook.client.transport.channels import FastChannel
from quorumbook.client.waiting.outcomes import outcome_of
from quorumbook.env import logger
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import BookieUnavailableError, ConnectionLostError, QuorumbookError
from quorumbook.ids import EntryId, LedgerId
from quorumbook.protocol.entry_run import SIZE
from quorumbook.protocol.status import Status, status_of_v2
from quorumbook.protocol.v2 import packets as v2

_log = logger("client.connection")
#: Single reads under way for one answer, and as many until it is known how large entries are.
_SINGLES = 64
_UNWEIGHED = 4
_UNKNOWN_REQUEST = (Status.BAD_REQUEST, Status.BAD_VERSION)


class ReadChannel(FastChannel):
    """The v2 connection to a bookie of any release."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        #: What this connection has shown: None, nothing yet.
        self._knows_batches: bool | None = None
        self._was_cut = False
        #: First batch reads that may be cut off.
        self._trials = 0
        self._trial: asyncio.Task[None] | None = None
        self._args = args
        #: Single reads under way: their request ids by what is read.
        self._singles: dict[tuple[LedgerId, EntryId], list[int]] = {}
        #: Rows under way: how many answers each wants, and those it has.
        self._rows: dict[int, tuple[int, dict[EntryId, v2.ReadAnswer]]] = {}
        self._entry_bytes = 0

    @property
    def pending_reads(self) -> int:
        """Return how many reads have no answer yet."""
        return len(self._reads)

    def read_run(
        self, ledger_id: LedgerId, first_entry_id: EntryId, max_count: int, max_size_bytes: int
    ) -> asyncio.Future[v2.BatchReadAnswer]:
        """Ask for consecutive entries, in the way the bookie knows; see ``batch_read``.

        The answer may hold fewer entries than asked for, but at least the first one.
        """
        if self._knows_batches:
            return self.batch_read(ledger_id, first_entry_id, max_count, max_size_bytes)
        return asyncio.get_running_loop().create_task(
            self._read_run(ledger_id, first_entry_id, max_count, max_size_bytes)
        )

    async def _read_run(
        self, ledger_id: LedgerId, first: EntryId, count: int, size_bytes: int
    ) -> v2.BatchReadAnswer:
        if self._knows_batches is None and self._options.batch_reads and self._listeners:
            if self._trial is None:
                self._trial = asyncio.get_running_loop().create_task(self._try(ledger_id, first))
            await outcome_of(self._trial)
        if self._knows_batches:
            return await self.batch_read(ledger_id, first, count, size_bytes)
        if self._knows_batches is None and self._options.batch_reads:
            self._trials += 1
            try:
                answer = await self.batch_read(ledger_id, first, count, size_bytes)
            except ConnectionLostError as error:
                if not self._was_cut:
                    raise
                try:
                    answer = await self._read_singly(ledger_id, first, count, size_bytes)
                except BookieUnavailableError:
                    raise error from None
                self._note_no_batches()
                return answer
            finally:
                self._trials -= 1
            if status_of_v2(answer.code) not in _UNKNOWN_REQUEST:
                self._knows_batches = True
                return answer
            self._note_no_batches()
        return await self._read_singly(ledger_id, first, count, size_bytes)

    async def _try(self, ledger_id: LedgerId, entry_id: EntryId) -> None:
        """Find out by a connection of its own; what goes wrong with that says nothing."""
        env, bookie_id, resolve, options, ticker, _, security = self._args
        channel = FastChannel(
            env, bookie_id, resolve, options, ticker, lambda bookie_id, is_good: None, security
        )
        try:
            await channel.connected()
            answer = await channel.batch_read(ledger_id, entry_id, 1, 1)
        except ConnectionLostError:
            self._note_no_batches()
        except QuorumbookError:
            pass
        else:
            if status_of_v2(answer.code) in _UNKNOWN_REQUEST:
                self._note_no_batches()
            else:
                self._knows_batches = True
        finally:
            self._trial = None
            await channel.close()

    async def close(self) -> None:
        """Close for good, a trial's connection included."""
        if self._trial is not None:
            await cancel_and_wait([self._trial])
        await super().close()

    def _note_no_batches(self) -> None:
        if self._knows_batches is None:
            _log.info("bookie %s knows no batch reads; it is read singly", self.bookie_id)
        self._knows_batches = False

    async def _read_singly(
        self, ledger_id: LedgerId, first: EntryId, count: int, size_bytes: int
    ) -> v2.BatchReadAnswer:
        most = _SINGLES if self._entry_bytes else _UNWEIGHED
        fitting = max(1, size_bytes // max(1, self._entry_bytes))
        count = max(1, min(count if count > 0 else most, most, fitting))
        answers = await asyncio.gather(
            *(self.read(ledger_id, entry_id) for entry_id in range(first, first + count)),
            return_exceptions=True,
        )
        pieces: list[bytes] = []
        for answer in answers:
            if isinstance(answer, BaseException) or answer.code:
                break
            pieces += (SIZE.pack(len(answer.entry)), answer.entry)
            self._entry_bytes = max(len(answer.entry), self._entry_bytes // 2)
        if pieces:
            return v2.BatchReadAnswer(ledger_id, first, 0, 0, b"".join(pieces))
        if isinstance(answers[0], BaseException):
            raise answers[0]
        return v2.BatchReadAnswer(ledger_id, first, 0, answers[0].code, b"")

    def read(self, ledger_id: LedgerId, entry_id: EntryId) -> asyncio.Future[v2.ReadAnswer]:
        """Ask for one entry; the future gets the answer or a BookieUnavailableError."""
        future: asyncio.Future[v2.ReadAnswer] = asyncio.get_running_loop().create_future()
        request_id = self._expect(future)
        if request_id is not None:
            self._singles.setdefault((ledger_id, entry_id), []).append(request_id)
            self.write(v2.encode_read(ledger_id, entry_id))
        return future

    def read_row(
        self, ledger_id: LedgerId, entry_ids: range
    ) -> asyncio.Future[dict[EntryId, v2.ReadAnswer]]:
        """Ask for entries at a distance from each other, which no one request can name.

        The future gets an answer for each of them, or a BookieUnavailableError.
        """
        future: asyncio.Future[dict[EntryId, v2.ReadAnswer]]
        future = asyncio.get_running_loop().create_future()
        request_id = self._expect(future)
        if request_id is not None:
            self._rows[request_id] = len(entry_ids), {}
            future.add_done_callback(lambda _: self._rows.pop(request_id, None) and None)
            for entry_id in entry_ids:
                self._singles.setdefault((ledger_id, entry_id), []).append(request_id)
            self.write(v2.encode_reads(ledger_id, entry_ids))
        return future

    def _received_other(self, answer: v2.Answer) -> None:
        if isinstance(answer, v2.ReadAnswer):
            for request_id in self._singles.pop((answer.ledger_id, answer.entry_id), ()):
                result: Any = answer
                if request_id in self._rows:
                    wanted, result = self._rows[request_id]
                    result[answer.entry_id] = answer
                    if len(result) < wanted:
                        continue
                waiting = self._reads.pop(request_id, None)
                if waiting is not None and not waiting[2].done():
                    waiting[2].set_result(result)

    def on_lost(self, stream: Any, cause: Exception | None) -> None:
        """The bookie has closed the connection, or is gone."""
        self._was_cut = self._was_cut or stream is self._stream
        super().on_lost(stream, cause)

    def _note_lost(self) -> None:
        if not self._trials:
            super()._note_lost()

    def _fail_all(self, error: QuorumbookError) -> None:
        self._knows_batches = None
        self._singles.clear()
        super()._fail_all(error)

    def _made(self, stream: Any) -> None:
        self._was_cut = False
        super()._made(stream)
