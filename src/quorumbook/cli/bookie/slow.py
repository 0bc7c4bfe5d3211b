"""``quorumbook bookie slow``: the slowest operations, and where their time went."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from quorumbook.cli.bookie.http_client import address_of, token
from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand
from quorumbook.cli.known.names import bookie_ids
from quorumbook.cli.output import Moment

if TYPE_CHECKING:
    from quorumbook.admin.facts.bookie_http import Slow

_COLUMNS = ("kind", "took_ms", "where", "at", "bookie_id", "ledger_id", "first_entry_id",
            "entries", "bytes", "client")  # fmt: skip


@click.command(cls=ClusterCommand)
@click.argument("bookie", required=False, shell_complete=bookie_ids)
@click.option(
    "--kind", type=click.Choice(["add", "read", "sync"]), help="Only operations of this kind."
)
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True,
              help="How many to list.")  # fmt: skip
@click.pass_obj
def slow(call: Call, bookie: str | None, kind: str | None, limit: int) -> None:
    """List the slowest adds, reads and syncs of the last minutes, and where their time went.

    Without BOOKIE, of all bookies that serve HTTP. A bookie keeps the 20 slowest of each kind in
    each ten minutes, and no operation that took less than a millisecond.
    """
    from quorumbook.admin.facts.bookie_http import of_kind, slow_operations, where_it_went

    if bookie is None:
        found = call.run(_of_all(call))
    else:
        found = call.run(slow_operations({bookie: address_of(call, bookie)}, token(call)))
    for bookie_id, why in sorted(found.unanswered.items()):
        click.echo(f"{bookie_id} is left out: {why}", err=True)
    rows = [
        {**row, "at": Moment(row.pop("at_ms")), "where": where_it_went(row["stages_ms"])}
        for row in of_kind(found.operations, kind, limit)
    ]
    call.output.rows(rows, _COLUMNS, empty="nothing took longer than a millisecond")


async def _of_all(call: Call) -> Slow:
    from quorumbook.admin.facts.bookie_http import slow_operations
    from quorumbook.admin.facts.bookies import known_bookies
    from quorumbook.metadata.uri import open_store

    store = await open_store(call.metadata_uri)
    try:
        found = await known_bookies(store)
    finally:
        await store.close()
    addresses = {each.bookie_id: each.http for each in found.bookies if each.http}
    return await slow_operations(addresses, token(call))
