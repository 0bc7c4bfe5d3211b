"""The lock of a stream: whoever does not have it leaves no place in its queue behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from quorumbook.env import Env
from quorumbook.errors import MetadataUnavailableError
from quorumbook.metadata.memory import MemoryStore, MemoryTree
from quorumbook.streams.errors import StreamNotFoundError
from quorumbook.streams.metadata import lock as module
from quorumbook.streams.metadata.lock import StreamLock

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
    monkeypatch.setattr(module, "_DELETE_AGAIN_S", 0.001)
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
