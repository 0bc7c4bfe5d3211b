"""Metadata URIs: which store, and where.

    sqlite:///data/metadata.db     a file, relative to the working directory
    sqlite:////var/lib/qb.db       a file, absolute
    memory://NAME                  in this process, shared by everybody who says NAME

Only ``create=True`` (``quorumbook cluster init``, ``standalone``) makes a file.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorumbook.env import Env
from quorumbook.errors import ConfigError
from quorumbook.metadata.memory import MemoryStore, memory_tree
from quorumbook.metadata.sqlite import SqliteStore
from quorumbook.metadata.store import DEFAULT_SESSION_TIMEOUT_S, MetadataStore

_KNOWN = "sqlite:///FILE and memory://NAME"
_LATER = {"zk": "ZooKeeper", "etcd": "etcd"}


@dataclass(frozen=True, slots=True)
class MetadataUri:
    """A URI taken apart."""

    text: str
    #: "sqlite" or "memory".
    scheme: str
    #: The file, or the name of the tree.
    location: str


def parse_uri(uri: str) -> MetadataUri:
    """Take a metadata URI apart.

    Raises:
        ConfigError: it is no metadata URI of this release.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator:
        raise ConfigError(f"metadata URI {uri!r} names no store; known are {_KNOWN}")
    driver = _LATER.get(scheme.partition("+")[0])
    if driver is not None:
        raise ConfigError(
            f"metadata URI {uri!r}: {scheme}:// comes with the {driver} driver, which is not in "
            f"this release; known are {_KNOWN}"
        )
    if scheme == "memory":
        if not rest or "/" in rest:
            raise ConfigError(f"metadata URI {uri!r} is not of the form memory://NAME")
        return MetadataUri(uri, scheme, rest)
    if scheme == "sqlite":
        if not rest.startswith("/"):
            raise ConfigError(
                f"metadata URI {uri!r}: write sqlite:///{rest} for a relative and "
                f"sqlite:////{rest} for an absolute file"
            )
        if rest.strip("/") == "" or rest.endswith("/"):
            raise ConfigError(f"metadata URI {uri!r} names no file")
        return MetadataUri(uri, scheme, rest[1:])
    raise ConfigError(f"metadata URI {uri!r}: {scheme}:// is unknown; known are {_KNOWN}")


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
        MetadataUnavailableError: it cannot be opened.
    """
    parsed = parse_uri(uri)
    if session_timeout_s <= 0:
        raise ConfigError(f"session timeout of {session_timeout_s:g} s is not above zero")
    env = env or Env()
    if parsed.scheme == "memory":
        tree = memory_tree(parsed.location)
        return MemoryStore(tree, env, uri=uri, session_timeout_s=session_timeout_s)
    return await SqliteStore.open(
        parsed.location, env, uri=uri, create=create, session_timeout_s=session_timeout_s
    )
