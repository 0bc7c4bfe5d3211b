"""``rereplicate``, ``decommission``, ``rebalance``: what bookies hold goes to others.

A unit is what some bookies hold of one ledger; it is moved as the operator's own commands move it:
under auto-recovery's lock, copied, read back, and recorded by compare-and-set.  So workers,
commands and several jobs keep out of each other's way, and a job may be killed at any point.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict

from quorumbook.autorecovery.copying.balance import Move
from quorumbook.autorecovery.copying.moving import MoveOptions, Mover, Share, shares
from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_context
from quorumbook.errors import QuorumbookError
from quorumbook.ids import BookieId
from quorumbook.spark.jobs.frame import JobPlan, Report, Unit, Values
from quorumbook.spark.jobs.pace import Pace
from quorumbook.spark.pool import ClusterClient


class NotMovedError(QuorumbookError):
    """A ledger is still where it was; the message says why."""


async def plan_leave(
    client: BookKeeper, job: str, bookies: Collection[BookieId], options: Values
) -> JobPlan:
    """Return what bookies hold, to go where the placement policy says.

    Args:
        client: The cluster's.
        job: Its name.
        bookies: They hold nothing afterwards.
        options: ``open_ledger_grace_s`` and ``skip_open`` of ``MoveOptions``.
    """
    leave = sorted(bookies)
    units = [
        Unit(
            f"{share.ledger_id}@{','.join(share.bookies)}",
            share.size_bytes,
            {"share": asdict(share), "leave": leave, **options},
        )
        async for share in shares(client, bookies)
    ]
    return JobPlan(job, units, move, is_all_left=True)


def plan_moves(moves: Sequence[Move]) -> JobPlan:
    """Return moves that were planned for balance."""
    units = []
    for each in moves:
        share = Share(each.ledger_id, "closed", each.size_bytes, (each.source,))
        arguments = {
            "share": asdict(share), "leave": [each.source], "target": each.target,
            "open_ledger_grace_s": 0.0, "skip_open": True,
        }  # fmt: skip
        units.append(Unit(f"{each.ledger_id}@{each.source}", each.size_bytes, arguments))
    return JobPlan("rebalance", units, move, is_all_left=True)


async def move(cluster: ClusterClient, pace: Pace, arguments: Values) -> Values:
    """Move one share.

    Raises:
        NotMovedError: it is still there; a resumed job tries it again.
    """
    found: Mapping[str, object] = arguments["share"]
    share = Share(**{**found, "bookies": tuple(arguments["share"]["bookies"])})  # type: ignore[arg-type]
    client = cluster.client
    # Copies are read and written in the background budget; it is this task's alone.
    client_context(client).env.background.rate_bytes = pace.rate_bytes
    target = arguments.get("target")
    mover = Mover(
        client,
        arguments["leave"],
        MoveOptions(
            name="spark",
            ledgers_at_a_time=1,
            open_ledger_grace_s=arguments["open_ledger_grace_s"],
            skip_open=arguments["skip_open"],
        ),
        targets=None if target is None else {share.ledger_id: target},
    )
    moved = await mover.run([share])
    if moved.blocked:
        raise NotMovedError(moved.blocked[share.ledger_id])
    return {"copied_entries": moved.copied_entries, "copied_bytes": moved.copied_bytes}


def conclude(report: Report) -> None:
    """Sum the results up."""
    report.summary["ledgers"] = len(report.results)
    for name in ("copied_entries", "copied_bytes"):
        report.summary[name] = sum(result[name] for result in report.results.values())
