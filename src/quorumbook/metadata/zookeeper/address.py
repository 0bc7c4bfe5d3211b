"""ZooKeeper metadata URIs.

    zk[+LAYOUT]://HOST[:PORT],HOST[:PORT]/PATH[?OPTION=VALUE&...]

Hosts may be separated by ``;``, as the peer writes them.  PATH is where the cluster's tree
begins.  LAYOUT is flat, legacyhierarchical, hierarchical or longhierarchical; without one, or with
``null``, the cluster's own counts.  Options:

    acl=open|creator   who may read and change what we create: everybody, or only whoever has
                       our credentials
    auth_file=FILE     a file with USER:PASSWORD in its first line, for the scheme digest
    sasl_file=FILE     the same for the scheme sasl, by DIGEST-MD5
    kerberos=true      the scheme sasl by Kerberos, with the tickets of ``kinit``, or with
                       kerberos.principal=NAME@REALM and kerberos.keytab=FILE; one of the three;
                       kerberos.service=NAME if the servers' principals do not begin with zookeeper
    chroot=/PATH       all paths, the cluster's included, are below this node
    tls=true, tls.*    the servers' port for TLS: see ``metadata.tls``
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

from quorumbook.auth.kerberos import KerberosIdentity
from quorumbook.env.shown import shown
from quorumbook.errors import ConfigError, LocalProtocolError
from quorumbook.metadata.login import read_login
from quorumbook.metadata.paths import LayoutKind
from quorumbook.metadata.store import check_path
from quorumbook.metadata.tls import TLS_OPTIONS, parse_tls
from quorumbook.metadata.zookeeper import jute
from quorumbook.metadata.zookeeper.session import Credential
from quorumbook.metadata.zookeeper.store import ZooKeeperOptions

_DEFAULT_PORT = 2181
_SERVER = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\s:\[\]@]+))(?::(\d{1,5}))?")
_ACLS = {"open": jute.OPEN_ACL, "creator": jute.CREATOR_ACL}
_NO_LAYOUT = ("", "null")
_FILES = {"auth_file": "digest", "sasl_file": "sasl"}
_KERBEROS_OPTIONS = ("kerberos.principal", "kerberos.keytab", "kerberos.service")
_OPTIONS = ("acl", *_FILES, "kerberos", *_KERBEROS_OPTIONS, "chroot", *TLS_OPTIONS)


def parse_layout(uri: str) -> LayoutKind | None:
    """Return the layout that a URI names, if it does.

    Raises:
        ConfigError: there is none of this name.
    """
    name = uri.partition("://")[0].partition("+")[2]
    if name in _NO_LAYOUT:
        return None
    try:
        return LayoutKind(name)
    except ValueError:
        known = ", ".join(kind.value for kind in LayoutKind)
        raise ConfigError(
            f"metadata URI {shown(uri)!r}: layout {name!r} is unknown; known are {known} and null"
        ) from None


def parse_address(uri: str) -> ZooKeeperOptions:
    """Take the part behind the scheme apart; reads the file of credentials.

    Raises:
        ConfigError: it is not of the form above, or the file cannot be read.
    """
    parse_layout(uri)
    address, _, query = uri.partition("://")[2].partition("?")
    hosts, slash, path = address.partition("/")
    if "@" in hosts:
        # Not even the message repeats a password.
        raise ConfigError("a metadata URI holds no password: name a file, zk://...?auth_file=FILE")
    servers = [_server(uri, each) for each in re.split("[,;]", hosts)]
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in _OPTIONS:
            raise ConfigError(
                f"metadata URI {shown(uri)!r}: option {name!r} is unknown; known are "
                + ", ".join(_OPTIONS)
            )
    acl = options.get("acl", "open")
    if acl not in _ACLS:
        raise ConfigError(f"metadata URI {shown(uri)!r}: acl is open or creator, not {acl!r}")
    credential = _credential(uri, options)
    if acl == "creator" and credential is None:
        raise ConfigError(
            f"metadata URI {shown(uri)!r}: acl=creator needs credentials: auth_file=FILE, "
            "sasl_file=FILE or kerberos=true"
        )
    return ZooKeeperOptions(
        servers=servers,
        ledgers_root=_path(uri, slash + path.rstrip("/")),
        chroot=_path(uri, options["chroot"]) if "chroot" in options else "",
        credential=credential,
        acl=_ACLS[acl],
        tls=parse_tls(uri, options),
    )


def _server(uri: str, text: str) -> tuple[str, int]:
    match = _SERVER.fullmatch(text)
    port = int(match[3] or _DEFAULT_PORT) if match else 0
    if match is None or not 0 < port < 65536:
        raise ConfigError(f"metadata URI {shown(uri)!r}: {text!r} is not of the form HOST:PORT")
    return match[1] or match[2], port


def _path(uri: str, path: str) -> str:
    try:
        check_path(path or "/")
    except LocalProtocolError as error:
        raise ConfigError(f"metadata URI {shown(uri)!r}: {error}") from None
    if path in ("", "/"):
        raise ConfigError(f"metadata URI {shown(uri)!r} names no path; the usual one is /ledgers")
    return path


def _credential(uri: str, options: dict[str, str]) -> Credential | None:
    given = [name for name in _FILES if name in options]
    kerberos = {name: options[name] for name in _KERBEROS_OPTIONS if name in options}
    if options.get("kerberos", "false") not in ("true", "false") or (
        kerberos and options.get("kerberos") != "true"
    ):
        raise ConfigError(f"metadata URI {shown(uri)!r}: kerberos.* go with kerberos=true")
    if len(given) + (options.get("kerberos") == "true") > 1:
        raise ConfigError(
            f"metadata URI {shown(uri)!r}: name one of auth_file, sasl_file and kerberos=true"
        )
    if given:
        login = read_login(options[given[0]])
        return Credential(_FILES[given[0]], f"{login.name}:{login.secret}".encode())
    if options.get("kerberos") != "true":
        return None
    identity = KerberosIdentity(
        principal=kerberos.get("kerberos.principal", ""),
        keytab=kerberos.get("kerberos.keytab", ""),
        service=kerberos.get("kerberos.service", "zookeeper"),
    )
    identity.check()
    return Credential("sasl", kerberos=identity)
