"""What a child made by fork may do with its parent's client: be told so, at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest

import quorumbook.sync
from doubles.forks import FORKED, each_in_child, in_child
from doubles.inside import channels_of
from doubles.mock_bookie import PATIENCE_S, MockCluster, mock_cluster
from doubles.waiting import until
from quorumbook.env import forks
from quorumbook.errors import BackpressureError
from quorumbook.metadata.uri import open_store

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Handles:
    """What the parent has open when it forks."""

    def __init__(self, cluster: MockCluster, bk: Any, writer: Any, full: Any, reader: Any) -> None:
        self.cluster, self.bk = cluster, bk
        self.writer, self.full, self.reader = writer, full, reader

    def requests(self) -> int:
        return sum(len(bookie.requests) for bookie in self.cluster.bookies)


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[Handles]:
    """A client with a writer, one whose window is full, and a reader that follows."""
    async with mock_cluster() as cluster, cluster.connect(lac_delay_s=0, add_timeout_s=120.0) as bk:
        writer = await bk.create_ledger()
        await writer.append_batch_nowait([b"x"] * 3)
        reader = await bk.open_ledger(writer.id, recover=False)
        full = await bk.create_ledger(max_pending_entries=2)
        for bookie in cluster.bookies:
            bookie.hold_adds()
        full.append_batch_nowait([b"y"] * 2)
        await until(lambda: all(bookie.entry_ids(full.id) for bookie in cluster.bookies))
        yield Handles(cluster, bk, writer, full, reader)
        for bookie in cluster.bookies:
            bookie.release_adds()
        assert await writer.append(b"the parent goes on") == 3
        assert await full.append(b"and so does this") == 2
        await full.flush()
        await reader.close()
        assert [bookie.connection_count for bookie in cluster.bookies] == [2, 2, 2]


async def items_of(iteration: Any) -> list[Any]:
    return [item async for item in iteration]


OF_ASYNCIO: dict[str, Callable[[Handles], Any]] = {
    "append": lambda it: it.writer.append(b"z"),
    "append to a full window": lambda it: it.full.append(b"z"),
    "append_nowait": lambda it: it.writer.append_nowait(b"z"),
    "append_batch_nowait": lambda it: it.writer.append_batch_nowait([b"z"]),
    "drain": lambda it: it.full.drain(),
    "flush": lambda it: it.full.flush(),
    "publish": lambda it: it.writer.flush(),
    "force": lambda it: it.writer.force(),
    "close": lambda it: it.full.close(),
    "abort": lambda it: it.full.abort(),
    "read": lambda it: items_of(it.reader.read()),
    "read_entry": lambda it: it.reader.read_entry(0),
    "read_batch": lambda it: it.reader.read_batch(0),
    "read_unconfirmed": lambda it: items_of(it.reader.read_unconfirmed(0, 0)),
    "tail": lambda it: items_of(it.reader.tail()),
    "read_last_add_confirmed": lambda it: it.reader.read_last_add_confirmed(),
    "create_ledger": lambda it: it.bk.create_ledger(),
    "open_ledger": lambda it: it.bk.open_ledger(0),
    "delete_ledger": lambda it: it.bk.delete_ledger(0),
    "ledger_metadata": lambda it: it.bk.ledger_metadata(0),
    "reserve_ledger_id": lambda it: it.bk.reserve_ledger_id(),
    "list_ledgers": lambda it: items_of(it.bk.list_ledgers()),
    "bookies": lambda it: it.bk.bookies(),
    "start": lambda it: it.bk.start(),
    "election": lambda it: it.bk.election("x"),
}


async def test_a_child_is_told_to_connect_again_whatever_it_does() -> None:
    async with opened() as handles:
        before = handles.requests()

        def work(begin: Callable[[Handles], Any]) -> Any:
            async def run() -> Any:
                outcome = begin(handles)
                return await outcome if hasattr(outcome, "__await__") else outcome

            return asyncio.run(run())

        told = each_in_child([partial(work, begin) for begin in OF_ASYNCIO.values()])
        assert dict(zip(OF_ASYNCIO, told, strict=True)) == dict.fromkeys(OF_ASYNCIO, FORKED)
        await asyncio.sleep(0)
        assert handles.requests() == before


async def test_closing_in_a_child_lets_go_without_a_word_to_anybody() -> None:
    async with opened() as handles:
        before = handles.requests()

        async def run() -> str:
            await handles.reader.close()
            await handles.bk.close()
            return "closed"

        assert in_child(lambda: asyncio.run(run())) == "'closed'"
        assert handles.requests() == before


async def test_what_was_pending_when_a_process_was_forked_fails_in_the_child() -> None:
    async with opened() as handles:
        # The fork comes while another thread has the lock, or a request is under way.
        future = handles.full._adds._pending.oldest.future
        assert in_child(future.exception) == repr(forks.forked_error())
        assert not future.done()


async def test_a_child_cannot_write_into_its_parents_connections() -> None:
    async with opened() as handles:
        channels = channels_of(handles.bk)
        # The fork comes while another thread has the lock, or a request is under way.
        sockets = [c._stream.transport.get_extra_info("socket") for c in channels]
        before = handles.requests()

        def work() -> str:
            for shared in sockets:
                with contextlib.suppress(OSError):
                    os.write(shared.fileno(), b"garbage" * 100)
            return "wrote"

        assert in_child(work) == "'wrote'"
        assert handles.requests() == before


@pytest.mark.parametrize("scheme", ["sqlite", "memory"])
async def test_a_store_of_the_parent_refuses_what_a_child_asks(tmp_path, scheme: str) -> None:
    uri = "memory://forked" if scheme == "memory" else f"sqlite:///{tmp_path}/metadata.db"
    store = await open_store(uri, create=True)
    try:

        async def ask() -> None:
            await store.exists("/ledgers")

        assert in_child(lambda: asyncio.run(ask())) == FORKED
        await store.exists("/ledgers")
    finally:
        await store.close()


async def test_a_child_that_connects_again_works_while_its_parent_does(tmp_path) -> None:
    store_uri = f"sqlite:///{tmp_path}/metadata.db"
    store = await open_store(store_uri, create=True)
    await store.create("/mine", b"1")

    async def again() -> bytes:
        own = await open_store(store_uri)
        try:
            return (await own.get("/mine")).data
        finally:
            await own.close()

    assert in_child(lambda: asyncio.run(again())) == "b'1'"
    await store.close()


# The blocking twin ---------------------------------------------------------------------------


@contextlib.contextmanager
def blocking() -> Iterator[Handles]:
    """The same with the blocking twin; the bookies are on a loop of their own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(PATIENCE_S)

    async def call(work: Callable[[], Any]) -> Any:
        return work()

    cluster = MockCluster()
    run(cluster.__aenter__())
    run(cluster.add(3))
    try:
        with quorumbook.sync.connect(
            cluster.metadata_uri, lac_delay_s=0, add_timeout_s=120.0
        ) as bk:
            writer = bk.create_ledger()
            writer.append_batch_nowait([b"x"] * 3).result(PATIENCE_S)
            reader = bk.open_ledger(writer.id, recover=False)
            full = bk.create_ledger(max_pending_entries=2)
            run(call(lambda: [bookie.hold_adds() for bookie in cluster.bookies]))
            handles = Handles(cluster, bk, writer, full, reader)
            handles.pending = [full.append_nowait(b"y"), full.append_nowait(b"y")]
            handles.done = writer.append_batch_nowait([])
            run(until(lambda: len(cluster.bookies[0].entry_ids(full.id)) == 2))
            yield handles
            run(call(lambda: [bookie.release_adds() for bookie in cluster.bookies]))
            assert [future.result(PATIENCE_S) for future in handles.pending] == [0, 1]
            assert writer.append(b"the parent goes on") == 3
            assert full.append(b"and so does this") == 2
            reader.close()
    finally:
        run(cluster.__aexit__(None, None, None))
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        loop.close()


OF_BLOCKING: dict[str, Callable[[Any], Any]] = {
    "append": lambda it: it.writer.append(b"z"),
    "append to a full window": lambda it: it.full.append(b"z"),
    "append_nowait": lambda it: it.writer.append_nowait(b"z"),
    "append_nowait to a full window": lambda it: it.full.append_nowait(b"z"),
    "append_batch_nowait": lambda it: it.writer.append_batch_nowait([b"z"]),
    "append_at": lambda it: it.writer.append_at(7, b"z"),
    "append_at_nowait": lambda it: it.writer.append_at_nowait(7, b"z"),
    "drain": lambda it: it.full.drain(),
    "flush": lambda it: it.full.flush(),
    "publish": lambda it: it.writer.flush(),
    "force": lambda it: it.writer.force(),
    "last_add_pushed": lambda it: it.writer.last_add_pushed,
    "close": lambda it: it.full.close(),
    "abort": lambda it: it.full.abort(),
    "result": lambda it: it.pending[0].result(),
    "exception": lambda it: it.pending[0].exception(),
    "add_done_callback": lambda it: it.pending[0].add_done_callback(print),
    "read": lambda it: list(it.reader.read()),
    "read_entry": lambda it: it.reader.read_entry(0),
    "read_batch": lambda it: it.reader.read_batch(0),
    "tail": lambda it: list(it.reader.tail()),
    "read_last_add_confirmed": lambda it: it.reader.read_last_add_confirmed(),
    "close the reader": lambda it: it.reader.close(),
    "create_ledger": lambda it: it.bk.create_ledger(),
    "open_ledger": lambda it: it.bk.open_ledger(0),
    "delete_ledger": lambda it: it.bk.delete_ledger(0),
    "list_ledgers": lambda it: list(it.bk.list_ledgers()),
    "bookies": lambda it: it.bk.bookies(),
    "close the client": lambda it: it.bk.close(),
}


def test_a_child_is_told_to_connect_again_whatever_it_does_with_the_blocking_twin() -> None:
    with blocking() as handles:
        before = handles.requests()
        told = each_in_child([partial(work, handles) for work in OF_BLOCKING.values()])
        assert dict(zip(OF_BLOCKING, told, strict=True)) == dict.fromkeys(OF_BLOCKING, FORKED)
        assert in_child(handles.done.result) == repr(range(3, 3))
        assert handles.requests() == before


def test_a_lock_that_another_thread_held_during_the_fork_hangs_nobody() -> None:
    with blocking() as handles:
        # The fork comes while another thread has the lock, or a request is under way.
        with handles.writer._lock, handles.full._lock:
            told = each_in_child(
                [
                    partial(work, handles)
                    for name, work in OF_BLOCKING.items()
                    if "append" in name or name == "drain"
                ]
            )
        assert set(told) == {FORKED}


def test_a_full_window_refuses_a_child_by_the_fork_and_not_by_the_lack_of_room() -> None:
    with blocking() as handles:
        with pytest.raises(BackpressureError):
            handles.full.append_nowait(b"z")
        assert in_child(lambda: handles.full.append_nowait(b"z")) == FORKED


def test_a_child_of_a_process_with_a_blocking_client_makes_its_own() -> None:
    with blocking() as handles:

        def work() -> Any:
            # What the parent's bookies have in memory is copied, but nobody serves it here.
            with quorumbook.sync.connect(handles.cluster.metadata_uri) as bk:
                return bk.ledger_metadata(handles.writer.id).ensemble_size

        assert in_child(work) == "3"
