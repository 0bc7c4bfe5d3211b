"""Who waits when something ends: cancelled callers, closed clients, stores that fall silent."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from client_harness import QUIET, Gate, polling_from

from doubles.inside import channels_of
from doubles.mock_bookie import PATIENCE_S, SILENCE, mock_cluster
from doubles.waiting import until
from quorumbook.client.context import client_context, client_store
from quorumbook.errors import (
    ClientClosedError,
    InternalError,
    LedgerClosedError,
    MetadataError,
    QuorumbookError,
    RequestTimeoutError,
)
from quorumbook.ledger.metadata import LedgerState
from quorumbook.protocol.requests import AddRun, BatchRead, Read, ReadLAC


class Complaints:
    """What the loop has to say of futures and tasks nobody looked at."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        asyncio.get_running_loop().set_exception_handler(self._note)

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        del loop
        self.messages.append(f"{context['message']}: {context.get('exception')!r}")

    async def check(self) -> None:
        for _ in range(3):
            gc.collect()
            await asyncio.sleep(0.01)
        assert self.messages == []


async def test_s88_a_tail_left_after_its_polls_failed_leaves_no_failure_unheard() -> None:
    env = polling_from(0)
    async with mock_cluster() as cluster, cluster.connect(env=env, **QUIET) as bk:
        complaints = Complaints()
        ledger = await bk.create_ledger()
        await ledger.append(b"x")
        reader = await bk.open_ledger(ledger.id, recover=False)
        tail = reader.tail()
        silent = cluster.members(ledger)[0]
        silent.on_request = lambda request: SILENCE if isinstance(request, Read) else None
        first = asyncio.create_task(anext(tail))
        await until(lambda: sum(b.count(Read) for b in cluster.bookies) == 2)
        assert silent.count(Read) == 1
        await ledger.append(b"y")
        assert (await first).payload == b"x"
        # The silent one's poll is out while the consumer works on what another one brought.
        for bookie in cluster.bookies:
            await bookie.stop()
        await until(lambda: not any(b.connection_count for b in cluster.bookies))
        await asyncio.sleep(0.05)
        await tail.aclose()
        await reader.close()
        await ledger.abort()
        await complaints.check()


@pytest.mark.parametrize("way", ["stop", "cancel", "close"])
async def test_s88_whatever_ends_nothing_fails_unheard(way: str) -> None:
    async with mock_cluster(4) as cluster:
        complaints = Complaints()
        bk = await cluster.connect()
        ledger = await bk.create_ledger()
        await ledger.append_batch_nowait([b"x"] * 3)
        await ledger.append(b"x")
        reader = await bk.open_ledger(ledger.id, recover=False)
        for bookie in cluster.bookies:
            bookie.on_request = lambda request: (
                SILENCE if isinstance(request, AddRun | Read | ReadLAC | BatchRead) else None
            )
        ledger.append_nowait(b"y")
        ledger.append_batch_nowait([b"z"] * 2)

        async def read() -> None:
            async for _ in reader.read():
                pass

        async def tail() -> None:
            async for _ in reader.tail(first=3):
                pass

        tasks = [
            asyncio.ensure_future(work)
            for work in (
                ledger.append(b"w"),
                ledger.flush(),
                read(),
                tail(),
                reader.read_last_add_confirmed(),
                bk.open_ledger(ledger.id),
            )
        ]
        await until(lambda: all(b.count(Read) for b in cluster.members(ledger)))
        if way == "stop":
            for bookie in cluster.bookies:
                await bookie.stop()
        elif way == "cancel":
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.02)
        async with asyncio.timeout(PATIENCE_S):
            await bk.close()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        if way != "cancel":
            assert not any(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
            assert sum(isinstance(outcome, QuorumbookError) for outcome in outcomes) >= 4
        ledger = reader = tasks = outcomes = None
        await complaints.check()


async def test_a_client_that_closes_tells_those_who_wait_and_cancels_nobody(monkeypatch) -> None:
    async with mock_cluster() as cluster:
        bk = await cluster.connect(**QUIET)
        closing = await bk.create_ledger()
        gate = Gate(bk, monkeypatch)
        close = asyncio.create_task(closing.close())
        await until(lambda: gate.waiting)

        async def never(host: str, port: int, factory: Any) -> Any:
            await asyncio.Event().wait()

        monkeypatch.setattr(client_context(bk).env.network, "connect", never, raising=False)
        for channel in channels_of(bk):
            channel.drop(ClientClosedError("as if never connected"))
        create = asyncio.ensure_future(bk.create_ledger())
        # It ends in the midst of connecting.
        await until(lambda: any(c._connecting is not None for c in channels_of(bk)))
        async with asyncio.timeout(PATIENCE_S):
            await bk.close()
            for task in (close, create):
                with pytest.raises(ClientClosedError):
                    await task


async def test_a_writer_closed_after_its_client_says_that_the_client_is_closed() -> None:
    async with mock_cluster() as cluster:
        async with cluster.connect(**QUIET) as bk:
            ledger = await bk.create_ledger()
        with pytest.raises(ClientClosedError):
            await ledger.close()


async def test_leaving_the_block_of_an_aborted_writer_leaves_the_ledger_open() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        with pytest.raises(LedgerClosedError):
            async with bk.create_ledger() as ledger:
                await ledger.append(b"x")
                await ledger.abort()
        assert (await bk.ledger_metadata(ledger.id)).state is LedgerState.OPEN


async def test_every_operation_ends_in_time_when_the_metadata_store_is_silent(monkeypatch) -> None:
    async with (
        mock_cluster() as cluster,
        cluster.connect(operation_timeout_s=0.2, **QUIET) as bk,
    ):
        ledger = await bk.create_ledger()
        await ledger.append(b"x")

        async def silence(*_: object, **__: object) -> Any:
            await asyncio.Event().wait()

        for operation in ("create", "get", "exists", "set", "delete", "children"):
            monkeypatch.setattr(client_store(bk), operation, silence)

        async def listing() -> None:
            async for _ in bk.list_ledgers():
                pass

        async with asyncio.timeout(PATIENCE_S):
            for work in (
                bk.create_ledger(),
                bk.create_unwritten_ledger(),
                bk.claim_unwritten_ledger(ledger.id),
                bk.open_ledger(ledger.id),
                bk.open_ledger(ledger.id, recover=False),
                bk.ledger_metadata(ledger.id),
                bk.delete_ledger(ledger.id),
                listing(),
                ledger.close(),
            ):
                with pytest.raises((RequestTimeoutError, MetadataError)):
                    await work
        monkeypatch.undo()


async def test_an_ensemble_change_ends_in_time_when_the_metadata_store_is_silent(
    monkeypatch,
) -> None:
    async with (
        mock_cluster(4) as cluster,
        cluster.connect(operation_timeout_s=0.2, **QUIET) as bk,
    ):
        ledger = await bk.create_ledger(ack_quorum_size=3)
        await ledger.append(b"x")
        gate = Gate(bk, monkeypatch)
        await cluster.members(ledger)[0].stop()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(MetadataError):
                await ledger.append(b"y")
        assert gate.waiting
        gate.open()
        with pytest.raises(MetadataError):
            await ledger.close()


async def test_a_recovery_takes_no_longer_than_an_operation_may() -> None:
    async with (
        mock_cluster() as cluster,
        cluster.connect(operation_timeout_s=0.3, request_timeout_s=60.0, **QUIET) as bk,
    ):
        ledger = await bk.create_ledger()
        await ledger.append(b"x")
        await ledger.abort()
        for bookie in cluster.bookies:
            bookie.on_request = lambda request: SILENCE if isinstance(request, Read) else None
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(RequestTimeoutError):
                await bk.open_ledger(ledger.id)
        for bookie in cluster.bookies:
            bookie.on_request = None
        async with bk.open_ledger(ledger.id) as reader:
            assert reader.last_add_confirmed == 0


@pytest.mark.parametrize("where", ["on_entry", "on_written", "on_marked", "on_closed"])
async def test_a_mistake_of_ours_in_a_recovery_ends_it_with_an_error(
    monkeypatch, where: str
) -> None:
    def stumble(*_: object) -> None:
        raise ValueError("a mistake")

    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        for bookie in cluster.bookies:
            bookie.hold_adds()
        ledger.append_nowait(b"x")
        await until(lambda: all(b.entry_ids(ledger.id) for b in cluster.bookies))
        await ledger.abort()
        for bookie in cluster.bookies:
            bookie.release_adds()
        with monkeypatch.context() as patch:
            patch.setattr(f"quorumbook.ledger.machines.recovery.RecoveryState.{where}", stumble)
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(InternalError, match="a mistake"):
                    await bk.open_ledger(ledger.id)
        async with bk.open_ledger(ledger.id) as reader:
            assert reader.last_add_confirmed == 0


async def test_a_check_that_fails_does_not_stop_the_time_outs_of_others() -> None:
    async with mock_cluster() as cluster, cluster.connect(read_timeout_s=0.2, **QUIET) as bk:

        def broken(now_ns: int) -> bool:
            raise ValueError(now_ns)

        client_context(bk).ticker.watch(broken)
        for bookie in cluster.bookies:
            bookie.on_request = lambda _: SILENCE
        channel = client_context(bk).bookies.fast(cluster.bookies[0].bookie_id)
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(RequestTimeoutError):
                await channel.batch_read(0, 0, 1, 1000)
