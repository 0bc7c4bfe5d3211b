"""What a connection may do before it has switched to TLS and said who it is.

A bookie with TLS or authentication gives each connection an ``AdmissionGate``, which looks at every
request first and is thrown away when the connection has proven all that is asked of it:

    request          answer while the gate is shut
    START_TLS        OK, and the next byte belongs to the handshake; EBADREQ without TLS here
    AUTH             the plug-in's; EUA to another plug-in's (v2: the connection ends)
    anything else    EUA, and nothing is carried out

A shut gate also means small frames and a time limit (``connection.py``).  A gate that only waits
whether START_TLS comes stands open: the first other request passes and ends it, so that TLS
never begins on a connection with requests under way.  What was said before TLS counts nothing
after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from quorumbook.auth.plugins import (
    AUTH_DISABLED,
    BookieSession,
    Peer,
    Principal,
    load_bookie_plugin,
)
from quorumbook.env import Env, TlsContexts, explain, logger
from quorumbook.errors import ConfigError, RemoteProtocolError, SecurityError
from quorumbook.protocol import answers
from quorumbook.protocol.requests import Auth, Request, StartTLS
from quorumbook.protocol.status import Status

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    from quorumbook.bookie.metrics import BookieMetrics
    from quorumbook.bookie.options import BookieOptions

_log = logger("bookie.admission")


class Applicant(Protocol):
    """A connection on its way in."""

    #: Where it comes from; and what messages call it.
    address: str
    peer: str
    #: None when it may do everything.
    gate: AdmissionGate | None

    @property
    def is_closing(self) -> bool:
        """Tell whether nothing that it says counts any more."""

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """What its peer showed under TLS."""

    def answer(self, data: bytes) -> None:
        """Send an answer."""

    def limit_frames(self, size_bytes: int) -> None:
        """Refuse larger frames from now on."""

    def start_tls(self, context: ssl.SSLContext, done: Callable[[Exception | None], None]) -> None:
        """Go on with TLS from the next byte on."""

    def is_known_as(self, name: str) -> None:
        """Take the name that its peer has proven."""

    def close(self) -> None:
        """Send what is there, then close."""


class Admission:
    """What this bookie asks of connections."""

    def __init__(self, env: Env, options: BookieOptions, metrics: BookieMetrics) -> None:
        """Load the plug-in and the certificates.

        Raises:
            ConfigError: one of them cannot be used, or they contradict each other.
        """
        self.metrics = metrics
        self.options = options
        self.clock = env.clock
        self.contexts = (
            TlsContexts(options.tls, env.clock, server_side=True) if options.tls else None
        )
        self.needs_tls = options.tls is not None and options.tls.require
        self.plugin = load_bookie_plugin(options.auth_plugin, options.auth_settings)
        self._roles = frozenset(options.authorized_roles)
        if self._roles and self.plugin is None:
            raise ConfigError("bookie.authorized_roles needs a bookie.auth_plugin that tells roles")
        if getattr(self.plugin, "needs_authorized_roles", False) and not self._roles:
            raise ConfigError(
                f"bookie.auth_plugin {options.auth_plugin} lets in by role: name the roles that "
                "may come in with bookie.authorized_roles"
            )

    def gate(self, connection: Applicant) -> AdmissionGate | None:
        """Return the gate of a new connection, None if it need not prove anything."""
        if self.contexts is None and self.plugin is None:
            return None
        return AdmissionGate(self, connection)

    def authorize(self, principal: Principal) -> None:
        """Refuse who has none of the roles that may come in."""
        if self._roles and not principal.roles & self._roles:
            roles = ", ".join(sorted(principal.roles)) or "no role"
            raise SecurityError(
                f"{principal.name} has {roles}, and bookie.authorized_roles names only "
                + ", ".join(sorted(self._roles))
            )


class AdmissionGate:
    """One connection on its way in."""

    __slots__ = ("_admission", "_by_ns", "_connection", "_is_encrypted", "_principal", "_session")

    def __init__(self, admission: Admission, connection: Applicant) -> None:
        self._admission = admission
        self._connection = connection
        self._is_encrypted = False
        self._principal: Principal | None = None
        self._session: BookieSession | None = None
        #: When it must stand open; 0 if it does.
        self._by_ns = 0
        self._identify(Peer(connection.address))
        if self.is_shut:
            self._limit_time()
            connection.limit_frames(admission.options.max_login_frame_bytes)

    @property
    def is_shut(self) -> bool:
        """Tell whether something is still to be proven."""
        admission = self._admission
        return (admission.plugin is not None and self._principal is None) or (
            admission.needs_tls and not self._is_encrypted
        )

    def is_overdue(self, now_ns: int) -> bool:
        """Tell whether the connection has had its time."""
        return 0 < self._by_ns < now_ns

    def admit(self, requests: list[Request], unread_bytes: int) -> list[Request]:
        """Return those requests of a chunk that may be carried out; answer the others.

        Args:
            requests: The chunk.
            unread_bytes: What came behind them, an incomplete frame.

        Raises:
            RemoteProtocolError: something came behind START_TLS in the clear.
        """
        contexts = self._admission.contexts
        for index, request in enumerate(requests):
            if self._connection.is_closing:
                break
            if isinstance(request, StartTLS) and contexts is not None and not self._is_encrypted:
                if unread_bytes or index + 1 < len(requests):
                    # Somebody in between may have put it there, to be taken for the client's.
                    raise RemoteProtocolError("bytes in the clear follow a START_TLS")
                self._start_tls(request, contexts)
            elif isinstance(request, Auth) and self._waits_for_auth:
                self._authenticate(request)
            elif self.is_shut:
                self._refuse(request)
            else:
                self._connection.gate = None
                return requests[index:]
        return []

    @property
    def _waits_for_auth(self) -> bool:
        return self._admission.plugin is not None and self._principal is None

    def _refuse(self, request: Request) -> None:
        self._admission.metrics.requests_refused += 1
        if isinstance(request, Auth):
            answer = answers.auth_answer(request, Status.OK, AUTH_DISABLED, b"")
        elif isinstance(request, StartTLS):
            answer = answers.start_tls_answer(request, Status.BAD_REQUEST)
        elif request.version == 3:
            answer = answers.bare_answer(request, Status.UNAUTHORIZED)
        else:
            answer = answers.error_answer(request, Status.UNAUTHORIZED)
        self._connection.answer(answer)

    # Authentication

    def _authenticate(self, request: Auth) -> None:
        plugin = self._admission.plugin
        assert plugin is not None
        connection = self._connection
        if request.plugin != plugin.name:
            self._refused(f"it authenticates by {request.plugin!r:.80}, not by {plugin.name}")
            self._say_no(request, is_end=request.version == 2)
            return
        try:
            if self._session is None:
                self._session = plugin.session(self._peer())
            step = self._session.answer(request.payload)
            if step.principal is not None:
                self._admission.authorize(step.principal)
        except SecurityError as error:
            self._refused(str(error))
            self._say_no(request, is_end=True)
            return
        except Exception as error:
            # Its text may hold what the client sent.
            self._refused(f"the plug-in failed with {type(error).__name__}")
            self._say_no(request, is_end=True)
            return
        if step.refusal:
            self._refused(step.refusal)
        if step.payload is not None and not (step.refusal and request.version == 3):
            connection.answer(answers.auth_answer(request, Status.OK, plugin.name, step.payload))
        if step.refusal:
            self._say_no(request, is_end=True)
        if step.principal is not None:
            self._is_known_as(step.principal)

    def _say_no(self, request: Auth, *, is_end: bool) -> None:
        if request.version == 3:
            self._connection.answer(answers.bare_answer(request, Status.UNAUTHORIZED))
        if is_end:
            self._connection.close()

    def _is_known_as(self, principal: Principal) -> None:
        _log.info("the connection of %s is %s's", self._connection.address, principal.name)
        self._connection.is_known_as(principal.name)
        self._principal = principal
        self._let_in()

    def _identify(self, peer: Peer) -> None:
        plugin = self._admission.plugin
        if plugin is None:
            return
        try:
            principal = plugin.identify(peer)
            if principal is not None:
                self._admission.authorize(principal)
                self._is_known_as(principal)
        except SecurityError as error:
            self._refused(str(error))
        except Exception as error:
            self._refused(f"the plug-in failed with {type(error).__name__}")

    def _refused(self, why: str) -> None:
        self._admission.metrics.connections_unauthorized += 1
        _log.warning("the connection of %s is not let in: %s", self._connection.peer, why)

    # TLS

    def _start_tls(self, request: StartTLS, contexts: TlsContexts) -> None:
        try:
            if contexts.refresh():
                _log.info("the certificates were loaded again")
        except ConfigError as error:
            self._admission.metrics.certificate_errors += 1
            _log.error("the certificates stay as they were: %s", error)
        # All in one step of the loop: not a byte of the handshake is taken for a frame.
        self._connection.answer(answers.start_tls_answer(request, Status.OK))
        self._limit_time()
        self._connection.start_tls(contexts.current(), self._tls_done)

    def _tls_done(self, error: Exception | None) -> None:
        if error is not None:
            self._refused(explain(error))
            return
        self._is_encrypted = True
        self._principal = self._session = None
        self._identify(self._peer())
        self._let_in()

    def _limit_time(self) -> None:
        limit_s = self._admission.options.login_timeout_s
        self._by_ns = self._admission.clock.now_ns() + int(limit_s * 1e9)

    def _let_in(self) -> None:
        """Once everything is proven: no small frames and no time limit any more."""
        if not self.is_shut:
            self._by_ns = 0
            self._connection.limit_frames(self._admission.options.max_frame_bytes)

    def _peer(self) -> Peer:
        if not self._is_encrypted:
            return Peer(self._connection.address)
        return Peer(self._connection.address, True, self._connection.certificate)
