"""An OpenID Connect provider on loopback: its documents, tokens, and the code that it gives."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

CLIENT = "quorumbook-console"
SECRET = "provider-secret:4711/?"


def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def ec_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _nothing() -> None:
    """Wait for nothing."""


class IdentityProvider:
    """Knows one person, whose claims are ``person``."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {"one": rsa_key(), "two": ec_key()}
        self.person: dict[str, Any] = {
            "sub": "u-1", "preferred_username": "ada", "groups": ["staff"],
        }  # fmt: skip
        self.about: dict[str, Any] = {}
        self.is_down = False
        #: What it waits for between the bytes of an answer, or before one.
        self._pause: Callable[[], object] = _nothing
        self._is_well = threading.Event()
        #: What the next ID tokens have otherwise than they should.
        self.forged: dict[str, Any] = {}
        self.asked: list[str] = []
        #: What was asked for with each code.
        self.codes: dict[str, dict[str, str]] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                provider.asked.append(self.path)
                self._answer(provider.get(self.path))

            def do_POST(self) -> None:
                provider.asked.append(self.path)
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self._answer(provider.token(dict(parse_qsl(body)), self.headers["Authorization"]))

            def _answer(self, found: tuple[int, Any]) -> None:
                status, document = found
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", document)
                self.end_headers()
                if status != 302:
                    data = (
                        document if isinstance(document, bytes) else json.dumps(document).encode()
                    )
                    provider.send(self.wfile, data)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.issuer = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self.well()
        self._server.shutdown()
        self._server.server_close()

    # How it is ----------------------------------------------------------------------------

    def silent(self) -> None:
        """Have it take requests and answer none."""
        self._is_well.clear()
        self._pause = self._is_well.wait

    def dripping(self) -> None:
        """Have it answer byte by byte."""
        self._is_well.clear()
        self._pause = lambda: self._is_well.wait(0.2)

    def down(self) -> None:
        """Have it answer that it is down."""
        self.is_down = True

    def well(self) -> None:
        """Have it answer again."""
        self.is_down = False
        self._pause = _nothing
        self._is_well.set()

    def send(self, file: IO[bytes], data: bytes) -> None:
        """Send the body of an answer."""
        with contextlib.suppress(OSError):
            for start in range(len(data)) if self._pause is not _nothing else ():
                self._pause()
                file.write(data[start : start + 1])
                file.flush()
                if self._pause is _nothing:
                    file.write(data[start + 1 :])
                    return
            if self._pause is _nothing:
                file.write(data)

    def count(self, path: str) -> int:
        return sum(urlsplit(each).path == path for each in self.asked)

    # What it answers -----------------------------------------------------------------------

    def get(self, path: str) -> tuple[int, Any]:
        parts = urlsplit(path)
        if self.is_down:
            return 503, {}
        if parts.path == "/.well-known/openid-configuration":
            return 200, {
                "issuer": self.issuer,
                "jwks_uri": f"{self.issuer}/keys",
                "authorization_endpoint": f"{self.issuer}/authorize?tenant=a",
                "token_endpoint": f"{self.issuer}/token",
                **self.about,
            }
        if parts.path == "/keys":
            return 200, {"keys": [*map(self.jwk, self.keys), {"kty": "oct", "k": "AAAA"}, 3]}
        if parts.path == "/authorize":
            asked = dict(parse_qsl(parts.query))
            code = f"code-{len(self.codes)}"
            self.codes[code] = asked
            back = urlencode({"code": code, "state": asked["state"]})
            return 302, f"{asked['redirect_uri']}?{back}"
        return 404, {}

    def jwk(self, kid: str) -> dict[str, Any]:
        key = self.keys[kid]
        kind = jwt.algorithms.RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else (
            jwt.algorithms.ECAlgorithm
        )  # fmt: skip
        return {**kind.to_jwk(key.public_key(), as_dict=True), "kid": kid, "use": "sig"}

    def token(self, form: dict[str, str], authorization: str | None) -> tuple[int, Any]:
        asked = self.codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        pair = "quorumbook-console:provider-secret%3A4711%2F%3F"
        if (
            asked is None
            or authorization != f"Basic {base64.b64encode(pair.encode()).decode()}"
            or form["redirect_uri"] != asked["redirect_uri"]
            or base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != asked["code_challenge"]
        ):
            return 400, {"error": "invalid_grant"}
        return 200, {"id_token": self.signed(nonce=asked["nonce"], **self.forged)}

    def signed(self, kid: str = "one", algorithm: str = "", key: Any = None, **claims: Any) -> str:
        """Return a token; a claim that is None is left out."""
        now = int(time.time())
        whole = {
            "iss": self.issuer, "aud": CLIENT, "iat": now, "exp": now + 300,
            **self.person, **claims,
        }  # fmt: skip
        key = self.keys[kid] if key is None else key
        algorithm = algorithm or ("RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256")
        return jwt.encode(
            {name: value for name, value in whole.items() if value is not None},
            key,
            algorithm,
            {"kid": kid},
        )
