"""A commit to many streams asks the metadata store little, and what it does at once is guarded."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest

from quorumbook.errors import MetadataUnavailableError
from quorumbook.metadata.store import MetadataStore, Operation, Set
from quorumbook.streams import Namespace
from quorumbook.streams.errors import StreamNotFoundError, TransactionLostError
from quorumbook.streams.metadata.lock import StreamLock, acquire_together, release_together
from quorumbook.streams.metadata.stream_nodes import StreamState
from quorumbook.streams.stream_context import namespace_store, stream_context
from quorumbook.streams.transactions import DraftOptions
from quorumbook.streams.writing.takeover import fence_together, take_over
from streams.transactions import application, ledger_ids, payloads

WRITES = frozenset(("create", "set", "delete", "multi"))


def count_requests(store: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counted: Counter[str] = Counter()
    is_inside = ContextVar("is_inside", default=False)

    async def counting(kind: str, call: Callable[..., Any], *words: Any, **options: Any) -> Any:
        counted[kind] += not is_inside.get()  # ZooKeeper's driver looks by its own ``get``
        token = is_inside.set(True)
        try:
            return await call(*words, **options)
        finally:
            is_inside.reset(token)

    for kind in "get", "exists", "children", "create", "set", "delete", "multi", "renew_session":
        monkeypatch.setattr(store, kind, partial(counting, kind, getattr(store, kind)))
    return counted


async def test_a_commit_to_many_streams_writes_as_often_as_one_to_few(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"s{number}" for number in range(16)]
    for name in names:
        await ns.create_stream(name)
    app = await application(ns)
    counted = count_requests(namespace_store(ns), monkeypatch)
    task, commit = [], []
    # The first batch, to all streams, has every one of them have a segment.
    for batch, count in enumerate((16, 4, 16)):
        writer = app.attempt(batch, 0, 0, DraftOptions(), 1000)
        counted.clear()
        await asyncio.gather(*(writer.append(name, [b"row"]) for name in names[:count]))
        result = await writer.finish()
        task.append(counted.copy())
        counted.clear()
        assert (await app.commit(batch, [result])).record_count == count
        commit.append(counted.copy())
    few, many = commit[1:]
    assert {kind: few[kind] for kind in WRITES} == {kind: many[kind] for kind in WRITES}
    assert few["renew_session"] == many["renew_session"]
    # Of each stream: its policy, four nodes and a segment's; lock once, segments twice.
    assert many["get"] - few["get"] == 12 * 6
    assert many["children"] - few["children"] == 12 * 3
    assert many["exists"] == few["exists"]
    # Of each stream: its policy and its last transaction id.
    assert task[2]["get"] - task[1]["get"] == 12 * 2
    assert await payloads(ns, "s0") == [b"row"] * 3


# Locks ---------------------------------------------------------------------------------------


async def locks_of(ns: Namespace, *names: str) -> list[StreamLock]:
    for name in names:
        await ns.create_stream(name, exist_ok=True)
    return [stream_context(ns.stream(name)).lock() for name in names]


async def owners(ns: Namespace, *names: str) -> list[bool]:
    return [bool(await stream_context(ns.stream(name)).lock().owner()) for name in names]


async def test_locks_are_held_together_or_none_is(ns: Namespace, other: Namespace) -> None:
    rival = (await locks_of(other, "b"))[0]
    await rival.acquire()
    locks = await locks_of(ns, "a", "b", "c")
    assert not await acquire_together(locks)
    assert not any(lock.is_held for lock in locks)
    assert await owners(other, "a", "b", "c") == [False, True, False]
    await rival.release()
    assert await acquire_together(locks)
    assert await owners(other, "a", "b", "c") == [True] * 3
    await release_together(locks)
    assert await owners(other, "a", "b", "c") == [False] * 3


async def test_who_was_before_us_after_all_leaves_nothing_of_ours(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It queued up between our look at the locks and our own places."""
    rival = (await locks_of(other, "b"))[0]
    locks = await locks_of(ns, "a", "b")
    store = namespace_store(ns)
    renew = store.renew_session

    async def late() -> int:
        monkeypatch.setattr(store, "renew_session", renew)
        await rival.acquire()
        return await renew()

    monkeypatch.setattr(store, "renew_session", late)
    assert not await acquire_together(locks)
    await rival.release()
    assert await owners(other, "a", "b") == [False, False]


@pytest.mark.parametrize("is_done", [True, False])
async def test_places_of_which_no_answer_tells_are_found(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch, is_done: bool
) -> None:
    locks = await locks_of(ns, "a", "b")
    store = namespace_store(ns)
    multi = store.multi

    async def losing(operations: Sequence[Operation]) -> Any:
        monkeypatch.setattr(store, "multi", multi)
        if is_done:
            await multi(operations)
        raise MetadataUnavailableError("the answer was lost")

    monkeypatch.setattr(store, "multi", losing)
    assert await acquire_together(locks)
    # Nothing else tells that a place of ours stays that nobody knows of.
    assert [len(await store.children(lock._path)) for lock in locks] == [1, 1]
    await release_together(locks)
    assert await owners(other, "a", "b") == [False, False]


async def test_who_is_cancelled_with_all_places_keeps_none(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = await locks_of(ns, "a", "b")
    store = namespace_store(ns)
    multi = store.multi
    task: asyncio.Task[bool]

    async def cancelling(operations: Sequence[Operation]) -> Any:
        monkeypatch.setattr(store, "multi", multi)
        made = await multi(operations)
        # The next thing that is waited for is over at once.
        asyncio.get_running_loop().call_soon(task.cancel)
        return made

    monkeypatch.setattr(store, "multi", cancelling)
    task = asyncio.ensure_future(acquire_together(locks))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await owners(other, "a", "b") == [False, False]


async def test_of_a_stream_that_is_not_there_no_lock_is_taken(
    ns: Namespace, other: Namespace
) -> None:
    locks = await locks_of(ns, "a")
    locks.append(stream_context(ns.stream("none")).lock())
    with pytest.raises(StreamNotFoundError):
        await acquire_together(locks)
    assert await owners(other, "a") == [False]


# Fences --------------------------------------------------------------------------------------


async def test_of_fences_together_each_has_its_epoch_though_a_rival_was_faster(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    contexts = []
    for name in "a", "b":
        await ns.create_stream(name)
        contexts.append(stream_context(ns.stream(name)))

    async def fence() -> list[StreamState | None]:
        return await fence_together(contexts, [await each.nodes.read_state() for each in contexts])

    fenced = await fence()
    before = [await take_over(each, state) for each, state in zip(contexts, fenced, strict=True)]
    assert [tail.epoch for tail in before] == [
        (await each.nodes.read_state()).allocation_version for each in contexts
    ]
    store = namespace_store(ns)
    multi = store.multi
    rivals = []

    async def slow(operations: Sequence[Operation]) -> Any:
        if all(isinstance(each, Set) for each in operations) and not rivals:
            rivals.append(await take_over(stream_context(other.stream("b"))))
        return await multi(operations)

    monkeypatch.setattr(store, "multi", slow)
    fenced = await fence()
    assert fenced == [None, None]
    tails = [await take_over(each, state) for each, state in zip(contexts, fenced, strict=True)]
    assert tails[0].epoch > before[0].epoch
    assert tails[1].epoch > rivals[0].epoch > before[1].epoch


async def test_a_ledger_made_after_the_look_at_the_attempt_is_looked_after_itself(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks are shared by those that ask before they begin, not by those that come behind."""
    for name in "a", "b":
        await ns.create_stream(name)
    app = await application(ns)
    writer = app.attempt(0, 0, 0, DraftOptions(), 1000)
    store = namespace_store(ns)
    exists = store.exists
    looked, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(path: str, *others: Any) -> Any:
        found = await exists(path, *others)
        if path.endswith(str(writer.name)) and not looked.is_set():
            looked.set()
            await goes_on.wait()
        return found

    monkeypatch.setattr(store, "exists", slow)
    first = asyncio.ensure_future(writer.append("a", [b"row"]))
    await looked.wait()
    # The ledger of the second stream is made, and the attempt cleaned up right before.
    record = writer._record  # what comes right before a ledger is made

    async def clean_up(ledger_id: int) -> None:
        await record(ledger_id)
        await store.delete(f"{app._nodes.attempts_path}/{writer.name}")  # as another driver does

    monkeypatch.setattr(writer, "_record", clean_up)
    second = asyncio.ensure_future(writer.append("b", [b"row"]))
    with pytest.raises(TransactionLostError):
        await asyncio.wait_for(second, 10)
    goes_on.set()
    await first
    await writer.give_up()
    assert len(await ledger_ids(ns.client)) == 1
