"""OpenID Connect: which tokens count, what they give, and how a browser signs in."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import re
import sys
import threading
import time
from pathlib import Path
from urllib.parse import parse_qs, parse_qsl, urlsplit

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import serialization

import quorumbook
from doubles.identity_provider import CLIENT, SECRET, IdentityProvider, rsa_key
from quorumbook.admin.access import oidc
from quorumbook.admin.access.oidc import OidcOptions, OidcProvider, oidc_roles
from quorumbook.admin.access.roles import Role, Who
from quorumbook.admin.http.service import Service, ServiceOptions
from quorumbook.admin.options import AdminOptions
from quorumbook.admin.server import AdminServer
from quorumbook.errors import ConfigError

ROLES = ("staff=viewer", "ops=operator", "root=admin", "team-a=operator@/streams/a@/streams/b")


@pytest.fixture
def provider():
    provider = IdentityProvider()
    yield provider
    provider.stop()


@pytest.fixture(autouse=True)
def no_pause_between_fetches(monkeypatch):
    monkeypatch.setattr(oidc, "_KEYS_AGAIN_S", 0.0)


async def known(provider: IdentityProvider, **options: str) -> OidcProvider:
    made = OidcProvider(OidcOptions(provider.issuer, CLIENT, oidc_roles(ROLES), **options))
    await made.prepare()
    return made


def unsigned(provider: IdentityProvider) -> str:
    head, body, _ = provider.signed().split(".")
    fields = json.loads(base64.urlsafe_b64decode(head + "=="))
    plain = json.dumps({**fields, "alg": "none"}).encode()
    return f"{base64.urlsafe_b64encode(plain).rstrip(b'=').decode()}.{body}."


def signed_by_public_key(provider: IdentityProvider) -> str:
    """Sign as a secret what everybody knows, as if the algorithm were the token's to choose."""
    public = provider.keys["one"].public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )  # fmt: skip
    body = provider.signed().split(".")[1]
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"one","typ":"JWT"}').rstrip(b"=")
    text = f"{head.decode()}.{body}"
    seal = hmac.digest(public, text.encode(), "sha256")
    return f"{text}.{base64.urlsafe_b64encode(seal).rstrip(b'=').decode()}"


async def test_a_token_of_the_provider_counts(provider):
    made = await known(provider)
    assert made.who(provider.signed()) == Who("ada", Role.VIEWER, "oidc")
    assert made.who(provider.signed("two")) == Who("ada", Role.VIEWER, "oidc")
    assert made.who(provider.signed(algorithm="PS512")) is not None
    assert made.who(provider.signed(aud=[CLIENT])) is not None
    assert made.who(provider.signed(aud=[CLIENT, "b"], azp=CLIENT)) is not None


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://evil.example"}, {"iss": None}, {"aud": "another"}, {"aud": None},
        {"aud": [CLIENT, "b"]}, {"aud": [CLIENT, "b"], "azp": "b"}, {"exp": 1}, {"exp": None},
        {"exp": "soon"}, {"iat": None}, {"iat": 1 << 40}, {"nbf": 1 << 40}, {"sub": None},
        {"groups": None}, {"groups": []}, {"groups": ["strangers"]}, {"groups": {"staff": 1}},
        {"groups": [1, None]}, {"kid": "three", "key": rsa_key()}, {"key": rsa_key()},
        {"aud": {"a": 1}}, {"exp": 1e400},
    ],
)  # fmt: skip
async def test_every_other_token_does_not(provider, claims):
    made = await known(provider)
    assert made.who(provider.signed(**claims)) is None


async def test_who_chooses_the_algorithm_is_not_the_token(provider):
    made = await known(provider)
    for token in (
        unsigned(provider),
        signed_by_public_key(provider),
        provider.signed(algorithm="HS256", key=b"AAAA" * 16),
        jwt.encode({"sub": "x"}, "secret" * 8, "HS256", {"kid": ""}),
        "..", "a.b.c", "a" * 20_000 + "..", "\x00.\x00.\x00",
    ):  # fmt: skip
        assert made.who(token) is None


@pytest.mark.parametrize(
    ("groups", "role", "namespaces"),
    [
        (["staff", "ops"], Role.OPERATOR, ()),
        (["root", "team-a"], Role.ADMIN, ()),
        (["staff", "team-a"], Role.OPERATOR, ("/streams/a", "/streams/b")),
        (["ops", "team-a"], Role.OPERATOR, ()),
        ("ops other", Role.OPERATOR, ()),
    ],
)
async def test_the_highest_role_counts(provider, groups, role, namespaces):
    made = await known(provider)
    assert made.who(provider.signed(groups=groups)) == Who("ada", role, "oidc", namespaces)


async def test_roles_may_lie_in_another_claim(provider):
    made = await known(provider, roles_claim="realm_access.roles", name_claim="email")
    token = provider.signed(realm_access={"roles": ["root"]})
    assert made.who(token) == Who("u-1", Role.ADMIN, "oidc")
    assert made.who(provider.signed(realm_access="root")) is None


async def test_a_new_key_is_fetched_when_a_token_names_it(provider, monkeypatch):
    made = await known(provider)
    provider.keys["three"] = rsa_key()
    token = provider.signed("three", "RS256")
    assert made.who(token) is None
    await made.prepare(f"Bearer {token}")
    assert made.who(token) is not None
    fetched = provider.count("/keys")
    await made.prepare(f"Bearer {token}")
    await made.prepare("Bearer qb_ours")
    assert provider.count("/keys") == fetched
    # Whoever makes kids up does not have it ask for each.
    monkeypatch.setattr(oidc, "_KEYS_AGAIN_S", 3600.0)
    invented = [provider.signed(f"x{n}", "RS256", provider.keys["one"]) for n in range(50)]
    await asyncio.gather(*(made.prepare(f"Bearer {each}") for each in invented))
    assert provider.count("/keys") <= fetched + 1


async def test_a_key_that_was_taken_back_counts_no_more(provider, monkeypatch):
    made = await known(provider)
    token = provider.signed()
    del provider.keys["one"]
    monkeypatch.setattr(oidc, "_KEYS_LAST_S", 0.0)
    await made.prepare(f"Bearer {token}")
    assert made.who(token) is None


@pytest.mark.parametrize(
    "about",
    [
        {"issuer": "http://127.0.0.1:1"}, {"jwks_uri": "http://evil.example/keys"},
        {"jwks_uri": "file:///etc/passwd"}, {"token_endpoint": None}, {"jwks_uri": 3},
    ],
)  # fmt: skip
async def test_a_provider_that_says_what_it_must_not_lets_nobody_in(provider, about):
    provider.about = about
    made = await known(provider)
    assert made.who(provider.signed()) is None


async def test_a_provider_that_is_down_lets_nobody_in_until_it_is_back(provider):
    provider.is_down = True
    made = await known(provider)
    token = provider.signed()
    assert made.who(token) is None
    provider.is_down = False
    await made.prepare(f"Bearer {token}")
    assert made.who(token) is not None


@pytest.mark.parametrize(
    "options",
    [
        {"oidc_issuer": "http://idp.example", "oidc_client_id": "x", "oidc_roles": ("a=viewer",)},
        {"oidc_issuer": "https://idp.example", "oidc_roles": ("a=viewer",)},
        {"oidc_issuer": "https://idp.example", "oidc_client_id": "x"},
        {"oidc_issuer": "https://idp.example", "oidc_client_id": "x", "oidc_roles": ("a=king",)},
        {"oidc_issuer": "https://idp.example", "oidc_client_id": "x", "oidc_roles": ("viewer",)},
    ],
)
async def test_options_that_cannot_work_are_refused(options):
    with pytest.raises(ConfigError, match=r"admin\.oidc|not a role"):
        await server(**options).start()


# A server ---------------------------------------------------------------------------------------


def server(uri: str = "sqlite:///none.db", **options: object) -> AdminServer:
    service = Service(ServiceOptions(uri, connect=lambda: quorumbook.connect(uri)))
    return AdminServer(AdminOptions(**{"port": 0, **options}), service)


@pytest.fixture
async def running(provider, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    secret.chmod(0o600)
    made = server(
        f"sqlite:///{tmp_path}/m.db", oidc_issuer=provider.issuer, oidc_client_id=CLIENT,
        oidc_client_secret_file=str(secret), oidc_roles=ROLES,
    )  # fmt: skip
    await made.start()
    yield made
    await made.stop()


async def test_a_program_sends_the_token_as_its_own(provider, running):
    async with httpx.AsyncClient(base_url=running.url) as http:
        assert (await http.get("/api/v2/audit")).status_code == 401
        provider.keys["new"] = rsa_key()
        mine = {"Authorization": f"Bearer {provider.signed('new', 'RS256', groups=['root'])}"}
        assert (await http.get("/api/v2/audit", headers=mine)).status_code == 200
        low = {"Authorization": f"Bearer {provider.signed()}"}
        answer = await http.delete("/api/v2/ledgers/1", headers=low)
        assert (answer.status_code, answer.json()["code"]) == (403, "role")
        assert "ada is viewer" in answer.json()["detail"]


async def at_the_provider(http: httpx.AsyncClient, running: AdminServer) -> str:
    """Go to the provider and sign in there; return where it sends the browser."""
    there = (await http.get("/ui/oidc?next=/ui/ledgers")).headers["location"]
    asked = parse_qs(urlsplit(there).query)
    assert asked["redirect_uri"] == [f"{running.url}/ui/oidc/callback"]
    assert asked["tenant"] == ["a"]
    return (await http.get(there)).headers["location"]


async def test_a_browser_signs_in_and_out(provider, running, caplog):
    caplog.set_level("INFO")
    async with httpx.AsyncClient(base_url=running.url) as http:
        page = await http.get("/ui/login?next=/ui/ledgers")
        assert 'href="/ui/oidc?next=/ui/ledgers"' in page.text
        assert 'name="token"' not in page.text
        back = await at_the_provider(http, running)
        signed_in = await http.get(back)
        assert signed_in.status_code == 200
        assert 'content="0; url=/ui/ledgers"' in signed_in.text
        assert "samesite=strict" in signed_in.headers["set-cookie"].lower()
        assert (await http.get("/ui/audit")).status_code != 401
        page = (await http.get("/ui")).text
        assert "ada" in page
        csrf = re.search(r'name="csrf" value="([^"]+)"', page)[1]
        tokens = (await http.get("/ui/tokens")).text
        assert "whoever is on this machine" not in tokens
        # The code is worth nothing twice, and none of it is in a log.
        async with httpx.AsyncClient(base_url=running.url) as thief:
            assert (await thief.get(back)).status_code == 401
        secret = parse_qs(urlsplit(back).query)
        ours = "".join(r.getMessage() for r in caplog.records if r.name.startswith("quorumbook"))
        assert "ui/oidc/callback" in ours
        assert [name for name in ("code", "state") if secret[name][0] in ours] == [], ours
        assert SECRET not in ours
        await http.post("/ui/logout", data={"csrf": csrf})
        assert (await http.get("/api/v2/audit")).status_code == 401


@pytest.mark.parametrize(
    "forged",
    [
        {"nonce": "another"}, {"aud": "another"}, {"key": rsa_key()}, {"groups": ["strangers"]},
        {"exp": int(time.time()) - 3600},
    ],
)  # fmt: skip
async def test_a_sign_in_that_does_not_count(provider, running, forged):
    provider.forged = forged
    nonce = forged.pop("nonce", None)
    if nonce is not None:
        real = provider.signed
        provider.signed = lambda **claims: real(**{**claims, "nonce": nonce})
    async with httpx.AsyncClient(base_url=running.url) as http:
        answer = await http.get(await at_the_provider(http, running))
        assert answer.status_code == 401
        assert "did not vouch" in answer.text
        assert (await http.get("/api/v2/audit")).status_code == 401


async def test_a_sign_in_belongs_to_the_browser_that_began_it(provider, running):
    async with (
        httpx.AsyncClient(base_url=running.url) as mallory,
        httpx.AsyncClient(base_url=running.url) as victim,
    ):
        # Mallory's code, in a link that the victim follows: it would be signed in as Mallory.
        back = await at_the_provider(mallory, running)
        assert (await victim.get(back)).status_code == 401
        assert (await victim.get("/ui/oidc/callback")).status_code == 401
        assert (await victim.get("/ui/oidc/callback?state=%ff&code=%00")).status_code == 401
        foreign = await victim.get("/ui/oidc", headers={"Host": "evil.example"})
        assert foreign.status_code in (403, 421)


async def test_strangers_who_begin_and_never_end_keep_nothing_here_and_nobody_out(provider):
    made = await known(provider)
    where, kept = await made.begin("http://x/", "/ui/ledgers")
    before = sys.getallocatedblocks()
    for _ in range(20_000):
        await made.begin("http://x/", "/ui")
    assert sys.getallocatedblocks() - before < 1000
    asked = dict(parse_qsl(urlsplit(where).query))
    with pytest.raises(oidc.OidcError, match="not begun here"):
        await made.finish(asked["state"], kept[:-1], "c")
    with pytest.raises(oidc.OidcError, match="not begun here"):
        await made.finish(asked["nonce"], kept, "c")
    with pytest.raises(oidc.OidcError, match="not begun here"):
        await (await known(provider)).finish(asked["state"], kept, "c")


async def test_a_sign_in_that_takes_too_long_is_over(provider, monkeypatch):
    made = await known(provider)
    monkeypatch.setattr(oidc, "_SIGN_IN_S", -1.0)
    where, kept = await made.begin("http://x/", "/ui")
    with pytest.raises(oidc.OidcError, match="took too long"):
        await made.finish(dict(parse_qsl(urlsplit(where).query))["state"], kept, "c")


async def test_what_the_browser_keeps_fits_into_a_cookie_and_tells_it_no_secret(provider):
    made = await known(provider)
    where, kept = await made.begin("http://host.example:8080/ui/oidc/callback", "/ui?" + "a" * 9000)
    assert len(kept) < 2000
    asked = dict(parse_qsl(urlsplit(where).query))
    shown = base64.urlsafe_b64decode(kept.partition(".")[0] + "==").decode()
    assert [name for name in ("state", "nonce", "code_challenge") if asked[name] in shown] == []


@pytest.mark.parametrize("how", ["silent", "dripping", "down"])
async def test_volume_without_a_password_while_the_provider_is_slow_or_down(
    provider, running, monkeypatch, how
):
    """Sign-ins begun and ended with nothing, tokens with keys made up: others go on."""
    monkeypatch.setattr(oidc, "_KEYS_AGAIN_S", 2.0)
    monkeypatch.setattr(oidc, "_FETCH_LASTS_S", 1.0)
    token = provider.signed(groups=["root"])
    headers = {"Authorization": f"Bearer {token}"}
    limits = httpx.Limits(max_connections=100)
    alone = httpx.Limits(max_keepalive_connections=0)
    async with (
        httpx.AsyncClient(base_url=running.url, limits=limits, timeout=60) as strangers,
        httpx.AsyncClient(base_url=running.url, limits=alone, timeout=60) as honest,
    ):
        assert (await honest.get("/api/v2/audit", headers=headers)).status_code == 200
        browser = await at_the_provider(honest, running)
        getattr(provider, how)()

        async def attack(number: int) -> int:
            if number % 3 == 0:
                return (await strangers.get("/ui/oidc")).status_code
            if number % 3 == 1:
                begun = await strangers.get("/ui/oidc")
                state = parse_qs(urlsplit(begun.headers["location"]).query)["state"][0]
                kept = {"Cookie": begun.headers["set-cookie"].partition(";")[0]}
                there = f"/ui/oidc/callback?state={state}&code=guess"
                return (await strangers.get(there, headers=kept)).status_code
            head = base64.urlsafe_b64encode(b'{"alg":"RS256","kid":"%d"}' % number).decode()
            bearer = {"Authorization": f"Bearer {head.rstrip('=')}.{token.partition('.')[2]}"}
            return (await strangers.get("/api/v2/audit", headers=bearer)).status_code

        most, start = 0, threading.Thread.start

        def counted(thread: threading.Thread) -> None:
            nonlocal most
            start(thread)
            # One that cannot reach the provider is over in a moment.
            if thread.name == "identity provider":
                others = [each for each in threading.enumerate() if each is not thread]
                most = max(most, 1 + sum(each.name == thread.name for each in others))

        monkeypatch.setattr(threading.Thread, "start", counted)
        attacks = asyncio.gather(*map(attack, range(300)))
        while not attacks.done():
            assert (await honest.get("/api/v2/audit", headers=headers)).status_code == 200
        assert set(await attacks) <= {303, 401}
        assert 0 < most <= 8
        provider.well()
        monkeypatch.setattr(oidc, "_FETCH_LASTS_S", 60.0)
        assert (await honest.get(browser)).status_code == 200


async def test_without_a_provider_there_is_no_such_page(tmp_path):
    made = server(f"sqlite:///{tmp_path}/m.db")
    await made.start()
    async with httpx.AsyncClient(base_url=made.url) as http:
        assert (await http.get("/ui/oidc")).status_code == 404
        assert (await http.get("/ui/oidc/callback")).status_code == 404
    await made.stop()
