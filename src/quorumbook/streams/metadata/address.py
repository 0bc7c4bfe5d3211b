"""Where a namespace is: one text for it; pure.

sqlite:///data/metadata.db#/orders            any metadata URI, and a path in its tree
zk://h1:2181,h2:2181/ledgers#/orders          (``/streams`` if none is given)
distributedlog://h1:2181,h2:2181/orders       as the peer writes it; its binding says where
                                              the ledgers are
"""

from __future__ import annotations

import re
from typing import NamedTuple

from quorumbook.env.shown import shown
from quorumbook.errors import ConfigError

DEFAULT_PATH = "/streams"
_PEER = re.compile(r"distributedlog(-bk)?://([^/]+)(/.+)")
_ZOOKEEPER = re.compile(r"zk(\+\w+)?://([^/?]+)")


class NamespaceAddress(NamedTuple):
    """A namespace's address taken apart."""

    #: The metadata URI of the streams; in the peer's form with the usual path of the ledgers.
    metadata_uri: str
    #: The namespace's node.
    path: str
    #: Whether the binding decides where the ledgers are.
    is_peer_form: bool = False


def parse_address(text: str) -> NamespaceAddress:
    """Take a namespace's address apart.

    Raises:
        ConfigError: it is none.
    """
    match = _PEER.fullmatch(text)
    if match:
        servers = match[2].replace(";", ",")
        return NamespaceAddress(f"zk://{servers}/ledgers", _checked(match[3]), is_peer_form=True)
    if text.startswith("distributedlog"):
        raise ConfigError(
            f"namespace {shown(text)!r} is not of the form distributedlog://HOST:PORT/PATH"
        )
    metadata_uri, _, path = text.partition("#")
    return NamespaceAddress(metadata_uri, _checked(path or DEFAULT_PATH))


def servers_of(metadata_uri: str) -> str | None:
    """Return the servers as a binding names them: those of a ZooKeeper; None of another store."""
    match = _ZOOKEEPER.match(metadata_uri)
    if not match:
        return None
    chroot = re.search(r"[?&]chroot=(/[^&]*)", metadata_uri)
    return match[2].replace(";", ",") + (chroot[1] if chroot else "")


def _checked(path: str) -> str:
    path = path.rstrip("/")
    if not re.fullmatch(r"(/[^/#]+)+", path):
        raise ConfigError(
            f"{shown(path)!r} is not a path of a namespace; the usual one is {DEFAULT_PATH}"
        )
    return path
