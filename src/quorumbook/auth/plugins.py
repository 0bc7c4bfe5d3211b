"""The interface of authentication plug-ins, and how one is found by its name.

A plug-in is a class of somebody else's.  The configuration names it by an entry point that its
package declares in the group ``quorumbook.client_auth`` or ``quorumbook.bookie_auth``, or, where
code may be named (``config.trust``), as ``module:Class``.  It is made once with one text, its
settings.  Its messages travel as AUTH messages, in v2 and v3 alike:

    client                                   bookie
    plugin.session(peer)                     plugin.session(peer)
    session.start()             ---------->  session.answer(payload) -> Step
    session.answer(payload)     <----------
       ... until the bookie's Step has a principal and the client's answer is None, or a
       LastMessage, to which no answer comes

A bookie's plug-in that needs no messages, because the certificate says it all, tells the principal
in ``identify``, which is asked when a connection opens and again when it has switched to TLS.
Either side refuses by raising ``SecurityError``.  Payloads are secrets and are never logged.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from quorumbook.errors import ConfigError

#: What a bookie without authentication calls it (protocol 1.3).
AUTH_DISABLED = "AuthDisabledPlugin"

#: Short names, and the peer's, of the built-in plug-ins: the client's class and the bookie's.
_BUILT_IN = {
    "shared-secret": (
        "quorumbook.auth.shared_secret:ClientSharedSecret",
        "quorumbook.auth.shared_secret:BookieSharedSecret",
    ),
    "certificate-role": ("", "quorumbook.auth.certificate_role:CertificateRole"),
    "sasl-digest-md5": (
        "quorumbook.auth.sasl:ClientDigestMd5",
        "quorumbook.auth.sasl:BookieDigestMd5",
    ),
    "sasl-kerberos": ("quorumbook.auth.sasl:ClientKerberos", "quorumbook.auth.sasl:BookieKerberos"),
    "org.apache.bookkeeper.tls.BookieAuthZFactory": (
        "",
        "quorumbook.auth.certificate_role:CertificateRole",
    ),
}


_GROUPS = ("quorumbook.client_auth", "quorumbook.bookie_auth")


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection, as far as the transport knows it."""

    #: Its address, for messages.
    address: str
    is_encrypted: bool = False
    #: The verified certificate in the form of ``ssl.SSLSocket.getpeercert()``, if it showed one.
    certificate: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a client has proven to be."""

    name: str
    roles: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, repr=False)
class Step:
    """The bookie's answer to one message; with a principal, the last, which may be none at all."""

    payload: bytes | None = b""
    principal: Principal | None = None
    #: Why the connection ends, for the log; the payload tells the client, where it can hear that.
    refusal: str = ""


class LastMessage(bytes):
    """A client's message that the bookie answers only by letting it in."""


class ClientSession(Protocol):
    """The client's side on one connection."""

    def start(self) -> bytes:
        """Return the first message."""
        ...

    def answer(self, payload: bytes) -> bytes | None:
        """Return the next message, or None when the bookie is known to be content."""
        ...


class ClientPlugin(Protocol):
    """The client's side.

    The sessions of one with a true ``waits_for_others`` ask another host, and run in a thread.
    """

    #: What the messages carry; the bookie's plug-in must have the same.
    name: str

    def session(self, peer: Peer) -> ClientSession:
        """Begin on a connection."""
        ...


class BookieSession(Protocol):
    """The bookie's side on one connection."""

    def answer(self, payload: bytes) -> Step:
        """Answer a message."""
        ...


class BookiePlugin(Protocol):
    """The bookie's side.

    One with a true ``needs_authorized_roles`` is refused without ``bookie.authorized_roles``.
    """

    name: str

    def identify(self, peer: Peer) -> Principal | None:
        """Return who this is, where no messages are needed."""
        ...

    def session(self, peer: Peer) -> BookieSession:
        """Begin on a connection."""
        ...


def is_built_in(name: str) -> bool:
    """Tell whether a plug-in is one of ours; their settings name files, and hold no secret."""
    return name in _BUILT_IN


def load_client_plugin(name: str, settings: str) -> ClientPlugin | None:
    """Return the client's plug-in of this name, None for an empty one.

    Raises:
        ConfigError: there is none of this name, or it does not take the settings.
    """
    return cast("ClientPlugin | None", _load(name, settings, 0, "client.auth_plugin"))


def load_bookie_plugin(name: str, settings: str) -> BookiePlugin | None:
    """Return the bookie's plug-in of this name, None for an empty one.

    Raises:
        ConfigError: there is none of this name, or it does not take the settings.
    """
    return cast("BookiePlugin | None", _load(name, settings, 1, "bookie.auth_plugin"))


def _load(name: str, settings: str, side: int, option: str) -> object | None:
    if not name:
        return None
    path = _BUILT_IN[name][side] if name in _BUILT_IN else name
    if not path:
        raise ConfigError(
            f"{option}: {name} needs nothing of the client but its certificate; leave it empty "
            "and set tls.client_authentication"
        )
    module, colon, attribute = path.partition(":")
    if not colon:
        module, attribute = _installed(name, side, option)
    try:
        made = getattr(importlib.import_module(module), attribute)(settings)
    except ConfigError as error:
        raise ConfigError(f"{option} {name}: {error}") from None
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{option}: {name} cannot be found: {error}") from None
    if not isinstance(getattr(made, "name", None), str):
        raise ConfigError(f"{option}: {name} is not a plug-in; it has no name for its messages")
    return cast(object, made)


def _installed(name: str, side: int, option: str) -> tuple[str, str]:
    """Return module and class of the plug-in that an installed package calls by this name."""
    found = importlib.metadata.entry_points(group=_GROUPS[side])
    if name in found.names:
        return found[name].module, found[name].attr
    built_in = (key for key, sides in _BUILT_IN.items() if sides[side] and "." not in key)
    known = ", ".join([*built_in, *sorted(found.names)])
    raise ConfigError(
        f"{option}: {name!r} is not an installed plug-in; give module:Class, or one of {known}"
    )
