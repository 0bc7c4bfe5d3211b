"""The metadata as tables, each held against the API."""

from __future__ import annotations

import asyncio

import pytest
from spark_helpers import write_ledger

from quorumbook.client.context import client_store
from quorumbook.errors import ConfigError
from quorumbook.metadata.recovery.queue import UnderreplicationQueue
from quorumbook.spark.meta.tables import META_COLUMNS
from quorumbook.spark.request.selection import META_TABLES
from quorumbook.streams import Position
from quorumbook.streams.transactions.application import Place
from quorumbook.streams.transactions.nodes import TransactionNodes


@pytest.fixture(scope="session")  # as long as the cluster
def written(cluster, streams):
    """A ledger in the cluster, and a stream with a cursor."""
    streams.write("metered", [b"0"], [b"1", b"2"])
    streams.write("metered", [b"3"])
    streams.run(streams.namespace.stream("metered").cursor("billing", holds_retention=True))
    return write_ledger(
        cluster, [b"abc", b"de"], custom_metadata={"application": b"billing"}, write_quorum_size=2
    )


def one(rows, **wanted):
    (found,) = [r for r in rows if all(r[name] == value for name, value in wanted.items())]
    return found


def test_every_table_has_its_columns_and_can_be_narrowed(read, written):
    assert set(META_COLUMNS) == set(META_TABLES)
    for table, columns in META_COLUMNS.items():
        for row in read(f"meta:{table}"):
            assert list(row) == list(columns)


def test_the_cluster_and_its_bookies(read, cluster, written):
    (row,) = read("meta:cluster")
    with cluster.connect() as client:
        writable, _ = client.bookies()
        ids = list(client.list_ledger_ids())
    assert row["ledgers"] == len(ids)
    assert (row["writable_bookies"], row["read_only_bookies"]) == (3, 0)
    assert row["layout"] == "hierarchical"
    rows = read("meta:bookies")
    assert {r["bookie_id"] for r in rows} == writable
    for r in rows:
        assert (r["state"], r["has_cookie"]) == ("rw", True)
        assert 0 < r["free_bytes"] <= r["total_bytes"]
        assert any(text.startswith("bookie-rpc://") for text in r["endpoints"])


def test_ledgers_fragments_and_replicas(read, cluster, written):
    with cluster.connect() as client:
        metadata = client.ledger_metadata(written)
        ids = list(client.list_ledger_ids())
    rows = read("meta:ledgers", minPartitions=4)
    assert [r["ledger_id"] for r in rows] == ids
    row = one(rows, ledger_id=written)
    assert (row["state"], row["last_entry"], row["length"]) == ("closed", 1, 5)
    assert (row["ensemble_size"], row["write_quorum"], row["ack_quorum"]) == (3, 2, 2)
    assert row["custom_metadata"] == [("application", b"billing")]
    assert row["owner"] == "billing"
    assert row["ctime"].timestamp() * 1000 == pytest.approx(metadata.ctime_ms)
    fragment = one(read("meta:fragments"), ledger_id=written)
    assert fragment["ensemble"] == list(metadata.ensemble)
    assert (fragment["first_entry"], fragment["last_entry"], fragment["is_closed"]) == (0, 1, True)
    replicas = [r for r in read("meta:replicas") if r["ledger_id"] == written]
    assert [r["bookie_id"] for r in replicas] == list(metadata.ensemble)
    # Entry 0 is at positions 0 and 1, entry 1 at 1 and 2.
    assert [r["expected_entries"] for r in replicas] == [1, 2, 1]
    assert {r["bookie_state"] for r in replicas} == {"rw"}


def test_what_bookies_themselves_say_they_hold(read, written):
    rows = [r for r in read("meta:entries") if r["ledger_id"] == written]
    assert len(rows) == 3
    for row in rows:
        assert row["error"] is None
        assert row["entries"] == row["expected_entries"]
        assert sum(r["last"] - r["first"] + 1 for r in row["ranges"]) == row["entries"]


def test_streams_segments_and_cursors(read, streams, written):
    row = one(read("meta:streams"), stream="metered")
    assert (row["segments"], row["records"], row["is_sealed"]) == (2, 4, False)
    segments = [r for r in read("meta:segments") if r["stream"] == "metered"]
    known = streams.segments("metered")
    assert [r["ledger_id"] for r in segments] == [s.ledger_id for s in known]
    assert [r["records"] for r in segments] == [3, 1]
    assert [r["start_seq"] for r in segments] == [0, 3]
    assert {r["state"] for r in segments} == {"completed"}
    assert all(r["length"] > 0 and r["tier"] is None for r in segments)
    cursor = one(read("meta:cursors"), stream="metered", cursor="billing")
    assert (cursor["holds_retention"], cursor["is_overrun"]) == (True, False)
    assert cursor["lag_records"] == 4
    assert Position(cursor["segment"], cursor["entry_id"], cursor["slot"]) <= (
        known[0].number, 0, 1,
    )  # fmt: skip


def test_ledgers_that_lack_copies(read, cluster, written):
    async def mark(is_wanted):
        async with cluster_client() as client:
            queue = UnderreplicationQueue(client_store(client))
            if is_wanted:
                await queue.mark(written, ["gone:3181"])
            else:
                work = await queue.take_this(written)
                assert await queue.done(work)
            queue.close()

    def cluster_client():
        import quorumbook

        return quorumbook.connect(cluster.metadata_uri)

    asyncio.run(mark(True))
    try:
        row = one(read("meta:under_replicated"), ledger_id=written)
        assert row["missing"] == ["gone:3181"]
        assert row["locked_by"] is None
    finally:
        asyncio.run(mark(False))


def test_applications_that_write_exactly_once(read, streams):
    place = Place(streams.namespace.client, streams.namespace)
    nodes = TransactionNodes(place.store, place.path, "billing app")
    streams.run(nodes.make())
    row = one(read("meta:txns"), application="billing app")
    assert (row["last_batch"], row["commits"], row["attempts"], row["garbage"]) == (-1, 0, 0, 0)
    assert row["query"] is None


def test_storage_by_bookie_and_owner(read, written):
    rows = [r for r in read("meta:storage_usage") if r["owner"] == "billing"]
    assert sum(r["copies"] for r in rows) >= 4
    assert sum(r["ledgers"] for r in rows) >= 3


def test_a_table_that_is_not_there_and_one_as_a_stream_are_refused(read, cluster):
    with pytest.raises(ConfigError, match="did you mean bookies"):
        read("meta:bookie")
    with pytest.raises(ConfigError, match="no column 'ledger'; the nearest are ledger_id"):
        from pyspark.sql.types import LongType, StructField, StructType

        from quorumbook.spark.data_source import Source

        options = {"metadataServiceUri": cluster.metadata_uri, "path": "meta:ledgers"}
        Source(options).reader(StructType([StructField("ledger", LongType())]))
    with pytest.raises(ConfigError, match="is read as a batch"):
        source = Source(options)
        source.stream_reader(source.schema()).initialOffset()


def test_views_and_functions_of_sql(spark, cluster, written):
    from quorumbook.spark import register_views

    names = register_views(spark, cluster.metadata_uri)
    assert {"bk.ledgers", "bk.segments", "bk_entries"} <= set(names)
    query = "SELECT length FROM bk.ledgers WHERE ledger_id = {}"
    assert spark.sql(query.format(written)).collect()[0].length == 5
    rows = spark.sql(
        "SELECT l.ledger_id, e.entry_id, e.value "
        f"FROM (SELECT * FROM bk.ledgers WHERE ledger_id = {written}) l, "
        "LATERAL bk_entries(l.ledger_id) e ORDER BY 2"
    ).collect()
    assert [bytes(row.value) for row in rows] == [b"abc", b"de"]
    assert spark.sql(f"SELECT state FROM bk_ledger({written})").collect()[0].state == "closed"
    # What a view shows is settled when it is first used; made again, it looks again.
    later = write_ledger(cluster, [b"later"])
    register_views(spark, cluster.metadata_uri)
    assert spark.sql(query.format(later)).collect()[0].length == 5
