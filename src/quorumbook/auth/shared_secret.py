"""A name and a secret that both sides know; the secret itself never travels.

Each side proves by an HMAC-SHA256 over both sides' random numbers that it knows the secret:

    client -> bookie    version 1, name length 1, name, client's nonce 32
    bookie -> client    bookie's nonce 32, HMAC(secret, "bookie" nonces name)
    client -> bookie    HMAC(secret, "client" nonces name)
    bookie -> client    empty

An answer recorded on one connection proves nothing on another.  What follows on the connection is
neither encrypted nor signed by this: somebody in the middle can change it unless it goes over TLS.

The settings are the path of a file with one line for each name, ``name:secret`` or, for the
bookie, ``name:secret:role,role``; the client takes the first line.  Lines that begin with # don't
count.  A secret has at least 16 characters.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field

from quorumbook.auth.plugins import BookieSession, ClientSession, Peer, Principal, Step
from quorumbook.env.secret_files import read_secret_file
from quorumbook.errors import ConfigError, SecurityError

_NAME = "QuorumbookSharedSecret"
_VERSION = 1
_NONCE_BYTES = 32
_PROOF_BYTES = 32
_SECRET_LENGTH_MIN = 16


@dataclass(frozen=True, slots=True)
class _Account:
    name: str
    secret: bytes = field(repr=False)
    roles: frozenset[str]

    def proof(self, side: bytes, nonces: bytes) -> bytes:
        """Return what only who knows the secret can say."""
        return hmac.digest(self.secret, side + nonces + self.name.encode(), "sha256")


class ClientSharedSecret:
    """The client's side."""

    name = _NAME

    def __init__(self, settings: str) -> None:
        """Read the name and the secret from the first line of a file."""
        self._account = next(iter(_read(settings).values()))

    def session(self, peer: Peer) -> ClientSession:
        """Begin on a connection."""
        return _ClientSession(self._account)


class _ClientSession:
    def __init__(self, account: _Account) -> None:
        self._account = account
        self._nonce = secrets.token_bytes(_NONCE_BYTES)
        self._is_proven = False

    def start(self) -> bytes:
        name = self._account.name.encode()
        return bytes((_VERSION, len(name))) + name + self._nonce

    def answer(self, payload: bytes) -> bytes | None:
        if self._is_proven:
            return None
        nonces = self._nonce + payload[:_NONCE_BYTES]
        expected = self._account.proof(b"bookie", nonces)
        if len(payload) != _NONCE_BYTES + _PROOF_BYTES or not hmac.compare_digest(
            payload[_NONCE_BYTES:], expected
        ):
            raise SecurityError(
                f"the bookie does not know the secret of {self._account.name}; give both sides "
                "the same one"
            )
        self._is_proven = True
        return self._account.proof(b"client", nonces)


class BookieSharedSecret:
    """The bookie's side."""

    name = _NAME

    def __init__(self, settings: str) -> None:
        """Read names, secrets and roles from a file."""
        self._accounts = _read(settings)

    def identify(self, peer: Peer) -> Principal | None:
        """Wait for messages."""
        return None

    def session(self, peer: Peer) -> BookieSession:
        """Begin on a connection."""
        return _BookieSession(self._accounts)


class _BookieSession:
    def __init__(self, accounts: dict[str, _Account]) -> None:
        self._accounts = accounts
        self._account: _Account | None = None
        self._nonces = b""

    def answer(self, payload: bytes) -> Step:
        if self._account is not None:
            if not hmac.compare_digest(payload, self._account.proof(b"client", self._nonces)):
                raise SecurityError("wrong name or secret")
            return Step(principal=Principal(self._account.name, self._account.roles))
        if len(payload) < 2 or payload[0] != _VERSION:
            raise SecurityError("its message is of another version of the plug-in")
        stop = 2 + payload[1]
        if len(payload) != stop + _NONCE_BYTES:
            raise SecurityError("its message has a wrong length")
        name = payload[2:stop].decode("utf-8", "replace")
        # An unknown name is answered like a known one, and fails at its proof.
        nobody = _Account(name, secrets.token_bytes(32), frozenset())
        self._account = self._accounts.get(name, nobody)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        self._nonces = payload[stop:] + nonce
        return Step(nonce + self._account.proof(b"bookie", self._nonces))


def _read(path: str) -> dict[str, _Account]:
    if not path:
        raise ConfigError("auth_settings must name the file with names and secrets")
    try:
        text = read_secret_file(path, "auth_settings").decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None
    lines = [line.strip() for line in text.splitlines()]
    accounts: dict[str, _Account] = {}
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        name, _, rest = line.partition(":")
        secret, _, roles = rest.partition(":")
        if not 0 < len(name.encode()) < 256 or len(secret) < _SECRET_LENGTH_MIN:
            raise ConfigError(
                f"{path} line {number} is not name:secret with a secret of at least "
                f"{_SECRET_LENGTH_MIN} characters"
            )
        listed = frozenset(role.strip() for role in roles.split(",") if role.strip())
        accounts[name] = _Account(name, secret.encode(), listed)
    if not accounts:
        raise ConfigError(f"{path} names nobody; write a line name:secret")
    return accounts
