"""The two connections to one bookie, and what waits on them.

    FastChannel     v2: adds and batch reads; answers of adds arrive as runs and go to the writer
                    of their ledger, once for everything that one packet brought
    ControlChannel  v3: fences, recovery reads, last add confirmed, force, lists, long polls;
                    matched by transaction id

A channel connects when it is first written to and again after it was lost.  What is written while
it connects is kept and sent then.  When it is lost, everything that waits on it fails at once;
nothing is ever sent a second time by the channel itself.

Answers resolve futures and call listeners; no code of a caller runs inside ``data_received``, so
nothing can wait in there for an answer that only this connection could deliver.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from quorumbook.client.handshake import Security, lost_error, open_stream
from quorumbook.client.options import ClientOptions
from quorumbook.client.ticker import Ticker
from quorumbook.client.waiting import end, outcome_of
from quorumbook.env import Env, logger
from quorumbook.errors import (
    BookieUnavailableError,
    ClientClosedError,
    ConnectFailedError,
    ConnectionLostError,
    QuorumbookError,
    RequestTimeoutError,
    SecurityError,
)
from quorumbook.ids import BookieId, EntryId, LedgerId
from quorumbook.protocol import v2, v3

_log = logger("client.connection")
_NS = 1_000_000_000
#: Above so many unsent bytes the transport tells us when it has drained.
_HIGH_WATER_BYTES = 1024 * 1024


class AddListener(Protocol):
    """A writer, as its bookies' channels see it."""

    def on_add_answers(self, channel: Channel, answers: v2.AddAnswers) -> None:
        """Take a run of answers; ``on_answers_end`` follows."""
        ...

    def on_answers_end(self) -> None:
        """Everything of this packet was delivered: now act on it, once."""
        ...

    def on_channel_lost(self, channel: Channel, error: BookieUnavailableError) -> None:
        """What was sent on the channel and not answered will never be answered."""
        ...

    def on_channel_drained(self) -> None:
        """The channel took what it had to send; there may be room in the window again."""
        ...


#: Where a bookie listens; raises ConnectFailedError if nobody knows.
Resolve = Callable[[BookieId], Awaitable[tuple[str, int]]]
#: Told about every made (True) and failed or broken (False) connection, and silent bookies.
OnHealth = Callable[[BookieId, bool], None]


class _Stream(asyncio.Protocol):
    """One TCP connection; it tells its channel everything and decides nothing."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._channel.on_data(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._channel.on_lost(self, exc)

    def resume_writing(self) -> None:
        self._channel.on_drained()


class Channel:
    """Connection state common to both protocols."""

    #: The protocol that is spoken.
    _version = 0

    def __init__(
        self,
        env: Env,
        bookie_id: BookieId,
        resolve: Resolve,
        options: ClientOptions,
        ticker: Ticker,
        on_health: OnHealth,
        security: Security | None = None,
    ) -> None:
        self.bookie_id = bookie_id
        self._security = security
        self._env = env
        self._resolve = resolve
        self._options = options
        self._ticker = ticker
        self._on_health = on_health
        self._stream: _Stream | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._unsent: list[bytes] = []
        #: What was written behind the first piece of this loop turn, None between turns.
        self._held: list[bytes] | None = None
        self._held_bytes = 0
        #: Why the last attempt to connect failed.
        self._failure: QuorumbookError | None = None
        self._is_closed = False
        self._last_received_ns = 0
        self._listeners: dict[LedgerId, AddListener] = {}

    @property
    def is_connected(self) -> bool:
        """Tell whether bytes can leave at once."""
        return self._stream is not None

    @property
    def unsent_bytes(self) -> int:
        """Return how many bytes wait for the bookie to take them."""
        if self._stream is not None and self._stream.transport is not None:
            return self._stream.transport.get_write_buffer_size() + self._held_bytes
        return sum(map(len, self._unsent))

    def write(self, data: bytes) -> None:
        """Send bytes, now or as soon as there is a connection.

        The first piece of a loop turn leaves at once; what follows in the same turn, of a
        thousand ledgers maybe, leaves as one write at its end.
        """
        stream = self._stream
        if stream is None:
            self._unsent.append(data)
            self.connect()
        elif self._held is not None:
            self._held.append(data)
            self._held_bytes += len(data)
        else:
            self._held = []
            asyncio.get_running_loop().call_soon(self._end_turn)
            stream.transport.write(data)  # type: ignore[union-attr]

    def _end_turn(self) -> None:
        held, self._held = self._held, None
        self._held_bytes = 0
        if held and self._stream is not None:
            self._stream.transport.write(b"".join(held))  # type: ignore[union-attr]

    def connect(self) -> None:
        """Begin to connect, unless that is done or under way."""
        if self._stream is None and self._connecting is None and not self._is_closed:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())

    async def connected(self) -> None:
        """Wait until connected; raises ConnectFailedError."""
        if self._is_closed:
            raise ClientClosedError("the client is closed", bookie_id=self.bookie_id)
        self.connect()
        if self._connecting is not None:
            await outcome_of(self._connecting)
        if self._stream is None:
            raise again(self._failure or ConnectFailedError(bookie_id=self.bookie_id))

    async def close(self) -> None:
        """Close for good; what waits fails with ClientClosedError."""
        self._is_closed = True
        task, self._connecting = self._connecting, None
        if task is not None:
            await end([task])
        self.drop(ClientClosedError("the client is closed", bookie_id=self.bookie_id))

    def drop(self, error: QuorumbookError) -> None:
        """Give the present connection up; what waits on it fails with ``error``."""
        stream, self._stream = self._stream, None
        self._unsent.clear()
        self._held, self._held_bytes = self._held and [], 0
        if stream is not None and stream.transport is not None:
            stream.transport.abort()
        self._fail_all(error)

    def on_data(self, stream: _Stream, data: bytes) -> None:
        """Decode what arrived; a peer that breaks the protocol loses its connection."""
        if stream is not self._stream:
            return
        self._last_received_ns = self._env.clock.now_ns()
        try:
            self._received(data)
        except QuorumbookError as error:
            _log.warning("bookie %s broke the protocol: %s", self.bookie_id, error)
            self._on_health(self.bookie_id, False)
            lost = ConnectionLostError(
                f"bookie {self.bookie_id} broke the protocol: {error}", bookie_id=self.bookie_id
            )
            lost.__cause__ = error
            self.drop(lost)

    def on_lost(self, stream: _Stream, cause: Exception | None) -> None:
        """The transport is gone."""
        if stream is not self._stream:
            return
        self._stream = None
        self._held, self._held_bytes = self._held and [], 0
        error = lost_error(self.bookie_id, cause)
        self._on_health(self.bookie_id, False)
        self._fail_all(error)

    def attach(self, ledger_id: LedgerId, listener: AddListener) -> None:
        """Deliver the answers of a ledger's adds to ``listener`` from now on."""
        self._listeners[ledger_id] = listener

    def detach(self, ledger_id: LedgerId, listener: AddListener) -> None:
        """Drop the answers of a ledger's adds, unless somebody else took them over."""
        if self._listeners.get(ledger_id) is listener:
            del self._listeners[ledger_id]

    def on_drained(self) -> None:
        """The transport has sent nearly all it had: tell the writers that wait for room."""
        for listener in list(self._listeners.values()):
            listener.on_channel_drained()

    def _fail_listeners(self, error: QuorumbookError) -> None:
        if isinstance(error, BookieUnavailableError):
            for listener in list(self._listeners.values()):
                listener.on_channel_lost(self, error)

    async def _connect(self) -> None:
        failure: QuorumbookError | None = None
        is_resolved = False
        try:
            async with asyncio.timeout(self._options.connect_timeout_s):
                host, port = await self._resolve(self.bookie_id)
                is_resolved = True
                stream = _Stream(self)
                await open_stream(
                    self._env, host, port, stream, self._security, self.bookie_id, self._version
                )
        except SecurityError as error:
            failure = error
        except TimeoutError:
            failure = ConnectFailedError(
                f"bookie {self.bookie_id} did not accept a connection within "
                f"{self._options.connect_timeout_s:g} s",
                bookie_id=self.bookie_id,
            )
        except OSError as error:
            failure = ConnectFailedError(
                f"cannot connect to bookie {self.bookie_id}: {error.strerror or error}",
                bookie_id=self.bookie_id,
            )
            failure.__cause__ = error
        except Exception as error:
            failure = ConnectFailedError(
                f"cannot connect to bookie {self.bookie_id}: {error}", bookie_id=self.bookie_id
            )
            failure.__cause__ = error
        self._connecting = None
        if failure is not None:
            # A metadata store that cannot say where the bookie is says nothing against it.
            is_its_fault = is_resolved or isinstance(failure.__cause__, ConnectFailedError)
            self._not_made(failure, is_its_fault=is_its_fault)
            return
        self._made(stream)

    def _not_made(self, failure: QuorumbookError, *, is_its_fault: bool = True) -> None:
        self._failure = failure
        self._unsent.clear()
        if is_its_fault:
            self._on_health(self.bookie_id, False)
        self._fail_all(failure)

    def _made(self, stream: _Stream) -> None:
        transport = stream.transport
        if transport is None or transport.is_closing():
            self._not_made(
                ConnectionLostError(
                    f"bookie {self.bookie_id} closed the connection at once",
                    bookie_id=self.bookie_id,
                )
            )
            return
        self._reset_decoder()
        self._stream = stream
        self._last_received_ns = 0
        self._on_health(self.bookie_id, True)
        transport.set_write_buffer_limits(_HIGH_WATER_BYTES)
        if self._unsent:
            unsent, self._unsent = self._unsent, []
            transport.write(b"".join(unsent))

    def _received(self, data: bytes) -> None:
        raise NotImplementedError

    def _reset_decoder(self) -> None:
        raise NotImplementedError

    def _fail_all(self, error: QuorumbookError) -> None:
        raise NotImplementedError

    def _timed_out(self, what: str, timeout_s: float) -> RequestTimeoutError:
        return RequestTimeoutError(
            f"bookie {self.bookie_id} did not answer {what} within {timeout_s:g} s",
            bookie_id=self.bookie_id,
        )

    def drop_if_silent(self, since_ns: int) -> None:
        """Close a connection on which nothing at all arrived since a request went unanswered.

        A bookie that is only slow keeps it; behind a dead machine or a cut cable every later
        request would otherwise wait for its own time-out.
        """
        if self._stream is not None and self._last_received_ns < since_ns:
            self._on_health(self.bookie_id, False)
            self.drop(
                ConnectionLostError(f"bookie {self.bookie_id} is silent", bookie_id=self.bookie_id)
            )


class FastChannel(Channel):
    """The v2 connection: adds and batch reads."""

    _version = 2

    def __init__(
        self,
        env: Env,
        bookie_id: BookieId,
        resolve: Resolve,
        options: ClientOptions,
        ticker: Ticker,
        on_health: OnHealth,
        security: Security | None = None,
    ) -> None:
        super().__init__(env, bookie_id, resolve, options, ticker, on_health, security)
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
            fail(future, again(error))
        self._fail_listeners(error)


class ControlChannel(Channel):
    """The v3 connection: one request, one answer, matched by transaction id."""

    _version = 3

    def __init__(
        self,
        env: Env,
        bookie_id: BookieId,
        resolve: Resolve,
        options: ClientOptions,
        ticker: Ticker,
        on_health: OnHealth,
        security: Security | None = None,
    ) -> None:
        super().__init__(env, bookie_id, resolve, options, ticker, on_health, security)
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
            fail(future, again(error))


def fail(future: asyncio.Future[Any], error: QuorumbookError) -> None:
    """Give a future its error; whoever let go of it in the meantime need not hear of it."""
    if not future.done():
        future.set_exception(error)
        future.exception()


def again(error: QuorumbookError) -> QuorumbookError:
    """Return an error of its own for each waiter: a raised one collects its raiser's frames."""
    another = copy.copy(error)
    another.__cause__ = error.__cause__
    return another
