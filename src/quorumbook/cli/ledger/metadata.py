"""What the metadata says about ledgers: ``ledger ls`` and ``ledger show``."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import click

from quorumbook.cli.common import Call, ClusterCommand
from quorumbook.cli.output import RAW, TABLE

if TYPE_CHECKING:
    from quorumbook.ledger.metadata import LedgerMetadata

_STATES = ("open", "in-recovery", "closed")
_COLUMNS = ("ledger_id", "state", "entries", "bytes", "quorums", "created", "custom_metadata")


@click.command(cls=ClusterCommand)
@click.option("--state", type=click.Choice(_STATES), help="Only ledgers in this state.")
@click.option(
    "--custom", metavar="KEY[=VALUE]", multiple=True,
    help="Only ledgers with this custom metadata.",
)  # fmt: skip
@click.option("--bookie", metavar="ID", help="Only ledgers with a fragment on this bookie.")
@click.pass_obj
def ls(call: Call, state: str | None, custom: Sequence[str], bookie: str | None) -> None:
    """List the ledgers."""

    def is_wanted(metadata: LedgerMetadata) -> bool:
        if state is not None and state_of(metadata) != state:
            return False
        if bookie is not None and not any(bookie in f.ensemble for f in metadata.fragments):
            return False
        return all(_has(metadata, pair) for pair in custom)

    async def rows() -> AsyncIterator[dict[str, object]]:
        async with call.connect() as bk:
            async for metadata in bk.list_ledgers():
                if is_wanted(metadata):
                    yield _row(metadata)

    empty = (
        "no ledger fits; `quorumbook ledger ls` without options lists all"
        if state or custom or bookie
        else "there is no ledger yet; `quorumbook ledger write` makes one"
    )
    call.run(call.output.stream(rows(), _COLUMNS, empty=empty))


@click.command(cls=ClusterCommand)
@click.argument("ledger_id", type=int, metavar="ID")
@click.pass_obj
def show(call: Call, ledger_id: int) -> None:
    """Show what the metadata says about a ledger."""
    metadata = call.run(read_metadata(call, ledger_id))
    row = _row(metadata)
    row["digest"] = metadata.digest_type.name.lower() if metadata.digest_type else None
    row["has_password"] = bool(metadata.password)
    row["format_version"] = metadata.format_version
    fragments = [
        {"first_entry_id": fragment.first_entry_id, "ensemble": list(fragment.ensemble)}
        for fragment in metadata.fragments
    ]
    if call.output.form == TABLE:
        call.output.record(row)
        for fragment in metadata.fragments:
            print(f"from entry {fragment.first_entry_id}: {', '.join(fragment.ensemble)}")
    elif call.output.form == RAW:
        places = {
            str(fragment.first_entry_id): fragment.ensemble for fragment in metadata.fragments
        }
        call.output.record({**row, "fragments": places})
    else:
        call.output.record({**row, "fragments": fragments})


async def read_metadata(call: Call, ledger_id: int) -> LedgerMetadata:
    """Read one ledger's metadata.

    Raises:
        NoSuchLedgerInMetadataError: there is no such ledger.
    """
    async with call.connect() as bk:
        return await bk.ledger_metadata(ledger_id)


def state_of(metadata: LedgerMetadata) -> str:
    """Return the state as the command line spells it."""
    return metadata.state.name.lower().replace("_", "-")


def _row(metadata: LedgerMetadata) -> dict[str, object]:
    return {
        "ledger_id": metadata.ledger_id,
        "state": state_of(metadata),
        # An open ledger's end is known to its bookies and its writer, not to the metadata.
        "entries": metadata.last_entry_id + 1 if metadata.is_closed else None,
        "bytes": metadata.length if metadata.is_closed else None,
        "quorums": f"{metadata.ensemble_size}/{metadata.write_quorum_size}"
        f"/{metadata.ack_quorum_size}",
        "created": _time(metadata.ctime_ms),
        "custom_metadata": dict(metadata.custom_metadata),
    }


def _time(ctime_ms: int | None) -> str | None:
    if ctime_ms is None or ctime_ms < 0:
        return None
    moment = datetime.datetime.fromtimestamp(ctime_ms / 1000, datetime.UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def _has(metadata: LedgerMetadata, pair: str) -> bool:
    key, equals, value = pair.partition("=")
    held = metadata.custom_metadata.get(key)
    return held is not None and (not equals or held == value.encode())
