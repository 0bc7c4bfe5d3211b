"""Runs jobs as tasks do, in this process: what they find needs no Spark to be looked at."""

from __future__ import annotations

import asyncio
import json

import quorumbook
from quorumbook.spark.connection import Connection
from quorumbook.spark.jobs.engine import run_share
from quorumbook.spark.jobs.frame import Report
from quorumbook.spark.pool import connected
from quorumbook.streams import Namespace


def do_units(connection, plan):
    """Do a plan's units; return what came of them and what failed, both by key."""
    share = [(unit.key, json.loads(json.dumps(unit.arguments))) for unit in plan.units]
    if not share:
        return {}, {}
    instance_id = connected(connection).instance_id
    rows = run_share(connection, instance_id, plan.work, share, 0).to_pylist()
    errors = {row["key"]: row["error"] for row in rows if row["error"] is not None}
    return {r["key"]: json.loads(r["result"]) for r in rows if r["key"] not in errors}, errors


def follow(connection, job):
    """Run a job of batches to its end, as its command does; return it."""
    while (plan := job.plan()) is not None:
        results, errors = do_units(connection, plan)
        assert errors == {}
        if not job.commit(results):
            break
    return job


def run_inline(cluster, make_plan, conclude, *, namespace=None):
    """Plan with a client, or with a namespace where its path is given, and do all units."""

    async def planned():
        async with quorumbook.connect(cluster.metadata_uri) as client:
            if namespace is None:
                return await make_plan(client)
            address = f"{cluster.metadata_uri}#{namespace}"
            async with Namespace.open(address, client=client) as opened:
                return await make_plan(opened)

    plan = asyncio.run(planned())
    connection = Connection(
        metadata_uri=cluster.metadata_uri, namespace_path=namespace or "/streams"
    )
    report = Report(plan.job, "", units=len(plan.units))
    report.results, report.errors = do_units(connection, plan)
    report.findings = sum(map(plan.has_findings, report.results.values()))
    conclude(report)
    return report
