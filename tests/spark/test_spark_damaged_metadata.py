"""A damaged node of the metadata costs its own row of ``meta:``, and is named in the log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from spark_helpers import Streams, let_go, read_tasks, write_ledger

from quorumbook.client.context import client_store
from quorumbook.errors import MetadataFormatError
from quorumbook.metadata.nodes import create_with_parents
from quorumbook.metadata.paths import LayoutKind, TreePaths
from quorumbook.metadata.recovery.queue import UnderreplicationQueue
from quorumbook.spark.jobs.data.export import plan_ledgers
from quorumbook.spark.jobs.options import AuditOptions, ExportOptions
from quorumbook.spark.jobs.upkeep import audit
from quorumbook.spark.meta.tables import META_COLUMNS
from quorumbook.streams.stream_context import stream_context
from quorumbook.streams.transactions.application import Place
from quorumbook.streams.transactions.nodes import TransactionNodes
from quorumbook.testing import LocalCluster


class Marred:
    """A cluster with two of everything."""

    def __init__(self, cluster: LocalCluster, streams: Streams) -> None:
        self.cluster = cluster
        self.streams = streams
        self.client = streams.namespace.client
        self.store = client_store(self.client)
        self.paths = TreePaths(self.store.ledgers_root)
        self.ledgers = [write_ledger(cluster, [b"x"]) for _ in range(2)]
        for name in "one", "two":
            streams.write(name, [b"0"])
            streams.write(name, [b"1"])
            streams.run(streams.namespace.stream(name).cursor("c", holds_retention=True))
            place = Place(self.client, streams.namespace)
            streams.run(TransactionNodes(place.store, place.path, name).make())
        self.application = TransactionNodes(place.store, place.path, "one").path
        one = streams.namespace.stream("one")
        self.stream = stream_context(one).nodes.paths
        self.segment_ledger = streams.segments("one")[0].ledger_id
        queue = UnderreplicationQueue(self.store)
        for ledger_id in self.ledgers:
            streams.run(queue.mark(ledger_id, ["gone:3181"]))
        queue.close()
        #: The rows of all tables, by table.
        self.whole = {table: self.read(table) for table in META_COLUMNS}

    def read(self, table: str) -> list[dict[str, Any]]:
        return [row for task in read_tasks(self.cluster, f"meta:{table}") for row in task]

    def damage(self, path: str, data: bytes) -> bytes | None:
        async def work() -> bytes | None:
            node = await self.store.exists(path)
            if node is None:
                await create_with_parents(self.store, path, data)
                return None
            await self.store.set(path, data, node.version)
            return node.data

        return self.streams.run(work())

    def mend(self, path: str, data: bytes | None) -> None:
        is_new = data is None
        self.streams.run(self.store.delete(path) if is_new else self.store.set(path, data))


@pytest.fixture(scope="module")
def marred() -> Iterator[Marred]:
    with LocalCluster(bookies=3) as cluster:
        with Streams(cluster) as streams:
            yield Marred(cluster, streams)
        let_go(cluster)


def ledger_node(marred: Marred) -> str:
    return marred.paths.ledger(LayoutKind.HIERARCHICAL, marred.ledgers[0])


def a_ledger(row: dict[str, Any], marred: Marred) -> bool:
    return row["ledger_id"] == marred.ledgers[0]


def bookie_node(marred: Marred) -> str:
    return marred.paths.bookie(sorted(marred.cluster.bookie_ids)[0], read_only=False)


def _is_one(row: dict[str, Any], marred: Marred) -> bool:
    return row["stream"] == "one"


def _is_first(row: dict[str, Any], marred: Marred) -> bool:
    return (row["stream"], row["segment"]) == ("one", 1)


@dataclass(frozen=True)
class Damage:
    """A node that is damaged, and what it costs."""

    node: Callable[[Marred], str]
    #: What the log says.
    said: str
    #: By table, which rows go; others stay.
    gone: dict[str, Callable[[dict[str, Any], Marred], bool]] = field(default_factory=dict)
    #: By table, the columns in which rows may be others than before.
    changed: dict[str, set[str]] = field(default_factory=dict)
    data: bytes = b"\xff"


BY_LEDGER = ("ledgers", "fragments", "replicas", "entries")
DAMAGES = {
    "a ledger": Damage(
        ledger_node, "left out of the ledgers: ledger ",
        gone=dict.fromkeys(BY_LEDGER, a_ledger),
        changed={"storage_usage": {"ledgers", "copies", "bytes"}},
    ),
    "a segment's ledger": Damage(
        lambda w: w.paths.ledger(LayoutKind.HIERARCHICAL, w.segment_ledger),
        "not known is the ledger of segment 1 of stream one: ",
        gone=dict.fromkeys(BY_LEDGER, lambda row, w: row["ledger_id"] == w.segment_ledger),
        changed={"storage_usage": {"ledgers", "copies", "bytes"}, "segments": {"length"},
                 "cursors": {"lag_records", "lag_bytes"}},
    ),
    "a mark": Damage(
        lambda w: w.paths.underreplicated(w.ledgers[0]), "left out of the under-replicated",
        gone={"under_replicated": a_ledger},
    ),
    "a lock": Damage(
        lambda w: w.paths.underreplicated_lock(w.ledgers[0]), "",
        changed={"under_replicated": {"locked_by"}},
    ),
    "the table of racks": Damage(
        lambda w: w.paths.racks, "no racks of bookies: metadata node ",
        changed={"bookies": {"rack"}},
    ),
    "a bookie's registration": Damage(
        bookie_node, "no endpoints of bookie ", changed={"bookies": {"endpoints"}},
    ),
    "a segment": Damage(
        lambda w: w.stream.segment(1, is_in_progress=False), "left out of the segments: ",
        gone={"segments": _is_first},
        changed={"streams": {"segments", "records", "first_segment", "last_segment"},
                 "segments": {"start_seq"}, "cursors": {"lag_records", "lag_bytes"}},
    ),
    "a segment's files": Damage(
        lambda w: w.stream.segment_tier(1), "the files of segment 1 of stream one: ",
    ),
    "a policy": Damage(
        lambda w: w.stream.stream, "left out of the streams: one: ", gone={"streams": _is_one},
        data=b'{"version":1,"roll_bytes":"much"}',
    ),
    "a cursor": Damage(
        lambda w: f"{w.stream.subscriber('c')}/cursor", "/subscribers/c/cursor) cannot be read",
    ),
    "an application": Damage(
        lambda w: w.application, "not known is application one: ",
        gone={"txns": lambda row, w: row["application"] == "one"},
    ),
}  # fmt: skip


def _shown(rows: list[dict[str, Any]], changed: set[str]) -> list[str]:
    # The free space of disks changes by itself.
    left_out = changed | {"free_bytes", "total_bytes"}
    return sorted(str({n: value for n, value in row.items() if n not in left_out}) for row in rows)


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_node_costs_its_own_rows_and_is_named(
    marred: Marred, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    damage = DAMAGES[what]
    node = damage.node(marred)
    data = marred.damage(node, damage.data)
    try:
        with caplog.at_level(logging.ERROR):
            found = {table: marred.read(table) for table in META_COLUMNS}
    finally:
        marred.mend(node, data)
    assert damage.said in caplog.text
    for table, rows in marred.whole.items():
        is_gone = damage.gone.get(table, lambda row, marred: False)
        changed = damage.changed.get(table, set())
        left = [row for row in rows if not is_gone(row, marred)]
        assert (len(left) < len(rows)) is (table in damage.gone), table
        assert _shown(found[table], changed) == _shown(left, changed), table


def test_jobs_go_by_all_other_ledgers_and_say_which_is_damaged(
    marred: Marred, tmp_path: Path
) -> None:
    bad, good = marred.ledgers
    node = ledger_node(marred)
    data = marred.damage(node, b"\xff")
    try:
        planned = marred.streams.run(audit.plan(marred.client, AuditOptions()))
        results = {unit.key: unit.arguments for unit in planned.units}
        assert f"{good}:0-0" in results
        found = marred.streams.run(audit.work(None, None, results[f"{bad}:?"]))
        assert audit.has_findings(found)
        assert found["findings"][0]["ledger_id"] == bad
        assert f"ledger {bad}: " in found["findings"][0]["detail"]
        options = ExportOptions(source=f"ledger:0-{good}", out=str(tmp_path))
        with pytest.raises(MetadataFormatError, match=f"ledger {bad}: "):
            marred.streams.run(plan_ledgers(marred.client, [(0, good)], options))
        made = marred.streams.run(plan_ledgers(marred.client, [(good, good)], options))
        assert len(made.units) == 1
    finally:
        marred.mend(node, data)
