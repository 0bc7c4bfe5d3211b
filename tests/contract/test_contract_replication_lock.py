"""Locks on ledgers that are not in the queue of under-replicated ones, over all drivers."""

from __future__ import annotations

import contextlib

import pytest

from quorumbook.errors import (
    MetadataUnauthorizedError,
    MetadataUnavailableError,
    SessionExpiredError,
)
from quorumbook.metadata.cluster import init_cluster
from quorumbook.metadata.paths import TreePaths
from quorumbook.metadata.recovery.locks import ReplicationLocks
from quorumbook.metadata.recovery.queue import UnderreplicationQueue

LOCK = TreePaths("/ledgers").underreplicated_lock(7)
RIVALS = ["nobody", "in another session", "in the same session"]


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


@contextlib.contextmanager
def failing(store, name, fate):
    """Have an operation on the lock fail, whether it is carried out or not."""
    real = getattr(store, name)

    async def fail(path, *arguments, **how):
        if path != LOCK:
            return await real(path, *arguments, **how)
        if fate == "refused":
            raise MetadataUnauthorizedError("not for you")
        if fate == "not answered":
            await real(path, *arguments, **how)
        raise MetadataUnavailableError("the store did not answer")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, name, fail)
        yield


async def taken_by(rival, store, other):
    """Let a rival try to take the lock; return the node if it is the rival's then."""
    is_apart = rival == "in another session"
    locks = ReplicationLocks(other if is_apart else store, "b:1" if is_apart else "rival")
    is_taken = rival != "nobody" and await locks.take(7)
    return await store.exists(LOCK) if is_taken else None


@pytest.mark.parametrize("comes", ["before", "since"])
@pytest.mark.parametrize("rival", RIVALS)
@pytest.mark.parametrize("fate", ["not sent", "not answered", "refused"])
async def test_giving_back_what_may_have_been_taken_leaves_a_rivals_lock_alone(
    locks, store, other, fate, rival, comes
):
    one, _ = locks
    rivals = await taken_by(rival, store, other) if comes == "before" else None
    with (
        failing(store, "create", fate),
        contextlib.suppress(MetadataUnavailableError, MetadataUnauthorizedError),
    ):
        assert not await one.take(7)
    if comes == "since":
        rivals = await taken_by(rival, store, other)
    await one.release_all()
    assert not one.is_held(7)
    assert await store.exists(LOCK) == rivals
    assert await one.take(7) is (rivals is None)


@pytest.mark.parametrize("rival", RIVALS)
@pytest.mark.parametrize("fate", ["not sent", "not answered"])
async def test_giving_back_again_leaves_alone_what_a_rival_took_since(
    locks, store, other, fate, rival
):
    one, _ = locks
    assert await one.take(7)
    with failing(store, "delete", fate), pytest.raises(MetadataUnavailableError):
        await one.release(7)
    rivals = await taken_by(rival, store, other)
    assert (rivals is not None) is (fate == "not answered" and rival != "nobody")
    await one.release(7)
    assert await store.exists(LOCK) == rivals


async def test_who_finds_a_rivals_lock_forgets_that_it_may_be_its_own(locks, store):
    one, two = locks
    with failing(store, "create", "not sent"), pytest.raises(MetadataUnavailableError):
        await one.take(7)
    assert await two.take(7)
    assert not await one.take(7)
    assert not one.is_held(7)


async def test_a_lock_that_a_rival_takes_between_look_and_deletion_stays(
    locks, store, other, monkeypatch
):
    one, two = locks
    assert await one.take(7)
    exists = store.exists

    async def be_late(path, *watch):
        node = await exists(path, *watch)
        await other.delete(path)
        assert await two.take(7)
        return node

    monkeypatch.setattr(store, "exists", be_late)
    await one.release(7)
    assert (await store.get(LOCK)).owner == other.session_id
