"""What is read, planner and tasks as Spark runs them, in this process."""

from __future__ import annotations

import itertools
import time
from datetime import UTC, datetime

import pytest
from spark_helpers import Query, read_tasks, records, write_ledger

from quorumbook.errors import (
    ConfigError,
    DigestMismatchError,
    LedgerClosedError,
    NoSuchLedgerInMetadataError,
    UnauthorizedError,
)
from quorumbook.ledger.metadata import LedgerState
from quorumbook.protocol.digest import Digester, DigestType
from quorumbook.spark.rows.schema import (
    KAFKA_COLUMNS,
    LEDGER_COLUMNS,
    STREAM_COLUMNS,
    arrow_schema,
    struct_of,
)
from quorumbook.streams import Position, StreamPolicy
from quorumbook.streams.errors import (
    DataLossError,
    NamespaceNotBoundError,
    StreamNotFoundError,
)


@pytest.fixture(scope="module")
def orders(streams):
    """A stream of 40 records in two segments, four to an entry."""
    for first in 0, 20:
        streams.write("orders", *(records(*range(n, n + 4)) for n in range(first, first + 20, 4)))
    return "orders"


def seqs(rows):
    return [row["seq"] for row in rows]


# Ledgers -----------------------------------------------------------------------------------


def test_entries_are_read_as_they_were_written(read, cluster):
    payloads = [b"", b"x" * 5_000_000, b"tail", *(b"%d" % n for n in range(300))]
    ledger_id = write_ledger(cluster, payloads)
    rows = read(f"ledger:{ledger_id}", maxBatchBytes="64K", maxBatchRows=7)
    assert [row["value"] for row in rows] == payloads
    assert [row["entry_id"] for row in rows] == list(range(len(payloads)))
    assert [row["size"] for row in rows] == list(map(len, payloads))


def test_what_stands_around_an_entry_can_be_read(read, cluster):
    payloads = [b"a", b"bcd", b"", b"efgh"]
    ledger_id = write_ledger(
        cluster, payloads, digest_type=DigestType.CRC32C, custom_metadata={"owner": b"me"},
        write_quorum_size=2,
    )  # fmt: skip
    rows = read(f"ledger:{ledger_id}", LEDGER_COLUMNS)
    assert [row["cum_length"] for row in rows] == list(itertools.accumulate(map(len, payloads)))
    assert all(-1 <= row["lac"] < row["entry_id"] for row in rows)
    assert all(len(row["digest"]) == 4 for row in rows)
    assert {row["fragment"] for row in rows} == {0}
    with cluster.connect() as client:
        metadata = client.ledger_metadata(ledger_id)
    for n, row in enumerate(rows):
        assert row["bookies"] == [metadata.ensemble[(n + i) % 3] for i in range(2)]
        assert row["custom_metadata"] == [("owner", b"me")]
        assert row["ledger_ctime"] == datetime.fromtimestamp(metadata.ctime_ms / 1000, UTC)
        assert row["_error"] is None


@pytest.mark.parametrize("digest_type", DigestType)
def test_digests_of_every_type_are_shown(read, cluster, digest_type):
    ledger_id = write_ledger(cluster, [b"a", b"bb"], digest_type=digest_type)
    sizes = {DigestType.CRC32C: 4, DigestType.CRC32: 8, DigestType.HMAC: 20, DigestType.DUMMY: 0}
    rows = read(f"ledger:{ledger_id}", ["digest", "value"])
    assert [len(row["digest"]) for row in rows] == [sizes[digest_type]] * 2


def test_an_open_ledger_is_read_up_to_what_is_confirmed_and_left_as_it_is(read, cluster):
    with cluster.connect() as client:
        writer = client.create_ledger()
        for n in range(10):
            writer.append(b"%d" % n)
        path = f"ledger:{writer.id}"
        with pytest.raises(LedgerClosedError, match="openMode=norecovery"):
            read(path, openMode="closedOnly")
        rows = read(path)
        assert [row["value"] for row in rows] == [b"%d" % n for n in range(len(rows))]
        assert len(rows) >= 9  # the last one is confirmed to readers with the next
        assert client.ledger_metadata(writer.id).state is LedgerState.OPEN
        writer.append(b"10")  # nobody was shut out
        assert len(read(path)) >= 10
        assert len(read(path, openMode="recover")) == 11
        assert client.ledger_metadata(writer.id).state is LedgerState.CLOSED


def test_ledgers_are_chosen_by_range_and_custom_metadata(read, cluster):
    ids = [
        write_ledger(cluster, [b"%d" % n], custom_metadata={"batch": b"7", "n": b"%d" % (n % 2)})
        for n in range(6)
    ]
    write_ledger(cluster, [b"other"])
    assert [r["ledger_id"] for r in read(None, ledgerFilter="batch=7")] == ids
    assert [r["ledger_id"] for r in read(None, ledgerFilter="batch=7,n=1")] == ids[1::2]
    assert [r["value"] for r in read(f"ledger:{ids[0]}-{ids[2]},{ids[4]}")] == [
        b"0", b"1", b"2", b"4",
    ]  # fmt: skip
    assert read(None, ledgerFilter="batch=8") == []


def test_a_ledger_that_is_not_there_is_an_error(read):
    with pytest.raises(NoSuchLedgerInMetadataError, match="there is no ledger 987654321"):
        read("ledger:987654321")


def test_a_password_is_checked(read, cluster, tmp_path):
    ledger_id = write_ledger(cluster, [b"secret"], password=b"hush")
    file = tmp_path / "password"
    file.write_bytes(b"hush\n")
    assert read(f"ledger:{ledger_id}", passwordFile=file)[0]["value"] == b"secret"
    with pytest.raises(UnauthorizedError):
        read(f"ledger:{ledger_id}")


def test_part_of_a_ledger_is_read(read, cluster):
    ledger_id = write_ledger(cluster, [b"%d" % n for n in range(20)])
    rows = read(
        f"ledger:{ledger_id}",
        startingOffsets=f'{{"{ledger_id}": 5}}',
        endingOffsets=f'{{"{ledger_id}": 9}}',
    )
    assert [row["entry_id"] for row in rows] == [5, 6, 7, 8]


def test_a_ledger_is_not_read_from_beyond_its_end(read, cluster):
    ledger_id = write_ledger(cluster, [b"%d" % n for n in range(3)])
    assert read(f"ledger:{ledger_id}", startingOffsets=f'{{"{ledger_id}": 3}}') == []
    for option in "startingOffsets", "endingOffsets":
        with pytest.raises(ConfigError, match=f"{option}: 4 is beyond the end of {ledger_id}"):
            read(f"ledger:{ledger_id}", **{option: f'{{"{ledger_id}": 4}}'})


# Streams -----------------------------------------------------------------------------------


def test_records_are_read_with_their_places(read, orders, streams):
    rows = read("stream:orders")
    assert seqs(rows) == list(range(40))
    assert [row["value"] for row in rows] == records(*range(40))
    segments = streams.segments("orders")
    for n, row in enumerate(rows):
        segment = segments[n // 20]
        assert row["stream"] == "orders"
        assert (row["segment"], row["ledger_id"]) == (segment.number, segment.ledger_id)
        assert row["timestamp"].tzinfo is not None
        assert row["key"] is None
        assert "headers" not in row
    places = [(row["segment"], row["entry_id"], row["slot"]) for row in rows]
    assert places == sorted(set(places))
    assert read("stream:orders", ["headers"]) == [{"headers": None}] * 40


def test_columns_are_those_of_kafkas_source_if_wanted(read, orders):
    rows = read("stream:orders", compat="kafka")
    assert list(rows[0]) == [
        "key", "value", "topic", "partition", "offset", "timestamp", "timestampType",
    ]  # fmt: skip
    assert [row["offset"] for row in rows] == list(range(40))
    assert {row["topic"] for row in rows} == {"orders"}
    assert "headers" in read("stream:orders", compat="kafka", includeHeaders="true")[0]


def test_what_records_carry_are_columns(read, streams):
    async def write():
        await streams.namespace.create_stream("carried")
        async with streams.namespace.stream("carried").writer() as writer:
            await writer.append(b"bare")
            await writer.append(
                b"full", key=b"k", headers={"a": b"1", "b": b""}, event_time_ms=1_000
            )

    streams.run(write())
    columns = ["key", "value", "headers", "timestamp"]
    bare, full = read("stream:carried", columns)
    assert (bare["key"], bare["headers"], bare["value"]) == (None, None, b"bare")
    assert bare["timestamp"].year > 2000
    assert full["key"] == b"k"
    assert full["headers"] == [{"key": "a", "value": b"1"}, {"key": "b", "value": b""}]
    assert full["timestamp"] == datetime.fromtimestamp(1, UTC)


def test_a_record_larger_than_an_entry_is_one_row_whatever_reads_it(cluster, read, streams):
    large = bytes(range(256)) * 12_000

    async def write():
        policy = StreamPolicy(max_record_bytes=len(large))
        await streams.namespace.create_stream("large", policy=policy)
        async with streams.namespace.stream("large").writer() as writer:
            for payload in b"before", large, b"after":
                await writer.append(payload)

    streams.run(write())
    assert [r["value"] for r in read("stream:large")] == [b"before", large, b"after"]
    tasks = read_tasks(cluster, "stream:large", minPartitions=5)
    assert len(tasks) >= 4
    assert [r["value"] for task in tasks for r in task] == [b"before", large, b"after"]


def test_streams_are_chosen_by_list_and_pattern(read, streams):
    for name in "chosen/eu/a", "chosen/eu/b", "chosen/us/a":
        streams.write(name, [name.encode()])
    assert [r["value"] for r in read("stream:chosen/us/a,chosen/eu/b")] == [
        b"chosen/eu/b",
        b"chosen/us/a",
    ]
    assert [r["value"] for r in read(None, streamPattern="chosen/eu/.*")] == [
        b"chosen/eu/a",
        b"chosen/eu/b",
    ]
    assert read(None, streamPattern="no/.*") == []


def test_what_is_not_there_says_how_it_gets_there(read, cluster):
    with pytest.raises(StreamNotFoundError, match="quorumbook stream create"):
        read("stream:nowhere")
    with pytest.raises(NamespaceNotBoundError):
        read("stream:orders", namespace="/nowhere")
    with pytest.raises(ConfigError, match="no column 'sequence'"):
        read_with_column("sequence", cluster)


def read_with_column(name, cluster):
    from pyspark.sql.types import LongType, StructField, StructType

    from quorumbook.spark.data_source import Source

    options = {"metadataServiceUri": cluster.metadata_uri, "path": "stream:orders"}
    return Source(options).reader(StructType([StructField(name, LongType())]))


def test_a_column_of_another_type_is_refused(cluster):
    with pytest.raises(ConfigError, match="value of stream: is binary, not bigint; cast"):
        read_with_column("value", cluster)


@pytest.mark.parametrize(
    ("start", "end", "wanted"),
    [
        ("earliest", "latest", range(40)),
        ("latest", "latest", range(0)),
        ('{"orders": 0}', "latest", range(40)),
        ('{"orders": 6}', "latest", range(6, 40)),
        ('{"orders": -2}', '{"orders": 7}', range(7)),
        ('{"orders": 5}', '{"orders": 6}', range(5, 6)),
        ('{"orders": 19}', '{"orders": 21}', range(19, 21)),
        ('{"orders": 8}', '{"orders": -1}', range(8, 40)),
        ('{"orders": 30}', '{"orders": 10}', range(0)),
        ('{"orders": 40}', "latest", range(0)),
    ],
)
def test_offsets_bound_a_batch_to_the_record(read, orders, start, end, wanted):
    rows = read("stream:orders", startingOffsets=start, endingOffsets=end)
    assert seqs(rows) == list(wanted)
    assert seqs(
        read(
            "stream:orders", startingOffsets=start, endingOffsets=end, minPartitions=6,
            maxBatchRows=3,
        )
    ) == list(wanted)  # fmt: skip


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("startingOffsets", "soon", "write earliest, latest, or JSON"),
        ("startingOffsets", "[3]", "is not a JSON object"),
        ("startingOffsets", '{"orders": -3}', "is not an offset"),
        ("startingOffsets", '{"orders": "x"}', "is not an offset"),
        ("startingOffsets", '{"other": 3}', "startingOffsets names other"),
        ("endingOffsets", '{"other": 3}', "endingOffsets names other"),
        ("endingOffsets", "earliest", "nothing in it"),
        ("startingOffsetsByTimestamp", '{"orders": "noon"}', "is not a time"),
        ("startingOffsets", '{"orders": 41}', "startingOffsets: 41 is beyond the end of orders"),
        ("endingOffsets", '{"orders": 41}', "endingOffsets: 41 is beyond .*-1 stands"),
    ],
)
def test_offsets_that_say_nothing_sensible_are_refused(read, orders, option, value, message):
    with pytest.raises(ConfigError, match=message):
        read("stream:orders", **{option: value})


def test_offsets_must_speak_of_all_that_is_read(read, orders, streams):
    streams.write("beside", [b"x"])
    with pytest.raises(ConfigError, match="says nothing of beside"):
        read("stream:orders,beside", startingOffsets='{"orders": 3}')


def test_times_bound_a_batch(read, streams):
    streams.write("times", records(0, 1))
    middle_ms = time.time_ns() // 1_000_000 + 1
    while time.time_ns() // 1_000_000 <= middle_ms:
        pass  # entries carry whole milliseconds
    streams.write("times", records(2, 3))
    assert seqs(read("stream:times", startingTimestamp=middle_ms)) == [2, 3]
    assert seqs(read("stream:times", endingTimestamp=middle_ms)) == [0, 1]
    by_name = f'{{"times": {middle_ms}}}'
    assert seqs(read("stream:times", startingOffsetsByTimestamp=by_name)) == [2, 3]
    assert seqs(read("stream:times", endingOffsetsByTimestamp=by_name)) == [0, 1]
    late = middle_ms + 3_600_000
    with pytest.raises(ConfigError, match="Strategy=latest"):
        read("stream:times", startingTimestamp=late)
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert read("stream:times", startingTimestamp=late, **strategy) == []


@pytest.fixture(scope="module")
def numbered(streams):
    """A stream of 24 records in two segments, four to an entry, two with each transaction id."""

    async def work():
        await streams.namespace.create_stream("numbered")
        for first in 0, 12:
            async with streams.namespace.stream("numbered").writer() as writer:
                for n in range(first, first + 12, 4):
                    txids = [100 + 10 * (each // 2) for each in range(n, n + 4)]
                    await writer.append_batch(records(*range(n, n + 4)), txids=txids)

    streams.run(work())
    return "numbered"


@pytest.mark.parametrize(
    ("start", "end", "wanted"),
    [
        (0, None, range(24)),
        (100, None, range(24)),
        (101, None, range(2, 24)),
        (150, 160, range(10, 12)),
        (151, 171, range(12, 16)),  # in both segments, and none has these very ids
        (210, None, range(22, 24)),
        (None, 130, range(6)),
        (None, 9_000, range(24)),
        (211, None, range(0)),
        (170, 120, range(0)),
    ],
)
def test_transaction_ids_bound_a_batch_and_a_query(cluster, read, numbered, start, end, wanted):
    bounds = {"startingOffsets": start, "endingOffsets": end}
    options = {
        name: f'{{"numbered": "txid:{txid}"}}' for name, txid in bounds.items() if txid is not None
    }
    rows = read("stream:numbered", **options)
    assert seqs(rows) == list(wanted)
    assert [row["txid"] for row in rows] == [100 + 10 * (each // 2) for each in wanted]
    if end is None:
        query = Query(cluster, "stream:numbered", **options)
        assert seqs(query.drain()) == list(wanted)


def test_entries_of_ledgers_have_no_transaction_ids(read, cluster):
    ledger_id = write_ledger(cluster, [b"x"])
    with pytest.raises(ConfigError, match="have no transaction ids"):
        read(f"ledger:{ledger_id}", startingOffsets=f'{{"{ledger_id}": "txid:1"}}')


def test_an_empty_selection_has_no_rows(read, cluster, streams):
    streams.run(streams.namespace.create_stream("empty"))
    assert read("stream:empty") == []
    assert read(f"ledger:{write_ledger(cluster, [])}") == []
    from pyspark.sql.datasource import InputPartition

    from quorumbook.spark.data_source import Source

    source = Source({"metadataServiceUri": cluster.metadata_uri, "path": "stream:empty"})
    # Spark makes a partition without a value of no partitions.
    assert list(source.reader(source.schema()).read(InputPartition(None))) == []


# What is gone ------------------------------------------------------------------------------


def test_truncated_records_are_an_error_or_left_out(read, streams):
    streams.write("cut", records(0, 1, 2, 3), records(4, 5))
    first = streams.segments("cut")[0].number
    before = next(r for r in read("stream:cut") if r["seq"] == 2)
    streams.truncate("cut", Position(first, before["entry_id"], before["slot"]))
    assert seqs(read("stream:cut")) == [2, 3, 4, 5]
    options = {"startingOffsets": '{"cut": 1}'}
    with pytest.raises(DataLossError, match="the first that is left is at 1:0:3"):
        read("stream:cut", **options)
    assert seqs(read("stream:cut", failOnDataLoss="false", **options)) == [2, 3, 4, 5]


def test_a_segment_without_its_ledger_is_an_error_or_left_out(read, streams):
    for n in range(3):
        streams.write("holes", records(n))
    lost = streams.segments("holes")[1].ledger_id
    streams.run(streams.namespace.client.delete_ledger(lost))
    with pytest.raises(DataLossError, match=f"the ledger {lost} of holes is gone"):
        read("stream:holes")
    assert [r["value"] for r in read("stream:holes", failOnDataLoss="false")] == records(0, 2)


def test_offsets_of_a_stream_that_was_made_again_are_found_out(read, streams):
    streams.write("again", records(0))
    birth, segment, entry = 1, 1, 1
    text = f'{{"again": [{birth}, {segment}, {entry}]}}'
    with pytest.raises(DataLossError, match="deleted and made again"):
        read("stream:again", startingOffsets=text)
    assert seqs(read("stream:again", startingOffsets=text, failOnDataLoss="false")) == [0]


def damage(monkeypatch, ledger_id, entry_id):
    """Have an entry arrive damaged, whichever bookie gives it."""
    whole = Digester.open_run

    def open_run(self, data, of_ledger, first, count=None):
        payloads = whole(self, data, of_ledger, first, count)
        if of_ledger == ledger_id and first <= entry_id < first + len(payloads):
            raise DigestMismatchError("damaged", ledger_id=of_ledger, entry_id=entry_id)
        return payloads

    monkeypatch.setattr(Digester, "open_run", open_run)


def test_a_damaged_entry_is_an_error_a_row_of_nulls_or_left_out(read, cluster, monkeypatch):
    ledger_id = write_ledger(cluster, [b"%d" % n for n in range(6)])
    damage(monkeypatch, ledger_id, 3)
    path = f"ledger:{ledger_id}"
    with pytest.raises(DigestMismatchError, match="damaged"):
        read(path)
    rows = read(path, onCorrupt="null")
    assert [row["entry_id"] for row in rows] == list(range(6))
    assert [row["value"] for row in rows] == [b"0", b"1", b"2", None, b"4", b"5"]
    assert [bool(row["_error"]) for row in rows] == [n == 3 for n in range(6)]
    rows = read(path, onCorrupt="skip")
    assert [row["entry_id"] for row in rows] == [0, 1, 2, 4, 5]


def test_records_behind_a_damaged_entry_keep_their_numbers(read, streams, monkeypatch):
    streams.write("damaged", *(records(n, n + 1) for n in range(0, 8, 2)))
    ledger_id = streams.segments("damaged")[0].ledger_id
    entries = sorted({row["entry_id"] for row in read("stream:damaged")})
    damage(monkeypatch, ledger_id, entries[1])
    with pytest.raises(DigestMismatchError, match="damaged"):
        read("stream:damaged")
    assert seqs(read("stream:damaged", onCorrupt="skip")) == [0, 1, 4, 5, 6, 7]
    rows = read("stream:damaged", onCorrupt="null")
    assert seqs(rows) == [0, 1, None, 4, 5, 6, 7]
    assert (rows[2]["entry_id"], rows[2]["value"]) == (entries[1], None)
    assert "damaged" in rows[2]["_error"]


# Tasks -------------------------------------------------------------------------------------


def test_one_stream_is_read_by_many_tasks_and_small_ledgers_by_one(cluster, orders):
    tasks = read_tasks(cluster, "stream:orders", minPartitions=5)
    assert len(tasks) >= 5
    assert seqs(itertools.chain(*tasks)) == list(range(40))
    tasks = read_tasks(cluster, "stream:orders", maxRecordsPerPartition=10)
    assert len(tasks) >= 4
    ids = [write_ledger(cluster, [b"x"]) for _ in range(12)]
    (task,) = read_tasks(cluster, f"ledger:{ids[0]}-{ids[-1]}")
    assert len(task) == 12


def test_a_plan_is_for_one_release_and_one_cluster(cluster, orders):
    from quorumbook.spark.data_source import Source
    from quorumbook.spark.source.task import Task

    source = Source({"metadataServiceUri": cluster.metadata_uri, "path": "stream:orders"})
    reader = source.reader(source.schema())
    (task,) = reader.partitions()
    _release, instance, work = task.value
    task.value = ("0.0.9", instance, work)
    with pytest.raises(ConfigError, match=r"the driver has quorumbook 0\.0\.9, this executor"):
        list(reader.read(task))
    with pytest.raises(ConfigError, match="planned for cluster elsewhere"):
        list(reader.read(Task("elsewhere", work)))


@pytest.mark.parametrize(
    ("path", "columns"),
    [("orders", STREAM_COLUMNS), ("kafka", KAFKA_COLUMNS), ("ledger", LEDGER_COLUMNS)],
)
def test_batches_have_exactly_the_schema_of_every_choice_of_columns(
    cluster, orders, streams, path, columns
):
    from quorumbook.spark.data_source import Source

    options = {"metadataServiceUri": cluster.metadata_uri, "path": "stream:orders"}
    if path == "kafka":
        options["compat"] = "kafka"
    if path == "ledger":
        options["path"] = f"ledger:{streams.segments('orders')[0].ledger_id}"
    names = tuple(columns)
    subsets = [(name,) for name in names] + list(itertools.permutations(names, 2))
    subsets += [names, names[::-1]]
    reader = Source(options).reader(struct_of(columns, names))
    (task,) = reader.partitions()
    whole = [row for batch in reader.read(task) for row in batch.to_pylist()]
    kind_batches = list(reader.read(task))
    assert all(b.schema.equals(arrow_schema(struct_of(columns, names))) for b in kind_batches)
    for subset in subsets[:: max(1, len(subsets) // 25)]:
        schema = struct_of(columns, subset)
        narrow = Source(options).reader(schema)
        batches = list(narrow.read(task))
        assert all(batch.schema.equals(arrow_schema(schema)) for batch in batches)
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert rows == [{name: row[name] for name in subset} for row in whole]


def test_without_the_payload_column_no_payload_is_copied(cluster, orders, monkeypatch):
    from quorumbook.streams.frames import records

    def refuse(*_):
        raise AssertionError("a payload column was made")

    monkeypatch.setattr(records, "binary_column", refuse)
    rows = [r for task in read_tasks(cluster, "stream:orders", ["seq"]) for r in task]
    assert seqs(rows) == list(range(40))
