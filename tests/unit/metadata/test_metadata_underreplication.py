"""The queue of under-replicated ledgers: the peer's bytes and nodes, what a worker relies on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from doubles.waiting import until
from quorumbook.errors import (
    ClusterNotInitializedError,
    LocalProtocolError,
    MetadataFormatError,
    MetadataUnavailableError,
    SessionExpiredError,
)
from quorumbook.metadata.cluster import init_cluster
from quorumbook.metadata.paths import TreePaths
from quorumbook.metadata.recovery.queue import Mark, UnderreplicationQueue
from quorumbook.metadata.recovery.switches import PeriodicCheck

_PAYLOADS = json.loads((Path(__file__).parents[2] / "golden" / "zookeeper.json").read_text())[
    "underreplication_payloads"
]
GOLDEN = {
    each["what"]: each["utf8"].encode() if "utf8" in each else bytes.fromhex(each["hex"])
    for each in _PAYLOADS
}
MARKS = {
    "underreplicated ledger, no replicas": Mark(7, ()),
    "underreplicated ledger, one replica": Mark(7, ("192.0.2.1:3181",)),
    "underreplicated ledger, two replicas and ctime": Mark(
        7, ("192.0.2.1:3181", "bookie-1"), 1_700_000_000_123
    ),
}
BASE = "/ledgers/underreplication"
LEAF = TreePaths("/ledgers").underreplicated(7)
LOCK = TreePaths("/ledgers").underreplicated_lock(7)


@pytest.fixture
async def queue(store):
    await init_cluster(store)
    return UnderreplicationQueue(store, "host-a")


async def listed(queue):
    return [mark async for mark in queue.list()]


@pytest.mark.parametrize("what", MARKS)
def test_marks_of_ledgers_are_the_peers(what):
    assert MARKS[what].encode() == GOLDEN[what]
    assert Mark.decode(7, GOLDEN[what], "/x") == MARKS[what]


async def test_marking_leaves_the_peers_nodes(store, queue):
    await queue.mark(7, ["192.0.2.1:3181", "bookie-1"], 1_700_000_000_123)
    node = await store.get(f"{BASE}/ledgers/0000/0000/0000/0007/urL0000000007")
    assert node.data == GOLDEN["underreplicated ledger, two replicas and ctime"]
    assert (await store.get(f"{BASE}/LAYOUT")).data == GOLDEN["underreplication LAYOUT"]


async def test_the_lock_is_the_peers(store, queue):
    await queue.mark(7, [])
    await queue.take()
    node = await store.get(f"{BASE}/locks/urL0000000007")
    assert node.data == GOLDEN["lock"]
    assert node.owner == store.session_id
    nameless = UnderreplicationQueue(store)
    await nameless.mark(8, [])
    await nameless.take()
    assert (await store.get(f"{BASE}/locks/urL0000000008")).data == GOLDEN["lock without id"]


async def test_switches_delays_and_times_of_checks_are_the_peers(store, queue):
    assert await queue.is_enabled()
    assert await queue.lost_bookie_delay_s() is None
    assert await queue.disable()
    assert not await queue.disable()
    assert (await store.get(f"{BASE}/disable")).data == b""
    assert not await queue.is_enabled()
    assert await queue.enable()
    assert not await queue.enable()
    assert await queue.is_enabled()
    for delay_s in (30, 60):
        await queue.set_lost_bookie_delay_s(delay_s)
        assert await queue.lost_bookie_delay_s() == delay_s
    assert (await store.get(f"{BASE}/lostBookieRecoveryDelay")).data == GOLDEN[
        "lostBookieRecoveryDelay"
    ]
    for check in PeriodicCheck:
        assert await queue.checked_at_ms(check) is None
        await queue.end_check(check, 1_700_000_000_123, await queue.last_check(check))
        data = (await store.get(f"{BASE}/{check.value[0]}")).data
        assert data == GOLDEN[f"{check.value[0]} (binary)"]
        assert await queue.checked_at_ms(check) == 1_700_000_000_123


async def test_an_impossible_delay_is_refused(queue):
    for delay_s in (-1, 2**31):
        with pytest.raises(LocalProtocolError):
            await queue.set_lost_bookie_delay_s(delay_s)


async def test_marks_of_the_same_ledger_are_merged(store, queue):
    await queue.mark(7, ["b1", "b2"])
    await queue.mark(7, ["b2", "b3"], 5)
    await queue.mark(7, ["b1"], 6)
    assert await queue.read(7) == Mark(7, ("b1", "b2", "b3"), 5)
    assert (await store.get(LEAF)).version == 1  # the last one said nothing new


async def test_all_marks_are_listed_in_order_and_nothing_else(store, queue):
    ids = [0, 7, 65_535, 65_536, 2**32, 9_999_999_999, 10_000_000_000, 2**63 - 1]
    for ledger_id in reversed(ids):
        await queue.mark(ledger_id, ["b1"])
    parent = LEAF.rpartition("/")[0]
    await store.create(f"{parent}/urL0000000000")
    await store.create(f"{parent}/other")
    await store.create(f"{BASE}/ledgers/zzzz")
    assert await listed(queue) == [Mark(ledger_id, ("b1",)) for ledger_id in ids]


async def test_nothing_is_listed_or_taken_before_anything_is_marked(queue):
    assert await listed(queue) == []
    assert await queue.take() is None
    assert await queue.read(7) is None


async def test_no_queue_is_made_where_there_is_no_cluster(store):
    queue = UnderreplicationQueue(store)
    for call in (queue.mark(7, []), queue.disable(), queue.enable(), queue.take()):
        with pytest.raises(ClusterNotInitializedError):
            await call
    assert await store.exists("/ledgers") is None


@pytest.mark.parametrize("data", [b"replica: 7", b"\xff", b"what", b'replica: "b1" ctime: "x"'])
async def test_a_damaged_mark_is_said_to_be_one_and_not_kept_locked(store, queue, data):
    await queue.mark(7, ["b1"])
    await store.set(LEAF, data)
    for call in (queue.mark(7, ["b2"]), queue.read(7), listed(queue), queue.take()):
        with pytest.raises(MetadataFormatError, match="urL0000000007"):
            await call
    assert (await store.get(LEAF)).data == data
    assert await store.exists(LOCK) is None


async def test_damaged_marks_keep_nobody_from_the_others(store, queue):
    for ledger_id in range(5, 10):
        await queue.mark(ledger_id, ["b1"])
    for ledger_id in (5, 7):
        await store.set(TreePaths("/ledgers").underreplicated(ledger_id), b"damaged")
    listed = []
    with pytest.raises(MetadataFormatError, match=r"urL0000000005.*; 1 other nodes cannot"):
        async for mark in queue.list():
            listed.append(mark.ledger_id)  # noqa: PERF401 - what came before the error counts
    assert listed == [6, 8, 9]
    taken = {(await queue.take()).ledger_id for _ in range(3)}
    assert taken == {6, 8, 9}
    with pytest.raises(MetadataFormatError):
        await queue.take()
    assert len(await store.children(f"{BASE}/locks")) == 3


@pytest.mark.parametrize("layout", [b'type: "BASIC" version: 2', b'type: "OTHER" version: 1', b""])
async def test_a_queue_of_another_layout_is_refused(store, queue, layout):
    await store.create(BASE)
    await store.create(f"{BASE}/LAYOUT", layout)
    for call in (queue.mark(7, []), queue.take(), listed(queue)):
        with pytest.raises(MetadataFormatError, match="LAYOUT"):
            await call


async def test_damaged_settings_are_said_to_be_damaged(store, queue):
    await queue.set_lost_bookie_delay_s(1)
    await store.set(f"{BASE}/lostBookieRecoveryDelay", b"soon")
    with pytest.raises(MetadataFormatError, match="lostBookieRecoveryDelay"):
        await queue.lost_bookie_delay_s()
    await queue.ask_for_check(PeriodicCheck.REPLICAS)
    await store.set(f"{BASE}/replicascheckctime", b"\xff")
    with pytest.raises(MetadataFormatError, match="replicascheckctime"):
        await queue.checked_at_ms(PeriodicCheck.REPLICAS)


async def test_work_that_is_done_leaves_no_mark_no_empty_parents_and_no_lock(store, queue):
    await queue.mark(7, ["b1"])
    await queue.mark(8, ["b1"])
    works = [await queue.take(), await queue.take()]
    assert {work.ledger_id for work in works} == {7, 8}
    assert await queue.take() is None
    assert await queue.done(works[0])
    assert len(await store.children(f"{BASE}/ledgers/0000/0000/0000")) == 1
    assert await queue.done(works[1])
    assert await store.children(f"{BASE}/ledgers") == []
    assert await store.children(f"{BASE}/locks") == []
    with pytest.raises(SessionExpiredError):
        await queue.done(works[0])


async def test_work_is_chosen_by_lot(queue):
    for ledger_id in range(16):
        await queue.mark(ledger_id, [])
    assert [(await queue.take()).ledger_id for _ in range(16)] != list(range(16))


async def nothing_locked(_watch):
    """Say what was true before somebody else was faster."""
    return set()


def answer_deletions_late(store, monkeypatch):
    """Return what tells that something was deleted, and what has that answered."""
    is_deleted, may_answer = asyncio.Event(), asyncio.Event()
    delete = store.delete

    async def answer_late(path, *arguments, **options):
        await delete(path, *arguments, **options)
        is_deleted.set()
        await may_answer.wait()

    monkeypatch.setattr(store, "delete", answer_late)
    return is_deleted, may_answer


async def store_is_away(*_arguments, **_options):
    """Delete nothing."""
    raise MetadataUnavailableError("the store is away")


async def test_a_lock_whose_answer_was_lost_is_found_again(store, queue, monkeypatch):
    await queue.mark(7, [])
    create = store.create

    async def lose_answer(path, *arguments, **options):
        await create(path, *arguments, **options)
        if path == LOCK:
            raise MetadataUnavailableError("no answer")

    await store.create(f"{BASE}/locks")
    monkeypatch.setattr(store, "create", lose_answer)
    monkeypatch.setattr(store, "delete", store_is_away)
    with pytest.raises(MetadataUnavailableError):
        await queue.take()
    other = UnderreplicationQueue(store, "host-b")
    monkeypatch.setattr(store, "create", create)
    monkeypatch.setattr(other, "_locked", nothing_locked)
    assert await other.take() is None
    work = await queue.take()
    assert work.ledger_id == 7
    monkeypatch.undo()
    await until(lambda: not store.env.late_tasks)
    assert queue.is_held(work)
    assert await store.exists(LOCK) is not None
    assert await queue.done(work)
    assert await store.exists(LOCK) is None


async def test_a_ledger_whose_lock_is_being_given_back_is_not_taken(store, queue, monkeypatch):
    await queue.mark(7, [])
    work = await queue.take()
    is_deleted, may_answer = answer_deletions_late(store, monkeypatch)
    releasing = asyncio.create_task(queue.release(work))
    await is_deleted.wait()
    assert await queue.take() is None
    assert await queue.take_this(7) is None
    may_answer.set()
    await releasing
    again = await queue.take()
    assert queue.is_held(again)
    assert await queue.done(again)
    assert await store.exists(LEAF) is None
    assert await store.exists(LOCK) is None


@pytest.mark.parametrize("fails", ["create", "get", "a cancelled get"])
async def test_a_ledger_that_was_not_taken_up_is_free_for_others_when_the_store_answers(
    open_memory, store, queue, monkeypatch, fails
):
    name = fails.split()[-1]
    real, delete = getattr(store, name), store.delete
    is_asked = asyncio.Event()

    async def fail(path, *arguments, **options):
        found = await real(path, *arguments, **options)
        if path not in (LOCK, LEAF):
            return found
        is_asked.set()
        if fails == "a cancelled get":
            await asyncio.Event().wait()
        raise MetadataUnavailableError("the answer was lost")

    await queue.mark(7, [])
    monkeypatch.setattr(store, name, fail)
    monkeypatch.setattr(store, "delete", store_is_away)
    taking = asyncio.create_task(queue.take_this(7))
    await is_asked.wait()
    if fails == "a cancelled get":
        taking.cancel()
    with pytest.raises((MetadataUnavailableError, asyncio.CancelledError)):
        await taking
    monkeypatch.setattr(store, name, real)
    others = UnderreplicationQueue(await open_memory(), "host-b")
    assert await others.take_this(7) is None
    monkeypatch.setattr(store, "delete", delete)
    await until(lambda: _is_free(others))


async def _is_free(queue):
    return await queue.take_this(7) is not None


async def test_a_lock_that_is_on_its_way_back_is_taken_anew(store, queue, monkeypatch):
    work = await queue.take_this(7)
    before = await store.get(LOCK)
    is_deleted, may_answer = answer_deletions_late(store, monkeypatch)
    queue.give_up(work)
    assert not queue.is_held(work)
    await is_deleted.wait()
    taking = asyncio.create_task(queue.take_this(7))
    for _ in range(20):
        await asyncio.sleep(0)
    may_answer.set()
    again = await taking
    assert queue.is_held(again)
    assert (await store.get(LOCK)).creation_id > before.creation_id
    await queue.release(again)
    assert await store.exists(LOCK) is None


async def test_a_queue_that_is_closed_gives_back_what_it_could_not_give_back_before(
    open_memory, store, queue, monkeypatch
):
    work = await queue.take_this(7)
    delete, deletions = store.delete, []

    async def fail_twice(path, *arguments, **options):
        deletions.append(path)
        if len(deletions) < 3:
            raise MetadataUnavailableError("the store is away")
        await delete(path, *arguments, **options)

    monkeypatch.setattr(store, "delete", fail_twice)
    with pytest.raises(MetadataUnavailableError):
        await queue.release(work)
    queue.close()
    assert not queue.is_held(work)
    others = UnderreplicationQueue(await open_memory(), "host-b")
    await until(lambda: _is_free(others))
    assert deletions == [LOCK] * 3


async def test_who_closes_a_queue_and_its_store_leaves_nothing_behind(store, queue, monkeypatch):
    await queue.take_this(7)
    queue.close()
    await store.close()
    await until(lambda: not store.env.late_tasks)


async def test_the_lock_of_whoever_came_after_our_session_is_left_alone(store, queue, monkeypatch):
    await queue.mark(7, [])
    await store.set(LEAF, b"damaged")
    get = store.get

    async def lose_the_session(path, *arguments):
        if path == LEAF:
            monkeypatch.undo()
            store._shared.extend(store.session_id, 0)  # a session that ends
            with pytest.raises(SessionExpiredError):
                await store.create("/a")
            await store.renew_session()
            await store.create(LOCK, b"somebody else", ephemeral=True)
        return await get(path, *arguments)

    monkeypatch.setattr(store, "get", lose_the_session)
    with pytest.raises(MetadataFormatError):
        await queue.take()
    assert (await store.get(LOCK)).data == b"somebody else"
