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


def run_inline(cluster, make_plan, conclude, *, namespace=None):
    """Plan with a client, or with a namespace where its path is given, and do all units."""

    async def planned():
        async with quorumbook.connect(cluster.metadata_uri) as client:
            if namespace is None:
                return await make_plan(client)
            address = f"{cluster.metadata_uri}#{namespace}"
            async with await Namespace.open(address, client=client) as opened:
                return await make_plan(opened)

    plan = asyncio.run(planned())
    connection = Connection(
        metadata_uri=cluster.metadata_uri, namespace_path=namespace or "/streams"
    )
    report = Report(plan.job, "", units=len(plan.units))
    instance_id = connected(connection).instance_id
    share = [(unit.key, json.loads(json.dumps(unit.arguments))) for unit in plan.units]
    if share:
        for row in run_share(connection, instance_id, plan.work, share, 0).to_pylist():
            if row["error"] is None:
                report.results[row["key"]] = json.loads(row["result"])
            else:
                report.errors[row["key"]] = row["error"]
    report.findings = sum(map(plan.has_findings, report.results.values()))
    conclude(report)
    return report
