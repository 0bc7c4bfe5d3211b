"""What happens on a new connection before a channel may use it: TLS, then authentication.

    START_TLS, a v3 request also where v2 is spoken afterwards; then the handshake
    AUTH messages of the client's plug-in, in the channel's protocol
    a question whose answer says that the bookie lets us in

The question is asked where nothing else was answered.  Behind a TLS handshake: under TLS 1.3 a
client's side is done before the bookie has looked at its certificate, so a refusal would surface
at some later request.  And behind a plug-in's last message, to which no answer comes.  It is a
request for the bookie's disk space with nothing asked for; where v2 is spoken already, a read.

Nothing of a caller is sent before all that is over.  Every failure is a ``SecurityError`` that
names the cause and what to do.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from quorumbook.auth.plugins import (
    AUTH_DISABLED,
    ClientPlugin,
    LastMessage,
    Peer,
    load_client_plugin,
)
from quorumbook.client.options import ClientOptions
from quorumbook.env import Env, TlsContexts, explain, logger
from quorumbook.errors import (
    BookieUnavailableError,
    ConfigError,
    ConnectionLostError,
    QuorumbookError,
    RemoteProtocolError,
    SecurityError,
)
from quorumbook.ids import BookieId
from quorumbook.protocol.frames import LENGTH_SIZE_BYTES
from quorumbook.protocol.requests import Operation
from quorumbook.protocol.status import Status, status_of_v2
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3

_log = logger("client.handshake")
_FRAME_SIZE_BYTES_MAX = 64 * 1024
#: No ledger has this id, so a read of it has a short answer.
_NO_LEDGER_ID = (1 << 63) - 1
#: What a bookie says that lets us in no further, and what to do.
_NOT_IN = (
    "does not let us in",
    "it may want authentication (client.auth_plugin), or another role in our certificate; its log "
    "says more",
)
#: The header of a v3 answer; a v2 answer begins with its version, 2.
_FIRST_BYTE_OF_V3 = 0x0A


@dataclass(frozen=True, slots=True)
class Security:
    """What a client asks of its connections, and what it shows."""

    env: Env
    contexts: TlsContexts | None = None
    plugin: ClientPlugin | None = None


def security_of(options: ClientOptions, env: Env) -> Security | None:
    """Load certificates and plug-in; None if connections need neither.

    Raises:
        ConfigError: one of them cannot be used.
    """
    plugin = load_client_plugin(options.auth_plugin, options.auth_settings)
    if options.tls is None:
        return Security(env, None, plugin) if plugin is not None else None
    return Security(env, TlsContexts(options.tls, env.clock, server_side=False), plugin)


async def open_stream(
    env: Env,
    host: str,
    port: int,
    stream: asyncio.Protocol,
    security: Security | None,
    bookie_id: BookieId,
    version: int,
) -> None:
    """Connect, do what security asks for, and hand the connection to ``stream``.

    Args:
        env: The world.
        host: Where the bookie is, and what its certificate must be made for.
        port: Its port.
        stream: Who goes on; its ``connection_made`` is called when all is done.
        security: What is asked for; None connects in the clear.
        bookie_id: For messages.
        version: The protocol that ``stream`` speaks, 2 or 3.

    Raises:
        OSError: there is no connection.
        SecurityError: one side does not let the other in.
    """
    if security is None:
        await env.network.connect(host, port, lambda: stream)
        return
    handshake = _Handshake(security, bookie_id, version)
    await env.network.connect(host, port, lambda: handshake)
    transport = await handshake.run(host)
    transport.set_protocol(stream)
    stream.connection_made(transport)


def lost_error(bookie_id: BookieId, cause: Exception | None) -> BookieUnavailableError:
    """Return what a connection ended with that a channel was using."""
    if isinstance(cause, ssl.SSLError):
        return SecurityError(f"bookie {bookie_id}: {explain(cause)}", bookie_id=bookie_id)
    return ConnectionLostError(
        f"the connection to bookie {bookie_id} broke" + (f": {cause}" if cause else ""),
        bookie_id=bookie_id,
    )


class _Handshake(asyncio.Protocol):
    """The protocol of a connection until a channel takes it over."""

    def __init__(self, security: Security, bookie_id: BookieId, version: int) -> None:
        """Prepare.

        Args:
            security: What is asked for.
            bookie_id: For messages.
            version: The protocol of the channel, 2 or 3.
        """
        self._security = security
        self._bookie_id = bookie_id
        self._version = version
        self._bytes = b""
        self._answers: list[v3.V3Response | v2.Answer] = []
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._transaction_id = 0
        self._transport: asyncio.Transport

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Decode answers for whoever waits for one; each frame tells its protocol itself."""
        self._bytes += data
        try:
            while len(self._bytes) >= LENGTH_SIZE_BYTES:
                stop = LENGTH_SIZE_BYTES + int.from_bytes(self._bytes[:LENGTH_SIZE_BYTES], "big")
                if not LENGTH_SIZE_BYTES < stop <= _FRAME_SIZE_BYTES_MAX:
                    raise RemoteProtocolError("it sent something that is not a short frame")
                if len(self._bytes) < stop:
                    break
                one, self._bytes = self._bytes[:stop], self._bytes[stop:]
                is_v3 = one[LENGTH_SIZE_BYTES] == _FIRST_BYTE_OF_V3
                decoder = v3.ResponseDecoder() if is_v3 else v2.AnswerDecoder()
                self._answers += decoder.feed(one)
        except QuorumbookError as error:
            self._error = error
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """There will be no answer."""
        if self._error is None:
            self._error = exc or ConnectionResetError("the bookie closed the connection")
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # Called by the channel

    async def run(self, host: str) -> asyncio.Transport:
        """Do everything that is asked for; returns the transport to go on with.

        Args:
            host: What the bookie's certificate must be made for.

        Raises:
            SecurityError: one side does not let the other in; the connection is cut.
        """
        try:
            if self._security.contexts is not None:
                await self._start_tls(self._security.contexts, host)
            if self._security.plugin is not None:
                await self._authenticate(self._security.plugin, host)
            elif self._security.contexts is not None:
                await self._ask_whether_we_are_in()
        except BaseException:
            self._transport.abort()
            raise
        return self._transport

    async def _start_tls(self, contexts: TlsContexts, host: str) -> None:
        try:
            if contexts.refresh():
                _log.info("the certificates were loaded again")
        except ConfigError as error:
            _log.error("the certificates stay as they were: %s", error)
        response = await self._ask_v3(v3.encode_start_tls, Operation.START_TLS)
        if response.status is not Status.OK:
            raise self._refused("offers no TLS", "set tls.enabled and its certificate there")
        if self._answers or self._bytes:
            raise self._refused("sent bytes in the clear behind its answer", "look who is between")
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        def ended(error: Exception | None) -> None:
            if not done.done():
                done.set_result(error)

        self._transport = self._security.env.network.start_tls(
            self._transport,
            self,
            contexts.current(),
            server_side=False,
            server_hostname=host,
            done=ended,
        )
        failure = await done
        if failure is not None:
            raise self._failed(failure, host) from failure

    async def _authenticate(self, plugin: ClientPlugin, host: str) -> None:
        tls: ssl.SSLObject | None = self._transport.get_extra_info("ssl_object")
        certificate = (tls.getpeercert() or None) if tls is not None else None
        session = plugin.session(Peer(host, tls is not None, certificate))
        waits = getattr(plugin, "waits_for_others", False)
        message: bytes | None = await _call(session.start, waits=waits)
        while message is not None and not isinstance(message, LastMessage):
            answer = await self._exchange(plugin.name, message)
            message = await _call(session.answer, answer, waits=waits)
        if message is not None:
            self._transport.write(self._auth(plugin.name, message))
            await self._hear_that_we_are_in()

    def _auth(self, name: str, message: bytes) -> bytes:
        if self._version == 2:
            return v2.encode_auth(name, message)
        self._transaction_id += 1
        return v3.encode_auth(self._transaction_id, name, message)

    async def _exchange(self, name: str, message: bytes) -> bytes:
        self._transport.write(self._auth(name, message))
        answer = await self._next_answer(Operation.AUTH)
        if isinstance(answer, v2.AuthAnswer):
            theirs, payload = answer.plugin, answer.payload
        elif not isinstance(answer, v3.V3Response):
            raise self._refused("answered something else than AUTH", "look at its log")
        elif answer.status is not Status.OK:
            raise self._refused(
                "did not accept our authentication",
                "compare client.auth_plugin and the secret with its own; its log says more",
            )
        else:
            theirs, payload = answer.auth_plugin or "", answer.auth_payload or b""
        if theirs == AUTH_DISABLED:
            # To take that for a success would let anybody in between turn authentication off.
            raise self._refused(
                "has authentication turned off, and this client is set to use it",
                "set bookie.auth_plugin there, or client.auth_plugin to nothing",
            )
        if theirs != name:
            raise self._refused(f"authenticates by {theirs!r:.80}", f"we are told to use {name}")
        return payload

    async def _hear_that_we_are_in(self) -> None:
        """Ask where the plug-in's last message has no answer; a v2 connection stays one."""
        if self._version == 3:
            await self._ask_whether_we_are_in()
            return
        self._transport.write(v2.encode_read(_NO_LEDGER_ID, 0))
        answer = await self._next_answer(Operation.READ_ENTRY)
        code = answer.code if isinstance(answer, v2.ReadAnswer) else None
        if code is None or status_of_v2(code) is Status.UNAUTHORIZED:
            raise self._refused(*_NOT_IN)

    async def _ask_whether_we_are_in(self) -> None:
        response = await self._ask_v3(
            lambda number: v3.encode_bookie_info(number, 0), Operation.GET_BOOKIE_INFO
        )
        if response.status is not Status.OK:
            raise self._refused(*_NOT_IN)

    async def _ask_v3(self, encode: Callable[[int], bytes], operation: Operation) -> v3.V3Response:
        self._transaction_id += 1
        self._transport.write(encode(self._transaction_id))
        answer = await self._next_answer(operation)
        if not isinstance(answer, v3.V3Response):
            raise RemoteProtocolError(f"no answer to {operation.name}")
        return answer

    async def _next_answer(self, asked: Operation) -> v3.V3Response | v2.Answer:
        while not self._answers:
            if self._error is not None:
                raise self._failed(self._error, "") from self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        answer = self._answers.pop(0)
        is_of_tls = isinstance(answer, v3.V3Response) and answer.operation is Operation.START_TLS
        if is_of_tls and asked is not Operation.START_TLS:
            # The peer's bookie says so behind the handshake that nobody has authenticated yet,
            # which is true of who does so by messages, and final for who shows a certificate.
            return await self._next_answer(asked)
        return answer

    def _failed(self, error: Exception, host: str) -> SecurityError:
        if isinstance(error, ssl.SSLError):
            why = explain(error, host=host)
        elif isinstance(error, OSError):
            why = (
                "it closed the connection before it let us in; its log says why, and whether it "
                "wants TLS, a certificate or authentication of another kind"
            )
        else:
            why = str(error)
        return SecurityError(f"bookie {self._bookie_id}: {why}", bookie_id=self._bookie_id)

    def _refused(self, what: str, fix: str) -> SecurityError:
        return SecurityError(f"bookie {self._bookie_id} {what}; {fix}", bookie_id=self._bookie_id)


async def _call(
    method: Callable[..., bytes | None], *arguments: bytes, waits: bool
) -> bytes | None:
    """Call a plug-in's session, in a thread if it waits for others."""
    return await asyncio.to_thread(method, *arguments) if waits else method(*arguments)
