"""The metadata of a cluster and of its streams as tables, without Spark."""

from __future__ import annotations

import logging
import sys

import pytest

from doubles.clusters import local_cluster

pa = pytest.importorskip("pyarrow", reason="pip install 'quorumbook[arrow]'")

import quorumbook  # noqa: E402
from quorumbook.client.context import client_store  # noqa: E402
from quorumbook.client.tables import cluster as cluster_tables  # noqa: E402
from quorumbook.client.tables import columns, tabular  # noqa: E402
from quorumbook.errors import ConfigError  # noqa: E402
from quorumbook.metadata.paths import LayoutKind, TreePaths  # noqa: E402
from quorumbook.streams import Namespace  # noqa: E402
from quorumbook.streams.tables import columns as stream_columns  # noqa: E402
from quorumbook.streams.tables import rows as stream_tables  # noqa: E402
from quorumbook.sync.streams import Namespace as SyncNamespace  # noqa: E402
from quorumbook.testing import LocalCluster  # noqa: E402

cluster = local_cluster(scope="module")


@pytest.fixture(scope="module")
def written(cluster: LocalCluster) -> list[int]:
    """A closed ledger of two entries and an open one; a stream with a cursor, of two segments."""
    with cluster.connect() as bk:
        with bk.create_ledger(custom_metadata={"application": b"billing"}) as closed:
            for payload in (b"abc", b"de"):
                closed.append(payload)
        still_open = bk.create_ledger().id
    with SyncNamespace.open(cluster.metadata_uri, bind=True) as ns:
        ns.create_stream("orders")
        for payload in (b"one", b"two"):
            with ns.stream("orders").writer() as writer:
                writer.append(payload)
        ns.stream("orders").cursor("billing")
    return [closed.id, still_open]


async def test_each_table_has_its_columns_and_what_the_client_says(
    cluster: LocalCluster, written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tabular, "_ROWS_OF_A_BATCH", 1)
    assert list(cluster_tables.TABLES) == list(columns.SCHEMAS)
    async with quorumbook.connect(cluster.metadata_uri) as bk:
        for name, schema in columns.SCHEMAS.items():
            assert (await bk.to_arrow(name)).schema == schema, name
        ids = [ledger_id async for ledger_id in bk.list_ledger_ids()]
        ledgers = {row["ledger_id"]: row for row in (await bk.to_arrow("ledgers")).to_pylist()}
        assert list(ledgers) == ids
        closed, still_open = (ledgers[each] for each in written)
        assert (closed["state"], closed["last_entry"], closed["length"]) == ("closed", 1, 5)
        assert (closed["owner"], closed["custom_metadata"]) == (
            "billing", [("application", b"billing")],
        )  # fmt: skip
        metadata = await bk.ledger_metadata(written[0])
        assert metadata.ctime_ms == round(closed["ctime"].timestamp() * 1000)
        assert (still_open["state"], still_open["last_entry"]) == ("open", None)
        replicas = (await bk.to_arrow("replicas", ["ledger_id", "expected_entries"])).to_pylist()
        assert sum(r["expected_entries"] for r in replicas if r["ledger_id"] == written[0]) == 6
        writable, _ = await bk.bookies()
        bookies = (await bk.to_polars("bookies")).to_dicts()
        assert {(row["bookie_id"], row["state"]) for row in bookies} == {
            (bookie_id, "rw") for bookie_id in writable
        }
        assert (await bk.to_pandas("storage_usage"))["copies"].sum() >= 6
        (facts,) = (await bk.to_arrow("cluster")).to_pylist()
        assert (facts["ledgers"], facts["writable_bookies"]) == (len(ids), 3)
        assert (await bk.to_arrow("under_replicated")).num_rows == 0


async def test_a_namespace_has_tables_of_its_streams(
    cluster: LocalCluster, written: list[int]
) -> None:
    assert list(stream_tables.TABLES) == list(stream_columns.SCHEMAS)
    async with Namespace.open(cluster.metadata_uri) as ns:
        for name, schema in stream_columns.SCHEMAS.items():
            assert (await ns.to_arrow(name)).schema == schema, name
        (stream,) = (await ns.to_arrow("streams")).to_pylist()
        assert (stream["stream"], stream["segments"], stream["records"]) == ("orders", 2, 2)
        segments = await ns.to_pandas("segments", ["start_seq", "records"])
        assert segments.values.tolist() == [[0, 1], [1, 1]]
        (cursor,) = (await ns.to_polars("cursors")).to_dicts()
        assert (cursor["cursor"], cursor["lag_records"]) == ("billing", 2)


def test_the_blocking_twin_has_the_same(cluster: LocalCluster, written: list[int]) -> None:
    with cluster.connect() as bk:
        assert bk.to_pandas("fragments", ["ledger_id"])["ledger_id"].isin(written).sum() == 2
    with SyncNamespace.open(cluster.metadata_uri) as ns:
        assert ns.to_arrow("streams", ["stream"]).to_pylist() == [{"stream": "orders"}]
        assert ns.client.to_polars("cluster").height == 1


async def test_a_damaged_ledger_is_left_out_and_named(
    cluster: LocalCluster, written: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    async with quorumbook.connect(cluster.metadata_uri) as bk:
        store = client_store(bk)
        path = TreePaths(store.ledgers_root).ledger(LayoutKind.HIERARCHICAL, written[0])
        data = (await store.get(path)).data
        await store.set(path, b"nonsense")
        try:
            with caplog.at_level(logging.ERROR):
                found = (await bk.to_arrow("ledgers", ["ledger_id"]))["ledger_id"].to_pylist()
        finally:
            await store.set(path, data)
        assert written[0] not in found
        assert written[1] in found
        assert f"ledger {written[0]}" in caplog.text


async def test_what_is_asked_wrongly_is_refused(
    cluster: LocalCluster, written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with quorumbook.connect(cluster.metadata_uri) as bk:
        with pytest.raises(ConfigError, match="no table 'ledger' here; the nearest: ledgers"):
            await bk.to_arrow("ledger")
        with pytest.raises(ConfigError, match="no table 'streams' here"):
            await bk.to_arrow("streams")  # a namespace has them
        with pytest.raises(ConfigError, match="rows of ledgers have no column 'id'"):
            await bk.to_pandas("ledgers", ["id"])
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(ConfigError, match=r"pip install 'quorumbook\[arrow\]'"):
            await bk.to_arrow("ledgers")
