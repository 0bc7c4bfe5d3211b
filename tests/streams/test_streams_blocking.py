"""The blocking twin of streams: same names, same promises, for programs without an event loop."""

from __future__ import annotations

import inspect
import io
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import quorumbook.streams
import quorumbook.sync.streams
from doubles.clusters import STORES, local_cluster
from quorumbook.errors import BackpressureError, LedgerClosedError, LocalProtocolError
from quorumbook.loop_thread import run_once
from quorumbook.streams import Command, Gap, Position, SequenceId, StreamPolicy
from quorumbook.streams.cursors.cursor import take_over
from quorumbook.streams.errors import (
    CursorBusyError,
    CursorConflictError,
    RecordTooLargeError,
    SequenceConflictError,
    StreamSealedError,
    WriterBusyError,
    WriterFencedError,
)
from quorumbook.sync.streams import (
    ByteStream,
    Namespace,
    PartitionedStream,
    StateMachine,
    TableView,
)
from quorumbook.sync.twin import unwrapped
from quorumbook.testing import LocalCluster

PATIENCE_S = 60.0
#: Polars and DuckDB ask in threads of their own, so only the blocking side can answer them.
_ONLY_BLOCKING = {"scan", "arrow_reader"}


cluster = local_cluster(STORES, scope="module")


@pytest.fixture
def ns(cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    with Namespace.open(f"{cluster.metadata_uri}#/{request.node.originalname}", bind=True) as made:
        yield made


def public(kind: type, without: set[str]) -> dict[str, Any]:
    return {
        name: inspect.getattr_static(kind, name)
        for name in dir(kind)
        if not name.startswith("_") and name not in without
    }


@pytest.mark.parametrize("name", quorumbook.sync.streams.__all__)
def test_both_twins_of_streams_have_the_same_names_and_parameters(name: str) -> None:
    ours = public(getattr(quorumbook.sync.streams, name), _ONLY_BLOCKING)
    theirs = public(getattr(quorumbook.streams, name), set())
    assert ours.keys() == theirs.keys()
    for member, value in theirs.items():
        assert type(ours[member]) is type(value), member
        if not isinstance(value, property):
            want = _parameters(value)
            have = _parameters(ours[member])
            assert have == want, member
            assert not inspect.iscoroutinefunction(ours[member])


def _parameters(value: Any) -> list[Any]:
    function = getattr(value, "__func__", value)
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


def test_the_blocking_twin_has_every_class_that_does_something() -> None:
    doing = {
        name
        for name in quorumbook.streams.__all__
        if inspect.isclass(kind := getattr(quorumbook.streams, name))
        and any(inspect.iscoroutinefunction(value) for value in public(kind, set()).values())
    }
    assert doing == set(quorumbook.sync.streams.__all__)


def test_a_stream_lives_without_an_event_loop(ns: Namespace) -> None:
    ns.set_policy(StreamPolicy(roll_entries=2))
    ns.create_stream("a/b")
    stream = ns.stream("a/b")
    with stream.writer() as writer:
        assert writer.append(b"0").sequence_id == 0
        futures = [writer.append_nowait(b"%d" % n) for n in range(1, 50)]
        assert writer.next_sequence_id == 50
        batch = writer.append_batch([b"%d" % n for n in range(50, 60)], atomic=True)
        assert [each.sequence_id for each in batch] == list(range(50, 60))
        assert [future.result().sequence_id for future in futures] == list(range(1, 50))
        with pytest.raises(SequenceConflictError):
            writer.append(b"x", expected_sequence=7)
        assert isinstance(writer.append_nowait(b"x", expected_sequence=7).exception(),
                          SequenceConflictError)  # fmt: skip
        writer.roll()
        assert writer.append(b"60").entry_id == 0
        with pytest.raises(WriterBusyError):
            stream.writer()
        writer.flush()
        assert (writer.pending_records, writer.last_txid) == (0, 60)
    with pytest.raises(LedgerClosedError):
        writer.append(b"late")
    assert list(ns.streams()) == ["a/b"]
    assert stream.info().record_count == 61
    assert stream.get(SequenceId(17)).payload == b"17"
    splits = stream.snapshot().splits(1)
    assert len(splits) > 1
    read = [p for split in splits for batch in stream.read_split(split) for p in batch.payloads]
    assert read == [b"%d" % n for n in range(61)]
    stream.truncate(SequenceId(5))
    with stream.reader(tail=False) as reader:
        assert [record.sequence_id for record in reader] == list(range(5, 61))
        reader.seek(stream.find(sequence_id=40))
        assert len(reader.read(3)) == 3
    with stream.writer() as writer:
        writer.seal()
        with pytest.raises(StreamSealedError):
            writer.append(b"late")
    assert len(stream.segments()) == len(stream.info().segments)
    ns.rename_stream("a/b", "c")
    ns.delete_stream("c")
    assert list(ns.streams()) == []


def test_records_are_handed_out_once_however_they_are_asked_for(ns: Namespace) -> None:
    ns.create_stream("s")
    with ns.stream("s").writer() as writer:
        for start in 0, 10, 20:
            writer.append_batch([b"%d" % n for n in range(start, start + 10)], atomic=True)
        with ns.stream("s").reader() as reader:
            got = [next(reader) for _ in range(3)]
            assert reader.position == got[-1].position.next
            got += reader.read(2)
            got += reader.read(1000, 3)
            assert len(got) == 8
            assert not reader.caught_up
            batches = reader.read_batches()
            got += [*next(batches), *next(batches)]
            got += [next(reader) for _ in range(5)]
            got += reader.read(1000)
            assert [record.sequence_id for record in got] == list(range(30))
            assert [int(record.payload) for record in got] == list(range(30))
            assert reader.read(wait_s=0.01) == []
            assert reader.caught_up


def test_gaps_and_control_records_without_an_event_loop(ns: Namespace) -> None:
    ns.create_stream("s", policy=StreamPolicy(roll_entries=1))
    stream = ns.stream("s")
    with stream.writer() as writer:
        for number in range(3):
            writer.append_batch([b"%d" % number] * 2)
    ns.client.delete_ledger(stream.segments()[1].metadata.ledger_id)
    for read in (
        list,
        lambda reader: [each for batch in reader.read_batches() for each in batch],
        lambda reader: [*reader.read(3, wait_s=None), *reader.read(wait_s=None)],
        lambda reader: [next(reader), next(reader), next(reader), *reader.read(wait_s=None)],
    ):
        with stream.reader(tail=False, on_gap="report") as reader:
            found = read(reader)
        assert [getattr(each, "payload", None) for each in found] == [
            b"0", b"0", None, b"2", b"2",
        ]  # fmt: skip
        assert found[2] == Gap(
            Position(2, 0, 0), Position(3, 0, 1), 2, 4, found[2].reason, found[2].ledger_id
        )
    with stream.reader(tail=False, on_gap="report", include_control=True) as reader:
        kinds = [type(each).__name__ for each in reader]
    whole = ["ControlRecord", "Record", "Record"]
    assert kinds == [*whole, "Gap", *whole]


def test_a_reader_follows_a_writer_on_other_threads(ns: Namespace) -> None:
    ns.create_stream("s")
    stream = ns.stream("s")
    got: list[bytes] = []

    def follow() -> None:
        with stream.reader() as reader:
            got.extend(record.payload for record in reader)

    with stream.writer() as writer:
        follower = threading.Thread(target=follow)
        follower.start()
        appenders = [
            threading.Thread(
                target=lambda me=me: [writer.append(b"%d %d" % (me, n)) for n in range(20)]
            )
            for me in range(4)
        ]
        for thread in appenders:
            thread.start()
        for thread in appenders:
            thread.join(PATIENCE_S)
        writer.seal()
    follower.join(PATIENCE_S)
    assert len(got) == 80
    for me in range(4):  # each thread's records are in the order of its calls
        mine = [payload for payload in got if payload.startswith(b"%d " % me)]
        assert mine == [b"%d %d" % (me, n) for n in range(20)]


def test_a_full_window_of_a_stream_refuses_and_drain_waits(ns: Namespace) -> None:
    ns.create_stream("s")
    with ns.stream("s").writer(max_pending_records=5) as writer:
        gate = threading.Event()
        writer._loop_thread.loop.call_soon_threadsafe(gate.wait, PATIENCE_S)  # holds it up
        futures = [writer.append_nowait(b"x") for _ in range(5)]
        with pytest.raises(BackpressureError):
            writer.append_nowait(b"x")
        waiting = [threading.Thread(target=writer.append, args=(b"y",)) for _ in range(8)]
        waiting.append(threading.Thread(target=writer.drain))
        for thread in waiting:
            thread.start()
        gate.set()
        for thread in waiting:
            thread.join(PATIENCE_S)
        assert [future.result().sequence_id for future in futures] == list(range(5))
        assert writer.next_sequence_id == 13
        assert isinstance(writer.append_batch_nowait([b"z"] * 6).exception(), LocalProtocolError)


def test_a_blocking_writer_that_was_pushed_out_says_so(ns: Namespace) -> None:
    ns.create_stream("s")
    stream = ns.stream("s")
    old = stream.writer()
    old.append(b"old")
    with stream.writer(takeover="force") as new:
        with pytest.raises(WriterFencedError):
            old.append(b"late")
        with pytest.raises(WriterFencedError):
            old.close()
        assert new.append(b"new").sequence_id == 1
    ns.create_stream("t")
    aborted = ns.stream("t").writer()
    aborted.abort()
    with pytest.raises(LedgerClosedError):
        aborted.append_nowait(b"x").result()


def test_blocking_cursors_move_by_compare_and_set(ns: Namespace) -> None:
    ns.create_stream("s")
    stream = ns.stream("s")
    with stream.writer() as writer:
        writer.append_batch([b"0", b"1", b"2"])
        writer.flush()
        with stream.reader(tail=False) as reader:
            where = [record.position for record in reader]
        cursor = stream.cursor("c", holds_retention=True)
        other = stream.cursor("c")
        cursor.commit(where[0], state=b"one")
        with pytest.raises(CursorConflictError):
            other.commit(where[1])
        other.refresh()
        assert (other.state, other.lag().records) == (b"one", 2)
        with stream.reader(other, tail=False) as reader:
            assert [record.payload for record in reader] == [b"1", b"2"]
        other.reset(Position(1, 0, 0))
        assert [each.name for each in stream.cursors()] == ["c"]
        assert stream.enforce_retention().segments == []
        other.delete()


def test_reading_by_a_cursor_without_an_event_loop(ns: Namespace) -> None:
    ns.create_stream("s")
    stream = ns.stream("s")
    with stream.writer() as writer:
        writer.append_batch([b"%d" % n for n in range(10)])
    with stream.reader(cursor="c", exclusive=True, tail=False, auto_commit_s=1000) as reader:
        assert [each.sequence_id for each in reader.read(2)] == [0, 1]
        with pytest.raises(CursorBusyError):
            stream.reader(cursor="c", exclusive=True)
        third = next(reader)
        reader.commit()
        reader.cursor.ack(third)
    with stream.reader(cursor="c", tail=False) as reader:
        assert reader.cursor.acks is not None
        assert [each.sequence_id for each in reader] == list(range(3, 10))
    cursor = stream.cursor("c")
    cursor.ack(stream.get(SequenceId(5)))
    cursor.nack(stream.get(SequenceId(5)))
    cursor.ack(stream.get(SequenceId(7)))
    with stream.reader(cursor="c", tail=False) as reader:
        got = [each for batch in reader.read_batches() for each in batch]
    assert [each.sequence_id for each in got] == [3, 4, 5, 6, 8, 9]
    run_once(lambda: take_over(unwrapped(cursor), "me"))
    assert cursor.owner == "me"


def test_partitions_are_written_and_read_without_an_event_loop(ns: Namespace) -> None:
    orders = PartitionedStream.create(ns, "orders", partitions=3)
    keys = [b"%d" % (n % 5) for n in range(50)]
    with orders.writer() as writer:
        first = writer.append(b"0 0", key=keys[0])
        assert first.partition == orders.partition_of(keys[0])
        futures = [writer.append_nowait(b"%s %d" % (keys[n], n), key=keys[n])
                   for n in range(1, 20)]  # fmt: skip
        rest = writer.append_batch([b"%s %d" % (keys[n], n) for n in range(20, 50)], keys=keys[20:])
        assert [each.partition for each in rest] == [orders.partition_of(k) for k in keys[20:]]
        assert futures[-1].result().partition == orders.partition_of(keys[19])
        writer.flush()
        end = orders.end()
        writer.drain()
        with pytest.raises(LocalProtocolError):
            writer.append_nowait(b"x", partition=3)
        assert len(writer.writers) == 3
        writer.seal()
    seen = PartitionedStream.open(ns, "orders")
    with seen.reader() as reader:
        got = [next(reader) for _ in range(7)]
        got += reader.read(3)
        cut = reader.position
    with seen.reader(cut, end=end) as reader:
        got += list(reader)
    assert sorted(int(each.record.payload.split()[1]) for each in got) == list(range(50))
    for key in set(keys):
        mine = [each.record.payload.split() for each in got]
        numbers = [int(number) for each, number in mine if each == key]
        assert numbers == sorted(numbers)
    orders.truncate(end)
    with seen.reader() as reader:
        assert reader.read() == []
    orders.delete()


def test_bytes_are_written_and_read_as_files(ns: Namespace) -> None:
    ns.create_stream("s")
    file = ByteStream(ns.stream("s"))
    with io.BufferedWriter(file.writer(), 100) as out:
        for n in range(1000):
            out.write(b"line %d\n" % n)
    written = b"".join(b"line %d\n" % n for n in range(1000))
    assert file.size() == len(written)
    with file.reader() as raw:
        assert raw.read() == written
        assert raw.seek(-9, io.SEEK_END) == len(written) - 9
        assert raw.read(100) == b"line 999\n"
        assert raw.seek(5) == raw.tell() == 5
    with io.BufferedReader(file.reader(7)) as lines:
        assert next(lines) == b"line 1\n"
        assert len(list(lines)) == 998
    with file.writer() as again:
        assert again.tell() == len(written)
        assert again.write(b"more") == 4
        with file.reader(len(written), tail=True) as raw:
            assert raw.read(4) == b"more"
    assert 0 < file.truncate(500) <= 500


def test_a_table_is_kept_up_to_date_without_an_event_loop(ns: Namespace) -> None:
    ns.create_stream("s")
    stream = ns.stream("s")
    closed = TableView(stream)
    with pytest.raises(LocalProtocolError, match="not open"):
        len(closed)
    with stream.writer() as writer:
        for n in range(10):
            writer.append(b"%d" % n, key=b"key %d" % (n % 4))
        writer.flush()
        with TableView(stream) as table:
            now = {b"key 0": b"8", b"key 1": b"9", b"key 2": b"6", b"key 3": b"7"}
            assert dict(table) == dict(table.items()) == now
            assert (set(table), set(table.keys()), len(table)) == (set(now), set(now), 4)
            assert sorted(table.values()) == sorted(now.values())
            assert (table[b"key 2"], table.get(b"none"), b"key 1" in table) == (b"6", None, True)
            told: list[tuple[bytes, bytes | None]] = []
            remove = table.on_change(lambda key, value: told.append((key, value)))
            changes = table.changes(replay=True)
            assert sorted(next(changes) for _ in range(4)) == sorted(now.items())
            where = writer.append(b"", key=b"key 0").position
            assert where is not None
            table.wait_for(where)
            assert table.position == where.next
            assert next(changes) == (b"key 0", None)
            remove()
            writer.append(b"new", key=b"key 0")
            writer.flush()
            table.refresh()
            assert (table[b"key 0"], told) == (b"new", [(b"key 0", None)])
            changes.close()
        by_number = TableView(stream, lambda record: (len(record.payload), record.sequence_id))
        with by_number:
            assert dict(by_number) == {0: 10, 1: 9, 3: 11}


class Sum:
    """Adds numbers; what is below zero is refused."""

    def __init__(self) -> None:
        self.total = 0

    def apply(self, command: Command) -> Any:
        number = int(command.payload)
        self.total += max(number, 0)
        return self.total if number >= 0 else "refused"

    def snapshot(self) -> bytes:
        return b"%d" % self.total

    def restore(self, data: bytes) -> None:
        self.total = int(data)


def _before(position: Position) -> Position:
    return position._replace(slot=position.slot - 1)


def test_a_state_machine_is_replicated_without_an_event_loop(ns: Namespace) -> None:
    ns.create_stream("s")
    stream = ns.stream("s")
    with StateMachine(stream, Sum(), truncates=True) as first, StateMachine(stream, Sum()) as other:
        with pytest.raises(LocalProtocolError, match="does not lead"):
            first.propose(b"1")
        first.lead()
        assert [first.propose(b"%d" % n) for n in (1, 2, -5, 3)] == [1, 3, "refused", 6]
        assert (first.is_leading, other.is_leading, first.next_sequence_id) == (True, False, 4)
        assert first.position is not None
        other.wait_for(_before(first.position))
        assert other.state.total == 6
        assert first.snapshot()
        with pytest.raises(WriterBusyError):
            other.lead(takeover="never")
        other.lead(takeover="force")
        with pytest.raises(WriterFencedError):
            first.propose(b"100")
        assert other.propose(b"4") == 10
        assert other.position is not None
        first.wait_for(_before(other.position))
        assert first.state.total == 10
        other.step_down()
        with StateMachine(stream, Sum()) as late:  # the snapshot, and what is behind it
            assert (late.state.total, late.next_sequence_id) == (10, 5)


def test_a_group_consumes_without_an_event_loop(ns: Namespace) -> None:
    stream = PartitionedStream.create(ns, "s", partitions=2)
    with stream.writer() as writer:
        writer.append_batch([b"%d" % n for n in range(10)], keys=[b"%d" % n for n in range(10)])
    assigned: list[int] = []
    revoked: list[tuple[int, int]] = []
    with stream.consumer("g", auto_commit_s=0, on_assigned=assigned.append,
                         on_revoked=lambda n: revoked.append((n, consumer.generation)),
                         ) as consumer:  # fmt: skip
        again = next(consumer)
        consumer.nack(again)
        got = []
        while len(got) < 10:
            got += consumer.read(3)
        assert [each.delivery_count for each in got if each == again] == [2]
        assert sorted(int(each.record.payload) for each in got) == list(range(10))
        assert sorted(assigned) == [0, 1]
        assert consumer.assignment == {0, 1}
        last = {each.partition: each for each in sorted(got, key=lambda each: each.record)}
        for each in last.values():
            consumer.commit(each)
        consumer.ack(again)
        consumer.ack(last[0])
        assert consumer.cursor(0).owner == consumer.member
        info = stream.group(consumer.group)
        assert info.claims == {0: consumer.member, 1: consumer.member}
        cursor = info.cursors[1]
        assert cursor is not None
        assert cursor.lag().records == 0
    assert sorted(revoked) == [(0, 1), (1, 1)]
    assert [each.name for each in stream.groups()] == ["g"]
    with stream.consumer("g") as consumer:
        assert consumer.read(wait_s=0.05) == []
    stream.delete_group("g")
    assert stream.groups() == []


def test_an_interrupted_reader_hands_out_everything_all_the_same(ns: Namespace) -> None:
    ns.create_stream("s")
    with ns.stream("s").writer() as writer, ns.stream("s").reader() as reader:
        writer.append(b"0")
        assert next(reader).payload == b"0"
        is_waiting = threading.Event()
        run = reader._run  # where an interrupt comes is between two steps of it

        def told(work: Any) -> Any:
            is_waiting.set()
            return run(work)

        reader._run = told  # type: ignore[method-assign]
        is_over = threading.Event()
        interrupter = threading.Thread(target=_interrupt_main, args=(is_waiting, is_over))
        interrupter.start()
        with pytest.raises(KeyboardInterrupt):
            next(reader)
        is_over.set()
        interrupter.join()
        writer.append(b"1")
        writer.append(b"2")
        assert [next(reader).payload, next(reader).payload] == [b"1", b"2"]
        writer.append(b"3")

        def late(work: Any) -> Any:
            run(work)  # it comes when the record is here already, and takes that along
            raise KeyboardInterrupt

        reader._run = late  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            next(reader)
        reader._run = run  # type: ignore[method-assign]
        writer.append(b"4")
        assert [next(reader).payload, next(reader).payload] == [b"3", b"4"]


def _interrupt_main(is_waiting: threading.Event, is_over: threading.Event) -> None:
    main = threading.main_thread().ident
    assert main is not None
    is_waiting.wait(PATIENCE_S)
    signal.pthread_kill(main, signal.SIGINT)
    # One that comes while a finalizer runs is lost: Python says so, and goes on.
    while not is_over.wait(PATIENCE_S / 4):
        signal.pthread_kill(main, signal.SIGINT)


def test_the_blocking_example_of_the_documents_runs(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "streams.md").read_text(encoding="utf-8")
    (example,) = [
        each
        for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        if "import Namespace" in each and "quorumbook.sync" in each
    ]
    uri = "sqlite:///quorumbook-data/metadata.db"
    assert uri in example
    exec(example.replace(uri, f"{cluster.metadata_uri}#/example"), {})
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[1], lines[-1]) == ("999", "0 b'0'", "999 b'999'")


def test_a_blocking_candidate_leads_when_the_one_before_resigns(ns: Namespace) -> None:
    with ns.election("e", "a") as first:
        first.wait_to_lead()
        with ns.election("e", "b") as second:
            assert (first.leader(), first.candidate, second.is_leader) == ("a", "a", False)
            first.resign()
            first.wait_to_lose()
            second.wait_to_lead()
            assert second.is_leader
    assert ns.client.election("e").leader() is None


def test_records_put_by_threads_are_stored_once_and_in_each_threads_order(ns: Namespace) -> None:
    ns.create_stream("s")
    tickets: dict[int, list[int]] = {}
    with ns.stream("s").writer(max_pending_records=100) as writer:

        def put(thread: int) -> None:
            tickets[thread] = []
            for number in range(500):
                while True:
                    try:
                        ticket = writer.put(b"%d %d" % (thread, number), key=b"%d" % thread)
                    except BackpressureError:
                        writer.drain()
                    else:
                        tickets[thread].append(ticket)
                        break
            writer.confirmed(tickets[thread][-1])

        threads = [threading.Thread(target=put, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert writer.pending_records == 0
        assert sorted(ticket for each in tickets.values() for ticket in each) == list(range(2000))
        with pytest.raises(LocalProtocolError, match="no record has ticket 2000"):
            writer.confirmed(2000)
    with ns.stream("s").reader(tail=False) as reader:
        found = [record.payload.split() for record in reader]
    for thread in range(4):
        assert [int(number) for who, number in found if int(who) == thread] == list(range(500))


def test_the_window_is_as_large_as_ever_behind_calls_of_every_kind(ns: Namespace) -> None:
    ns.create_stream("s")
    with ns.stream("s").writer(max_pending_records=40, max_pending_bytes=20_000) as writer:

        def fill(size: int) -> int:
            """Return how many records of a size the window takes while nothing is confirmed."""
            gate, count = threading.Event(), 0
            writer._loop_thread.loop.call_soon_threadsafe(gate.wait, PATIENCE_S)  # holds it up
            try:
                while True:
                    writer.put(bytes(size))
                    count += 1
            except BackpressureError:
                assert writer.pending_records == count
                return count
            finally:
                gate.set()
                writer.flush()
                assert writer.pending_records == 0

        small, large = fill(0), fill(1_000)
        for _ in range(3):
            writer.put(b"plain")
            writer.append_nowait(b"future")
            writer.put(b"key", key=b"k")
            writer.append_batch_nowait([b"a", b"batch"])
            writer.put(b"joins nobody")
            writer.append(b"waits")
            writer.flush()
        assert (fill(0), fill(1_000)) == (small, large)
        assert small == 40
        assert 0 < large < 20


def test_records_wait_on_the_loop_for_what_they_carry(ns: Namespace) -> None:
    """The calling side counts payloads, the writer also what goes with them."""
    ns.create_stream("s")
    with ns.stream("s").writer(max_pending_bytes=20_000) as writer:
        for number in range(300):
            while True:
                try:
                    writer.put(b"%d" % number, headers={"h": bytes(1000)})
                except BackpressureError:
                    writer.drain()
                else:
                    break
    with ns.stream("s").reader(tail=False) as reader:
        assert [record.payload for record in reader] == [b"%d" % number for number in range(300)]


def test_a_record_that_is_refused_after_it_was_put_is_told_of_and_holds_up_no_other(
    ns: Namespace,
) -> None:
    ns.create_stream("s", policy=StreamPolicy(max_record_bytes=100))
    writer = ns.stream("s").writer()
    writer.put(b"a")
    writer.put(bytes(101))
    last = writer.put(b"b")
    with pytest.raises(RecordTooLargeError):
        writer.confirmed(last)
    with pytest.raises(RecordTooLargeError):
        writer.flush()
    writer.flush()
    writer.confirmed(writer.put(b"c"))
    writer.put(bytes(101))
    with pytest.raises(RecordTooLargeError):
        writer.close()
    with ns.stream("s").reader(tail=False) as reader:
        assert [record.payload for record in reader] == [b"a", b"b", b"c"]


def test_records_of_many_sizes_that_are_put_come_in_their_order(ns: Namespace) -> None:
    # Some fill an entry, and some fit only where a large one does not any more.
    sizes = [0, 1, 100, 100, 100, 65_000, 7, 40_000, 300, 65_535, 70_000, 20]
    payloads = [b"%d " % n + bytes(sizes[n % len(sizes)]) for n in range(600)]
    ns.create_stream("s")
    with ns.stream("s").writer() as writer:
        tickets = []
        for payload in payloads:
            while True:
                try:
                    tickets.append(writer.put(payload))
                    break
                except BackpressureError:
                    writer.drain()
        writer.confirmed(tickets[-1])
    with ns.stream("s").reader(tail=False) as reader:
        found = list(reader)
    assert [record.payload for record in found] == payloads
    assert [record.sequence_id for record in found] == list(range(len(payloads)))
