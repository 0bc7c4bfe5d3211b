"""SASL's mechanism DIGEST-MD5 (RFC 2831) as a ZooKeeper with a JAAS section ``Server`` asks; pure.

    server   nonce="N",realm="R",qop="auth",charset=utf-8,algorithm=md5-sess
    client   username="U",realm="R",nonce="N",cnonce="C",nc=00000001,qop=auth,
             digest-uri="zookeeper/zk-sasl-md5",response=HEX,charset=utf-8
    server   rspauth=HEX

Both prove that they know the password, and the server proves it for a nonce of ours, so what
somebody recorded earlier proves nothing.  When this is asked is the session's business.
"""

from __future__ import annotations

import hashlib
import hmac
import re

from quorumbook.errors import MetadataUnauthorizedError

#: Service and host name that every ZooKeeper gives itself here.
_DIGEST_URI = "zookeeper/zk-sasl-md5"
_NONCE_COUNT = "00000001"
_SIZE_BYTES_MAX = 2048
_DIRECTIVE = re.compile(r'[\s,]*([\w-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))\s*(?:,|$)')


class DigestMd5:
    """One exchange.

    Args:
        client_nonce: Never used before, and not to be guessed.
    """

    def __init__(self, user: str, password: str, client_nonce: str) -> None:
        self._user = user
        self._password = password
        self._client_nonce = client_nonce
        self._proof = ""

    def respond(self, challenge: bytes) -> bytes:
        """Return the answer to the server's challenge (RFC 2831, 2.1.2).

        Raises:
            MetadataUnauthorizedError: it cannot be answered.
        """
        given = _directives(challenge)
        nonce, realm = given.get("nonce", ""), given.get("realm", "")
        if not nonce or given.get("algorithm") != "md5-sess":
            raise MetadataUnauthorizedError("ZooKeeper's SASL challenge is none of DIGEST-MD5")
        if "auth" not in re.split(r"[\s,]+", given.get("qop", "auth")):
            raise MetadataUnauthorizedError("ZooKeeper's SASL asks for more than authentication")
        is_utf8 = given.get("charset", "").lower() == "utf-8"
        secret = b":".join(_hashed(each, is_utf8) for each in (self._user, realm, self._password))
        nonces = f":{nonce}:{self._client_nonce}".encode()
        session = _md5(_md5(secret).digest() + nonces).hexdigest()

        def proof(method: str) -> str:
            request = _md5(f"{method}:{_DIGEST_URI}".encode()).hexdigest()
            words = (session, nonce, _NONCE_COUNT, self._client_nonce, "auth", request)
            return _md5(":".join(words).encode()).hexdigest()

        self._proof = proof("")
        answer = (
            f"username={_quoted(self._user)},realm={_quoted(realm)},nonce={_quoted(nonce)},"
            f'cnonce="{self._client_nonce}",nc={_NONCE_COUNT},qop=auth,'
            f'digest-uri="{_DIGEST_URI}",response={proof("AUTHENTICATE")}'
        )
        return f"{answer},charset=utf-8".encode() if is_utf8 else answer.encode("latin-1")

    def verify(self, last: bytes) -> None:
        """Check that the server knows the password, too (RFC 2831, 2.1.3).

        Raises:
            MetadataUnauthorizedError: it does not prove it.
        """
        given = _directives(last).get("rspauth", "")
        if not self._proof or not hmac.compare_digest(given.encode(), self._proof.encode()):
            raise MetadataUnauthorizedError(
                "this ZooKeeper does not prove that it knows our password: it is an impostor's"
            )


def _directives(text: bytes) -> dict[str, str]:
    """Return the names and values of a message; none if it is not of the form."""
    decoded = text.decode("utf-8", "replace")
    found: dict[str, str] = {}
    offset = 0
    while offset < len(decoded):
        match = _DIRECTIVE.match(decoded, offset)
        if match is None or len(decoded) > _SIZE_BYTES_MAX:
            return {}
        name, quoted, plain = match.groups()
        name = name.lower()
        if name != "realm" and name in found:
            return {}
        # Of several realms the first is as good as any: ZooKeeper names one.
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
    raise MetadataUnauthorizedError("ZooKeeper's SASL takes no such letters in names and passwords")


def _quoted(text: str) -> str:
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _md5(data: bytes) -> hashlib._Hash:
    # The mechanism has no other hash; without the flag some builds refuse it.
    return hashlib.md5(data, usedforsecurity=False)
