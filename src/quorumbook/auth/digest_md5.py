"""SASL's mechanism DIGEST-MD5 (RFC 2831), both sides; pure.

    server   realm="R",nonce="N",qop="auth",charset=utf-8,algorithm=md5-sess
    client   username="U",realm="R",nonce="N",cnonce="C",nc=00000001,qop=auth,
             digest-uri="SERVICE/HOST",response=HEX,charset=utf-8[,authzid="U"]
    server   rspauth=HEX

Both prove that they know the password, each for a nonce of the other's, so what somebody recorded
earlier proves nothing.  Nobody is let in under another name than he has proven.  The mechanism is
old, and whoever listens can guess at weak passwords: use it over TLS.  ZooKeeper speaks it
(``metadata/zookeeper``), and so do the peer's bookies (``sasl.py``).
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable

from quorumbook.errors import SecurityError

_NONCE_COUNT = "00000001"
#: RFC 2831, 2.1.1 and 2.1.2.
_CHALLENGE_BYTES_MAX = 2048
_RESPONSE_BYTES_MAX = 4096
_DIRECTIVE = re.compile(r'[\s,]*([\w-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))\s*(?:,|$)')


class DigestMd5Client:
    """The client's side of one exchange.

    Args:
        user: Who we are.
        password: What both sides know.
        service: The service and its host, as the server calls itself: ``zookeeper/zk-sasl-md5``.
        nonce: Never used before, and not to be guessed.
    """

    def __init__(self, user: str, password: str, service: str, nonce: str) -> None:
        self._user = user
        self._password = password
        self._service = service
        self._nonce = nonce
        self._proof = ""

    def respond(self, challenge: bytes) -> bytes:
        """Return the answer to the server's challenge (RFC 2831, 2.1.2).

        Raises:
            SecurityError: it cannot be answered.
        """
        given = _directives(challenge, _CHALLENGE_BYTES_MAX)
        nonce, realm = given.get("nonce", ""), given.get("realm", "")
        if not nonce or given.get("algorithm") != "md5-sess":
            raise SecurityError("its SASL challenge is not valid DIGEST-MD5")
        if "auth" not in re.split(r"[\s,]+", given.get("qop", "auth")):
            raise SecurityError("its SASL asks for more than authentication")
        is_utf8 = given.get("charset", "").lower() == "utf-8"
        secret = _secret(self._user, realm, self._password, is_utf8=is_utf8)
        session = _session(secret, nonce, self._nonce)
        self._proof = _proof(session, nonce, self._nonce, self._service, "")
        response = _proof(session, nonce, self._nonce, self._service, "AUTHENTICATE")
        answer = (
            f"username={_quoted(self._user)},realm={_quoted(realm)},nonce={_quoted(nonce)},"
            f'cnonce="{self._nonce}",nc={_NONCE_COUNT},qop=auth,'
            f'digest-uri="{self._service}",response={response}'
        )
        return f"{answer},charset=utf-8".encode() if is_utf8 else answer.encode("latin-1")

    def verify(self, last: bytes) -> None:
        """Check that the server knows the password, too (RFC 2831, 2.1.3).

        Raises:
            SecurityError: it does not prove it.
        """
        given = _directives(last, _CHALLENGE_BYTES_MAX).get("rspauth", "")
        if not self._proof or not hmac.compare_digest(given.encode(), self._proof.encode()):
            raise SecurityError("it does not prove that it knows our password: it is an impostor's")


class DigestMd5Server:
    """The server's side of one exchange.

    Args:
        service: What we call ourselves; clients must name it: ``bookkeeper/bookkeeper``.
        realm: Where our users are.
        nonce: Never used before, and not to be guessed.
        password_of: Returns a user's password, or None.
    """

    def __init__(
        self, service: str, realm: str, nonce: str, password_of: Callable[[str], str | None]
    ) -> None:
        self._service = service
        self._realm = realm
        self._nonce = nonce
        self._password_of = password_of

    def challenge(self) -> bytes:
        """Return the first message (RFC 2831, 2.1.1)."""
        return (
            f'realm="{self._realm}",nonce="{self._nonce}",qop="auth",'
            "charset=utf-8,algorithm=md5-sess"
        ).encode()

    def verify(self, response: bytes) -> tuple[str, bytes]:
        """Return who this is, and our own proof (RFC 2831, 2.1.2 and 2.1.3).

        Raises:
            SecurityError: it is not proven.
        """
        given = _directives(response, _RESPONSE_BYTES_MAX)
        user, client_nonce = given.get("username", ""), given.get("cnonce", "")
        said = {
            "realm": self._realm,
            "nonce": self._nonce,
            "nc": _NONCE_COUNT,
            "qop": "auth",
            "digest-uri": self._service,
        }
        if not user or not client_nonce or given.get("charset") != "utf-8":
            raise SecurityError("its message is not valid DIGEST-MD5 with charset=utf-8")
        for name, value in said.items():
            if given.get(name, "auth" if name == "qop" else "") != value:
                raise SecurityError(f"its DIGEST-MD5 says another {name} than we asked for")
        if given.get("authzid", user) != user:
            raise SecurityError("it wants to be let in under another name than its own")
        password = self._password_of(user)
        # An unknown user costs the time of a known one, and fails at his proof.
        secret = _secret(user, self._realm, password or "", is_utf8=True)
        session = _session(secret, self._nonce, client_nonce, given.get("authzid", ""))
        proofs = [
            _proof(session, self._nonce, client_nonce, self._service, method)
            for method in ("AUTHENTICATE", "")
        ]
        is_right = hmac.compare_digest(given.get("response", "").encode(), proofs[0].encode())
        if not is_right or password is None:
            raise SecurityError("wrong name or password")
        return user, f"rspauth={proofs[1]}".encode()


def _secret(user: str, realm: str, password: str, *, is_utf8: bool) -> bytes:
    return _md5(b":".join(_hashed(each, is_utf8) for each in (user, realm, password))).digest()


def _session(secret: bytes, nonce: str, client_nonce: str, authorized_as: str = "") -> str:
    name = f":{authorized_as}" if authorized_as else ""
    return _md5(secret + f":{nonce}:{client_nonce}{name}".encode()).hexdigest()


def _proof(session: str, nonce: str, client_nonce: str, service: str, method: str) -> str:
    request = _md5(f"{method}:{service}".encode()).hexdigest()
    words = (session, nonce, _NONCE_COUNT, client_nonce, "auth", request)
    return _md5(":".join(words).encode()).hexdigest()


def _directives(text: bytes, size_bytes_max: int) -> dict[str, str]:
    """Return the names and values of a message; none if it is not of the form."""
    if len(text) > size_bytes_max:
        return {}
    decoded = text.decode("utf-8", "replace")
    found: dict[str, str] = {}
    offset = 0
    while offset < len(decoded):
        match = _DIRECTIVE.match(decoded, offset)
        if match is None:
            return {}
        name, quoted, plain = match.groups()
        name = name.lower()
        if name != "realm" and name in found:
            return {}
        # Of several realms the first is as good as any: servers name one.
        found.setdefault(name, plain or re.sub(r"\\(.)", r"\1", quoted))
        offset = match.end()
    return found


def _hashed(text: str, is_utf8: bool) -> bytes:
    # What fits into Latin-1 is hashed in it, whatever goes over the wire.
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        if is_utf8:
            return text.encode()
    raise SecurityError("its SASL takes no such letters in names and passwords")


def _quoted(text: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _md5(data: bytes) -> hashlib._Hash:
    # The mechanism has no other hash; without the flag some builds refuse it.
    return hashlib.md5(data, usedforsecurity=False)
