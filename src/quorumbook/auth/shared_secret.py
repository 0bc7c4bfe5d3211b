"""A name and a secret that both sides know; the secret itself never travels.

The messages are those of SCRAM-SHA-256 (``scram.py``): the client proves first, then the bookie.
What follows on the connection is neither encrypted nor signed by this: somebody in the middle can
change it unless it goes over TLS.

The settings are the path of a file of names and secrets (``accounts.py``), of which the client
takes the first line.  A secret has at least 16 characters.
"""

from __future__ import annotations

import hmac
import secrets

from quorumbook.auth.accounts import Account, Accounts
from quorumbook.auth.plugins import BookieSession, ClientSession, Peer, Principal, Step
from quorumbook.auth.scram import INVALID_PROOF, ScramClient, ScramServer
from quorumbook.errors import SecurityError

_NAME = "QuorumbookSharedSecret"
_SECRET_LENGTH_MIN = 16
_NONCE_BYTES = 24


class ClientSharedSecret:
    """The client's side."""

    name = _NAME

    def __init__(self, settings: str) -> None:
        """Read the name and the secret from the first line of a file."""
        self._accounts = Accounts(settings, secret_length_min=_SECRET_LENGTH_MIN)

    def session(self, peer: Peer) -> ClientSession:
        """Begin on a connection."""
        return _ClientSession(self._accounts.first)


class _ClientSession:
    def __init__(self, account: Account) -> None:
        self._name = account.name
        self._scram = ScramClient(account.name, account.secret, _nonce())
        self._has_answered = False

    def start(self) -> bytes:
        return self._scram.first()

    def answer(self, payload: bytes) -> bytes | None:
        if not self._has_answered:
            message = self._scram.respond(payload)
            self._has_answered = True
            return message
        try:
            self._scram.verify(payload)
        except SecurityError:
            raise SecurityError(
                f"the bookie does not know the secret of {self._name}; give both sides the same one"
            ) from None
        return None


class BookieSharedSecret:
    """The bookie's side."""

    name = _NAME

    def __init__(self, settings: str) -> None:
        """Read names, secrets and roles from a file."""
        self._accounts = Accounts(settings, secret_length_min=_SECRET_LENGTH_MIN)
        self._salt_key = secrets.token_bytes(32)

    def identify(self, peer: Peer) -> Principal | None:
        """Wait for messages."""
        return None

    def session(self, peer: Peer) -> BookieSession:
        """Begin on a connection."""
        return _BookieSession(self._accounts, self._salt_key)


class _BookieSession:
    def __init__(self, accounts: Accounts, salt_key: bytes) -> None:
        self._accounts = accounts
        self._salt_key = salt_key
        self._scram: ScramServer | None = None
        self._salt = b""

    def answer(self, payload: bytes) -> Step:
        if self._scram is None:
            scram = ScramServer(payload, _nonce())
            # An unknown name has a salt like a known one, and fails at its proof.
            self._salt = hmac.digest(self._salt_key, scram.name.encode(), "sha256")[:16]
            self._scram = scram
            return Step(scram.challenge(self._salt))
        account = self._accounts.get(self._scram.name)
        try:
            proof = self._scram.verify(payload, account.secret if account else None, self._salt)
        except SecurityError as error:
            return Step(INVALID_PROOF, refusal=str(error))
        assert account is not None  # without one nothing is verified
        return Step(proof, Principal(account.name, account.roles))


def _nonce() -> str:
    return secrets.token_urlsafe(_NONCE_BYTES)
