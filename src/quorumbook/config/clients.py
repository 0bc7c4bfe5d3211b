"""What clients are made with, out of the values of all options."""

from __future__ import annotations

from typing import Any

from quorumbook.config.load import Settings
from quorumbook.env import TlsOptions
from quorumbook.ledger.placement.labels import parse_labels
from quorumbook.ledger.placement.options import PlacementOptions

#: Options of the client section that belong to ``create_ledger``.
_NEW_LEDGER = ("ensemble_size", "write_quorum_size", "ack_quorum_size", "digest_type")


def client_options(settings: Settings) -> dict[str, Any]:
    """Return what a client takes as keyword arguments of ``quorumbook.connect``."""
    values: dict[str, Any] = settings.section("client")
    for name in _NEW_LEDGER:
        values.pop(name)
    values["max_ensemble_changes"] = values["max_ensemble_changes"] or None
    values["session_timeout_s"] = settings.number("metadata.session_timeout_s")
    values["tls"] = tls_options(settings)
    values["bookie_labels"] = parse_labels(values["bookie_labels"], "client.bookie_labels")
    placement: dict[str, Any] = settings.section("placement")
    values["placement"] = PlacementOptions(**placement)
    return values


def tls_options(settings: Settings) -> TlsOptions | None:
    """Return the tls section as a bookie and a client take it; None if it is off."""
    values: dict[str, Any] = settings.section("tls")
    is_enabled = values.pop("enabled")
    for name in ("key_format", "ca_format"):
        values.pop(name)
    return TlsOptions(**values) if is_enabled else None
