"""``quorumbook bookie readonly`` and ``can-stop``: before a bookie is touched."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from quorumbook.admin.facts.bookie_http import READ_ONLY_PATH, look, read_only_path
from quorumbook.admin.facts.words import counted
from quorumbook.cli.bookie.http_client import address_of, change
from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand
from quorumbook.cli.errors import REFUSED
from quorumbook.cli.known.names import bookie_ids
from quorumbook.cli.output import Moment
from quorumbook.errors import MetadataFormatError

if TYPE_CHECKING:
    from quorumbook.cli.output import Row
    from quorumbook.ids import BookieId


@click.command(cls=ClusterCommand)
@click.argument("action", type=click.Choice(["on", "off", "status"]))
@click.argument("bookie", shell_complete=bookie_ids)
@click.option("--reason", default="no reason given", help="Why; it is kept and shown.")
@click.option("--dry-run", is_flag=True, help="Only say what it would mean for writers.")
@click.pass_obj
def readonly(call: Call, action: str, bookie: BookieId, reason: str, dry_run: bool) -> int:
    """Have a bookie take no plain adds, or take them again; it stays so over restarts."""
    if dry_run:
        return call.run(_foresee(call, action, bookie))
    address = address_of(call, bookie)
    if action == "status":
        state = look(address, READ_ONLY_PATH)
    else:
        state = set_read_only(call, address, is_read_only=action == "on", reason=reason)
    since = Moment.known(state.pop("since_ms", None))
    call.output.record({"bookie_id": bookie, **state, "since": since})
    if action == "on" and address != bookie:  # else the cluster is not named
        call.run(_say_what_new_ledgers_lack(call, bookie))
    return 0


@click.command("can-stop", cls=ClusterCommand)
@click.argument("bookie", shell_complete=bookie_ids)
@click.option(
    "--copies", type=click.IntRange(1), default=1, show_default=True,
    help="How many copies of every entry must be left.",
)  # fmt: skip
@click.pass_obj
def can_stop(call: Call, bookie: BookieId, copies: int) -> int:
    """Tell whether stopping a bookie endangers any entry, and which."""
    return call.run(_can_stop(call, bookie, copies))


def set_read_only(
    call: Call, address: str, *, is_read_only: bool, reason: str, is_own: bool = False
) -> Any:
    """Ask a bookie to take no plain adds, or to take them again; return its state."""
    # The peer takes its choice in the body, and answers with nothing to show.
    body = json.dumps({"readOnly": is_read_only}).encode()
    path = read_only_path(is_read_only=is_read_only, reason=reason, is_own=is_own)
    return change(call, address, path, body=body)


async def _say_what_new_ledgers_lack(call: Call, bookie: BookieId) -> None:
    async with call.connect() as client:
        writable, _ = await client.bookies()
    _warn_if_too_few(call, bookie, len(writable - {bookie}), 0)


def _warn_if_too_few(call: Call, bookie: BookieId, left: int, largest: int) -> bool:
    """Tell whether new ledgers lack bookies, and say what to do.

    Args:
        call: The command.
        bookie: Takes no plain adds.
        left: So many others do.
        largest: The largest ensemble of a ledger that is being written.
    """
    usual = call.settings.integer("client.ensemble_size")
    if left >= max(usual, largest):
        return False
    whose = "ledgers that are being written have" if largest > usual else "a new ledger has"
    call.warn(
        "not-enough-bookies",
        f"without {bookie} {counted(left, 'bookie')} can be written to, and {whose} an ensemble of "
        f"{max(usual, largest)} unless it is made with a smaller one (client.ensemble_size, "
        "--ensemble-size): start another bookie, or take this one back by "
        f"`quorumbook bookie readonly off {bookie}`",
    )
    return True


async def _foresee(call: Call, action: str, bookie: BookieId) -> int:
    """Say what writers would have left; exit code 5 if some of them could not go on."""
    from quorumbook.admin.facts.stopping import check_is_known

    writers = largest = 0
    async with call.connect() as client:
        await check_is_known(client, bookie)
        writable, _ = await client.bookies()
        left = writable - {bookie} if action == "on" else writable | {bookie}
        damaged: list[MetadataFormatError] = []
        async for metadata in client.list_ledgers(damaged=damaged):
            if not metadata.is_closed:
                writers += bookie in metadata.ensemble
                largest = max(largest, metadata.ensemble_size)
        _tell_damaged(damaged)
    call.output.record(
        {
            "bookie_id": bookie,
            "was_writable": bookie in writable,
            "writable_bookies": len(left),
            "ledgers_written_here": writers,
            "largest_ensemble": largest,
        }
    )
    if action == "on" and _warn_if_too_few(call, bookie, len(left), largest):
        return REFUSED
    return 0


async def _can_stop(call: Call, bookie: BookieId, copies: int) -> int:
    from quorumbook.admin.facts.stopping import check_is_known, endangered

    damaged: list[MetadataFormatError] = []
    async with call.connect() as client:
        found: Sequence[Row] = await endangered(client, bookie, copies, damaged)
        if not found:
            await check_is_known(client, bookie)
    _tell_damaged(damaged)
    call.output.rows(
        found,
        ("ledger_id", "first_entry_id", "last_entry_id", "copies_left", "why"),
        empty=f"{bookie} can be stopped: enough copies of every entry are left",
    )
    return REFUSED if found else 0


def _tell_damaged(damaged: Iterable[MetadataFormatError]) -> None:
    for error in damaged:
        print(f"not considered: {error}", file=sys.stderr)
