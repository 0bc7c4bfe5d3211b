"""``quorumbook recovery``: ledgers that lack copies, and whether anybody may copy them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import click

from quorumbook.cli.common import Call, Command

if TYPE_CHECKING:
    from quorumbook.cli.output import Row
    from quorumbook.metadata.store import MetadataStore
    from quorumbook.metadata.underreplication import UnderreplicationQueue


@click.group()
def recovery() -> None:
    """List ledgers that lack copies, and switch their repair on and off."""


@recovery.command(cls=Command)
@click.pass_obj
def underreplicated(call: Call) -> None:
    """List the ledgers that lack copies."""
    call.run(_list(call))


@recovery.command(cls=Command)
@click.pass_obj
def status(call: Call) -> None:
    """Show whether ledgers are repaired, who is auditor, and what it checked when."""
    call.output.record(call.run(_status(call)))


@recovery.command(cls=Command)
@click.pass_obj
def enable(call: Call) -> None:
    """Have ledgers audited and repaired again."""
    call.output.record(call.run(_switch(call, is_enabled=True)))


@recovery.command(cls=Command)
@click.pass_obj
def disable(call: Call) -> None:
    """Have no ledger audited or repaired until `enable`."""
    call.output.record(call.run(_switch(call, is_enabled=False)))


async def _list(call: Call) -> None:
    async with _opened(call) as (_store, queue):

        async def rows() -> AsyncIterator[Row]:
            async for mark in queue.list():
                yield {
                    "ledger_id": mark.ledger_id,
                    "missing_on": mark.replicas,
                    "marked_at_ms": mark.ctime_ms,
                }

        await call.output.stream(
            rows(), ("ledger_id", "missing_on", "marked_at_ms"), empty="no ledger lacks copies"
        )


async def _status(call: Call) -> Row:
    from quorumbook.metadata.cluster import read_instance_id
    from quorumbook.metadata.election import current_leader
    from quorumbook.metadata.paths import TreePaths
    from quorumbook.metadata.underreplication import Check

    async with _opened(call) as (store, queue):
        await read_instance_id(store)
        return {
            "enabled": await queue.is_enabled(),
            "auditor": await current_leader(store, TreePaths(store.ledgers_root).auditor_election),
            "lost_bookie_delay_s": await queue.lost_bookie_delay_s(),
            "checked_ledgers_at_ms": await queue.checked_at_ms(Check.ALL_LEDGERS),
            "checked_placement_at_ms": await queue.checked_at_ms(Check.PLACEMENT),
            "checked_replicas_at_ms": await queue.checked_at_ms(Check.REPLICAS),
        }


async def _switch(call: Call, *, is_enabled: bool) -> Row:
    async with _opened(call) as (_store, queue):
        is_changed = await (queue.enable() if is_enabled else queue.disable())
    return {"enabled": is_enabled, "changed": is_changed}


@contextlib.asynccontextmanager
async def _opened(call: Call) -> AsyncIterator[tuple[MetadataStore, UnderreplicationQueue]]:
    from quorumbook.metadata.underreplication import UnderreplicationQueue
    from quorumbook.metadata.uri import open_store

    timeout_s = call.settings.number("metadata.session_timeout_s")
    store = await open_store(call.metadata_uri, session_timeout_s=timeout_s)
    try:
        yield store, UnderreplicationQueue(store)
    finally:
        await store.close()
