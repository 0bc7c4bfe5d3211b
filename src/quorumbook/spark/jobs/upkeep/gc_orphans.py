"""``gc-orphans``: ledgers of transactions that can never be committed, or were given up long ago.

A unit is one application that has some.  What may go is decided anew by the task that deletes it,
in one step with the application's head (``streams.transactions.orphans``), so a driver that goes
on meanwhile keeps what it commits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from quorumbook.spark.jobs.frame import JobPlan, Report, Unit, Values
from quorumbook.spark.jobs.options import OrphanOptions
from quorumbook.spark.jobs.pace import Pace
from quorumbook.spark.pool import ClusterClient
from quorumbook.streams import Namespace
from quorumbook.streams.errors import TransactionLostError
from quorumbook.streams.transactions import Application, Identity, Place
from quorumbook.streams.transactions.nodes import list_applications
from quorumbook.streams.transactions.orphans import OrphanedDraft


async def plan(namespace: Namespace, options: OrphanOptions) -> JobPlan:
    """Return the applications that have orphans."""
    root, ttl_s = options.root, options.ttl_s
    place = Place(namespace.client, namespace, root, ttl_s)
    units = []
    for name in await list_applications(place.store, place.path):
        orphans = await _sweep(place, name, dry_run=True)
        if orphans:
            arguments = {"application": name, "root": root, "ttl_s": ttl_s}
            units.append(Unit(name, sum(len(each.ledgers) for each in orphans), arguments))
    return JobPlan("gc-orphans", units, work, is_all_left=True)


async def work(cluster: ClusterClient, pace: Pace, arguments: Values) -> Values:
    """Clean up behind one application."""
    del pace
    namespace = await cluster.opened_namespace()
    place = Place(namespace.client, namespace, arguments["root"], arguments["ttl_s"])
    orphans = await _sweep(place, arguments["application"], dry_run=False)
    return {
        "attempts": [each.name for each in orphans],
        "ledgers": [ledger_id for each in orphans for ledger_id in each.ledgers],
    }


async def _sweep(place: Place, name: str, *, dry_run: bool) -> Sequence[OrphanedDraft]:
    with contextlib.suppress(TransactionLostError):  # finished meanwhile
        return await Application(place, name, Identity("", "")).sweep(dry_run=dry_run)
    return []


def conclude(report: Report) -> None:
    """Sum the results up."""
    report.summary["applications"] = len(report.results)
    for name in ("attempts", "ledgers"):
        count = sum(len(result[name]) for result in report.results.values())
        report.summary[f"deleted_{name}"] = count
