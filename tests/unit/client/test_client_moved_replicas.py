"""Reads while replicas move from one bookie to another: what is there is found (S33)."""

from __future__ import annotations

import asyncio

import pytest

from doubles.mock_bookie import PATIENCE_S, MockBookie, MockCluster, mock_cluster
from doubles.waiting import until
from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_context
from quorumbook.client.reading.reader import LedgerReader
from quorumbook.errors import (
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerInMetadataError,
    ReadFailedError,
)
from quorumbook.protocol.requests import BatchRead, Read, Request
from quorumbook.protocol.status import Status

PAYLOADS = [b"payload %d" % i for i in range(50)]
SHAPES = [(3, 3, 2), (3, 2, 2), (1, 1, 1)]


async def written(bk: BookKeeper, shape: tuple[int, int, int] = (3, 3, 2)) -> int:
    ensemble_size, write_quorum_size, ack_quorum_size = shape
    async with bk.create_ledger(
        ensemble_size=ensemble_size,
        write_quorum_size=write_quorum_size,
        ack_quorum_size=ack_quorum_size,
    ) as ledger:
        await ledger.append_batch_nowait(PAYLOADS)
    return ledger.id


async def move(cluster: MockCluster, bk: BookKeeper, reader: LedgerReader, *positions: int):
    """Copy what positions store to other bookies, record that, and drop the old copies."""
    metadata, version = await client_context(bk).ledgers.read(reader.id)
    old = [cluster.by_id(bookie_id) for bookie_id in metadata.ensemble]
    spare = [bookie for bookie in cluster.bookies if bookie not in old]
    for position in positions:
        target = spare.pop(0)
        target.ledgers[reader.id] = old[position].ledgers.pop(reader.id)
        metadata = metadata.replace_bookie(0, old[position].bookie_id, target.bookie_id)
    await client_context(bk).ledgers.write(metadata, version)
    return metadata


def lose(bookie: MockBookie, ledger_id: int) -> None:
    bookie.ledgers[ledger_id].entries.clear()


def denies_behind_the_first(request: Request) -> Status | None:
    is_behind = isinstance(request, BatchRead) and request.first_entry_id > 3
    return Status.NO_ENTRY if is_behind else None


async def all_have_answered(bk: BookKeeper, *bookies: MockBookie) -> None:
    """Let every bookie in turn answer what it was asked, and be asked because of that."""
    for bookie in 4 * bookies:
        await client_context(bk).bookies.fast(bookie.bookie_id).read(0, 0)


async def payloads_of(reader: LedgerReader) -> list[bytes]:
    return [entry.payload async for entry in reader.read()]


def is_deaf(bk: BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no watch of the client ever fire: metadata are news only if they are read."""
    read = client_context(bk).ledgers.read
    monkeypatch.setattr(
        client_context(bk).ledgers, "read", lambda ledger_id, watch=None: read(ledger_id)
    )


async def test_s33_what_a_replaced_bookie_denies_late_says_nothing_of_its_successor() -> None:
    async with mock_cluster(4) as cluster, cluster.connect(read_timeout_s=60.0) as bk:
        ledger_id = await written(bk)
        async with bk.open_ledger(ledger_id) as reader:
            first, second, third = cluster.members(reader)
            (successor,) = cluster.spare(reader)
            first.keep(BatchRead)
            successor.keep(BatchRead)
            reading = asyncio.create_task(payloads_of(reader))
            await until(lambda: first.count(BatchRead))
            lose(second, ledger_id)
            lose(third, ledger_id)
            moved = await move(cluster, bk, reader, 0)
            await until(lambda: reader.metadata == moved and successor.count(BatchRead))

            first.carry_out()
            await all_have_answered(bk, first, second, third)
            assert not reading.done()
            successor.carry_out()
            async with asyncio.timeout(PATIENCE_S):
                assert await reading == PAYLOADS


@pytest.mark.parametrize("shape", SHAPES)
async def test_s33_a_read_that_nobody_asked_can_answer_looks_where_the_replicas_went(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mock_cluster(6) as cluster, cluster.connect() as bk:
        is_deaf(bk, monkeypatch)
        ledger_id = await written(bk, shape)
        async with bk.open_ledger(ledger_id) as reader:
            await move(cluster, bk, reader, *range(shape[0]))
            assert await payloads_of(reader) == PAYLOADS
            await move(cluster, bk, reader, 0)
            entry = await reader.read_entry(0)
            assert entry.payload == PAYLOADS[0]
            await move(cluster, bk, reader, *range(shape[0]))
            batch = await reader.read_batch(0, max_count=3)
            assert list(batch.payloads) == PAYLOADS[:3]


@pytest.mark.parametrize("shape", SHAPES)
async def test_s33_what_was_denied_while_reading_ahead_is_asked_again_when_it_is_due(
    shape: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with mock_cluster(6) as cluster, cluster.connect(read_batch_bytes=400) as bk:
        is_deaf(bk, monkeypatch)
        ledger_id = await written(bk, shape)
        async with bk.open_ledger(ledger_id) as reader:
            members = cluster.members(reader)
            for bookie in members:
                bookie.on_request = denies_behind_the_first
            entries = reader.read()
            got = [(await anext(entries)).payload]
            await all_have_answered(bk, *members)
            for bookie in members:
                bookie.on_request = None
            await move(cluster, bk, reader, *range(shape[0]))
            async for entry in entries:
                got.append(entry.payload)  # noqa: PERF401 - it shows what came before a failure
            assert got == PAYLOADS


async def test_a_read_fails_if_the_newest_metadata_name_nobody_else() -> None:
    async with mock_cluster(4) as cluster, cluster.connect() as bk:
        ledger_id = await written(bk)
        async with bk.open_ledger(ledger_id) as reader:
            for bookie in cluster.members(reader):
                lose(bookie, ledger_id)
            with pytest.raises(NoSuchEntryError):
                await payloads_of(reader)
            await bk.delete_ledger(ledger_id)
            with pytest.raises(NoSuchLedgerInMetadataError):
                await payloads_of(reader)


async def test_s33_nothing_is_called_missing_while_the_metadata_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with mock_cluster(4) as cluster, cluster.connect() as bk:
        ledger_id = await written(bk)
        async with bk.open_ledger(ledger_id) as reader:
            for bookie in cluster.members(reader):
                lose(bookie, ledger_id)

            async def unavailable(ledger_id: int, watch: object = None) -> None:
                raise MetadataUnavailableError("gone")

            with monkeypatch.context() as patch:
                patch.setattr(client_context(bk).ledgers, "read", unavailable)
                with pytest.raises(ReadFailedError, match="moved to others cannot be told"):
                    await payloads_of(reader)


async def test_s33_single_reads_go_to_the_present_members_after_a_late_refusal() -> None:
    async with (
        mock_cluster(4) as cluster,
        cluster.connect(batch_reads=False, read_timeout_s=60.0, speculative_read_s=0) as bk,
    ):
        ledger_id = await written(bk)
        async with bk.open_ledger(ledger_id) as reader:
            first, second, third = cluster.members(reader)
            (successor,) = cluster.spare(reader)
            first.keep(Read)
            reading = asyncio.create_task(payloads_of(reader))
            await until(lambda: first.count(Read))
            lose(second, ledger_id)
            lose(third, ledger_id)
            successor.keep(Read)
            await move(cluster, bk, reader, 0)
            await until(lambda: successor.count(Read))
            first.carry_out()
            await all_have_answered(bk, first, second, third)
            successor.carry_out()
            async with asyncio.timeout(PATIENCE_S):
                assert await reading == PAYLOADS
