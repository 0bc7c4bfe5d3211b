"""Members of an ensemble that come, go and come back, and what a writer makes of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from client_harness import QUIET, refuse_adds

from doubles.inside import adds_of, append_state_of
from doubles.mock_bookie import PATIENCE_S, MockCluster, mock_cluster
from doubles.waiting import until
from quorumbook.client.context import client_context
from quorumbook.errors import LedgerFencedError, MetadataUnavailableError
from quorumbook.ids import MAX_PAYLOAD_SIZE_BYTES
from quorumbook.ledger.metadata import LedgerState
from quorumbook.protocol.requests import AddRun, BatchRead, Read
from quorumbook.protocol.status import Status
from quorumbook.testing import LocalCluster


async def test_a_delayed_ensemble_change_uses_a_bookie_again_that_is_back() -> None:
    async with mock_cluster(5) as cluster, cluster.connect(**QUIET) as bk:
        async with bk.create_ledger(delay_ensemble_change=True) as ledger:
            await ledger.append(b"zero")
            member = cluster.members(ledger)[0]
            await member.stop()
            await ledger.append(b"one")
            await until(lambda: append_state_of(ledger).failed)
            await member.start()
            await until(lambda: not append_state_of(ledger).failed)
            await ledger.append(b"two")
            await until(lambda: 2 in member.entry_ids(ledger.id))
            # There were spare bookies all along; nobody's place was taken.
            assert len(ledger.metadata.fragments) == 1
            assert member in cluster.members(ledger)


async def test_a_degraded_writer_finds_a_new_bookie_although_the_store_was_away(
    monkeypatch,
) -> None:
    async with mock_cluster(3) as cluster, cluster.connect(**QUIET) as bk:
        async with bk.create_ledger() as ledger:
            await ledger.append(b"zero")
            await cluster.members(ledger)[0].stop()
            await ledger.append(b"one")
            await until(lambda: ledger.is_degraded)
            attempts = 0
            read = bk._registration.bookies  # the store answers once, and no more

            async def away(*_: object) -> None:
                nonlocal attempts
                attempts += 1
                raise MetadataUnavailableError("away")

            # The store answers once, and no more.
            monkeypatch.setattr(bk._registration, "bookies", away)
            (fresh,) = await cluster.add()
            await until(lambda: attempts)
            await asyncio.sleep(0.05)
            assert attempts < 10, "asks without pause"
            # The store answers once, and no more.
            monkeypatch.setattr(bk._registration, "bookies", read)
            await until(lambda: fresh.bookie_id in ledger.metadata.ensemble)


async def test_a_bookie_that_was_read_only_for_a_while_is_used_again() -> None:
    async with mock_cluster(3) as cluster, cluster.connect(**QUIET) as bk:
        async with bk.create_ledger() as ledger:
            await ledger.append(b"zero")
            member = cluster.members(ledger)[0]
            _, registration = cluster.registrations[member.bookie_id]
            member.on_request = refuse_adds(Status.READ_ONLY)
            await registration.set_read_only()
            await ledger.append(b"one")
            await until(lambda: ledger.is_degraded)
            asked = member.count(AddRun)
            member.on_request = None
            await registration.set_writable()
            await until(lambda: not ledger.is_degraded)
            assert member.count(AddRun) == asked
            await ledger.append(b"two")
            await until(lambda: 2 in member.entry_ids(ledger.id))


async def test_with_no_more_changes_allowed_a_writer_still_takes_its_own_bookie_back() -> None:
    async with mock_cluster(5) as cluster, cluster.connect(**QUIET) as bk:
        async with bk.create_ledger(max_ensemble_changes=1) as ledger:
            await ledger.append(b"zero")
            for _ in range(2):
                member = cluster.members(ledger)[0]
                await member.stop()
                await ledger.append(b"x")
            await until(lambda: ledger.is_degraded)
            await member.start()
            await until(lambda: not ledger.is_degraded)
            assert len(ledger.metadata.fragments) == 2


async def test_bookies_that_have_another_key_of_the_ledger_are_replaced_and_not_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused: set[str] = set()
    async with mock_cluster(6) as cluster, cluster.connect(**QUIET) as bk:
        bookies = client_context(bk).bookies
        replace = bookies.replace

        async def replacing(failed: Any, *rest: Any, excluded: Any, **more: Any) -> Any:
            refused.update(failed.values())
            assert refused <= {*excluded}
            return await replace(failed, *rest, excluded=excluded, **more)

        monkeypatch.setattr(bookies, "replace", replacing)
        async with bk.create_ledger() as ledger:
            first, *others = cluster.members(ledger)
            *strange, good = cluster.spare(ledger)
            for each in (first, *strange):
                each.on_request = refuse_adds(Status.UNAUTHORIZED)
            sent = 0
            async with asyncio.timeout(PATIENCE_S):
                while good not in cluster.members(ledger):  # a change waits for the next entry
                    sent += await ledger.append(b"x") == sent
            assert {*cluster.members(ledger)} == {*others, good}
            assert first.bookie_id in refused
            assert not client_context(bk).bookies.quarantined
        async with bk.open_ledger(ledger.id) as reader:
            assert len([entry async for entry in reader.read()]) == sent


async def test_late_answers_of_what_was_given_up_do_not_hide_what_is_owed_now() -> None:
    async with (
        mock_cluster(4) as cluster,
        cluster.connect(add_timeout_s=60.0, **QUIET) as bk,
    ):
        async with bk.create_ledger(ack_quorum_size=3) as ledger:
            await ledger.append(b"zero")
            member = cluster.members(ledger)[0]
            member.hold_adds()
            pending = ledger.append_nowait(b"one")
            await until(lambda: 1 in member.entry_ids(ledger.id))
            # As if its answers had been counted by those of an earlier attempt.
            adds_of(ledger)._positions[0].forget()
            member.drop_connections()
            async with asyncio.timeout(PATIENCE_S):
                assert await pending == 1
            assert member not in cluster.members(ledger)


@pytest.mark.parametrize("shape", [(3, 3, 2), (4, 2, 2)])
async def test_entries_at_the_limit_are_written_tailed_recovered_and_read(
    shape: tuple[int, int, int],
) -> None:
    ensemble, write_quorum, ack_quorum = shape
    sizes = {"ensemble_size": ensemble, "write_quorum_size": write_quorum}
    payloads = [bytes([number]) * MAX_PAYLOAD_SIZE_BYTES for number in range(4)]
    async with LocalCluster(bookies=4) as cluster, cluster.connect() as bk:
        ledger = await bk.create_ledger(ack_quorum_size=ack_quorum, **sizes)
        async with bk.open_ledger(ledger.id, recover=False) as follower:
            tail = follower.tail()
            for payload in payloads:
                await ledger.append(payload)
                assert (await anext(tail)).payload == payload
            await tail.aclose()
        late = [ledger.append_nowait(payload) for payload in payloads]
        await late[-1]
        await ledger.abort()
        async with bk.open_ledger(ledger.id) as reader:
            assert [entry.payload async for entry in reader.read()] == payloads * 2


@pytest.mark.parametrize("shape", [(3, 3, 2), (4, 2, 2)])
async def test_s84_recovery_and_reading_of_large_entries_ask_for_few_at_a_time(
    shape: tuple[int, int, int],
) -> None:
    ensemble, write_quorum, ack_quorum = shape
    async with (
        mock_cluster(4) as cluster,
        cluster.connect(read_ahead_bytes=1_000_000, read_batch_bytes=500_000, **QUIET) as bk,
    ):
        ledger = await bk.create_ledger(
            ensemble_size=ensemble, write_quorum_size=write_quorum, ack_quorum_size=ack_quorum
        )
        await ledger.append_batch_nowait([bytes(400_000)] * 40)
        await ledger.abort()
        requests_under_way, most = 0, 0
        unanswered: set[int] = set()
        answered: set[int] = set()

        def behave(request):
            nonlocal requests_under_way, most
            if isinstance(request, Read | BatchRead):
                requests_under_way += 1
                # One answer is enough to ask for what comes next, however late the others are.
                is_batch = isinstance(request, BatchRead)
                entry_id = request.first_entry_id if is_batch else request.entry_id
                if entry_id not in answered:
                    unanswered.add(entry_id)
                most = max(most, len(unanswered))
                asyncio.get_running_loop().call_later(0.002, answer, entry_id)
                return 0.002
            return None

        def answer(entry_id: int) -> None:
            nonlocal requests_under_way
            requests_under_way -= 1
            unanswered.discard(entry_id)
            answered.add(entry_id)

        for bookie in cluster.bookies:
            bookie.on_request = behave
        async with bk.open_ledger(ledger.id) as reader:
            assert reader.last_add_confirmed == 39
            assert most <= 4
            # What the recovery asked for and did not need.
            await until(lambda: not requests_under_way)
            answered.clear()
            most = 0
            assert len([entry async for entry in reader.read()]) == 40
            assert most <= 4


async def test_two_clients_that_recover_while_the_writer_writes_lose_nothing_acknowledged() -> None:
    async with LocalCluster(bookies=4) as cluster:
        async with cluster.connect() as bk, cluster.connect() as one, cluster.connect() as two:
            ledger = await bk.create_ledger()
            acknowledged: list[int] = []

            async def write() -> None:
                while True:
                    acknowledged.append(await ledger.append(b"%d" % len(acknowledged)))

            writing = asyncio.create_task(write())
            await until(lambda: len(acknowledged) > 100)
            async with asyncio.timeout(PATIENCE_S):
                readers = await asyncio.gather(
                    one.open_ledger(ledger.id), two.open_ledger(ledger.id)
                )
                outcome = (await asyncio.gather(writing, return_exceptions=True))[0]
            assert isinstance(outcome, LedgerFencedError)
            assert readers[0].last_add_confirmed == readers[1].last_add_confirmed
            assert readers[0].last_add_confirmed >= acknowledged[-1]
            for reader in readers:
                got = [entry.payload async for entry in reader.read(0, acknowledged[-1])]
                assert got == [b"%d" % number for number in acknowledged]
                await reader.close()
            await ledger.abort()


async def test_a_ledger_deleted_while_it_is_written_and_tailed_ends_both_with_its_name() -> None:
    async with mock_cluster(4) as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        await ledger.append(b"x")
        await bk.delete_ledger(ledger.id)
        await ledger.append(b"a writer is not told before it needs the metadata")
        await cluster.members(ledger)[0].stop()
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(2):
                with pytest.raises(Exception, match=f"no ledger {ledger.id}"):
                    await ledger.append_batch_nowait([b"y"] * 2)
            with pytest.raises(Exception, match=f"no ledger {ledger.id}"):
                await ledger.close()


async def test_all_bookies_vanish_at_once_and_what_was_acknowledged_is_recovered() -> None:
    async with MockCluster() as cluster:
        await cluster.add(3)
        async with cluster.connect(**QUIET) as bk:
            ledger = await bk.create_ledger()
            await ledger.append_batch_nowait([b"x"] * 5)
            for bookie in cluster.bookies:
                await bookie.stop()
            with pytest.raises(Exception, match="cannot go on without"):
                await ledger.append(b"unknown")
            for bookie in cluster.bookies:
                await bookie.start()
            with pytest.raises(Exception, match="cannot go on without"):
                await ledger.close()
            async with bk.open_ledger(ledger.id) as reader:
                assert reader.metadata.state is LedgerState.CLOSED
                assert reader.last_add_confirmed == 4
            async with bk.create_ledger() as again:
                await again.append(b"y")
