"""The sink as Spark drives it: writers of tasks, others for commit and abort, runs after runs."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from quorumbook.client.context import client_store
from quorumbook.spark.options import Use
from quorumbook.spark.pool import connected
from quorumbook.spark.sink import options, write
from quorumbook.spark.sink.checkpoint import batch_digest
from quorumbook.spark.sink.options import WriteOptions
from quorumbook.spark.sink.write import BatchSink, StreamSink, Told
from quorumbook.streams import Namespace
from quorumbook.streams.errors import (
    CheckpointChangedError,
    TransactionLostError,
    TransactionTooLargeError,
    WriterBusyError,
)
from quorumbook.streams.stream_context import namespace_store, stream_context
from quorumbook.streams.transactions import Application, Place, collect_orphans, commit

SCHEMA = StructType([StructField("stream", StringType()), StructField("value", BinaryType())])


class Target:
    """A namespace of the test's own, and a query that writes into its streams."""

    def __init__(self, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.uri = cluster.metadata_uri
        self.options: dict[str, str] = {}
        self.path = f"/sink-{uuid4().hex[:8]}"
        asyncio.run(Namespace.bind(f"{self.uri}#{self.path}"))
        self.run(lambda ns: ns.create_stream("s"))

    def run(self, work: Any) -> Any:
        async def run() -> Any:
            async with Namespace.open(f"{self.uri}#{self.path}") as namespace:
                return await work(namespace)

        return asyncio.run(run())

    def sink(self) -> StreamSink:
        """Return a writer made anew, as Spark does for each purpose."""
        given = {"metadataServiceUri": self.uri, "namespace": self.path, "txnAppId": "app"}
        options = WriteOptions.of({**given, **self.options}, Use.WRITE_STREAM)
        return pickle.loads(pickle.dumps(StreamSink(options, SCHEMA, overwrite=False)))

    def batch_sink(self) -> BatchSink:
        """Return a writer of a frame, which is one for tasks, commit and abort."""
        given = {"metadataServiceUri": self.uri, "namespace": self.path}
        return BatchSink(WriteOptions.of(given, Use.WRITE), SCHEMA, overwrite=False)

    def be_task(self, part: int, attempt: int = 0, **told: str) -> None:
        task = SimpleNamespace(
            partitionId=lambda: part, attemptNumber=lambda: attempt, getLocalProperty=told.get
        )
        self._monkeypatch.setattr(write, "TaskContext", SimpleNamespace(get=lambda: task))

    def write(
        self, run: str, batch: int, part: int, rows: Sequence[bytes], *, query: str = "q",
        attempt: int = 0, stream: str = "s",
    ) -> Any:  # fmt: skip
        """Be one task; return its message."""
        told = {
            "sql.streaming.queryId": query, "spark.jobGroup.id": run,
            "streaming.sql.batchId": str(batch),
        }  # fmt: skip
        self.be_task(part, attempt, **told)
        return pickle.loads(pickle.dumps(self.sink().write(self.read_batches(rows, stream))))

    def read_batches(self, rows: Sequence[bytes], stream: str) -> Iterator[pa.RecordBatch]:
        for row in rows:
            yield pa.RecordBatch.from_pydict({"stream": [stream], "value": [row]})

    def commit(self, batch: int, *messages: Any) -> None:
        self.sink().commit(list(messages), batch)

    def abort(self, batch: int, *messages: Any) -> None:
        self.sink().abort(list(messages), batch)

    def rows(self, stream: str = "s") -> list[bytes]:
        async def work(namespace: Namespace) -> list[bytes]:
            async with namespace.stream(stream).reader(tail=False) as reader:
                return [record.payload async for record in reader]

        return self.run(work)

    def unreferenced(self) -> set[int]:
        """Return the ledgers of the sink that no segment names."""

        async def work(namespace: Namespace) -> set[int]:
            ledgers = namespace.client.list_ledgers(
                custom_metadata={"namespace": namespace.path.encode()}
            )
            found = {each.ledger_id async for each in ledgers}
            segments = await stream_context(namespace.stream("s")).nodes.segments()
            return found - {segment.ledger_id for segment in segments}

        return self.run(work)

    def collect(self) -> None:
        self.run(lambda ns: collect_orphans(Place(ns.client, ns, attempt_ttl_s=0)))


def ledgers_of(told: Told) -> set[int]:
    return {draft.ledger_id for draft in told.result.drafts}


@pytest.fixture
def ledgers_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have tasks make ledgers for few rows as well, instead of handing them to the driver."""
    monkeypatch.setattr(options, "HANDED_BYTES", 0)


@pytest.fixture
def target(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Target:
    return Target(cluster, monkeypatch)


def test_partitions_are_in_their_order_whichever_tells_first(target: Target) -> None:
    told = [target.write("r1", 0, part, [b"%d.0" % part, b"%d.1" % part]) for part in (2, 0, 1)]
    target.commit(0, *told)
    assert target.rows() == [b"%d.%d" % (part, n) for part in range(3) for n in range(2)]


def test_an_abort_cleans_up_behind_its_own_run_only(target: Target) -> None:
    mine = [target.write("r1", 0, part, [b"%d" % part]) for part in range(2)]
    theirs = [target.write("r2", 0, part, [b"%d" % part]) for part in range(2)]
    target.abort(0, None, mine[1])  # what a killed task would tell is missing
    assert target.unreferenced() == {*ledgers_of(theirs[0]), *ledgers_of(theirs[1])}
    target.commit(0, *theirs)
    assert target.rows() == [b"0", b"1"]
    with pytest.raises(TransactionLostError):
        target.commit(0, *mine)
    assert target.unreferenced() == set()


def test_an_abort_behind_a_commit_that_took_effect_changes_nothing(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = target.write("r1", 0, 0, [b"row"])
    commit = Application.commit

    async def lost(self: Application, *arguments: Any) -> None:
        await commit(self, *arguments)
        raise ConnectionError("the answer is lost")

    with monkeypatch.context() as patch:
        patch.setattr(Application, "commit", lost)
        with pytest.raises(ConnectionError):
            target.commit(0, told)
    target.abort(0, told)
    assert target.rows() == [b"row"]
    # The query begins again with the same batch: the rows are not even read.
    again = target.write("r2", 0, 0, [b"row"])
    assert again.result.is_skipped
    target.commit(0, again)
    target.commit(0, target.write("r2", 0, 1, []))
    assert target.rows() == [b"row"]
    target.commit(1, None, target.write("r2", 1, 0, [b"next"]))
    assert target.rows() == [b"row", b"next"]


def test_a_batch_that_is_there_is_not_read_again(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.commit(0, target.write("r1", 0, 0, [b"row"]))

    def unread(*_: Any) -> Iterator[pa.RecordBatch]:
        raise AssertionError("somebody reads the rows")
        yield

    monkeypatch.setattr(target, "read_batches", unread)
    assert target.write("r2", 0, 0, [b"row"]).result.is_skipped
    with pytest.raises(CheckpointChangedError):
        target.write("r3", 0, 0, [b"row"], query="of another checkpoint")


def test_a_batch_of_other_offsets_under_an_old_number_is_refused(
    target: Target, tmp_path: Path
) -> None:
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    target.options = {"checkpointLocation": f"file://{tmp_path}"}

    def plan(batch: int, end: str, *, settings: str = "{}") -> None:
        (offsets / str(batch)).write_text(f"v1\n{settings}\n{end}")

    plan(0, '{"s":10}')
    target.commit(0, target.write("r1", 0, 0, [b"0"]))
    plan(1, '{"s":20}')
    target.commit(1, target.write("r1", 1, 0, [b"1"]))
    # The same batch again, at another time.
    plan(1, '{"s":20}', settings='{"batchTimestampMs":7}')
    target.commit(1, target.write("r2", 1, 0, [b"1"]))
    # The checkpoint was put back, and more had come since.
    plan(1, '{"s":30}')
    told = target.write("r3", 1, 0, [b"1", b"2"])
    with pytest.raises(CheckpointChangedError, match="batch 1 comes again"):
        target.commit(1, told)
    target.abort(1, told)
    # It begins elsewhere.
    plan(1, '{"s":20}')
    plan(0, '{"s":9}')
    with pytest.raises(CheckpointChangedError, match="from other offsets"):
        target.commit(1, target.write("r4", 1, 0, [b"?"]))
    with pytest.raises(CheckpointChangedError, match="up to batch 1"):
        target.commit(0, target.write("r4", 0, 0, [b"?"]))
    assert target.rows() == [b"0", b"1"]
    plan(0, '{"s":10}')
    target.commit(1, target.write("r5", 1, 0, [b"1"]))
    plan(2, '{"s":40}')
    target.commit(2, target.write("r5", 2, 0, [b"2"]))
    assert target.rows() == [b"0", b"1", b"2"]


def test_a_checkpoint_that_cannot_be_read_has_no_digest(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    assert batch_digest("", 0) == ""
    assert batch_digest(str(tmp_path / "elsewhere"), 0) == ""
    assert batch_digest(str(tmp_path), 0) == ""
    assert batch_digest("wasb://container/checkpoint", 0) == ""
    (tmp_path / "offsets" / "0").write_text("v1\n{}\n7")
    found = {batch_digest(f"{start}{tmp_path}", 0) for start in ("", "file:", "file://")}
    assert len(found) == 1
    assert len(found.pop()) == 32


def test_of_two_copies_of_a_task_one_is_there_and_nothing_is_left_of_the_other(
    target: Target,
) -> None:
    slow = target.write("r1", 0, 0, [b"row"], attempt=0)
    told = target.write("r1", 0, 0, [b"row"], attempt=1)
    assert not ledgers_of(slow) & ledgers_of(told)
    target.commit(0, told)
    assert target.rows() == [b"row"]
    assert target.unreferenced() == set()


@pytest.mark.usefixtures("ledgers_of_tasks")
def test_what_was_cleaned_up_is_not_committed_and_what_tasks_left_is_found(target: Target) -> None:
    told = target.write("r1", 0, 0, [b"row"])
    target.collect()
    with pytest.raises(TransactionLostError, match="cleaned up"):
        target.commit(0, told)
    target.abort(0, told)
    assert (target.rows(), target.unreferenced()) == ([], set())
    # A batch that nothing is told of, as all of its tasks died.
    target.write("r2", 0, 0, [b"row"])
    target.abort(0, None)
    target.commit(0)
    target.commit(0, target.write("r3", 0, 0, [b"row"]))
    assert target.rows() == [b"row"]
    assert target.unreferenced() == set()


@pytest.mark.usefixtures("ledgers_of_tasks")
def test_a_frame_that_fails_leaves_nothing_whatever_its_tasks_told(target: Target) -> None:
    sink = target.batch_sink()
    for part in range(2):
        target.be_task(part)
        pickle.loads(pickle.dumps(sink)).write(target.read_batches([b"%d" % part], "s"))
    assert len(target.unreferenced()) == 2
    pickle.loads(pickle.dumps(sink)).abort([None, None])
    assert (target.rows(), target.unreferenced()) == ([], set())
    # Nobody goes on with an application that has no name of its own.
    transactions = f"{target.path}/.transactions"
    assert target.run(lambda ns: namespace_store(ns).children(transactions)) == []
    target.be_task(0)
    with pytest.raises(TransactionLostError):
        sink.write(target.read_batches([b"late"], "s"))
    assert target.unreferenced() == set()


def test_few_rows_of_many_tasks_are_one_segment(target: Target) -> None:
    told = [target.write("r1", 0, part, [b"%d" % part]) for part in range(200)]
    assert target.unreferenced() == set()
    target.commit(0, *told)
    assert target.rows() == [b"%d" % part for part in range(200)]
    assert target.run(segment_count) == 1


def test_a_stream_that_takes_no_more_segments_is_refused_before_any_task_runs(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit, "MAX_SEGMENTS", 1)
    target.commit(0, target.write("r1", 0, 0, [b"1"]))
    given = {"metadataServiceUri": target.uri, "namespace": target.path, "stream": "s"}
    schema = StructType([StructField("value", BinaryType())])
    for use, kind in (Use.WRITE, BatchSink), (Use.WRITE_STREAM, StreamSink):
        with pytest.raises(TransactionTooLargeError, match="compact-segments"):
            kind(WriteOptions.of(given, use), schema, overwrite=False)


async def segment_count(namespace: Namespace) -> int:
    return len(await namespace.stream("s").segments())


def test_a_writer_is_fenced_out_only_if_that_is_told(target: Target) -> None:
    async def crash(namespace: Namespace) -> None:
        writer = await namespace.stream("s").writer()
        await writer.append(b"written")
        await writer.abort()  # leaves its segment in progress

    target.run(crash)
    told = target.write("r1", 0, 0, [b"row"])
    with pytest.raises(WriterBusyError, match="takeover=true"):
        target.commit(0, told)
    target.options = {"takeover": "true"}
    target.commit(0, told)
    assert target.rows() == [b"written", b"row"]


@pytest.mark.usefixtures("ledgers_of_tasks")
def test_streams_that_a_batch_makes_and_writes_appear_together(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.run(lambda ns: ns.create_stream("t"))
    told = [target.write("r1", 0, 0, [b"1"]), target.write("r1", 0, 1, [b"2"], stream="t")]
    options = WriteOptions.of(
        {"metadataServiceUri": target.uri, "namespace": target.path}, Use.WRITE_STREAM
    )
    store = client_store(connected(options.connection).client)
    multi, seen = store.multi, []

    async def looking(operations: Any) -> Any:
        done = await multi(operations)
        seen.append(len(operations))
        return done

    monkeypatch.setattr(store, "multi", looking)
    target.commit(0, *told)
    assert (target.rows(), target.rows("t")) == ([b"1"], [b"2"])
    # Head, two attempts, and of each stream a segment and two nodes more.
    assert seen.count(9) == 1
