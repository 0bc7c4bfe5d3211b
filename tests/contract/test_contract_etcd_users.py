"""A real etcd that asks for a user and a password."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from base64 import b64encode

import pytest

from doubles.etcd_server import EtcdServer
from quorumbook.errors import ConfigError, MetadataError, MetadataUnauthorizedError
from quorumbook.metadata.uri import open_store, parse_uri

USERS = {"root": "a canary of root's", "bookie": "a canary of ours", "other": "a canary of others"}


def call(etcd, method, token="", **request):
    asked = urllib.request.Request(
        f"http://{etcd.endpoint}/v3/{method}",
        json.dumps(request).encode(),
        {"Authorization": token} if token else {},
    )
    with urllib.request.urlopen(asked, timeout=10) as answer:
        return json.load(answer)


def key(text):
    return b64encode(text.encode()).decode()


@pytest.fixture
def etcd(tmp_path, monkeypatch):
    """Return an etcd with users, of whom one may do what we need."""
    monkeypatch.setattr("quorumbook.metadata.etcd.store._OPEN_PATIENCE_S", 3.0)
    (tmp_path / "etcd").mkdir()
    server = EtcdServer(tmp_path / "etcd", "--bcrypt-cost", "4")
    for name, password in USERS.items():
        server.call("auth/user/add", name=name, password=password)
    server.call("auth/role/add", name="root")
    server.call("auth/role/add", name="books")
    ours = {"permType": "READWRITE", "key": key("quorumbook/"), "range_end": key("quorumbook0")}
    server.call("auth/role/grant", name="books", perm=ours)
    server.call("auth/user/grant", user="root", role="root")
    server.call("auth/user/grant", user="bookie", role="books")
    server.call("auth/enable")
    yield server
    server.kill()


@pytest.fixture
def uri_of(etcd, tmp_path):
    def write(name, password=None):
        file = tmp_path / name
        file.write_text(f"{name}:{password or USERS[name]}\n")
        file.chmod(0o600)
        return f"{etcd.uri()}?auth_file={file}"

    return write


async def test_a_user_reads_writes_and_hears_of_changes(uri_of):
    one, other = await open_store(uri_of("bookie")), await open_store(uri_of("bookie"))
    await one.create("/a", b"1")
    told = asyncio.Event()
    assert (await other.get("/a", told.set)).data == b"1"
    await one.set("/a", b"2")
    await asyncio.wait_for(told.wait(), 30)
    assert (await other.get("/a")).data == b"2"
    for store in (one, other):
        await store.close()


def forget_tokens(etcd):
    """Have etcd forget the tokens of our user, as it does when its password is set."""
    token = call(etcd, "auth/authenticate", name="root", password=USERS["root"])["token"]
    call(etcd, "auth/user/changepw", token, name="bookie", password=USERS["bookie"])


async def test_a_token_that_etcd_has_forgotten_is_replaced(etcd, uri_of):
    store = await open_store(uri_of("bookie"))
    await store.create("/a", b"1")
    for _ in range(2):
        forget_tokens(etcd)
        await store.set("/a", b"2")
    forget_tokens(etcd)
    assert (await store.get("/a")).version == 2
    await store.close()


async def test_a_watch_that_etcd_refuses_for_an_old_token_is_left_again(etcd, uri_of):
    store, other = await open_store(uri_of("bookie")), await open_store(uri_of("bookie"))
    await store.create("/a", b"1")
    told = asyncio.Event()
    await store.get("/a", told.set)
    forget_tokens(etcd)
    # Only a stream that begins anew has to show the token.
    etcd.kill()
    etcd.start()
    await other.set("/a", b"2")
    await asyncio.wait_for(told.wait(), 30)
    for each in (store, other):
        await each.close()


@pytest.mark.parametrize(
    ("name", "password", "says"),
    [
        ("bookie", "wrong", "authentication failed.*see the file that auth_file names"),
        ("nobody", "wrong", "authentication failed.*see the file that auth_file names"),
        ("other", None, "permission denied.*grant our user's role"),
    ],
)
async def test_whoever_may_not_is_told_what_to_do_and_no_password(uri_of, name, password, says):
    with pytest.raises(MetadataUnauthorizedError, match=says) as caught:
        await open_store(uri_of(name, password))
    assert "canary" not in str(caught.value)
    assert "wrong!" not in str(caught.value)


async def test_without_a_user_what_is_missing_is_named(etcd):
    with pytest.raises(MetadataUnauthorizedError, match=r"user name is empty.*\?auth_file=FILE"):
        await open_store(etcd.uri())


async def test_an_etcd_that_would_let_anybody_in_is_refused(tmp_path, uri_of, etcd):
    token = call(etcd, "auth/authenticate", name="root", password=USERS["root"])["token"]
    call(etcd, "auth/disable", token)
    with pytest.raises(MetadataUnauthorizedError, match="it would let anybody in"):
        await open_store(uri_of("bookie"))


def test_a_file_that_names_nobody_is_refused(tmp_path):
    file = tmp_path / "empty"
    file.write_text("\n")
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="is not USER:PASSWORD"):
        parse_uri(f"etcd://h/l?auth_file={file}")
    assert issubclass(MetadataUnauthorizedError, MetadataError)
