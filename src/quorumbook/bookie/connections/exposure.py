"""Tells whether strangers can use a bookie, by the addresses it listens on and what it demands.

The warning names what is missing and which options set it.  What TLS and authentication demand
of a connection is in ``admission.py``.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from quorumbook.bookie.options import BookieOptions


def exposure(options: BookieOptions, addresses: Iterable[str]) -> str | None:
    """Return a warning of one line, None if there is nothing to warn of.

    Args:
        options: What the bookie demands of connections.
        addresses: The IP addresses that it listens on.
    """
    open_addresses = [a for a in addresses if not ipaddress.ip_address(a).is_loopback]
    missing, to_set = [], []
    tls = options.tls
    if tls is None:
        missing.append("TLS")
        to_set += ["tls.enabled", "tls.require", "tls.certificate_file", "tls.key_file"]
    elif not tls.require:
        missing.append("demanding TLS")
        to_set.append("tls.require")
    # A certificate that the CA has signed says who is there, but only where TLS is demanded.
    is_certified = tls is not None and tls.require and tls.client_authentication
    if not options.auth_plugin and not is_certified:
        missing.append("authentication")
        to_set.append("bookie.auth_plugin (or tls.client_authentication)")
    if not open_addresses or not missing:
        return None
    return (
        f"the bookie listens on {', '.join(open_addresses)} without {' and without '.join(missing)}"
        ": every host that reaches it can read and write its ledgers, or listen in. Set "
        f"{', '.join(to_set)}; docs/security.md shows how"
    )
