"""A client is who its certificate says: the role in its organizational unit.

The peer calls this plug-in ``BookieAuthZFactory`` and reads the first organizational unit (OU) of
the subject, which holds numbered values, ``0:`` the roles and ``1:`` the cluster:

    OU=0:writer,reader;1:main

Of several roles the first one counts, and of several values with one number the last, as at the
peer.  No message is needed: a connection is authenticated by the switch to TLS with a client's
certificate (``tls.client_authentication``).  The bookie's option ``authorized_roles`` says which
roles may come in; without it the bookie does not start, since any certificate would do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from quorumbook.auth.plugins import BookieSession, Peer, Principal, Step
from quorumbook.errors import SecurityError

_VALUE = re.compile(r"([0-9]+):(.*)$")
_ROLES = "0"
_UNIT = "organizationalUnitName"
#: The peer sees of a name with several parts the one whose short name is first in the alphabet.
_BEHIND_UNIT = frozenset({_UNIT, "stateOrProvinceName", "streetAddress", "userId"})
#: What the peer trims.
_BLANKS = "".join(map(chr, range(33)))


class CertificateRole:
    """The bookie's side; there is none for the client."""

    name = "BookieAuthZFactory"
    needs_authorized_roles = True

    def __init__(self, settings: str = "") -> None:
        """Take no settings."""

    def identify(self, peer: Peer) -> Principal | None:
        """Return the certificate's role; None before TLS."""
        if not peer.is_encrypted:
            return None
        if peer.certificate is None:
            raise SecurityError(
                "it showed no certificate; set tls.client_authentication on both sides"
            )
        roles = roles_of(peer.certificate)
        if not roles or not roles[0]:
            raise SecurityError(
                "its certificate has no role; issue one with an organizational unit like 0:ROLE"
            )
        return Principal(roles[0], frozenset(roles[:1]))

    def session(self, peer: Peer) -> BookieSession:
        """Refuse messages: there is nothing to say in them."""
        return _Speechless()


class _Speechless:
    def answer(self, payload: bytes) -> Step:
        raise SecurityError("a certificate's role is not proven by messages; connect with TLS")


def roles_of(certificate: Mapping[str, Any]) -> list[str]:
    """Return the roles in the first organizational unit of a certificate's subject."""
    for names in certificate.get("subject", ()):
        units = [value for kind, value in names if kind == _UNIT]
        if units and all(kind in _BEHIND_UNIT for kind, _ in names):
            return _roles(min(units))
    return []


def _roles(unit: str) -> list[str]:
    found = [
        match[2] for match in map(_VALUE.match, unit.split(";")) if match and match[1] == _ROLES
    ]
    return [role.strip(_BLANKS) for role in found[-1].split(",")] if found else []
