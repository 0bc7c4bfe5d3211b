"""Client and bookies together: real storage, real sockets, one process."""

from __future__ import annotations

import asyncio
import hashlib
import os

import pytest

import quorumbook
from doubles.mock_bookie import PATIENCE_S
from doubles.waiting import until
from quorumbook.client.client import BookKeeper
from quorumbook.errors import LedgerFencedError
from quorumbook.ledger.metadata import LedgerState
from quorumbook.protocol.digest import DigestType
from quorumbook.testing import LocalCluster


async def read_all(bk: BookKeeper, ledger_id: int, **options: object) -> list[bytes]:
    async with bk.open_ledger(ledger_id, **options) as reader:  # type: ignore[arg-type]
        return [entry.payload async for entry in reader.read()]


@pytest.mark.parametrize("kind", list(DigestType))
async def test_entries_of_every_size_come_back_byte_for_byte(kind: DigestType) -> None:
    payloads = [os.urandom(size) for size in (0, 1, 100, 1024, 4096, 70_000, 1_000_000)] * 2
    async with LocalCluster(bookies=3) as cluster, cluster.connect() as bk:
        async with bk.create_ledger(digest_type=kind, password=b"secret") as ledger:
            for payload in payloads:
                await ledger.append(payload)
        assert await read_all(bk, ledger.id, password=b"secret") == payloads


async def test_a_writer_a_tail_and_an_owner_that_takes_over() -> None:
    async with LocalCluster(bookies=3) as cluster, cluster.connect() as bk:
        ledger = await bk.create_ledger()
        follower = await bk.open_ledger(ledger.id, recover=False)
        got: list[bytes] = []

        async def tail() -> None:
            got.extend([entry.payload async for entry in follower.tail()])

        tailing = asyncio.create_task(tail())
        for i in range(50):
            await ledger.append(b"%d" % i)
        async with cluster.connect() as other:
            assert len(await read_all(other, ledger.id)) == 50
        with pytest.raises(LedgerFencedError):
            await ledger.append(b"too late")
        async with asyncio.timeout(PATIENCE_S):
            await tailing
        assert got == [b"%d" % i for i in range(50)]
        await follower.close()
        await ledger.abort()


async def test_a_bookie_stops_in_the_middle_and_nothing_is_lost() -> None:
    digest = hashlib.sha256()
    async with LocalCluster(bookies=4) as cluster, cluster.connect() as bk:
        async with bk.create_ledger() as ledger:
            for number in range(60):
                payloads = [os.urandom(100) for _ in range(20)]
                for payload in payloads:
                    digest.update(payload)
                await ledger.append_batch_nowait(payloads)
                if number == 20:
                    await cluster.stop(ledger.metadata.ensemble[0])
        assert len(ledger.metadata.fragments) == 2
        back = hashlib.sha256()
        async with bk.open_ledger(ledger.id) as reader:
            assert reader.last_add_confirmed == 1199
            async for batch in reader.read_batches():
                for payload in batch.payloads:
                    back.update(payload)
        assert back.digest() == digest.digest()


async def test_with_three_bookies_and_one_gone_adds_go_on_and_it_comes_back() -> None:
    async with LocalCluster(bookies=3) as cluster, cluster.connect() as bk:
        async with bk.create_ledger() as ledger:
            await ledger.append(b"zero")
            member = ledger.metadata.ensemble[0]
            await cluster.stop(member)
            for i in range(10):
                await ledger.append(b"%d" % i)
            await until(lambda: ledger.is_degraded)
            await cluster.restart(member)
            await until(lambda: not ledger.is_degraded)
            await ledger.append(b"last")
        assert len(await read_all(bk, ledger.id)) == 12


async def test_entries_survive_a_restart_of_all_bookies() -> None:
    async with LocalCluster(bookies=3) as cluster, cluster.connect() as bk:
        closed = await bk.create_ledger()
        await closed.append_batch_nowait([b"%d" % i for i in range(2000)])
        await closed.close()
        left_open = await bk.create_ledger()
        await left_open.append_batch_nowait([b"x", b"y", b"z"])
        await left_open.abort()
        for bookie_id in cluster.bookie_ids:
            await cluster.restart(bookie_id)
        assert await read_all(bk, closed.id) == [b"%d" % i for i in range(2000)]
        assert await read_all(bk, left_open.id) == [b"x", b"y", b"z"]
        assert (await bk.ledger_metadata(left_open.id)).state is LedgerState.CLOSED


async def test_a_striped_ledger_is_written_tailed_and_read() -> None:
    async with LocalCluster(bookies=4) as cluster, cluster.connect() as bk:
        async with bk.create_ledger(
            ensemble_size=4, write_quorum_size=2, ack_quorum_size=2
        ) as ledger:
            payloads = [b"%d" % i for i in range(1000)]
            await ledger.append_batch_nowait(payloads)
            async with bk.open_ledger(ledger.id, recover=False) as reader:
                tail = reader.tail()
                assert [(await anext(tail)).payload for _ in range(1000)] == payloads
                await tail.aclose()
        assert await read_all(bk, ledger.id) == payloads


async def test_many_ledgers_at_once_share_their_connections() -> None:
    async with LocalCluster(bookies=3) as cluster, cluster.connect() as bk:

        async def one(number: int) -> None:
            async with bk.create_ledger() as ledger:
                await asyncio.gather(*(ledger.append(b"%d" % number) for _ in range(20)))
            assert await read_all(bk, ledger.id) == [b"%d" % number] * 20

        await asyncio.gather(*(one(number) for number in range(25)))
        assert len([m async for m in bk.list_ledgers(state=LedgerState.CLOSED)]) == 25


def test_the_blocking_twin_works_against_real_bookies() -> None:
    with LocalCluster(bookies=3) as cluster, cluster.connect() as bk:
        assert isinstance(bk, quorumbook.sync.BookKeeper)
        with bk.create_ledger() as ledger:
            futures = [ledger.append_nowait(b"%d" % i) for i in range(1000)]
            assert futures[-1].result() == 999
        with bk.open_ledger(ledger.id) as reader:
            assert [entry.payload for entry in reader.read()] == [b"%d" % i for i in range(1000)]


async def test_s36_an_explicit_last_add_confirmed_is_seen_by_others_and_survives_restarts() -> None:
    async with LocalCluster(bookies=3) as cluster:
        async with cluster.connect() as bk, cluster.connect() as other:
            ledger = await bk.create_ledger()
            await ledger.append(b"the last line typed")
            reader = await other.open_ledger(ledger.id, recover=False)
            async with asyncio.timeout(PATIENCE_S):
                while await reader.read_last_add_confirmed() < 0:
                    await asyncio.sleep(0.005)  # no entry comes after it: the writer says so
            await reader.close()
            await ledger.abort()
        for bookie_id in cluster.bookie_ids:
            await cluster.restart(bookie_id)
        async with cluster.connect() as bk:
            async with bk.open_ledger(ledger.id, recover=False) as reader:
                assert reader.last_add_confirmed == 0
                assert (await reader.read_last_entry()).payload == b"the last line typed"
