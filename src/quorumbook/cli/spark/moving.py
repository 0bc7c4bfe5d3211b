"""``quorumbook spark rereplicate``, ``decommission`` and ``rebalance``: copies move, by tasks.

They are the same orders as ``quorumbook bookie recover``, ``decommission`` and ``balance``, for
clusters of which one process would have to copy for days.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from quorumbook.cli.call import Call
from quorumbook.cli.errors import NOT_NOW
from quorumbook.cli.spark.run import JobRun, job_command, run_job, show
from quorumbook.spark.jobs.options import (
    DecommissionOptions,
    LeaveOptions,
    RebalanceOptions,
    RereplicateOptions,
)

if TYPE_CHECKING:
    from quorumbook import BookKeeper
    from quorumbook.ids import BookieId
    from quorumbook.spark.jobs.frame import JobPlan


@job_command(RereplicateOptions)
def rereplicate(call: Call, run: JobRun, options: RereplicateOptions) -> int:
    """Copy what lost bookies held from the other replicas to others."""
    return _leave(call, run, "rereplicate", options.bookies, options)


@job_command(DecommissionOptions)
def decommission(call: Call, run: JobRun, options: DecommissionOptions) -> int:
    """Move everything off a bookie for good, and forget it once it is stopped."""
    from quorumbook.cli.bookie.moving import (
        forget,
        make_read_only,
        registered,
        warn_still_runs,
    )

    bookie = options.bookie

    async def prepare(undo: contextlib.ExitStack) -> bool:
        async with call.connect() as client:
            is_alive = bookie in await registered(client)
            if is_alive and not run.is_dry_run:
                await make_read_only(call, client, bookie, undo)
            return is_alive

    async def leave_nothing() -> bool:
        from quorumbook.autorecovery.copying.moving import shares

        async with call.connect() as client:
            async for share in shares(client, [bookie]):
                call.warn(
                    "ledger-in-the-way",
                    f"ledger {share.ledger_id} still names {bookie}; give the command again",
                )
                return False
            await forget(client, [bookie])
        return True

    with contextlib.ExitStack() as undo:
        is_alive = call.run(prepare(undo))
        code = _leave(call, run, "decommission", [bookie], options)
        undo.pop_all()
    if code or run.is_dry_run:
        return code
    if is_alive:
        warn_still_runs(call, bookie)
        return NOT_NOW
    return 0 if call.run(leave_nothing()) else NOT_NOW


def _leave(
    call: Call, run: JobRun, job: str, bookies: Sequence[BookieId], options: LeaveOptions
) -> int:
    from quorumbook.admin.facts.stopping import check_is_known
    from quorumbook.cli.bookie.moving import registered
    from quorumbook.errors import LocalProtocolError
    from quorumbook.spark.jobs.upkeep import moving

    moves = {
        "skip_open": options.skip_open,
        "open_ledger_grace_s": call.settings.number("recovery.open_ledger_grace_s"),
    }

    async def planned(client: BookKeeper) -> JobPlan:
        alive = sorted(set(bookies) & await registered(client))
        if job == "rereplicate" and alive:
            raise LocalProtocolError(
                f"{', '.join(alive)} is registered, not lost: `quorumbook spark decommission` "
                "moves what a bookie holds while it serves"
            )
        plan = await moving.plan_leave(client, job, bookies, moves)
        if not plan.units:
            for bookie in bookies:
                await check_is_known(client, bookie)
        return plan

    arguments = {"bookies": sorted(bookies), **moves}
    return show(call, run, run_job(call, run, arguments, planned, moving.conclude))


@job_command(RebalanceOptions)
def rebalance(call: Call, run: JobRun, options: RebalanceOptions) -> int:
    """Move closed ledgers from the fullest disks to the emptiest."""
    from quorumbook.autorecovery.copying.balance_plan import plan_balance
    from quorumbook.spark.jobs.upkeep import moving

    async def planned(client: BookKeeper) -> JobPlan:
        return moving.plan_moves(await plan_balance(client, options.within))

    return show(call, run, run_job(call, run, options.arguments(), planned, moving.conclude))
