"""``quorumbook recovery``: ledgers that lack replicas, and whether anybody may copy them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING

import click

from quorumbook.cli.bookie.recovery_process import run
from quorumbook.cli.call import Call
from quorumbook.cli.command import ClusterCommand, Commands
from quorumbook.cli.output import Moment
from quorumbook.cli.values import Written
from quorumbook.errors import MetadataFormatError, NoAuditorError
from quorumbook.metadata.cluster import read_instance_id
from quorumbook.options import Kind

if TYPE_CHECKING:
    from quorumbook.cli.output import Row
    from quorumbook.metadata.recovery.queue import Mark, UnderreplicationQueue
    from quorumbook.metadata.store import MetadataStore

#: What ``trigger --check`` takes, and the member of ``recovery_switches.Check``.
_CHECKS = {"ledgers": "ALL_LEDGERS", "replicas": "REPLICAS", "placement": "PLACEMENT"}


@click.group(cls=Commands)
def recovery() -> None:
    """Repair ledgers, list those that lack replicas, and switch their repair on and off."""


recovery.add_command(run)


@recovery.command(cls=ClusterCommand)
@click.option(
    "--missing-on",
    "missing_on",
    metavar="BOOKIE",
    help="Only where this bookie's replicas are missing.",
)
@click.option("--not-missing-on", metavar="BOOKIE", help="Only where they are not missing.")
@click.option("--count", "is_count", is_flag=True, help="Print how many there are.")
@click.pass_obj
def underreplicated(
    call: Call, missing_on: str | None, not_missing_on: str | None, is_count: bool
) -> None:
    """List the ledgers that lack replicas."""

    def is_wanted(mark: Mark) -> bool:
        return (
            missing_on is None or missing_on in mark.replicas
        ) and not_missing_on not in mark.replicas

    if is_count:
        call.output.record({"underreplicated_ledgers": call.run(_count(call, is_wanted))})
    else:
        call.run(_list(call, is_wanted))


@recovery.command(cls=ClusterCommand)
@click.pass_obj
def status(call: Call) -> None:
    """Show whether ledgers are re-replicated, which bookie is auditor, and what it checked."""
    call.output.record(call.run(_status(call)))


@recovery.command(cls=ClusterCommand)
@click.pass_obj
def enable(call: Call) -> None:
    """Have ledgers audited and repaired again."""
    call.output.record(call.run(_switch(call, is_enabled=True)))


@recovery.command(cls=ClusterCommand)
@click.pass_obj
def disable(call: Call) -> None:
    """Have no ledger audited or repaired until `enable`."""
    call.output.record(call.run(_switch(call, is_enabled=False)))


@recovery.command(cls=ClusterCommand)
@click.pass_obj
def auditor(call: Call) -> None:
    """Print which bookie is the auditor."""
    call.output.record({"auditor": call.run(_auditor(call))})


@recovery.command(cls=ClusterCommand)
@click.argument(
    "wanted_s", metavar="[DURATION]", required=False,
    type=Written.amount(Kind.DURATION, minimum=0, maximum=2**31 - 1),
)  # fmt: skip
@click.pass_obj
def delay(call: Call, wanted_s: float | None) -> None:
    """Show, or set, how long a bookie may be away before its ledgers are copied."""
    seconds = None if wanted_s is None else round(wanted_s)
    call.output.record({"lost_bookie_delay_s": call.run(_delay(call, seconds))})


@recovery.command(cls=ClusterCommand)
@click.option(
    "--check", "checks", type=click.Choice(list(_CHECKS)), multiple=True,
    help="Instead, have the auditor begin this check; more than one may be named.",
)  # fmt: skip
@click.pass_obj
def trigger(call: Call, checks: tuple[str, ...]) -> None:
    """Have the auditor look for lost bookies now, without waiting for their delay."""
    call.output.record(call.run(_trigger(call, checks)))


async def _count(call: Call, is_wanted: Callable[[Mark], bool]) -> int:
    count = 0
    async with _opened(call) as (_store, queue):
        damaged: list[MetadataFormatError] = []
        async for mark in queue.list(damaged):
            count += is_wanted(mark)
    for error in damaged:
        print(f"not counted: {error}", file=sys.stderr)
    return count


async def _list(call: Call, is_wanted: Callable[[Mark], bool]) -> None:
    from quorumbook.metadata.recovery.quarantine import Quarantine

    columns = ("ledger_id", "missing_on", "marked_at", "worker", "attempts", "retry_at",
               "quarantined")  # fmt: skip
    async with _opened(call) as (store, queue):
        failures = Quarantine(store)

        async def rows() -> AsyncIterator[Row]:
            async for mark in queue.list():
                if not is_wanted(mark):
                    continue
                failure = await failures.read(mark.ledger_id)
                yield {
                    "ledger_id": mark.ledger_id,
                    "missing_on": mark.replicas,
                    "marked_at": Moment.known(mark.ctime_ms),
                    "worker": await queue.worker_of(mark.ledger_id),
                    "attempts": failure.attempts if failure else 0,
                    "retry_at": Moment.known(failure.retry_at_ms) if failure else None,
                    "quarantined": failure is not None and failure.is_quarantined,
                    "reason": failure.reason if failure else None,
                }

        await call.output.stream(
            rows(), (*columns, "reason"), empty="no ledger is under-replicated"
        )


async def _status(call: Call) -> Row:
    from quorumbook.metadata.election import current_leader
    from quorumbook.metadata.paths import TreePaths
    from quorumbook.metadata.recovery.switches import PeriodicCheck

    async with _opened(call) as (store, queue):
        await read_instance_id(store)

        async def checked(check: PeriodicCheck) -> Moment | None:
            return Moment.known(await queue.checked_at_ms(check))

        return {
            "enabled": await queue.is_enabled(),
            "auditor": await current_leader(store, TreePaths(store.ledgers_root).auditor_election),
            "lost_bookie_delay_s": await queue.lost_bookie_delay_s(),
            "checked_ledgers_at": Moment.known(
                await queue.checked_at_ms(PeriodicCheck.ALL_LEDGERS)
            ),
            "checked_placement_at": Moment.known(
                await queue.checked_at_ms(PeriodicCheck.PLACEMENT)
            ),
            "checked_replicas_at": await checked(PeriodicCheck.REPLICAS),
        }


async def _switch(call: Call, *, is_enabled: bool) -> Row:
    async with _opened(call) as (_store, queue):
        is_changed = await (queue.enable() if is_enabled else queue.disable())
    return {"enabled": is_enabled, "changed": is_changed}


async def _auditor(call: Call) -> str:
    from quorumbook.metadata.election import current_leader
    from quorumbook.metadata.paths import TreePaths

    async with _opened(call) as (store, _queue):
        await read_instance_id(store)
        found = await current_leader(store, TreePaths(store.ledgers_root).auditor_election)
    if found is None:
        raise NoAuditorError("nobody is auditor; `quorumbook recovery run` starts a candidate")
    return found


async def _delay(call: Call, seconds: int | None) -> int | None:
    async with _opened(call) as (store, queue):
        await read_instance_id(store)
        if seconds is not None:
            await queue.set_lost_bookie_delay_s(seconds)
        return await queue.lost_bookie_delay_s()


async def _trigger(call: Call, checks: Sequence[str]) -> Row:
    from quorumbook.metadata.recovery.switches import PeriodicCheck

    found = await _auditor(call)
    async with _opened(call) as (_store, queue):
        if not await queue.is_enabled():
            raise NoAuditorError("auditing is switched off; `quorumbook recovery enable` allows it")
        for name in checks:
            await queue.ask_for_check(PeriodicCheck[_CHECKS[name]])
        if not checks:
            await queue.ask_for_audit()
    return {"auditor": found, "triggered": list(checks) or ["lost-bookies"]}


@contextlib.asynccontextmanager
async def _opened(call: Call) -> AsyncIterator[tuple[MetadataStore, UnderreplicationQueue]]:
    from quorumbook.metadata.recovery.queue import UnderreplicationQueue
    from quorumbook.metadata.uri import open_store

    timeout_s = call.settings.number("metadata.session_timeout_s")
    store = await open_store(call.metadata_uri, session_timeout_s=timeout_s)
    try:
        yield store, UnderreplicationQueue(store)
    finally:
        await store.close()
