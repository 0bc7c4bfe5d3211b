"""The blocking twin: same names, same promises, on a thread of its own."""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import quorumbook
import quorumbook.sync
from doubles.mock_bookie import PATIENCE_S, MockCluster
from doubles.waiting import until
from quorumbook.client.options import ClientOptions
from quorumbook.errors import (
    BackpressureError,
    ClusterNotInitializedError,
    LedgerClosedError,
    LedgerFencedError,
    LocalProtocolError,
    NoSuchLedgerInMetadataError,
    RequestTimeoutError,
)
from quorumbook.ledger.metadata import LedgerState
from quorumbook.protocol.requests import AddRun
from quorumbook.sync.twin import unwrapped

#: Polars and DuckDB ask in threads of their own, so only the blocking side can answer them.
_ONLY_BLOCKING = {"scan", "arrow_reader"}


class Mocks:
    """Mock bookies on a loop of their own, driven from the test's thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.cluster = MockCluster()

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def until(self, condition: Any) -> None:
        self.run(until(condition))

    def call(self, function: Any) -> None:
        async def work() -> None:
            function()

        self.run(work())

    def connect(self, **options: Any) -> quorumbook.sync.BookKeeper:
        return quorumbook.sync.connect(self.cluster.metadata_uri, **options)

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def mocks() -> Iterator[Mocks]:
    mocks = Mocks()
    mocks.run(mocks.cluster.__aenter__())
    mocks.run(mocks.cluster.add(3))
    try:
        yield mocks
    finally:
        mocks.run(mocks.cluster.__aexit__())
        mocks.stop()


def public(kind: type) -> dict[str, Any]:
    return {
        name: value
        for name in dir(kind)
        if not name.startswith("_")
        for value in [inspect.getattr_static(kind, name)]
    }


@pytest.mark.parametrize("name", ["BookKeeper", "LedgerWriter", "LedgerReader"])
def test_both_twins_have_the_same_names_and_parameters(name: str) -> None:
    ours, theirs = public(getattr(quorumbook.sync, name)), public(getattr(quorumbook, name))
    assert ours.keys() - _ONLY_BLOCKING == theirs.keys()
    for member, value in theirs.items():
        assert type(ours[member]) is type(value), member
        if not isinstance(value, property):
            want = inspect.signature(value).parameters
            have = inspect.signature(ours[member]).parameters
            assert list(have) == list(want), member
            for parameter, expected in want.items():
                assert have[parameter].kind == expected.kind, (member, parameter)
                assert have[parameter].default == expected.default, (member, parameter)
            assert not inspect.iscoroutinefunction(ours[member])


def test_connect_has_the_same_parameters() -> None:
    want = inspect.signature(quorumbook.connect).parameters
    have = inspect.signature(quorumbook.sync.connect).parameters
    assert {n: (p.kind, p.default) for n, p in want.items()} == {
        n: (p.kind, p.default) for n, p in have.items()
    }


def test_entries_written_are_read(mocks: Mocks) -> None:
    with mocks.connect() as bk:
        with bk.create_ledger(custom_metadata={"a": b"b"}) as ledger:
            assert ledger.append_batch_nowait([]).result() == range(0)
            assert ledger.append(b"zero") == 0
            futures = [ledger.append_nowait(b"%d" % i) for i in range(1, 100)]
            many = ledger.append_batch_nowait([b"x", bytearray(b"y")])
            assert ledger.append_batch_nowait([]).result() == range(102, 102)
            assert [future.result() for future in futures] == list(range(1, 100))
            assert many.result() == range(100, 102)
            assert many.done()
            assert ledger.last_add_pushed == ledger.last_add_confirmed == 101
            assert ledger.length == 4 + sum(len(b"%d" % i) for i in range(1, 100)) + 2
            ledger.flush()
            assert ledger.pending_entries == 0
        assert ledger.is_closed
        wanted = [b"zero", *(b"%d" % i for i in range(1, 100)), b"x", b"y"]
        with bk.open_ledger(ledger.id) as reader:
            assert reader.is_closed
            assert [entry.payload for entry in reader.read()] == wanted
            assert [entry.payload for entry in reader.read(5, 7)] == wanted[5:8]
            assert [p for batch in reader.read_batches() for p in batch.payloads] == wanted
            assert [entry.entry_id for entry in reader.tail(99)] == [99, 100, 101]
            assert reader.read_last_add_confirmed() == 101
            assert reader.try_read_last_add_confirmed() == 101
            assert [e.payload for e in reader.read_unconfirmed(0, 1)] == wanted[:2]
            assert reader.metadata.state is LedgerState.CLOSED
        assert [m.ledger_id for m in bk.list_ledgers(custom_metadata={"a": b"b"})] == [ledger.id]
        assert list(bk.list_ledger_ids()) == [ledger.id]
        assert len(bk.bookies()[0]) == 3
        bk.delete_ledger(ledger.id)
        with pytest.raises(NoSuchLedgerInMetadataError):
            bk.ledger_metadata(ledger.id)


def test_a_ledger_is_claimed_and_its_writer_fenced(mocks: Mocks) -> None:
    with mocks.connect() as bk:
        ledger = bk.claim_unwritten_ledger(bk.create_unwritten_ledger())
        ledger.append(b"x")
        with bk.open_ledger(ledger.id) as reader:
            assert reader.last_add_confirmed == 0
        future = ledger.append_nowait(b"late")
        with pytest.raises(LedgerFencedError):
            future.result()
        assert isinstance(future.exception(), LedgerFencedError)
        with pytest.raises(LedgerFencedError):
            ledger.append_nowait(b"later")
        with pytest.raises(LedgerFencedError):
            ledger.append(b"later")
        with pytest.raises(LedgerFencedError):
            ledger.flush()
        with pytest.raises(LedgerFencedError):
            ledger.close()


def test_what_is_queued_while_the_loop_is_busy_goes_as_one_batch(mocks: Mocks) -> None:
    with mocks.connect(lac_delay_s=0) as bk:
        ledger = bk.create_ledger()
        ledger.append(b"first")
        gate = threading.Event()
        loop = ledger._loop_thread.loop  # the loop is held up
        loop.call_soon_threadsafe(gate.wait, PATIENCE_S)
        futures = [ledger.append_nowait(b"x") for _ in range(500)]
        gate.set()
        assert [future.result() for future in futures] == list(range(1, 501))
        bookie = mocks.cluster.bookies[0]
        mocks.until(lambda: len(bookie.entry_ids(ledger.id)) == 501)
        assert bookie.count(AddRun) < 10  # one write, cut by the network at most
        ledger.close()


def test_a_full_window_refuses_and_drain_waits(mocks: Mocks) -> None:
    with mocks.connect(max_pending_entries=5, lac_delay_s=0) as bk:
        ledger = bk.create_ledger()
        for bookie in mocks.cluster.bookies:
            mocks.call(bookie.hold_adds)
        futures = [ledger.append_nowait(b"x") for _ in range(5)]
        with pytest.raises(BackpressureError):
            ledger.append_nowait(b"x")
        with pytest.raises(BackpressureError):
            ledger.append_batch_nowait([b"x"])
        with pytest.raises(RequestTimeoutError):
            futures[0].result(0.01)
        mocks.until(lambda: all(b.count(AddRun) for b in mocks.cluster.bookies))
        results: list[int] = []
        threads = [
            threading.Thread(target=lambda: results.append(ledger.append(b"y"))) for _ in range(10)
        ]
        threads.append(threading.Thread(target=ledger.drain))
        for thread in threads:
            thread.start()
        for bookie in mocks.cluster.bookies:
            mocks.call(bookie.release_adds)
        for thread in threads:
            thread.join(PATIENCE_S)
        assert sorted(results) == list(range(5, 15))
        assert [future.result() for future in futures] == list(range(5))
        ledger.close()
        with pytest.raises(LedgerClosedError):
            ledger.append(b"late")
        with pytest.raises(LedgerClosedError):
            ledger.append_nowait(b"late")


def test_the_window_of_bytes_is_given_back(mocks: Mocks) -> None:
    with mocks.connect(max_pending_bytes=20_000, lac_delay_s=0) as bk:
        with bk.create_ledger() as ledger:
            for i in range(50):
                assert ledger.append(bytes(5000)) == i
            assert ledger.append(bytes(50_000)) == 50
            ledger.flush()
            assert ledger.pending_bytes == 0


def test_futures_call_back_on_success_and_failure(mocks: Mocks) -> None:
    with mocks.connect(lac_delay_s=0) as bk:
        ledger = bk.create_ledger()
        seen: list[Any] = []
        done = threading.Event()
        future = ledger.append_nowait(b"x")
        future.add_done_callback(lambda f: (seen.append(f.result()), done.set()))
        assert done.wait(PATIENCE_S)
        future.add_done_callback(lambda f: seen.append(f.done()))
        assert seen == [0, True]
        for bookie in mocks.cluster.bookies:
            mocks.call(bookie.hold_adds)
        many = ledger.append_batch_nowait([b"x"])
        done.clear()
        many.add_done_callback(lambda f: (seen.append(f.exception()), done.set()))
        ledger.abort()
        assert done.wait(PATIENCE_S)
        assert isinstance(seen[-1], LedgerClosedError)
        with pytest.raises(LedgerClosedError):
            many.result()


def test_entries_confirmed_before_the_failure_of_their_batch_are_told_as_such(
    mocks: Mocks,
) -> None:
    with mocks.connect(lac_delay_s=0) as bk:
        ledger = bk.create_ledger()
        batch = quorumbook.sync.futures.Batch(unwrapped(ledger))
        batch.payloads = [b"a", b"b", b"c"]
        batch.group = quorumbook.client.writing.pending.Group(batch.payloads, None, None)
        batch.group.first_entry_id, batch.group.resolved = 7, 2
        batch.settle(LedgerFencedError("fenced"))
        futures = [quorumbook.sync.AppendFuture(batch, i) for i in range(3)]
        assert [futures[0].result(), futures[1].result()] == [7, 8]
        with pytest.raises(LedgerFencedError):
            futures[2].result()
        assert quorumbook.sync.AppendBatchFuture(batch, 0, 2).result() == range(7, 9)
        with pytest.raises(LedgerFencedError):
            quorumbook.sync.AppendBatchFuture(batch, 1, 2).result()
        ledger.close()


def test_a_tail_follows_a_writer_on_another_thread(mocks: Mocks) -> None:
    with mocks.connect() as bk:
        ledger = bk.create_ledger()
        with bk.open_ledger(ledger.id, recover=False) as reader:
            got: list[bytes] = []
            thread = threading.Thread(
                target=lambda: got.extend(entry.payload for entry in reader.tail())
            )
            thread.start()
            for i in range(10):
                ledger.append(b"%d" % i)
            ledger.close()
            thread.join(PATIENCE_S)
        assert got == [b"%d" % i for i in range(10)]


def test_an_iteration_left_half_way_is_closed(mocks: Mocks) -> None:
    with mocks.connect(read_batch_bytes=200) as bk:
        with bk.create_ledger() as ledger:
            ledger.append_batch_nowait([b"payload"] * 100)
        with bk.open_ledger(ledger.id) as reader:
            for entry in reader.read():
                if entry.entry_id == 3:
                    break
            assert [e.entry_id for e in reader.read(98)] == [98, 99]


def test_errors_come_out_as_they_are(mocks: Mocks) -> None:
    with pytest.raises(ClusterNotInitializedError):
        quorumbook.sync.connect("memory://nobody-was-here").start()
    with mocks.connect() as bk:
        assert isinstance(bk.options, ClientOptions)
        with pytest.raises(NoSuchLedgerInMetadataError):
            bk.open_ledger(4711)
        with pytest.raises(TypeError):
            bk.create_ledger().append("text")  # type: ignore[arg-type]


def test_called_from_its_own_loop_it_says_so_instead_of_hanging(mocks: Mocks) -> None:
    with mocks.connect() as bk:
        with bk.create_ledger() as ledger:
            caught: list[BaseException] = []
            done = threading.Event()

            def misuse(future: Any) -> None:
                try:
                    ledger.flush()
                except LocalProtocolError as error:
                    caught.append(error)
                done.set()

            ledger.append_nowait(b"x").add_done_callback(misuse)
            assert done.wait(PATIENCE_S)
        assert "event loop" in str(caught[0])


def _in_child(uri: str, queue: Any, inherited: Any) -> None:
    try:
        inherited.append_nowait(b"x")
    except LocalProtocolError as error:
        queue.put(str(error))
    else:
        queue.put("no error")
    try:
        quorumbook.sync.connect(uri).start()
    except ClusterNotInitializedError:
        queue.put("a loop of its own")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_after_a_fork_the_child_is_told_to_connect_again(mocks: Mocks) -> None:
    with mocks.connect() as bk:
        with bk.create_ledger() as ledger:
            ledger.append(b"x")
            context = multiprocessing.get_context("fork")
            queue = context.Queue()
            child = context.Process(
                target=_in_child, args=("memory://not-there", queue, ledger), daemon=True
            )
            child.start()
            assert "fork" in queue.get(timeout=PATIENCE_S)
            assert queue.get(timeout=PATIENCE_S) == "a loop of its own"
            child.join(PATIENCE_S)
            assert ledger.append(b"the parent goes on") == 1


def test_an_append_whose_room_another_thread_takes_waits_on(mocks: Mocks, monkeypatch) -> None:
    with mocks.connect(max_pending_entries=2, lac_delay_s=0) as bk:
        with bk.create_ledger() as ledger:
            append_nowait, refusals = ledger.append_nowait, iter(range(3))

            def slower(payload: bytes) -> Any:
                for _ in refusals:
                    raise BackpressureError("the room is gone again")
                return append_nowait(payload)

            monkeypatch.setattr(ledger, "append_nowait", slower)
            assert ledger.append(b"x") == 0


def test_a_group_refused_gets_its_room_by_draining_and_one_too_large_is_told_so(
    mocks: Mocks,
) -> None:
    with mocks.connect(max_pending_entries=10, lac_delay_s=0) as bk:
        with bk.create_ledger() as ledger:
            mocks.call(lambda: [bookie.hold_adds() for bookie in mocks.cluster.bookies])
            ledger.append_batch_nowait([b"x"] * 8)
            with pytest.raises(BackpressureError):
                ledger.append_batch_nowait([b"y"] * 5)
            draining = threading.Thread(target=ledger.drain)
            draining.start()
            mocks.until(lambda: len(mocks.cluster.bookies[0].entry_ids(ledger.id)) == 8)
            assert draining.is_alive()
            mocks.call(lambda: [bookie.release_adds() for bookie in mocks.cluster.bookies])
            draining.join(PATIENCE_S)
            assert not draining.is_alive()
            assert ledger.append_batch_nowait([b"y"] * 5).result(PATIENCE_S) == range(8, 13)
            with pytest.raises(LocalProtocolError, match="max_pending_entries"):
                ledger.append_batch_nowait([b"z"] * 11)


_LEFT_OPEN = """
import atexit, sys
from quorumbook.testing import LocalCluster

cluster = LocalCluster(bookies=1)
cluster.__enter__()
bk = cluster.connect().start()
sizes = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
ledger = bk.create_ledger(**sizes)
ledger.append(b"x")
ledger.append(b"y")
reader = bk.open_ledger(ledger.id, recover=False)
entries = reader.read()
next(entries)
kept = [entries, bk, ledger, reader]
print("left open", flush=True)
"""


def test_a_program_that_leaves_everything_open_ends_all_the_same() -> None:
    process = subprocess.run(
        [sys.executable, "-c", _LEFT_OPEN],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert process.stdout == "left open\n"
    assert process.returncode == 0
    assert "Traceback" not in process.stderr
