"""Addresses: ``etcd://HOST:PORT,HOST/ledgers``; endpoints of one etcd, and a place in its tree."""

from __future__ import annotations

from quorumbook.errors import ConfigError, LocalProtocolError
from quorumbook.metadata.store import check_path

_DEFAULT_PORT = 2379


def parse_address(uri: str) -> tuple[tuple[str, ...], str]:
    """Return the endpoints and the ledgers root that a URI names.

    Raises:
        ConfigError: it is no such URI.
    """
    hosts, slash, root = uri.partition("://")[2].partition("/")
    endpoints = tuple(_with_port(uri, host) for host in hosts.split(","))
    path = slash + root
    try:
        check_path(path)
    except LocalProtocolError as error:
        raise ConfigError(
            f"metadata URI {uri!r} names no place in the tree; it ends like /ledgers"
        ) from error
    if path == "/" or set(path) & set("?#"):
        raise ConfigError(f"metadata URI {uri!r} names no place in the tree; it ends like /ledgers")
    return endpoints, path


def _with_port(uri: str, host: str) -> str:
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host, str(_DEFAULT_PORT)
    is_port = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    if not name or not is_port or set(name) & set("@?#% "):
        raise ConfigError(f"metadata URI {uri!r}: {host!r} is not HOST or HOST:PORT")
    return f"{name}:{port}"
