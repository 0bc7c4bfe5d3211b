"""The futures of the blocking twin are those of ``concurrent.futures``, made of fewer objects."""

from __future__ import annotations

import concurrent.futures
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from doubles.clusters import STORES, local_cluster
from quorumbook.errors import BackpressureError
from quorumbook.loop_thread import LoopFuture
from quorumbook.streams import StreamPolicy
from quorumbook.streams.errors import RecordTooLargeError
from quorumbook.sync.streams import Namespace
from quorumbook.testing import LocalCluster

PATIENCE_S = 60.0


cluster = local_cluster(STORES, scope="module")


@pytest.fixture
def ns(cluster: LocalCluster, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    with Namespace.open(f"{cluster.metadata_uri}#/{request.node.originalname}", bind=True) as made:
        yield made


def settled(result: int) -> LoopFuture[int]:
    future: LoopFuture[int] = LoopFuture()
    future.set_result(result)
    return future


def failed() -> LoopFuture[int]:
    future: LoopFuture[int] = LoopFuture()
    future.set_exception(ValueError("no"))
    return future


def test_a_settled_one_answers_at_once() -> None:
    future = settled(7)
    assert (future.done(), future.result(0), future.exception(0)) == (True, 7, None)
    assert "finished" in repr(future)
    assert not future.cancel()
    assert not future.cancelled()
    told: list[Any] = []
    future.add_done_callback(told.append)
    assert told == [future]
    with pytest.raises(concurrent.futures.InvalidStateError):
        future.set_result(8)


def test_one_that_failed_says_why() -> None:
    future = failed()
    assert future.done()
    with pytest.raises(ValueError, match="no"):
        future.result(0)
    assert isinstance(future.exception(0), ValueError)


def test_one_that_is_open_is_waited_for_and_cannot_be_cancelled() -> None:
    future: LoopFuture[int] = LoopFuture()
    assert not future.done()
    assert future.running()
    assert not future.cancel()
    with pytest.raises(TimeoutError):
        future.result(0.001)
    told: list[Any] = []
    future.add_done_callback(told.append)
    thread = threading.Timer(0.01, future.set_result, [3])
    thread.start()
    assert future.result(PATIENCE_S) == 3
    thread.join()
    assert told == [future]


@pytest.mark.parametrize("waits", ["wait", "as_completed", "result", "callback"])
def test_nobody_who_comes_while_it_is_settled_waits_in_vain(waits: str) -> None:
    for _ in range(200):
        futures: list[LoopFuture[int]] = [LoopFuture() for _ in range(10)]
        together = threading.Barrier(2)

        def settle(
            futures: list[LoopFuture[int]] = futures, together: threading.Barrier = together
        ) -> None:
            together.wait()
            for number, future in enumerate(futures):
                future.set_result(number)

        thread = threading.Thread(target=settle)
        thread.start()
        together.wait()
        if waits == "wait":
            done, left = concurrent.futures.wait(futures, PATIENCE_S)
            assert (len(done), len(left)) == (10, 0)
        elif waits == "as_completed":
            assert len(list(concurrent.futures.as_completed(futures, PATIENCE_S))) == 10
        elif waits == "callback":
            called: queue.SimpleQueue[object] = queue.SimpleQueue()
            for future in futures:
                future.add_done_callback(called.put)
            assert {called.get(timeout=PATIENCE_S) for _ in futures} == set(futures)
        assert [future.result(PATIENCE_S) for future in futures] == list(range(10))
        thread.join()


def test_each_future_is_told_of_its_own_record(ns: Namespace) -> None:
    ns.create_stream("s", policy=StreamPolicy(max_record_bytes=3 << 20))
    futures: dict[int, Any] = {}
    with ns.stream("s").writer(max_pending_records=64) as writer:
        for number in range(600):
            payload = b"%d " % number
            if number % 250 == 17:
                payload += bytes(2 << 20)  # in chunks
            while True:
                try:
                    if number % 3 == 0:
                        writer.put(payload)
                    elif number % 3 == 1:
                        futures[number] = writer.append_nowait(payload)
                    else:
                        futures[number] = writer.append_nowait(payload, key=b"%d" % number)
                except BackpressureError:
                    writer.drain()
                else:
                    break
        refused = writer.append_nowait(bytes(4 << 20))
        last = writer.append_nowait(b"600 ")
        with pytest.raises(RecordTooLargeError):
            refused.result(PATIENCE_S)
        futures[600] = last
        writer.flush()
        told = {number: future.result(0) for number, future in futures.items()}
    with ns.stream("s").reader(tail=False) as reader:
        records = {int(record.payload.split()[0]): record for record in reader}
    assert sorted(records) == list(range(601))
    for number, appended in told.items():
        record = records[number]
        assert (appended.position, appended.sequence_id) == (record.position, record.sequence_id)
        assert record.key == (b"%d" % number if number % 3 == 2 else None)


def test_what_cannot_be_encoded_takes_no_other_record_along(ns: Namespace) -> None:
    ns.create_stream("s")
    with ns.stream("s").writer() as writer:
        wrong: Any = "not bytes"
        futures = [
            writer.append_nowait(b"%d" % number, key=wrong if number % 50 == 20 else b"k")
            for number in range(100)
        ]
        for number, future in enumerate(futures):
            if number % 50 == 20:
                assert isinstance(future.exception(PATIENCE_S), TypeError)
            else:
                future.result(PATIENCE_S)
        ticket = writer.put(b"refused", key=wrong)
        writer.put(b"100")
        with pytest.raises(TypeError):
            writer.confirmed(ticket)
        with pytest.raises(TypeError):
            writer.flush()
    with ns.stream("s").reader(tail=False) as reader:
        stored = [int(record.payload) for record in reader]
    assert stored == [number for number in range(101) if number % 50 != 20]
