"""Streaming queries: planner and tasks as Spark runs them, in this process."""

from __future__ import annotations

import itertools
import json
import time

import pytest
from spark_helpers import records, values, write_ledger

from quorumbook.errors import ConfigError, MetadataUnavailableError
from quorumbook.spark.pipeline.numbers import StepNumbers
from quorumbook.spark.pipeline.running import segments_of
from quorumbook.spark.request.planning import plan
from quorumbook.spark.source import tail
from quorumbook.spark.source.tail import TailReader
from quorumbook.streams import Position
from quorumbook.streams.compaction import Compaction
from quorumbook.streams.errors import DataLossError
from quorumbook.streams.metadata.segment_nodes import SegmentNodes
from quorumbook.streams.stream_context import stream_context
from quorumbook.streams.tier import moving
from quorumbook.streams.tier.moving import SegmentInTier
from quorumbook.streams.transactions import Place

_names = itertools.count()


@pytest.fixture
def name():
    return f"tail/{next(_names)}"


EARLIEST = {"startingOffsets": "earliest"}


async def merge(streams, name):
    """Merge the segments of a stream; return what was made."""
    namespace = streams.namespace
    context = stream_context(namespace.stream(name))
    work = Compaction(Place(namespace.client, namespace), context, keep_s=0.0)
    return await work.run(await work.rules(target_bytes=1 << 20))


def test_a_query_follows_a_stream_over_its_segments(query, streams, name):
    streams.write(name, records(0, 1), records(2))
    running = query(f"stream:{name}", **EARLIEST)
    assert values(running.drain()) == records(0, 1, 2)
    assert running.step() is None
    for n in range(3, 9, 2):
        streams.write(name, records(n, n + 1))
        running.until(n + 2)
    assert values(running.rows) == records(*range(9))
    assert [row["seq"] for row in running.rows] == list(range(9))


def test_a_query_begins_at_the_latest_unless_told(query, streams, name):
    streams.write(name, records(0))
    running = query(f"stream:{name}")
    assert running.drain() == []
    streams.write(name, records(1))
    assert values(running.until(1)) == records(1)


def test_an_open_segment_is_read_as_it_is_confirmed_and_its_writer_goes_on(query, streams, name):
    writer = streams.writer(name)
    running = query(f"stream:{name}", **EARLIEST)
    for n in range(5):
        streams.append(writer, records(n))
        running.until(n)  # the last is confirmed to readers a moment later
    streams.close(writer)
    assert values(running.until(5)) == records(*range(5))
    assert len(streams.segments(name)) == 1  # a writer that is fenced out goes on in another


def test_a_batch_done_again_is_the_same(query, streams, name, cluster):
    for n in range(0, 30, 3):
        streams.write(name, records(n), records(n + 1, n + 2))
    running = query(f"stream:{name}", maxEntriesPerTrigger=3, minPartitions=2, **EARLIEST)
    running.drain()
    anew = query(f"stream:{name}", checkpoint=running.checkpoint, minPartitions=2)
    for n, (start, end) in enumerate(itertools.pairwise(running.checkpoint)):
        assert anew.rows_between(start, end) == running.batches[n]


TASKS = {"maxRecordsPerPartition": 8, "targetPartitionBytes": "1K"}


def test_tasks_of_a_batch_done_again_are_the_same_whatever_was_written_behind_it(
    query, streams, name
):
    writer = streams.writer(name)
    for n in range(40):
        streams.append(writer, records(n))
    running = query(f"stream:{name}", **TASKS, **EARLIEST)
    running.until(39)
    start, end = running.checkpoint[0], running.checkpoint[-1]
    assert len(running.checkpoint) == 2
    tasks = running.tasks_between(start, end)
    assert len(tasks) > 3
    # What is known of the ledger is an average of all entries that it has by now.
    for n in range(40, 60):
        streams.append(writer, [b"large %d" % n * 1000])
    streams.close(writer)
    for options in TASKS, {}, {"minPartitions": 7}, {"maxRecordsPerPartition": 3}:
        anew = query(f"stream:{name}", checkpoint=[start], **options)
        assert anew.tasks_between(start, end) == tasks


def test_tasks_of_a_batch_done_again_are_the_same_after_segments_were_merged(query, streams, name):
    streams.write(name, records(0))
    running = query(f"stream:{name}", **TASKS, **EARLIEST)
    running.drain()
    for n in range(1, 31, 3):
        streams.write(name, records(n), records(n + 1, n + 2))
    assert len(running.drain()) == 31
    *_, start, end = running.checkpoint
    tasks = running.tasks_between(start, end)
    assert len(tasks) > 2
    assert len(streams.run(merge(streams, name))) == 1
    anew = query(f"stream:{name}", checkpoint=[start])
    again = anew.tasks_between(start, end)
    assert [values(task) for task in again] == [values(task) for task in tasks]


def test_tasks_of_ledgers_done_again_are_the_same(query, cluster):
    ids = [write_ledger(cluster, [b"%d" % n * 100 for n in range(9)]) for _ in range(4)]
    path = f"ledger:{ids[0]}-{ids[-1]}"
    running = query(path, maxRecordsPerPartition=4, **EARLIEST)
    running.drain()
    for start, end in itertools.pairwise(running.checkpoint):
        anew = query(path, checkpoint=[start])
        assert anew.tasks_between(start, end) == running.tasks_between(start, end)
    assert sum(map(len, running.batches)) == 36


def test_a_batch_that_an_earlier_release_ended_is_one_task(query, streams, name):
    streams.write(name, *(records(n) for n in range(9)))
    running = query(f"stream:{name}", minPartitions=3, **EARLIEST)
    running.drain()
    start, end = running.checkpoint
    uncut = json.loads(end)
    assert uncut.pop("t")
    assert [len(task) for task in running.tasks_between(start, end)] == [3, 3, 3]
    assert [len(task) for task in running.tasks_between(start, json.dumps(uncut))] == [9]


def test_a_query_goes_on_from_its_checkpoint(query, streams, name):
    streams.write(name, records(0))
    first = query(f"stream:{name}", **EARLIEST)
    first.drain()
    streams.write(name, records(1))
    second = query(f"stream:{name}", checkpoint=first.checkpoint)
    assert values(second.drain()) == records(1)


@pytest.mark.parametrize("limits", [
    {"maxEntriesPerTrigger": 3},
    {"maxRecordsPerTrigger": 7},
    {"maxBytesPerTrigger": 400},
    {"maxEntriesPerTrigger": 4, "maxRecordsPerTrigger": 7},
    {"maxEntriesPerTrigger": 2, "maxRecordsPerTrigger": 9, "maxBytesPerTrigger": 500},
])  # fmt: skip
def test_batches_keep_to_their_limits_and_to_the_order(query, streams, limits):
    names = [f"limited/{next(_names)}" for _ in range(2)]
    for number, each in enumerate(names):
        for segment in range(3):
            streams.write(each, *(records(n, n + 1) for n in range(0, 8 + 4 * number, 2)))
            assert segment is not None
    running = query("stream:" + ",".join(names), now=True, **limits, **EARLIEST)
    running.drain()
    for each, count in zip(names, (24, 36), strict=True):
        rows = [row for row in running.rows if row["stream"] == each]
        assert [row["seq"] for row in rows] == list(range(count))
    assert len(running.batches) > 3
    for rows in running.batches:
        entries = {(row["ledger_id"], row["entry_id"]) for row in rows}
        # A writer ends a segment with an entry of no records, so entries are fewer than counted.
        assert len(entries) <= limits.get("maxEntriesPerTrigger", 10**9)
        assert len(rows) <= limits.get("maxRecordsPerTrigger", 10**9)
        assert sum(len(row["value"]) for row in rows) <= limits.get("maxBytesPerTrigger", 10**9)


def test_an_entry_beyond_the_limit_comes_alone(query, streams, name):
    streams.write(name, records(0, 1, 2), records(3, 4, 5))
    running = query(f"stream:{name}", maxRecordsPerTrigger=1, **EARLIEST)
    running.drain()
    assert [len(rows) for rows in running.batches if rows] == [3, 3]


def test_trigger_once_reads_all_whatever_the_limits(query, streams, name):
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    streams.write(name, *(records(n) for n in range(9)))
    running = query(f"stream:{name}", maxEntriesPerTrigger=2, **EARLIEST)
    assert len(running.step(ReadAllAvailable())) == 9


def test_available_now_reads_what_there_was_and_no_more(query, streams):
    prefix = f"now{next(_names)}"
    streams.write(f"{prefix}/a", *(records(n) for n in range(6)))
    pattern = {"streamPattern": f"{prefix}/.*"}
    running = query(now=True, maxEntriesPerTrigger=2, **pattern, **EARLIEST)
    running.step()
    streams.write(f"{prefix}/a", records(6))
    streams.write(f"{prefix}/b", records(7))
    assert values(running.drain()) == records(*range(6))
    later = query(now=True, checkpoint=running.checkpoint, **pattern)
    assert sorted(values(later.drain())) == records(6, 7)
    assert values(query(now=True, checkpoint=later.checkpoint, **pattern).drain()) == []


@pytest.mark.parametrize(
    ("is_ending", "given", "expected_mb"),
    [(False, {}, 32), (True, {}, 128), (True, {"targetPartitionBytes": 5 << 20}, 5)],
)
def test_a_query_that_ends_has_tasks_as_large_as_a_batch_has(
    query, streams, name, monkeypatch, is_ending, given, expected_mb
):
    streams.write(name, records(0, 1))
    targets = []

    def noted(pieces, *, target_bytes, **how):
        targets.append(target_bytes)
        return plan(pieces, target_bytes=target_bytes, **how)

    monkeypatch.setattr(tail, "plan", noted)
    running = query(f"stream:{name}", now=is_ending, **EARLIEST, **given)
    assert values(running.drain()) == records(0, 1)
    assert set(targets) == {expected_mb << 20}


def test_streams_that_appear_are_read_from_their_beginning(query, streams):
    prefix = f"found{next(_names)}"
    streams.write(f"{prefix}/a", records(0))
    running = query(streamPattern=f"{prefix}/.*", **EARLIEST)
    running.drain()
    streams.write(f"{prefix}/b", records(1, 2))
    assert values(running.until(3)) == records(0, 1, 2)


def test_streams_that_appear_are_read_from_their_end_if_wanted(query, streams):
    prefix = f"found{next(_names)}"
    streams.write(f"{prefix}/a", records(0))
    running = query(streamPattern=f"{prefix}/.*", newStreams="latest", **EARLIEST)
    running.drain()
    streams.write(f"{prefix}/b", records(1))
    end = time.monotonic() + 60
    while f"{prefix}/b" not in json.loads(running.checkpoint[-1])["s"]:
        assert time.monotonic() < end
        running.step()
    streams.write(f"{prefix}/b", records(2))
    assert values(running.until(2)) == records(0, 2)


def test_a_batch_waits_for_enough_but_not_for_ever(query, streams, name, monkeypatch):
    streams.write(name, records(0))
    running = query(f"stream:{name}", minEntriesPerTrigger=5, maxTriggerDelay="1h", **EARLIEST)
    assert running.step() is None
    for n in range(1, 6):
        streams.write(name, records(n))
    assert len(running.until(6)) == 6
    streams.write(name, records(6))
    assert running.step() is None
    running.reader._planner._last_batch_ns -= 3_601_000_000_000  # the planner that a query keeps
    assert values(running.until(7)[6:]) == records(6)


def test_batches_follow_how_long_the_sink_takes(query, streams, name):
    """Doubled while it is fast, and cut by as much as it is too slow."""
    streams.write(name, *([b"%02d" % n + bytes(100_000)] for n in range(60)))
    running = query(f"stream:{name}", targetBatchTime="1h", **EARLIEST)
    running.step()
    running.step()
    small, double = map(len, running.batches)
    assert 1 <= small <= 10
    assert 1.5 * small < double <= 2 * small + 1
    # Four hours later, as the query's own clock has it, the sink is done.
    pressure = running.reader._planner._pressure
    began_ns, size = pressure._began
    pressure._began = began_ns - 4 * 3_600_000_000_000, size
    running.step()
    assert 1 <= len(running.batches[2]) <= double / 4
    assert len(running.drain()) == 60


def test_a_query_says_how_far_it_is_behind(query, streams, name):
    streams.write(name, *(records(n) for n in range(10)))
    running = query(f"stream:{name}", maxEntriesPerTrigger=4, **EARLIEST)
    running.step()
    lag = running.report["lag"]
    assert (lag["streams"], lag["ms"] >= 0, lag["bytes"] > 0) == (1, True, True)
    assert lag["entries"] >= 6
    assert lag["by_stream"] == {name: lag["entries"]}
    running.drain()
    assert running.report["lag"] == {
        "bytes": 0, "entries": 0, "ms": 0, "streams": 0, "by_stream": {},
    }  # fmt: skip
    assert json.loads(running.checkpoint[-1])["s"] == running.report["s"]


def test_a_cursor_follows_a_query_and_a_new_query_begins_at_it(query, streams, name):
    streams.write(name, *(records(n) for n in range(6)))
    running = query(f"stream:{name}", cursor="spark", maxEntriesPerTrigger=2, **EARLIEST)
    running.step()
    running.step()  # only now it is said that the first one is done
    cursor = streams.run(streams.namespace.stream(name).cursor("spark"))
    assert Position(*json.loads(running.checkpoint[1])["s"][name][1:3], 0) == cursor.position
    anew = query(f"stream:{name}", cursor="spark")
    assert values(anew.drain()) == records(*range(6))[len(running.batches[0]) :]
    # What was done before does not take it back.
    streams.run(cursor.refresh())
    at = cursor.position
    running.reader.commit(json.loads(running.checkpoint[0]))
    streams.run(cursor.refresh())
    assert cursor.position == at


# What is gone ------------------------------------------------------------------------------


def test_truncated_records_are_an_error_or_left_out(query, streams, name):
    streams.write(name, records(0), records(1))
    running = query(f"stream:{name}", maxEntriesPerTrigger=1, **EARLIEST)
    running.step()
    streams.write(name, records(2))
    last = streams.segments(name)[-1].number
    streams.truncate(name, Position(last, 0, 0))
    strict = query(f"stream:{name}", checkpoint=running.checkpoint)
    with pytest.raises(DataLossError, match="truncated away"):
        strict.step()
    lenient = query(f"stream:{name}", checkpoint=running.checkpoint, failOnDataLoss="false")
    assert values(lenient.drain()) == records(2)
    # A batch that was planned before is found out as well.
    with pytest.raises(DataLossError, match="truncated away"):
        strict.rows_between(strict.checkpoint[-1], lenient.checkpoint[-1])


def test_what_was_read_may_be_truncated(query, streams, name):
    streams.write(name, records(0))
    running = query(f"stream:{name}", **EARLIEST)
    running.drain()
    streams.truncate(name, Position(streams.segments(name)[-1].number + 1, 0, 0))
    assert running.drain() == running.rows
    streams.write(name, records(1))
    assert values(running.until(2)) == records(0, 1)


def test_a_stream_made_again_is_an_error_or_read_anew(query, streams, name):
    streams.write(name, *(records(n) for n in range(5)))
    running = query(f"stream:{name}", **EARLIEST)
    running.drain()
    streams.delete(name)
    with pytest.raises(DataLossError, match="was deleted"):
        running.until(6)
    streams.write(name, records(7, 8))
    with pytest.raises(DataLossError, match="made again"):
        running.until(6)
    lenient = query(f"stream:{name}", checkpoint=running.checkpoint, failOnDataLoss="false")
    assert values(lenient.drain()) == records(7, 8)
    start, end = lenient.checkpoint[-2:]
    assert values(lenient.rows_between(start, end)) == records(7, 8)


LIMITS = [
    {}, {"maxEntriesPerTrigger": 1}, {"maxRecordsPerTrigger": 1}, {"maxBytesPerTrigger": 40},
    {"maxRecordsPerTrigger": 3, "maxBytesPerTrigger": 40}, {"minEntriesPerTrigger": 1},
]  # fmt: skip


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_segment_without_its_ledger_is_an_error_or_left_out_whatever_the_limits(
    query, streams, name, limits, gone
):
    for n in range(3):
        streams.write(name, records(n))
    lost = streams.segments(name)[gone].ledger_id
    streams.run(streams.namespace.client.delete_ledger(lost))
    with pytest.raises(DataLossError, match=f"the ledger {lost} of {name} is gone"):
        query(f"stream:{name}", **limits, **EARLIEST).drain()
    lenient = query(f"stream:{name}", failOnDataLoss="false", **limits, **EARLIEST)
    left = records(*(n for n in range(3) if n != gone))
    assert values(lenient.drain()) == left
    assert lenient.report["lag"]["bytes"] == 0
    streams.write(name, records(3))
    assert values(lenient.until(3)) == [*left, *records(3)]


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_a_segment_that_goes_while_a_query_runs_is_an_error_or_left_out(
    query, streams, name, limits
):
    for n in range(3):
        streams.write(name, records(n))
    running = query(f"stream:{name}", maxEntriesPerTrigger=1, **EARLIEST)
    running.step()
    lost = streams.segments(name)[1].ledger_id
    lenient = query(
        f"stream:{name}", checkpoint=running.checkpoint, failOnDataLoss="false", **limits
    )
    lenient.reader.reportLatestOffset()
    streams.run(streams.namespace.client.delete_ledger(lost))
    assert values(lenient.drain()) == records(2)
    strict = query(f"stream:{name}", checkpoint=running.checkpoint, **limits)
    with pytest.raises(DataLossError, match=f"the ledger {lost} of {name} is gone"):
        strict.drain()


@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_a_ledger_that_is_deleted_is_an_error_or_left_out_whatever_the_limits(
    query, cluster, limits
):
    tag = {"t": b"gone %d" % next(_names)}
    ids = [write_ledger(cluster, records(n), custom_metadata=tag) for n in range(3)]
    path = "ledger:" + ",".join(map(str, ids))
    strict = query(path, maxEntriesPerTrigger=1, **EARLIEST)
    strict.step()
    gone, *_ = unread = [n for n in range(3) if records(n) != values(strict.rows)]
    lenient = query(path, checkpoint=strict.checkpoint, failOnDataLoss="false", **limits)
    strict = query(path, checkpoint=strict.checkpoint, **limits)
    with cluster.connect() as client:
        client.delete_ledger(ids[gone])
    with pytest.raises(DataLossError, match=f"{ids[gone]} was deleted"):
        strict.drain()
    assert values(lenient.drain()) == records(*unread[1:])


# What is not selected ----------------------------------------------------------------------


def test_a_checkpoint_of_other_streams_is_refused_or_what_it_has_is_left_out(query, streams, name):
    for each in "a", "b":
        streams.write(f"{name}/{each}", records(0))
    first = query(f"stream:{name}/a", **EARLIEST)
    first.drain()
    streams.write(f"{name}/a", records(1))
    other = query(f"stream:{name}/b", checkpoint=first.checkpoint)
    with pytest.raises(ConfigError, match=rf"{name}/a, .*{name}/b.*dropUnselected=true") as found:
        other.step()
    assert "checkpoint" in str(found.value)
    other = query(f"stream:{name}/b", checkpoint=first.checkpoint, dropUnselected="true")
    assert values(other.drain()) == records(0)
    assert list(json.loads(other.checkpoint[-1])["s"]) == [f"{name}/b"]


def test_a_stream_that_is_taken_out_of_the_list_is_read_no_more(query, streams, name):
    for each in "a", "b":
        streams.write(f"{name}/{each}", records(0))
    both = query(f"stream:{name}/a,{name}/b", **EARLIEST)
    both.drain()
    for each in "a", "b":
        streams.write(f"{name}/{each}", records(1))
    for path in (f"stream:{name}/b", {"streamPattern": f"{name}/b"}):
        given = {"path": path} if isinstance(path, str) else {"path": None, **path}
        fewer = query(checkpoint=both.checkpoint, **given)
        with pytest.raises(ConfigError, match=f"{name}/a"):
            fewer.step()
        fewer = query(checkpoint=both.checkpoint, dropUnselected="true", **given)
        assert values(fewer.drain()) == records(1)


def test_a_batch_that_was_planned_is_done_again_as_it_was_whatever_is_selected_now(
    query, streams, name
):
    for each in "a", "b":
        streams.write(f"{name}/{each}", records(0))
    both = query(f"stream:{name}/a,{name}/b", **EARLIEST)
    both.drain()
    begin, end = both.checkpoint
    fewer = query(f"stream:{name}/b", checkpoint=both.checkpoint, dropUnselected="true")
    assert values(fewer.rows_between(begin, end)) == records(0, 0)
    fewer = query(f"stream:{name}/b", checkpoint=both.checkpoint)
    with pytest.raises(ConfigError, match=f"{name}/a"):
        fewer.rows_between(begin, end)


def test_ledgers_that_are_not_selected_any_more_are_refused_or_left_out(query, cluster):
    with cluster.connect() as client:
        open_ones = [client.create_ledger() for _ in range(2)]
        for writer in open_ones:
            writer.append_batch_nowait([b"0", b"1"])
        first, second = (writer.id for writer in open_ones)
        both = query(f"ledger:{first},{second}", **EARLIEST)
        both.step()
        one = query(f"ledger:{second}", checkpoint=both.checkpoint)
        with pytest.raises(ConfigError, match=rf"{first}.*dropUnselected"):
            one.step()
        one = query(f"ledger:{second}", checkpoint=both.checkpoint, dropUnselected="true")
        for writer in open_ones:
            writer.append_batch_nowait([b"2", b"3"])
            writer.close()
        assert {row["ledger_id"] for row in one.drain()} == {second}


def test_a_checkpoint_of_another_cluster_is_refused(query, streams, name):
    streams.write(name, records(0))
    stored = {"c": "00000000-0000-0000-0000-000000000000", "s": {name: [1, 1, 0]}, "v": 1}
    running = query(f"stream:{name}", checkpoint=[json.dumps(stored)])
    with pytest.raises(ConfigError, match="checkpoint is of cluster 0000"):
        running.step()


def test_offsets_never_go_back(query, streams, name):
    streams.write(name, records(0), records(1))
    running = query(f"stream:{name}", **EARLIEST)
    running.drain()
    ahead = json.loads(running.checkpoint[-1])
    ahead["s"][name][2] += 5  # what another planner knew of a segment that is being written
    running.checkpoint.append(json.dumps(ahead))
    assert running.step() is None


def test_what_one_stream_has_takes_no_other_back(query, streams, name):
    for each in "a", "b":
        streams.write(f"{name}/{each}", records(0))
    running = query(f"stream:{name}/a,{name}/b", **EARLIEST)
    running.drain()
    ahead = json.loads(running.checkpoint[-1])
    ahead["s"][f"{name}/a"][2] += 5
    running.checkpoint.append(json.dumps(ahead))
    streams.write(f"{name}/b", records(1))
    assert values(running.until(3)) == records(0, 0, 1)
    assert json.loads(running.checkpoint[-1])["s"][f"{name}/a"][:3] == ahead["s"][f"{name}/a"][:3]


# Ledgers -----------------------------------------------------------------------------------


def test_ledgers_are_followed_and_forgotten_when_they_are_finished(query, cluster):
    ids = [write_ledger(cluster, [b"%d" % n], custom_metadata={"t": b"tail"}) for n in range(2)]
    running = query(ledgerFilter="t=tail", **EARLIEST)
    assert values(running.drain()) == [b"0", b"1"]
    with cluster.connect() as client:
        writer = client.create_ledger(custom_metadata={"t": b"tail"})
        for n in range(3):
            writer.append(b"open %d" % n)
            running.until(2 + n)
        writer.close()
    running.until(5)
    assert values(running.rows[2:]) == [b"open 0", b"open 1", b"open 2"]
    last = write_ledger(cluster, [b"last"], custom_metadata={"t": b"tail"})
    running.until(6)
    assert not json.loads(running.checkpoint[-1])["l"].keys() & {str(n) for n in ids}
    assert json.loads(running.checkpoint[-1])["h"] == last
    assert running.step() is None


@pytest.mark.parametrize("is_filtered", [False, True])
def test_a_ledger_that_is_made_long_after_its_id_was_given_is_read(query, cluster, is_filtered):
    tag = {"t": b"late %d" % next(_names)}
    with cluster.connect() as client:
        slow = [client.reserve_ledger_id() for _ in range(3)]
        last = slow[-1] + 20
        path = {"ledgerIds": f"{slow[0]}-{last}"}
        if is_filtered:
            path = {"ledgerFilter": f"t={tag['t'].decode()}"}
        running = query(**path, **EARLIEST)
        assert running.drain() == []
        write_ledger(cluster, [b"fast"], custom_metadata=tag)
        running.drain()
        for number in 1, 0:
            with client.create_ledger(ledger_id=slow[number], custom_metadata=tag) as writer:
                writer.append(b"slow %d" % number)
            running.drain()
        later = query(**path, checkpoint=running.checkpoint)
        with client.create_ledger(ledger_id=slow[2], custom_metadata=tag) as writer:
            writer.append(b"slow 2")
        write_ledger(cluster, [b"after"], custom_metadata=tag)
        assert sorted(values(later.drain())) == [b"after", b"slow 2"]
    assert values(running.rows) == [b"fast", b"slow 1", b"slow 0"]
    assert later.step() is None


def test_a_late_ledger_that_available_now_leaves_is_read_by_the_next_run(query, cluster):
    with cluster.connect() as client:
        slow = client.reserve_ledger_id()
        path = f"ledger:{slow}-{slow + 20}"
        first = query(path, **EARLIEST)
        first.drain()
        write_ledger(cluster, [b"fast"])
        now = query(path, checkpoint=first.checkpoint, now=True)
        with client.create_ledger(ledger_id=slow) as writer:
            writer.append(b"slow")
    assert values(now.drain()) == [b"fast"]
    assert values(query(path, checkpoint=now.checkpoint).drain()) == [b"slow"]


def test_a_tail_reader_goes_to_tasks_without_its_planner(query, streams, name):
    streams.write(name, records(0))
    running = query(f"stream:{name}", **EARLIEST)
    assert isinstance(running.reader, TailReader)
    assert running._tasks_reader._planner is None  # the planner that a query keeps


@pytest.mark.parametrize(("limit", "has_files"), [(1, False), (2, False), (5, False), (2, True)])
def test_a_checkpoint_of_old_goes_on_at_the_very_record_when_segments_were_merged(
    query, streams, name, limit, has_files, tmp_path
):
    async def tier():
        stream = streams.namespace.stream(name)
        segment = SegmentInTier(
            context=stream_context(stream), metadata=(await stream.segments())[0].metadata
        )
        await moving.offload(segment, str(tmp_path))
        assert await moving.delete_copy(segment, delay_s=0.0)

    for n in range(0, 12, 2):
        streams.write(name, records(n), records(n + 1))
    running = query(f"stream:{name}", maxEntriesPerTrigger=limit, **EARLIEST)
    running.drain()
    checkpoints = list(running.checkpoint)
    for n in range(12, 16):
        streams.write(name, records(n))
    # Merged, and what was merged is merged again.
    assert len(streams.run(merge(streams, name))) == 1
    for n in range(16, 18):
        streams.write(name, records(n))
    streams.run(merge(streams, name))
    assert len(streams.segments(name)) == 1
    if has_files:  # and bookies have no copy of it any more
        streams.run(tier())
    read = 0
    for number in range(1, len(checkpoints)):
        read += len(running.batches[number - 1])
        later = query(f"stream:{name}", checkpoint=checkpoints[: number + 1])
        assert values(later.drain()) == records(*range(read, 18))
    # A batch that was planned before is the same.
    anew = query(f"stream:{name}", checkpoint=checkpoints)
    for number, (start, end) in enumerate(itertools.pairwise(checkpoints[1:]), 1):
        assert values(anew.rows_between(start, end)) == values(running.batches[number])


def test_a_pipeline_counts_the_segments_that_were_merged(streams, name):
    for n in range(5):
        streams.write(name, records(n))
    found = StepNumbers()

    def look():
        found.take_segments(streams.run(segments_of(streams.namespace, (name,))))
        return found.segments, found.segments_merged, found.segments_retired

    assert look() == (5, 0, 0)
    streams.run(merge(streams, name))
    assert look() == (1, 4, 0)
    streams.write(name, records(5))
    assert look() == (2, 4, 0)


def test_segments_that_could_not_be_read_are_read_by_the_next_look(
    query, streams, name, monkeypatch
):
    streams.write(name, records(1))
    tailing = query(f"stream:{name}", **EARLIEST)
    tailing.until(1)
    streams.write(name, records(2))

    async def fails(*_, **__):
        raise MetadataUnavailableError("away")

    with monkeypatch.context() as patched:
        patched.setattr(SegmentNodes, "segments", fails)
        with pytest.raises(MetadataUnavailableError):
            while True:
                tailing.step()
    assert values(tailing.until(2)) == records(1, 2)
