"""Options that several ledger commands share: quorums, passwords, custom metadata."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from quorumbook.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

QUORUM_OPTIONS = tuple(
    click.option(name, type=click.IntRange(min=1), help=f"{text} [default: as configured]")
    for name, text in (
        ("--ensemble-size", "Bookies the ledger is spread over."),
        ("--write-quorum", "Bookies each entry is sent to."),
        ("--ack-quorum", "Bookies that must have synced an entry before it counts."),
    )
)


def password_option(command: F) -> F:
    """Add ``--password`` and ``--password-file``; the command gets bytes."""

    def from_file(_c: click.Context, _p: click.Parameter, path: str | None) -> bytes | None:
        if path is None:
            return None
        try:
            with open(path, "rb") as file:
                return file.read().rstrip(b"\r\n")
        except OSError as error:
            raise click.UsageError(f"--password-file {path}: {error.strerror}") from None

    def from_text(context: click.Context, _p: click.Parameter, text: str | None) -> bytes:
        # The file is read first (is_eager), so that it is there when both are looked at.
        held: bytes | None = context.params.pop("password_file", None)
        if held is not None and text is not None:
            raise click.UsageError("give --password or --password-file, not both")
        return held if held is not None else (text or "").encode()

    command = click.option(
        "--password-file", metavar="FILE", is_eager=True, callback=from_file,
        help="Read the ledger's password from a file.",
    )(command)  # fmt: skip
    return click.option(
        "--password", metavar="TEXT", callback=from_text,
        help="The ledger's password; others on this host may see it here.",
    )(command)  # fmt: skip


def new_ledger(command: F) -> F:
    """Add the options of a new ledger."""
    command = click.option(
        "--custom", metavar="KEY=VALUE", multiple=True,
        help="Custom metadata of the ledger; may be given several times.",
    )(command)  # fmt: skip
    command = click.option(
        "--bookie-label", "bookie_labels", metavar="KEY=VALUE", multiple=True,
        help="A label that every bookie of the ledger must carry; may be given several times.",
    )(command)  # fmt: skip
    for option in reversed(QUORUM_OPTIONS):
        command = option(command)
    return password_option(command)


ledger_id_option = click.option(
    "--ledger-id", type=click.IntRange(0, 2**63 - 1), metavar="ID",
    help="The id of the new ledger [default: a new one].",
)  # fmt: skip
deferred_sync_option = click.option(
    "--deferred-sync", is_flag=True,
    help="Have bookies acknowledge entries before they sync them; the close has them synced.",
)  # fmt: skip


def custom_metadata(pairs: Sequence[str]) -> dict[str, bytes]:
    """Turn ``KEY=VALUE`` texts into custom metadata."""
    found: dict[str, bytes] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"--custom {pair}: write KEY=VALUE")
        found[key] = value.encode()
    return found


def wanted_labels(texts: Sequence[str]) -> dict[str, str] | None:
    """Turn ``--bookie-label`` texts into labels; None leaves it to the configuration."""
    from quorumbook.ledger.placement.labels import parse_labels

    return parse_labels(texts, "--bookie-label") if texts else None
