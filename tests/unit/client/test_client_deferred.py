"""Deferred sync: acknowledged when written, confirmed when forced."""

from __future__ import annotations

import asyncio

import pytest
from client_harness import QUIET

from doubles.mock_bookie import PATIENCE_S, SILENCE, MockBookie, mock_cluster
from doubles.waiting import until
from quorumbook.client.writing.writer import LedgerWriter
from quorumbook.errors import (
    LedgerFencedError,
    QuorumbookError,
    WriteFailedError,
)
from quorumbook.ids import EntryId
from quorumbook.protocol import answers
from quorumbook.protocol.digest import entry_header
from quorumbook.protocol.requests import AddRun, ForceLedger
from quorumbook.protocol.status import Status
from quorumbook.testing import LocalCluster


def on_forces(behaviour):
    return lambda request: behaviour if isinstance(request, ForceLedger) else None


async def append_one_by_one(ledger: LedgerWriter, *watched: MockBookie) -> list[asyncio.Future]:
    """Append three entries, each of which reaches some bookies as a request of its own."""
    before = [bookie.count(AddRun) for bookie in watched]
    futures = []
    for number in range(1, 4):
        futures.append(ledger.append_nowait(b"x"))
        wanted = [count + number for count in before]
        await until(lambda wanted=wanted: [b.count(AddRun) for b in watched] == wanted)
    return futures


def answer_in_one_packet(bookie: MockBookie, *answered: tuple[LedgerWriter, EntryId, Status]):
    """Answer some of the adds that a bookie has kept."""
    # What the double holds back.
    kept = {(r.echo_ledger_id, r.echo_entry_ids[0]): (c, r) for c, r in bookie._waiting}
    packet = b""
    for ledger, entry_id, status in answered:
        connection, request = kept[ledger.id, entry_id]
        packet += answers.add_answers(request, status)
    connection.send(packet)


async def test_deferred_adds_carry_their_flag_and_confirm_nothing_before_a_force() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger(deferred_sync=True, password=b"pw")
        for i in range(3):
            assert await ledger.append(b"%d" % i) == i
        assert (ledger.last_add_confirmed, ledger.length) == (-1, 0)
        assert not any(bookie.count(ForceLedger) for bookie in cluster.bookies)
        assert await ledger.force() == 2
        assert (ledger.last_add_confirmed, ledger.length) == (2, 3)
        assert await ledger.append(b"3") == 3
        assert ledger.last_add_confirmed == 2
        for bookie in cluster.bookies:
            await until(lambda bookie=bookie: bookie.entry_ids(ledger.id) == [0, 1, 2, 3])
            adds = [request for request in bookie.requests if isinstance(request, AddRun)]
            assert all(add.is_deferred_sync and add.version == 3 for add in adds)
            assert bookie.count(ForceLedger) == 1
            entries = bookie.ledgers[ledger.id].entries
            # What an entry tells of the last add confirmed is what was forced.
            assert [entry_header(entries[i])[2] for i in range(4)] == [-1, -1, -1, 2]
        await ledger.close()
        assert (ledger.metadata.last_entry_id, ledger.metadata.length) == (3, 4)
        async with bk.open_ledger(ledger.id, password=b"pw") as reader:
            assert [entry.payload async for entry in reader.read()] == [b"0", b"1", b"2", b"3"]


async def test_a_writer_without_deferred_sync_is_forced_by_its_acknowledgements() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        async with bk.create_ledger() as ledger:
            future = ledger.append_nowait(b"x")
            assert await ledger.force() == 0
            assert future.done()
        assert not any(bookie.count(ForceLedger) for bookie in cluster.bookies)


async def test_a_close_without_force_drops_what_was_not_forced_and_counts_no_byte_of_it() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger(deferred_sync=True)
        await ledger.append(b"forced")
        await ledger.force()
        await ledger.append(b"dropped")
        await ledger.close(force=False)
        assert (ledger.metadata.last_entry_id, ledger.metadata.length) == (0, len(b"forced"))


@pytest.mark.parametrize("status", [Status.IO_ERROR, Status.UNKNOWN_LEDGER_STATE, SILENCE])
async def test_a_force_needs_every_bookie_and_can_be_tried_again(status: Status | str) -> None:
    async with mock_cluster() as cluster, cluster.connect(request_timeout_s=0.2, **QUIET) as bk:
        ledger = await bk.create_ledger(deferred_sync=True)
        await ledger.append(b"x")
        stubborn = cluster.members(ledger)[1]
        stubborn.on_request = on_forces(status)
        with pytest.raises(WriteFailedError, match=stubborn.bookie_id):
            await ledger.force()
        assert ledger.last_add_confirmed == -1
        if status == SILENCE:
            return  # its connection was given up, and the writer with it
        with pytest.raises(WriteFailedError):
            await ledger.close()
        assert (await bk.ledger_metadata(ledger.id)).state.name == "OPEN"
        stubborn.on_request = None
        await ledger.close()
        assert ledger.metadata.last_entry_id == 0


async def test_a_refusal_between_acknowledgements_of_one_packet_is_heard() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger(deferred_sync=True)
        first = cluster.members(ledger)[0]
        first.keep(AddRun)
        futures = await append_one_by_one(ledger, first)
        assert await asyncio.gather(*futures) == [0, 1, 2]
        statuses = (Status.OK, Status.IO_ERROR, Status.OK)
        answer_in_one_packet(first, *((ledger, i, status) for i, status in enumerate(statuses)))
        await until(lambda: ledger.is_closed)
        with pytest.raises(WriteFailedError, match="deferred sync"):
            await ledger.force()
        assert ledger.last_add_confirmed == -1
        await ledger.abort()


@pytest.mark.parametrize("is_of_another_ledger", [False, True])
async def test_an_entry_between_two_that_one_packet_acknowledges_is_not_acknowledged(
    is_of_another_ledger: bool,
) -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger, other = [await bk.create_ledger(deferred_sync=True) for _ in range(2)]
        first, _, third = cluster.members(ledger)
        first.keep(AddRun)
        third.keep(AddRun)
        futures = await append_one_by_one(ledger, first, third)
        await append_one_by_one(other, first, third)
        second_answer = (other, 1) if is_of_another_ledger else (ledger, 2)
        answer_in_one_packet(first, (ledger, 0, Status.OK), (*second_answer, Status.OK))
        assert await futures[0] == 0
        assert not futures[1].done(), "only one bookie acknowledged it"
        await asyncio.gather(ledger.abort(), other.abort())


async def test_a_bookie_met_again_before_a_force_ends_the_writer_and_nothing_is_cut_off() -> None:
    async with mock_cluster(4) as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger(deferred_sync=True)
        await ledger.append(b"acknowledged, and maybe lost")
        first = cluster.members(ledger)[0]
        first.drop_connections()
        await until(lambda: ledger.is_closed)
        with pytest.raises(WriteFailedError, match=first.bookie_id):
            await ledger.force()
        with pytest.raises(WriteFailedError, match="deferred sync"):
            await ledger.close()
        assert (await bk.ledger_metadata(ledger.id)).state.name == "OPEN"
        async with bk.open_ledger(ledger.id) as reader:
            assert reader.last_add_confirmed == 0


async def test_a_bookie_met_again_after_a_force_has_lost_nothing() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger(deferred_sync=True)
        await ledger.append(b"0")
        await ledger.force()
        for bookie in cluster.bookies:
            bookie.drop_connections()
        await until(lambda: not any(bookie.connection_count for bookie in cluster.bookies))
        await ledger.append(b"1")
        await ledger.close()
        assert ledger.metadata.last_entry_id == 1


async def test_a_fenced_writer_with_deferred_sync_stops() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger(deferred_sync=True)
        await ledger.append(b"0")
        async with bk.open_ledger(ledger.id) as reader:
            assert reader.last_add_confirmed == 0  # not forced, and on all disks all the same
        with pytest.raises(LedgerFencedError):
            await ledger.append(b"1")
        with pytest.raises(LedgerFencedError):
            await ledger.close()


async def test_a_refusal_keeps_its_name_over_v3() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger(deferred_sync=True)
        bookie = cluster.members(ledger)[0]
        bookie.on_request = lambda request: (
            Status.UNKNOWN_LEDGER_STATE if isinstance(request, AddRun) else None
        )
        with pytest.raises(WriteFailedError, match="may have lost data"):
            await ledger.append(b"x")
        await ledger.abort()


async def test_what_a_force_published_reaches_a_reader_without_another_entry() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger = await bk.create_ledger(deferred_sync=True)
        async with bk.open_ledger(ledger.id, recover=False) as reader:
            got: list[bytes] = []

            async def tail() -> None:
                async for entry in reader.tail():
                    got.append(entry.payload)  # noqa: PERF401 - seen while it goes on

            tailing = asyncio.create_task(tail())
            await ledger.append(b"seen when forced")
            assert await reader.read_last_add_confirmed() == -1
            await ledger.force()
            await until(lambda: got)
            await ledger.close()
            async with asyncio.timeout(PATIENCE_S):
                await tailing


async def test_deferred_sync_against_real_bookies() -> None:
    async with LocalCluster(bookies=3) as cluster, cluster.connect() as bk:
        payloads = [b"%d" % i * (i % 50) for i in range(2000)]
        async with bk.create_ledger(deferred_sync=True) as ledger:
            await ledger.append_batch_nowait(payloads[:1000])
            assert ledger.last_add_confirmed == -1
            assert await ledger.force() == 999
            await ledger.append_batch_nowait(payloads[1000:])
        async with bk.open_ledger(ledger.id) as reader:
            assert [entry.payload async for entry in reader.read()] == payloads
            assert reader.length == sum(map(len, payloads))
        crashed = await bk.create_ledger(deferred_sync=True)
        await crashed.append(b"never forced")
        await crashed.abort()
        async with bk.open_ledger(crashed.id) as reader:
            assert [entry.payload async for entry in reader.read()] == [b"never forced"]


async def test_a_stopped_bookie_is_not_replaced_under_deferred_sync() -> None:
    async with mock_cluster(4) as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger(deferred_sync=True)
        await cluster.members(ledger)[2].stop()
        with pytest.raises(QuorumbookError):
            for _ in range(100):
                await ledger.append(b"x")
        assert len((await bk.ledger_metadata(ledger.id)).fragments) == 1
        await ledger.abort()
