"""``usage`` and ``fsck-meta``: what the metadata say, as tasks find it."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

pytest.importorskip("pyspark", reason="pip install 'quorumbook[spark]'")

from inline import run_inline

from quorumbook.cli.main import main
from quorumbook.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from quorumbook.metadata.bookies.cookies import CookieStore
from quorumbook.metadata.ledgers import LedgerManager
from quorumbook.metadata.nodes import create_with_parents
from quorumbook.metadata.paths import TreePaths
from quorumbook.metadata.recovery.queue import UnderreplicationQueue
from quorumbook.spark.jobs.options import FsckOptions, UsageOptions
from quorumbook.spark.jobs.upkeep import fsck_meta, usage
from quorumbook.streams import Namespace
from quorumbook.streams.stream_context import namespace_store, stream_context
from quorumbook.streams.tier.manifest import Manifest, TierState
from quorumbook.testing import LocalCluster


@pytest.fixture(scope="module")
def own_cluster():
    """A cluster whose metadata may be spoilt."""
    with LocalCluster(bookies=3) as running:
        yield running


def with_namespace(cluster, work):
    async def run():
        async with Namespace.open(f"{cluster.metadata_uri}#/checked", bind=True) as namespace:
            return await work(namespace)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("ensemble_size", "write_quorum", "fragments", "last"),
    [(3, 3, (0,), 99), (3, 2, (0, 7), 99), (5, 3, (0, 1, 50), 62), (4, 1, (0, 3), 2)],
)
def test_copies_are_counted_as_the_write_sets_put_them(
    ensemble_size, write_quorum, fragments, last
):
    bookies = [f"b{number}" for number in range(ensemble_size + len(fragments))]
    metadata = LedgerMetadata(
        ledger_id=1, ensemble_size=ensemble_size, write_quorum_size=write_quorum,
        ack_quorum_size=1, state=LedgerState.CLOSED, last_entry_id=last, length=10 * (last + 1),
        fragments=tuple(
            Fragment(first, tuple(bookies[i : i + ensemble_size]))
            for i, first in enumerate(fragments)
        ),
    )  # fmt: skip
    expected = {}
    for entry_id in range(last + 1):
        ensemble = metadata.fragment_of(entry_id).ensemble
        for step in range(write_quorum):
            bookie = ensemble[(entry_id + step) % ensemble_size]
            expected[bookie] = expected.get(bookie, 0) + 1
    found = {b: share["copies"] for b, share in usage.shares_of(metadata).items()}
    assert {b: copies for b, copies in found.items() if copies} == expected
    assert sum(s["stored_bytes"] for s in usage.shares_of(metadata).values()) <= (
        metadata.length * write_quorum
    )


def used_by(cluster, group_by):
    options = UsageOptions(group_by=group_by)
    return run_inline(cluster, lambda client: usage.plan(client, options), usage.conclude)


def test_usage_is_counted_by_bookie_stream_and_state(own_cluster, tmp_path, capsys):
    cluster = own_cluster
    with cluster.connect() as client:
        with client.create_ledger(ensemble_size=3, write_quorum_size=3) as ledger:
            ledger.append(b"x" * 1000)
        open_ledger = client.create_ledger()
        open_ledger.append(b"y" * 500)

        async def write(namespace):
            await namespace.create_stream("s")
            async with namespace.stream("s").writer() as writer:
                await writer.append_batch([b"z" * 100] * 20)

        with_namespace(cluster, write)
        report = used_by(cluster, "bookie")
        assert report.exit_code == 0
        assert {row["group"] for row in report.summary["rows"]} == set(cluster.bookie_ids)
        assert sum(row["copies"] for row in report.summary["rows"]) >= 6
        assert report.summary["skew"] < 1.5
        assert report.summary["bytes_on_lost_bookies"] == 0
        by_state = {row["group"]: row for row in used_by(cluster, "state").summary["rows"]}
        assert by_state["open"]["open_ledgers"] >= 1
        assert by_state["open"]["bytes"] == 0
        assert by_state["closed"]["bytes"] >= 1000
        streams = used_by(cluster, "stream")
        owners = {row["group"]: row["ledgers"] for row in streams.summary["rows"]}
        assert owners["/checked/s"] >= 1
        open_ledger.abort()


def test_usage_on_spark_prints_a_table_and_counts_lost_bookies(spark, own_cluster, capsys):
    with own_cluster.connect() as client, client.create_ledger() as ledger:
        ledger.append(b"x")
    words = ["spark", "usage", "--metadata", own_cluster.metadata_uri, "--json-report", "-"]
    assert main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["units"] == 1
    assert report["rows"]


def test_fsck_finds_each_contradiction_and_mends_what_is_safe(own_cluster):
    cluster = own_cluster

    def check(*, fix=False):
        return run_inline(
            cluster,
            lambda namespace: fsck_meta.plan(namespace, FsckOptions(fix=fix, min_age_s=0)),
            fsck_meta.conclude,
            namespace="/checked",
        )

    async def write(namespace):
        await namespace.create_stream("spoilt")
        for _ in range(2):
            async with namespace.stream("spoilt").writer() as writer:
                await writer.append(b"record")
        return [s.metadata.ledger_id for s in await namespace.stream("spoilt").segments()]

    ids = with_namespace(cluster, write)
    assert check().summary["rows"] == []
    marked, unreferenced, broken = with_namespace(cluster, lambda ns: spoil(ns, ids))
    report = check(fix=True)
    assert report.exit_code == 6
    found = {(row["kind"], row["subject"], row["fixed"]) for row in report.summary["rows"]}
    assert found == {
        ("missing_ledger", "spoilt", False),
        ("stale_files", "spoilt", False),
        ("foreign_files", "spoilt", False),
        ("unreadable_files", "spoilt", False),
        ("unreadable_mark", "987653", False),
        ("unreferenced", str(unreferenced), False),
        ("stale_mark", str(marked), True),
        ("unknown_bookie", str(broken), False),
        ("bad_fragments", str(broken), False),
    }
    details = {row["detail"] for row in report.summary["rows"] if row["kind"] == "foreign_files"}
    assert details == {
        f"segment 2 has ledger {ids[1]}; its files are those of ledger {unreferenced}"
    }
    assert report.findings == 9  # two things are wrong with the fragments
    assert ("stale_mark", str(marked), False) not in {
        (row["kind"], row["subject"], row["fixed"]) for row in check().summary["rows"]
    }


async def spoil(namespace: Namespace, ids: list[int]) -> tuple[int, int, int]:
    """Have the metadata contradict themselves in every way that is looked for."""
    client, store = namespace.client, namespace_store(namespace)
    await client.delete_ledger(ids[0])
    nodes = stream_context(namespace.stream("spoilt")).nodes
    await create_with_parents(store, nodes.paths.segment_tier(99), b"{}")
    custom = {
        "application": b"quorumbook", "component": b"stream", "namespace": b"/checked",
        "stream": b"spoilt",
    }  # fmt: skip
    async with client.create_ledger(custom_metadata=custom) as writer:
        pass
    second = (await namespace.stream("spoilt").segments())[1].metadata
    other = await client.ledger_metadata(writer.id)
    files = Manifest(state=TierState.LIVE, token="t", location="/files", ledger=other)
    await create_with_parents(store, nodes.paths.segment_tier(second.number), files.encode())
    queue = UnderreplicationQueue(store, "test")
    await queue.mark(987654, ["b:1"], 0)
    await queue.mark(987653, ["b:1"], 0)
    await store.set(TreePaths(store.ledgers_root).underreplicated(987653), b"damaged")
    queue.close()
    ledgers = LedgerManager(store)
    async with client.create_ledger() as broken:
        pass
    metadata, version = await ledgers.read(broken.id)
    ensemble = ("gone:1", "gone:1", *metadata.ensemble[2:])
    fragments = (*metadata.fragments, Fragment(50, ensemble))
    await ledgers.write(replace(metadata, fragments=fragments), version)
    assert "gone:1" not in await CookieStore(store).list()
    return 987654, writer.id, broken.id
