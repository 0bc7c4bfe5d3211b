"""Publishing what is confirmed while bookies refuse to be told of it (S38)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from doubles.inside import adds_of
from doubles.mock_bookie import PATIENCE_S, SILENCE, Behaviour, mock_cluster
from doubles.waiting import until
from quorumbook.client.context import client_context
from quorumbook.client.waiting.concurrency import LoopTurns
from quorumbook.client.writing.writer import publish_confirmed
from quorumbook.errors import (
    ClientClosedError,
    LedgerClosedError,
    LedgerFencedError,
    QuorumbookError,
    WriteFailedError,
)
from quorumbook.protocol.requests import AddRun, Request, WriteLAC
from quorumbook.protocol.status import Status


def on_lacs(behaviour: Behaviour):
    return lambda request: behaviour if isinstance(request, WriteLAC) else None


def read_only(request: Request) -> Behaviour:
    return Status.READ_ONLY if isinstance(request, WriteLAC | AddRun) else None


@pytest.mark.parametrize("lac_delay_s", [0, 0.01])
@pytest.mark.parametrize("behaviour", [Status.READ_ONLY, Status.IO_ERROR, SILENCE])
async def test_s38_publishing_ends_with_an_error_while_an_ack_quorum_refuses(
    behaviour: Behaviour, lac_delay_s: float
) -> None:
    async with (
        mock_cluster() as cluster,
        cluster.connect(
            lac_delay_s=lac_delay_s, operation_timeout_s=0.5, request_timeout_s=0.3
        ) as bk,
    ):
        async with bk.create_ledger() as ledger:
            for bookie in cluster.bookies[:2]:
                bookie.on_request = on_lacs(behaviour)
            await ledger.append(b"x")
            with pytest.raises(WriteFailedError, match="entry 0 of ledger 0 is safe, but too few"):
                await ledger.flush()
            asked = cluster.bookies[0].count(WriteLAC)
            assert 1 <= asked < 10, "each attempt waits longer than the one before"
            for bookie in cluster.bookies:
                bookie.on_request = None
            await ledger.flush()
            assert cluster.bookies[0].ledgers[ledger.id].last_add_confirmed == 0


async def test_s38_bookies_that_became_read_only_are_replaced_so_that_readers_are_told() -> None:
    async with mock_cluster() as cluster, cluster.connect(lac_delay_s=0) as bk:
        async with bk.create_ledger() as ledger:
            await ledger.append(b"x")
            for bookie in cluster.members(ledger)[:2]:
                bookie.on_request = read_only
            spare = await cluster.add(2)
            async with asyncio.timeout(PATIENCE_S):
                await ledger.flush()
            assert {bookie.bookie_id for bookie in spare} <= set(ledger.metadata.ensemble)
            assert ledger.metadata.last_fragment.first_entry_id == 1
            async with bk.open_ledger(ledger.id, recover=False) as reader:
                assert await reader.read_last_add_confirmed() == 0
            assert await ledger.append(b"y") == 1


async def test_s38_without_another_bookie_a_refused_publication_costs_no_place() -> None:
    async with (
        mock_cluster() as cluster,
        cluster.connect(lac_delay_s=0, operation_timeout_s=0.3) as bk,
    ):
        async with bk.create_ledger() as ledger:
            await ledger.append(b"x")
            for bookie in cluster.bookies:
                bookie.on_request = read_only
            with pytest.raises(WriteFailedError, match="entry 0"):
                await ledger.flush()
            for bookie in cluster.bookies:
                bookie.on_request = None
            assert await ledger.append(b"y") == 1
            await ledger.flush()
            assert len(ledger.metadata.fragments) == 1


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("abort", LedgerClosedError),
        ("client", ClientClosedError),
        ("fence", LedgerFencedError),
        ("close", None),
    ],
)
@pytest.mark.parametrize("behaviour", [Status.IO_ERROR, SILENCE])
async def test_s38_publishing_says_so_when_the_writer_ends_before_bookies_were_told(
    behaviour: Behaviour, way: str, expected: type[QuorumbookError] | None
) -> None:
    async with mock_cluster() as cluster:
        async with cluster.connect(lac_delay_s=0, request_timeout_s=60.0) as bk:
            ledger = await bk.create_ledger()
            await ledger.append(b"x")
            for bookie in cluster.bookies:
                bookie.on_request = on_lacs(behaviour)
            publishing = [asyncio.create_task(ledger.flush())]
            if way != "fence":  # there an entry that is on its way counts as telling
                publishing.append(asyncio.create_task(publish_confirmed(ledger)))
            await until(lambda: all(bookie.count(WriteLAC) for bookie in cluster.bookies))
            if way == "abort":
                await ledger.abort()
            elif way == "client":
                await bk.close()
            elif way == "fence":
                for bookie in cluster.bookies:
                    bookie.ledgers[ledger.id].is_fenced = True
                with pytest.raises(LedgerFencedError):
                    await ledger.append(b"y")
            else:
                await ledger.close()
            async with asyncio.timeout(PATIENCE_S):
                for each in publishing:
                    if expected is None:
                        await each  # the metadata tell readers
                    else:
                        with pytest.raises(expected):
                            await each


async def test_s38_what_is_being_published_is_not_published_a_second_time() -> None:
    async with mock_cluster() as cluster, cluster.connect(lac_delay_s=60.0) as bk:
        ledger = await bk.create_ledger()
        await ledger.append(b"x")
        for bookie in cluster.bookies:
            bookie.on_request = on_lacs(SILENCE)
        publishing = asyncio.create_task(ledger.flush())
        await until(lambda: all(bookie.count(WriteLAC) for bookie in cluster.bookies))
        client_context(bk).lac_limit.enter(adds_of(ledger)._lac)  # the limit is full
        await ledger.abort()
        with pytest.raises(LedgerClosedError):
            await publishing
        await until(lambda: not client_context(bk).tasks)
        assert all(bookie.count(WriteLAC) == 1 for bookie in cluster.bookies)


async def test_idle_writers_publish_without_a_task_each_and_wait_for_an_ack_quorum_only() -> None:
    async with (
        mock_cluster() as cluster,
        cluster.connect(lac_delay_s=0.01, request_timeout_s=60.0) as bk,
        bk.create_ledger() as ledger,
    ):
        members = cluster.members(ledger)
        members[2].on_request = on_lacs(SILENCE)
        for entry_id in range(3):
            await ledger.append(b"x")
            await until(lambda: members[2].count(WriteLAC) > entry_id)  # noqa: B023
            assert not client_context(bk).tasks
            await until(lambda: members[0].ledgers[ledger.id].last_add_confirmed == entry_id)  # noqa: B023


async def test_the_next_number_is_published_behind_all_writers_with_entries_to_send(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[Callable[[], None]] = []
    call = LoopTurns.call

    def noted(turns: LoopTurns, callback: Callable[[], None]) -> None:
        called.append(callback)
        call(turns, callback)

    monkeypatch.setattr(LoopTurns, "call", noted)
    async with (
        mock_cluster() as cluster,
        cluster.connect(lac_delay_s=0.01) as bk,
        bk.create_ledger() as ledger,
    ):
        await ledger.append(b"x")
        await until(lambda: client_context(bk).lac_limit.leave in called)
        assert cluster.members(ledger)[0].ledgers[ledger.id].last_add_confirmed == 0
