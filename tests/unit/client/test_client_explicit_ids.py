"""Writers whose caller chooses the entry ids."""

from __future__ import annotations

import asyncio
import random

import pytest
from client_harness import QUIET

import quorumbook.sync
from doubles.mock_bookie import PATIENCE_S, mock_cluster
from doubles.waiting import until
from quorumbook.errors import (
    BackpressureError,
    DuplicateEntryIdError,
    LedgerClosedError,
    LedgerFencedError,
    LocalProtocolError,
    NotEnoughBookiesError,
)
from quorumbook.protocol.digest import entry_header
from quorumbook.testing import LocalCluster


async def test_s34_entries_are_confirmed_in_the_order_of_their_ids_only() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger(explicit_entry_ids=True)
        third = ledger.append_at_nowait(2, b"ccc")
        second = ledger.append_at_nowait(1, b"bb")
        await ledger.flush()  # what waits for entry 0 is not waited for
        assert (ledger.last_add_pushed, ledger.last_add_confirmed) == (2, -1)
        assert not third.done()
        assert await ledger.append_at(0, b"a") == 0
        assert [await second, await third] == [1, 2]
        assert (ledger.last_add_confirmed, ledger.length) == (2, 6)
        await ledger.close()
        assert (ledger.metadata.last_entry_id, ledger.metadata.length) == (2, 6)
        # Each entry counts exactly the bytes of those below it.
        entries = cluster.members(ledger)[0].ledgers[ledger.id].entries
        assert [entry_header(entries[i])[3] for i in range(3)] == [1, 3, 6]


@pytest.mark.parametrize("used", [0, 1, 3, -1])
async def test_s34_an_id_that_was_used_is_refused_and_the_writer_goes_on(used: int) -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger(explicit_entry_ids=True)
        await asyncio.gather(ledger.append_at(1, b"1"), ledger.append_at(0, b"0"))
        waiting = ledger.append_at_nowait(3, b"3")
        with pytest.raises(DuplicateEntryIdError) as refused:
            await ledger.append_at(used, b"again")
        assert refused.value.code == -22
        await ledger.append_at(2, b"2")
        await waiting
        await ledger.close()
        assert ledger.metadata.last_entry_id == 3


async def test_s34_a_hole_at_the_end_is_where_the_ledger_closes() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger(explicit_entry_ids=True)
        await ledger.append_at(0, b"kept")
        behind = [ledger.append_at_nowait(entry_id, b"x" * 100) for entry_id in (2, 3, 7)]
        await ledger.close()
        for future in behind:
            with pytest.raises(LedgerClosedError, match="entry 1 was never appended"):
                await future
        assert (ledger.metadata.last_entry_id, ledger.metadata.length) == (0, 4)
        assert (ledger.pending_entries, ledger.pending_bytes) == (0, 0)
        with pytest.raises(LedgerClosedError):
            await ledger.append_at(1, b"late")


async def test_s34_a_recovery_never_brings_back_what_stood_behind_a_hole() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger(explicit_entry_ids=True)
        await asyncio.gather(*(ledger.append_at(i, b"%d" % i) for i in (1, 0)))
        behind = ledger.append_at_nowait(3, b"behind")
        async with bk.open_ledger(ledger.id) as reader:
            assert [entry.payload async for entry in reader.read()] == [b"0", b"1"]
            assert reader.length == 2
        with pytest.raises(LedgerFencedError):
            await ledger.append_at(2, b"too late")
        with pytest.raises(LedgerFencedError):
            await behind


async def test_ids_and_no_ids_do_not_mix() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        chosen = await bk.create_ledger(explicit_entry_ids=True)
        for append in (chosen.append_nowait, lambda x: chosen.append_batch_nowait([x])):
            with pytest.raises(LocalProtocolError, match="append_at"):
                append(b"x")
        with pytest.raises(LocalProtocolError, match="append_at"):
            await chosen.append(b"x")
        plain = await bk.create_ledger()
        with pytest.raises(LocalProtocolError, match="explicit_entry_ids") as refused:
            await plain.append_at(0, b"x")
        assert refused.value.code == -100
        await asyncio.gather(chosen.close(), plain.close())


async def test_the_missing_entry_gets_room_although_those_that_wait_for_it_fill_the_window() -> (
    None
):
    async with (
        mock_cluster() as cluster,
        cluster.connect(max_pending_entries=4, max_pending_bytes=2000, **QUIET) as bk,
    ):
        ledger = await bk.create_ledger(explicit_entry_ids=True)
        waiting = [ledger.append_at_nowait(i, b"x" * 100) for i in (1, 2, 3)]
        with pytest.raises(BackpressureError, match="ahead"):
            ledger.append_at_nowait(4, b"x")
        late = asyncio.create_task(ledger.append_at(4, b"x" * 2000))
        await asyncio.sleep(0)
        assert await ledger.append_at(0, b"x" * 1500) == 0
        async with asyncio.timeout(PATIENCE_S):
            assert [await future for future in waiting] == [1, 2, 3]
            assert await late == 4
        await ledger.close()
        assert ledger.pending_entries == 0
        assert ledger.pending_bytes == 0


async def test_entries_in_the_order_of_their_ids_wait_for_room_like_any_others() -> None:
    async with mock_cluster() as cluster, cluster.connect(max_pending_entries=4, **QUIET) as bk:
        ledger = await bk.create_ledger(explicit_entry_ids=True)
        for bookie in cluster.bookies:
            bookie.hold_adds()
        sent = [ledger.append_at_nowait(i, b"x") for i in range(4)]
        with pytest.raises(BackpressureError, match="4 entries"):
            ledger.append_at_nowait(4, b"x")
        for bookie in cluster.bookies:
            bookie.release_adds()
        assert await asyncio.gather(*sent) == [0, 1, 2, 3]
        assert await ledger.append_at(4, b"x") == 4
        await ledger.close()


async def test_the_missing_entry_gets_the_room_that_others_before_it_cannot_use() -> None:
    async with mock_cluster() as cluster, cluster.connect(max_pending_entries=4, **QUIET) as bk:
        ledger = await bk.create_ledger(explicit_entry_ids=True)
        for bookie in cluster.bookies:
            bookie.hold_adds()
        appends = [ledger.append_at_nowait(i, b"x") for i in (0, 1, 3, 5)]
        # Many that are too far ahead wait for room, and behind them the one that is missing.
        ahead = range(6, 30)
        for entry_id in (*ahead, 2):
            appends.append(asyncio.create_task(ledger.append_at(entry_id, b"x")))
            await asyncio.sleep(0)
        for bookie in cluster.bookies:
            bookie.release_adds()
        async with asyncio.timeout(PATIENCE_S):
            assert await appends[-1] == 2
            assert await ledger.append_at(4, b"x") == 4
            assert await asyncio.gather(*appends) == [0, 1, 3, 5, *ahead, 2]
        await ledger.close()


async def test_thousands_in_any_order_survive_a_small_window_and_a_lost_bookie() -> None:
    ids = list(range(3000))
    # Far enough apart to wait for each other, near enough to fit into the window.
    order = random.Random(5)
    ids.sort(key=lambda entry_id: entry_id + order.randrange(150))
    async with (
        LocalCluster(bookies=4) as cluster,
        cluster.connect(max_pending_entries=200) as bk,
    ):
        ledger = await bk.create_ledger(explicit_entry_ids=True)
        tasks = [asyncio.create_task(ledger.append_at(i, b"%d" % i)) for i in ids]
        await until(lambda: ledger.last_add_confirmed > 500)
        await cluster.stop(ledger.metadata.ensemble[0])
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*tasks)
        await ledger.close()
        async with bk.open_ledger(ledger.id) as reader:
            assert [entry.payload async for entry in reader.read()] == [
                b"%d" % i for i in range(3000)
            ]
            assert reader.length == sum(len(b"%d" % i) for i in range(3000))


async def test_a_writer_that_fails_fails_what_waits_behind_a_hole() -> None:
    async with (
        mock_cluster() as cluster,
        cluster.connect(require_replacement=True, **QUIET) as bk,
    ):
        ledger = await bk.create_ledger(explicit_entry_ids=True)
        behind = ledger.append_at_nowait(5, b"x")
        await cluster.members(ledger)[0].stop()
        with pytest.raises(NotEnoughBookiesError):
            await ledger.append_at(0, b"x")
        with pytest.raises(NotEnoughBookiesError):
            await behind
        await ledger.abort()


def test_the_blocking_twin_takes_ids_too() -> None:
    with LocalCluster(bookies=3) as cluster, quorumbook.sync.connect(cluster.metadata_uri) as bk:
        with bk.create_ledger(ledger_id=2**40, explicit_entry_ids=True) as ledger:
            futures = [ledger.append_at_nowait(i, b"%d" % i) for i in (2, 1)]
            assert ledger.append_at(0, b"0") == 0
            assert [future.result() for future in futures] == [2, 1]
            with pytest.raises(DuplicateEntryIdError):
                ledger.append_at(1, b"again")
        with bk.open_ledger(2**40) as reader:
            assert [entry.payload for entry in reader.read()] == [b"0", b"1", b"2"]
