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
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import json
import secrets
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from quorumbook.admin.access.roles import Role, Who, assignments
from quorumbook.env import logger
from quorumbook.env.secret_files import read_secret_file
from quorumbook.errors import ConfigError

_log = logger("admin.oidc")
_ALGORITHMS = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
_LEEWAY_S = 60
_FETCH_S = 5.0
_FETCH_BYTES = 1 << 20
_FETCHES_AT_ONCE = 8
_KEYS_LAST_S, _KEYS_AGAIN_S = 3600.0, 30.0
_SIGN_IN_S, _SIGN_INS_MAX = 600.0, 1000
_NAME_CHARACTERS = 100


class OidcError(Exception):
    """A sign-in that did not work; the message is for whoever tried."""


@dataclass(frozen=True, slots=True)
class OidcOptions:
    """What is known of the provider; see ``AdminOptions``."""

    issuer: str
    client_id: str
    roles: Mapping[str, tuple[Role, tuple[str, ...]]]
    roles_claim: str = "groups"
    name_claim: str = "preferred_username"
    secret_file: str = ""


@dataclass(frozen=True, slots=True)
class _SignIn:
    nonce: str
    verifier: str
    redirect_uri: str
    wanted: str
    ends_at: float


def oidc_roles(texts: Sequence[str]) -> dict[str, tuple[Role, tuple[str, ...]]]:
    """Read ``VALUE=ROLE`` and ``VALUE=ROLE@NAMESPACE@NAMESPACE``.

    Raises:
        ConfigError: One is not of that form.
    """
    found = {}
    for value, text in assignments(texts, "admin.oidc_roles", "VALUE").items():
        word, *namespaces = text.split("@")
        found[value] = Role.of(word), tuple(namespaces)
    return found


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
        self._slots = asyncio.Semaphore(_FETCHES_AT_ONCE)
        self._sign_ins: dict[str, _SignIn] = {}

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
        async with self._fetching:
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
            with _OPENER.open(request, timeout=_FETCH_S) as answer:
                return json.loads(answer.read(_FETCH_BYTES))

        try:
            async with self._slots:
                found = await asyncio.to_thread(fetch)
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
        role = max(role for role, _ in given)
        confined = [namespaces for each, namespaces in given if each is role]
        everywhere = not all(confined)
        name = str(claims.get(options.name_claim) or claims["sub"])[:_NAME_CHARACTERS]
        return Who(name, role, "oidc", () if everywhere else tuple(sorted({*sum(confined, ())})))

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
        now = time.monotonic()
        self._sign_ins = {key: each for key, each in self._sign_ins.items() if each.ends_at > now}
        while len(self._sign_ins) >= _SIGN_INS_MAX:
            del self._sign_ins[next(iter(self._sign_ins))]
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        self._sign_ins[state] = _SignIn(nonce, verifier, redirect_uri, wanted, now + _SIGN_IN_S)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest())
        query = {
            "response_type": "code",
            "client_id": self._options.client_id,
            "redirect_uri": redirect_uri,
            "scope": "openid profile email",
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge.rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        where = self._about["authorization_endpoint"]
        joint = "&" if "?" in where else "?"
        return f"{where}{joint}{urllib.parse.urlencode(query)}", state

    async def finish(self, state: str, kept: str, code: str) -> tuple[Who, str]:
        """Return who came back, and the page that was wanted.

        Args:
            state: What the provider passed on.
            kept: What the browser has kept since ``begin``.
            code: What the provider gave it.

        Raises:
            OidcError: it does not count.
        """
        found = self._sign_ins.pop(state, None)
        is_same = hmac.compare_digest(state.encode(), kept.encode())
        if found is None or not is_same or found.ends_at < time.monotonic():
            raise OidcError("This sign-in was not begun here, or took too long. Try again.")
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": found.redirect_uri,
            "client_id": self._options.client_id,
            "code_verifier": found.verifier,
        }
        try:
            answer = await self._fetch(self._about["token_endpoint"], form, self._credentials())
            token = answer.get("id_token")
            if not isinstance(token, str):
                raise OidcError("the provider gave no ID token")
            await self.prepare(f"Bearer {token}")
            claims = self._claims(token)
            if not hmac.compare_digest(str(claims.get("nonce")).encode(), found.nonce.encode()):
                raise OidcError("the ID token is of another sign-in")
            return self._of_claims(claims), found.wanted
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
