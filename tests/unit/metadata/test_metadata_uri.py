"""Metadata URIs: what is known, and what each mistake is told."""

from __future__ import annotations

import pytest

from quorumbook.env.shown import shown
from quorumbook.errors import ConfigError
from quorumbook.metadata.etcd.address import parse_address
from quorumbook.metadata.memory import forget_memory_tree
from quorumbook.metadata.uri import MetadataUri, open_store, parse_uri


@pytest.mark.parametrize(
    ("uri", "scheme", "location"),
    [
        ("sqlite:///data/metadata.db", "sqlite", "data/metadata.db"),
        ("sqlite:///./metadata.db", "sqlite", "./metadata.db"),
        ("sqlite:////var/lib/metadata.db", "sqlite", "/var/lib/metadata.db"),
        ("memory://test", "memory", "test"),
        ("zk://h1:2181/ledgers", "zk", "zk://h1:2181/ledgers"),
        ("zk+flat://h1/a", "zk", "zk+flat://h1/a"),
    ],
)
def test_a_known_uri_is_taken_apart(uri, scheme, location):
    assert parse_uri(uri) == MetadataUri(uri, scheme, location)


@pytest.mark.parametrize(
    ("uri", "endpoints", "root"),
    [
        ("etcd://h1:2379,h2:99/ledgers", ("h1:2379", "h2:99"), "/ledgers"),
        ("etcd://h1,h2/a/b", ("h1:2379", "h2:2379"), "/a/b"),
        ("etcd://[::1]:4/a", ("[::1]:4",), "/a"),
        ("etcd://[::1]/a", ("[::1]:2379",), "/a"),
    ],
)
def test_an_etcd_uri_names_endpoints_and_a_place_in_the_tree(uri, endpoints, root):
    assert parse_uri(uri).scheme == "etcd"
    assert parse_address(uri) == (endpoints, root, None, None)


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "metadata.db",
        "/var/lib/metadata.db",
        "redis://h/0",
        "postgres://h/db",
        "zkx://h",
        "://x",
    ],
)
def test_an_unknown_scheme_is_told_the_known_ones(uri):
    with pytest.raises(
        ConfigError,
        match="sqlite:///FILE, zk://HOST:PORT/PATH, etcd://HOST:PORT/PATH and memory://NAME",
    ):
        parse_uri(uri)


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("etcd://", "HOST:PORT"),
        ("etcd:///ledgers", "HOST:PORT"),
        ("etcd://h1,/ledgers", "HOST:PORT"),
        ("etcd://h1:0/ledgers", "HOST:PORT"),
        ("etcd://h1:x/ledgers", "HOST:PORT"),
        ("etcd://user:word@h1/ledgers", "HOST:PORT"),
        ("etcd://h1", "ends like /ledgers"),
        ("etcd://h1/", "ends like /ledgers"),
        ("etcd://h1//a", "ends like /ledgers"),
        ("etcd://h1/a?b=c", "known are tls"),
        ("etcd://h1/a#b", "ends like /ledgers"),
        ("sqlite://", "sqlite:///"),
        ("sqlite://data/metadata.db", "sqlite:///data/metadata.db"),
        ("sqlite:///", "names no file"),
        ("sqlite:////", "names no file"),
        ("sqlite:///data/", "names no file"),
        ("memory://", "memory://NAME"),
        ("memory://a/b", "memory://NAME"),
    ],
)
def test_a_uri_of_the_wrong_form_is_told_the_right_one(uri, says):
    with pytest.raises(ConfigError, match=says) as caught:
        parse_uri(uri)
    assert repr(shown(uri)) in str(caught.value)


async def test_a_session_timeout_is_above_zero():
    for timeout_s in (0, -1):
        with pytest.raises(ConfigError, match="session timeout"):
            await open_store("memory://unused", session_timeout_s=timeout_s)


async def test_one_name_is_one_tree_in_the_whole_process():
    first = await open_store("memory://shared")
    second = await open_store("memory://shared")
    stranger = await open_store("memory://other")
    await first.create("/a")
    assert await second.children("/") == ["a"]
    assert await stranger.children("/") == []
    for store in (first, second, stranger):
        await store.close()
    again = await open_store("memory://shared")
    assert await again.children("/") == ["a"]
    await again.close()
    forget_memory_tree("shared")
    forget_memory_tree("other")
    fresh = await open_store("memory://shared")
    assert await fresh.children("/") == []
    await fresh.close()
    forget_memory_tree("shared")


async def test_a_store_knows_what_it_was_opened_with(tmp_path):
    for uri in ("memory://known", f"sqlite:///{tmp_path}/metadata.db"):
        store = await open_store(uri, create=True, session_timeout_s=7.5)
        assert (store.uri, store.session_timeout_s) == (uri, 7.5)
        assert store.ledgers_root == "/ledgers"
        await store.close()
    forget_memory_tree("known")
