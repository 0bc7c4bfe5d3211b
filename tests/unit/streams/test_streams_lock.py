"""The lock of a stream: whoever does not have it leaves no place in its queue behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from doubles.waiting import until
from quorumbook.env import Env
from quorumbook.errors import MetadataUnavailableError
from quorumbook.metadata import nodes
from quorumbook.metadata.memory import MemoryStore, MemoryTree
from quorumbook.streams.errors import StreamNotFoundError, WriterBusyError
from quorumbook.streams.metadata.lock import StreamLock, acquire_together, release_together

PATH = "/lock"
PATIENCE_S = 30.0


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    store = MemoryStore(MemoryTree(), Env())
    await store.create(PATH, b"")
    yield store
    await store.close()


def candidate(store: MemoryStore, client_id: str) -> StreamLock:
    return StreamLock(store, PATH, client_id, StreamNotFoundError)


class Silence:
    """Carries out one request of a kind and says nothing of it, nor of others until its end."""

    def __init__(self, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        self.begins_at = kind
        self.begun = asyncio.Event()
        self.is_over = False
        monkeypatch.setattr(nodes, "_GIVE_UP_AGAIN_S", 0.001)
        for each in "create", "children", "delete", "multi":
            monkeypatch.setattr(store, each, partial(self._ask, each, getattr(store, each)))

    async def _ask(self, kind: str, request: Any, *arguments: Any, **options: Any) -> Any:
        if self.begun.is_set() and not self.is_over:
            raise MetadataUnavailableError("no answer")
        answer = await request(*arguments, **options)
        if kind != self.begins_at or self.is_over:
            return answer
        self.begun.set()
        await asyncio.sleep(0)  # whoever is to be cancelled is, here
        raise MetadataUnavailableError("no answer")

    async def fall_on(self, acquiring: Coroutine[Any, Any, Any], *, is_cancelled: bool) -> None:
        """Have somebody meet it, who may be cancelled where the answer would come."""
        task = asyncio.ensure_future(acquiring)
        await self.begun.wait()
        if is_cancelled:
            task.cancel()
        with pytest.raises((MetadataUnavailableError, asyncio.CancelledError)):
            await task
        assert task.cancelled() is is_cancelled


async def test_late_news_of_a_session_leaves_no_place_of_the_next_one(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
):
    """A process that stood still hears of its session's end when it has a place in the next."""
    news: list[Callable[[], None]] = []
    children = store.children

    def listen(callback: Callable[[], None]) -> Callable[[], None]:
        news.append(callback)
        return lambda: None

    async def tell_first(path: str, *others: Any) -> list[str]:
        if news:
            news.pop()()
        return await children(path, *others)

    monkeypatch.setattr(store, "on_session_expired", listen)
    monkeypatch.setattr(store, "children", tell_first)
    lock = candidate(store, "me")
    await lock.acquire(wait_s=0.5)
    assert lock.is_held
    assert len(await children(PATH)) == 1


async def test_a_place_is_given_up_when_the_store_hears_of_it_at_last(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(nodes, "_GIVE_UP_AGAIN_S", 0.001)
    delete, lost = store.delete, []

    async def lose(path: str, *others: Any) -> None:
        if len(lost) < 2:
            lost.append(path)
            raise MetadataUnavailableError("the connection was lost")
        await delete(path, *others)

    monkeypatch.setattr(store, "delete", lose)
    lock, other = candidate(store, "me"), candidate(store, "other")
    await lock.acquire()
    await lock.release()
    await other.acquire(wait_s=PATIENCE_S)
    assert other.is_held
    assert len(set(lost)) == 1


async def test_who_waited_for_nothing_leaves_although_the_store_does_not_say_who_has_it(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
):
    holder, lock = candidate(store, "holder"), candidate(store, "me")
    await holder.acquire()
    children, asked = store.children, []

    async def say_once(path: str, *others: Any) -> list[str]:
        asked.append(path)
        if len(asked) > 1:
            raise MetadataUnavailableError("the connection was lost")
        return await children(path, *others)

    monkeypatch.setattr(store, "children", say_once)
    with pytest.raises(MetadataUnavailableError):
        await lock.acquire(wait_s=0.01)
    assert len(await children(PATH)) == 1


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_a_place_of_which_nobody_heard_is_given_up(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
):
    silence = Silence(store, monkeypatch, "create")
    await silence.fall_on(candidate(store, "me").acquire(), is_cancelled=is_cancelled)
    silence.is_over = True
    await candidate(store, "other").acquire(wait_s=PATIENCE_S)


@pytest.mark.parametrize("is_cancelled", [True, False])
async def test_places_made_together_of_which_nobody_heard_are_given_up(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
):
    await store.create("/second", b"")
    second = StreamLock(store, "/second", "me", StreamNotFoundError)
    silence = Silence(store, monkeypatch, "multi")
    locks = [candidate(store, "me"), second]
    await silence.fall_on(acquire_together(locks), is_cancelled=is_cancelled)
    silence.is_over = True
    for path in PATH, "/second":
        other = StreamLock(store, path, "other", StreamNotFoundError)
        await other.acquire(wait_s=PATIENCE_S)


@pytest.mark.parametrize("kind", ["create", "children"], ids=["unheard-of", "known"])
async def test_nobody_is_beaten_by_its_own_earlier_place(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, kind: str
):
    """As a writer that lost its session takes its lock again."""
    lock = candidate(store, "me")
    silence = Silence(store, monkeypatch, "create")
    if kind == "children":
        silence.begins_at = ""
        create = store.create

        async def create_then_hear_nothing(*arguments: Any, **options: Any) -> str:
            silence.begins_at = "children"
            return await create(*arguments, **options)

        monkeypatch.setattr(store, "create", create_then_hear_nothing)
    await silence.fall_on(lock.acquire(), is_cancelled=False)
    with pytest.raises(MetadataUnavailableError):
        await lock.acquire()
    silence.is_over = True

    async def is_acquired() -> bool:
        try:
            await lock.acquire()
        except MetadataUnavailableError:
            return False
        return True

    await until(is_acquired)
    await until(lambda: not store.env.late_tasks)  # what gives places up has to let this one alone
    assert len(await store.children(PATH)) == 1
    assert await lock.owner() == "me"


@pytest.mark.parametrize("count", [1, 2])
async def test_whose_release_is_cancelled_leaves_all_the_same(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, count: int
):
    """Before the store hears of it, when it has, and in between."""
    paths = [f"{PATH}/{number}" for number in range(count)]
    for path in paths:
        await store.create(path, b"")
    for turns in range(5):
        locks = [StreamLock(store, path, "me", StreamNotFoundError) for path in paths]
        for lock in locks:
            await lock.acquire()
        release = locks[0].release() if count == 1 else release_together(locks)
        task = asyncio.ensure_future(release)
        for _ in range(turns):
            await asyncio.sleep(0)
        if turns:  # otherwise it has not begun, and all is as it was
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for path in paths:
            other = StreamLock(store, path, "other", StreamNotFoundError)
            await other.acquire(wait_s=PATIENCE_S)
            await other.release()


async def test_who_does_not_get_the_lock_is_not_told_of_sessions(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that tries for days would keep a candidate for each time."""
    listening: set[object] = set()
    listen = store.on_session_expired

    def noting(callback: Callable[[], None]) -> Callable[[], None]:
        forget, token = listen(callback), object()
        listening.add(token)

        def forgotten() -> None:
            listening.discard(token)
            forget()

        return forgotten

    monkeypatch.setattr(store, "on_session_expired", noting)
    owner = candidate(store, "owner")
    await owner.acquire()
    for wait_s in 0, 0.001:
        with pytest.raises(WriterBusyError):
            await candidate(store, "rival").acquire(wait_s=wait_s)
    assert not await acquire_together([candidate(store, "another")])
    waiting = asyncio.create_task(candidate(store, "patient").acquire(wait_s=None))
    await until(lambda: len(listening) == 2)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(listening) == 1
    await owner.release()
    assert not listening
