"""How a reader asks: batches with limits, old bookies, slow ones, one bookie or all in turn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from typing import Any

import pytest
from client_harness import QUIET

from doubles.mock_bookie import PATIENCE_S, SILENCE, MockCluster, mock_cluster
from doubles.waiting import until
from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_context
from quorumbook.errors import LocalProtocolError, NoSuchEntryError, ReadFailedError
from quorumbook.protocol.requests import AddRun, BatchRead, Read
from quorumbook.protocol.status import Status

PAYLOADS = [b"%03d" % i * 10 for i in range(200)]
SHAPES = [(3, 3, 2), (4, 2, 2)]


async def written(bk: BookKeeper, shape: tuple[int, int, int] = (3, 3, 2)) -> int:
    names = ("ensemble_size", "write_quorum_size", "ack_quorum_size")
    async with bk.create_ledger(**dict(zip(names, shape, strict=True))) as ledger:
        await ledger.append_batch_nowait(PAYLOADS)
    return ledger.id


def on_batch_reads(behaviour: Any) -> Any:
    return lambda request: behaviour if isinstance(request, BatchRead) else None


def asked(cluster: MockCluster) -> Counter[str]:
    return Counter({b.bookie_id: b.count(BatchRead) for b in cluster.bookies})


# The last entry, and batches with limits


async def test_the_last_entry_is_the_last_confirmed_one() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        async with bk.open_ledger(ledger.id, recover=False) as reader:
            with pytest.raises(NoSuchEntryError, match="no entry yet"):
                await reader.read_last_entry()
            await ledger.append(b"0")
            await ledger.append(b"1")
            assert (await reader.read_last_entry()).payload == b"0"
        await ledger.close()
        async with bk.open_ledger(ledger.id) as reader:
            assert (await reader.read_last_entry()).payload == b"1"


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_batch_keeps_to_its_limits_and_has_one_entry_at_least(
    shape: tuple[int, int, int],
) -> None:
    async with mock_cluster(shape[0]) as cluster, cluster.connect() as bk:
        ledger_id = await written(bk, shape)
        async with bk.open_ledger(ledger_id) as reader:
            batch = await reader.read_batch(10, max_count=7)
            assert (batch.first_entry_id, batch.payloads) == (10, PAYLOADS[10:17])
            size = batch.size_bytes // 7
            small = await reader.read_batch(10, max_size_bytes=3 * size + 50)
            # A bookie counts the head of its answer in; less than three is allowed, more is not.
            assert small.payloads == PAYLOADS[10 : 10 + len(small)]
            assert 2 <= len(small) <= 3
            assert (await reader.read_batch(10, max_size_bytes=1)).payloads == PAYLOADS[10:11]
            assert (await reader.read_batch(199, max_count=50)).payloads == PAYLOADS[199:]
            assert (await reader.read_batch(0)).payloads == PAYLOADS
            with pytest.raises(LocalProtocolError, match="beyond the last add confirmed"):
                await reader.read_batch(200)


async def test_a_batch_of_one_bookie_costs_one_request() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger_id = await written(bk)
        async with bk.open_ledger(ledger_id) as reader:
            await reader.read_batch(0, max_count=50)
        assert asked(cluster).total() == 1


# Bookies without batch reads


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", ["closes", Status.BAD_REQUEST, Status.BAD_VERSION, "option"])
async def test_bookies_without_batch_reads_are_read_entry_by_entry(
    way: Any, shape: tuple[int, int, int]
) -> None:
    options = {"batch_reads": False} if way == "option" else {}
    async with mock_cluster(shape[0]) as cluster, cluster.connect(**options) as bk:
        ledger_id = await written(bk, shape)
        for bookie in cluster.bookies:
            bookie.is_old = way == "closes"
            bookie.on_request = on_batch_reads(way) if isinstance(way, Status) else None
        async with bk.open_ledger(ledger_id) as reader, asyncio.timeout(PATIENCE_S):
            assert [entry.payload async for entry in reader.read()] == PAYLOADS
            assert (await reader.read_entry(5)).payload == PAYLOADS[5]
            assert (await reader.read_batch(7, max_count=3)).payloads == PAYLOADS[7:10]
        # Each is tried once in a connection's life, and never where the option says so.
        most = 0 if way == "option" else 1
        assert all(bookie.count(BatchRead) <= most for bookie in cluster.bookies)
        assert sum(bookie.count(Read) for bookie in cluster.bookies) >= 200


async def test_a_bookie_that_learnt_batch_reads_is_asked_for_them_on_its_next_connection() -> None:
    async with mock_cluster(1) as cluster, cluster.connect() as bk:
        ledger_id = await written(bk, (1, 1, 1))
        (bookie,) = cluster.bookies
        bookie.is_old = True
        async with bk.open_ledger(ledger_id) as reader:
            assert [entry.payload async for entry in reader.read()] == PAYLOADS
            bookie.is_old = False
            bookie.drop_connections()
            await until(lambda: not client_context(bk).bookies.fast(bookie.bookie_id).is_connected)
            before = bookie.count(Read)
            assert [entry.payload async for entry in reader.read()] == PAYLOADS
            assert bookie.count(Read) == before


@pytest.mark.parametrize("is_writing", [True, False])
async def test_finding_out_that_a_bookie_is_old_costs_nobody_anything(
    is_writing: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger_id = await written(bk)
        for bookie in cluster.bookies:
            bookie.is_old = True
        async with contextlib.AsyncExitStack() as stack:
            ledger = None
            if is_writing:
                ledger = await stack.enter_async_context(await bk.create_ledger())
                for bookie in cluster.bookies:
                    bookie.hold_adds()  # what is lost with the connection would be seen
                pending = ledger.append_batch_nowait([b"pending"] * 10)
            async with bk.open_ledger(ledger_id) as reader, asyncio.timeout(PATIENCE_S):
                assert [entry.payload async for entry in reader.read()] == PAYLOADS
                assert (await reader.read_entry(5)).payload == PAYLOADS[5]
            if ledger is not None:
                for bookie in cluster.bookies:
                    bookie.release_adds()
                await pending
                assert len(ledger.metadata.fragments) == 1
        assert sum(bookie.count(BatchRead) for bookie in cluster.bookies) >= 1
        assert all(bookie.count(BatchRead) <= 1 for bookie in cluster.bookies)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("is_old", [True, False])
async def test_a_client_that_writes_reads_batches_as_soon_as_it_knows(is_old: bool) -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger_id = await written(bk)
        for bookie in cluster.bookies:
            bookie.is_old = is_old
        async with bk.create_ledger() as ledger, await bk.open_ledger(ledger_id) as reader:
            await ledger.append(b"x")
            for _ in range(3):
                assert [entry.payload async for entry in reader.read()] == PAYLOADS
            singles = sum(bookie.count(Read) for bookie in cluster.bookies)
            assert (singles > 0) is is_old
            # The trial's connection is closed again.
            await until(lambda: all(b.connection_count <= 2 for b in cluster.bookies))


async def test_single_reads_tell_damage_and_absence_as_batches_do() -> None:
    async with mock_cluster() as cluster, cluster.connect(batch_reads=False) as bk:
        ledger_id = await written(bk)
        cluster.bookies[0].corrupt = {3, 4, 150}
        del cluster.bookies[1].ledgers[ledger_id].entries[4]
        async with bk.open_ledger(ledger_id) as reader:
            assert [entry.payload async for entry in reader.read()] == PAYLOADS
            for bookie in cluster.bookies:
                bookie.ledgers[ledger_id].entries.pop(8, None)
            with pytest.raises(NoSuchEntryError):
                await reader.read_entry(8)


# Whom to ask


async def test_sticky_reads_stay_with_one_bookie_and_move_when_it_fails() -> None:
    async with (
        mock_cluster() as cluster,
        cluster.connect(sticky_reads=True, read_batch_bytes=1000) as bk,
    ):
        ledger_id = await written(bk)
        async with bk.open_ledger(ledger_id) as reader:
            assert [entry.payload async for entry in reader.read()] == PAYLOADS
            await reader.read_entry(1)
            await reader.read_entry(2)
            (first,) = [bookie_id for bookie_id, count in asked(cluster).items() if count]
            cluster.by_id(first).on_request = on_batch_reads(Status.IO_ERROR)
            before = asked(cluster)
            assert [entry.payload async for entry in reader.read()] == PAYLOADS
            moved = asked(cluster) - before
            (second, _), *_ = moved.most_common(1)
            assert second != first
            assert set(moved) == {first, second}
            before = asked(cluster)
            assert [entry.payload async for entry in reader.read()] == PAYLOADS
            assert set(asked(cluster) - before) == {second}


async def test_without_sticky_reads_all_bookies_share_the_work() -> None:
    async with mock_cluster() as cluster, cluster.connect(read_batch_bytes=1000) as bk:
        ledger_id = await written(bk)
        async with bk.open_ledger(ledger_id) as reader:
            assert [entry.payload async for entry in reader.read()] == PAYLOADS
        assert all(count > 3 for count in asked(cluster).values())
        assert len(asked(cluster)) == 3


@pytest.mark.parametrize("is_wanted", [True, False])
async def test_a_bookie_that_was_silent_is_asked_last_if_that_is_wanted(is_wanted: bool) -> None:
    async with (
        mock_cluster() as cluster,
        cluster.connect(speculative_read_s=0.05, reorder_reads=is_wanted) as bk,
    ):
        ledger_id = await written(bk)
        silent = cluster.bookies[0]
        silent.on_request = on_batch_reads(SILENCE)
        async with bk.open_ledger(ledger_id) as reader, asyncio.timeout(PATIENCE_S):
            for _ in range(3):  # one of three chunks begins with it
                assert [entry.payload async for entry in reader.read(0, 30)] == PAYLOADS[:31]
                assert [entry.payload async for entry in reader.read(1, 30)] == PAYLOADS[1:31]
                assert [entry.payload async for entry in reader.read(2, 30)] == PAYLOADS[2:31]
        assert (silent.count(BatchRead) == 1) is is_wanted


async def test_a_busy_bookie_is_asked_later() -> None:
    async with mock_cluster() as cluster, cluster.connect(reorder_pending_reads=2) as bk:
        ledger_id = await written(bk)
        bookies = client_context(bk).bookies
        ensemble = (await bk.ledger_metadata(ledger_id)).ensemble
        busy = cluster.by_id(ensemble[0])
        busy.on_request = on_batch_reads(SILENCE)
        reads = [bookies.fast(busy.bookie_id).read_run(ledger_id, 0, 1, 100) for _ in range(2)]
        await until(lambda: busy.count(BatchRead) == 2)
        busy.requests.clear()
        async with bk.open_ledger(ledger_id) as reader:
            for entry_id in range(6):
                assert (await reader.read_entry(entry_id)).payload == PAYLOADS[entry_id]
        assert busy.count(BatchRead) == 0
        for read in reads:
            read.cancel()


async def test_without_speculation_a_silent_bookie_is_waited_for() -> None:
    async with (
        mock_cluster() as cluster,
        cluster.connect(speculative_read_s=0, read_timeout_s=0.3) as bk,
    ):
        ledger_id = await written(bk)
        for bookie in cluster.bookies:
            bookie.on_request = on_batch_reads(SILENCE)
        async with bk.open_ledger(ledger_id) as reader:
            with pytest.raises(ReadFailedError, match="did not answer a read"):
                await reader.read_batch(0)
        assert set(asked(cluster).values()) == {1}


async def test_each_further_silence_lasts_longer() -> None:
    async with (
        mock_cluster(5) as cluster,
        cluster.connect(
            speculative_read_s=0.05,
            max_speculative_read_s=100.0,
            speculative_read_factor=1000.0,
        ) as bk,
    ):
        ledger_id = await written(bk, (5, 5, 3))
        for bookie in cluster.bookies:
            bookie.on_request = on_batch_reads(SILENCE)
        async with bk.open_ledger(ledger_id) as reader:
            reading = asyncio.create_task(reader.read_batch(0))
            await until(lambda: asked(cluster).total() == 2)
            await asyncio.sleep(0.3)  # six times the first silence: a third one would be asked
            assert asked(cluster).total() == 2
            reading.cancel()


async def test_writes_do_not_suffer_from_single_reads_on_their_connection() -> None:
    async with mock_cluster() as cluster, cluster.connect(batch_reads=False) as bk:
        ledger_id = await written(bk)
        ledger = await bk.create_ledger()
        async with bk.open_ledger(ledger_id) as reader:
            appended = [ledger.append_nowait(b"x") for _ in range(100)]
            assert [entry.payload async for entry in reader.read()] == PAYLOADS
            assert [await future for future in appended] == list(range(100))
        await ledger.close()
        assert len(ledger.metadata.fragments) == 1
        assert all(b.count(AddRun) for b in cluster.bookies)


# Metadata


async def test_a_tail_learns_of_fragments_and_of_the_close_by_the_watch_alone() -> None:
    async with (
        mock_cluster(4) as cluster,
        # Bookies say nothing for longer than this test has patience.
        cluster.connect(long_poll_timeout_s=100.0, request_timeout_s=100.0, **QUIET) as bk,
    ):
        ledger = await bk.create_ledger()
        await ledger.append(b"0")
        async with bk.open_ledger(ledger.id, recover=False) as reader:
            got: list[bytes] = []

            async def tail() -> None:
                async for entry in reader.tail():
                    got.append(entry.payload)  # noqa: PERF401 - seen while it goes on

            tailing = asyncio.create_task(tail())
            await until(lambda: sum(b.count(Read) for b in cluster.bookies) >= 2)
            for bookie in cluster.bookies:
                bookie.on_request = lambda request: SILENCE if isinstance(request, Read) else None
                bookie._polls.clear()  # what the double holds back
            await cluster.members(ledger)[0].stop()
            await ledger.append(b"1")
            await until(lambda: len(reader.metadata.fragments) == 2)
            assert reader.metadata.ensemble == ledger.metadata.ensemble
            # What stands before the new fragment was confirmed when it was made.
            await until(lambda: got == [b"0"])
            await ledger.close()
            async with asyncio.timeout(PATIENCE_S):
                await tailing
            assert got == [b"0", b"1"]
            assert reader.is_closed
