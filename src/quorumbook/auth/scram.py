"""SCRAM-SHA-256 (RFC 5802 and RFC 7677), both sides; pure.

    client   n,,n=NAME,r=C                      NAME with , and = as =2C and =3D
    server   r=CS,s=SALT,i=COUNT                base64; CS begins with the client's C
    client   c=biws,r=CS,p=PROOF
    server   v=SIGNATURE, or e=invalid-proof

The client proves first: a stranger learns nothing of the server by which a secret could be
guessed, only whether the guess he sent is right.  The server's signature then proves that it knows
the secret as well.  An impostor of the server gets a proof to guess on; TLS keeps impostors out.
Names and secrets are taken as they are, without SASLprep.  Channels are not bound.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping
from functools import lru_cache

from quorumbook.errors import SecurityError

#: What RFC 7677 asks for at least; secrets of files are long and drawn by lot.
ITERATIONS = 4096
_ITERATIONS_MAX = 1_000_000
_MESSAGE_BYTES_MAX = 2048
#: The server's last word to whom it does not let in.
INVALID_PROOF = b"e=invalid-proof"
_GS2_HEADER = "n,,"
_CHANNEL = base64.b64encode(_GS2_HEADER.encode()).decode()


class ScramClient:
    """The client's side of one exchange.

    Args:
        name: Who we are.
        secret: What both sides know.
        nonce: Never used before, and not to be guessed; printable, without commas.
    """

    def __init__(self, name: str, secret: str, nonce: str) -> None:
        self._secret = secret
        self._nonce = nonce
        self._bare = f"n={_escaped(name)},r={nonce}"
        self._signature = b""

    def first(self) -> bytes:
        """Return the first message."""
        return f"{_GS2_HEADER}{self._bare}".encode()

    def respond(self, challenge: bytes) -> bytes:
        """Return our proof.

        Raises:
            SecurityError: the challenge is not fit to be answered.
        """
        text = _text(challenge)
        given = _attributes(text, "rsi")
        nonce, count = given["r"], given["i"]
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise SecurityError("its challenge is for somebody else")
        # Few rounds would make our proof easy to guess on, and many would hold us up.
        if not (count.isascii() and count.isdigit() and len(count) <= 7):
            raise SecurityError("its challenge has no count of rounds")
        if not ITERATIONS <= int(count) <= _ITERATIONS_MAX:
            raise SecurityError(
                f"it asks for {count} rounds; {ITERATIONS} to {_ITERATIONS_MAX} are taken"
            )
        salted = _salted(self._secret, _binary(given["s"]), int(count))
        bare = f"c={_CHANNEL},r={nonce}"
        said = f"{self._bare},{text},{bare}".encode()
        proof = _xor(_client_key(salted), _client_signature(salted, said))
        self._signature = _server_signature(salted, said)
        return f"{bare},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, last: bytes) -> None:
        """Check that the server knows the secret, too.

        Raises:
            SecurityError: it does not prove it.
        """
        given = _binary(_attributes(_text(last), "v")["v"])
        if not self._signature or not hmac.compare_digest(given, self._signature):
            raise SecurityError("it does not prove that it knows the secret")


class ScramServer:
    """The server's side of one exchange.

    Args:
        first: The client's first message.
        nonce: Our part of the nonce, never used before, and not to be guessed.

    Raises:
        SecurityError: the message is not one.
    """

    def __init__(self, first: bytes, nonce: str) -> None:
        text = _text(first)
        if not text.startswith(_GS2_HEADER):
            raise SecurityError("its first message is not of SCRAM-SHA-256 without channel binding")
        self._bare = text.removeprefix(_GS2_HEADER)
        given = _attributes(self._bare, "nr")
        #: Who it says it is.
        self.name = _plain(given["n"])
        self._nonce = given["r"] + nonce
        self._challenge = ""

    def challenge(self, salt: bytes) -> bytes:
        """Return what the client has to answer."""
        encoded = base64.b64encode(salt).decode()
        self._challenge = f"r={self._nonce},s={encoded},i={ITERATIONS}"
        return self._challenge.encode()

    def verify(self, final: bytes, secret: str | None, salt: bytes) -> bytes:
        """Return our own proof, if the client has proven that it knows the secret.

        Args:
            final: The client's message.
            secret: None where nobody has this name.
            salt: The same as in the challenge.

        Raises:
            SecurityError: it has not proven it.
        """
        given = _attributes(_text(final), "crp")
        proof = _binary(given["p"])
        if given["c"] != _CHANNEL or given["r"] != self._nonce or secret is None:
            raise SecurityError("wrong name or secret")
        salted = _salted(secret, salt, ITERATIONS)
        said = f"{self._bare},{self._challenge},c={given['c']},r={given['r']}".encode()
        signature = _client_signature(salted, said)
        if len(proof) != len(signature):
            raise SecurityError("wrong name or secret")
        shown = hashlib.sha256(_xor(proof, signature)).digest()
        if not hmac.compare_digest(shown, hashlib.sha256(_client_key(salted)).digest()):
            raise SecurityError("wrong name or secret")
        return b"v=" + base64.b64encode(_server_signature(salted, said))


# A client has a salt of each bookie, a bookie one of each of its clients.
@lru_cache(maxsize=1024)
def _salted(secret: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", secret.encode(), salt, iterations)


def _client_key(salted: bytes) -> bytes:
    return hmac.digest(salted, b"Client Key", "sha256")


def _client_signature(salted: bytes, said: bytes) -> bytes:
    return hmac.digest(hashlib.sha256(_client_key(salted)).digest(), said, "sha256")


def _server_signature(salted: bytes, said: bytes) -> bytes:
    return hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), said, "sha256")


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def _text(message: bytes) -> str:
    if len(message) > _MESSAGE_BYTES_MAX:
        raise SecurityError("its message is too long")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise SecurityError("its message is not UTF-8 text") from None


def _attributes(text: str, names: str) -> Mapping[str, str]:
    """Return the attributes of a message, which has exactly these, in this order."""
    parts = [part.partition("=") for part in text.split(",")]
    if [name for name, _, _ in parts] != list(names) or not all(value for _, _, value in parts):
        raise SecurityError("its message is not one of SCRAM-SHA-256")
    return {name: value for name, _, value in parts}


def _binary(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise SecurityError("its message is not one of SCRAM-SHA-256") from None


def _escaped(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _plain(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")
