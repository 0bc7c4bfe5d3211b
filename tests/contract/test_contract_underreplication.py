"""The queue of under-replicated ledgers, shared by several processes, over all drivers."""

from __future__ import annotations

import asyncio

import pytest
from metadata_bells import Bell

from quorumbook.errors import NoAuditorError, SessionExpiredError
from quorumbook.metadata.cluster import init_cluster
from quorumbook.metadata.paths import TreePaths
from quorumbook.metadata.recovery.quarantine import FailedHealing, Quarantine
from quorumbook.metadata.recovery.queue import Mark, UnderreplicationQueue
from quorumbook.metadata.recovery.switches import PeriodicCheck

LOCK = TreePaths("/ledgers").underreplicated_lock(7)


@pytest.fixture
async def queues(store, other):
    await init_cluster(store)
    return UnderreplicationQueue(store, "one"), UnderreplicationQueue(other, "two")


async def listed(queue):
    return [mark async for mark in queue.list()]


async def test_marks_by_two_at_the_same_time_are_all_kept(queues):
    one, two = queues
    await asyncio.gather(*(queue.mark(7, [f"b{n}"]) for n in range(6) for queue in (one, two)))
    mark = await two.read(7)
    assert sorted(mark.replicas) == [f"b{n}" for n in range(6)]


async def test_a_mark_survives_the_removal_of_its_parents(queues):
    one, two = queues
    for _ in range(10):
        await one.mark(7, ["b1"])
        work = await one.take()
        await asyncio.gather(one.done(work), two.mark(7, ["b2"]), two.mark(8, ["b3"]))
        assert "b2" in (await two.read(7)).replicas
        assert await two.read(8) == Mark(8, ("b3",))
        while (work := await one.take()) is not None:
            assert await one.done(work)
        assert await listed(two) == []


async def test_nobody_takes_what_another_works_on_until_it_is_released(queues):
    one, two = queues
    await one.mark(7, ["b1"])
    work = await one.take()
    bell = Bell()
    assert await two.take(bell) is None
    assert bell.count == 0
    await one.release(work)
    await bell.wait()
    assert (await two.take()).mark == Mark(7, ("b1",))
    with pytest.raises(SessionExpiredError):
        await one.done(work)


async def test_two_workers_share_the_queue_without_meeting(queues):
    for ledger_id in range(12):
        await queues[0].mark(ledger_id, [])
    done = []

    async def work(queue):
        while (work := await queue.take()) is not None:
            assert await queue.done(work)
            done.append(work.ledger_id)

    await asyncio.gather(*map(work, queues))
    await asyncio.gather(*map(work, queues))
    assert sorted(done) == list(range(12))


async def test_a_ledger_marked_again_while_it_is_worked_on_stays(queues):
    one, two = queues
    await one.mark(7, ["b1"])
    work = await one.take()
    await two.mark(7, ["b1"])
    assert not await one.done(work)
    work = await two.take()
    assert work.mark == Mark(7, ("b1",))
    assert await two.done(work)


async def test_a_lock_goes_with_its_session_and_is_not_given_back_twice(
    driver, store, other, queues
):
    one, two = queues
    await one.mark(7, ["b1"])
    work = await one.take()
    bell = Bell()
    assert await two.take(bell) is None
    await driver.end_lease(store)
    await bell.wait()
    again = await two.take()
    assert again.ledger_id == 7
    for _ in range(2):
        with pytest.raises(SessionExpiredError):
            await one.done(work)
        with pytest.raises(SessionExpiredError):
            await one.release(work)
        await store.renew_session()
    assert not one.is_held(work)
    assert (await other.get(LOCK)).owner == other.session_id
    assert await one.take() is None
    assert await two.done(again)


async def test_a_worker_is_woken_by_the_first_mark_and_by_later_ones(queues):
    one, two = queues
    while_empty = Bell()
    assert await two.take(while_empty) is None
    await one.mark(7, ["b1"])
    await while_empty.wait()
    while True:
        bell = Bell()
        work = await two.take(bell)
        if work is not None:
            break
        await bell.wait()
    while_busy = Bell()
    assert await two.take(while_busy) is None
    await one.mark(7 + 2**40, ["b1"])
    await while_busy.wait()
    assert (await two.take()).ledger_id == 7 + 2**40
    assert bell.count == 0


async def test_a_switch_that_is_thrown_is_noticed(queues):
    one, two = queues
    for switch in (one.disable, one.enable):
        bell = Bell()
        before = await two.is_enabled(bell)
        assert await switch()
        await bell.wait()
        assert await two.is_enabled() is not before


async def test_a_delay_that_is_set_is_noticed_also_to_the_same_value(queues):
    one, two = queues
    bell = Bell()
    assert await two.lost_bookie_delay(bell) is None
    await one.propose_lost_bookie_delay_s(60)
    await bell.wait()
    await one.propose_lost_bookie_delay_s(70)
    before = await two.lost_bookie_delay(bell := Bell())
    assert before.seconds == 60
    await one.set_lost_bookie_delay_s(60)
    await bell.wait()
    after = await two.lost_bookie_delay()
    assert after.seconds == 60
    assert after.revision != before.revision


async def test_asking_for_an_audit_changes_no_delay(queues, store, monkeypatch):
    one, two = queues
    with pytest.raises(NoAuditorError):
        await one.ask_for_audit()
    await two.propose_lost_bookie_delay_s(3600)
    before = await two.lost_bookie_delay(bell := Bell())
    assert before.seconds == 3600, "nothing was made up when nobody had set any"
    await one.ask_for_audit()
    await bell.wait()
    after = await two.lost_bookie_delay()
    assert after.seconds == 3600
    assert after.revision != before.revision
    put, rivals = store.set, [60]

    async def set_behind_an_operator(*given):
        while rivals:
            await two.set_lost_bookie_delay_s(rivals.pop())
        return await put(*given)

    monkeypatch.setattr(store, "set", set_behind_an_operator)
    await one.ask_for_audit()
    asked = await two.lost_bookie_delay()
    assert (asked.seconds, rivals) == (60, [])
    # Once more than the operator: what it said is said again, which has the auditor look.
    assert asked.revision.version == after.revision.version + 2


async def test_the_time_of_a_check_that_is_set_is_noticed(queues):
    one, two = queues
    for check in PeriodicCheck:
        bell = Bell()
        never = await two.last_check(check, bell)
        assert never.ended_at_ms is None
        assert await one.end_check(check, 5, never)
        await bell.wait()
        assert await two.checked_at_ms(check) == 5


@pytest.mark.parametrize("asked_before", [False, True])
async def test_a_check_that_is_asked_for_while_it_runs_is_not_done_when_it_ends(
    queues, asked_before
):
    one, two = queues
    for check in PeriodicCheck:
        if asked_before:
            await two.ask_for_check(check)
        before = await one.last_check(check)
        await two.ask_for_check(check)
        assert not await one.end_check(check, 5, before)
        assert await one.checked_at_ms(check) == 0
        again = await one.last_check(check)
        assert again.revision != before.revision
        assert await one.end_check(check, 6, again)
        assert not await two.end_check(check, 7, again)  # its term was over
        assert await two.checked_at_ms(check) == 6


async def test_s73_marking_a_ledger_again_with_nothing_new_disturbs_only_who_is_at_it(queues):
    one, two = queues
    path = TreePaths("/ledgers").underreplicated(7)
    await one.mark(7, ["b1", "b2"], 5)
    for _ in range(3):
        await one.mark(7, ["b2"], 6)
    assert (await one._store.get(path)).version == 0  # the store beneath the queue
    await one.mark(7, ["b3"], 7)
    assert await two.read(7) == Mark(7, ("b1", "b2", "b3"), 5)
    work = await two.take()
    await one.mark(7, ["b1"])
    assert not await two.done(work)
    assert await two.read(7) == Mark(7, ("b1", "b2", "b3"), 5)


async def test_s73_a_ledger_marked_again_right_before_its_worker_is_done_stays(
    queues, other, monkeypatch
):
    one, two = queues
    path = TreePaths("/ledgers").underreplicated(7)
    await one.mark(7, ["b1"])
    work = await one.take()
    get = other.get

    async def read_before_the_worker_is_done(asked, *arguments):
        found = await get(asked, *arguments)
        if asked == path and one.is_held(work):
            await one.done(work)
        return found

    monkeypatch.setattr(other, "get", read_before_the_worker_is_done)
    await two.mark(7, ["b1"])
    assert not one.is_held(work)
    assert await two.read(7) == Mark(7, ("b1",))


async def test_a_ledger_is_taken_by_its_id_whether_it_is_marked_or_not(queues):
    one, two = queues
    work = await one.take_this(7)
    assert work.mark == Mark(7, ())
    assert await one.take_this(7) is None
    assert await two.take_this(7) is None
    await two.mark(7, ["b1"])  # while it is worked on: that stays
    assert await two.take() is None
    assert await one.done(work)
    assert await two.read(7) == Mark(7, ("b1",))
    work = await two.take_this(7)
    assert work.mark == Mark(7, ("b1",))
    assert await two.done(work)
    assert await listed(one) == []


async def test_a_worker_takes_none_of_the_ledgers_it_wants_to_leave_alone(queues):
    one, _ = queues
    for ledger_id in (7, 8):
        await one.mark(ledger_id, [])
    assert (await one.take(skip={7: None})).ledger_id == 8
    assert await one.take(skip={7: None}) is None
    assert (await one.take()).ledger_id == 7


async def test_a_worker_that_leaves_a_ledger_alone_hears_when_its_mark_says_something_else(queues):
    one, two = queues
    await two.mark(7, ["b1"])
    work = await one.take()
    await one.release(work)
    bell = Bell()
    assert await one.take(bell, {7: work.revision}) is None
    await two.mark(7, ["b2"])
    await bell.wait()
    again = await one.take(skip={7: work.revision})
    assert again.mark == Mark(7, ("b1", "b2"))
    await one.release(again)
    bell = Bell()
    assert await one.take(bell, {7: again.revision}) is None
    # Healed by another one, and marked anew with the same number of changes.
    assert await two.done(await two.take())
    await bell.wait()
    await two.mark(7, ["b1"])
    await two.mark(7, ["b2"])
    assert (await one.take(skip={7: again.revision})).mark == again.mark


async def test_s69_why_a_ledger_is_not_healed_is_known_to_everybody(store, other):
    await init_cluster(store)
    one, two = Quarantine(store), Quarantine(other)
    first = FailedHealing(7, "no bookie is left", 1, 10, 20, ("b1:3181",))
    await one.write(first)
    assert await two.read(7) == first
    second = FailedHealing(7, "still none", 2, 30, 50)
    await two.write(second)
    await two.write(FailedHealing(2**63 - 1, "entry 0 is gone", 5, 1, 2))
    assert [failure.reason async for failure in one.list()] == ["still none", "entry 0 is gone"]
    await one.remove(7)
    await one.remove(7)
    assert await two.read(7) is None
    path = f"{TreePaths('/ledgers').underreplication}/failures/urL0000000007"
    await store.create(path, b"\x00damaged")
    assert await two.read(7) is None  # a hint less


@pytest.mark.parametrize("data", [b"damaged", b"\xff\x00", b"replica: 7"])
async def test_a_damaged_mark_or_lock_costs_itself_alone_and_is_named(store, data) -> None:
    await init_cluster(store)
    queue, paths = UnderreplicationQueue(store, "w"), TreePaths("/ledgers")
    for ledger_id in (5, 6, 7):
        await queue.mark(ledger_id, ["b1:3181"])
    await store.set(paths.underreplicated(5), data)
    damaged = []
    assert [mark.ledger_id async for mark in queue.list(damaged)] == [6, 7]
    assert [error.ledger_id for error in damaged] == [5]
    assert "urL0000000005" in str(damaged[0])
    rung = asyncio.Event()
    damaged.clear()
    taken = {(await queue.take(damaged=damaged)).ledger_id for _ in range(2)}
    assert taken == {6, 7}
    damaged.clear()
    assert await queue.take(rung.set, damaged=damaged) is None
    assert [error.ledger_id for error in damaged] == [5]
    assert await queue.worker_of(5) is None
    await queue.mark(8, [])
    async with asyncio.timeout(30):
        await rung.wait()  # whoever waits beside a damaged mark hears of others
    await store.create(paths.underreplicated_lock(8), data, ephemeral=True)
    assert await queue.worker_of(8) == "?"
    assert await queue.worker_of(6) == "w"
    queue.close()
