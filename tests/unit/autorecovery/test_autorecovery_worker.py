"""The replication worker: who works when, for how long, and what it gives up."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from worker_harness import PAYLOADS, failed, healed, working, write

from doubles.clusters import scripted_cluster
from doubles.replicas import assert_fully_replicated
from doubles.waiting import until
from quorumbook.autorecovery.copying.healing import Healer
from quorumbook.autorecovery.metrics import worker_families
from quorumbook.client.context import client_context, client_store
from quorumbook.errors import LedgerClosedError, LedgerFencedError, MetadataUnavailableError
from quorumbook.metadata.memory import memory_tree
from quorumbook.metadata.paths import TreePaths
from quorumbook.metadata.recovery.quarantine import FailedHealing, Quarantine
from quorumbook.metadata.recovery.queue import UnderreplicationQueue
from quorumbook.metadata.recovery.switches import RecoverySwitches
from quorumbook.protocol.requests import AddRun

cluster = scripted_cluster(bookies=4)


@pytest.fixture
async def client(cluster):
    async with cluster.connect() as client:
        yield client


async def gone(cluster, client, bookie_id):
    bookie = cluster.by_id(bookie_id)
    if bookie_id in cluster.registrations:
        await cluster.unregister(bookie_id)
    await bookie.stop()

    async def is_seen():
        return bookie_id not in (await client.bookies())[0]

    await until(is_seen)
    return bookie


async def back(cluster, client, bookie):
    await bookie.start()
    await cluster.register(bookie)

    async def is_seen():
        return bookie.bookie_id in (await client.bookies())[0]

    await until(is_seen)


async def test_a_marked_ledger_is_healed_and_taken_off_the_queue(cluster, client) -> None:
    async with working(client) as worker:
        ledger_id = await write(client)
        metadata = await client.ledger_metadata(ledger_id)
        await gone(cluster, client, metadata.ensemble[0])
        await worker.queue.mark(ledger_id, [metadata.ensemble[0]])
        await healed(worker, ledger_id)

        async def is_counted() -> bool:
            return worker.statistics.ledgers_healed == 1

        await until(is_counted)  # right after it is off the queue
        assert worker.statistics.entries_copied == len(PAYLOADS)
    assert worker.statistics.ledgers_healed == 1
    await assert_fully_replicated(client, ledger_id, PAYLOADS)


async def test_a_damaged_mark_keeps_no_worker_from_what_comes(cluster, client, caplog) -> None:
    store = client_store(client)
    queue, quarantine = UnderreplicationQueue(store), Quarantine(store)
    await queue.mark(987, ["b"])
    await store.set(TreePaths(store.ledgers_root).underreplicated(987), b"damaged")
    await quarantine.write(FailedHealing(987, "damaged since", 1, 0, 0))
    await quarantine.write(FailedHealing(988, "healed by others", 1, 0, 0))
    queue.close()
    async with working(client) as worker:
        for number in range(3):
            ledger_id = await write(client)
            await worker.queue.mark(ledger_id, [])
            await healed(worker, ledger_id)

            async def is_idle() -> bool:
                return await worker.quarantine.read(988) is None

            await until(is_idle)
            assert caplog.text.count("urL0000000987") == 1, number
    assert "no work can be taken" not in caplog.text


async def test_a_mark_that_names_nobody_has_all_copies_looked_at(cluster, client) -> None:
    ledger_id = await write(client)
    ensemble = (await client.ledger_metadata(ledger_id)).ensemble
    await gone(cluster, client, ensemble[0])
    del cluster.by_id(ensemble[1]).ledgers[ledger_id].entries[3]
    async with working(client) as worker:
        await worker.queue.mark(ledger_id, [])
        await healed(worker, ledger_id)
    await assert_fully_replicated(client, ledger_id, PAYLOADS)


async def test_s66_marks_of_empty_and_of_deleted_ledgers_go(cluster, client) -> None:
    empty, deleted = await write(client, []), await write(client)
    lost = (await client.ledger_metadata(empty)).ensemble[0]
    await gone(cluster, client, lost)
    await client.delete_ledger(deleted)
    async with working(client) as worker:
        for ledger_id in (empty, deleted):
            await worker.queue.mark(ledger_id, [lost])
        for ledger_id in (empty, deleted):
            await healed(worker, ledger_id)
        assert worker.statistics.ledgers_failed == 0
    assert lost not in (await client.ledger_metadata(empty)).ensemble


async def test_s67_a_bookie_that_is_back_before_the_work_begins_costs_no_copy(
    cluster, client
) -> None:
    ledger_id = await write(client)
    before = await client.ledger_metadata(ledger_id)
    bookie = await gone(cluster, client, before.ensemble[0])
    await back(cluster, client, bookie)
    async with working(client) as worker:
        await worker.queue.mark(ledger_id, [bookie.bookie_id])
        await healed(worker, ledger_id)
        assert worker.statistics.entries_copied == 0
    assert await client.ledger_metadata(ledger_id) == before


def numbers(worker) -> dict[str, float]:
    """Return the worker's gauges as they are served."""
    families = worker_families(dataclasses.asdict(worker.statistics))
    return {f.name: f.samples[0].value for f in families if f.type == "gauge"}


@pytest.mark.parametrize("name", ["create", "delete"])
async def test_a_failure_whose_record_or_release_has_no_answer_counts_once(
    cluster, client, monkeypatch, name
) -> None:
    store = client_store(client)
    ledger_id = await write(client, ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
    lost = (await client.ledger_metadata(ledger_id)).ensemble[0]
    await gone(cluster, client, lost)
    lock = TreePaths(store.ledgers_root).underreplicated_lock(ledger_id)
    # The record's node, or the lock's.
    path = lock if name == "delete" else Quarantine(store)._path(ledger_id)
    real, times = getattr(store, name), 0

    async def lose_answer(which, *arguments, **options):
        nonlocal times
        found = await real(which, *arguments, **options)
        times += which == path
        if which == path and times == 1:
            raise MetadataUnavailableError("the answer was lost")
        return found

    monkeypatch.setattr(store, name, lose_answer)
    async with working(client, max_retry_s=3600.0) as worker:
        await worker.queue.mark(ledger_id, [lost])
        await until(lambda: worker.statistics.ledgers_failed)
        assert times
        assert (await worker.quarantine.read(ledger_id)).attempts == 1
        assert await worker.queue.worker_of(ledger_id) is None


async def test_s69_a_ledger_whose_only_copy_is_gone_rests_and_the_others_are_healed(
    cluster, client
) -> None:
    hopeless = await write(client, ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
    lost = (await client.ledger_metadata(hopeless)).ensemble[0]
    bookie = await gone(cluster, client, lost)
    async with working(client, max_retry_s=0.001) as worker:
        await worker.queue.mark(hopeless, [lost])
        reason = await failed(worker, hopeless, attempts=5)
        assert "entry 0" in reason
        assert lost in reason
        failure = await worker.quarantine.read(hopeless)
        assert failure is not None
        assert failure.is_quarantined
        name = "replication_replication_worker_NUM_LEDGERS_IN_QUARANTINE"
        await until(lambda: numbers(worker)[name] == 1)
    # Before the next worker is there, which would heal it while the holder is back.
    await back(cluster, client, bookie)
    other = await write(client)
    metadata = await client.ledger_metadata(other)
    second = next(b for b in metadata.ensemble if b != lost)
    await gone(cluster, client, lost)
    await gone(cluster, client, second)
    await cluster.add(2)
    async with working(client, max_retry_s=3600.0) as worker:
        # Whatever else is marked is healed meanwhile; the hopeless one stays on the queue.
        await worker.queue.mark(other, [second, lost])
        await healed(worker, other)
        assert await worker.queue.read(hopeless) is not None
        attempts = (await worker.quarantine.read(hopeless)).attempts
        # The holder comes back: that is reason to try again at once.
        await back(cluster, client, bookie)
        await healed(worker, hopeless)
        assert attempts >= 5
        assert await worker.quarantine.read(hopeless) is None
        await until(lambda: not numbers(worker)[name])


class SlowFailure:
    """Holds attempts at healing a ledger at their end, the first one until ``over`` is set."""

    def __init__(self, monkeypatch, ledger_id) -> None:
        self.outcomes = []
        self.over = asyncio.Event()
        self.again = asyncio.Event()
        heal = Healer.heal

        async def held(healer, healed_id, **how):
            if healed_id != ledger_id:
                return await heal(healer, healed_id, **how)
            if self.outcomes:
                await self.again.wait()
            self.outcomes.append(await heal(healer, healed_id, **how))
            await self.over.wait()
            return self.outcomes[-1]

        monkeypatch.setattr(Healer, "heal", held)


async def test_s69_a_holder_that_comes_back_while_its_ledger_is_tried_is_reason_to_try_again(
    cluster, client, monkeypatch
) -> None:
    ledger_id = await write(client, ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
    lost = (await client.ledger_metadata(ledger_id)).ensemble[0]
    bookie = await gone(cluster, client, lost)
    slow = SlowFailure(monkeypatch, ledger_id)
    async with working(client, max_retry_s=3600.0) as worker:
        await worker.queue.mark(ledger_id, [lost])
        await until(lambda: slow.outcomes)
        assert slow.outcomes[0].problems
        await back(cluster, client, bookie)
        back_ms = client_context(client).env.clock.wall_ms()
        slow.over.set()
        await failed(worker, ledger_id)
        # The other workers see as well that this is older than what they know of the holder.
        assert (await worker.quarantine.read(ledger_id)).at_ms <= back_ms
        slow.again.set()
        await healed(worker, ledger_id)


async def test_s69_a_holder_that_was_away_only_while_all_slots_are_taken_was_away(
    cluster, client, monkeypatch
) -> None:
    ledger_id = await write(client, ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
    lost = (await client.ledger_metadata(ledger_id)).ensemble[0]
    bookie = cluster.by_id(lost)
    await bookie.stop()
    slow = SlowFailure(monkeypatch, ledger_id)
    async with working(client, max_retry_s=3600.0, ledgers_at_a_time=1) as worker:
        await worker.queue.mark(ledger_id, [lost])
        await until(lambda: slow.outcomes)
        await gone(cluster, client, lost)
        await back(cluster, client, bookie)
        slow.over.set()
        slow.again.set()
        await healed(worker, ledger_id)


async def test_s69_a_failure_is_everybodys_and_a_new_mark_ends_the_rest(cluster, client) -> None:
    ledger_id = await write(client)
    lost = (await client.ledger_metadata(ledger_id)).ensemble[0]
    await gone(cluster, client, lost)
    now_ms = client_context(client).env.clock.wall_ms()
    record = FailedHealing(ledger_id, "no bookie", 5, now_ms, now_ms + 3_600_000, (lost,))
    quarantine = Quarantine(client_store(client))
    await UnderreplicationQueue(cluster.store).mark(ledger_id, [lost])
    await quarantine.write(record)
    async with working(client) as worker:
        other = await write(client, ensemble_size=2, write_quorum_size=2)
        await worker.queue.mark(other, [lost])
        await healed(worker, other)
        assert await quarantine.read(ledger_id) == record
        assert await worker.queue.read(ledger_id) is not None
    async with working(client) as worker:
        await worker.queue.mark(ledger_id, ["127.0.0.1:1"])
        await healed(worker, ledger_id)


async def test_s69_a_resting_ledger_is_tried_again_at_once_when_its_mark_names_others(
    cluster, client
) -> None:
    ledger_id = await write(client, ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
    lost = (await client.ledger_metadata(ledger_id)).ensemble[0]
    await gone(cluster, client, lost)
    async with working(client, max_retry_s=1e6) as worker:
        await worker.queue.mark(ledger_id, [lost])
        await failed(worker, ledger_id)
        await UnderreplicationQueue(cluster.store).mark(ledger_id, ["127.0.0.1:1"])
        await failed(worker, ledger_id, attempts=2)


async def test_records_of_ledgers_that_others_healed_go(cluster, client) -> None:
    quarantine = Quarantine(client_store(client))
    await quarantine.write(FailedHealing(4711, "no bookie", 5, 1, 2))
    async with working(client):

        async def is_gone():
            return await quarantine.read(4711) is None

        await until(is_gone)


async def test_s72_a_writer_that_replaces_the_lost_bookie_is_left_alone(cluster, client) -> None:
    async with cluster.connect() as writers, working(client, open_ledger_grace_s=3600.0) as worker:
        ledger = await writers.create_ledger()
        for payload in PAYLOADS:
            await ledger.append(payload)
        lost = cluster.members(ledger)[0]
        await gone(cluster, client, lost.bookie_id)
        await worker.queue.mark(ledger.id, [lost.bookie_id])
        await until(lambda: worker._jobs)  # what it has under way shows in no other way
        while len(ledger.metadata.fragments) == 1:
            await ledger.append(b"the writer notices")
        await healed(worker, ledger.id)
        assert worker.statistics.ledgers_closed == 0
        await ledger.append(b"and the writer goes on")
        await ledger.close()
    assert lost.bookie_id not in str((await client.ledger_metadata(ledger.id)).fragments)


async def test_s72_a_ledger_that_nobody_writes_is_closed_after_the_grace_and_healed(
    cluster, client
) -> None:
    async with cluster.connect() as writers, working(client, open_ledger_grace_s=0.01) as worker:
        ledger = await writers.create_ledger()
        for payload in PAYLOADS:
            await ledger.append(payload)
        lost = cluster.members(ledger)[0]
        await gone(cluster, client, lost.bookie_id)
        await worker.queue.mark(ledger.id, [lost.bookie_id])
        await healed(worker, ledger.id)
        assert worker.statistics.ledgers_closed == 1
        with pytest.raises((LedgerFencedError, LedgerClosedError)):
            await ledger.append(b"too late")
    await assert_fully_replicated(client, ledger.id, PAYLOADS)


async def test_s72_other_ledgers_are_healed_while_one_waits_for_its_writer(cluster, client) -> None:
    async with (
        cluster.connect() as writers,
        working(client, open_ledger_grace_s=3600.0, ledgers_at_a_time=1) as worker,
    ):
        waiting = await writers.create_ledger()
        await waiting.append(b"x")
        closed = await write(client)
        members = set(waiting.metadata.ensemble)
        lost = next(b for b in (await client.ledger_metadata(closed)).ensemble if b in members)
        await gone(cluster, client, lost)
        await worker.queue.mark(waiting.id, [lost])
        await until(lambda: worker._jobs)  # what it has under way shows in no other way
        await worker.queue.mark(closed, [lost])
        await healed(worker, closed)
        assert await worker.queue.read(waiting.id) is not None


async def test_s73_a_ledger_has_one_worker_at_a_time(cluster, client, monkeypatch) -> None:
    busy: set[int] = set()
    met: list[int] = []
    heal = Healer.heal

    async def watched(self, ledger_id, **options):
        if ledger_id in busy:
            met.append(ledger_id)
        busy.add(ledger_id)
        try:
            await asyncio.sleep(0)
            return await heal(self, ledger_id, **options)
        finally:
            busy.discard(ledger_id)

    monkeypatch.setattr(Healer, "heal", watched)
    ledgers = [await write(client, PAYLOADS[:5]) for _ in range(12)]
    lost = (await client.ledger_metadata(ledgers[0])).ensemble[0]
    await gone(cluster, client, lost)
    async with cluster.connect() as second, working(client, "one") as one:
        async with working(second, "two"):
            for ledger_id in ledgers:
                await one.queue.mark(ledger_id, [lost])
            for ledger_id in ledgers:
                await healed(one, ledger_id)
        assert met == []
        named = [m async for m in client.list_ledgers() if lost in m.ensemble]
        assert named == []


async def test_s73_a_worker_that_stops_gives_its_ledgers_to_others(cluster, client) -> None:
    ledger_id = await write(client)
    lost = (await client.ledger_metadata(ledger_id)).ensemble[0]
    await gone(cluster, client, lost)
    for bookie in cluster.bookies:
        bookie.hold_adds()
    async with cluster.connect() as other:
        async with working(other, "first") as first:
            await first.queue.mark(ledger_id, [lost])
            await until(lambda: any(isinstance(r, AddRun) and r.is_recovery
                                    for b in cluster.bookies for r in b.requests))  # fmt: skip
        for bookie in cluster.bookies:
            bookie.release_adds()
        async with working(client, "second") as second:
            await healed(second, ledger_id)
    await assert_fully_replicated(client, ledger_id, PAYLOADS)


async def test_s71_a_worker_survives_the_end_of_its_session(cluster, client) -> None:
    ledger_id = await write(client)
    ensemble = (await client.ledger_metadata(ledger_id)).ensemble
    lost = await gone(cluster, client, ensemble[0])
    for bookie in cluster.bookies:
        bookie.hold_adds()
    async with cluster.connect() as own, working(own) as worker:
        await worker.queue.mark(ledger_id, [lost.bookie_id])
        await until(lambda: any(isinstance(r, AddRun) and r.is_recovery
                                for b in cluster.bookies for r in b.requests))  # fmt: skip
        memory_tree(cluster.metadata_uri.removeprefix("memory://")).end_session(
            client_store(own).session_id
        )
        for bookie in cluster.bookies:
            bookie.release_adds()
        await healed(worker, ledger_id)
        # And it takes what comes later.
        later = await write(client)
        await worker.queue.mark(later, [lost.bookie_id])
        await healed(worker, later)
    await assert_fully_replicated(client, ledger_id, PAYLOADS)


async def test_nothing_is_begun_while_replication_is_disabled(cluster, client, monkeypatch) -> None:
    ledger_id = await write(client)
    before = await client.ledger_metadata(ledger_id)
    await gone(cluster, client, before.ensemble[0])
    switches = RecoverySwitches(cluster.store)
    await switches.disable()
    await UnderreplicationQueue(cluster.store).mark(ledger_id, [before.ensemble[0]])
    asked: list[str] = []
    for kind, name in ((RecoverySwitches, "is_enabled"), (UnderreplicationQueue, "take")):
        original = getattr(kind, name)

        async def noted(self, *arguments, name=name, original=original, **named):
            asked.append(name)
            return await original(self, *arguments, **named)

        monkeypatch.setattr(kind, name, noted)
    async with working(client) as worker:
        await until(lambda: asked)
        worker._bell.set()  # what it has under way shows in no other way
        await until(lambda: len(asked) > 1)
        assert set(asked) == {"is_enabled"}
        await switches.enable()
        await healed(worker, ledger_id)


async def test_copies_wait_for_the_budget_of_their_process(cluster, client) -> None:
    ledger_id = await write(client)
    before = await client.ledger_metadata(ledger_id)
    await gone(cluster, client, before.ensemble[0])
    budget = client_context(client).env.background
    budget.rate_bytes = 1
    async with working(client) as worker:
        await worker.queue.mark(ledger_id, [before.ensemble[0]])
        await until(lambda: budget.waiting_bytes)
        assert await client.ledger_metadata(ledger_id) == before
        budget.rate_bytes = 0
        await healed(worker, ledger_id)
    # Read, written and read back.
    size = sum(36 + len(payload) for payload in PAYLOADS)
    assert budget.taken_bytes["replication"] >= 3 * size
