"""What a writer does when bookies fail."""

from __future__ import annotations

import asyncio

import pytest
from client_harness import QUIET, Gate, refuse_adds

from doubles.inside import append_state_of
from doubles.mock_bookie import PATIENCE_S, SILENCE, mock_cluster
from doubles.waiting import until
from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_context
from quorumbook.client.writing import ensemble
from quorumbook.errors import (
    AddQuorumTimeoutError,
    NotEnoughBookiesError,
)
from quorumbook.protocol.requests import AddRun, Request
from quorumbook.protocol.status import Status


class Looks:
    """Counts how often a degraded writer looked for bookies, which it does quickly."""

    def __init__(self, bk: BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ensemble, "_LOOK_S", 0.01)
        monkeypatch.setattr(client_context(bk).bookies, "writable", self._writable)
        self._bookies = client_context(bk).bookies
        self._count = 0

    async def _writable(self) -> frozenset[str]:
        self._count += 1
        return await type(self._bookies).writable(self._bookies)

    async def several(self) -> None:
        """Wait until it has looked a few times more."""
        enough = self._count + 8
        await until(lambda: self._count >= enough)


async def test_a_bookie_that_dies_is_replaced_behind_what_was_confirmed() -> None:
    async with mock_cluster(4) as cluster, cluster.connect(**QUIET) as bk:
        async with bk.create_ledger() as ledger:
            await ledger.append_batch_nowait([b"old%d" % i for i in range(10)])
            bad = cluster.members(ledger)[1]
            (spare,) = cluster.spare(ledger)
            await bad.stop()
            for i in range(20):
                await ledger.append(b"new%d" % i)
            await until(lambda: len(ledger.metadata.fragments) == 2)
            await ledger.append(b"after")
        first, second = ledger.metadata.fragments
        assert bad.bookie_id in first.ensemble
        assert spare.bookie_id in second.ensemble
        start = second.first_entry_id
        assert start >= 10
        await until(lambda: spare.entry_ids(ledger.id) == list(range(start, 31)))
        assert bad.bookie_id in client_context(bk).bookies.quarantined


@pytest.mark.parametrize(
    "status", [Status.IO_ERROR, Status.READ_ONLY, Status.NO_LEDGER, Status.BAD_REQUEST]
)
async def test_a_bookie_that_refuses_is_replaced(status: Status) -> None:
    async with mock_cluster(4) as cluster, cluster.connect(**QUIET) as bk:
        async with bk.create_ledger() as ledger:
            bad = cluster.members(ledger)[0]
            bad.on_request = refuse_adds(status)
            await ledger.append(b"x")
            await until(lambda: bad.bookie_id not in ledger.metadata.ensemble)
            await ledger.append(b"y")


async def test_r03_s24_nothing_is_confirmed_between_the_choice_and_its_record(
    monkeypatch,
) -> None:
    async with mock_cluster(5) as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        bad, second, third = cluster.members(ledger)
        bad.hold_adds()
        third.hold_adds()
        gate = Gate(bk, monkeypatch)
        future = ledger.append_nowait(b"zero")
        await until(lambda: all(b.count(AddRun) for b in (bad, second, third)))
        await bad.stop()
        await until(lambda: gate.waiting)
        third.release_adds()  # an ack quorum of the old ensemble, while the change is under way
        more = [ledger.append_nowait(b"%d" % i) for i in range(5)]
        await until(lambda: third.entry_ids(ledger.id) == list(range(6)))
        await asyncio.sleep(0.05)
        assert not future.done()
        assert ledger.last_add_confirmed <= 0
        gate.open()
        assert await future == 0
        assert [await f for f in more] == [1, 2, 3, 4, 5]
        fresh = next(b for b in cluster.members(ledger) if b not in (bad, second, third))
        start = ledger.metadata.last_fragment.first_entry_id
        await until(lambda: fresh.entry_ids(ledger.id) == list(range(start, 6)))
        await ledger.close()


async def test_s24_bookies_that_die_one_after_the_other_lose_nothing() -> None:
    async with mock_cluster(8) as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        done = 0
        for _ in range(5):
            for _ in range(3):
                done = await ledger.append(b"x")
            victim = cluster.members(ledger)[done % 3]
            await victim.stop()
        await ledger.append(b"end")
        await ledger.close()
        for entry_id in range(ledger.last_add_confirmed + 1):
            members = ledger.metadata.fragment_of(entry_id).ensemble
            holders = [
                b
                for b in cluster.bookies
                if b.bookie_id in members and entry_id in b.entry_ids(ledger.id)
            ]
            assert len(holders) >= 2, entry_id


async def test_s28_a_change_that_loses_to_replication_is_applied_again(monkeypatch) -> None:
    async with mock_cluster(5) as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        await ledger.append(b"zero")
        first_bad = cluster.members(ledger)[0]
        await first_bad.stop()
        await ledger.append(b"one")
        await until(lambda: len(ledger.metadata.fragments) == 2)
        # Somebody repairs the first fragment behind the writer's back.
        current, version = await client_context(bk).ledgers.read(ledger.id)
        old = current.fragments[0].ensemble
        spare = next(b for b in cluster.bookies if b.bookie_id not in (*old, *current.ensemble))
        repaired = current.replace_bookie(0, first_bad.bookie_id, spare.bookie_id)
        await client_context(bk).ledgers.write(repaired, version)
        await cluster.add()
        await cluster.members(ledger)[1].stop()
        await ledger.append(b"two")
        await until(lambda: len(ledger.metadata.fragments) == 3)
        await ledger.close()
        assert ledger.metadata.fragments[0] == repaired.fragments[0]


async def test_s29_an_entry_completes_although_one_answer_was_lost() -> None:
    lost = iter([True])

    def lose_one(request: Request):
        return SILENCE if isinstance(request, AddRun) and next(lost, False) else None

    async with (
        mock_cluster(4) as cluster,
        cluster.connect(add_timeout_s=0.3, **QUIET) as bk,
    ):
        ledger = await bk.create_ledger(ack_quorum_size=3)
        forgetful = cluster.members(ledger)[0]
        forgetful.on_request = lose_one
        future = ledger.append_nowait(b"x")
        await until(lambda: forgetful.count(AddRun) == 1)
        # Other answers of this bookie go on arriving, so that it never looks silent.
        while not future.done():
            ledger.append_nowait(b"y")
            await asyncio.sleep(0.01)
        assert await future == 0
        assert forgetful.bookie_id not in ledger.metadata.ensemble
        await ledger.close()


async def test_s29_an_add_without_ack_quorum_fails_within_its_time() -> None:
    async with (
        mock_cluster(3) as cluster,
        cluster.connect(add_quorum_timeout_s=0.4, add_timeout_s=30.0, **QUIET) as bk,
    ):
        ledger = await bk.create_ledger()
        for bookie in cluster.bookies[1:]:
            bookie.on_request = refuse_adds(SILENCE)
        cluster.bookies[0].on_request = refuse_adds(SILENCE)
        with pytest.raises(AddQuorumTimeoutError, match="unknown"):
            await ledger.append(b"x")
        with pytest.raises(AddQuorumTimeoutError):
            await ledger.flush()
        assert ledger.is_closed
        await ledger.abort()


async def test_a_silent_bookie_is_replaced_after_the_time_out() -> None:
    async with (
        mock_cluster(4) as cluster,
        cluster.connect(add_timeout_s=0.3, **QUIET) as bk,
    ):
        async with bk.create_ledger() as ledger:
            silent = cluster.members(ledger)[0]
            silent.on_request = refuse_adds(SILENCE)
            assert await ledger.append(b"x") == 0  # the others are enough
            async with asyncio.timeout(PATIENCE_S):
                while silent.bookie_id in ledger.metadata.ensemble:
                    await ledger.append(b"y")
                    await asyncio.sleep(0.02)


async def test_s30_a_third_bookie_that_fails_after_the_quorum_is_replaced_with_the_next_add() -> (
    None
):
    async with mock_cluster(4) as cluster, cluster.connect(**QUIET) as bk:
        async with bk.create_ledger() as ledger:
            late = cluster.members(ledger)[2]
            late.hold_adds()
            await ledger.append(b"x")
            await late.stop()
            await asyncio.sleep(0.05)
            assert len(ledger.metadata.fragments) == 1
            assert await ledger.append(b"y") == 1
            await until(lambda: late.bookie_id not in ledger.metadata.ensemble)


async def test_s31_the_number_of_ensemble_changes_is_bounded() -> None:
    async with mock_cluster(8) as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger(max_ensemble_changes=2)
        for bookie in cluster.bookies:
            bookie.on_request = refuse_adds(Status.IO_ERROR)
        with pytest.raises(NotEnoughBookiesError):
            await ledger.append(b"x")
        asked = sum(bookie.count(AddRun) > 0 for bookie in cluster.bookies)
        assert asked <= 3 + 2 * 3
        with pytest.raises(NotEnoughBookiesError):
            await ledger.close()


async def test_without_a_spare_bookie_writing_goes_on_and_takes_one_that_appears() -> None:
    async with mock_cluster(3) as cluster, cluster.connect(**QUIET) as bk:
        async with bk.create_ledger() as ledger:
            await ledger.append(b"zero")
            dead = cluster.members(ledger)[0]
            await dead.stop()
            for i in range(5):
                await ledger.append(b"%d" % i)
            await until(lambda: ledger.is_degraded)
            (fresh,) = await cluster.add()
            await until(lambda: fresh.bookie_id in ledger.metadata.ensemble)
            assert not ledger.is_degraded
            await ledger.append(b"last")
            await until(lambda: 6 in fresh.entry_ids(ledger.id))


async def test_a_degraded_writer_takes_its_own_bookie_back() -> None:
    async with mock_cluster(3) as cluster, cluster.connect(**QUIET) as bk:
        async with bk.create_ledger() as ledger:
            await ledger.append(b"zero")
            member = cluster.members(ledger)[0]
            await member.stop()
            await ledger.append(b"one")
            await until(lambda: ledger.is_degraded)
            await member.start()
            await until(lambda: not ledger.is_degraded)
            await ledger.append(b"two")
            await until(lambda: 2 in member.entry_ids(ledger.id))
        assert len(ledger.metadata.fragments) == 1


async def test_who_requires_a_replacement_is_closed_without_one() -> None:
    async with mock_cluster(3) as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger(require_replacement=True)
        await ledger.append(b"zero")
        await cluster.members(ledger)[0].stop()
        with pytest.raises(NotEnoughBookiesError):
            for _ in range(100):
                await ledger.append(b"x")
        with pytest.raises(NotEnoughBookiesError):
            await ledger.close()
        metadata = await bk.ledger_metadata(ledger.id)
        assert metadata.is_closed
        assert metadata.last_entry_id == ledger.last_add_confirmed >= 0


async def test_a_delayed_ensemble_change_keeps_the_ensemble_while_quorums_are_in_reach() -> None:
    async with mock_cluster(5) as cluster, cluster.connect(**QUIET) as bk:
        async with bk.create_ledger(delay_ensemble_change=True) as ledger:
            await ledger.append(b"zero")
            first, second, _ = cluster.members(ledger)
            await first.stop()
            for _ in range(5):
                await ledger.append(b"x")
            assert len(ledger.metadata.fragments) == 1
            await second.stop()
            await ledger.append(b"y")
            assert len(ledger.metadata.fragments) == 2
            assert not {first.bookie_id, second.bookie_id} & set(ledger.metadata.ensemble)


@pytest.mark.parametrize("status", [Status.IO_ERROR, Status.READ_ONLY])
async def test_a_degraded_writer_does_not_take_a_bookie_back_that_would_refuse_again(
    status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mock_cluster(3) as cluster, cluster.connect(**QUIET) as bk:
        looks = Looks(bk, monkeypatch)
        async with bk.create_ledger() as ledger:
            refusing = cluster.members(ledger)[0]
            if status is Status.READ_ONLY:
                await cluster.unregister(refusing.bookie_id)
                await cluster.register(refusing, read_only=True)
            refusing.on_request = refuse_adds(status)
            await ledger.append(b"zero")
            await until(lambda: ledger.is_degraded)
            asked = refusing.count(AddRun)
            await looks.several()
            await ledger.append(b"one")
            assert ledger.is_degraded
            assert refusing.count(AddRun) == asked


async def test_a_bookie_that_takes_writes_again_is_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with mock_cluster(3) as cluster, cluster.connect(**QUIET) as bk:
        Looks(bk, monkeypatch)
        async with bk.create_ledger() as ledger:
            member = cluster.members(ledger)[0]
            await cluster.unregister(member.bookie_id)
            await cluster.register(member, read_only=True)
            member.on_request = refuse_adds(Status.READ_ONLY)
            await ledger.append(b"zero")
            await until(lambda: ledger.is_degraded)
            member.on_request = None
            await cluster.unregister(member.bookie_id)
            await cluster.register(member)
            await until(lambda: not ledger.is_degraded)
            await ledger.append(b"one")
            await until(lambda: 1 in member.entry_ids(ledger.id))


async def test_a_change_that_replaces_one_of_two_failed_bookies_goes_on_without_the_other() -> None:
    async with mock_cluster(4) as cluster, cluster.connect(**QUIET) as bk:
        async with bk.create_ledger(
            ensemble_size=4, write_quorum_size=4, ack_quorum_size=2
        ) as ledger:
            refusing = cluster.members(ledger)[:2]
            for bookie in refusing:
                bookie.on_request = refuse_adds(Status.IO_ERROR)
            await ledger.append(b"zero")
            await until(lambda: ledger.is_degraded and len(append_state_of(ledger).failed) == 2)
            asked = [bookie.count(AddRun) for bookie in refusing]
            (fresh,) = await cluster.add()
            await until(lambda: fresh.bookie_id in ledger.metadata.ensemble)
            assert ledger.is_degraded
            await ledger.append(b"one")
            await until(lambda: 1 in fresh.entry_ids(ledger.id))
            assert [bookie.count(AddRun) for bookie in refusing] == asked


async def test_a_quarantined_bookie_is_taken_only_where_the_writer_would_stop() -> None:
    async with mock_cluster(4) as cluster, cluster.connect(**QUIET) as bk:
        async with bk.create_ledger() as ledger:
            (spare,) = cluster.spare(ledger)
            client_context(bk).bookies.report_failure(spare.bookie_id)
            first, second, _ = cluster.members(ledger)
            await ledger.append(b"zero")
            await first.stop()
            await ledger.append(b"one")
            await until(lambda: ledger.is_degraded)
            assert spare.bookie_id not in ledger.metadata.ensemble
            await second.stop()
            assert await ledger.append(b"two") == 2
            assert spare.bookie_id in ledger.metadata.ensemble
            assert 2 in spare.entry_ids(ledger.id)


@pytest.mark.parametrize("way", ["close", "abort"])
async def test_a_degraded_writer_that_ends_looks_for_bookies_no_longer(way: str) -> None:
    async with mock_cluster(3) as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        refusing = cluster.members(ledger)[0]
        refusing.on_request = refuse_adds(Status.IO_ERROR)
        await ledger.append(b"zero")
        await until(lambda: ledger.is_degraded)
        await (ledger.close() if way == "close" else ledger.abort())
        assert not client_context(bk).tasks, "a task outlives its writer"
