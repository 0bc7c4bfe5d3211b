"""What the metadata says about ledgers: ``ledger ls`` and ``ledger show``."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import click

from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand
from quorumbook.cli.listing import Listing, extent_options, listing_options
from quorumbook.cli.output import RAW, TABLE, Moment

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
@click.option("--find", metavar="TEXT", default="",
              help="Only ledgers with this text in their id or custom metadata.")  # fmt: skip
@click.option("--bookie", metavar="ID", help="Only ledgers with a fragment on this bookie.")
@extent_options("bytes", "created")
@listing_options(["ledger_id", "entries", "bytes", "created"])
@click.pass_obj
def ls(
    call: Call, state: str | None, custom: Sequence[str], find: str, bookie: str | None,
    min_size: int | None, max_size: int | None, older_than: float | None,
    newer_than: float | None, listing: Listing,
) -> None:  # fmt: skip
    """List the ledgers, by id.

    The metadata does not know how large an open ledger is: it counts as empty.
    """
    from quorumbook.admin.facts.ledgers import LedgerFilter

    now_ms = int(time.time() * 1000)
    wanted = LedgerFilter(
        state=state,
        bookie=bookie,
        min_bytes=min_size,
        max_bytes=max_size,
        created_before_ms=None if older_than is None else now_ms - int(older_than * 1000),
        created_after_ms=None if newer_than is None else now_ms - int(newer_than * 1000),
        custom=_wanted_custom(custom),
        text=find,
    )

    async def rows() -> AsyncIterator[dict[str, object]]:
        async with call.connect() as bk:
            async for metadata in bk.list_ledgers():
                if wanted.takes(metadata):
                    yield _row(metadata)

    empty = (
        "there is no ledger yet; `quorumbook ledger write` makes one"
        if wanted == LedgerFilter() and listing.page == 1
        else "no ledger fits; `quorumbook ledger ls` without options lists all"
    )
    call.run(call.output.stream(listing.of(rows(), call), _COLUMNS, empty=empty))


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


def _row(metadata: LedgerMetadata) -> dict[str, object]:
    return {
        "ledger_id": metadata.ledger_id,
        "state": metadata.state.word,
        # An open ledger's end is known to its bookies and its writer, not to the metadata.
        "entries": metadata.last_entry_id + 1 if metadata.is_closed else None,
        "bytes": metadata.length if metadata.is_closed else None,
        "quorums": f"{metadata.ensemble_size}/{metadata.write_quorum_size}"
        f"/{metadata.ack_quorum_size}",
        "created": Moment.known(metadata.ctime_ms),
        "custom_metadata": dict(metadata.custom_metadata),
    }


def _wanted_custom(pairs: Sequence[str]) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if key in found:
            raise click.UsageError(f"--custom {key} is given twice; a ledger has one value of it")
        found[key] = value.encode() if equals else None
    return found
