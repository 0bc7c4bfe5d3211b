"""``gc-orphans``: what was written in transactions and never committed goes, and nothing else."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("pyspark", reason="pip install 'quorumbook[spark]'")

from inline import run_inline

from quorumbook.errors import NoSuchLedgerInMetadataError
from quorumbook.spark.jobs.options import OrphanOptions
from quorumbook.spark.jobs.upkeep import gc_orphans
from quorumbook.streams import Namespace
from quorumbook.streams.transactions import Application, DraftOptions, Identity, Place

ROOT = "/orphaned"


def with_namespace(cluster, work):
    async def run():
        async with Namespace.open(f"{cluster.metadata_uri}#/orphans", bind=True) as namespace:
            return await work(namespace)

    return asyncio.run(run())


async def written(namespace, app, batch):
    """Have one task write for a batch; return what it tells."""
    attempt = app.attempt(batch, 0, 0, DraftOptions(), 1000)
    try:
        await attempt.append("s", [b"row of batch %d" % batch])
        return await attempt.finish()
    finally:
        await attempt.give_up()


async def prepare(namespace):
    await namespace.create_stream("s")
    app = Application(Place(namespace.client, namespace, ROOT), "app", Identity("q", "r"))
    await app.prepare()
    results = [await written(namespace, app, batch) for batch in (0, 1)]
    await app.commit(0, [results[0]])
    return [[draft.ledger_id for draft in result.drafts] for result in results]


async def is_there(namespace, ledger_id):
    try:
        await namespace.client.ledger_metadata(ledger_id)
    except NoSuchLedgerInMetadataError:
        return False
    return True


def collect(cluster, ttl_s):
    return run_inline(
        cluster,
        lambda namespace: gc_orphans.plan(namespace, OrphanOptions(root=ROOT, ttl_s=ttl_s)),
        gc_orphans.conclude,
        namespace="/orphans",
    )


def test_what_nobody_committed_goes_after_its_time_and_what_is_committed_stays(cluster):
    (committed, given_up) = with_namespace(cluster, prepare)
    assert collect(cluster, 3600).units == 0
    report = collect(cluster, 0)
    assert (report.exit_code, report.summary["deleted_attempts"]) == (0, 1)
    assert report.results["app"]["ledgers"] == given_up

    async def left(namespace):
        there = [await is_there(namespace, each) for each in (*committed, *given_up)]
        async with namespace.stream("s").reader(tail=False) as reader:
            return there, [record.payload async for record in reader]

    there, payloads = with_namespace(cluster, left)
    assert there == [True] * len(committed) + [False] * len(given_up)
    assert payloads == [b"row of batch 0"]
    assert collect(cluster, 0).units == 0
