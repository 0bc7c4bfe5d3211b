"""The steps in which distributed appends appear and are cleaned up: what each of them guards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from quorumbook.client.context import client_store
from quorumbook.errors import ConfigError, MetadataUnavailableError, QuorumbookError
from quorumbook.metadata.store import Check, Create, Delete, MetadataStore, Operation, Set
from quorumbook.streams import Namespace
from quorumbook.streams.errors import (
    TransactionLostError,
    TransactionTooLargeError,
    WriterBusyError,
)
from quorumbook.streams.metadata.lock import StreamLock
from quorumbook.streams.stream_context import namespace_store, stream_context
from quorumbook.streams.transactions import (
    Application,
    Identity,
    Place,
    collect_orphans,
    commit,
)
from quorumbook.streams.transactions.commit import check_one_store
from quorumbook.testing import LocalCluster
from streams.transactions import application, ledger_ids, payloads, referenced, write


def is_commit(operations: Sequence[Operation]) -> bool:
    return isinstance(operations[0], Set) and any(isinstance(each, Delete) for each in operations)


class Pause:
    """Holds a process right before its commit's step."""

    def __init__(self, store: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.goes_on = asyncio.Event(), asyncio.Event()
        multi = store.multi

        async def held(operations: Sequence[Operation]) -> Any:
            if is_commit(operations):
                self.reached.set()
                await self.goes_on.wait()
            return await multi(operations)

        monkeypatch.setattr(store, "multi", held)


async def lose_lock(ns: Namespace, stream: str) -> None:
    """Be the metadata store that takes the locks of a session away."""
    # A rival is at the very nodes that it uses.
    path = stream_context(ns.stream(stream)).lock()._path
    for member in await namespace_store(ns).children(path):
        await namespace_store(ns).delete(f"{path}/{member}")


@pytest.mark.parametrize("who", ["gc_orphans", "second_driver", "both"])
async def test_a_driver_paused_before_its_step_changes_nothing_when_it_goes_on(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    await ns.create_stream("s")
    paused = await application(ns, "r1")
    results = [await write(paused, 0, part, {"s": [b"%d" % part]}) for part in range(2)]
    pause = Pause(namespace_store(ns), monkeypatch)
    committing = asyncio.create_task(paused.commit(0, results))
    await pause.reached.wait()
    await lose_lock(other, "s")
    if who != "second_driver":
        await collect_orphans(Place(other.client, other, attempt_ttl_s=0))
    if who != "gc_orphans":
        second = await application(other, "r2")
        again = [await write(second, 0, part, {"s": [b"%d" % part]}) for part in range(2)]
        await second.commit(0, again)
    pause.goes_on.set()
    with pytest.raises(TransactionLostError):
        await committing
    await paused.abort(0)
    expected = [] if who == "gc_orphans" else [b"0", b"1"]
    assert await payloads(other, "s") == expected
    assert await ledger_ids(ns.client) == await referenced(ns, "s")
    # Whoever starts the query again writes it, once.
    third = await application(ns, "r3")
    if not await third.is_committed(0):
        await third.commit(0, [await write(third, 0, 0, {"s": [b"0", b"1"]})])
    assert await payloads(other, "s") == [b"0", b"1"]


async def test_a_paused_driver_leaves_a_segment_alone_that_a_writer_has_begun(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ns.create_stream("s")
    app = await application(ns)
    result = await write(app, 0, 0, {"s": [b"row"]})
    pause = Pause(namespace_store(ns), monkeypatch)
    committing = asyncio.create_task(app.commit(0, [result]))
    await pause.reached.wait()
    await lose_lock(other, "s")
    async with other.stream("s").writer() as writer:
        await writer.append(b"first")
        pause.goes_on.set()
        with pytest.raises(WriterBusyError, match="in progress"):
            await committing
        await writer.append(b"second")
    assert await payloads(other, "s") == [b"first", b"second"]
    await app.commit(0, [result])
    assert await payloads(other, "s") == [b"first", b"second", b"row"]


async def test_an_attempt_that_was_cleaned_up_makes_no_ledger_any_more(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ns.create_stream("s")
    app = await application(ns)
    create = ns.client.create_ledger

    async def late(**options: Any) -> Any:
        await collect_orphans(Place(other.client, other, attempt_ttl_s=0))
        return await create(**options)

    monkeypatch.setattr(ns.client, "create_ledger", late)
    with pytest.raises(TransactionLostError, match="cleaned up"):
        await write(app, 0, 0, {"s": [b"x"]})
    assert await ledger_ids(ns.client) == set()


@pytest.mark.parametrize("how", ["abort", "gc_orphans"])
async def test_a_deletion_is_first_one_step_that_checks_the_head_and_then_the_ledgers(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    await ns.create_stream("s")
    app = await application(ns)
    await app.commit(0, [await write(app, 0, 0, {"s": [b"there"]})])
    results = [await write(app, 1, part, {"s": [b"x"]}) for part in range(2)]
    _, revision = await app._nodes.read_head()  # a rival is at the very nodes that it uses
    done: list[Any] = []
    multi, delete_ledger = namespace_store(ns).multi, ns.client.delete_ledger

    async def stepping(operations: Sequence[Operation]) -> Any:
        done.append(list(operations))
        return await multi(operations)

    async def deleting(ledger_id: int) -> None:
        done.append(ledger_id)
        await delete_ledger(ledger_id)

    monkeypatch.setattr(namespace_store(ns), "multi", stepping)
    monkeypatch.setattr(ns.client, "delete_ledger", deleting)
    if how == "abort":
        await app.abort(1)
    else:
        await collect_orphans(Place(ns.client, ns, attempt_ttl_s=0))
    for result in results:
        (step,) = (
            number
            for number, each in enumerate(done)
            if isinstance(each, list) and any(str(result.name) in one.path for one in each)
        )
        check, delete, create = done[step]
        # A rival is at the very nodes that it uses.
        assert check == Check(app._nodes.path, *revision)
        assert isinstance(delete, Delete)
        assert isinstance(create, Create)
        assert [done.index(draft.ledger_id) > step for draft in result.drafts] == [True]
    assert await payloads(ns, "s") == [b"there"]
    assert await ledger_ids(ns.client) == await referenced(ns, "s")


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_commit_whose_answer_is_lost_is_there_once(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch, *, is_done: bool
) -> None:
    await ns.create_stream("s")
    app = await application(ns)
    result = await write(app, 0, 0, {"s": [b"row"]})
    multi, lost = namespace_store(ns).multi, 0

    async def losing(operations: Sequence[Operation]) -> Any:
        nonlocal lost
        if not is_commit(operations) or lost:
            return await multi(operations)
        lost += 1
        if is_done:
            await multi(operations)
        raise MetadataUnavailableError("nobody answers")

    monkeypatch.setattr(namespace_store(ns), "multi", losing)
    done = await app.commit(0, [result])
    assert (lost, done.record_count) == (1, 1)
    assert await payloads(ns, "s") == [b"row"]
    assert (await app.commit(0, [result])).was_there


async def test_a_head_that_was_put_back_is_found_out(ns: Namespace) -> None:
    app = await application(ns)
    with pytest.raises(TransactionLostError, match="was put back"):
        await app.commit(0, [app.skipped(0, 0, 0)])


@pytest.mark.parametrize("held", ["", "a", "c"])
async def test_locks_are_taken_together_or_in_the_order_of_names(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch, held: str
) -> None:
    names = ["b", "a/z", "c", "a"]
    for name in names:
        await ns.create_stream(name)
    app = await application(ns)
    written = await write(app, 0, 0, {name: [b"x"] for name in names})
    rival = stream_context(other.stream(held)).lock() if held else None
    if rival is not None:
        await rival.acquire()
    # A rival is at the very nodes that it uses.
    of_path = {stream_context(ns.stream(name)).lock()._path: name for name in names}
    together, one_by_one = [], []
    acquire, acquire_together = StreamLock.acquire, commit.acquire_together

    async def noting_all(locks: Sequence[StreamLock]) -> bool:
        together.extend(of_path[lock._path] for lock in locks)  # a rival is at the very nodes
        return await acquire_together(locks)

    async def noting(lock: StreamLock, **options: Any) -> None:
        name = of_path[lock._path]  # the same
        owners = [await stream_context(other.stream(each)).lock().owner() for each in names]
        assert sum(map(bool, owners)) == len(one_by_one) + (rival is not None and rival.is_held)
        if name == held and rival is not None:
            await rival.release()
        one_by_one.append(name)
        await acquire(lock, **options)

    monkeypatch.setattr(commit, "acquire_together", noting_all)
    monkeypatch.setattr(StreamLock, "acquire", noting)
    await app.commit(0, [written])
    assert sorted(together) == sorted(names)
    assert one_by_one == (sorted(names) if held else [])
    assert [await stream_context(ns.stream(name)).lock().owner() for name in names] == [""] * 4


async def test_two_drivers_that_commit_to_the_same_streams_both_get_there(
    ns: Namespace, other: Namespace
) -> None:
    names = [f"s{number}" for number in range(8)]
    for name in names:
        await ns.create_stream(name)

    async def commit_all(of: Namespace, application_name: str, order: list[str]) -> None:
        app = Application(Place(of.client, of), application_name, Identity("q", "r"))
        await app.prepare()
        for batch in range(5):
            rows = {name: [f"{application_name}{batch}".encode()] for name in order}
            await app.commit(batch, [await write(app, batch, 0, rows)])

    await asyncio.gather(commit_all(ns, "one", names), commit_all(other, "two", names[::-1]))
    for name in names:
        found = await payloads(ns, name)
        for each in ("one", "two"):
            assert [row for row in found if row.startswith(each.encode())] == [
                f"{each}{batch}".encode() for batch in range(5)
            ]


async def test_a_step_larger_than_a_request_may_be_is_refused_before_it_is_made(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ns.create_stream("s")
    app = await application(ns)
    results = [await write(app, 0, part, {"s": [b"x"]}) for part in range(3)]
    with monkeypatch.context() as smaller:
        smaller.setattr("quorumbook.streams.transactions.commit._MAX_REQUEST_BYTES", 500)
        with pytest.raises(TransactionTooLargeError, match=r"500.*target=ledger"):
            await app.commit(0, results)
    assert await payloads(ns, "s") == []
    await app.commit(0, results)
    assert await payloads(ns, "s") == [b"x"] * 3


def test_one_step_never_spans_two_metadata_stores() -> None:
    here, there = SimpleNamespace(uri="zk://a/ledgers"), SimpleNamespace(uri="zk://b/ledgers")
    check_one_store(here, [SimpleNamespace(store=here)])  # type: ignore[arg-type,list-item]
    with pytest.raises(ConfigError, match=r"application is in zk://a.*streams are in zk://b"):
        check_one_store(here, [SimpleNamespace(store=there)])  # type: ignore[arg-type,list-item]


async def test_ledgers_of_rows_of_two_drivers_are_those_of_one(cluster: LocalCluster) -> None:
    async with cluster.connect() as bk, cluster.connect() as bk2:
        first = Application(Place(bk), "rows", Identity("q", "r1"))
        second = Application(Place(bk2), "rows", Identity("q", "r2"))
        await first.prepare()
        mine = [await write(first, 0, part, {"": [b"%d" % part]}) for part in range(2)]
        theirs = [await write(second, 0, part, {"": [b"%d" % part]}) for part in range(2)]
        await second.commit(0, theirs)
        with pytest.raises(TransactionLostError, match="another run"):
            await first.commit(0, mine)
        await first.abort(0)
        await collect_orphans(Place(bk, attempt_ttl_s=0))
        found = [each.ledger_id async for each in first.ledgers()]
        assert found == [draft.ledger_id for each in theirs for draft in each.drafts]
        manifest = (await first.head()).manifest
        assert await ledger_ids(bk) == {*found, manifest}


async def test_a_paused_drivers_ledgers_of_rows_do_not_take_the_place_of_anothers(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster.connect() as bk, cluster.connect() as bk2:
        paused = Application(Place(bk), "rows", Identity("q", "r1"))
        second = Application(Place(bk2), "rows", Identity("q", "r2"))
        await paused.prepare()
        mine = [await write(paused, 0, 0, {"": [b"row"]})]
        theirs = [await write(second, 0, 0, {"": [b"row"]})]
        pause = Pause(client_store(bk), monkeypatch)
        committing = asyncio.create_task(paused.commit(0, mine))
        await pause.reached.wait()

        async def dies(**_: Any) -> Any:
            raise QuorumbookError("killed before it cleaned up")

        # A rival is at the very nodes that it uses.
        monkeypatch.setattr(second._orphans, "sweep", dies)
        await second.commit(0, theirs)
        pause.goes_on.set()
        with pytest.raises(TransactionLostError, match="another run"):
            await committing
        found = [each.ledger_id async for each in second.ledgers()]
        assert found == [draft.ledger_id for each in theirs for draft in each.drafts]
