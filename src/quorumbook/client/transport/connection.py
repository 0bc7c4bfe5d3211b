"""A connection to one bookie: how it is made, written to, and lost.

What is sent over it, and what waits for answers, is in ``channels.py``.

A channel connects when it is first written to and again after it was lost.  What is written while
it connects is kept and sent then.  When it is lost, everything that waits on it fails at once;
nothing is ever sent a second time by the channel itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from quorumbook.client.options import ClientOptions
from quorumbook.client.transport.handshake import Security, lost_error, open_stream
from quorumbook.client.transport.ticker import Ticker
from quorumbook.client.waiting.outcomes import copy_error, outcome_of
from quorumbook.env import Env, logger, patience
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.errors import (
    BookieUnavailableError,
    ClientClosedError,
    ConnectFailedError,
    ConnectionLostError,
    QuorumbookError,
    RequestTimeoutError,
    SecurityError,
)
from quorumbook.ids import BookieId, LedgerId
from quorumbook.protocol.v2 import packets as v2

#: A bookie of the peer's that lets us in no further need not say so.
_SILENT = "; it may refuse our authentication without a word: its log says more"
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
        self._begin()

    def _begin(self) -> None:
        """Make what the protocol needs."""

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
            raise copy_error(self._failure or ConnectFailedError(bookie_id=self.bookie_id))

    async def close(self) -> None:
        """Close for good; what waits fails with ClientClosedError."""
        self._is_closed = True
        task, self._connecting = self._connecting, None
        if task is not None:
            await cancel_and_wait([task])
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
        self._note_lost()
        self._fail_all(lost_error(self.bookie_id, cause))

    def _note_lost(self) -> None:
        """Tell that the connection broke, which speaks against the bookie."""
        self._on_health(self.bookie_id, False)

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
            async with patience.timeout(self._options.connect_timeout_s):
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
                f"{self._options.connect_timeout_s:g} s" + _SILENT * (self._security is not None),
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
