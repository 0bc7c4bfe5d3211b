"""A client is who its certificate says: the role in its organizational unit.

The peer calls this plug-in ``BookieAuthZFactory`` and reads the first organizational unit (OU) of
the subject, which holds numbered values, ``0:`` the roles and ``1:`` the cluster:

    OU=0:writer,reader;1:main

Of several roles the first one counts, as at the peer.  No message is needed: a connection is
authenticated by the switch to TLS with a client's certificate (``tls.client_authentication``).
Which roles may come in says the bookie's option ``authorized_roles``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from quorumbook.auth.plugins import BookieSession, Peer, Principal, Step
from quorumbook.errors import SecurityError

_VALUE = re.compile(r"([0-9]+):(.*)")
_ROLES = "0"


class CertificateRole:
    """The bookie's side; there is none for the client."""

    name = "BookieAuthZFactory"

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
        if not roles:
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
        for kind, value in names:
            if kind == "organizationalUnitName":
                return _roles(value)
    return []


def _roles(unit: str) -> list[str]:
    for part in unit.split(";"):
        match = _VALUE.match(part)
        if match and match[1] == _ROLES:
            return [role.strip() for role in match[2].split(",") if role.strip()]
    return []
