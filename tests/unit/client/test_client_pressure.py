"""The window at its edges: groups that do not fit yet, that never fit, and turns passed on."""

from __future__ import annotations

import asyncio

import pytest
from client_harness import QUIET

from doubles.inside import adds_of
from doubles.mock_bookie import PATIENCE_S, mock_cluster
from doubles.waiting import until
from quorumbook.client.context import client_context
from quorumbook.errors import BackpressureError, LocalProtocolError


async def test_a_group_refused_for_lack_of_room_gets_it_by_draining() -> None:
    async with (
        mock_cluster() as cluster,
        cluster.connect(max_pending_entries=10, **QUIET) as bk,
    ):
        async with bk.create_ledger() as ledger:
            for bookie in cluster.bookies:
                bookie.hold_adds()
            ledger.append_batch_nowait([b"x"] * 8)
            attempts = 0

            async def append() -> range:
                nonlocal attempts
                while True:
                    attempts += 1
                    assert attempts < 100, "drain returns without room for what was refused"
                    try:
                        return await ledger.append_batch_nowait([b"y"] * 5)
                    except BackpressureError:
                        await ledger.drain()

            appending = asyncio.create_task(append())
            await until(lambda: cluster.bookies[0].entry_ids(ledger.id) == list(range(8)))
            assert not appending.done()
            for bookie in cluster.bookies:
                bookie.release_adds()
            async with asyncio.timeout(PATIENCE_S):
                assert await appending == range(8, 13)


async def test_a_group_beyond_the_whole_window_is_told_so_and_not_to_try_again() -> None:
    async with (
        mock_cluster() as cluster,
        cluster.connect(max_pending_entries=10, max_pending_bytes=10_000, **QUIET) as bk,
    ):
        async with bk.create_ledger() as ledger:
            for group in ([b"x"] * 11, [bytes(5000)] * 2):
                with pytest.raises(LocalProtocolError, match="max_pending_entries") as caught:
                    ledger.append_batch_nowait(group)
                assert not caught.value.retriable
            assert await ledger.append_batch_nowait([b"x"] * 10) == range(10)


async def test_who_drained_and_appends_nothing_keeps_nobody_from_the_room() -> None:
    async with (
        mock_cluster() as cluster,
        cluster.connect(max_pending_entries=1, **QUIET) as bk,
    ):
        async with bk.create_ledger() as ledger:
            for bookie in cluster.bookies:
                bookie.hold_adds()
            ledger.append_nowait(b"x")
            drains = [asyncio.create_task(ledger.drain()) for _ in range(3)]
            too_large = asyncio.create_task(ledger.append(bytes(6 * 1024 * 1024)))
            last = asyncio.create_task(ledger.append(b"y"))
            await until(lambda: cluster.bookies[0].entry_ids(ledger.id) == [0])
            for bookie in cluster.bookies:
                bookie.release_adds()
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*drains)
                with pytest.raises(LocalProtocolError):
                    await too_large
                assert await last == 1


async def test_bytes_a_lost_bookie_never_took_are_room_again() -> None:
    async with (
        mock_cluster() as cluster,
        cluster.connect(max_pending_bytes=8_000_000, add_timeout_s=60.0, **QUIET) as bk,
    ):
        async with bk.create_ledger() as ledger:
            await ledger.append(b"connect")
            slow = cluster.members(ledger)[2]
            slow.stop_reading()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2.0):
                    while True:
                        await ledger.append(bytes(200_000))
            # Given up, but still a member, as without a spare bookie.
            adds_of(ledger)._positions[2].forget()
            waiting = asyncio.create_task(ledger.append(bytes(1_000_000)))
            await until(lambda: not client_context(bk).ticker.is_running)
            assert not waiting.done()
            await slow.stop()
            async with asyncio.timeout(PATIENCE_S):
                await waiting
