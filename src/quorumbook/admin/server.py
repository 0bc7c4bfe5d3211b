"""Listening: the API and the console on one port, with TLS and certificates of clients.

uvicorn speaks HTTP.  What it leaves open is set here: a connection that sends no request in ten
seconds is closed, so is a handshake that takes longer, and one that takes nothing of its answer
in for a minute.  Handshakes count as connections.  Where there are too many, the oldest handshake
goes for a newcomer, or one that rests, of the address that most of those come from; where all are
at work the newcomer is closed before anything of it is read.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, cast

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from uvicorn.protocols.http.h11_impl import H11Protocol

from quorumbook.admin.access.answers import BoundedAnswers
from quorumbook.admin.access.gate import Gate
from quorumbook.admin.access.oidc import OidcOptions, OidcProvider, oidc_roles
from quorumbook.admin.access.roles import Role, certificate_roles
from quorumbook.admin.console.web import Console
from quorumbook.admin.endpoints import (
    bookies,
    cluster,
    keeping,
    ledgers,
    pipelines,
    racks,
    records,
    streams,
    upkeep,
)
from quorumbook.admin.files.document import OPERATIONS as FILE_OPERATIONS
from quorumbook.admin.files.webhdfs import WebHdfs
from quorumbook.admin.http.app import CERTIFICATE, App, problem_response
from quorumbook.admin.http.endpoint import Ask, Endpoint
from quorumbook.admin.http.openapi import openapi_document
from quorumbook.admin.http.problems import ApiError
from quorumbook.admin.http.service import Service
from quorumbook.admin.options import AdminOptions
from quorumbook.admin.peer.endpoints import ENDPOINTS as PEER_ENDPOINTS
from quorumbook.bookie.http.access import is_loopback_only
from quorumbook.env import logger, patience
from quorumbook.env.secret_files import read_secret_file
from quorumbook.env.tls_transport import TlsTransport
from quorumbook.errors import ConfigError

_log = logger("admin.server")
#: So long the head of a request may take, the first one from the connection on.
_HEAD_S = 10.0
_TAKE_IN_MS = 60_000
_HEAD_BYTES = 32 * 1024
_BACKLOG = 1024


def all_endpoints(*, has_files: bool = False) -> list[Endpoint]:
    """Return every endpoint, the document of them included.

    Args:
        has_files: The server answers for files, too, which the document then says.
    """
    declared = [
        *cluster.ENDPOINTS,
        *racks.ENDPOINTS,
        *bookies.ENDPOINTS,
        *upkeep.ENDPOINTS,
        *ledgers.ENDPOINTS,
        # Before the streams': their paths take any name.
        *records.ENDPOINTS,
        *keeping.ENDPOINTS,
        *streams.ENDPOINTS,
        *pipelines.ENDPOINTS,
    ]

    async def document(_ask: Ask) -> object:
        files = FILE_OPERATIONS if has_files else ()
        return openapi_document([*declared, *files], version("quorumbook"))

    about = Endpoint(
        "GET", "/api/v2/openapi.json", Role.VIEWER, "The document of these endpoints.", document
    )
    return [about, *declared, *PEER_ENDPOINTS]


class _Requests(h11.Connection):
    """Refuses a request with two lengths, since a proxy may go by the other one.

    Then it would take what is left of a body for a request, or pass a request by in a body.
    """

    def next_event(self) -> Any:
        """Return what came next."""
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if {b"content-length", b"transfer-encoding"} <= names:
                raise h11.RemoteProtocolError("a length, and chunks")
        return event


class _Protocol(H11Protocol):
    """A connection that does not wait for ever, and says whose certificate it has."""

    def __init__(self, places: _Uvicorn, **named: Any) -> None:
        super().__init__(**named)
        self.conn = _Requests(h11.SERVER, _HEAD_BYTES)
        self._places = places
        #: Where its peer is, and when it came or last asked for something.
        self.host, self.since_s = "", 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection."""
        super().connection_made(transport)
        peer_socket = transport.get_extra_info("socket")
        with contextlib.suppress(AttributeError, OSError):
            peer_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _TAKE_IN_MS)
        name = _common_name(transport.get_extra_info("ssl_object"))
        if name is not None:
            self.app = _with_certificate(self.app, name)
        self._head: patience.Timer | None = None
        self.host, self.since_s = (self.client or ("",))[0], time.monotonic()
        # uvicorn itself would let it stay, and refuse each of its requests.
        limit = self.limit_concurrency
        is_full = limit is not None and len(self.connections) >= limit
        if is_full and not self._places.make_room(self):
            self.leave()
            return
        self._head = patience.Timer(_HEAD_S, self._too_late)

    def data_received(self, data: bytes) -> None:
        """Take bytes in; uvicorn's own timer between requests ends with a head's first byte."""
        before = self.cycle
        self.since_s = time.monotonic()
        super().data_received(data)
        if self.cycle is not before:
            self._stop_waiting()
        elif self._head is None and self.cycle.response_complete:
            self._head = patience.Timer(_HEAD_S, self._too_late)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP; uvicorn would have its application answer behind that."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()  # an answer was begun

    def _should_upgrade(self) -> bool:
        return False  # nor is there a line in the log for whoever asks

    def _too_late(self) -> None:
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and not self.transport.is_closing():
            self.transport.abort()

    @property
    def rests(self) -> bool:
        """Whether nothing is under way that it has asked for to the end."""
        return (
            self._head is not None
            or self.conn.their_state is h11.SEND_BODY
            or (self.cycle is not None and self.cycle.response_complete)
        )

    def leave(self) -> None:
        """Give its place up."""
        self.connections.discard(self)
        self.transport.abort()

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of the connection."""
        self._stop_waiting()
        super().connection_lost(exc)


def _common_name(connection: Any) -> str | None:
    certificate = connection.getpeercert() if connection is not None else None
    for parts in (certificate or {}).get("subject", ()):
        for name, value in parts:
            if name == "commonName":
                return str(value)
    return None


def _with_certificate(app: Any, name: str) -> Any:
    async def with_certificate(scope: Any, receive: Any, send: Any) -> None:
        extensions = {**(scope.get("extensions") or {}), CERTIFICATE: name}
        await app({**scope, "extensions": extensions}, receive, send)

    return with_certificate


def _provider(options: AdminOptions) -> OidcProvider | None:
    if not options.oidc_issuer:
        return None
    return OidcProvider(
        OidcOptions(
            options.oidc_issuer,
            options.oidc_client_id,
            oidc_roles(options.oidc_roles),
            options.oidc_roles_claim,
            options.oidc_name_claim,
            options.oidc_client_secret_file,
        )
    )


def with_keys(app: Any, oidc: OidcProvider) -> Any:
    """Return an application that knows the key of a request's token before it judges it."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        for name, value in scope.get("headers", ()):
            if name == b"authorization":
                await oidc.prepare(value.decode("latin-1"))
        await app(scope, receive, send)

    return answer


class _AdminHandshake(asyncio.Protocol):
    """A connection until its TLS handshake has ended; it is at ``server.handshakes`` meanwhile."""

    def __init__(self, server: _Uvicorn, context: ssl.SSLContext) -> None:
        self._server = server
        self._context = context

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, if there is a place or another one can go."""
        handshakes = self._server.handshakes
        if self._server.is_full and not self._server.make_room(self):
            transport.abort()
            return
        self._timer = patience.Timer(_HEAD_S, self.abort)
        self._tls = TlsTransport(
            transport, self, self._context, server_side=True, server_hostname=None, done=self._done
        )
        handshakes[self] = None
        self._tls.begin()

    def abort(self) -> None:
        """Give it up."""
        self._leave()
        self._tls.abort()

    def _done(self, error: Exception | None) -> None:
        self._leave()
        if error is None:
            protocol = self._server.protocol()
            self._tls.set_protocol(protocol)
            protocol.connection_made(self._tls)

    def _leave(self) -> None:
        self._timer.cancel()
        self._server.handshakes.pop(self, None)


class _Uvicorn(uvicorn.Server):
    """Leaves signals to whoever runs it, and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()
        #: Oldest first.
        self.handshakes: dict[_AdminHandshake, None] = {}

    @property
    def is_full(self) -> bool:
        """Whether as many connections and handshakes are there as may be."""
        count = len(self.server_state.connections) + len(self.handshakes)
        return count + 1 >= (self.config.limit_concurrency or 0)

    def make_room(self, newcomer: object) -> bool:
        """Give up the oldest handshake, or of the address where most rest the oldest of them.

        False if all are at work.
        """
        if self.handshakes:
            next(iter(self.handshakes)).abort()
            return True
        connections = cast(set[_Protocol], self.server_state.connections)
        resting = [each for each in connections if each is not newcomer and each.rests]
        if not resting:
            return False
        counts = Counter(each.host for each in resting)
        max(resting, key=lambda each: (counts[each.host], -each.since_s)).leave()
        return True

    def protocol(self) -> _Protocol:
        """Make the protocol of a connection."""
        return _Protocol(
            self, config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen; uvicorn would give a TLS handshake a minute, and count none."""
        await super().startup(sockets=[])
        context = self.config.ssl
        factory = partial(_AdminHandshake, self, context) if context is not None else self.protocol
        for listening in sockets or []:
            server = await asyncio.get_running_loop().create_server(
                factory, sock=listening, backlog=_BACKLOG
            )
            self.servers.append(server)
        self.listens.set()

    def give_up_handshakes(self) -> None:
        """Abort what has not become a connection yet."""
        for each in list(self.handshakes):
            each.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


class AdminServer:
    """API and console of a cluster, or of several: those further ones below a path of their own.

    Args:
        options: Where it listens, and whom it lets in.
        service: Whom it asks.
        others: Further clusters, each with its ``base``.
    """

    def __init__(
        self, options: AdminOptions, service: Service, others: Sequence[Service] = ()
    ) -> None:
        self._options = options
        self._service = service
        self._others = others
        for each in (service, *others):
            each.neighbours = (service, *others)
        self._server: _Uvicorn | None = None
        self._task: asyncio.Task[None] | None = None
        self._consoles: list[Console] = []
        self._files: list[WebHdfs] = []
        #: Where it is, once it listens.
        self.url = ""

    async def start(self) -> None:
        """Listen.

        Raises:
            ConfigError: It cannot listen there, or nobody would be asked who they are.
        """
        options = self._options
        if bool(options.certificate_file) != bool(options.key_file):
            raise ConfigError("admin.certificate_file and admin.key_file go together")
        if options.ca_file and not options.certificate_file:
            raise ConfigError("admin.ca_file needs admin.certificate_file: TLS carries it")
        roles = certificate_roles(options.certificate_roles)
        if options.key_file:
            read_secret_file(options.key_file, "admin.key_file")
        if self._service.tokens is not None:
            self._service.tokens.check()
        oidc = _provider(options)
        listening = self._listen()
        host, port = listening.getsockname()[:2]
        on_loopback = is_loopback_only([host])
        if not on_loopback and self._service.tokens is None and not roles and oidc is None:
            listening.close()
            raise ConfigError(
                f"admin.host {options.host} can be reached from other machines, so it takes "
                "admin.token_file (make tokens by `quorumbook token add`), admin.ca_file with "
                "admin.certificate_roles, or admin.oidc_issuer"
            )
        if not on_loopback and not options.certificate_file:
            _log.warning("tokens cross the network in clear: set admin.certificate_file")
        names = [*options.names, options.host]
        gate = Gate(
            self._service.tokens, names=names, on_loopback=on_loopback, certificates=roles,
            port=port, is_tls=bool(options.certificate_file), oidc=oidc,
        )  # fmt: skip
        busy = ApiError(503, "busy", "too many large answers wait for their readers; try again")
        bounded = BoundedAnswers(self._application(gate), problem_response(busy))
        if oidc is not None:
            await oidc.prepare()
        await self._serve(bounded if oidc is None else with_keys(bounded, oidc), listening)
        scheme = "https" if options.certificate_file else "http"
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{scheme}://{shown}:{port}"

    def _application(self, gate: Gate) -> Starlette:
        endpoints = all_endpoints(has_files=self._options.files)
        apps = [App(each, gate, endpoints) for each in (self._service, *self._others)]
        self._consoles = [Console(app) for app in apps]
        self._files = [WebHdfs(app) for app in apps] if self._options.files else []
        routes = [console.routes() for console in self._consoles]
        for own, files in zip(routes, self._files, strict=False):
            own.extend(files.routes())
        mounted = [
            Mount(app.service.options.base, app.starlette(own))
            for app, own in zip(apps[1:], routes[1:], strict=True)
        ]
        return apps[0].starlette([*mounted, *routes[0]])

    async def _serve(self, app: Any, listening: socket.socket) -> None:
        options = self._options
        tls: dict[str, Any] = {}
        if options.certificate_file:
            tls = {"ssl_certfile": options.certificate_file, "ssl_keyfile": options.key_file}
        if options.ca_file:
            tls |= {"ssl_ca_certs": options.ca_file, "ssl_cert_reqs": ssl.CERT_OPTIONAL}
        config = uvicorn.Config(
            app,
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            # One more than may be there, which is closed.
            limit_concurrency=options.max_connections + 1,
            backlog=_BACKLOG,
            timeout_keep_alive=10,
            timeout_graceful_shutdown=3,
            h11_max_incomplete_event_size=_HEAD_BYTES,
            **tls,
        )
        try:
            config.load()
        except (OSError, ssl.SSLError) as error:
            listening.close()
            raise ConfigError(
                f"admin.certificate_file, admin.key_file or admin.ca_file: {error}"
            ) from error
        self._server = _Uvicorn(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[listening]))
        await self._server.listens.wait()

    def _listen(self) -> socket.socket:
        options = self._options
        try:
            family, kind, number, _, address = socket.getaddrinfo(
                options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listening = socket.socket(family, kind, number)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(_BACKLOG)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {options.host}:{options.port}: {error.strerror or error}; "
                "choose another port with admin.port (0: a free one)"
            ) from error
        listening.setblocking(False)
        return listening

    async def stop(self) -> None:
        """Stop listening, end what is under way, and let go of the cluster."""
        if self._server is not None and self._task is not None:
            self._server.give_up_handshakes()
            self._server.should_exit = True
            await self._task
        for console in self._consoles:
            await console.close()
        for files in self._files:
            await files.close()
        for service in (self._service, *self._others):
            await service.close()
