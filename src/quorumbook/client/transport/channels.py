"""The two channels to one bookie, and what waits on them.

    FastChannel     v2: adds and batch reads; answers of adds arrive as runs and go to the writer
                    of their ledger, once for everything that one packet brought
    ControlChannel  v3: fences, recovery reads, last add confirmed, force, lists, long polls;
                    matched by transaction id

Answers resolve futures and call listeners; no code of a caller runs inside ``data_received``, so
nothing can wait in there for an answer that only this connection could deliver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from quorumbook.client.transport.connection import AddListener, Channel
from quorumbook.client.waiting.outcomes import copy_error, fail
from quorumbook.errors import ClientClosedError, QuorumbookError
from quorumbook.ids import EntryId, LedgerId
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3

_NS = 1_000_000_000


class FastChannel(Channel):
    """The v2 connection: adds and batch reads."""

    _version = 2

    def _begin(self) -> None:
        self._decoder = v2.AnswerDecoder()
        self._reads: dict[int, tuple[int, int, asyncio.Future[Any]]] = {}
        self._next_request_id = 1

    def batch_read(
        self, ledger_id: LedgerId, first_entry_id: EntryId, max_count: int, max_size_bytes: int
    ) -> asyncio.Future[v2.BatchReadAnswer]:
        """Ask for consecutive entries; the future gets the answer or a BookieUnavailableError."""
        future: asyncio.Future[v2.BatchReadAnswer] = asyncio.get_running_loop().create_future()
        request_id = self._expect(future)
        if request_id is not None:
            self.write(
                v2.encode_batch_read(
                    ledger_id, first_entry_id, request_id, max_count, max_size_bytes
                )
            )
        return future

    def _expect(self, future: asyncio.Future[Any]) -> int | None:
        """Have a future wait for an answer; None if it never comes."""
        if self._is_closed:
            fail(future, ClientClosedError("the client is closed"))
            return None
        request_id = self._next_request_id
        self._next_request_id += 1
        now_ns = self._env.clock.now_ns()
        deadline_ns = now_ns + int(self._options.read_timeout_s * _NS)
        self._reads[request_id] = (deadline_ns, now_ns, future)
        self._ticker.watch(self._check)
        return request_id

    def _received(self, data: bytes) -> None:
        listeners = self._listeners
        touched: dict[LedgerId, AddListener] = {}
        try:
            for answer in self._decoder.feed(data):
                if isinstance(answer, v2.AddAnswers):
                    listener = listeners.get(answer.ledger_id)
                    if listener is not None:
                        listener.on_add_answers(self, answer)
                        touched[answer.ledger_id] = listener
                elif isinstance(answer, v2.BatchReadAnswer):
                    waiting = self._reads.pop(answer.request_id, None)
                    if waiting is not None and not waiting[2].done():
                        waiting[2].set_result(answer)
                else:
                    self._received_other(answer)
        finally:
            for listener in touched.values():
                listener.on_answers_end()

    def _received_other(self, answer: v2.Answer) -> None:
        """Take an answer that belongs to no add and no batch read."""

    def _reset_decoder(self) -> None:
        self._decoder = v2.AnswerDecoder()

    def _check(self, now_ns: int) -> bool:
        overdue = [i for i, (deadline, _, _) in self._reads.items() if deadline <= now_ns]
        sent_ns = now_ns
        for request_id in overdue:
            _, sent, future = self._reads.pop(request_id)
            sent_ns = min(sent_ns, sent)
            fail(future, self._timed_out("a read", self._options.read_timeout_s))
        if overdue:
            self.drop_if_silent(sent_ns)
        return bool(self._reads)

    def _fail_all(self, error: QuorumbookError) -> None:
        reads, self._reads = self._reads, {}
        for _, _, future in reads.values():
            fail(future, copy_error(error))
        self._fail_listeners(error)


class ControlChannel(Channel):
    """The v3 connection: one request, one answer, matched by transaction id."""

    _version = 3

    def _begin(self) -> None:
        self._decoder = v3.ResponseDecoder()
        self._waiting: dict[int, tuple[int, int, str, float, asyncio.Future[v3.V3Response]]] = {}
        self._next_txn_id = 1

    def request(
        self, what: str, encode: Callable[[int], bytes], *, timeout_s: float | None = None
    ) -> asyncio.Future[v3.V3Response]:
        """Send ``encode(transaction id)``; the future gets the response, whatever its status.

        Args:
            what: The request in an error's words, such as "a fence".
            encode: Makes the frame.
            timeout_s: Longest wait; the option ``request_timeout_s`` if not given.
        """
        future: asyncio.Future[v3.V3Response] = asyncio.get_running_loop().create_future()
        if self._is_closed:
            fail(future, ClientClosedError("the client is closed"))
            return future
        txn_id = self._next_txn_id
        self._next_txn_id += 1
        timeout_s = self._options.request_timeout_s if timeout_s is None else timeout_s
        now_ns = self._env.clock.now_ns()
        deadline_ns = now_ns + int(timeout_s * _NS)
        self._waiting[txn_id] = (deadline_ns, now_ns, what, timeout_s, future)
        self._ticker.watch(self._check)
        self.write(encode(txn_id))
        return future

    @property
    def pending_requests(self) -> int:
        """Return how many requests have no answer yet."""
        return len(self._waiting)

    def _received(self, data: bytes) -> None:
        for response in self._decoder.feed(data):
            self._answered(response)

    def _answered(self, response: v3.V3Response) -> None:
        waiting = self._waiting.pop(response.txn_id, None)
        # Nobody waits any more for a late answer.
        if waiting is not None and not waiting[4].done():
            waiting[4].set_result(response)

    def _reset_decoder(self) -> None:
        self._decoder = v3.ResponseDecoder()

    def _check(self, now_ns: int) -> bool:
        for txn_id in [i for i, waiting in self._waiting.items() if waiting[4].done()]:
            del self._waiting[txn_id]  # cancelled by whoever waited
        overdue = [i for i, waiting in self._waiting.items() if waiting[0] <= now_ns]
        sent_ns = now_ns
        for txn_id in overdue:
            _, sent, what, timeout_s, future = self._waiting.pop(txn_id)
            sent_ns = min(sent_ns, sent)
            fail(future, self._timed_out(what, timeout_s))
        if overdue:
            self.drop_if_silent(sent_ns)
        return bool(self._waiting)

    def _fail_all(self, error: QuorumbookError) -> None:
        waiting, self._waiting = self._waiting, {}
        for _, _, _, _, future in waiting.values():
            fail(future, copy_error(error))
