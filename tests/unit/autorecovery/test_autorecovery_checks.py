"""The periodic checks, against bookies that lack, damage or hide what they hold."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

import quorumbook
from doubles.mock_bookie import SILENCE, MockCluster
from quorumbook.autorecovery.audits.checks import due_in_s
from quorumbook.autorecovery.options import AuditorOptions, RecoveryOptions
from quorumbook.autorecovery.process import AutoRecovery
from quorumbook.client.context import client_context, client_store
from quorumbook.ledger.placement.options import PlacementOptions
from quorumbook.ledger.placement.policy import Adherence
from quorumbook.metadata.bookies.racks import RackTable
from quorumbook.metadata.recovery.queue import UnderreplicationQueue
from quorumbook.metadata.recovery.switches import PeriodicCheck
from quorumbook.protocol.digest import DigestType
from quorumbook.protocol.requests import BatchRead, ListEntries, Read, ReadRun
from quorumbook.protocol.status import Status

DAY_S = 86400.0


class Checked:
    """Three mock bookies, a client, and an auditor that checks on demand only."""

    def __init__(self, cluster, client):
        self.cluster, self.client = cluster, client
        self.queue = UnderreplicationQueue(client_store(client))
        auditor = AuditorOptions(
            bookie_check_interval_s=0, ledger_check_interval_s=0, replica_check_interval_s=0
        )
        self.auto_recovery = AutoRecovery(client, RecoveryOptions(name="a1", auditor=auditor))
        self.numbers = self.auto_recovery.auditor.numbers

    async def write(self, count=6, **options):
        shape = {"ensemble_size": 3, "write_quorum_size": 3, "ack_quorum_size": 2} | options
        async with self.client.create_ledger(**shape) as writer:
            for number in range(count):
                await writer.append(b"entry %d" % number)
        return writer

    async def check(self, check):
        """Run one check from its beginning to its end; return all marks."""
        await self.queue.ask_for_check(check)
        if not self.auto_recovery.auditor.is_leading:
            self.auto_recovery.auditor.start()
        async with asyncio.timeout(60):
            while not await self.queue.checked_at_ms(check):
                await asyncio.sleep(0.005)
        return {mark.ledger_id: set(mark.replicas) async for mark in self.queue.list()}


@pytest.fixture
async def checked():
    async with contextlib.AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(MockCluster())
        await cluster.add(3)
        client = await stack.enter_async_context(
            quorumbook.connect(cluster.metadata_uri, lac_delay_s=0)
        )
        made = Checked(cluster, client)
        stack.push_async_callback(made.auto_recovery.auditor.stop)
        yield made


@pytest.mark.parametrize("kind", list(DigestType))
async def test_s76_a_damaged_copy_is_found_by_its_digest(checked, kind):
    good = await checked.write(digest_type=kind, password=b"p")
    bad = await checked.write(digest_type=kind, password=b"p")
    bookie = checked.cluster.members(bad)[1]
    middle = bookie.ledgers[bad.id].entries
    middle[3] = middle[3][:-1] + bytes([middle[3][-1] ^ 1])
    found = await checked.check(PeriodicCheck.ALL_LEDGERS)
    # Where nothing protects entries, damage cannot be seen.
    assert found == ({} if kind is DigestType.DUMMY else {bad.id: {bookie.bookie_id}})
    assert good.id not in found
    assert checked.numbers.counters["NUM_LEDGERS_CHECKED"] == 2


@pytest.mark.parametrize("check", [PeriodicCheck.ALL_LEDGERS, PeriodicCheck.REPLICAS])
async def test_a_missing_entry_is_found_wherever_it_stood(checked, check):
    ledgers = [await checked.write() for _ in range(3)]
    bookies = [checked.cluster.members(ledger)[number] for number, ledger in enumerate(ledgers)]
    for bookie, ledger, entry_id in zip(bookies, ledgers, (0, 3, 5), strict=True):
        del bookie.ledgers[ledger.id].entries[entry_id]
    assert await checked.check(check) == {
        ledger.id: {bookie.bookie_id} for bookie, ledger in zip(bookies, ledgers, strict=True)
    }


@pytest.mark.parametrize("check", [PeriodicCheck.ALL_LEDGERS, PeriodicCheck.REPLICAS])
async def test_a_bookie_that_forgot_a_whole_ledger_is_found(checked, check):
    ledger = await checked.write()
    bookie = checked.cluster.members(ledger)[2]
    del bookie.ledgers[ledger.id]
    assert await checked.check(check) == {ledger.id: {bookie.bookie_id}}


@pytest.mark.parametrize("check", [PeriodicCheck.ALL_LEDGERS, PeriodicCheck.REPLICAS])
async def test_s75_only_entries_of_a_bookies_write_set_are_missed(checked, check):
    ledger = await checked.write(count=9, write_quorum_size=2)
    members = checked.cluster.members(ledger)
    assert [member.entry_ids(ledger.id) for member in members] == [
        [0, 2, 3, 5, 6, 8], [0, 1, 3, 4, 6, 7], [1, 2, 4, 5, 7, 8]
    ]  # fmt: skip
    assert await checked.check(check) == {}
    del members[1].ledgers[ledger.id].entries[4]
    assert await checked.check(check) == {ledger.id: {members[1].bookie_id}}


@pytest.mark.parametrize("check", [PeriodicCheck.ALL_LEDGERS, PeriodicCheck.REPLICAS])
async def test_s66_a_closed_empty_ledger_lacks_nothing(checked, check):
    ledger = await checked.write(count=0)
    assert (await checked.client.ledger_metadata(ledger.id)).last_entry_id == -1
    assert await checked.check(check) == {}
    assert checked.numbers.gauges["NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY"] == 0
    for bookie in checked.cluster.bookies:
        assert bookie.count(ListEntries) == 0


@pytest.mark.parametrize("check", [PeriodicCheck.ALL_LEDGERS, PeriodicCheck.REPLICAS])
async def test_the_fragment_that_is_written_is_left_to_its_writer(checked, check):
    writer = await checked.client.create_ledger(
        ensemble_size=3, write_quorum_size=3, ack_quorum_size=2
    )
    await writer.append(b"x")
    del checked.cluster.members(writer)[0].ledgers[writer.id]
    assert await checked.check(check) == {}
    await writer.close()
    assert set(await checked.check(check)) == {writer.id}


@pytest.mark.parametrize("check", [PeriodicCheck.ALL_LEDGERS, PeriodicCheck.REPLICAS])
async def test_a_bookie_that_gives_no_answer_is_not_said_to_lack_anything(checked, check):
    ledger = await checked.write()
    silent, refusing, _ = checked.cluster.members(ledger)
    silent.on_request = lambda _: Status.IO_ERROR
    refusing.on_request = lambda request: (
        Status.UNKNOWN_LEDGER_STATE if isinstance(request, ListEntries) else Status.TOO_MANY
    )
    found = await checked.check(check)
    # What is readable nowhere else is damage only if reading says so.
    assert refusing.bookie_id not in found.get(ledger.id, set())
    if check is PeriodicCheck.REPLICAS:
        assert found == {}
        assert checked.numbers.gauges["NUM_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY"] == 1


@pytest.mark.parametrize(
    ("check", "kinds", "quorum"),
    [
        (PeriodicCheck.REPLICAS, ListEntries, 3),
        (PeriodicCheck.ALL_LEDGERS, ListEntries, 3),
        (PeriodicCheck.ALL_LEDGERS, BatchRead, 3),
        (PeriodicCheck.ALL_LEDGERS, Read | ReadRun, 2),
    ],
)
async def test_a_connection_that_died_with_a_bookies_machine_hides_nothing(
    checked, check, kinds, quorum
):
    ledgers = [await checked.write(write_quorum_size=quorum) for _ in range(3)]
    assert await checked.check(check) == {}
    bookie = checked.cluster.bookies[1]
    for ledger in ledgers:
        del bookie.ledgers[ledger.id].entries[max(bookie.entry_ids(ledger.id))]
    resets = []

    def on_request(request):
        # Its machine is back, and knows nothing of the connections that it had.
        if isinstance(request, kinds) and not resets:
            resets.append(request)
            bookie.drop_connections()
            return SILENCE
        return None

    bookie.on_request = on_request
    assert await checked.check(check) == {ledger.id: {bookie.bookie_id} for ledger in ledgers}
    assert resets


async def test_copies_are_counted_for_the_gauges(checked):
    whole, two, one, none = [await checked.write() for _ in range(4)]
    for count, ledger in enumerate((whole, two, one, none)):
        for bookie in checked.cluster.members(ledger)[:count]:
            del bookie.ledgers[ledger.id].entries[5]
    found = await checked.check(PeriodicCheck.REPLICAS)
    assert {ledger_id: len(bookies) for ledger_id, bookies in found.items()} == {
        two.id: 1, one.id: 2, none.id: 3
    }  # fmt: skip
    gauges = checked.numbers.gauges
    assert gauges["NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY"] == 1
    assert gauges["NUM_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY"] == 1
    assert gauges["NUM_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY"] == 1


async def test_counting_copies_reads_no_entry(checked):
    await checked.write()
    for bookie in checked.cluster.bookies:
        bookie.requests.clear()
    await checked.check(PeriodicCheck.REPLICAS)
    for bookie in checked.cluster.bookies:
        assert bookie.count(ListEntries) == 1
        assert bookie.count(BatchRead) + bookie.count(Read) + bookie.count(ReadRun) == 0


async def test_reading_all_copies_keeps_to_the_background_budget(checked):
    await checked.write(count=50)
    budget = client_context(checked.client).env.background
    before = sum(budget.taken_bytes.values())
    await checked.check(PeriodicCheck.ALL_LEDGERS)
    # 50 entries of some 40 bytes, three times.
    assert sum(budget.taken_bytes.values()) - before >= 50 * 40 * 3


async def test_a_ledger_that_moves_while_it_is_looked_at_is_looked_at_again(checked):
    ledger = await checked.write()
    (new,) = await checked.cluster.add()
    old, other, _ = checked.cluster.members(ledger)
    manager = client_context(checked.client).ledgers

    async def move():
        new.ledgers[ledger.id] = old.ledgers.pop(ledger.id)
        metadata, version = await manager.read(ledger.id)
        await manager.write(metadata.replace_bookie(0, old.bookie_id, new.bookie_id), version)

    moves = []

    def on_list(request):
        if isinstance(request, ListEntries) and not moves:
            moves.append(asyncio.ensure_future(move()))
            return 0.2  # answers when the ledger has moved
        return None

    other.on_request = on_list
    old.on_request = lambda request: 0.2 if isinstance(request, ListEntries) else None
    assert await checked.check(PeriodicCheck.REPLICAS) == {}
    assert moves
    assert new.count(ListEntries) == 1


async def test_a_ledger_that_is_deleted_while_it_is_looked_at_is_not_marked(checked):
    ledger = await checked.write()
    bookie = checked.cluster.members(ledger)[0]
    deletions = []

    async def delete():
        await checked.client.delete_ledger(ledger.id)
        bookie.ledgers.pop(ledger.id)

    def on_list(request):
        if isinstance(request, ListEntries):
            deletions.append(asyncio.ensure_future(delete()))
            return 0.2
        return None

    bookie.on_request = on_list
    assert await checked.check(PeriodicCheck.REPLICAS) == {}
    assert deletions


async def test_a_check_that_is_asked_for_while_it_runs_runs_once_more(checked):
    ledger = await checked.write()
    bookie = checked.cluster.members(ledger)[0]
    others = []

    async def lose_another():
        other = await checked.write()
        del checked.cluster.members(other)[0].ledgers[other.id]
        others.append(other.id)
        await checked.queue.ask_for_check(PeriodicCheck.REPLICAS)

    tasks = []

    def on_list(request):
        if isinstance(request, ListEntries) and not tasks:
            tasks.append(asyncio.ensure_future(lose_another()))
            return 0.2  # the ledgers of this run are known by now
        return None

    bookie.on_request = on_list
    found = await checked.check(PeriodicCheck.REPLICAS)
    await asyncio.gather(*tasks)
    assert set(found) == set(others)
    assert others


async def test_checks_are_off_while_auditing_is(checked):
    ledger = await checked.write()
    del checked.cluster.members(ledger)[0].ledgers[ledger.id]
    await checked.queue.disable()
    await checked.queue.ask_for_check(PeriodicCheck.REPLICAS)
    checked.auto_recovery.auditor.start()
    while not checked.auto_recovery.auditor.is_leading:
        await asyncio.sleep(0.005)
    # Whatever the auditor reads once it leads, it has read when the delay is proposed.
    while await checked.queue.lost_bookie_delay_s() is None:
        await asyncio.sleep(0.005)
    assert await checked.queue.checked_at_ms(PeriodicCheck.REPLICAS) == 0
    assert checked.numbers.counters["NUM_SKIPPING_CHECK_TASK_TIMES"] == 0
    await checked.queue.enable()
    while not await checked.queue.checked_at_ms(PeriodicCheck.REPLICAS):
        await asyncio.sleep(0.005)
    assert {mark.ledger_id async for mark in checked.queue.list()} == {ledger.id}


@pytest.mark.parametrize("repairs", [True, False])
async def test_ledgers_that_break_the_placement_policy_are_counted_and_marked_if_wanted(
    checked, monkeypatch, repairs
):
    strict, soft, failing, empty = [await checked.write(count) for count in (1, 1, 1, 0)]
    verdicts = {soft.id: Adherence.SOFT, failing.id: Adherence.FAIL, empty.id: Adherence.FAIL}

    async def adherence(metadata, ensemble):
        assert ensemble == metadata.ensemble
        return verdicts.get(metadata.ledger_id, Adherence.STRICT)

    monkeypatch.setattr(client_context(checked.client).bookies, "adherence", adherence)
    auditor = AuditorOptions(bookie_check_interval_s=0, repair_placement=repairs)
    checked.auto_recovery = AutoRecovery(
        checked.client, RecoveryOptions(name="a1", auditor=auditor)
    )
    assert await checked.check(PeriodicCheck.PLACEMENT) == ({failing.id: set()} if repairs else {})
    gauges = checked.auto_recovery.auditor.numbers.gauges
    assert gauges["NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY"] == 1
    assert gauges["NUM_LEDGERS_SOFTLY_ADHERING_TO_PLACEMENT_POLICY"] == 1
    assert strict.id not in verdicts
    await checked.auto_recovery.auditor.stop()


async def test_a_ledger_that_breaks_the_placement_policy_is_found_and_moved(checked):
    ledger = await checked.write()
    (far,) = await checked.cluster.add()
    near = [bookie.bookie_id for bookie in checked.cluster.members(ledger)]
    await RackTable(checked.cluster.store).set(
        dict.fromkeys(near, "/near") | {far.bookie_id: "/far"}
    )
    placement = PlacementOptions(enforce_racks=True)
    options = AuditorOptions(
        bookie_check_interval_s=0, ledger_check_interval_s=0, replica_check_interval_s=0,
        placement_check_interval_s=3600, repair_placement=True,
    )  # fmt: skip
    async with quorumbook.connect(checked.cluster.metadata_uri, placement=placement) as client:
        whole = AutoRecovery(client, RecoveryOptions(name="a1", auditor=options))
        whole.start()
        try:
            async with asyncio.timeout(60):
                while far.bookie_id not in (await client.ledger_metadata(ledger.id)).ensemble:
                    await asyncio.sleep(0.01)
        finally:
            await whole.stop()
    assert whole.auditor.numbers.gauges["NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY"] == 1
    assert far.entry_ids(ledger.id) == list(range(6))


NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("checked_at_ms", "interval_s", "wait_s"),
    [
        (None, DAY_S, 0.0),
        (None, 0, None),
        (NOW_MS, 0, None),
        (0, 0, 0.0),
        (0, DAY_S, 0.0),
        (NOW_MS - 1000, DAY_S, DAY_S - 1),
        (NOW_MS - 86_400_000, DAY_S, 0.0),
        (NOW_MS - 90_000_000, DAY_S, 0.0),
        # Its clock, or ours, was wrong.
        (NOW_MS + 10**12, DAY_S, DAY_S),
    ],
)
def test_a_check_is_due_its_interval_after_its_last_end(checked_at_ms, interval_s, wait_s):
    assert due_in_s(checked_at_ms, interval_s, NOW_MS) == wait_s
