"""ZooKeeper URIs: every spelling of the peer, our options, and what each mistake is told."""

from __future__ import annotations

import pytest

from quorumbook.errors import ConfigError
from quorumbook.metadata.paths import LayoutKind
from quorumbook.metadata.zookeeper import address
from quorumbook.metadata.zookeeper.address import parse_layout
from quorumbook.metadata.zookeeper.jute import CREATOR_ACL, OPEN_ACL


def parse_address(uri):
    return address.parse_address(uri)


@pytest.mark.parametrize(
    ("uri", "servers", "root"),
    [
        ("zk://h1:2181,h2:2182/ledgers", [("h1", 2181), ("h2", 2182)], "/ledgers"),
        ("zk+null://h1;h2:99;h3/ledgers", [("h1", 2181), ("h2", 99), ("h3", 2181)], "/ledgers"),
        ("zk+hierarchical://10.0.0.1:5/a/b/ledgers", [("10.0.0.1", 5)], "/a/b/ledgers"),
        ("zk+flat://[::1]:2181,[fe80::2]/x/", [("::1", 2181), ("fe80::2", 2181)], "/x"),
    ],
)
def test_servers_and_root_are_taken_from_a_uri(uri, servers, root):
    options = parse_address(uri)
    assert (options.servers, options.ledgers_root) == (servers, root)
    assert (options.chroot, options.credential, options.acl) == ("", None, OPEN_ACL)


@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        ("zk://h/l", None),
        ("zk+null://h/l", None),
        ("zk+flat://h/l", LayoutKind.FLAT),
        ("zk+hierarchical://h/l", LayoutKind.HIERARCHICAL),
        ("zk+longhierarchical://h/l", LayoutKind.LONG_HIERARCHICAL),
        ("zk+legacyhierarchical://h/l", LayoutKind.LEGACY_HIERARCHICAL),
    ],
)
def test_a_layout_is_named_as_the_peer_names_it(uri, kind):
    assert parse_layout(uri) is kind


def test_options_stand_behind_a_question_mark(tmp_path):
    file = tmp_path / "auth"
    file.write_text("me:se:cret\nignored\n")
    file.chmod(0o600)
    options = parse_address(f"zk://h/l?acl=creator&auth_file={file}&chroot=/top/a")
    assert options.credential.scheme == "digest"
    assert options.credential.secret == b"me:se:cret"
    assert (options.acl, options.chroot, options.ledgers_root) == (CREATOR_ACL, "/top/a", "/l")
    assert "cret" not in repr(options)


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("zk://", "HOST:PORT"),
        ("zk:///ledgers", "HOST:PORT"),
        ("zk://h", "names no path"),
        ("zk://h/", "names no path"),
        ("zk://h//ledgers", "empty or relative"),
        ("zk://h:0/l", "HOST:PORT"),
        ("zk://h:65536/l", "HOST:PORT"),
        ("zk://h:x/l", "HOST:PORT"),
        ("zk://h1,/l", "HOST:PORT"),
        ("zk://::1/l", "HOST:PORT"),
        ("zk+mystic://h/l", "'mystic' is unknown; known are flat"),
        ("zk://h/l?colour=blue", "'colour' is unknown; known are acl"),
        ("zk://h/l?acl=mine", "open or creator"),
        ("zk://h/l?acl=creator", "auth_file=FILE"),
        ("zk://h/l?chroot=x", "not absolute"),
        ("zk://h/l?auth_file=/nowhere/at/all", "No such file"),
    ],
)
def test_a_mistake_in_a_uri_is_told(uri, says):
    with pytest.raises(ConfigError, match=says):
        parse_address(uri)


def test_a_file_of_credentials_without_a_password_is_refused_without_showing_it(tmp_path):
    file = tmp_path / "auth"
    file.write_text("secret\n")
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="not USER:PASSWORD") as caught:
        parse_address(f"zk://h/l?auth_file={file}")
    assert "secret" not in str(caught.value)


def test_a_password_in_a_uri_is_not_repeated():
    with pytest.raises(ConfigError, match="auth_file=FILE") as caught:
        parse_address("zk://me:secret@h:2181/l")
    assert "secret" not in str(caught.value)


def test_a_file_for_sasl_is_read_like_the_other(tmp_path):
    file = tmp_path / "sasl"
    file.write_text("me:se:cret\n")
    file.chmod(0o600)
    options = parse_address(f"zk://h/l?acl=creator&sasl_file={file}")
    assert (options.credential.scheme, options.credential.secret) == ("sasl", b"me:se:cret")
    assert options.acl == CREATOR_ACL
    with pytest.raises(ConfigError, match="name one of auth_file, sasl_file and kerberos=true"):
        parse_address(f"zk://h/l?auth_file={file}&sasl_file={file}")
