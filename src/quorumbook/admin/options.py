"""Where the HTTP API and the console are served, and whom they let in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quorumbook.options import Options, option


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminOptions(Options):
    """The options of ``quorumbook admin run`` and ``quorumbook console``."""

    SECTION: ClassVar[str] = "admin"

    # fmt: off
    host: str = option(
        "127.0.0.1",
        "The address that API and console are served on. Off loopback they need token_file or "
        "ca_file.",
    )
    port: int = option(
        8085, "Their port; 0 takes a free one.",
        minimum=0, maximum=65535,
    )
    names: tuple[str, ...] = option(
        (), "Further names by which requests may ask for this server in Host.",
    )
    token_file: str = option(
        "",
        "Where `quorumbook token add` keeps tokens, as hashes. With it every request carries one, "
        "also on loopback.",
        is_secret=True,
    )
    certificate_file: str = option(
        "", "PEM file with the certificate and chain of this server; empty: no TLS.",
    )
    key_file: str = option("", "Its key, PEM.", is_secret=True)
    ca_file: str = option(
        "", "Who signs certificates of clients; these take the place of a token.",
    )
    certificate_roles: tuple[str, ...] = option(
        (), "What clients with certificates may do: COMMON-NAME=ROLE.",
    )
    max_connections: int = option(
        256, "Connections at a time; further ones are closed.",
        minimum=1, maximum=100_000,
    )
    # fmt: on
