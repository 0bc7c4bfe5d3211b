"""A sink merges small segments by itself where they become very many."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType
from spark_helpers import Query, Streams, read_tasks

from quorumbook.errors import ConfigError, MetadataVersionConflict
from quorumbook.spark.options import Use
from quorumbook.spark.sink import small_segments, write
from quorumbook.spark.sink.options import WriteOptions
from quorumbook.spark.sink.write import BatchSink
from quorumbook.streams import Record, Stream
from quorumbook.streams.compaction import Compaction
from quorumbook.streams.errors import DataLossError
from quorumbook.streams.stream_context import stream_context
from quorumbook.streams.transactions import Place


@pytest.fixture
def name(streams: Streams) -> str:
    name = f"small/{uuid4().hex[:8]}"
    streams.run(streams.namespace.create_stream(name))
    return name


@pytest.fixture
def save(cluster: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return ``save(version)``, which writes two rows as one task does, and commits."""
    task = SimpleNamespace(partitionId=lambda: 0, attemptNumber=lambda: 0)
    monkeypatch.setattr(write, "TaskContext", SimpleNamespace(get=lambda: task))
    schema = StructType([StructField("value", BinaryType())])

    def call(version: int) -> None:
        given = {
            "metadataServiceUri": cluster.metadata_uri, "path": f"stream:{name}",
            "txnAppId": name, "txnVersion": str(version),
        }  # fmt: skip
        sink = BatchSink(WriteOptions.of(given, Use.WRITE), schema, overwrite=False)
        rows = pa.RecordBatch.from_pydict({"value": [b"%d.0" % version, b"%d.1" % version]})
        sink.commit([sink.write(iter([rows]))])

    return call


def payloads(streams: Streams, name: str, start: Any = "earliest") -> list[bytes]:
    async def work() -> list[bytes]:
        async with streams.namespace.stream(name).reader(start, tail=False) as reader:
            return [record.payload async for record in reader]

    return streams.run(work())


def test_above_a_thousand_segments_the_next_commit_merges_the_small_ones(
    save: Any, streams: Streams, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert small_segments.MANY_SEGMENTS == 1000
    monkeypatch.setattr(small_segments, "MANY_SEGMENTS", 8)
    monkeypatch.setattr(small_segments, "_LEAST", 4)
    monkeypatch.setattr(small_segments, "_OLDER_THAN_S", 0.0)
    counts = []
    for version in range(20):
        save(version)
        counts.append(len(streams.segments(name)))
    assert counts[:8] == list(range(1, 9))
    assert max(counts) <= 8
    assert payloads(streams, name) == [b"%d.%d" % (v, n) for v in range(20) for n in range(2)]
    save(19)  # run again
    assert len(payloads(streams, name)) == 40


def test_segments_that_somebody_may_be_at_are_left_and_the_batch_is_there(
    save: Any, streams: Streams, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_segments, "MANY_SEGMENTS", 3)
    monkeypatch.setattr(small_segments, "_LEAST", 2)
    for version in range(4):
        save(version)  # too new
    assert len(streams.segments(name)) == 4
    monkeypatch.setattr(small_segments, "_OLDER_THAN_S", 0.0)
    monkeypatch.setattr(small_segments, "PAUSE_S", 0.0)
    streams.run(streams.namespace.stream(name).cursor("behind", start="earliest"))
    save(4)
    assert len(streams.segments(name)) == 5
    assert payloads(streams, name) == [b"%d.%d" % (v, n) for v in range(5) for n in range(2)]


def test_too_many_segments_are_merged_however_new_they_are_and_whoever_stands_still(
    save: Any, streams: Streams, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert small_segments.TOO_MANY_SEGMENTS == 5000
    monkeypatch.setattr(small_segments, "MANY_SEGMENTS", 3)
    monkeypatch.setattr(small_segments, "TOO_MANY_SEGMENTS", 6)
    monkeypatch.setattr(small_segments, "PAUSE_S", 0.0)
    monkeypatch.setattr(small_segments, "_LEAST", 2)
    save(0)
    stream = streams.namespace.stream(name)
    first = streams.run(first_record(stream))
    streams.run(streams.run(stream.cursor("stalled")).commit(first))
    counts = []
    for version in range(1, 20):
        save(version)
        counts.append(len(streams.segments(name)))
    assert counts[:5] == [2, 3, 4, 5, 6]
    assert max(counts) <= 6
    rows = [b"%d.%d" % (v, n) for v in range(20) for n in range(2)]
    assert payloads(streams, name) == rows
    assert payloads(streams, name, streams.run(stream.cursor("stalled"))) == rows[1:]


async def first_record(stream: Stream) -> Record:
    async with stream.reader(tail=False) as reader:
        return (await reader.read(1))[0]


def test_a_merging_that_fails_leaves_the_batch_there_and_is_tried_with_the_next(
    save: Any, streams: Streams, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small_segments, "MANY_SEGMENTS", 3)
    monkeypatch.setattr(small_segments, "_LEAST", 2)
    monkeypatch.setattr(small_segments, "_OLDER_THAN_S", 0.0)

    async def failing(*_: Any, **__: Any) -> Any:
        raise MetadataVersionConflict("the stream was truncated")

    with monkeypatch.context() as patch:
        patch.setattr(Compaction, "run", failing)
        for version in range(4):
            save(version)
    assert len(streams.segments(name)) == 4
    save(4)
    assert len(streams.segments(name)) < 4
    assert payloads(streams, name) == [b"%d.%d" % (v, n) for v in range(5) for n in range(2)]


@pytest.fixture
def merge(streams: Streams, name: str) -> Any:
    """Return ``merge()``, which makes all segments that there are one."""

    def call() -> None:
        async def work() -> None:
            namespace = streams.namespace
            context = stream_context(namespace.stream(name))
            merging = Compaction(Place(namespace.client, namespace), context, keep_s=3600.0)
            assert await merging.run(await merging.rules(target_bytes=1 << 20))

        streams.run(work())

    return call


def test_a_query_that_has_read_what_is_merged_goes_on_at_the_very_record(
    save: Any, merge: Any, cluster: Any, streams: Streams, name: str
) -> None:
    running = Query(cluster, f"stream:{name}", startingOffsets="earliest")
    for version in range(3):
        save(version)
    running.until(6)
    merge()
    save(3)
    running.until(8)
    assert [row["value"] for row in running.rows] == payloads(streams, name)
    # One that goes on from its checkpoint does so, too; and so after another merging.
    again = Query(cluster, f"stream:{name}", checkpoint=running.checkpoint)
    assert again.drain() == []
    merge()
    save(4)
    again.until(2)
    assert [row["value"] for row in again.rows] == [b"4.0", b"4.1"]
    # A batch that is done again, although it was planned before, is the same.
    last = again.rows_between(again.checkpoint[-2], again.checkpoint[-1])
    assert last == again.batches[-1]


def test_a_query_that_is_behind_what_was_merged_goes_on_or_is_told_so(
    save: Any, merge: Any, cluster: Any, streams: Streams, name: str
) -> None:
    for version in range(4):
        save(version)
    running = Query(cluster, f"stream:{name}", startingOffsets="earliest", maxEntriesPerTrigger=1)
    running.until(4)
    stored = running.checkpoint[-1]
    merge()
    running.until(8)
    assert [row["value"] for row in running.rows] == payloads(streams, name)
    # Without the ledger that was read nobody knows where that is now, and nothing is read twice.
    bare = json.loads(stored)
    bare["s"][name] = bare["s"][name][:3]
    with pytest.raises(DataLossError, match=r"were merged since.*cursor holds merging up"):
        Query(cluster, f"stream:{name}", checkpoint=[json.dumps(bare)]).step()
    for end in ("startingOffsets", "endingOffsets"):
        with pytest.raises((DataLossError, ConfigError), match="were merged since"):
            read_tasks(cluster, f"stream:{name}", **{end: stored})
