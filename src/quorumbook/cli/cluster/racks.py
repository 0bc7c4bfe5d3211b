"""``quorumbook cluster racks``: the table that tells where bookies stand."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import click

from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand, Commands

if TYPE_CHECKING:
    from quorumbook.metadata.store import MetadataStore


@click.group(cls=Commands)
def racks() -> None:
    """Say in which rack, region or zone bookies stand."""


@racks.command("ls", cls=ClusterCommand)
@click.pass_obj
def ls(call: Call) -> None:
    """List the bookies and where they stand.

    A bookie without a location is in no rack that the placement policy knows.
    """
    rows = call.run(_list(call))
    call.output.rows(
        rows,
        ["bookie_id", "location", "row"],
        empty="no bookie is registered, and the table is empty",
    )


@racks.command("set", cls=ClusterCommand)
@click.argument("rows", nargs=-1, required=True, metavar="BOOKIE=LOCATION...")
@click.pass_obj
def set_(call: Call, rows: Sequence[str]) -> None:
    """Say where bookies stand, as 10.0.0.7:3181=/west/r2 or, for a whole host, 10.0.0.7=/west/r2.

    Writers and readers that run see it at once; what is stored already stays where it is.
    """
    wanted: dict[str, str] = {}
    for row in rows:
        name, equals, location = row.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{row}: write BOOKIE=LOCATION, such as 10.0.0.7=/west/r2")
        wanted[name] = location

    async def run() -> None:
        from quorumbook.metadata.bookies.racks import RackTable

        async with _opened(call) as store:
            await RackTable(store).set(wanted)

    call.run(run())


@racks.command("remove", cls=ClusterCommand)
@click.argument("names", nargs=-1, required=True, metavar="BOOKIE...")
@click.pass_obj
def remove(call: Call, names: Sequence[str]) -> None:
    """Take bookies or hosts out of the table."""

    async def run() -> None:
        from quorumbook.metadata.bookies.racks import RackTable

        async with _opened(call) as store:
            await RackTable(store).remove(names)

    call.run(run())


@asynccontextmanager
async def _opened(call: Call) -> AsyncIterator[MetadataStore]:
    from quorumbook.env import Env
    from quorumbook.metadata.uri import open_store

    store = await open_store(call.metadata_uri, Env())
    try:
        yield store
    finally:
        await store.close()


async def _list(call: Call) -> list[dict[str, object]]:
    from quorumbook.admin.facts.bookies import rack_rows

    async with _opened(call) as store:
        return await rack_rows(store)
