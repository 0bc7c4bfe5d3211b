"""Readers against bookies that do what a test tells them to."""

# ruff: noqa: PERF401 - a loop that appends shows what came before it was stopped

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from doubles.mock_bookie import PATIENCE_S, SILENCE, MockCluster, mock_cluster
from doubles.waiting import until
from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_context
from quorumbook.client.reading.entries import EntryBatch
from quorumbook.client.reading.reader import LedgerReader
from quorumbook.errors import (
    DigestMismatchError,
    LedgerClosedError,
    LocalProtocolError,
    NoSuchEntryError,
    NoSuchLedgerInMetadataError,
    QuorumbookError,
    ReadFailedError,
    UnauthorizedError,
)
from quorumbook.ledger.metadata import LedgerMetadata
from quorumbook.protocol.requests import BatchRead, ReadLAC, Request
from quorumbook.protocol.status import Status


async def write(bk: BookKeeper, payloads: list[bytes], **shape: Any) -> LedgerMetadata:
    async with bk.create_ledger(**shape) as ledger:
        for start in range(0, len(payloads), 1000):
            await ledger.append_batch_nowait(payloads[start : start + 1000])
    return ledger.metadata


async def read_all(reader: LedgerReader, *wanted: int) -> list[bytes]:
    return [entry.payload async for entry in reader.read(*wanted)]


def on_batch_reads(behaviour: Any):
    return lambda request: behaviour if isinstance(request, BatchRead) else None


PAYLOADS = [b"payload %d" % i for i in range(50)]


@pytest.mark.parametrize("shape", [(3, 3, 2), (1, 1, 1), (4, 2, 2), (5, 3, 2)])
async def test_what_was_written_is_read_in_order(shape: tuple[int, int, int]) -> None:
    ensemble, writes, acks = shape
    payloads = [b"%d" % i * (i % 7) for i in range(500)]
    async with mock_cluster(ensemble) as cluster, cluster.connect() as bk:
        metadata = await write(
            bk,
            payloads,
            ensemble_size=ensemble,
            write_quorum_size=writes,
            ack_quorum_size=acks,
        )
        async with bk.open_ledger(metadata.ledger_id) as reader:
            assert reader.is_closed
            assert reader.last_add_confirmed == 499
            assert reader.length == sum(map(len, payloads))
            assert await read_all(reader) == payloads
            assert await read_all(reader, 100, 120) == payloads[100:121]
            assert await read_all(reader, 499) == payloads[499:]
            assert await read_all(reader, 500) == []
            (entry,) = [entry async for entry in reader.read(3, 3)]
            assert entry == (metadata.ledger_id, 3, payloads[3], sum(map(len, payloads[:4])))


async def test_an_empty_ledger_reads_as_nothing() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        metadata = await write(bk, [])
        async with bk.open_ledger(metadata.ledger_id) as reader:
            assert (reader.last_add_confirmed, reader.length) == (-1, 0)
            assert await read_all(reader) == []
            assert [b async for b in reader.tail_batches()] == []


async def test_batches_have_a_buffer_and_offsets() -> None:
    async with mock_cluster() as cluster, cluster.connect(read_batch_bytes=1000) as bk:
        metadata = await write(bk, PAYLOADS)
        async with bk.open_ledger(metadata.ledger_id) as reader:
            batches = [batch async for batch in reader.read_batches()]
        assert len(batches) > 1
        assert [i for batch in batches for i in batch.entry_ids] == list(range(50))
        for batch in batches:
            cut = [batch.buffer[start:end] for start, end in batch.offsets]
            assert cut == batch.payloads == PAYLOADS[batch.first_entry_id :][: len(batch)]
            assert batch.last_add_confirmed <= batch.last_entry_id
            part = batch.part(batch.last_entry_id, batch.last_entry_id)
            assert list(part) == list(batch)[-1:]
            assert part.length_after == sum(map(len, PAYLOADS[: batch.last_entry_id + 1]))


async def test_batches_join() -> None:
    async with mock_cluster() as cluster, cluster.connect(read_batch_bytes=500) as bk:
        metadata = await write(bk, PAYLOADS)
        async with bk.open_ledger(metadata.ledger_id) as reader:
            batches = [batch async for batch in reader.read_batches()]
            entries = [entry async for entry in reader.read()]
        assert list(EntryBatch.joined(batches)) == entries


async def test_nothing_beyond_the_last_add_confirmed_is_read() -> None:
    async with mock_cluster() as cluster, cluster.connect(lac_delay_s=0) as bk:
        ledger = await bk.create_ledger()
        await ledger.append_batch_nowait([b"a", b"b"])
        await ledger.append(b"c")
        async with bk.open_ledger(ledger.id, recover=False) as reader:
            assert not reader.is_closed
            assert reader.last_add_confirmed == 1
            assert await read_all(reader) == [b"a", b"b"]
            with pytest.raises(LocalProtocolError, match="read_unconfirmed"):
                await read_all(reader, 0, 2)
            unconfirmed = [entry.payload async for entry in reader.read_unconfirmed(1, 2)]
            assert unconfirmed == [b"b", b"c"]
            with pytest.raises(NoSuchEntryError):
                _ = [entry async for entry in reader.read_unconfirmed(2, 3)]
            with pytest.raises(LocalProtocolError):
                await read_all(reader, -1)
        await ledger.close()


# Replicas that fail or lie ---------------------------------------------------------------------


async def test_r32_a_damaged_entry_is_read_from_the_next_replica() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        metadata = await write(bk, PAYLOADS)
        cluster.bookies[0].corrupt = {7}
        cluster.bookies[1].corrupt = {7, 8, 30}
        async with bk.open_ledger(metadata.ledger_id) as reader:
            for _ in range(3):
                assert await read_all(reader) == PAYLOADS


async def test_r32_damage_everywhere_is_a_digest_mismatch_and_never_no_such_entry() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        metadata = await write(bk, PAYLOADS)
        for bookie in cluster.bookies:
            bookie.corrupt = {7}
        async with bk.open_ledger(metadata.ledger_id) as reader:
            got = []
            with pytest.raises(DigestMismatchError) as caught:
                async for entry in reader.read():
                    got.append(entry.payload)
            assert caught.value.entry_id == 7
            assert got == PAYLOADS[:7]
            assert await read_all(reader, 8) == PAYLOADS[8:]


async def test_s35_only_the_verified_beginning_of_an_answer_is_used() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        metadata = await write(bk, PAYLOADS[:2])
        for bookie in cluster.bookies[:2]:
            bookie.corrupt = {1}
        async with bk.open_ledger(metadata.ledger_id) as reader:
            for _ in range(3):
                assert await read_all(reader) == PAYLOADS[:2]


@pytest.mark.parametrize(
    "status", [Status.IO_ERROR, Status.NO_ENTRY, Status.NO_LEDGER, Status.TOO_MANY_REQUESTS]
)
async def test_a_bookie_that_refuses_is_passed_over(status: Status) -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        metadata = await write(bk, PAYLOADS)
        for bookie in cluster.bookies[:2]:
            bookie.on_request = on_batch_reads(status)
        async with bk.open_ledger(metadata.ledger_id) as reader:
            assert await read_all(reader) == PAYLOADS


async def test_dead_bookies_are_passed_over_while_one_is_left() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        metadata = await write(bk, PAYLOADS)
        async with bk.open_ledger(metadata.ledger_id) as reader:
            for bookie in cluster.bookies[:2]:
                await bookie.stop()
            assert await read_all(reader) == PAYLOADS
            await cluster.bookies[2].stop()
            with pytest.raises(ReadFailedError) as caught:
                await read_all(reader)
            assert caught.value.retriable
            await cluster.bookies[1].start()
            assert await read_all(reader) == PAYLOADS


async def test_an_unknown_entry_is_missing_only_if_every_replica_says_so() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        metadata = await write(bk, PAYLOADS)
        for bookie in cluster.bookies:
            del bookie.ledgers[metadata.ledger_id].entries[9]
        async with bk.open_ledger(metadata.ledger_id) as reader:
            with pytest.raises(NoSuchEntryError):
                await read_all(reader, 9, 9)
            cluster.bookies[1].on_request = on_batch_reads(Status.IO_ERROR)
            with pytest.raises(ReadFailedError):
                await read_all(reader, 9, 9)


async def test_a_silent_bookie_costs_the_speculative_delay_only() -> None:
    async with (
        mock_cluster() as cluster,
        cluster.connect(speculative_read_s=0.1, read_timeout_s=60.0) as bk,
    ):
        metadata = await write(bk, PAYLOADS)
        for bookie in cluster.bookies[:2]:
            bookie.on_request = on_batch_reads(SILENCE)
        async with bk.open_ledger(metadata.ledger_id) as reader:
            async with asyncio.timeout(PATIENCE_S):
                assert await read_all(reader) == PAYLOADS


async def test_silence_of_all_ends_with_the_time_out() -> None:
    async with (
        mock_cluster() as cluster,
        cluster.connect(speculative_read_s=0.05, read_timeout_s=0.3) as bk,
    ):
        metadata = await write(bk, PAYLOADS)
        for bookie in cluster.bookies:
            bookie.on_request = on_batch_reads(SILENCE)
        async with bk.open_ledger(metadata.ledger_id) as reader:
            with pytest.raises(ReadFailedError, match="did not answer"):
                await read_all(reader)


async def test_s35_an_answer_that_comes_late_does_no_harm() -> None:
    async with (
        mock_cluster() as cluster,
        cluster.connect(speculative_read_s=0.05, read_batch_bytes=200) as bk,
    ):
        metadata = await write(bk, PAYLOADS)
        cluster.bookies[0].on_request = on_batch_reads(0.2)
        cluster.bookies[1].on_request = on_batch_reads(0.1)
        async with bk.open_ledger(metadata.ledger_id) as reader:
            for _ in range(2):
                assert await read_all(reader) == PAYLOADS


async def test_s33_replicas_that_moved_are_found() -> None:
    async with mock_cluster(6) as cluster, cluster.connect() as bk:
        metadata = await write(bk, PAYLOADS)
        async with bk.open_ledger(metadata.ledger_id) as reader:
            assert await read_all(reader, 0, 3) == PAYLOADS[:4]
            old = cluster.members(reader)
            fresh = cluster.spare(reader)
            current, version = await client_context(bk).ledgers.read(metadata.ledger_id)
            for source, target in zip(old, fresh, strict=True):
                target.ledgers = source.ledgers
                current = current.replace_bookie(0, source.bookie_id, target.bookie_id)
            await client_context(bk).ledgers.write(current, version)
            for bookie in old:
                await bookie.stop()
            await until(lambda: reader.metadata == current)
            assert await read_all(reader) == PAYLOADS


async def test_s33_a_read_under_way_goes_on_with_the_new_replicas() -> None:
    async with mock_cluster(6) as cluster, cluster.connect(read_timeout_s=60.0) as bk:
        metadata = await write(bk, PAYLOADS)
        async with bk.open_ledger(metadata.ledger_id) as reader:
            old, fresh = cluster.members(reader), cluster.spare(reader)
            for bookie in old:
                bookie.on_request = on_batch_reads(SILENCE)
            reading = asyncio.create_task(read_all(reader))
            await until(lambda: any(bookie.count(BatchRead) for bookie in old))
            current, version = await client_context(bk).ledgers.read(metadata.ledger_id)
            for source, target in zip(old, fresh, strict=True):
                target.ledgers = source.ledgers
                current = current.replace_bookie(0, source.bookie_id, target.bookie_id)
            await client_context(bk).ledgers.write(current, version)
            async with asyncio.timeout(PATIENCE_S):
                assert await reading == PAYLOADS


async def test_s88_a_reader_that_stops_half_way_leaves_nothing_behind() -> None:
    async with (
        mock_cluster() as cluster,
        cluster.connect(read_batch_bytes=300, lac_delay_s=0) as bk,
    ):
        metadata = await write(bk, PAYLOADS)
        async with bk.open_ledger(metadata.ledger_id) as reader:
            async with contextlib.aclosing(reader.read()) as entries:
                async for entry in entries:
                    if entry.entry_id == 5:
                        break
            # That nothing is left shows in no other way.
            assert not reader._reads
        assert not bk._handles
        await until(lambda: not client_context(bk).ticker.is_running)
        await until(lambda: not client_context(bk).tasks)


async def test_reading_ahead_stays_within_its_bytes() -> None:
    async with (
        mock_cluster() as cluster,
        cluster.connect(read_batch_bytes=1000, read_ahead_bytes=3000) as bk,
    ):
        metadata = await write(bk, [bytes(100)] * 500)
        async with bk.open_ledger(metadata.ledger_id) as reader:
            async with contextlib.aclosing(reader.read_batches()) as batches:
                await anext(batches)
                await anext(batches)
                await asyncio.sleep(0.1)  # the consumer pauses
                asked = sum(b.count(BatchRead) for b in cluster.bookies)
                assert asked <= 8
                rest = [batch async for batch in batches]
            assert rest[-1].last_entry_id == 499


async def test_one_huge_entry_after_the_other_is_read() -> None:
    payloads = [bytes([i]) * 3_000_000 for i in range(4)]
    async with mock_cluster() as cluster, cluster.connect() as bk:
        async with bk.create_ledger() as ledger:
            for payload in payloads:
                await ledger.append(payload)
        async with bk.open_ledger(ledger.id) as reader:
            assert await read_all(reader) == payloads


# The last add confirmed ------------------------------------------------------------------------


async def test_the_last_add_confirmed_is_asked_of_so_many_that_nothing_is_missed() -> None:
    async with mock_cluster() as cluster, cluster.connect(lac_delay_s=0) as bk:
        ledger = await bk.create_ledger()
        async with bk.open_ledger(ledger.id, recover=False) as reader:
            assert await reader.read_last_add_confirmed() == -1
            await ledger.append(b"a")
            await ledger.append(b"b")
            assert reader.last_add_confirmed == -1
            assert await reader.read_last_add_confirmed() == 0
            assert reader.last_add_confirmed == 0
            await ledger.append(b"c")
            assert await reader.try_read_last_add_confirmed() == 1
            for bookie in cluster.bookies[:2]:
                bookie.on_request = lambda request: (
                    Status.IO_ERROR if isinstance(request, ReadLAC) else None
                )
            await ledger.append(b"d")
            assert await reader.try_read_last_add_confirmed() == 2
            with pytest.raises(ReadFailedError):
                await reader.read_last_add_confirmed()
        await ledger.close()


async def test_a_forged_last_add_confirmed_is_not_believed() -> None:
    async with mock_cluster() as cluster, cluster.connect(lac_delay_s=0) as bk:
        ledger = await bk.create_ledger()
        await ledger.append(b"a")
        await ledger.append(b"b")
        liar = cluster.bookies[0].ledgers[ledger.id]
        liar.lac_packet = liar.entries[1][:8] + (77).to_bytes(8, "big") + b"\0\0\0\0"
        async with bk.open_ledger(ledger.id, recover=False) as reader:
            assert await reader.read_last_add_confirmed() == 0
        await ledger.close()


# Opening ---------------------------------------------------------------------------------------


async def test_a_ledger_that_does_not_exist_says_so() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        for recover in (True, False):
            with pytest.raises(NoSuchLedgerInMetadataError):
                await bk.open_ledger(99, recover=recover)
        with pytest.raises(NoSuchLedgerInMetadataError):
            await bk.delete_ledger(99)
        with pytest.raises(NoSuchLedgerInMetadataError):
            await bk.ledger_metadata(99)


async def test_a_wrong_password_opens_nothing() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        metadata = await write(bk, [b"x"], password=b"secret")
        for recover in (True, False):
            with pytest.raises(UnauthorizedError):
                await bk.open_ledger(metadata.ledger_id, password=b"guess", recover=recover)
        async with bk.open_ledger(metadata.ledger_id, password=b"secret") as reader:
            assert await read_all(reader) == [b"x"]


async def test_a_closed_reader_reads_nothing() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        metadata = await write(bk, [b"x"])
        reader = await bk.open_ledger(metadata.ledger_id)
        await reader.close()
        await reader.close()
        with pytest.raises(LedgerClosedError):
            await read_all(reader)


async def test_a_read_of_a_deleted_ledger_names_the_ledger() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        metadata = await write(bk, [b"x"])
        async with bk.open_ledger(metadata.ledger_id) as reader:
            await bk.delete_ledger(metadata.ledger_id)
            for bookie in cluster.bookies:
                bookie.ledgers.clear()
            with pytest.raises(NoSuchLedgerInMetadataError):
                await read_all(reader)


async def test_garbage_from_a_bookie_closes_its_connection_and_the_next_replica_answers() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        metadata = await write(bk, PAYLOADS)
        broken = cluster.bookies[0]

        def garbage(request: Request):
            if isinstance(request, BatchRead):
                for connection in list(broken.connections):
                    connection.send(b"\0\0\0\x10" + b"\xff" * 16)
                return SILENCE
            return None

        broken.on_request = garbage
        async with bk.open_ledger(metadata.ledger_id) as reader:
            for _ in range(3):
                assert await read_all(reader) == PAYLOADS


async def test_s86_a_frame_beyond_the_limit_closes_the_connection() -> None:
    async with mock_cluster(1) as cluster, cluster.connect() as bk:
        metadata = await write(
            bk, PAYLOADS, ensemble_size=1, write_quorum_size=1, ack_quorum_size=1
        )
        bookie = cluster.bookies[0]

        def oversized(request: Request):
            if isinstance(request, BatchRead):
                for connection in list(bookie.connections):
                    connection.send(b"GET / HTTP/1.1\r\n\r\n")
                return SILENCE
            return None

        bookie.on_request = oversized
        async with bk.open_ledger(metadata.ledger_id) as reader:
            with pytest.raises(QuorumbookError, match="broke the protocol"):
                await read_all(reader)
            bookie.on_request = None
            assert await read_all(reader) == PAYLOADS


async def test_the_cluster_double_ends_clean() -> None:
    async with MockCluster() as cluster:
        assert cluster.metadata_uri.startswith("memory://")
