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
        "The address that API and console are served on. Off loopback they need token_file, "
        "ca_file or oidc_issuer.",
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
        (),
        "What clients with certificates may do: COMMON-NAME=ROLE; places may follow as in "
        "oidc_roles.",
    )
    oidc_issuer: str = option(
        "",
        "An OpenID Connect provider, whose tokens are let in: its address as its tokens have it in "
        "iss. Needs the extra oidc.",
    )
    oidc_client_id: str = option(
        "", "What the provider calls this server; tokens must be made for it.",
    )
    oidc_client_secret_file: str = option(
        "", "Its secret at the provider, for the console's sign-in, if it has one.", is_secret=True,
    )
    oidc_roles: tuple[str, ...] = option(
        (),
        "What people of the provider may do: VALUE=ROLE, by a value of oidc_roles_claim; "
        "VALUE=ROLE@/NAMESPACE and VALUE=ROLE@CLUSTER confine them. The highest role counts.",
    )
    oidc_roles_claim: str = option(
        "groups", "The claim that has the values; dots lead into others (realm_access.roles).",
    )
    oidc_name_claim: str = option(
        "preferred_username", "The claim by which the audit log names people; else sub.",
    )
    audit_stream: str = option(
        "",
        "A stream of the cluster, in the namespace /streams, that gets a record of each change, "
        "too; it is made if it is missing.",
    )
    files: bool = option(
        False,
        "Keep files in the cluster for Hadoop's clients, such as checkpoints of Spark: "
        "webhdfs://HOST:PORT/PATH, or swebhdfs:// with TLS.",
    )
    max_connections: int = option(
        256, "Connections at a time; further ones are closed.",
        minimum=1, maximum=100_000,
    )
    # fmt: on
