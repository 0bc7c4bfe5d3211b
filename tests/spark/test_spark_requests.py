"""What a query asks of metadata store and bookies, however many streams it follows."""

from __future__ import annotations

from collections import Counter
from uuid import uuid4

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from quorumbook.client.context import client_store
from quorumbook.client.transport.channels import ControlChannel
from quorumbook.client.transport.entry_reads import ReadChannel
from quorumbook.spark.data_source import Source
from quorumbook.spark.pool import connected
from quorumbook.spark.request.read_options import ReadOptions

#: Each with a segment that is being written.
STREAMS = 30
BOOKIES = 3


@pytest.fixture
def names(streams):
    """Streams with a record each, whose writers are still there."""
    names = [f"{uuid4().hex}-{number}" for number in range(STREAMS)]
    writers = {name: streams.writer(name) for name in names}
    try:
        for writer in writers.values():
            streams.append(writer, [b"first"])
        yield writers
    finally:
        for writer in writers.values():
            streams.close(writer)


@pytest.fixture
def asked(cluster, monkeypatch):
    """Requests of this process's client, by whom they go to."""
    count = Counter()
    options = ReadOptions.of({"metadataServiceUri": cluster.metadata_uri, "path": "stream:s"})
    store = client_store(connected(options.connection).client)
    for name in ("get", "exists", "children", "create", "set", "delete", "replace", "multi"):
        _count(monkeypatch, count, "metadata", store, name)
    _count(monkeypatch, count, "bookies", ControlChannel, "request")
    for name in ("read", "batch_read", "read_row"):
        _count(monkeypatch, count, "entries", ReadChannel, name)
    return count


def _count(monkeypatch, count, whom, owner, name):
    asking = getattr(owner, name)

    def counted(*arguments, **options):
        count[whom] += 1
        return asking(*arguments, **options)

    monkeypatch.setattr(owner, name, counted)


class Query:
    """What Spark calls on the driver."""

    def __init__(self, cluster, names):
        given = {"metadataServiceUri": cluster.metadata_uri, "streams": ",".join(names)}
        source = Source(given)
        self.schema = source.schema()
        self.reader = source.stream_reader(self.schema)
        self.start = self.reader.initialOffset()

    def look(self):
        return self.reader.latestOffset(self.start, ReadAllAvailable())

    def rows(self, end):
        tasks = self.reader.partitions(self.start, end)
        return [
            row for task in tasks for batch in self.reader.read(task) for row in batch.to_pylist()
        ]


def test_looking_where_streams_end_asks_each_bookie_once_and_no_metadata(cluster, names, asked):
    query = Query(cluster, names)
    query.look()
    for _ in range(3):
        asked.clear()
        query.look()
        assert asked["metadata"] == 0
        assert asked["entries"] == 0
        assert asked["bookies"] <= STREAMS * BOOKIES


def test_a_record_in_one_stream_costs_nothing_for_the_others(cluster, streams, names, asked):
    query = Query(cluster, names)
    query.look()
    name = next(iter(names))
    streams.append(names[name], [b"second"])
    asked.clear()
    while (end := query.look()) == query.start:
        pass
    assert asked["metadata"] <= 1  # how large the entries of its ledger are, to cut them into tasks
    assert asked["entries"] < STREAMS  # whether a record begins there whose end is still to come
    asked.clear()
    assert [row["value"] for row in query.rows(end)] == [b"second"]
    assert all(count < STREAMS for count in asked.values())
