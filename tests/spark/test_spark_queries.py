"""Streaming queries in Spark itself."""

from __future__ import annotations

import json
import time
from uuid import uuid4


def start(spark, cluster, path, checkpoint, **options):
    """Return a query that has read what there is, and its rows."""
    frame = (
        spark.readStream.format("quorumbook")
        .options(**{"metadataServiceUri": cluster.metadata_uri, **options})
        .load(path)
    )
    rows = []
    query = (
        frame.writeStream.option("checkpointLocation", str(checkpoint))
        .foreachBatch(lambda batch, number: rows.append([number, batch.collect()]))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query, rows


def test_a_query_reads_in_limited_batches_and_goes_on_where_it_was(
    spark, cluster, streams, tmp_path
):
    streams.write("query", *([b"%d" % n] for n in range(10)))
    query, batches = start(
        spark, cluster, "stream:query", tmp_path, startingOffsets="earliest", maxRecordsPerTrigger=4
    )
    assert [len(rows) for _, rows in batches if rows] == [4, 4, 2]
    (source,) = query.lastProgress["sources"]
    end, latest = json.loads(source["endOffset"]), json.loads(source["latestOffset"])
    tasks = end.pop("t")
    assert tasks == {}
    assert end == {key: value for key, value in latest.items() if key != "lag"}
    assert latest["lag"]["entries"] == 0
    streams.write("query", [b"10"])
    _, more = start(spark, cluster, "stream:query", tmp_path)
    everything = [bytes(row.value) for _, rows in batches + more for row in rows]
    assert everything == [b"%d" % n for n in range(11)]


def test_a_query_with_a_wrong_option_does_not_start(spark, cluster, tmp_path):
    import pytest

    with pytest.raises(Exception, match="openMode is for read, not for readStream") as found:
        start(spark, cluster, "stream:query", tmp_path, openMode="recover")
    assert "openMode" in str(found.value).splitlines()[0]


def test_streams_that_appear_are_read_while_the_query_runs(spark, cluster, streams, tmp_path):
    prefix = f"appear-{uuid4().hex[:8]}"
    streams.write(f"{prefix}/a", [b"a"])
    seen = []
    query = (
        spark.readStream.format("quorumbook").schema("stream string, value binary")
        .options(metadataServiceUri=cluster.metadata_uri, startingOffsets="earliest")
        .options(streamPattern=f"{prefix}/.*").load()
        .writeStream.option("checkpointLocation", str(tmp_path))
        .foreachBatch(lambda batch, _: seen.extend(batch.collect())).start()
    )  # fmt: skip
    try:
        for name in "a", "b", "c":
            streams.write(f"{prefix}/{name}", [b"more"])
            deadline = time.monotonic() + 120
            while (f"{prefix}/{name}", b"more") not in {(r.stream, bytes(r.value)) for r in seen}:
                assert not query.awaitTermination(0.1)  # which raises what it failed with
                assert time.monotonic() < deadline, seen
    finally:
        query.stop()
    assert sorted((row.stream.rpartition("/")[2], bytes(row.value)) for row in seen) == [
        ("a", b"a"), ("a", b"more"), ("b", b"more"), ("c", b"more"),
    ]  # fmt: skip
