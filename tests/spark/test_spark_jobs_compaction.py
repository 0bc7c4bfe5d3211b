"""``quorumbook spark compact-segments``: the same records in few segments, also after a kill."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from uuid import uuid4

import pytest
from inline import run_inline
from spark_helpers import let_go

from doubles.etcd_server import EtcdServer
from quorumbook.cli.main import main
from quorumbook.spark.jobs.options import CompactOptions, OrphanOptions
from quorumbook.spark.jobs.upkeep import compact_segments as job
from quorumbook.spark.jobs.upkeep import gc_orphans
from quorumbook.streams import Namespace
from quorumbook.streams.compaction import Compaction
from quorumbook.streams.stream_context import stream_context
from quorumbook.streams.transactions import Application, DraftOptions, Identity, Place
from quorumbook.testing import LocalCluster

RULES = {"target_bytes": 1 << 20, "older_than_s": 0.0, "keep_s": 0.0}


def plan_all(namespace):
    return job.plan(namespace, CompactOptions(**RULES))


@pytest.fixture
def path(cluster):
    """A namespace of the test's own."""
    path = f"/compacted-{uuid4().hex[:8]}"
    asyncio.run(Namespace.bind(f"{cluster.metadata_uri}#{path}"))
    return path


def in_namespace(cluster, path, work):
    async def run():
        async with Namespace.open(f"{cluster.metadata_uri}#{path}") as namespace:
            return await work(namespace)

    return asyncio.run(run())


async def sink(namespace, name, batches=8):
    await namespace.create_stream(name)
    app = Application(Place(namespace.client, namespace), f"sink-{name}", Identity("q", "r"))
    await app.prepare()
    for batch in range(batches):
        attempt = app.attempt(batch, 0, 0, DraftOptions(), 1000 + batch)
        await attempt.append(name, [b"%d-%d" % (batch, n) for n in range(5)])
        await app.commit(batch, [await attempt.finish()])


async def look(namespace, name):
    """Return sequence ids and payloads, and how many segments there are."""
    async with namespace.stream(name).reader(tail=False) as reader:
        found = [(record.sequence_id, record.payload) async for record in reader]
    return found, await stream_context(namespace.stream(name)).nodes.segment_count()


async def unreferenced(namespace, *names):
    """Return the ledgers of streams that no segment names."""
    named = set()
    for name in names:
        named |= {
            s.ledger_id for s in await stream_context(namespace.stream(name)).nodes.segments()
        }
    return {
        ledger.ledger_id
        async for ledger in namespace.client.list_ledgers(
            custom_metadata={"namespace": namespace.path.encode()}
        )
    } - named


@pytest.fixture
def on_etcd(tmp_path):
    """A cluster whose metadata are in etcd."""
    server = EtcdServer(tmp_path, "--unsafe-no-fsync")
    try:
        with LocalCluster(bookies=3, metadata_uri=server.uri()) as running:
            yield running
            let_go(running)
    finally:
        server.kill()


def test_segments_are_merged_in_etcd_too(on_etcd):
    path = "/compacted"
    asyncio.run(Namespace.bind(f"{on_etcd.metadata_uri}#{path}"))
    in_namespace(on_etcd, path, lambda ns: sink(ns, "s"))
    before, count = in_namespace(on_etcd, path, lambda ns: look(ns, "s"))
    assert count == 8
    report = run_inline(on_etcd, plan_all, job.conclude, namespace=path)
    assert (report.errors, report.summary["segments_merged"]) == ({}, 8)
    assert in_namespace(on_etcd, path, lambda ns: look(ns, "s")) == (before, 1)
    assert in_namespace(on_etcd, path, lambda ns: unreferenced(ns, "s")) == set()
    in_namespace(on_etcd, path, lambda ns: sink(ns, "t", 1))  # the sink goes on beside it


def test_segments_are_merged_by_command_and_rows_stay(spark, cluster, path, tmp_path, load):
    in_namespace(cluster, path, lambda ns: sink(ns, "a"))
    in_namespace(cluster, path, lambda ns: sink(ns, "b", 1))
    before, _ = in_namespace(cluster, path, lambda ns: look(ns, "a"))
    report_path = tmp_path / "report.json"

    def run(*words):
        code = main(
            ["spark", "compact-segments", "--metadata", cluster.metadata_uri, "--namespace", path,
             "--older-than", "0", "--delete-lag", "0", "--json-report", str(report_path),
             "--state-dir", str(tmp_path / "jobs"), *words]
        )  # fmt: skip
        return code, json.loads(report_path.read_text())

    assert run("--dry-run")[1]["planned"] == ["a"]
    code, report = run("--max-bookie-mbps", "50")
    assert (code, report["segments_merged"], report["segments_made"]) == (0, 8, 1)
    assert in_namespace(cluster, path, lambda ns: look(ns, "a")) == (before, 1)
    rows = load("stream:a", namespace=path).select("seq", "value").orderBy("seq").collect()
    assert [(row.seq, bytes(row.value)) for row in rows] == before
    assert in_namespace(cluster, path, lambda ns: unreferenced(ns, "a", "b")) == set()
    code, report = run()
    assert (code, report["units"]) == (0, 0)
    assert main(
        ["spark", "compact-segments", "--metadata", cluster.metadata_uri, "--namespace", path,
         "--stream", "missing"]
    ) == 3  # fmt: skip


def test_what_is_young_is_left_and_merged_ledgers_stay_for_those_who_read_them(cluster, path):
    in_namespace(cluster, path, lambda ns: sink(ns, "s", 4))
    before, _ = in_namespace(cluster, path, lambda ns: look(ns, "s"))

    def run(**rules):
        """Plan by these rules and by all that are wide, and have the task keep to these."""

        async def make(namespace):
            plan = await job.plan(namespace, CompactOptions(**RULES | rules))
            wide = plan if plan.units else await plan_all(namespace)
            units = [replace(unit, arguments=unit.arguments | rules) for unit in wide.units]
            planned.append(len(plan.units))
            return replace(wide, units=units)

        planned = []
        report = run_inline(cluster, make, job.conclude, namespace=path)
        assert report.errors == {}
        return planned, report.summary["segments_merged"]

    assert run(older_than_s=3600.0) == ([0], 0)
    assert run(target_bytes=100) == ([0], 0)
    assert run(keep_s=3600.0) == ([1], 4)
    assert in_namespace(cluster, path, lambda ns: look(ns, "s")) == (before, 1)
    assert len(in_namespace(cluster, path, lambda ns: unreferenced(ns, "s"))) == 4
    in_namespace(cluster, path, lambda ns: sink(ns, "t", 2))
    assert run() == ([1], 2)  # whose own ledgers go at once
    assert len(in_namespace(cluster, path, lambda ns: unreferenced(ns, "s", "t"))) == 4


class Killed(BaseException):
    """The process is no more."""


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_job_that_is_killed_around_its_step_is_given_again(cluster, path, monkeypatch, where):
    in_namespace(cluster, path, lambda ns: sink(ns, "s"))
    before, _ = in_namespace(cluster, path, lambda ns: look(ns, "s"))
    swap = Compaction._swap  # it dies between two steps

    async def killed(self, *arguments):
        if where == "after":
            await swap(self, *arguments)
        raise Killed

    async def run(namespace):
        context = stream_context(namespace.stream("s"))
        work = Compaction(Place(namespace.client, namespace), context, keep_s=0.0)
        await work.run(await work.rules(target_bytes=1 << 20))

    with monkeypatch.context() as patch:
        patch.setattr(Compaction, "_swap", killed)
        with pytest.raises(Killed):
            in_namespace(cluster, path, run)
    assert in_namespace(cluster, path, lambda ns: look(ns, "s"))[0] == before
    report = run_inline(cluster, plan_all, job.conclude, namespace=path)
    assert (report.exit_code, report.summary["segments_made"]) == (0, int(where == "before"))
    assert in_namespace(cluster, path, lambda ns: look(ns, "s")) == (before, 1)
    run_inline(
        cluster, lambda ns: gc_orphans.plan(ns, OrphanOptions(ttl_s=0.0)), gc_orphans.conclude,
        namespace=path,
    )  # fmt: skip
    assert in_namespace(cluster, path, lambda ns: unreferenced(ns, "s")) == set()
    # What was merged is nobody's orphan.
    assert in_namespace(cluster, path, lambda ns: look(ns, "s")) == (before, 1)
