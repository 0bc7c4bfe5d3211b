"""SASL as the peer's bookies do it (``SASLBookieAuthProviderFactory``), without a JAAS file.

What travels is SASL's own: ``digest_md5.py`` and ``kerberos.py`` show it.  The peer's messages do
not say which mechanism is meant, so a bookie has one of the two:

    sasl-digest-md5   settings: a file of names and passwords (``accounts.py``); who stands there
                      may come in
    sasl-kerberos     settings: principal=NAME/HOST@REALM keytab=FILE, at a bookie
                      allowed=REGEX for the principals that may come in (as the peer's
                      ``saslJaasClientAllowedIds``), at a client service=NAME for the bookies'

A principal's first part is its role: ``writer/host@REALM`` has the role ``writer``.  A client of
the peer sends an empty message behind the last of DIGEST-MD5, and its bookie does not answer the
last of Kerberos; ours does the same, and takes both.
"""

from __future__ import annotations

import re
import secrets

from quorumbook.auth.accounts import Accounts
from quorumbook.auth.digest_md5 import DigestMd5Client, DigestMd5Server
from quorumbook.auth.kerberos import KerberosClient, KerberosIdentity, KerberosServer
from quorumbook.auth.plugins import (
    BookieSession,
    ClientSession,
    LastMessage,
    Peer,
    Principal,
    Step,
)
from quorumbook.errors import ConfigError, SecurityError

_NAME = "sasl"
#: What the peer calls itself, whatever its host is.
_SERVICE = "bookkeeper/bookkeeper"
_REALM = "bookkeeper"


class ClientDigestMd5:
    """The client's side, by name and password."""

    name = _NAME
    waits_for_others = False

    def __init__(self, settings: str) -> None:
        """Read the name and the password from the first line of a file."""
        self._accounts = Accounts(settings)

    def session(self, peer: Peer) -> ClientSession:
        """Begin on a connection."""
        account = self._accounts.first
        exchange = DigestMd5Client(account.name, account.secret, _SERVICE, secrets.token_hex(16))
        return _ClientDigestMd5Session(exchange)


class _ClientDigestMd5Session:
    def __init__(self, exchange: DigestMd5Client) -> None:
        self._exchange = exchange
        self._has_responded = False

    def start(self) -> bytes:
        return b""

    def answer(self, payload: bytes) -> bytes | None:
        if not self._has_responded:
            self._has_responded = True
            return self._exchange.respond(payload)
        self._exchange.verify(payload)
        return None


class BookieDigestMd5:
    """The bookie's side, by names and passwords."""

    name = _NAME

    def __init__(self, settings: str) -> None:
        """Read names, passwords and roles from a file."""
        self._accounts = Accounts(settings)

    def identify(self, peer: Peer) -> Principal | None:
        """Wait for messages."""
        return None

    def session(self, peer: Peer) -> BookieSession:
        """Begin on a connection."""
        return _BookieDigestMd5Session(self._accounts)


class _BookieDigestMd5Session:
    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts
        self._exchange: DigestMd5Server | None = None

    def answer(self, payload: bytes) -> Step:
        if self._exchange is None:
            nonce = secrets.token_urlsafe(32)
            self._exchange = DigestMd5Server(_SERVICE, _REALM, nonce, self._password_of)
            return Step(self._exchange.challenge())
        name, proof = self._exchange.verify(payload)
        account = self._accounts.get(name)
        return Step(proof, Principal(name, account.roles if account else frozenset()))

    def _password_of(self, name: str) -> str | None:
        account = self._accounts.get(name)
        return account.secret if account else None


class ClientKerberos:
    """The client's side, by a ticket."""

    name = _NAME
    waits_for_others = True

    def __init__(self, settings: str) -> None:
        """Take the principal, its keytab and the bookies' service; all may be left out."""
        self._identity = KerberosIdentity.parse(settings, ("principal", "keytab", "service"))
        self._identity.check()

    def session(self, peer: Peer) -> ClientSession:
        """Begin on a connection."""
        return _ClientKerberosSession(KerberosClient(self._identity, peer.address))


class _ClientKerberosSession:
    def __init__(self, exchange: KerberosClient) -> None:
        self._exchange = exchange

    def start(self) -> bytes:
        return self._exchange.respond()

    def answer(self, payload: bytes) -> bytes:
        message = self._exchange.respond(payload)
        return LastMessage(message) if self._exchange.is_complete else message


class BookieKerberos:
    """The bookie's side, by its keytab."""

    name = _NAME

    def __init__(self, settings: str) -> None:
        """Take the principal, its keytab and who is allowed."""
        self._identity = KerberosIdentity.parse(settings, ("principal", "keytab", "allowed"))
        self._identity.check()
        try:
            self._allowed = re.compile(self._identity.allowed)
        except re.error as error:
            raise ConfigError(f"allowed={self._identity.allowed}: {error}") from None

    def identify(self, peer: Peer) -> Principal | None:
        """Wait for messages."""
        return None

    def session(self, peer: Peer) -> BookieSession:
        """Begin on a connection."""
        return _BookieKerberosSession(KerberosServer(self._identity), self._allowed)


class _BookieKerberosSession:
    def __init__(self, exchange: KerberosServer, allowed: re.Pattern[str]) -> None:
        self._exchange = exchange
        self._allowed = allowed

    def answer(self, payload: bytes) -> Step:
        message = self._exchange.respond(payload)
        name = self._exchange.principal
        if not name:
            return Step(message)
        if not self._allowed.fullmatch(name):
            raise SecurityError(f"{name} is not one of allowed={self._allowed.pattern}")
        return Step(None, Principal(name, frozenset((re.split("[/@]", name)[0],))))
