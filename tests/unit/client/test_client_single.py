"""One entry by its id: the short way, and that whatever fails there is made good."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from doubles.mock_bookie import PATIENCE_S, SILENCE, mock_cluster
from doubles.waiting import until
from quorumbook.client.client import BookKeeper
from quorumbook.errors import DigestMismatchError, LedgerClosedError, LocalProtocolError
from quorumbook.protocol.requests import BatchRead
from quorumbook.protocol.status import Status

PAYLOADS = [b"payload %d" % i for i in range(20)]


async def written(bk: BookKeeper, **shape: Any) -> int:
    async with bk.create_ledger(**shape) as ledger:
        await ledger.append_batch_nowait(PAYLOADS)
    return ledger.id


@pytest.mark.parametrize("shape", [(3, 3, 2), (5, 3, 2), (1, 1, 1)])
async def test_any_entry_is_had_with_one_request(shape: tuple[int, int, int]) -> None:
    async with mock_cluster(shape[0]) as cluster, cluster.connect() as bk:
        names = ("ensemble_size", "write_quorum_size", "ack_quorum_size")
        ledger_id = await written(bk, **dict(zip(names, shape, strict=True)))
        async with bk.open_ledger(ledger_id) as reader:
            for entry_id in (19, 0, 7, 7, 12):
                entry = await reader.read_entry(entry_id)
                length = sum(map(len, PAYLOADS[: entry_id + 1]))
                assert entry == (ledger_id, entry_id, PAYLOADS[entry_id], length)
        assert sum(bookie.count(BatchRead) for bookie in cluster.bookies) == 5


@pytest.mark.parametrize("behaviour", [Status.IO_ERROR, Status.NO_ENTRY, Status.NO_LEDGER, SILENCE])
async def test_r32_what_one_bookie_does_not_give_another_does(behaviour: Any) -> None:
    async with mock_cluster() as cluster, cluster.connect(speculative_read_s=0.05) as bk:
        ledger_id = await written(bk)
        for bookie in cluster.bookies[:2]:
            bookie.on_request = lambda request: (
                behaviour if isinstance(request, BatchRead) else None
            )
        async with bk.open_ledger(ledger_id) as reader, asyncio.timeout(PATIENCE_S):
            for entry_id in range(3):
                assert (await reader.read_entry(entry_id)).payload == PAYLOADS[entry_id]


async def test_r32_a_damaged_copy_is_never_given_out() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger_id = await written(bk)
        for bookie in cluster.bookies[:2]:
            bookie.corrupt = {4, 5}
        async with bk.open_ledger(ledger_id) as reader:
            assert (await reader.read_entry(4)).payload == PAYLOADS[4]
            cluster.bookies[2].corrupt = {5}
            with pytest.raises(DigestMismatchError):
                await reader.read_entry(5)


async def test_a_bookie_that_is_gone_costs_one_entry_nothing() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger_id = await written(bk)
        await cluster.bookies[0].stop()
        async with bk.open_ledger(ledger_id) as reader:
            for entry_id in range(6):
                assert (await reader.read_entry(entry_id)).payload == PAYLOADS[entry_id]


async def test_ids_that_may_not_be_read_are_refused() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger_id = await written(bk)
        async with bk.open_ledger(ledger_id) as reader:
            with pytest.raises(LocalProtocolError, match="beyond the last add confirmed"):
                await reader.read_entry(20)
            with pytest.raises(LocalProtocolError, match="begin at 0"):
                await reader.read_entry(-1)
        with pytest.raises(LedgerClosedError):
            await reader.read_entry(0)


async def test_a_caller_that_is_cancelled_stays_cancelled() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger_id = await written(bk)
        for bookie in cluster.bookies:
            bookie.on_request = lambda request: SILENCE if isinstance(request, BatchRead) else None
        async with bk.open_ledger(ledger_id) as reader:
            reading = asyncio.create_task(reader.read_entry(0))
            await until(lambda: sum(b.count(BatchRead) for b in cluster.bookies) == 1)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
