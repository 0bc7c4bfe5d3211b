"""Opening with recovery: the driver of the recovery machine against scripted bookies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from doubles.inside import adds_of
from doubles.mock_bookie import PATIENCE_S, SILENCE, MockCluster, mock_cluster
from doubles.waiting import until
from quorumbook.client import recovery
from quorumbook.client.client import BookKeeper
from quorumbook.client.context import client_context
from quorumbook.client.recovery import _RecoveryDriver
from quorumbook.client.writing.writer import LedgerWriter
from quorumbook.errors import (
    LedgerFencedError,
    LedgerRecoveryError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    QuorumbookError,
    UnauthorizedError,
)
from quorumbook.ledger.metadata import Fragment, LedgerState
from quorumbook.protocol.digest import DigestType, digester, entry_header, master_key
from quorumbook.protocol.entry_run import EntryRun
from quorumbook.protocol.requests import AddRun, Read, Request
from quorumbook.protocol.status import Status

SEAL = digester(DigestType.CRC32C, b"")


async def left_open(bk: BookKeeper, count: int, **shape: Any) -> LedgerWriter:
    """Write some entries and vanish."""
    ledger = await bk.create_ledger(lac_delay_s=0, **shape)
    for i in range(count):
        await ledger.append(b"payload %d" % i)
    # Also the bookies that no ack quorum waited for.
    await until(lambda: not any(p.outstanding for p in adds_of(ledger)._positions))
    return ledger


async def read_all(bk: BookKeeper, ledger_id: int) -> list[bytes]:
    async with bk.open_ledger(ledger_id) as reader:
        return [entry.payload async for entry in reader.read()]


def is_recovery_read(request: Request) -> bool:
    return isinstance(request, Read) and request.is_fencing and request.entry_id >= 0


def is_fence(request: Request) -> bool:
    return isinstance(request, Read) and request.is_fencing and request.entry_id == -1


def is_write_back(request: Request) -> bool:
    return isinstance(request, AddRun) and request.is_recovery


async def test_recovery_keeps_every_confirmed_entry_and_closes_the_ledger() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger = await left_open(bk, 20)
        async with bk.open_ledger(ledger.id) as reader:
            assert reader.is_closed
            assert reader.last_add_confirmed == 19
            assert reader.length == ledger.length
            got = [entry.payload async for entry in reader.read()]
        assert got == [b"payload %d" % i for i in range(20)]
        metadata = await bk.ledger_metadata(ledger.id)
        assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 19)
        await ledger.abort()


async def test_an_empty_ledger_is_recovered_to_nothing() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger = await left_open(bk, 0)
        assert await read_all(bk, ledger.id) == []
        assert (await bk.ledger_metadata(ledger.id)).last_entry_id == -1
        await ledger.abort()


async def test_r16_the_mark_comes_first_then_the_whole_ensemble_is_fenced() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger = await left_open(bk, 3)
        writes = client_context(bk).ledgers.write
        order: list[str] = []

        async def write(metadata, version):
            order.append(metadata.state.name)
            order.append(str(sum(b.count(Read) for b in cluster.bookies)))
            return await writes(metadata, version)

        client_context(bk).ledgers.write = write  # type: ignore[method-assign]
        await read_all(bk, ledger.id)
        assert order[:2] == ["IN_RECOVERY", "0"]
        assert order[2] == "CLOSED"
        for bookie in cluster.bookies:
            assert any(is_fence(request) for request in bookie.requests)
            assert bookie.ledgers[ledger.id].is_fenced
        with pytest.raises(LedgerFencedError):
            await ledger.append(b"late")
        await ledger.abort()


async def test_r16_too_few_answers_to_the_fence_close_nothing() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger = await left_open(bk, 3)
        for bookie in cluster.bookies[:2]:
            await bookie.stop()
        with pytest.raises(LedgerRecoveryError) as caught:
            await bk.open_ledger(ledger.id)
        assert caught.value.retriable
        assert (await bk.ledger_metadata(ledger.id)).state is LedgerState.IN_RECOVERY
        await cluster.bookies[0].start()
        assert len(await read_all(bk, ledger.id)) == 3
        await ledger.abort()


async def test_r16_one_silent_bookie_does_not_hold_recovery_up() -> None:
    async with (
        mock_cluster() as cluster,
        cluster.connect(request_timeout_s=60.0, speculative_read_s=0.1) as bk,
    ):
        ledger = await left_open(bk, 3)
        cluster.bookies[1].on_request = lambda request: SILENCE
        async with asyncio.timeout(PATIENCE_S):
            assert len(await read_all(bk, ledger.id)) == 3
        await ledger.abort()


async def test_r17_s04_a_hanging_bookie_and_enough_negatives_end_the_reading() -> None:
    async with mock_cluster() as cluster, cluster.connect(request_timeout_s=60.0) as bk:
        ledger = await left_open(bk, 3)
        hanging = cluster.members(ledger)[0]
        hanging.on_request = lambda request: SILENCE if is_recovery_read(request) else None
        async with asyncio.timeout(PATIENCE_S):
            assert len(await read_all(bk, ledger.id)) == 3
        await ledger.abort()


@pytest.mark.parametrize("status", [Status.IO_ERROR, Status.UNKNOWN_LEDGER_STATE])
async def test_r17_what_is_neither_yes_nor_no_closes_nothing(status: Status) -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger = await left_open(bk, 3)
        for bookie in cluster.bookies[:2]:
            bookie.on_request = lambda request: status if is_recovery_read(request) else None
        del cluster.bookies[2].ledgers[ledger.id].entries[2]
        with pytest.raises(LedgerRecoveryError):
            await bk.open_ledger(ledger.id)
        assert not (await bk.ledger_metadata(ledger.id)).is_closed
        for bookie in cluster.bookies:
            bookie.on_request = None
        assert len(await read_all(bk, ledger.id)) == 3
        await ledger.abort()


async def test_r18_what_one_bookie_has_is_written_back_to_the_whole_write_set() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger = await left_open(bk, 3)
        only = cluster.members(ledger)[1]
        # An add that reached one bookie before the writer died.
        payload = b"half written"
        entry = SEAL.seal(ledger.id, 3, 2, ledger.length + len(payload), payload)
        only.ledgers[ledger.id].entries[3] = entry
        for other in cluster.bookies:
            # Two that say no would do; the one that says yes comes first.
            if other is not only:
                other.on_request = lambda request: 0.05 if is_recovery_read(request) else None
        assert await read_all(bk, ledger.id) == [
            *(b"payload %d" % i for i in range(3)),
            payload,
        ]
        await until(lambda: all(3 in b.entry_ids(ledger.id) for b in cluster.bookies))
        assert {b.ledgers[ledger.id].entries[3] for b in cluster.bookies} == {entry}
        metadata = await bk.ledger_metadata(ledger.id)
        assert (metadata.last_entry_id, metadata.length) == (3, ledger.length + len(payload))
        await ledger.abort()


async def test_r18_s11_replacements_stay_local_until_the_closing_write() -> None:
    async with mock_cluster(4) as cluster, cluster.connect() as bk:
        ledger = await left_open(bk, 3, ack_quorum_size=3)
        bad = cluster.members(ledger)[0]
        (spare,) = cluster.spare(ledger)
        bad.on_request = lambda request: Status.READ_ONLY if is_write_back(request) else None
        states: list[tuple[str, int]] = []
        writes = client_context(bk).ledgers.write

        async def write(metadata, version):
            states.append((metadata.state.name, len(metadata.fragments)))
            return await writes(metadata, version)

        client_context(bk).ledgers.write = write  # type: ignore[method-assign]
        assert len(await read_all(bk, ledger.id)) == 3
        assert states[0] == ("IN_RECOVERY", 1)
        assert [state for state, _ in states] == ["IN_RECOVERY", "CLOSED"]
        metadata = await bk.ledger_metadata(ledger.id)
        assert spare.bookie_id in metadata.ensemble
        assert bad.bookie_id not in metadata.ensemble
        assert spare.entry_ids(ledger.id) == [2]
        await ledger.abort()


async def test_r18_a_dead_replacement_is_not_chosen() -> None:
    async with mock_cluster(5) as cluster, cluster.connect() as bk:
        ledger = await left_open(bk, 3, ack_quorum_size=3)
        bad = cluster.members(ledger)[0]
        dead, alive = cluster.spare(ledger)
        await dead.stop()
        bad.on_request = lambda request: Status.IO_ERROR if is_write_back(request) else None
        assert len(await read_all(bk, ledger.id)) == 3
        assert alive.bookie_id in (await bk.ledger_metadata(ledger.id)).ensemble
        await ledger.abort()


async def test_r18_a_quarantined_bookie_is_taken_if_no_other_is_left() -> None:
    async with mock_cluster(4) as cluster, cluster.connect(quarantine_s=3600.0) as bk:
        ledger = await left_open(bk, 3, ack_quorum_size=3)
        bad = cluster.members(ledger)[0]
        (spare,) = cluster.spare(ledger)
        client_context(bk).bookies.report_failure(spare.bookie_id)
        bad.on_request = lambda request: Status.READ_ONLY if is_write_back(request) else None
        assert len(await read_all(bk, ledger.id)) == 3
        assert spare.bookie_id in (await bk.ledger_metadata(ledger.id)).ensemble
        await ledger.abort()


async def test_r18_without_an_ack_quorum_of_takers_nothing_is_closed() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger = await left_open(bk, 3)
        for bookie in cluster.bookies[:2]:
            bookie.on_request = lambda request: Status.IO_ERROR if is_write_back(request) else None
        with pytest.raises(NotEnoughBookiesError):
            await bk.open_ledger(ledger.id)
        assert not (await bk.ledger_metadata(ledger.id)).is_closed
        await ledger.abort()


async def test_r18_two_recoveries_at_once_agree() -> None:
    async with mock_cluster() as cluster:
        async with cluster.connect() as one, cluster.connect() as other:
            ledger = await left_open(one, 30)
            first, second = await asyncio.gather(
                one.open_ledger(ledger.id), other.open_ledger(ledger.id)
            )
            assert first.metadata == second.metadata
            assert first.last_add_confirmed == 29
            await first.close()
            await second.close()
            await ledger.abort()


async def test_r19_recovery_adds_carry_the_last_add_confirmed_of_the_fence() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger = await left_open(bk, 5)
        victim = cluster.members(ledger)[0]
        length = ledger.length
        for entry_id in range(5, 9):
            length += 1
            victim.ledgers[ledger.id].entries[entry_id] = SEAL.seal(
                ledger.id, entry_id, 3, length, b"x"
            )
        for other in cluster.members(ledger)[1:]:
            # Two that say no would do; the one that says yes comes first.
            other.on_request = lambda request: 0.05 if is_recovery_read(request) else None
        assert len(await read_all(bk, ledger.id)) == 9
        for bookie in cluster.bookies:
            entries = bookie.ledgers[ledger.id].entries
            assert {entry_header(entries[i])[2] for i in range(4, 9)} == {3}
            # The length is that of the entry itself, whatever was confirmed when it was found.
            lengths = [entry_header(entries[i])[3] for i in range(4, 9)]
            assert lengths == list(range(ledger.length, length + 1))
        await ledger.abort()


async def test_r20_a_single_readable_copy_is_never_cut_off() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger = await left_open(bk, 3)
        cluster.bookies[0].corrupt = {2}
        await cluster.bookies[1].stop()
        assert len(await read_all(bk, ledger.id)) == 3
        await ledger.abort()


async def test_s01_an_add_that_arrives_after_the_recovery_read_is_refused() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger = await left_open(bk, 0)
        first, second, third = cluster.members(ledger)
        # Entry 0 is on the second only; the first lost its copy, the third's is under way, and
        # the fence never reaches the third.
        entry = SEAL.seal(ledger.id, 0, -1, 1, b"x")
        key = master_key(b"")
        for bookie in (first, second):
            bookie.handle(_Nowhere(), AddRun(EntryRun.of(ledger.id, 0, [entry]), key))
        del first.ledgers[ledger.id].entries[0]
        third.on_request = lambda request: SILENCE if is_fence(request) else None
        second.on_request = lambda request: SILENCE if is_recovery_read(request) else None
        reader = await bk.open_ledger(ledger.id)
        assert reader.last_add_confirmed == -1
        third.on_request = None
        with pytest.raises(LedgerFencedError):
            await ledger.append(b"x")
        await reader.close()
        await ledger.abort()


class _Nowhere:
    def send(self, data: bytes) -> None:
        del data


async def test_s02_recovery_starts_at_the_last_fragment_and_rewrites_no_older_one() -> None:
    async with mock_cluster(4) as cluster, cluster.connect() as bk:
        ledger = await left_open(bk, 10)
        current, version = await client_context(bk).ledgers.read(ledger.id)
        (spare,) = cluster.spare(ledger)
        old = current.ensemble
        changed = current.with_fragment(10, (spare.bookie_id, *old[1:]))
        await client_context(bk).ledgers.write(changed, version)
        members = {b.bookie_id: b for b in cluster.bookies}
        for bookie_id in changed.ensemble:
            members[bookie_id].ledgers.pop(ledger.id, None)
        async with bk.open_ledger(ledger.id) as reader:
            assert reader.last_add_confirmed == 9
            assert reader.metadata.fragments == (
                Fragment(0, old),
                Fragment(10, changed.ensemble),
            )
        await ledger.abort()


async def test_s03_recovery_reads_go_to_the_ensemble_recorded_at_the_start() -> None:
    async with mock_cluster(4) as cluster, cluster.connect() as bk:
        ledger = await left_open(bk, 3)
        (spare,) = cluster.spare(ledger)
        cluster.members(ledger)[0].on_request = lambda request: (
            Status.IO_ERROR if is_write_back(request) else None
        )
        await read_all(bk, ledger.id)
        assert not any(is_recovery_read(r) or is_fence(r) for r in spare.requests)
        await ledger.abort()


async def test_s05_one_answer_is_enough_where_every_add_needed_all() -> None:
    async with mock_cluster(2) as cluster, cluster.connect() as bk:
        ledger = await left_open(bk, 3, ensemble_size=2, write_quorum_size=2, ack_quorum_size=2)
        await cluster.members(ledger)[0].stop()
        current, version = await client_context(bk).ledgers.read(ledger.id)
        await client_context(bk).ledgers.write(current.in_recovery(), version)
        await cluster.add()  # what is found needs two bookies to be stored on
        assert len(await read_all(bk, ledger.id)) == 3
        await ledger.abort()


async def test_s09_a_fence_fails_the_pending_adds_of_the_old_writer_at_once() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger = await left_open(bk, 1)
        for bookie in cluster.bookies:
            bookie.hold_adds()
        held = ledger.append_nowait(b"held")
        await until(lambda: all(1 in b.entry_ids(ledger.id) for b in cluster.bookies))
        for bookie in cluster.bookies:
            bookie.release_adds()
            bookie.hold_adds()
        await held
        for bookie in cluster.bookies:
            bookie._held = None  # that nothing is left shows in no other way
        reader = await bk.open_ledger(ledger.id)
        futures = [ledger.append_nowait(b"x") for _ in range(10)]
        async with asyncio.timeout(PATIENCE_S):
            for future in futures:
                with pytest.raises(LedgerFencedError):
                    await future
        assert reader.last_add_confirmed == 1
        await reader.close()
        await ledger.abort()


async def test_a_wrong_master_key_is_told_as_unauthorized() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger = await left_open(bk, 3)
        for bookie in cluster.bookies:
            bookie.ledgers[ledger.id].master_key = master_key(b"another")
        with pytest.raises(UnauthorizedError):
            await bk.open_ledger(ledger.id)
        await ledger.abort()


async def test_a_bookie_that_has_another_key_keeps_nobody_from_recovering() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger = await left_open(bk, 3)
        cluster.bookies[1].ledgers[ledger.id].master_key = master_key(b"another")
        assert len(await read_all(bk, ledger.id)) == 3
        await ledger.abort()


async def test_an_overloaded_bookie_is_asked_again() -> None:
    sheds = iter([Status.TOO_MANY_REQUESTS] * 2)

    def shed(request: Request):
        return next(sheds, None) if is_fence(request) or is_write_back(request) else None

    async with mock_cluster(1) as cluster, cluster.connect() as bk:
        ledger = await left_open(bk, 3, ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
        cluster.bookies[0].on_request = shed
        assert len(await read_all(bk, ledger.id)) == 3
        await ledger.abort()


async def test_metadata_writes_whose_answers_get_lost_are_found_done(monkeypatch) -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        ledger = await left_open(bk, 3)
        write = client_context(bk).ledgers.write

        async def forgetful(metadata, version):
            await write(metadata, version)
            raise MetadataUnavailableError("the answer got lost")

        monkeypatch.setattr(client_context(bk).ledgers, "write", forgetful)
        assert len(await read_all(bk, ledger.id)) == 3
        await ledger.abort()


async def test_s88_a_failed_recovery_leaves_nothing_behind() -> None:
    async with mock_cluster() as cluster, cluster.connect(request_timeout_s=0.2) as bk:
        ledger = await left_open(bk, 3)
        await ledger.abort()
        for bookie in cluster.bookies:
            bookie.on_request = lambda request: SILENCE
        before = len(asyncio.all_tasks())
        with pytest.raises(QuorumbookError):
            await bk.open_ledger(ledger.id)
        await until(lambda: len(asyncio.all_tasks()) <= before)
        await until(lambda: not client_context(bk).ticker.is_running)
        assert not bk._handles  # that nothing is left shows in no other way


async def test_s88_a_recovery_that_ends_leaves_no_request_no_second_try_and_no_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One bookie is silent, one sheds load, for one that refuses another is being chosen."""
    async with mock_cluster(4) as cluster, cluster.connect(request_timeout_s=3600.0) as bk:
        ledger = await left_open(bk, 3)
        silent, shedding, refusing = cluster.members(ledger)
        chosen: asyncio.Future[dict[int, str]] = asyncio.get_running_loop().create_future()
        drivers: list[Any] = []
        run = _RecoveryDriver.run

        async def choose(*_: Any, **__: Any) -> dict[int, str]:
            return await chosen

        async def running(self: Any) -> Any:
            drivers.append(self)
            return await run(self)

        monkeypatch.setattr(client_context(bk).bookies, "replace", choose)
        monkeypatch.setattr(_RecoveryDriver, "run", running)
        monkeypatch.setattr(recovery, "_SHED_RETRY_S", 3600.0)
        silent.on_request = lambda request: SILENCE if is_write_back(request) else None
        for bookie, status in ((shedding, Status.TOO_MANY_REQUESTS), (refusing, Status.READ_ONLY)):
            bookie.on_request = lambda request, status=status: (
                status if is_write_back(request) else None
            )
        opening = asyncio.ensure_future(bk.open_ledger(ledger.id))
        await until(lambda: drivers)
        (driver,) = drivers
        # That nothing is left shows in no other way.
        await until(lambda: driver._requests and driver._timers and driver._tasks)
        requests, timers, tasks = (*driver._requests,), (*driver._timers,), (*driver._tasks,)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        await until(lambda: all(task.done() for task in tasks))
        # Some may have been answered meanwhile; the silent bookie's cannot.
        assert all(request.done() for request in requests)
        assert any(request.cancelled() for request in requests)
        assert all(timer.cancelled() for timer in timers)
        assert all(task.cancelled() for task in tasks)
        assert chosen.cancelled()
        await ledger.abort()


async def test_a_long_unconfirmed_tail_is_recovered_in_batches() -> None:
    async with mock_cluster() as cluster, cluster.connect(recovery_batch_entries=16) as bk:
        ledger = await bk.create_ledger(lac_delay_s=0)
        await ledger.append_batch_nowait([b"%d" % i for i in range(700)])
        assert await read_all(bk, ledger.id) == [b"%d" % i for i in range(700)]
        await ledger.abort()


async def test_the_cluster_double_has_no_ledgers_of_its_own() -> None:
    async with MockCluster() as cluster, cluster.connect() as bk:
        assert [m async for m in bk.list_ledgers()] == []
