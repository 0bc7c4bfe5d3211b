"""Metadata URIs: which store, and where.

    sqlite:///data/metadata.db     a file, relative to the working directory
    sqlite:////var/lib/qb.db       a file, absolute
    memory://NAME                  in this process, shared by everybody who says NAME
    zk://HOST:PORT,HOST/ledgers    a ZooKeeper; more in ``zookeeper.address``
    etcd://h1:2379,h2/ledgers      etcd's endpoints, and where in the tree the cluster is

Only ``create=True`` (``quorumbook cluster init``, ``standalone``) makes a file.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorumbook.env import Env
from quorumbook.env.shown import shown
from quorumbook.errors import ConfigError
from quorumbook.metadata.cluster import check_layout
from quorumbook.metadata.etcd.address import parse_address as parse_etcd_address
from quorumbook.metadata.memory import MemoryStore, memory_tree
from quorumbook.metadata.paths import LayoutKind
from quorumbook.metadata.sqlite.store import SqliteStore
from quorumbook.metadata.store import DEFAULT_SESSION_TIMEOUT_S, MetadataStore
from quorumbook.metadata.zookeeper.address import parse_address, parse_layout
from quorumbook.metadata.zookeeper.store import ZooKeeperStore

_KNOWN = "sqlite:///FILE, zk://HOST:PORT/PATH, etcd://HOST:PORT/PATH and memory://NAME"


@dataclass(frozen=True, slots=True)
class MetadataUri:
    """A URI taken apart."""

    text: str
    #: "sqlite", "zk", "etcd" or "memory".
    scheme: str
    #: The file, the name of the tree, or for ZooKeeper and etcd the whole URI.
    location: str


def parse_uri(uri: str) -> MetadataUri:
    """Take a metadata URI apart.

    Raises:
        ConfigError: it is no metadata URI of this release.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator:
        raise ConfigError(f"metadata URI {shown(uri)!r} names no store; known are {_KNOWN}")
    if scheme.partition("+")[0] == "zk":
        return MetadataUri(uri, "zk", uri)
    if scheme == "memory":
        if not rest or "/" in rest:
            raise ConfigError(f"metadata URI {shown(uri)!r} is not of the form memory://NAME")
        return MetadataUri(uri, scheme, rest)
    if scheme == "sqlite":
        if not rest.startswith("/"):
            raise ConfigError(
                f"metadata URI {shown(uri)!r}: write sqlite:///{shown(rest)} for a "
                f"relative and sqlite:////{shown(rest)} for an absolute file"
            )
        if rest.strip("/") == "" or rest.endswith("/"):
            raise ConfigError(f"metadata URI {shown(uri)!r} names no file")
        return MetadataUri(uri, scheme, rest[1:])
    if scheme == "etcd":
        parse_etcd_address(uri)
        return MetadataUri(uri, scheme, uri)
    raise ConfigError(f"metadata URI {shown(uri)!r}: {scheme}:// is unknown; known are {_KNOWN}")


def named_layout(uri: str) -> LayoutKind | None:
    """Return the layout that a URI names, if it does; a new cluster gets it."""
    return parse_layout(uri) if parse_uri(uri).scheme == "zk" else None


async def open_store(
    uri: str,
    env: Env | None = None,
    *,
    create: bool = False,
    session_timeout_s: float = DEFAULT_SESSION_TIMEOUT_S,
) -> MetadataStore:
    """Open the store behind a URI and begin a session; close it with ``close()``.

    Raises:
        ConfigError: the URI is none of this release.
        ClusterNotInitializedError: there is no such file and ``create`` is false.
        MetadataFormatError: the file is damaged or none of ours.
        MetadataUnavailableError: it cannot be opened, or no server answers.
        MetadataUnauthorizedError: the servers refuse our credentials.
    """
    parsed = parse_uri(uri)
    if session_timeout_s <= 0:
        raise ConfigError(f"session timeout of {session_timeout_s:g} s is not above zero")
    env = env or Env()
    if parsed.scheme == "memory":
        tree = memory_tree(parsed.location)
        return MemoryStore(tree, env, uri=uri, session_timeout_s=session_timeout_s)
    if parsed.scheme == "zk":
        return await _open_zookeeper(uri, env, session_timeout_s)
    if parsed.scheme == "etcd":
        return await _open_etcd(uri, env, session_timeout_s)
    return await SqliteStore.open(
        parsed.location, env, uri=uri, create=create, session_timeout_s=session_timeout_s
    )


async def _open_zookeeper(uri: str, env: Env, session_timeout_s: float) -> MetadataStore:
    options = parse_address(uri)
    store = await ZooKeeperStore.open(options, env, uri=uri, session_timeout_s=session_timeout_s)
    try:
        await check_layout(store, parse_layout(uri))
    except BaseException:
        await store.close()
        raise
    return store


async def _open_etcd(uri: str, env: Env, session_timeout_s: float) -> MetadataStore:
    address = parse_etcd_address(uri)
    try:
        # Only here: what it imports comes with an extra.
        from quorumbook.metadata.etcd.store import EtcdStore  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"metadata URI {shown(uri)!r} needs grpcio: pip install 'quorumbook[etcd]'"
        ) from error
    return await EtcdStore.open(address, env, uri=uri, session_timeout_s=session_timeout_s)
