"""OpenID Connect: who asks, by the word of an identity provider.

A program sends an access token of the provider's as its bearer token; a browser is sent to the
provider and comes back with a code (authorization code with PKCE), for which the provider gives an
ID token.  Both are JSON Web Tokens, and count if

    the signature      is by one of the provider's public keys, RSA or elliptic; never by a secret
    iss                is ``admin.oidc_issuer``
    aud                has ``admin.oidc_client_id``; if it has others too, ``azp`` is that
    exp, iat, sub      are there, and the time is right within a minute
    nonce              is that of the sign-in, in an ID token

What it may do follows from the values of one claim (``admin.oidc_roles``): the highest role
counts.  Keys are fetched at the start and whenever a token names one that is not known, not more
often than every half minute; what cannot be fetched lets nobody in.

Anybody may begin a sign-in, so nothing is kept of one here: the browser keeps it, sealed, and what
only this server may know of it follows from a secret of this process.  The provider is asked on
threads of its own, few at a time, so that a slow one holds up nothing else.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import ipaddress
import json
import secrets
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from quorumbook.admin.access.roles import Grant, Who, assignments
from quorumbook.env import logger, patience
from quorumbook.env.secret_files import read_secret_file
from quorumbook.errors import ConfigError

_log = logger("admin.oidc")
_ALGORITHMS = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
_LEEWAY_S = 60
#: For each step of an answer, and for the whole of it, the wait for one's turn included.
_FETCH_S, _FETCH_LASTS_S = 5.0, 10.0
_FETCH_BYTES, _PIECE_BYTES = 1 << 20, 1 << 16
_FETCHES_AT_ONCE = 8
#: Requests that wait for keys; others are refused at once.
_WAITING_MAX = 16
_KEYS_LAST_S, _KEYS_AGAIN_S = 3600.0, 30.0
_SIGN_IN_S = 600.0
#: A longer address of a page would not fit into a cookie.
_WANTED_CHARACTERS = 1000
_NAME_CHARACTERS = 100
_NOT_BEGUN = "This sign-in was not begun here, or took too long. Try again."


class OidcError(Exception):
    """A sign-in that did not work; the message is for whoever tried."""


@dataclass(frozen=True, slots=True)
class OidcOptions:
    """What is known of the provider; see ``AdminOptions``."""

    issuer: str
    client_id: str
    roles: Mapping[str, Grant]
    roles_claim: str = "groups"
    name_claim: str = "preferred_username"
    secret_file: str = ""


def oidc_roles(texts: Sequence[str]) -> dict[str, Grant]:
    """Read ``VALUE=ROLE``; see ``Grant.of``.

    Raises:
        ConfigError: One is not of that form.
    """
    parts = assignments(texts, "admin.oidc_roles", "VALUE")
    return {value: Grant.of(text) for value, text in parts.items()}


class OidcProvider:
    """One identity provider.

    Args:
        options: Which, and whom it lets in.

    Raises:
        ConfigError: They contradict themselves, or the extra ``oidc`` is not installed.
    """

    def __init__(self, options: OidcOptions) -> None:
        try:
            import jwt  # noqa: PLC0415 - of an extra
        except ImportError:
            raise ConfigError(
                "admin.oidc_issuer needs the extra oidc: pip install 'quorumbook[oidc]'"
            ) from None
        self._jwt = jwt
        self._options = options
        if not options.client_id or not options.roles:
            raise ConfigError("admin.oidc_issuer needs admin.oidc_client_id and admin.oidc_roles")
        _check_url(options.issuer, "admin.oidc_issuer")
        if options.secret_file:
            read_secret_file(options.secret_file, "admin.oidc_client_secret_file")
        self._about: Mapping[str, Any] = {}
        #: Public keys with what each may have signed, by ``kid``.
        self._keys: dict[str, tuple[Any, tuple[str, ...]]] = {}
        self._fetched_at = self._tried_at = float("-inf")
        self._fetching = asyncio.Lock()
        self._waiting = 0
        self._slots = asyncio.Semaphore(_FETCHES_AT_ONCE)
        self._secret = secrets.token_bytes(32)

    # Keys ----------------------------------------------------------------------------------

    async def prepare(self, authorization: str | None = None) -> None:
        """Have the key that a request's token names, if the provider has it.

        Args:
            authorization: The request's header; None: whichever key.
        """
        if authorization is not None:
            token = authorization.partition(" ")[2].strip()
            if not is_jwt(token) or (self._key_of(token) is not None and not self._is_old):
                return
        # Whoever makes keys up holds a connection while it waits.
        if self._waiting >= _WAITING_MAX:
            return
        self._waiting += 1
        try:
            async with self._fetching:
                await self._prepare()
        finally:
            self._waiting -= 1

    async def _prepare(self) -> None:
        now = time.monotonic()
        if now - self._tried_at < _KEYS_AGAIN_S:
            return
        self._tried_at = now
        try:
            self._about = await self._discover()
            self._keys = self._usable(await self._fetch(self._about["jwks_uri"]))
            self._fetched_at = now
        except OidcError as error:
            _log.warning("%s tells nothing: %s", self._options.issuer, error)

    @property
    def _is_old(self) -> bool:
        return time.monotonic() - self._fetched_at > _KEYS_LAST_S

    async def _discover(self) -> Mapping[str, Any]:
        issuer = self._options.issuer
        about = await self._fetch(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if about.get("issuer") != issuer:
            raise OidcError(f"it calls itself {about.get('issuer')!r:.200}")
        for name in ("jwks_uri", "authorization_endpoint", "token_endpoint"):
            try:
                _check_url(about.get(name), name)
            except ConfigError as error:
                raise OidcError(str(error)) from None
        return about

    def _usable(self, document: Mapping[str, Any]) -> dict[str, tuple[Any, tuple[str, ...]]]:
        found = {}
        keys = document.get("keys")
        for each in keys if isinstance(keys, list) else []:
            if not isinstance(each, dict) or each.get("use", "sig") != "sig":
                continue
            algorithms = _ALGORITHMS.get(str(each.get("kty")), ())
            if "alg" in each:
                algorithms = tuple(name for name in algorithms if name == each["alg"])
            if not algorithms:
                continue
            try:
                key = self._jwt.PyJWK.from_dict(each, algorithms[0]).key
            except self._jwt.PyJWTError:
                continue
            found[str(each.get("kid", ""))] = key, algorithms
        return found

    def _key_of(self, token: str) -> tuple[Any, tuple[str, ...]] | None:
        try:
            kid = self._jwt.get_unverified_header(token).get("kid", "")
        except self._jwt.PyJWTError:
            return None
        return self._keys.get(str(kid))

    async def _fetch(
        self,
        url: str,
        form: Mapping[str, str] | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> dict[str, Any]:
        data = None if form is None else urllib.parse.urlencode(form).encode()

        def fetch() -> Any:
            request = urllib.request.Request(url, data, {"Accept": "application/json", **headers})  # noqa: S310 - checked
            ends_at = time.monotonic() + _FETCH_LASTS_S
            document = b""
            with _OPENER.open(request, timeout=_FETCH_S) as answer:
                while len(document) < _FETCH_BYTES and (piece := answer.read1(_PIECE_BYTES)):
                    document += piece
                    if time.monotonic() > ends_at:
                        raise TimeoutError("it is too slow")
            return json.loads(document)

        try:
            async with patience.timeout(_FETCH_LASTS_S):
                await self._slots.acquire()
                found = await _on_a_thread(fetch, self._slots.release)
        except TimeoutError:
            raise OidcError(f"{_without_query(url)} does not answer in time") from None
        except urllib.error.HTTPError as error:
            with error:
                raise OidcError(f"{_without_query(url)} answers {error.code}") from None
        except (OSError, ValueError) as error:
            raise OidcError(f"{_without_query(url)}: {error}") from None
        if not isinstance(found, dict):
            raise OidcError(f"{_without_query(url)} answers no object")
        return found

    # Tokens --------------------------------------------------------------------------------

    def who(self, token: str) -> Who | None:
        """Return whom a token names; None if it does not count, or gives no role."""
        try:
            return self._of_claims(self._claims(token))
        except OidcError as error:
            _log.info("a token of %s does not count: %s", self._options.issuer, error)
            return None

    def _claims(self, token: str) -> Mapping[str, Any]:
        found = self._key_of(token)
        if found is None:
            raise OidcError("it is signed by a key that is not the provider's")
        key, algorithms = found
        try:
            claims: dict[str, Any] = self._jwt.decode(
                token, key, algorithms=list(algorithms), audience=self._options.client_id,
                issuer=self._options.issuer, leeway=_LEEWAY_S,
                options={"require": ["exp", "iat", "iss", "aud", "sub"]},
            )  # fmt: skip
        except (self._jwt.PyJWTError, ValueError, TypeError) as error:
            raise OidcError(str(error)) from None
        audience = claims["aud"]
        is_for_many = isinstance(audience, list) and len(audience) > 1
        if is_for_many and claims.get("azp") != self._options.client_id:
            raise OidcError("it was made for somebody else")
        return claims

    def _of_claims(self, claims: Mapping[str, Any]) -> Who:
        options = self._options
        given = [options.roles[value] for value in _values(claims, options.roles_claim)
                 if value in options.roles]  # fmt: skip
        if not given:
            raise OidcError(f"nothing in its claim {options.roles_claim} gives a role here")
        name = str(claims.get(options.name_claim) or claims["sub"])[:_NAME_CHARACTERS]
        return Who.by(name, "oidc", given)

    # Sign-in -------------------------------------------------------------------------------

    async def begin(self, redirect_uri: str, wanted: str) -> tuple[str, str]:
        """Begin a sign-in; return where to send the browser, and what it must bring back.

        Args:
            redirect_uri: Where the provider sends the browser then.
            wanted: The page that it is to see in the end.

        Raises:
            OidcError: the provider cannot be asked.
        """
        if not self._about:
            await self.prepare()
        if not self._about:
            raise OidcError("The identity provider cannot be reached. Try again in a minute.")
        if len(wanted) > _WANTED_CHARACTERS:
            wanted = "/ui"
        seed, ends_at = secrets.token_urlsafe(32), time.monotonic() + _SIGN_IN_S
        text = _base64(json.dumps([seed, ends_at, redirect_uri, wanted]).encode())
        kept = f"{text}.{self._derived('kept', text)}"
        verifier = self._derived("verifier", seed)
        challenge = _base64(hashlib.sha256(verifier.encode()).digest())
        query = {
            "response_type": "code",
            "client_id": self._options.client_id,
            "redirect_uri": redirect_uri,
            "scope": "openid profile email",
            "state": self._derived("state", seed),
            "nonce": self._derived("nonce", seed),
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        where = self._about["authorization_endpoint"]
        joint = "&" if "?" in where else "?"
        return f"{where}{joint}{urllib.parse.urlencode(query)}", kept

    def _derived(self, what: str, text: str) -> str:
        """Return what nobody else can know of a text."""
        return _base64(
            hmac.digest(self._secret, f"{what} {text}".encode(errors="replace"), "sha256")
        )

    async def finish(self, state: str, kept: str, code: str) -> tuple[Who, str]:
        """Return who came back, and the page that was wanted.

        Args:
            state: What the provider passed on.
            kept: What the browser has kept since ``begin``.
            code: What the provider gave it.

        Raises:
            OidcError: it does not count.
        """
        text, _, seal = kept.partition(".")
        if not _is_same(seal, self._derived("kept", text)):
            raise OidcError(_NOT_BEGUN)
        seed, ends_at, redirect_uri, wanted = json.loads(base64.urlsafe_b64decode(text + "=="))
        if not _is_same(state, self._derived("state", seed)) or ends_at < time.monotonic():
            raise OidcError(_NOT_BEGUN)
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "client_id": self._options.client_id,
            "code_verifier": self._derived("verifier", seed),
        }
        try:
            answer = await self._fetch(self._about["token_endpoint"], form, self._credentials())
            token = answer.get("id_token")
            if not isinstance(token, str):
                raise OidcError("the provider gave no ID token")
            await self.prepare(f"Bearer {token}")
            claims = self._claims(token)
            if not _is_same(str(claims.get("nonce")), self._derived("nonce", seed)):
                raise OidcError("the ID token is of another sign-in")
            return self._of_claims(claims), wanted
        except OidcError as error:
            _log.warning("a sign-in by %s failed: %s", self._options.issuer, error)
            raise OidcError("The identity provider did not vouch for a role here.") from None

    def _credentials(self) -> dict[str, str]:
        if not self._options.secret_file:
            return {}
        secret = read_secret_file(self._options.secret_file, "admin.oidc_client_secret_file")
        parts = (self._options.client_id, secret.strip())
        pair = ":".join(urllib.parse.quote(part, safe="") for part in parts)
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow nobody elsewhere: what was checked is asked."""


_OPENER = urllib.request.build_opener(_NoRedirect)


def _on_a_thread(job: Callable[[], Any], ended: Callable[[], None]) -> asyncio.Future[Any]:
    """Run a job on a thread that keeps no process from its end; call ``ended`` after it."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def settle(result: Any, error: Exception | None) -> None:
        ended()
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def run() -> None:
        result, failure = None, None
        try:
            result = job()
        except Exception as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is gone
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name="identity provider", daemon=True).start()
    return future


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _is_same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(errors="replace"), other.encode())


def is_jwt(token: str) -> bool:
    """Tell whether a bearer token looks like a JSON Web Token; ours have no dot."""
    return token.count(".") == 2


def _values(claims: Mapping[str, Any], path: str) -> list[str]:
    """Return the texts of a claim, which may lie in others: ``realm_access.roles``."""
    found: Any = claims.get(path)
    if found is None:
        found = claims
        for name in path.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
    if isinstance(found, str):
        return found.split()
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def _check_url(url: object, name: str) -> None:
    parts = urllib.parse.urlsplit(url if isinstance(url, str) else "")
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme == "http" and _is_loopback(parts.hostname or ""):
        return
    raise ConfigError(f"{name} {url!r:.200} is not an https:// address")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _without_query(url: str) -> str:
    return url.partition("?")[0]
