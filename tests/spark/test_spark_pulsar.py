"""Topics of Apache Pulsar as tables and in queries, without a broker: in this process and Spark's.

``tests/brokers`` has the same with a broker that writes meanwhile.
"""

from __future__ import annotations

import itertools
import json

import pytest
from spark_helpers import read_tasks, values

from doubles import pulsar_topics as laid
from doubles.pulsar_topics import TopicOnDisk
from quorumbook.errors import ConfigError
from quorumbook.spark.source import tail
from quorumbook.streams.errors import (
    CorruptRecordsError,
    DataLossError,
    StreamNotFoundError,
    UnsupportedFormatError,
)

_names = itertools.count()
EARLIEST = {"startingOffsets": "earliest"}


class Written:
    """A topic that a test writes without an event loop."""

    def __init__(self, streams, name):
        self.name, self._run = name, streams.run
        self.topic = TopicOnDisk(streams.namespace.client, name)

    def __getattr__(self, what):
        return lambda *arguments: self._run(getattr(self.topic, what)(*arguments))


@pytest.fixture
def topic(streams):
    """Return ``topic(suffix)``: another topic, whose name is new."""
    name = f"eu/spark/t{next(_names)}"
    return lambda suffix="": Written(streams, name + suffix)


def numbered(*numbers, **fields):
    return [laid.entry(b"%d" % n, publish_time=1_000_000 + n, **fields) for n in numbers]


def texts(*numbers):
    return [b"%d" % n for n in numbers]


def test_a_topic_is_a_table_of_its_messages(read, topic):
    written = topic()
    said = laid.properties(colour="red")
    written.add(
        laid.entry(b"0", codec="zstd", partition_key=b"k", properties=said, event_time=5),
        laid.batch(laid.single(b"1", ordering_key=b"o"), laid.single(b"2"), codec="snappy"),
    )
    written.close()
    rows = read(f"pulsar:{written.name}")
    assert values(rows) == texts(0, 1, 2)
    assert list(rows[0]) == [
        "topic", "partition", "ledger_id", "entry_id", "batch_index", "publish_time", "event_time",
        "producer_name", "sequence_id", "key", "ordering_key", "properties", "schema_version",
        "replicated_from", "broker_index", "broker_time", "value",
    ]  # fmt: skip
    assert {row["topic"] for row in rows} == {written.name}
    assert [row["batch_index"] for row in rows] == [None, 0, 1]
    assert rows[0]["properties"] == [("colour", "red")]
    assert (rows[0]["key"], rows[1]["ordering_key"]) == (b"k", b"o")
    assert rows[0]["event_time"].timestamp() == 0.005
    assert read(f"pulsar:persistent://{written.name}", ["value"]) == [
        {"value": value} for value in texts(0, 1, 2)
    ]


def test_partitions_are_read_together_and_by_many_tasks(cluster, topic):
    for number in range(2):
        part = topic(f"-partition-{number}")
        for n in range(3):
            part.add(*numbered(*range(100 * number + 10 * n, 100 * number + 10 * n + 10)))
            part.roll()
    name = topic().name
    tasks = read_tasks(cluster, f"pulsar:{name}", ["partition", "value"], minPartitions=4)
    assert len(tasks) >= 4
    rows = list(itertools.chain(*tasks))
    expected = [(p, b"%d" % n) for p in range(2) for n in range(100 * p, 100 * p + 30)]
    assert [(row["partition"], row["value"]) for row in rows] == expected


def test_a_batch_begins_and_ends_where_it_is_told(read, topic):
    written = topic()
    first = written.roll()
    written.add(*numbered(0, 1), laid.batch(*(laid.single(b"%d" % n) for n in (2, 3, 4))))
    second = written.roll()
    written.add(*numbered(5, 6, 7))
    written.close()

    def between(start, end="latest"):
        how = {"startingOffsets": start, "endingOffsets": end}
        return values(
            read(f"pulsar:{written.name}", **{
                key: json.dumps({written.name: said}) if ":" in said else said
                for key, said in how.items()
            })
        )  # fmt: skip

    assert between("earliest", f"{second}:1") == texts(0, 1, 2, 3, 4, 5)
    assert between(f"{first}:2:1", f"{second}:0") == texts(3, 4)
    assert between(f"{first}:1", f"{first}:2:2") == texts(1, 2, 3)
    assert between(f"{second}:3") == []
    with pytest.raises(ConfigError, match="beyond the end"):
        between(f"{second}:4")
    with pytest.raises(ConfigError, match=r"not an offset .* LEDGER:ENTRY"):
        between("1:x")
    with pytest.raises(ConfigError, match="LEDGER:ENTRY"):
        read(f"pulsar:{written.name}", startingOffsets=json.dumps({written.name: 3}))


def test_a_place_of_a_topic_is_none_of_a_stream(read, streams):
    streams.write("pulsar/none", [b"a"])
    with pytest.raises(ConfigError, match="take a number"):
        read("stream:pulsar/none", startingOffsets='{"pulsar/none": "1:2"}')


def test_times_bound_a_batch_by_when_messages_were_sent(read, topic):
    written = topic()
    for n in range(0, 30, 10):
        written.add(*numbered(*range(n, n + 10)))
        written.roll()
    for start, end in ((0, 30), (3, 3), (9, 10), (10, 20), (11, 29), (25, 26)):
        found = read(
            f"pulsar:{written.name}",
            startingTimestamp=1_000_000 + start, endingTimestamp=1_000_000 + end,
        )  # fmt: skip
        assert values(found) == texts(*range(start, end)), (start, end)
    with pytest.raises(ConfigError, match="nothing was appended"):
        read(f"pulsar:{written.name}", startingTimestamp=1_000_030)


def test_a_query_follows_a_topic_over_its_ledgers_and_replays_are_the_same(query, topic):
    written = topic()
    written.add(*numbered(0, 1, 2))
    running = query(f"pulsar:{written.name}", **EARLIEST, maxEntriesPerTrigger=2, minPartitions=2)
    assert values(running.until(2)) == texts(0, 1)  # what is confirmed
    written.add(*numbered(3))
    assert values(running.until(3))[:3] == texts(0, 1, 2)
    written.roll()
    parts = laid.chunks(b"large" * 50, 3, b"u", "lz4")
    written.add(parts[0], *numbered(4), parts[1])
    written.roll()
    written.add(laid.entry(b"", marker_type=22), parts[2], *numbered(5))
    written.close()
    expected = [*texts(0, 1, 2, 3, 4), b"large" * 50, *texts(5)]
    assert values(running.until(7)) == expected
    running.drain()
    pairs = list(itertools.pairwise(running.checkpoint))
    assert len(pairs) > 3
    # Another process, later, with other options: the same rows in the same tasks.
    written.add(*numbered(6))
    written.close()
    again = query(f"pulsar:{written.name}", checkpoint=running.checkpoint, minPartitions=7)
    for pair in pairs:
        assert again.tasks_between(*pair) == running.tasks_between(*pair)
    assert values(again.drain()) == texts(6)


def test_a_query_says_how_far_it_is_behind(query, topic):
    written = topic()
    written.add(*numbered(*range(5)))
    written.close()
    running = query(f"pulsar:{written.name}", **EARLIEST, maxEntriesPerTrigger=2)
    running.step()
    lag = running.report["lag"]
    assert (lag["entries"], lag["by_stream"]) == (3, {written.name: 3})
    assert lag["ms"] > 1_000_000  # the messages are of 1970


def test_limits_in_bytes_hold(query, topic):
    written = topic()
    written.add(*(laid.entry(b"x" * 1000) for _ in range(6)))
    written.close()
    running = query(f"pulsar:{written.name}", **EARLIEST, maxBytesPerTrigger=2500)
    assert [len(batch) for batch in [running.step(), running.step(), running.step()]] == [2, 2, 2]
    assert running.step() is None


def test_partitions_that_appear_are_read_from_their_beginning(query, topic):
    first = topic("-partition-0")
    first.add(*numbered(0))
    first.close()
    running = query(f"pulsar:{topic().name}", **EARLIEST)
    assert values(running.drain()) == texts(0)
    second = topic("-partition-1")
    second.add(*numbered(1))
    second.close()
    assert values(running.until(2)) == texts(0, 1)


def test_what_was_read_may_be_deleted_even_if_nothing_came_since(query, topic):
    written = topic()
    written.add(*numbered(0))
    written.close()
    running = query(f"pulsar:{written.name}", **EARLIEST)
    assert values(running.until(1)) == texts(0)
    # Pulsar begins a new ledger after some hours, and deletes the one before.
    written.roll()
    running.drain()
    written.trim()
    assert running.drain() == running.rows
    written.add(*numbered(1))
    written.close()
    again = query(f"pulsar:{written.name}", checkpoint=running.checkpoint)
    assert values(again.drain()) == texts(1)


def test_what_was_deleted_before_it_was_read_is_an_error_or_left_out(query, topic):
    written = topic()
    written.add(*numbered(0))
    running = query(f"pulsar:{written.name}", **EARLIEST)
    written.close()
    running.until(1)
    for n in range(1, 4):
        written.roll()
        written.add(*numbered(n))
    written.close()
    written.trim(2)
    with pytest.raises(DataLossError, match="is deleted, and with it perhaps"):
        running.step()
    left = query(f"pulsar:{written.name}", checkpoint=running.checkpoint, failOnDataLoss="false")
    assert values(left.drain()) == texts(2, 3)


def test_a_batch_that_is_done_again_when_its_ledger_is_gone_follows_the_same_rule(
    query, topic, monkeypatch
):
    monkeypatch.setattr(tail, "_PATIENCE_S", 0.0)
    written = topic()
    written.add(*numbered(0))
    written.roll()
    written.add(*numbered(1))
    written.close()
    running = query(f"pulsar:{written.name}", **EARLIEST)
    running.until(2)
    pair = running.checkpoint[0], running.checkpoint[1]
    written.trim()
    with pytest.raises(DataLossError):
        running.rows_between(*pair)
    left = query(f"pulsar:{written.name}", checkpoint=running.checkpoint, failOnDataLoss="false")
    assert values(left.rows_between(*pair)) == texts(1)


def test_a_topic_made_again_is_an_error_or_read_from_its_beginning(query, topic, streams):
    written = topic()
    written.add(*numbered(0))
    written.close()
    running = query(f"pulsar:{written.name}", **EARLIEST)
    running.until(1)
    written.delete()
    written.add(*numbered(1))
    written.close()
    with pytest.raises(DataLossError, match="made again"):
        running.step()
    left = query(f"pulsar:{written.name}", checkpoint=running.checkpoint, failOnDataLoss="false")
    assert values(left.drain()) == texts(1)


def test_a_ledger_that_pulsar_moved_away_is_named(read, topic, streams):
    written = topic()
    written.add(*numbered(0))
    written.roll()
    written.add(*numbered(1))
    written.close()
    moved = laid.make("OffloadContext", complete=True, bookkeeperDeleted=True)
    written.topic.infos[0]["offloadContext"] = moved
    written.save()
    streams.run(streams.namespace.client.delete_ledger(written.topic.infos[0]["ledgerId"]))
    with pytest.raises(DataLossError, match="moved it to other storage"):
        read(f"pulsar:{written.name}")
    assert values(read(f"pulsar:{written.name}", failOnDataLoss="false")) == texts(1)


def test_what_cannot_be_decoded_is_an_error_or_a_row_or_nothing(read, topic):
    written = topic()
    hidden = laid.entry(b"?", encryption_keys=[b"k"], partition_key=b"key")
    of_transaction = laid.entry(b"perhaps", txnid_most_bits=1, txnid_least_bits=2)
    cut = laid.entry(b"", num_messages_in_batch=3)
    written.add(*numbered(0), hidden, of_transaction, cut, b"junk")
    written.close()
    path = f"pulsar:{written.name}"
    with pytest.raises(UnsupportedFormatError, match="encrypted"):
        read(path)
    assert values(read(path, onCorrupt="skip")) == texts(0)
    rows = read(path, onCorrupt="null")
    assert values(rows) == [b"0", None, b"perhaps", None, None]
    assert [row["entry_id"] for row in rows] == [0, 1, 2, 3, 4]
    assert rows[1]["key"] == b"key"
    for row, reason in zip(
        rows[1:], ("encrypted", "aborted", "do not fit", "should follow"), strict=True
    ):
        assert reason in row["_error"]
    with pytest.raises(CorruptRecordsError, match="do not fit"):
        ledger = rows[0]["ledger_id"]
        read(path, startingOffsets=json.dumps({written.name: f"{ledger}:3"}))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"compat": "kafka"}, "columns are not those of Kafka"),
        ({"cursor": "c"}, "checkpoint"),
        ({"decode": "schema"}, "schema_version"),
        ({"maxRecordsPerTrigger": 5}, "maxEntriesPerTrigger"),
        ({"streams": "a"}, "contradict"),
        ({"replica": "0"}, "for ledgers"),
    ],
)
def test_options_that_have_no_meaning_for_topics_are_refused(query, topic, options, reason):
    with pytest.raises(ConfigError, match=reason):
        query(f"pulsar:{topic().name}", **options)


def test_names_that_are_none_are_refused(read, topic):
    with pytest.raises(ConfigError, match="public/default/orders"):
        read("pulsar:orders")
    with pytest.raises(ConfigError, match="which topic"):
        read("pulsar:,")
    with pytest.raises(StreamNotFoundError, match="there is no topic"):
        read(f"pulsar:{topic().name}")


def test_a_checkpoint_with_a_topic_that_is_not_selected_is_an_error(query, topic):
    first, other = topic(), topic("-other")
    for written in (first, other):
        written.add(*numbered(0))
        written.close()
    running = query(f"pulsar:{first.name},{other.name}", **EARLIEST)
    running.until(2)
    left = query(f"pulsar:{first.name}", checkpoint=running.checkpoint)
    with pytest.raises(ConfigError, match="dropUnselected"):
        left.step()


def test_spark_reads_a_topic_as_a_table_and_in_a_query(load, spark, cluster, topic, tmp_path):
    written = topic()
    written.add(*numbered(*range(10), properties=laid.properties(a="b")))
    written.close()
    frame = load(f"pulsar:{written.name}")
    (row,) = frame.where("properties['a'] = 'b'").selectExpr("sum(int(string(value)))").collect()
    assert row[0] == 45
    streaming = (
        spark.readStream.format("quorumbook")
        .options(metadataServiceUri=cluster.metadata_uri, **EARLIEST)
        .load(f"pulsar:{written.name}")
    )
    streaming.writeStream.format("parquet").option("checkpointLocation", f"{tmp_path}/c").trigger(
        availableNow=True
    ).start(f"{tmp_path}/out").awaitTermination()
    assert spark.read.parquet(f"{tmp_path}/out").count() == 10
