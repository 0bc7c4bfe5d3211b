"""``quorumbook spark rereplicate``, ``decommission``, ``rebalance``: copies move by tasks."""

from __future__ import annotations

import asyncio
import json

import pytest

import quorumbook
from doubles.replicas import assert_fully_replicated
from doubles.waiting import until
from quorumbook.autorecovery.copying.balance import Move
from quorumbook.autorecovery.copying.moving import shares
from quorumbook.cli.main import main
from quorumbook.client.context import client_store
from quorumbook.metadata.bookies.cookies import CookieStore
from quorumbook.spark.connection import Connection
from quorumbook.spark.jobs.engine import Limits, run_plan
from quorumbook.spark.jobs.journal import JobJournal
from quorumbook.spark.jobs.upkeep import moving
from quorumbook.testing import LocalCluster


@pytest.fixture(scope="module")
def own_cluster():
    """A cluster that loses bookies."""
    with LocalCluster(bookies=5) as running:
        yield running


def with_client(cluster, work):
    async def run():
        async with quorumbook.connect(cluster.metadata_uri) as client:
            return await work(client)

    return asyncio.run(run())


def written(cluster, number, entries=40):
    with cluster.connect() as client, client.create_ledger(write_quorum_size=2) as ledger:
        for entry in range(entries):
            ledger.append_nowait(b"%d of %d" % (entry, number))
        return ledger.id


def run(cluster, tmp_path, job, *words):
    report = tmp_path / "report.json"
    code = main(
        ["spark", job, "--metadata", cluster.metadata_uri, "--json-report", str(report),
         "--state-dir", str(tmp_path / "jobs"), "--set", "recovery.open_ledger_grace_s=0", *words]
    )  # fmt: skip
    return code, json.loads(report.read_text()) if report.exists() else None


def test_a_lost_bookie_is_rereplicated_while_a_writer_goes_on_then_forgotten(
    spark, own_cluster, tmp_path
):
    cluster = own_cluster
    ids = [written(cluster, number) for number in range(8)]
    lost = with_client(cluster, lambda client: client.ledger_metadata(ids[0])).ensemble[0]
    code, report = run(cluster, tmp_path, "rereplicate", "--bookie", lost)
    assert (code, report) == (2, None)  # it is not lost
    with cluster.connect() as client, client.create_ledger(ack_quorum_size=2) as ledger:
        ledger.append(b"before")
        cluster.stop(lost)
        for number in range(50):  # its place in this ensemble goes to another
            ledger.append(b"while it is gone %d" % number)

        async def is_replaced(client):
            async def look():
                return lost not in (await client.ledger_metadata(ledger.id)).ensemble

            await until(look)

        # Two copies are enough for an append; a ledger that still needs the lost one is fenced.
        with_client(cluster, is_replaced)
        code, report = run(cluster, tmp_path, "rereplicate", "--bookie", lost, "--dry-run")
        assert code == 0
        planned = report["units"]
        assert planned > 0
        code, report = run(cluster, tmp_path, "rereplicate", "--bookie", lost)
        assert (code, report["errors"], report["done"]) == (0, {}, planned)
        assert report["copied_entries"] > 0
        ledger.append(b"after")
        ids.append(ledger.id)

    async def check(client):
        assert [share async for share in shares(client, [lost])] == []
        for ledger_id in ids:
            await assert_fully_replicated(client, ledger_id)
        return await CookieStore(client_store(client)).read(lost)

    assert with_client(cluster, check)
    code, _ = run(cluster, tmp_path, "decommission", "--bookie", lost)
    assert code == 0

    assert with_client(cluster, lambda client: CookieStore(client_store(client)).read(lost)) is None


def test_a_move_that_cannot_be_made_is_an_error_that_a_resumed_job_tries_again(
    spark, own_cluster, tmp_path
):
    cluster = own_cluster
    ids = [written(cluster, number) for number in range(2)]

    async def planned(client):
        registered = set().union(*(await client.bookies()))
        moves = []
        for ledger_id in ids:
            ensemble = (await client.ledger_metadata(ledger_id)).ensemble
            target = min(registered - set(ensemble))
            moves.append(Move(ledger_id, ensemble[0], target, 300))
        # One that has a place in the ledger cannot take another.
        ensemble = (await client.ledger_metadata(ids[1])).ensemble
        moves[1] = Move(ids[1], ensemble[0], ensemble[1], 300)
        return moves

    moves = with_client(cluster, planned)
    connection = Connection(metadata_uri=cluster.metadata_uri, namespace_path="/streams")
    journal = JobJournal.begin(str(tmp_path), "rebalance", {})
    report = run_plan(spark, connection, moving.plan_moves(moves), journal, Limits())
    moving.conclude(report)
    assert report.exit_code == 1
    assert list(report.errors) == [f"{ids[1]}@{moves[1].source}"]
    assert list(report.results) == [f"{ids[0]}@{moves[0].source}"]

    async def check(client):
        metadata = await client.ledger_metadata(ids[0])
        assert moves[0].source not in metadata.ensemble
        assert moves[0].target in metadata.ensemble
        await assert_fully_replicated(client, ids[0])

    with_client(cluster, check)
    again = JobJournal.resume(str(tmp_path), journal.job_id, "rebalance", {})
    assert list(again.done) == [f"{ids[0]}@{moves[0].source}"]


def test_disks_that_are_about_equally_full_are_left_alone(spark, own_cluster, tmp_path):
    code, report = run(own_cluster, tmp_path, "rebalance", "--dry-run")
    assert (code, report["units"]) == (0, 0)
