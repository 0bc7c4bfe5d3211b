"""Locks on ledgers that are not in the queue of under-replicated ones, over all drivers."""

from __future__ import annotations

import pytest

from quorumbook.errors import MetadataUnavailableError, SessionExpiredError
from quorumbook.metadata.cluster import init_cluster
from quorumbook.metadata.paths import TreePaths
from quorumbook.metadata.recovery.locks import ReplicationLocks
from quorumbook.metadata.recovery.queue import UnderreplicationQueue

LOCK = TreePaths("/ledgers").underreplicated_lock(7)


@pytest.fixture
async def locks(store, other):
    await init_cluster(store)
    return ReplicationLocks(store, "b:1"), ReplicationLocks(other, "b:2")


async def test_r28_a_holder_keeps_workers_and_other_holders_away(locks, other):
    one, two = locks
    queue = UnderreplicationQueue(other, "worker")
    await queue.mark(7, [])
    assert await one.take(7)
    assert not await two.take(7)
    assert await queue.take() is None
    assert two.is_held(7) is False
    assert one.is_held(7)
    await one.release_all()
    assert not one.is_held(7)
    work = await queue.take()
    assert work.ledger_id == 7
    assert not await one.take(7)
    await queue.release(work)
    assert await one.take(7)


async def test_a_lock_of_a_worker_in_the_same_session_is_not_taken_for_ours(locks, store):
    queue = UnderreplicationQueue(store, "worker")
    await queue.mark(7, [])
    assert await queue.take() is not None
    assert not await locks[0].take(7)
    await locks[0].release_all()
    assert (await store.exists(LOCK)) is not None


async def test_a_lock_goes_with_its_session(driver, store, locks):
    one, two = locks
    assert await one.take(7)
    await driver.end_lease(store)
    while not await two.take(7):
        pass
    await store.renew_session()
    assert not one.is_held(7)
    await one.release_all()
    assert two.is_held(7)
    assert not await one.take(7)


async def test_a_lock_whose_answer_was_lost_is_ours_and_given_back(locks, store, monkeypatch):
    one, two = locks
    create = store.create

    async def lose(path, data=b"", **how):
        await create(path, data, **how)
        if path == LOCK:
            raise MetadataUnavailableError("the answer was lost")

    monkeypatch.setattr(store, "create", lose)
    with pytest.raises(MetadataUnavailableError):
        await one.take(7)
    monkeypatch.setattr(store, "create", create)
    assert not await two.take(7)
    assert await one.take(7)
    await one.release_all()
    assert await two.take(7)


async def test_a_lock_whose_session_ends_with_the_request_is_not_taken_for_held(
    driver, store, locks, monkeypatch
):
    one, two = locks
    create = store.create

    async def lose(path, data=b"", **how):
        found = await create(path, data, **how)
        if path == LOCK:
            monkeypatch.setattr(store, "create", create)
            await driver.end_lease(store)
            while not await two.take(7):
                pass
            await store.renew_session()
        return found

    monkeypatch.setattr(store, "create", lose)
    with pytest.raises(SessionExpiredError):
        await one.take(7)
    assert not one.is_held(7)
    await one.release_all()
    assert not await one.take(7)
