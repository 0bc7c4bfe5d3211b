"""``quorumbook bookie gc`` and ``explain-gc``: a running bookie's garbage collection, over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import click

from quorumbook.cli.common import Call, Command
from quorumbook.errors import ConnectFailedError

_TIMEOUT_S = 60.0
_http = click.option(
    "--http", "address", metavar="URL", required=True,
    help="Where the bookie serves HTTP; `bookie ls` shows it.",
)  # fmt: skip


def _ask(method: str, address: str, path: str) -> Any:
    url = (address if "://" in address else f"http://{address}").rstrip("/") + path
    if not url.startswith(("http://", "https://")):
        raise click.UsageError(f"{address} is no HTTP address")
    request = urllib.request.Request(url, method=method)  # noqa: S310 - checked above
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            return json.load(answer)
    except (OSError, ValueError) as error:
        raise ConnectFailedError(
            f"no answer from {url} ({error}); `quorumbook bookie ls` shows where bookies serve HTTP"
        ) from error


@click.command(cls=Command)
@_http
@click.option("--minor", is_flag=True, help="With a minor compaction.")
@click.option("--major", is_flag=True, help="With a major compaction.")
@click.option("--suspend", "change", flag_value="suspend", help="Compact nothing from now on.")
@click.option("--resume", "change", flag_value="resume", help="Compact again.")
@click.pass_obj
def gc(call: Call, address: str, minor: bool, major: bool, change: str | None) -> None:
    """Have a bookie collect garbage now, or suspend and resume its compaction."""
    if change is None:
        chosen = "&".join(name for name, on in (("minor=true", minor), ("major=true", major)) if on)
        _ask("PUT", address, f"/api/v1/bookie/gc?{chosen}")
    else:
        _ask("PUT", address, f"/api/v1/bookie/gc/{change}_compaction")
    call.output.record(_ask("GET", address, "/api/v1/bookie/gc_details"))


@click.command("explain-gc", cls=Command)
@_http
@click.pass_obj
def explain_gc(call: Call, address: str) -> None:
    """Say of each entry log of a bookie what keeps it, and what happens to it next."""
    call.output.rows(
        _ask("GET", address, "/api/v1/bookie/gc_logs"),
        ["entry_log", "size_bytes", "live_bytes", "ledgers", "fate"],
        empty="the bookie has no entry logs",
    )
