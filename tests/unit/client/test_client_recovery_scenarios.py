"""Recovery among bookies that forgot, refuse or were closed wrongly: the scenarios of the peer."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from typing import Any

import pytest

from doubles.mock_bookie import PATIENCE_S, mock_cluster
from doubles.waiting import until
from quorumbook.client.context import client_context
from quorumbook.errors import LedgerFencedError, QuorumbookError
from quorumbook.ledger.metadata import LedgerMetadata, LedgerState
from quorumbook.protocol.digest import DigestType, digester
from quorumbook.protocol.requests import AddRun
from quorumbook.protocol.status import Status

SEAL = digester(DigestType.CRC32C, b"")


@pytest.mark.parametrize("size", [0, 10, 1000, 300_000])
@pytest.mark.parametrize("count", [1, 30])
async def test_s12_whatever_is_written_into_a_fenced_ledger_says_that_it_is_recovery(
    size: int, count: int
) -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger = await bk.create_ledger(lac_delay_s=0)
        only = cluster.members(ledger)[0]
        await ledger.append(b"on all")
        await until(lambda: all(b.entry_ids(ledger.id) == [0] for b in cluster.bookies))
        # A tail that one bookie alone has must be written to the others.
        length = ledger.length
        for entry_id in range(1, 1 + count):
            payload = os.urandom(size)
            length += size
            only.ledgers[ledger.id].entries[entry_id] = SEAL.seal(
                ledger.id, entry_id, 0, length, payload
            )
        seen = {b.bookie_id: len(b.requests) for b in cluster.bookies}
        async with bk.open_ledger(ledger.id) as reader:
            assert reader.last_add_confirmed == count
        written = [
            request
            for bookie in cluster.bookies
            for request in bookie.requests[seen[bookie.bookie_id] :]
            if isinstance(request, AddRun)
        ]
        assert written
        assert all(request.is_recovery for request in written)
        holders = [b for b in cluster.bookies if len(b.entry_ids(ledger.id)) == count + 1]
        assert len(holders) >= 2
        with pytest.raises(LedgerFencedError):
            await ledger.append(b"a plain one is refused")
        await ledger.abort()


async def test_s17_a_bookie_that_forgot_everything_lowers_a_read_lac_but_never_a_recovery() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger = await bk.create_ledger(lac_delay_s=0)
        for number in range(20):
            await ledger.append(b"%d" % number)
        await until(lambda: all(len(b.entry_ids(ledger.id)) == 20 for b in cluster.bookies))
        forgetful, *others = cluster.members(ledger)
        del forgetful.ledgers[ledger.id]
        for bookie in others:
            bookie.on_request = lambda request: 0.05  # the one that forgot answers first
        async with bk.open_ledger(ledger.id, recover=False) as reader:
            # A lower bound, which is all that it promises.
            assert -1 <= await reader.try_read_last_add_confirmed() <= 19
            assert -1 <= await reader.read_last_add_confirmed() <= 19
        async with bk.open_ledger(ledger.id) as reader:
            assert reader.last_add_confirmed == 19
            assert [e.payload async for e in reader.read()] == [b"%d" % n for n in range(20)]
        await ledger.abort()


async def test_s23_recovering_a_closed_ledger_writes_nothing_and_keeps_its_end() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger = await bk.create_ledger(lac_delay_s=0)
        await ledger.append_batch_nowait([b"abc", b"def", b"ghi"])
        # Closed too low by somebody; only a tool that is told so may reopen it.
        current, version = await client_context(bk).ledgers.read(ledger.id)
        await client_context(bk).ledgers.write(current.in_recovery().closed(1, 6), version)
        before = await client_context(bk).ledgers.read(ledger.id)
        async with bk.open_ledger(ledger.id) as reader:
            assert reader.last_add_confirmed == 1
            assert [e.payload async for e in reader.read()] == [b"abc", b"def"]
        assert await client_context(bk).ledgers.read(ledger.id) == before
        assert before[0].state is LedgerState.CLOSED
        await ledger.abort()


async def test_r17_r32_a_damaged_copy_that_answers_first_is_neither_believed_nor_copied() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger = await bk.create_ledger(lac_delay_s=0)
        for number in range(3):
            await ledger.append(b"payload %d" % number)
        await until(lambda: all(len(b.entry_ids(ledger.id)) == 3 for b in cluster.bookies))
        *damaged, good = cluster.members(ledger)
        for bookie in damaged:
            entries = bookie.ledgers[ledger.id].entries
            entries[2] = entries[2][:-1] + b"?"
        good.on_request = lambda request: 0.05
        async with bk.open_ledger(ledger.id) as reader:
            assert reader.last_add_confirmed == 2
        for bookie in damaged:  # mended by the write back, with the good one's bytes
            entry = bookie.ledgers[ledger.id].entries[2]
            SEAL.verify(entry, ledger.id, 2)
            assert SEAL.payload(entry) == b"payload 2"
        await ledger.abort()


@pytest.mark.parametrize("kind", [DigestType.CRC32, DigestType.CRC32C, DigestType.HMAC])
async def test_s20_a_ledger_whose_metadata_has_no_password_is_recovered_with_the_one_given(
    kind: DigestType,
) -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger = await bk.create_ledger(lac_delay_s=0, password=b"mine", digest_type=kind)
        await ledger.append_batch_nowait([b"abc", b"def"])
        current, version = await client_context(bk).ledgers.read(ledger.id)
        bare = dataclasses.replace(current, password=None)
        await client_context(bk).ledgers.write(bare, version)
        with pytest.raises(QuorumbookError):
            await bk.open_ledger(ledger.id, password=b"wrong")
        async with bk.open_ledger(ledger.id, password=b"mine") as reader:
            assert [e.payload async for e in reader.read()] == [b"abc", b"def"]
        assert (await bk.ledger_metadata(ledger.id)).is_closed
        await ledger.abort()


async def test_r16_a_fence_answer_that_was_altered_on_the_way_tells_no_last_add_confirmed() -> None:
    def with_another_lac(entry_id: int, entry: bytes) -> bytes:
        del entry_id
        return entry[:16] + (99).to_bytes(8) + entry[24:]

    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger = await bk.create_ledger(lac_delay_s=0)
        await ledger.append_batch_nowait([b"%d" % i for i in range(3)])
        await until(lambda: all(len(b.entry_ids(ledger.id)) == 3 for b in cluster.bookies))
        cluster.members(ledger)[0].tamper = with_another_lac
        async with bk.open_ledger(ledger.id) as reader:
            assert reader.last_add_confirmed == 2
            assert reader.length == ledger.length
        await ledger.abort()


async def test_s28_a_recovery_whose_close_lost_to_a_repair_closes_what_the_repair_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with mock_cluster(5) as cluster, cluster.connect() as bk:
        ledger = await bk.create_ledger(lac_delay_s=0)
        await ledger.append_batch_nowait([b"zero", b"one"])
        bad = cluster.members(ledger)[0]
        await bad.stop()
        await ledger.append(b"two")
        await until(lambda: len(ledger.metadata.fragments) == 2)
        await ledger.append(b"three")
        spare = next(bookie for bookie in cluster.spare(ledger) if bookie is not bad)
        write, written = client_context(bk).ledgers.write, []

        async def repair_before_the_close(metadata: LedgerMetadata, version: int) -> int:
            if metadata.is_closed and not written:
                current, found = await client_context(bk).ledgers.read(ledger.id)
                repaired = current.replace_bookie(0, bad.bookie_id, spare.bookie_id)
                written.append(await write(repaired, found))
            return await write(metadata, version)

        monkeypatch.setattr(client_context(bk).ledgers, "write", repair_before_the_close)
        async with asyncio.timeout(PATIENCE_S):
            async with bk.open_ledger(ledger.id) as reader:
                assert reader.last_add_confirmed == 3
        assert written, "nobody was in the way"
        metadata = await bk.ledger_metadata(ledger.id)
        assert spare.bookie_id in metadata.fragments[0].ensemble
        await ledger.abort()


async def test_s11_a_bookie_that_a_recovery_took_stands_in_one_place_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with mock_cluster(4) as cluster, cluster.connect() as bk:
        ledger = await bk.create_ledger(lac_delay_s=0)
        await ledger.append(b"zero")
        await until(lambda: all(b.entry_ids(ledger.id) for b in cluster.members(ledger)))
        refusing, lost, last = cluster.members(ledger)
        (spare,) = cluster.spare(ledger)
        refusing.on_request = lambda request: (
            Status.IO_ERROR if isinstance(request, AddRun) else None
        )
        lost.keep(AddRun)
        last.hold_adds()
        replace, choices = client_context(bk).bookies.replace, []

        async def choose(*args: Any, **options: Any) -> dict[int, str]:
            try:
                return await replace(*args, **options)
            finally:
                choices.append(args)

        monkeypatch.setattr(client_context(bk).bookies, "replace", choose)
        opening = asyncio.ensure_future(bk.open_ledger(ledger.id))
        await until(lambda: spare.count(AddRun))
        await lost.stop()
        await until(lambda: len(choices) == 2)
        last.release_adds()
        await (await opening).close()
        metadata = await bk.ledger_metadata(ledger.id)
        assert metadata.ensemble == (spare.bookie_id, lost.bookie_id, last.bookie_id)
        await ledger.abort()
