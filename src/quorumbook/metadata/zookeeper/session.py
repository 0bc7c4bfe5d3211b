"""One session with a ZooKeeper ensemble, over as many connections as it takes.

A task connects to one server after the other, takes the session up again, leaves the watches
anew, and waits behind a ``sync`` before it lets anybody use the connection: from then on whatever
was asked on earlier connections has happened or will not (``barrier_zxid``).

A disconnection ends nothing; only a server says that the session is over.  Then the callback
runs, ``is_over`` is true until ``renew``, and another session is begun at once, because reads and
watches go on.  Silence for two thirds of the session's timeout ends a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from quorumbook.auth.digest_md5 import DigestMd5Client
from quorumbook.auth.kerberos import KerberosClient, KerberosIdentity
from quorumbook.env import Env, logger, patience
from quorumbook.env.forks import sever_in_children
from quorumbook.env.tasks import cancel_and_wait
from quorumbook.env.tls import TlsContexts, explain
from quorumbook.errors import (
    ConfigError,
    LocalProtocolError,
    MetadataError,
    MetadataUnauthorizedError,
    MetadataUnavailableError,
    RemoteProtocolError,
    SecurityError,
)
from quorumbook.metadata.zookeeper import jute
from quorumbook.metadata.zookeeper.connection import AnswerLost, ZooKeeperConnection
from quorumbook.metadata.zookeeper.jute import Code, Op
from quorumbook.metadata.zookeeper.watches import ServerWatches

_log = logger("metadata.zookeeper")
_RETRY_FIRST_S = 0.05
_RETRY_LAST_S = 1.0
_CONNECT_S_MIN = 0.2
_CLOSE_S = 1.0
_NO_CERTIFICATE = "wants a certificate of ours: name tls.certificate_file and tls.key_file"
_REFUSED = "ZooKeeper refuses our SASL credentials: see the file that sasl_file names"
#: What a ZooKeeper calls itself in DIGEST-MD5, whatever its host is.
_DIGEST_MD5_SERVICE = "zookeeper/zk-sasl-md5"
#: So often nobody listens anywhere before that is said of a first connection.
_ABSENT_ROUNDS = 2
#: An address of a name that this host cannot even speak to listens as little.
_NOBODY = frozenset((errno.ECONNREFUSED, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT))
#: Bytes of paths in one request that leaves watches; servers refuse more than a megabyte.
_WATCHES_SIZE_BYTES = 100_000


@dataclass(frozen=True, slots=True)
class Credential:
    """Who we say we are."""

    scheme: str
    secret: bytes = b""
    #: With the scheme sasl, by Kerberos instead of a name and a password.
    kerberos: KerberosIdentity | None = None

    def __repr__(self) -> str:
        return f"Credential({self.scheme})"


class ZooKeeperSession:
    """Keeps a session.

    Args:
        servers: Host and port of each.
        timeout_s: How long the session is to outlive the last sign of us; the server may
            decide otherwise.
        tls: What connections are secured with; None leaves them plain.
        on_over: Called when the session ended.
    """

    def __init__(
        self,
        env: Env,
        servers: list[tuple[str, int]],
        timeout_s: float,
        credential: Credential | None,
        tls: TlsContexts | None,
        on_over: Callable[[], None],
    ) -> None:
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._random = env.random
        self._servers = list(servers)
        env.random.shuffle(self._servers)
        self._wanted_s = self.timeout_s = timeout_s
        self._credential = credential
        self._on_over = on_over
        self._password = b""
        self._living_id = 0
        self._connection: ZooKeeperConnection | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_closed = False
        self._last_zxid = 0
        #: Why there is no connection, by server; a connection that ended stands alone.
        self._failures: dict[tuple[str, int], str] = {}
        self._refusal: MetadataError | None = None
        #: How many servers of this round are not there at all, or not by our certificates.
        self._absent = 0
        self.watches = ServerWatches()
        #: The session that writes belong to, also when it is over.
        self.session_id = 0
        self.is_over = False
        #: What earlier connections asked for has a zxid up to this one, or will not happen.
        self.barrier_zxid = 0
        self._task = self._loop.create_task(self._run())

    async def connection(self, deadline: float) -> ZooKeeperConnection:
        """Return the living connection, in the order of the calls.

        Raises:
            MetadataUnavailableError: there is none until the deadline (of the loop's clock), or
                there never was one and nobody listens at any of the addresses.
            MetadataUnauthorizedError: the servers refuse our credentials.
            LocalProtocolError: the session was closed.
        """
        while True:
            connection = self._living()
            if connection is not None and not self._waiting:
                return connection
            self._check_open()
            if self._refusal is not None:
                raise self._refusal
            turn: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(turn)
            if connection is not None:
                turn.set_result(None)
            try:
                async with patience.timeout_at(deadline):
                    await turn
            except TimeoutError as error:
                raise MetadataUnavailableError(self.complaint()) from error
            finally:
                self._waiting.remove(turn)
            connection = self._living()
            if connection is not None:
                return connection

    def _living(self) -> ZooKeeperConnection | None:
        """Return the connection unless it has ended, which the task may not have noticed yet."""
        connection = self._connection
        return None if connection is None or connection.lost.done() else connection

    @property
    def is_busy(self) -> bool:
        """Tell whether a server is being waited for."""
        connection = self._living()
        return connection is not None and connection.is_waiting

    def complaint(self) -> str:
        """Say in a few words why there is no connection."""
        names = ",".join(f"{host}:{port}" for host, port in self._servers)
        why = "; ".join(self._failures.values())
        return f"no ZooKeeper at {names} answers{why and ': '}{why}"

    async def renew(self, deadline: float) -> None:
        """Take the living session for the present one, if that is over."""
        while True:
            connection = await self.connection(deadline)
            # The end of a session may be on its way still.
            try:
                await connection.request(Op.SYNC, jute.string("/"))
            except AnswerLost:
                continue
            break
        if self.is_over:
            self.session_id = self._living_id
            self.is_over = False

    async def close(self) -> None:
        """End the session, if a server can be told."""
        self._is_closed = True
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(AnswerLost, TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await connection.request(Op.CLOSE, b"")
            connection.end("closed")
        await cancel_and_wait([self._task])
        self._wake()

    def _check_open(self) -> None:
        if self._is_closed:
            raise LocalProtocolError("the metadata store is closed")

    def _wake(self) -> None:
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(None)

    async def _run(self) -> None:
        delay_s = _RETRY_FIRST_S
        absent_rounds = 0
        while not self._is_closed:
            self._absent = 0
            for server in list(self._servers):
                was_living = self._living_id
                connection = await self._try(server)
                if connection is not None:
                    delay_s = _RETRY_FIRST_S
                    await self._serve(connection)
                    break
                if was_living and not self._living_id:
                    break  # The session is over; the next one may begin at once.
            else:
                absent_rounds += self._absent == len(self._servers)
                if absent_rounds == _ABSENT_ROUNDS and not self.session_id:
                    # The addresses are wrong, more likely than not: nobody need wait for them.
                    self._refusal = MetadataUnavailableError(self.complaint())
                    self._wake()
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, _RETRY_LAST_S)
            self._servers.append(self._servers.pop(0))

    async def _serve(self, connection: ZooKeeperConnection) -> None:
        self._connection, self._refusal = connection, None
        lost = "the connection is closed"
        self._wake()
        try:
            lost = await connection.lost
        finally:
            self._connection, self._failures = None, {("", 0): lost}
            # No server behind this one is good for us, and missed changes are those after it.
            self._last_zxid = max(self._last_zxid, connection.answered_zxid)
            connection.end("closed")
        if not self._is_closed:
            _log.info("ZooKeeper: %s; connecting again", lost)

    async def _try(self, server: tuple[str, int]) -> ZooKeeperConnection | None:
        """Connect to one server; None if that did not work, or ended the session."""
        name = f"{server[0]}:{server[1]}"
        connection = ZooKeeperConnection(self._on_event, self.timeout_s)
        connect_s = max(self.timeout_s * 2 / 3 / len(self._servers), _CONNECT_S_MIN)
        try:
            async with patience.timeout(connect_s):
                context = self._context()
                transport, _ = await self._loop.create_connection(
                    lambda: connection,
                    *server,
                    ssl=context,
                    server_hostname=None if context is None else server[0],
                )
                sever_in_children(transport)
                if await self._greet(connection):
                    await self._prepare(connection, server[0])
                    return connection
        except TimeoutError:
            self._failures[server] = f"{name} does not answer within {connect_s:.1f} s"
        except ssl.SSLError as error:
            self._failures[server] = f"{name}: {explain(error, host=server[0])}"
            self._absent += 1
        except OSError as error:
            if _is_refused(error):
                self._failures[server] = f"nobody listens at {name}"
            else:
                # One that ends in the middle of a handshake says nothing.
                self._failures[server] = f"{name}: {error.strerror or str(error) or explain(error)}"
            # The name of the error says it on every system, its number does not.
            self._absent += _is_refused(error) or type(error).__name__ == "gaierror"
        except (AnswerLost, RemoteProtocolError) as error:
            self._failures[server] = f"{name}: {error}"
            if connection.is_mistrusted:
                self._absent += 1
                if self._tls is not None and not self._tls.options.key_file:
                    self._failures[server] = f"{name} {_NO_CERTIFICATE}"
        except MetadataUnauthorizedError as error:
            self._refusal = error
            self._wake()
        except BaseException:
            connection.end("closed")
            raise
        connection.end("given up")
        return None

    def _context(self) -> ssl.SSLContext | None:
        if self._tls is None:
            return None
        try:
            self._tls.refresh()
        except ConfigError as error:
            _log.warning("ZooKeeper: %s; the certificates from before stay in use", error)
        return self._tls.current()

    async def _greet(self, connection: ZooKeeperConnection) -> bool:
        """Take the session up on a connection; False if it is over."""
        frame = jute.connect(
            self._last_zxid, int(self._wanted_s * 1000), self._living_id, self._password
        )
        answer = jute.connected(await connection.greet(frame))
        if answer.timeout_ms <= 0 or not answer.session_id:
            self._living_id, self._password = 0, b""
            if self.session_id and not self.is_over:
                self.is_over = True
                _log.warning("ZooKeeper session 0x%x is over", self.session_id)
                self._on_over()
            return False
        self._living_id, self._password = answer.session_id, answer.password
        self.timeout_s = answer.timeout_ms / 1000
        if not self.session_id:
            self.session_id = self._living_id
        connection.keep_alive(self.timeout_s * 2 / 3)
        return True

    async def _prepare(self, connection: ZooKeeperConnection, host: str) -> None:
        """Authenticate, leave the watches anew, and let the past be over."""
        credential = self._credential
        if credential is not None and credential.scheme == "sasl":
            try:
                await self._prove(connection, credential, host)
            except SecurityError as error:
                raise MetadataUnauthorizedError(f"ZooKeeper at {host}: {error}") from None
        elif credential is not None:
            record = jute.auth_record(credential.scheme, credential.secret)
            answer = await connection.special(jute.AUTH_XID, Op.AUTH, record)
            if answer.header.error:
                raise MetadataUnauthorizedError("ZooKeeper refuses our digest credentials")
        for record in self.watches.records(self._last_zxid, _WATCHES_SIZE_BYTES):
            await connection.special(jute.SET_WATCHES_XID, Op.SET_WATCHES, record)
        answer = await connection.request(Op.SYNC, jute.string("/"))
        if answer.header.error == Code.SASL_REQUIRED:
            raise MetadataUnauthorizedError(
                "ZooKeeper wants SASL: name a file with the credentials, ?sasl_file=FILE at the "
                "end of the URI, or say ?kerberos=true"
            )
        if answer.header.error not in (Code.OK, Code.NO_NODE, Code.NO_AUTH):
            raise AnswerLost(f"the server is not ready ({answer.header.error})", 0)
        self.barrier_zxid = max(self.barrier_zxid, answer.header.zxid)

    async def _prove(
        self, connection: ZooKeeperConnection, credential: Credential, host: str
    ) -> None:
        """Authenticate by SASL, and have the server prove that it is ours."""
        if credential.kerberos is not None:
            await self._show_ticket(connection, KerberosClient(credential.kerberos, host))
            return
        user, _, password = credential.secret.decode().partition(":")
        nonce = f"{self._random.getrandbits(128):032x}"
        exchange = DigestMd5Client(user, password, _DIGEST_MD5_SERVICE, nonce)
        challenge = await self._say(connection, b"")
        if not challenge:
            raise MetadataUnauthorizedError(
                "ZooKeeper knows no SASL: its JAAS file needs a section Server"
            )
        last = await self._say(connection, exchange.respond(challenge))
        if not last:
            raise MetadataUnauthorizedError(_REFUSED)
        exchange.verify(last)

    async def _show_ticket(self, connection: ZooKeeperConnection, exchange: KerberosClient) -> None:
        token = b""
        while not exchange.is_complete:
            # The KDC is asked, which may take its time.
            message = await asyncio.to_thread(exchange.respond, token)
            token = await self._say(connection, message)

    async def _say(self, connection: ZooKeeperConnection, token: bytes) -> bytes:
        answer = await connection.request(Op.SASL, jute.buffer(token))
        if answer.header.error:
            raise MetadataUnauthorizedError(_REFUSED)
        return jute.JuteReader(answer.body).buffer()

    def _on_event(self, body: bytes) -> None:
        event = jute.JuteReader(body)
        kind, _state, path = event.integer(), event.integer(), event.string()
        self.watches.fire(kind, path)


def _is_refused(error: OSError) -> bool:
    """Return whether nobody listens; a name with several addresses has one error for all."""
    numbers = {error.errno or int(each) for each in re.findall(r"Errno (-?\d+)", str(error))}
    return errno.ECONNREFUSED in numbers and numbers <= _NOBODY
