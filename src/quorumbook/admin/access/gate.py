"""Which requests are let in, and as whom.

``Host``      names this server, or no web page of a name that points here speaks to it
``Origin``    browsers send it: a change comes from a page of ours, or is refused
who           a certificate of a client, a bearer token of ours or of an OpenID Connect provider,
              or a session of the console, which was begun by either; where none of these is asked
              for, whoever is on this machine, on loopback
cookie        a change that is made by it carries the session's second secret as well, which no
              other page knows
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quorumbook.admin.access.oidc import OidcProvider, is_jwt
from quorumbook.admin.access.roles import ANYBODY, Grant, Who
from quorumbook.admin.access.tokens import TokenFile
from quorumbook.bookie.http.access import HttpAccess
from quorumbook.env import logger
from quorumbook.errors import ConfigError

_COOKIE = "quorumbook_session"
CSRF_HEADER = "x-csrf-token"
_log = logger("admin.gate")
_SESSION_S = 12 * 3600.0
_SESSIONS_MAX = 10_000
#: A provider that takes somebody's role away does not tell us.
_OIDC_SESSION_S = 3600.0
_SAFE = ("GET", "HEAD", "OPTIONS")


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a request is not let in."""

    status: int
    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class GatedRequest:
    """What decides of a request."""

    method: str
    #: Names in lower case.
    headers: Sequence[tuple[str, str]]
    #: The address of ours that it came to.
    reached: str
    scheme: str = "http"
    cookies: Mapping[str, str] = field(default_factory=dict)
    #: The common name of a client's certificate that was verified.
    certificate: str | None = None
    #: What a form sent, if it is one.
    csrf: str | None = field(default=None, repr=False)

    def header(self, name: str) -> str | None:
        """Return a header's value; None if there is none."""
        return dict(self.headers).get(name)


@dataclass(slots=True)
class ConsoleSession:
    """Somebody's browser."""

    #: Empty where nothing is asked for.
    token: str = field(repr=False)
    csrf: str = field(repr=False)
    ends_at: float
    #: For whom a provider vouched.
    who: Who | None = None


class Gate:
    """Lets requests in.

    Args:
        tokens: The tokens; None: whoever is on this machine is let in.
        names: Further names of this server.
        on_loopback: It listens on loopback alone.
        certificates: What clients with certificates may do, by common name.
        port: Where it listens.
        is_tls: It speaks TLS itself.
        oidc: A provider whose word counts.
    """

    def __init__(
        self,
        tokens: TokenFile | None,
        *,
        names: Sequence[str] = (),
        on_loopback: bool = True,
        certificates: Mapping[str, Grant] | None = None,
        port: int = 0,
        is_tls: bool = False,
        oidc: OidcProvider | None = None,
    ) -> None:
        self.tokens = tokens
        self.oidc = oidc
        self.on_loopback = on_loopback
        self._hosts = HttpAccess(names=names)
        self._certificates = dict(certificates or {})
        self._sessions: dict[str, ConsoleSession] = {}
        #: Browsers share cookies between the ports of a host, so the name tells servers apart.  By
        #: the prefix a browser takes it over TLS alone.
        self.cookie = f"{'__Host-' if is_tls else ''}{_COOKIE}_{port}"

    @property
    def is_open(self) -> bool:
        """Tell whether nothing is asked for."""
        return self.tokens is None and not self._certificates and self.oidc is None

    def judge(self, request: GatedRequest) -> Who | Denial:
        """Return who asks, or why it is not let in."""
        denial = self.host_denial(request)
        if denial is not None:
            return denial
        try:
            return self._who(request)
        except ConfigError as error:
            return _unreadable(error)

    def host_denial(self, request: GatedRequest) -> Denial | None:
        """Return why a request is none of ours, whoever sends it."""
        refusal = self._hosts.refusal(
            "GET", request.headers, request.reached, on_loopback=self.on_loopback
        )
        if refusal is not None:
            detail = refusal.reason.replace("http.names", "admin.names")
            return Denial(refusal.status, "wrong-host", detail)
        origin = request.header("origin")
        if request.method in _SAFE or origin is None:
            return None
        if origin == f"{request.scheme}://{request.header('host')}":
            return None
        return Denial(403, "foreign-origin", "the request comes from a page of another server")

    def _who(self, request: GatedRequest) -> Who | Denial:
        if request.certificate is not None and request.certificate in self._certificates:
            grant = self._certificates[request.certificate]
            return Who.by(request.certificate, "certificate", [grant])
        kind, _, secret = (request.header("authorization") or "").partition(" ")
        if secret:
            known = None
            if kind.lower() == "bearer":
                known = self._of_bearer(secret.strip())
            if known is None and not self.is_open:
                return _stranger("the token is not known, was revoked, or has expired")
            return known or self._anybody()
        session = self.session(request.cookies)
        if session is not None:
            who = self._of_session(session)
            if who is None:
                return _stranger("the session's token was revoked, or has expired")
            if request.method not in _SAFE and not _is_same(
                request.csrf or request.header(CSRF_HEADER), session.csrf
            ):
                return Denial(
                    403, "csrf", "the request lacks the page's secret; load the page again"
                )
            return who
        if self.is_open:
            return self._anybody(request)
        return _stranger("send `Authorization: Bearer TOKEN`; `quorumbook token add` makes one")

    def _of_bearer(self, secret: str) -> Who | None:
        if self.oidc is not None and is_jwt(secret):
            return self.oidc.who(secret)
        return self.tokens.who(secret) if self.tokens is not None else None

    def _anybody(self, request: GatedRequest | None = None) -> Who | Denial:
        if not self.on_loopback:
            return _stranger("this server listens off loopback and has no tokens")
        # A browser has an origin, and then the page's secret: the session was lost.
        if request and request.method not in _SAFE and request.header("origin") is not None:
            return Denial(403, "csrf", "the request lacks the page's secret; load the page again")
        return ANYBODY

    def _of_session(self, session: ConsoleSession) -> Who | None:
        if session.who is not None:
            return session.who
        if not session.token:
            return ANYBODY if self.is_open and self.on_loopback else None
        return self.tokens.who(session.token) if self.tokens is not None else None

    # Sessions ------------------------------------------------------------------------------

    def session(self, cookies: Mapping[str, str]) -> ConsoleSession | None:
        """Return the session of a browser."""
        found = self._sessions.get(cookies.get(self.cookie, ""))
        if found is None or found.ends_at < time.monotonic():
            return None
        return found

    def begin(self, token: str) -> str | Denial:
        """Begin a session and return its cookie, or why not."""
        try:
            is_known = self.tokens is not None and self.tokens.who(token) is not None
        except ConfigError as error:
            return _unreadable(error)
        if not is_known and (token or not self.is_open):
            return _stranger("This token is not known, was revoked, or has expired.")
        return self._begun(token, None, _SESSION_S)

    def begin_as(self, who: Who) -> str:
        """Begin a session of somebody for whom a provider vouched, and return its cookie."""
        return self._begun("", who, _OIDC_SESSION_S)

    def _begun(self, token: str, who: Who | None, lasts_s: float) -> str:
        now = time.monotonic()
        self._sessions = {key: each for key, each in self._sessions.items() if each.ends_at > now}
        while len(self._sessions) >= _SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        key = secrets.token_urlsafe(32)
        csrf = secrets.token_urlsafe(32)
        self._sessions[key] = ConsoleSession(token, csrf, now + lasts_s, who)
        return key

    def end(self, cookies: Mapping[str, str]) -> None:
        """End a session."""
        self._sessions.pop(cookies.get(self.cookie, ""), None)


def _unreadable(error: ConfigError) -> Denial:
    # Where the file is, and whose, is none of a stranger's business.
    _log.error("nobody is let in by a token: %s", error)
    return Denial(
        503, "server-misconfigured", "this server cannot use its tokens; its log says why"
    )


def _stranger(detail: str) -> Denial:
    return Denial(401, "not-authenticated", detail)


def _is_same(given: str | None, expected: str) -> bool:
    return hmac.compare_digest((given or "").encode("utf-8", "replace"), expected.encode())
