"""``quorumbook token``: bearer tokens for the HTTP API and the console."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand, Commands
from quorumbook.cli.errors import UnknownNameError
from quorumbook.cli.output import Moment
from quorumbook.errors import ConfigError

if TYPE_CHECKING:
    from quorumbook.admin.access.tokens import TokenFile

_DAY_S = 86_400
_file_option = click.option(
    "--file", "path", metavar="FILE", help="Where tokens are kept [default: admin.token_file]."
)


@click.group(cls=Commands)
def token() -> None:
    """Make, list and revoke tokens for the HTTP API and the console."""


@token.command("add", cls=ClusterCommand, has_metadata=False)
@click.argument("name")
@click.option("--role", type=click.Choice(["viewer", "operator", "admin"]), required=True,
              help="What the token may be used for.")  # fmt: skip
@click.option("--days", type=click.FloatRange(0.001, 36500), default=90, show_default=True,
              help="How long it is valid.")  # fmt: skip
@click.option("--namespace", "namespaces", multiple=True, metavar="PATH",
              help="Allow it only the streams below PATH; may be given several times.")  # fmt: skip
@click.option("--cluster", "clusters", multiple=True, metavar="NAME",
              help="Allow it only this cluster of the server; several may be given.")  # fmt: skip
@_file_option
@click.pass_obj
def add(
    call: Call, name: str, role: str, days: float, namespaces: tuple[str, ...],
    clusters: tuple[str, ...], path: str | None,
) -> None:  # fmt: skip
    """Make a token and print it; nobody can see it again."""
    from quorumbook.admin.access.roles import Role

    secret, made = _file(call, path).add(
        name, Role.of(role), lifetime_s=days * _DAY_S, namespaces=namespaces, clusters=clusters
    )
    row = made.row()
    del row["created_ms"], row["expires_ms"]
    call.output.record({**row, "expires": Moment.known(made.expires_ms), "token": secret})


@token.command("ls", cls=ClusterCommand, has_metadata=False)
@_file_option
@click.pass_obj
def ls(call: Call, path: str | None) -> None:
    """List the tokens; their secrets are not kept."""
    now_ms = time.time() * 1000
    rows = [
        {
            **each.row(),
            "created": Moment.known(each.created_ms),
            "expires": Moment.known(each.expires_ms),
            "expired": each.expires_ms is not None and each.expires_ms <= now_ms,
        }
        for each in _file(call, path).tokens()
    ]
    columns = ["name", "role", "created", "expires", "expired", "namespaces", "clusters"]
    call.output.rows(rows, columns, empty="no token; `quorumbook token add` makes one")


@token.command("revoke", cls=ClusterCommand, has_metadata=False)
@click.argument("name")
@_file_option
@click.pass_obj
def revoke(call: Call, name: str, path: str | None) -> None:
    """Revoke a token; servers refuse it from the next request on."""
    if not _file(call, path).revoke(name):
        raise UnknownNameError(f"there is no token {name}; `quorumbook token ls` lists them")
    call.output.record({"name": name, "revoked": True})


def _file(call: Call, path: str | None) -> TokenFile:
    from quorumbook.admin.access.tokens import TokenFile

    path = path or call.settings.text("admin.token_file")
    if not path:
        raise ConfigError("no token file is given: set admin.token_file, or add --file FILE")
    return TokenFile(path)
