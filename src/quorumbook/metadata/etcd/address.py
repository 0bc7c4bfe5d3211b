"""etcd metadata URIs: endpoints of one etcd, and a place in its tree.

etcd://HOST:PORT,HOST/ledgers[?auth_file=FILE&tls.ca_file=FILE&...]

    auth_file=FILE    a file with USER:PASSWORD in its first line, where etcd asks for it
    tls.*             see ``metadata.tls``
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qsl

from quorumbook.auth.accounts import Account
from quorumbook.env.shown import shown
from quorumbook.env.tls import TlsOptions
from quorumbook.errors import ConfigError, LocalProtocolError
from quorumbook.metadata.login import read_login
from quorumbook.metadata.store import check_path
from quorumbook.metadata.tls import TLS_OPTIONS, parse_tls

_DEFAULT_PORT = 2379
#: What the library for etcd's connections has no place for.
_NOT_HERE = ("tls.verify_host", "tls.key_password_file", "tls.crl_file")
_OPTIONS = (*(name for name in TLS_OPTIONS if name not in _NOT_HERE), "auth_file")


class EtcdAddress(NamedTuple):
    """What a URI names."""

    endpoints: tuple[str, ...]
    ledgers_root: str
    tls: TlsOptions | None
    login: Account | None = None


def parse_address(uri: str) -> EtcdAddress:
    """Take a URI apart; reads the file of credentials.

    Raises:
        ConfigError: it is no such URI, or the file cannot be read.
    """
    address, _, query = uri.partition("://")[2].partition("?")
    hosts, slash, root = address.partition("/")
    endpoints = tuple(_with_port(uri, host) for host in hosts.split(","))
    path = slash + root
    try:
        check_path(path)
    except LocalProtocolError as error:
        raise ConfigError(
            f"metadata URI {shown(uri)!r} names no place in the tree; it ends like /ledgers"
        ) from error
    if path == "/" or "#" in path:
        raise ConfigError(
            f"metadata URI {shown(uri)!r} names no place in the tree; it ends like /ledgers"
        )
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in _OPTIONS:
            known = ", ".join(_OPTIONS)
            raise ConfigError(
                f"metadata URI {shown(uri)!r}: {name!r} is not known here; known are {known}"
            )
    login = read_login(options["auth_file"]) if "auth_file" in options else None
    return EtcdAddress(endpoints, path, parse_tls(uri, options), login)


def _with_port(uri: str, host: str) -> str:
    name, colon, port = host.rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host, str(_DEFAULT_PORT)
    is_port = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    if not name or not is_port or set(name) & set("@?#% "):
        raise ConfigError(f"metadata URI {shown(uri)!r}: {shown(host)!r} is not HOST or HOST:PORT")
    return f"{name}:{port}"
