"""The writer: appending, its window, what it publishes when idle."""

from __future__ import annotations

import asyncio

import pytest
from client_harness import QUIET, payloads_at

from doubles.mock_bookie import PATIENCE_S, SILENCE, MockCluster, mock_cluster
from doubles.waiting import until
from quorumbook.client.context import client_context
from quorumbook.client.waiting.window import ENTRY_OVERHEAD_BYTES
from quorumbook.errors import (
    BackpressureError,
    LedgerClosedError,
    LocalProtocolError,
)
from quorumbook.ids import FRAME_OVERHEAD_BYTES, MAX_FRAME_SIZE_BYTES
from quorumbook.protocol.digest import DigestType, digester, entry_header
from quorumbook.protocol.requests import AddRun, Request, WriteLAC
from quorumbook.protocol.status import Status

# Appending -------------------------------------------------------------------------------------


async def test_entries_get_consecutive_ids_in_the_order_of_the_calls() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        async with bk.create_ledger() as ledger:
            assert await ledger.append(b"zero") == 0
            futures = [ledger.append_nowait(b"%d" % i) for i in range(1, 100)]
            many = ledger.append_batch_nowait([b"a", b"b", b"c"])
            last = ledger.append_nowait(b"last")
            assert ledger.last_add_pushed == 103
            assert await last == 103
            assert await many == range(100, 103)
            assert [await future for future in futures] == list(range(1, 100))
            assert ledger.last_add_confirmed == 103
        wanted = [b"zero", *(b"%d" % i for i in range(1, 100)), b"a", b"b", b"c", b"last"]
        for bookie in cluster.bookies:
            await until(lambda bookie=bookie: payloads_at(bookie, ledger.id) == wanted)


async def test_what_is_appended_in_one_turn_leaves_as_one_run() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        futures = [ledger.append_nowait(b"x") for _ in range(50)]
        await asyncio.gather(*futures)
        for bookie in cluster.bookies:
            await until(lambda bookie=bookie: bookie.entry_ids(ledger.id))
            assert bookie.count(AddRun) == 1
        await ledger.close()


async def test_nothing_appended_is_an_empty_range() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        async with bk.create_ledger() as ledger:
            assert await ledger.append_batch_nowait([]) == range(0)
            assert await ledger.append(b"") == 0
            assert await ledger.append_batch_nowait(iter([])) == range(1, 1)


async def test_a_striped_ledger_sends_each_entry_to_its_write_set_only() -> None:
    async with mock_cluster(4) as cluster, cluster.connect() as bk:
        async with bk.create_ledger(
            ensemble_size=4, write_quorum_size=2, ack_quorum_size=2
        ) as ledger:
            await ledger.append_batch_nowait([b"x%d" % i for i in range(10)])
            await ledger.append(b"ten")
        for index, bookie in enumerate(cluster.members(ledger)):
            expected = [e for e in range(11) if (index - e) % 4 < 2]
            assert bookie.entry_ids(ledger.id) == expected


@pytest.mark.parametrize("kind", list(DigestType))
async def test_entries_are_sealed_with_the_ledgers_own_digest(kind: DigestType) -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        async with bk.create_ledger(password=b"secret", digest_type=kind) as ledger:
            await ledger.append(b"payload")
        await until(lambda: cluster.bookies[0].entry_ids(ledger.id))
        entry = cluster.bookies[0].ledgers[ledger.id].entries[0]
        digester(kind, b"secret").verify(entry, ledger.id, 0)


async def test_r01_an_entry_is_confirmed_by_its_ack_quorum_and_no_sooner() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        for bookie in cluster.bookies:
            bookie.hold_adds()
        future = ledger.append_nowait(b"x")
        await until(lambda: all(b.entry_ids(ledger.id) == [0] for b in cluster.bookies))
        cluster.bookies[0].release_adds()
        await bk.ledger_metadata(ledger.id)
        await asyncio.sleep(0.05)
        assert not future.done()
        assert ledger.last_add_confirmed == -1
        cluster.bookies[1].release_adds()
        assert await future == 0
        await ledger.close()


async def test_r01_acks_of_a_replaced_bookie_are_dropped_and_its_entries_sent_to_the_new() -> None:
    async with mock_cluster(4) as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger(ack_quorum_size=3)
        bad, slow, good = cluster.members(ledger)
        (spare,) = cluster.spare(ledger)
        slow.hold_adds()
        first = ledger.append_nowait(b"x")
        await until(lambda: slow.entry_ids(ledger.id) == [0])
        bad.hold_adds()  # it has acknowledged entry 0, and never will entry 1
        second = ledger.append_nowait(b"y")
        await until(lambda: bad.entry_ids(ledger.id) == [0, 1])
        await bad.stop()
        await until(lambda: spare.entry_ids(ledger.id) == [0, 1])
        slow.release_adds()
        assert (await first, await second) == (0, 1)
        assert ledger.metadata.ensemble == (spare.bookie_id, slow.bookie_id, good.bookie_id)
        assert len(ledger.metadata.fragments) == 1
        await ledger.close()


async def test_r02_entries_carry_the_last_add_confirmed_of_the_moment_they_are_sent() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        await ledger.append_batch_nowait([b"a", b"b"])
        await ledger.append_batch_nowait([b"c", b"d"])
        await until(lambda: len(cluster.bookies[0].entry_ids(ledger.id)) == 4)
        entries = cluster.bookies[0].ledgers[ledger.id].entries
        assert [entry_header(entries[i])[2] for i in range(4)] == [-1, -1, 1, 1]
        assert [entry_header(entries[i])[3] for i in range(4)] == [1, 2, 3, 4]
        await ledger.close()


async def test_r06_s22_s65_a_payload_is_frozen_when_it_is_appended() -> None:
    async with mock_cluster(4) as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger(ack_quorum_size=3)
        bad, *others = cluster.members(ledger)
        (spare,) = cluster.spare(ledger)
        bad.hold_adds()
        buffer = bytearray(b"before")
        future = ledger.append_nowait(buffer)
        many = ledger.append_batch_nowait([memoryview(buffer)])
        buffer[:] = b"AFTER!"
        await until(lambda: all(b.entry_ids(ledger.id) == [0, 1] for b in (bad, *others)))
        await bad.stop()
        assert await future == 0
        assert await many == range(1, 2)
        for bookie in (*others, spare):
            assert payloads_at(bookie, ledger.id) == [b"before", b"before"]
        # The very same bytes, digest and all, went to the replacement.
        assert spare.ledgers[ledger.id].entries == others[0].ledgers[ledger.id].entries
        await ledger.close()


@pytest.mark.parametrize("payload", ["text", 5, None, [1]])
async def test_a_payload_that_is_no_bytes_is_a_type_error(payload: object) -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        async with bk.create_ledger() as ledger:
            with pytest.raises(TypeError):
                ledger.append_nowait(payload)  # type: ignore[arg-type]
            with pytest.raises(TypeError):
                ledger.append_batch_nowait([b"fine", payload])  # type: ignore[list-item]
            assert await ledger.append(b"first") == 0


async def test_an_entry_beyond_the_limit_is_refused_and_the_largest_one_is_not() -> None:
    largest = MAX_FRAME_SIZE_BYTES - FRAME_OVERHEAD_BYTES
    async with mock_cluster() as cluster, cluster.connect() as bk:
        async with bk.create_ledger() as ledger:
            with pytest.raises(LocalProtocolError, match="larger"):
                await ledger.append(bytes(largest + 1))
            with pytest.raises(LocalProtocolError, match="larger"):
                ledger.append_batch_nowait([b"x", bytes(largest + 1)])
            assert await ledger.append(bytes(largest)) == 0
            assert ledger.pending_entries == 0


async def test_cancelling_an_append_does_not_take_the_entry_back() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        for bookie in cluster.bookies:
            bookie.hold_adds()
        task = asyncio.create_task(ledger.append(b"x"))
        await until(lambda: cluster.bookies[0].entry_ids(ledger.id) == [0])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for bookie in cluster.bookies:
            bookie.release_adds()
        assert await ledger.append(b"y") == 1
        await ledger.close()
        assert ledger.metadata.last_entry_id == 1


# The window ------------------------------------------------------------------------------------


async def test_a_full_window_refuses_and_drain_waits_for_room() -> None:
    async with (
        mock_cluster() as cluster,
        cluster.connect(max_pending_entries=3, **QUIET) as bk,
    ):
        ledger = await bk.create_ledger()
        for bookie in cluster.bookies:
            bookie.hold_adds()
        for _ in range(3):
            ledger.append_nowait(b"x")
        with pytest.raises(BackpressureError, match="max_pending_entries"):
            ledger.append_nowait(b"x")
        with pytest.raises(BackpressureError):
            ledger.append_batch_nowait([b"x"])
        drained = asyncio.create_task(ledger.drain())
        waiting = [asyncio.create_task(ledger.append(b"%d" % i)) for i in range(10)]
        await until(lambda: cluster.bookies[0].entry_ids(ledger.id) == [0, 1, 2])
        assert not drained.done()
        assert ledger.pending_entries == 3
        for bookie in cluster.bookies:
            bookie.release_adds()
        await drained
        # Those who wait get their turn in the order they came.
        assert [await task for task in waiting] == list(range(3, 13))
        await ledger.close()
        assert ledger.pending_entries == 0


async def test_an_append_that_waits_fails_when_the_writer_ends() -> None:
    async with (
        mock_cluster() as cluster,
        cluster.connect(max_pending_entries=1, **QUIET) as bk,
    ):
        ledger = await bk.create_ledger()
        for bookie in cluster.bookies:
            bookie.hold_adds()
        first = ledger.append_nowait(b"x")
        waiting = asyncio.create_task(ledger.append(b"y"))
        draining = asyncio.create_task(ledger.drain())
        await until(lambda: cluster.bookies[0].entry_ids(ledger.id) == [0])
        await ledger.abort()
        for task in (first, waiting, draining):
            with pytest.raises(LedgerClosedError):
                await task


async def test_an_entry_larger_than_the_window_goes_when_the_window_is_empty() -> None:
    async with (
        mock_cluster() as cluster,
        cluster.connect(max_pending_bytes=1000, **QUIET) as bk,
    ):
        async with bk.create_ledger() as ledger:
            assert await ledger.append(bytes(5000)) == 0
            assert await ledger.append(bytes(5000)) == 1
            with pytest.raises(LocalProtocolError):
                ledger.append_batch_nowait([bytes(5000)] * 2)


async def test_s84_one_slow_bookie_holds_no_more_than_the_byte_budget() -> None:
    budget = 8 * 1024 * 1024
    async with (
        mock_cluster() as cluster,
        cluster.connect(max_pending_bytes=budget, add_timeout_s=60.0, **QUIET) as bk,
    ):
        ledger = await bk.create_ledger(ack_quorum_size=2)
        await ledger.append(b"connect")
        slow = cluster.members(ledger)[2]
        slow.stop_reading()
        payload = bytes(200_000)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                while True:  # the quorum of the others would confirm for ever
                    await ledger.append(payload)
        channel = client_context(bk).bookies.fast(slow.bookie_id)
        assert budget // 2 < channel.unsent_bytes <= budget + len(payload) + 1000
        assert ledger.pending_bytes <= budget + len(payload) + ENTRY_OVERHEAD_BYTES
        with pytest.raises(BackpressureError):
            ledger.append_nowait(payload)
        await ledger.abort()


async def test_s84_a_bookie_that_never_takes_its_bytes_is_replaced_and_room_comes_back() -> None:
    async with (
        mock_cluster(4) as cluster,
        cluster.connect(max_pending_bytes=4_000_000, add_timeout_s=0.3, **QUIET) as bk,
    ):
        ledger = await bk.create_ledger(ack_quorum_size=2)
        await ledger.append(b"connect")
        slow = cluster.members(ledger)[2]
        slow.stop_reading()
        async with asyncio.timeout(PATIENCE_S):
            while slow.bookie_id in ledger.metadata.ensemble:
                await ledger.append(bytes(200_000))
            for _ in range(50):
                await ledger.append(bytes(200_000))
        await ledger.close()


async def test_s85_overload_makes_appends_wait_and_memory_stays() -> None:
    def shed(request: Request):
        if isinstance(request, AddRun) and next(turns) % 3 == 0:
            return Status.TOO_MANY_REQUESTS
        return None

    turns = iter(range(1_000_000))
    async with (
        mock_cluster() as cluster,
        cluster.connect(max_pending_entries=50, **QUIET) as bk,
    ):
        for bookie in cluster.bookies:
            bookie.on_request = shed
        async with bk.create_ledger(ack_quorum_size=3) as ledger:
            highest = 0

            async def append() -> None:
                nonlocal highest
                await ledger.append(b"x")
                highest = max(highest, ledger.pending_entries)

            await asyncio.gather(*(append() for _ in range(500)))
            assert highest <= 50
        # Overload is no reason to put the load on another bookie.
        assert len(ledger.metadata.fragments) == 1
        for bookie in cluster.bookies:
            assert bookie.entry_ids(ledger.id) == list(range(500))


# The explicit last add confirmed ---------------------------------------------------------------


async def test_s38_an_idle_writer_publishes_what_is_confirmed_once() -> None:
    async with mock_cluster() as cluster, cluster.connect(lac_delay_s=0.01) as bk:
        async with bk.create_ledger() as ledger:
            await ledger.append_batch_nowait([b"x"] * 5)
            await until(lambda: all(b.count(WriteLAC) == 1 for b in cluster.bookies))
            seal = digester(DigestType.CRC32C, b"")
            for bookie in cluster.bookies:
                packet = bookie.ledgers[ledger.id].lac_packet or b""
                assert seal.parse_lac_packet(packet, ledger.id) == 4
            await asyncio.sleep(0.1)
            assert all(b.count(WriteLAC) == 1 for b in cluster.bookies)
            await ledger.append(b"y")
            await until(lambda: all(b.count(WriteLAC) == 2 for b in cluster.bookies))


async def test_s38_a_refused_publication_is_tried_again_and_a_silent_bookie_holds_none_up() -> None:
    attempts = iter([Status.IO_ERROR, Status.IO_ERROR])

    def refuse(request: Request):
        return next(attempts, None) if isinstance(request, WriteLAC) else None

    def ignore(request: Request):
        return SILENCE if isinstance(request, WriteLAC) else None

    async with (
        mock_cluster() as cluster,
        cluster.connect(lac_delay_s=0.01, request_timeout_s=0.2) as bk,
    ):
        ledger = await bk.create_ledger()
        first, second, third = cluster.members(ledger)
        first.on_request, second.on_request = refuse, ignore
        await ledger.append(b"x")
        await until(lambda: first.count(WriteLAC) == 3)
        assert third.ledgers[ledger.id].last_add_confirmed == 0
        await ledger.append(b"y")
        await until(lambda: third.ledgers[ledger.id].last_add_confirmed == 1)
        await ledger.close()


async def test_with_a_delay_of_zero_nothing_is_published() -> None:
    async with mock_cluster() as cluster, cluster.connect(lac_delay_s=0) as bk:
        async with bk.create_ledger() as ledger:
            await ledger.append(b"x")
            await asyncio.sleep(0.05)
        assert all(b.count(WriteLAC) == 0 for b in cluster.bookies)


async def test_mock_cluster_is_empty_at_the_end() -> None:
    async with MockCluster() as cluster:
        assert cluster.bookies == []
