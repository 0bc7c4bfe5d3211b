"""How a writer ends: fenced, closed, aborted, or with its client."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from client_harness import QUIET, refuse_adds

from doubles.mock_bookie import SILENCE, mock_cluster
from doubles.waiting import until
from quorumbook.client.context import client_context
from quorumbook.client.writing.writer import LedgerWriter
from quorumbook.errors import (
    AddQuorumTimeoutError,
    ClientClosedError,
    ConfigError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataVersionConflict,
    NoSuchLedgerInMetadataError,
    NotEnoughBookiesError,
    UnauthorizedError,
)
from quorumbook.ledger.metadata import LedgerState
from quorumbook.protocol.requests import AddRun
from quorumbook.protocol.status import Status


async def test_r04_s09_a_fenced_writer_stops_for_good_and_promptly() -> None:
    async with mock_cluster(4) as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        await ledger.append(b"zero")
        for bookie in cluster.members(ledger):
            bookie.ledgers[ledger.id].is_fenced = True
        futures = [ledger.append_nowait(b"x") for _ in range(100)]
        for future in futures:
            with pytest.raises(LedgerFencedError):
                await future
        assert ledger.is_closed
        with pytest.raises(LedgerFencedError):
            ledger.append_nowait(b"y")
        with pytest.raises(LedgerFencedError):
            await ledger.append(b"y")
        with pytest.raises(LedgerFencedError):
            await ledger.flush()
        with pytest.raises(LedgerFencedError):
            await ledger.close()
        # It is the other's business now: nothing was written.
        assert (await bk.ledger_metadata(ledger.id)).state is LedgerState.OPEN


async def test_r04_a_change_that_finds_the_ledger_in_recovery_ends_the_writer() -> None:
    async with mock_cluster(4) as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        await ledger.append(b"zero")
        current, version = await client_context(bk).ledgers.read(ledger.id)
        await client_context(bk).ledgers.write(current.in_recovery(), version)
        bad, other, _ = cluster.members(ledger)
        other.hold_adds()
        await bad.stop()
        with pytest.raises(LedgerFencedError):
            for _ in range(100):
                await ledger.append(b"x")
        with pytest.raises(LedgerFencedError):
            await ledger.close()


async def test_a_wrong_password_ends_the_writer() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger(password=b"mine")
        for bookie in cluster.bookies:
            bookie.on_request = refuse_adds(Status.UNAUTHORIZED)
        with pytest.raises(UnauthorizedError):
            await ledger.append(b"x")
        with pytest.raises(UnauthorizedError):
            await ledger.close()


async def test_r05_close_waits_for_what_is_pending_and_records_the_end() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger(custom_metadata={"who": b"me"})
        for bookie in cluster.bookies:
            bookie.hold_adds()
        futures = [ledger.append_nowait(b"abc") for _ in range(7)]
        closing = asyncio.create_task(ledger.close())
        await until(lambda: all(b.count(AddRun) for b in cluster.bookies))
        assert not closing.done()
        for bookie in cluster.bookies:
            bookie.release_adds()
        await closing
        assert [await future for future in futures] == list(range(7))
        metadata = await bk.ledger_metadata(ledger.id)
        assert (metadata.state, metadata.last_entry_id, metadata.length) == (
            LedgerState.CLOSED,
            6,
            21,
        )
        assert metadata.custom_metadata == {"who": b"me"}
        assert ledger.metadata == metadata


async def test_r05_a_ledger_closed_by_somebody_at_the_same_end_is_a_success() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        await ledger.append(b"abc")
        current, version = await client_context(bk).ledgers.read(ledger.id)
        await client_context(bk).ledgers.write(current.in_recovery().closed(0, 3), version)
        await ledger.close()


async def test_r05_a_ledger_closed_by_somebody_elsewhere_is_an_error() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        await ledger.append_batch_nowait([b"abc", b"def"])
        current, version = await client_context(bk).ledgers.read(ledger.id)
        await client_context(bk).ledgers.write(current.in_recovery().closed(0, 3), version)
        with pytest.raises(MetadataVersionConflict):
            await ledger.close()
        current, _ = await client_context(bk).ledgers.read(ledger.id)
        assert current.last_entry_id == 0


async def test_r05_a_writer_and_a_reader_leave_the_next_ledger_of_their_id_alone() -> None:
    async with mock_cluster(4) as cluster, cluster.connect(**QUIET) as bk:
        old = await bk.create_ledger(ledger_id=5)
        await old.append(b"abc")
        reader = await bk.open_ledger(5, recover=False)
        await bk.delete_ledger(5)
        new = await bk.create_ledger(ledger_id=5, custom_metadata={"whose": b"new"})
        with pytest.raises(NoSuchLedgerInMetadataError, match="another one has its id"):
            await old.close()
        metadata = await bk.ledger_metadata(5)
        assert metadata.state is LedgerState.OPEN
        assert metadata.custom_metadata == {"whose": b"new"}
        with pytest.raises(NoSuchLedgerInMetadataError):
            # A read that nobody asked for.
            await reader._context.ledgers.read_again(reader._metadata)
        await reader.close()
        await new.append(b"new")
        await new.close()
        assert (await bk.ledger_metadata(5)).last_entry_id == 0


async def test_r05_a_ledger_in_recovery_is_not_closed_by_its_writer() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        await ledger.append(b"abc")
        current, version = await client_context(bk).ledgers.read(ledger.id)
        await client_context(bk).ledgers.write(current.in_recovery(), version)
        with pytest.raises(LedgerFencedError):
            await ledger.close()
        assert (await bk.ledger_metadata(ledger.id)).state is LedgerState.IN_RECOVERY


async def test_r05_a_close_whose_answer_was_lost_is_found_done(monkeypatch) -> None:
    from quorumbook.errors import MetadataUnavailableError

    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        await ledger.append(b"abc")
        write = client_context(bk).ledgers.write
        calls = 0

        async def forgetful(metadata, version, **options):
            nonlocal calls
            calls += 1
            await write(metadata, version, **options)
            raise MetadataUnavailableError("the answer got lost")

        monkeypatch.setattr(client_context(bk).ledgers, "write", forgetful)
        await ledger.close()
        assert calls == 1
        assert (await bk.ledger_metadata(ledger.id)).is_closed


async def test_s18_closing_after_a_failed_add_tells_of_the_unknown_tail() -> None:
    async with (
        mock_cluster() as cluster,
        cluster.connect(add_quorum_timeout_s=0.3, **QUIET) as bk,
    ):
        ledger = await bk.create_ledger()
        await ledger.append(b"safe")
        for bookie in cluster.bookies:
            bookie.on_request = refuse_adds(SILENCE)
        lost = ledger.append_nowait(b"who knows")
        with pytest.raises(AddQuorumTimeoutError):
            await ledger.close()
        with pytest.raises(AddQuorumTimeoutError):
            await lost
        metadata = await bk.ledger_metadata(ledger.id)
        assert (metadata.last_entry_id, metadata.length) == (0, 4)


async def test_s32_several_closes_wait_for_the_one_and_nothing_is_appended_after() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        for bookie in cluster.bookies:
            bookie.hold_adds()
        ledger.append_nowait(b"x")
        closes = [asyncio.create_task(ledger.close()) for _ in range(5)]
        await until(lambda: all(b.count(AddRun) for b in cluster.bookies))
        for attempt in (ledger.append_nowait, lambda p: ledger.append_batch_nowait([p])):
            with pytest.raises(LedgerClosedError):
                attempt(b"late")
        with pytest.raises(LedgerClosedError):
            await ledger.append(b"late")
        assert not any(close.done() for close in closes)
        closes[0].cancel()  # who gives up waiting does not stop it
        for bookie in cluster.bookies:
            bookie.release_adds()
        await asyncio.gather(*closes[1:])
        await ledger.close()
        assert (await bk.ledger_metadata(ledger.id)).last_entry_id == 0


async def test_aborting_fails_what_is_pending_and_leaves_the_ledger_open() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        for bookie in cluster.bookies:
            bookie.hold_adds()
        sent = ledger.append_nowait(b"x")
        await until(lambda: all(b.count(AddRun) for b in cluster.bookies))
        unsent = ledger.append_batch_nowait([b"y", b"z"])
        await ledger.abort()
        for future in (sent, unsent):
            with pytest.raises(LedgerClosedError):
                await future
        assert (await bk.ledger_metadata(ledger.id)).state is LedgerState.OPEN


async def test_a_failure_inside_the_block_is_the_one_that_is_raised() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        with pytest.raises(ZeroDivisionError):
            async with bk.create_ledger() as ledger:
                await ledger.append(b"x")
                1 / 0  # noqa: B018
        assert (await bk.ledger_metadata(ledger.id)).is_closed


async def test_closing_the_client_fails_what_its_writers_have_pending() -> None:
    async with mock_cluster() as cluster:
        async with cluster.connect(**QUIET) as bk:
            ledger = await bk.create_ledger()
            for bookie in cluster.bookies:
                bookie.hold_adds()
            future = ledger.append_nowait(b"x")
            await until(lambda: all(b.count(AddRun) for b in cluster.bookies))
        with pytest.raises(ClientClosedError):
            await future
        with pytest.raises(ClientClosedError):
            await ledger.append(b"y")
        await until(lambda: not any(b.connection_count for b in cluster.bookies))


async def test_s88_closed_writers_and_failed_operations_leave_nothing_behind() -> None:
    async with mock_cluster(4) as cluster, cluster.connect(add_timeout_s=0.2) as bk:
        before = len(asyncio.all_tasks())
        kept: list[weakref.ref[LedgerWriter]] = []
        for number in range(3):
            ledger = await bk.create_ledger()
            kept.append(weakref.ref(ledger))
            await ledger.append(bytes(1000))
            if number:
                await ledger.abort()
            else:
                await ledger.close()
        with pytest.raises(NotEnoughBookiesError):
            await bk.create_ledger(ensemble_size=9)
        with pytest.raises(ConfigError, match="did you mean add_timeout_s"):
            await bk.create_ledger(add_timout_s=1)
        del ledger
        context = client_context(bk)
        await until(lambda: not context.tasks)
        await until(lambda: not context.ticker.is_running)
        await until(lambda: len(asyncio.all_tasks()) <= before)
        gc.collect()
        assert [ref() for ref in kept] == [None] * 3
