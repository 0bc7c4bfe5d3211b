"""Readers that follow a writer, against bookies that do what a test tells them to."""

# ruff: noqa: PERF401 - a loop that appends shows what came before it was stopped

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import pytest
from client_harness import QUIET, polling_from

from doubles.mock_bookie import PATIENCE_S, SILENCE, MockCluster, mock_cluster
from doubles.waiting import until
from quorumbook.client.reading.reader import LedgerReader
from quorumbook.env import Env
from quorumbook.errors import (
    ClientClosedError,
    LedgerClosedError,
    NoSuchLedgerInMetadataError,
)
from quorumbook.protocol.digest import DigestType, digester
from quorumbook.protocol.requests import BatchRead, Read, ReadLAC, Request

SEAL = digester(DigestType.CRC32C, b"")


@contextlib.asynccontextmanager
async def tailing(reader: LedgerReader, first: int = 0) -> AsyncIterator[list[bytes]]:
    """Collect what a tail shows."""
    got: list[bytes] = []

    async def tail() -> None:
        async for entry in reader.tail(first):
            got.append(entry.payload)

    task = asyncio.create_task(tail())
    try:
        yield got
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def requests(cluster: MockCluster, kind: type[Request]) -> int:
    return sum(bookie.count(kind) for bookie in cluster.bookies)


@pytest.mark.parametrize("shape", [(3, 3, 2), (4, 2, 2)])
async def test_a_tail_follows_until_the_ledger_is_closed(shape: tuple[int, int, int]) -> None:
    ensemble, writes, acks = shape
    async with mock_cluster(ensemble) as cluster, cluster.connect() as bk:
        ledger = await bk.create_ledger(
            ensemble_size=ensemble, write_quorum_size=writes, ack_quorum_size=acks
        )
        async with bk.open_ledger(ledger.id, recover=False) as reader:
            got: list[bytes] = []

            async def tail() -> None:
                async for entry in reader.tail():
                    got.append(entry.payload)

            tailing = asyncio.create_task(tail())
            expected: list[bytes] = []
            for round_number in range(20):
                batch = [b"%d-%d" % (round_number, i) for i in range(round_number)]
                await ledger.append_batch_nowait(batch)
                expected += batch
                # An idle writer publishes, so that even the last entry is seen.
                await until(lambda wanted=expected: got == wanted)
            await ledger.append(b"end")
            await ledger.close()
            async with asyncio.timeout(PATIENCE_S):
                await tailing
            assert got == [*expected, b"end"]
            assert reader.is_closed


async def test_a_tail_goes_on_past_dead_bookies_and_ensemble_changes() -> None:
    async with mock_cluster(6) as cluster, cluster.connect(request_timeout_s=0.5) as bk:
        ledger = await bk.create_ledger()
        async with bk.open_ledger(ledger.id, recover=False) as reader:
            got: list[int] = []

            async def tail() -> None:
                async for entry in reader.tail(2):
                    got.append(entry.entry_id)

            tailing = asyncio.create_task(tail())
            for number in range(3):
                for _ in range(5):
                    await ledger.append(b"x")
                await cluster.members(ledger)[number].stop()
            last = await ledger.append(b"end")
            await until(lambda: got[-1:] == [last])
            assert got == list(range(2, last + 1))
            await ledger.close()
            async with asyncio.timeout(PATIENCE_S):
                await tailing


async def test_a_tail_of_one_entry_at_a_time_reads_no_entry_twice() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger = await bk.create_ledger()
        async with bk.open_ledger(ledger.id, recover=False) as reader:
            entries = reader.tail()
            for i in range(5):
                await ledger.append(b"%d" % i)
                assert (await anext(entries)).payload == b"%d" % i
            await entries.aclose()
        assert sum(b.count(BatchRead) for b in cluster.bookies) == 0
        await ledger.close()


async def test_a_tail_ends_with_an_error_when_its_ledger_is_deleted() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger = await bk.create_ledger()
        async with bk.open_ledger(ledger.id, recover=False) as reader:
            tailing = asyncio.create_task(anext(reader.tail()))
            await until(lambda: any(b.count(Read) for b in cluster.bookies))
            await bk.delete_ledger(ledger.id)
            with pytest.raises(NoSuchLedgerInMetadataError):
                await tailing
        await ledger.abort()


@pytest.mark.parametrize("is_client", [True, False])
async def test_closing_ends_a_tail(is_client: bool) -> None:
    async with mock_cluster() as cluster:
        bk = await cluster.connect()
        ledger = await bk.create_ledger()
        reader = await bk.open_ledger(ledger.id, recover=False)
        tailing = asyncio.create_task(anext(reader.tail()))
        await until(lambda: any(b.count(Read) for b in cluster.bookies))
        if is_client:
            await ledger.close()
        await (bk.close() if is_client else reader.close())
        with pytest.raises((LedgerClosedError, ClientClosedError, StopAsyncIteration)):
            await tailing
        await ledger.abort()
        await bk.close()


async def test_s35_an_empty_answer_to_a_long_poll_is_asked_again() -> None:
    async with mock_cluster() as cluster, cluster.connect(long_poll_timeout_s=0.05) as bk:
        ledger = await bk.create_ledger()
        async with bk.open_ledger(ledger.id, recover=False) as reader:
            tailing = asyncio.create_task(anext(reader.tail()))
            await until(lambda: sum(b.count(Read) for b in cluster.bookies) > 8)
            await ledger.append(b"x")
            assert (await tailing).payload == b"x"
        await ledger.close()


@pytest.mark.parametrize("reason", ["fenced", "unknown"])
async def test_a_tail_does_not_pester_bookies_that_answer_at_once_without_news(
    reason: str,
) -> None:
    async with mock_cluster() as cluster, cluster.connect(lac_delay_s=0) as bk:
        ledger = await bk.create_ledger()
        if reason == "fenced":
            await ledger.append(b"x")
            for bookie in cluster.bookies:
                bookie.ledgers[ledger.id].is_fenced = True
        async with bk.open_ledger(ledger.id, recover=False) as reader:
            tailing = asyncio.create_task(anext(reader.tail()))
            await asyncio.sleep(0.3)
            assert sum(b.count(Read) for b in cluster.bookies) < 40
            tailing.cancel()
        await ledger.abort()


async def test_entries_in_a_row_prove_each_other_without_another_request() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        await ledger.append(b"0")
        async with bk.open_ledger(ledger.id, recover=False) as reader:
            asked = requests(cluster, ReadLAC)
            async with tailing(reader) as got:
                await until(lambda: requests(cluster, Read) == 2)
                for number in range(1, 20):
                    seen = requests(cluster, Read)
                    await ledger.append(b"%d" % number)
                    await until(lambda n=number: got == [b"%d" % i for i in range(n)])
                    await until(lambda n=seen: requests(cluster, Read) > n)
                    if number == 1:
                        # The first one was there before anybody waited for it.
                        batches = requests(cluster, BatchRead)
            assert requests(cluster, BatchRead) == batches
            assert requests(cluster, ReadLAC) == asked
        await ledger.abort()


async def test_many_entries_at_a_time_are_read_as_far_as_they_are_proven() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        async with bk.open_ledger(ledger.id, recover=False) as reader, tailing(reader) as got:
            for number in range(5):
                await ledger.append_batch_nowait([b"%d-%d" % (number, i) for i in range(10)])
                await until(lambda n=number: len(got) == 10 * n)
        assert got == [b"%d-%d" % (number, i) for number in range(4) for i in range(10)]
        await ledger.abort()


@pytest.mark.parametrize("liars", [1, 3])
@pytest.mark.parametrize("is_damaged", [True, False])
async def test_r32_a_last_entry_proves_only_what_its_digest_covers(
    liars: int, is_damaged: bool
) -> None:
    env = polling_from(0)
    async with mock_cluster() as cluster, cluster.connect(env=env, **QUIET) as bk:
        ledger = await bk.create_ledger()
        await ledger.append(b"0")
        await ledger.append(b"1")
        async with bk.open_ledger(ledger.id, recover=False) as reader:

            def tamper(entry_id: int, entry: bytes) -> bytes:
                # Its own last add confirmed is 0, and becomes 1.
                forged = entry[:16] + (1).to_bytes(8) + entry[24:]
                return forged if is_damaged else SEAL.seal(77, entry_id, 1, 9, b"of another ledger")

            lying = cluster.members(ledger)[:liars]
            for liar in lying:
                liar.claimed_lac = 1
                liar.tamper = tamper
            async with tailing(reader, 1) as got:
                # One that lies is asked no more while the others wait for news.
                await until(lambda: all(b.count(Read) >= liars for b in lying))
                assert reader.last_add_confirmed == 0
                assert got == []
                if liars == 1:
                    await ledger.append(b"2")
                    await until(lambda: got == [b"1"])
        await ledger.abort()


async def test_an_entry_that_came_too_early_is_not_shown_before_it_is_proven() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        await ledger.append(b"0")
        async with bk.open_ledger(ledger.id, recover=False) as reader:
            assert reader.last_add_confirmed == -1
            for bookie in cluster.bookies:
                # Entry 0 comes along with this, and nothing says that it is confirmed.
                bookie.claimed_lac = 0
            async with tailing(reader) as got:
                await until(lambda: all(b.count(ReadLAC) > 2 for b in cluster.bookies))
                assert got == []
                for bookie in cluster.bookies:
                    bookie.claimed_lac = None
                await ledger.append(b"1")
                await until(lambda: got == [b"0"])
                assert requests(cluster, BatchRead) == 0
        await ledger.abort()


async def test_what_an_idle_writer_published_is_learnt_of_a_bookie_without_entries() -> None:
    env = polling_from(0)
    async with mock_cluster() as cluster, cluster.connect(env=env, lac_delay_s=0.0) as bk:
        ledger = await bk.create_ledger()
        await ledger.append(b"0")
        async with bk.open_ledger(ledger.id, recover=False) as reader:
            knowing, *others = cluster.members(ledger)
            for bookie in others:
                bookie.on_request = lambda request: (
                    SILENCE if isinstance(request, Read | ReadLAC) else None
                )
            mock = knowing.ledgers[ledger.id]
            mock.entries.clear()
            mock.lac_packet = SEAL.lac_packet(ledger.id, 0)
            mock.last_add_confirmed = 0
            async with tailing(reader) as got:
                await until(lambda: got == [b"0"])
        await ledger.abort()


@pytest.mark.parametrize("position", range(3))
async def test_a_tail_reads_where_its_news_came_from_not_at_a_bookie_that_hangs(
    position: int,
) -> None:
    for_ever = dict.fromkeys(("speculative_read_s", "read_timeout_s", "request_timeout_s"), 3600)
    async with mock_cluster() as cluster, cluster.connect(**for_ever) as bk:
        ledger = await bk.create_ledger()
        async with bk.open_ledger(ledger.id, recover=False) as reader, tailing(reader) as got:
            hanging = cluster.members(ledger)[position]
            hanging.on_request = lambda request: (
                SILENCE if isinstance(request, Read | BatchRead | ReadLAC) else None
            )
            expected: list[bytes] = []
            for number in range(9):
                # Not all of several at a time come along with a poll, and another number of them
                # each time: whoever took the bookies in turn would ask the one that hangs.
                batch = [b"%d-%d" % (number, i) for i in range(10 + number)]
                await ledger.append_batch_nowait(batch)
                expected += batch
                await until(lambda wanted=expected: got == wanted)
            assert requests(cluster, BatchRead) > 0
            assert hanging.count(BatchRead) == 0
        await ledger.abort()


@pytest.mark.parametrize("position", range(4))
async def test_a_tail_asks_the_bookies_that_it_has_drawn(position: int) -> None:
    env = polling_from(position)
    async with mock_cluster(4) as cluster, cluster.connect(env=env, **QUIET) as bk:
        ledger = await bk.create_ledger(ensemble_size=4, write_quorum_size=4, ack_quorum_size=4)
        await ledger.append(b"0")
        async with bk.open_ledger(ledger.id, recover=False) as reader, tailing(reader):
            await until(lambda: requests(cluster, Read) == 2)
            asked = [bookie.count(Read) for bookie in cluster.members(ledger)]
            drawn = position, (position + 1) % 4
            assert asked == [int(each in drawn) for each in range(4)]
        await ledger.abort()


async def test_many_tails_of_one_ledger_share_its_bookies_out() -> None:
    count = 90
    env = Env(random=random.Random(7))
    async with mock_cluster() as cluster, cluster.connect(env=env, **QUIET) as bk:
        ledger = await bk.create_ledger(ack_quorum_size=3)
        await ledger.append(b"0")
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(count):
                reader = await bk.open_ledger(ledger.id, recover=False)
                await stack.enter_async_context(reader)
                await stack.enter_async_context(tailing(reader))
            await until(lambda: requests(cluster, Read) == 2 * count)
            polled = [bookie.count(Read) for bookie in cluster.bookies]
            # Two out of three each: equally many, but for the lot.
            assert min(polled) > 0.8 * 2 * count / 3
        await ledger.abort()
