"""The writer against bookies that do what a test tells them to."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from doubles.mock_bookie import PATIENCE_S, SILENCE, MockBookie, MockCluster, mock_cluster, until
from quorumbook.client.pending import ENTRY_OVERHEAD_BYTES
from quorumbook.client.writer import LedgerWriter
from quorumbook.errors import (
    AddQuorumTimeoutError,
    BackpressureError,
    ClientClosedError,
    ConfigError,
    LedgerClosedError,
    LedgerFencedError,
    LocalProtocolError,
    MetadataVersionConflict,
    NotEnoughBookiesError,
    QuorumbookError,
    UnauthorizedError,
)
from quorumbook.ids import FRAME_OVERHEAD_BYTES, MAX_FRAME_SIZE_BYTES
from quorumbook.ledger.metadata import LedgerState
from quorumbook.protocol.digest import DigestType, digester, entry_header
from quorumbook.protocol.requests import AddRun, Request, WriteLAC
from quorumbook.protocol.status import Status

QUIET = {"lac_delay_s": 0}


def refuse_adds(status: Status | str):
    def behave(request: Request):
        return status if isinstance(request, AddRun) and not request.is_recovery else None

    return behave


def payloads_at(bookie: MockBookie, ledger_id: int) -> list[bytes]:
    seal = digester(DigestType.CRC32C, b"")
    entries = bookie.ledgers[ledger_id].entries
    return [seal.payload(entries[entry_id]) for entry_id in sorted(entries)]


class Gate:
    """Holds the metadata writes of a client up."""

    def __init__(self, bk, monkeypatch) -> None:
        self._write = bk._ledgers.write
        self._open = asyncio.Event()
        self.waiting = 0
        self.fail_with: QuorumbookError | None = None
        monkeypatch.setattr(bk._ledgers, "write", self._gated)

    async def _gated(self, metadata, version):
        self.waiting += 1
        await self._open.wait()
        if self.fail_with is not None:
            error, self.fail_with = self.fail_with, None
            raise error
        return await self._write(metadata, version)

    def open(self) -> None:
        self._open.set()


# Appending -------------------------------------------------------------------------------------


async def test_entries_get_consecutive_ids_in_the_order_of_the_calls() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        async with await bk.create_ledger() as ledger:
            assert await ledger.append(b"zero") == 0
            futures = [ledger.append_nowait(b"%d" % i) for i in range(1, 100)]
            many = ledger.append_many([b"a", b"b", b"c"])
            last = ledger.append_nowait(b"last")
            assert ledger.last_add_pushed == 103
            assert await last == 103
            assert await many == range(100, 103)
            assert [await future for future in futures] == list(range(1, 100))
            assert ledger.last_add_confirmed == 103
        wanted = [b"zero", *(b"%d" % i for i in range(1, 100)), b"a", b"b", b"c", b"last"]
        for bookie in cluster.bookies:
            assert payloads_at(bookie, ledger.id) == wanted


async def test_what_is_appended_in_one_turn_leaves_as_one_run() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        futures = [ledger.append_nowait(b"x") for _ in range(50)]
        await asyncio.gather(*futures)
        for bookie in cluster.bookies:
            assert bookie.count(AddRun) == 1
        await ledger.close()


async def test_nothing_appended_is_an_empty_range() -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        async with await bk.create_ledger() as ledger:
            assert await ledger.append_many([]) == range(0)
            assert await ledger.append(b"") == 0
            assert await ledger.append_many(iter([])) == range(1, 1)


async def test_a_striped_ledger_sends_each_entry_to_its_write_set_only() -> None:
    async with mock_cluster(4) as cluster, cluster.connect() as bk:
        async with await bk.create_ledger(
            ensemble_size=4, write_quorum_size=2, ack_quorum_size=2
        ) as ledger:
            await ledger.append_many([b"x%d" % i for i in range(10)])
            await ledger.append(b"ten")
        for index, bookie in enumerate(cluster.members(ledger)):
            expected = [e for e in range(11) if (index - e) % 4 < 2]
            assert bookie.entry_ids(ledger.id) == expected


@pytest.mark.parametrize("kind", list(DigestType))
async def test_entries_are_sealed_with_the_ledgers_own_digest(kind: DigestType) -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        async with await bk.create_ledger(password=b"secret", digest_type=kind) as ledger:
            await ledger.append(b"payload")
        entry = cluster.bookies[0].ledgers[ledger.id].entries[0]
        digester(kind, b"secret").verify(entry, ledger.id, 0)


async def test_r01_an_entry_is_confirmed_by_its_ack_quorum_and_no_sooner() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        for bookie in cluster.bookies:
            bookie.hold_adds()
        future = ledger.append_nowait(b"x")
        await until(lambda: all(b.entry_ids(ledger.id) == [0] for b in cluster.bookies))
        cluster.bookies[0].release_adds()
        await bk.ledger_metadata(ledger.id)
        await asyncio.sleep(0.05)
        assert not future.done()
        assert ledger.last_add_confirmed == -1
        cluster.bookies[1].release_adds()
        assert await future == 0
        await ledger.close()


async def test_r01_acks_of_a_replaced_bookie_are_dropped_and_its_entries_sent_to_the_new() -> None:
    async with mock_cluster(4) as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger(ack_quorum_size=3)
        bad, slow, good = cluster.members(ledger)
        (spare,) = cluster.spare(ledger)
        slow.hold_adds()
        first = ledger.append_nowait(b"x")
        await until(lambda: slow.entry_ids(ledger.id) == [0])
        bad.hold_adds()  # it has acknowledged entry 0, and never will entry 1
        second = ledger.append_nowait(b"y")
        await until(lambda: bad.entry_ids(ledger.id) == [0, 1])
        await bad.stop()
        await until(lambda: spare.entry_ids(ledger.id) == [0, 1])
        slow.release_adds()
        assert (await first, await second) == (0, 1)
        assert ledger.metadata.ensemble == (spare.bookie_id, slow.bookie_id, good.bookie_id)
        assert len(ledger.metadata.fragments) == 1
        await ledger.close()


async def test_r02_entries_carry_the_last_add_confirmed_of_the_moment_they_are_sent() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        await ledger.append_many([b"a", b"b"])
        await ledger.append_many([b"c", b"d"])
        entries = cluster.bookies[0].ledgers[ledger.id].entries
        assert [entry_header(entries[i])[2] for i in range(4)] == [-1, -1, 1, 1]
        assert [entry_header(entries[i])[3] for i in range(4)] == [1, 2, 3, 4]
        await ledger.close()


async def test_r06_s22_a_payload_is_frozen_when_it_is_appended() -> None:
    async with mock_cluster(4) as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger(ack_quorum_size=3)
        bad, *others = cluster.members(ledger)
        (spare,) = cluster.spare(ledger)
        bad.hold_adds()
        buffer = bytearray(b"before")
        future = ledger.append_nowait(buffer)
        many = ledger.append_many([memoryview(buffer)])
        buffer[:] = b"AFTER!"
        await until(lambda: all(b.entry_ids(ledger.id) == [0, 1] for b in (bad, *others)))
        await bad.stop()
        assert await future == 0
        assert await many == range(1, 2)
        for bookie in (*others, spare):
            assert payloads_at(bookie, ledger.id) == [b"before", b"before"]
        # The very same bytes, digest and all, went to the replacement.
        assert spare.ledgers[ledger.id].entries == others[0].ledgers[ledger.id].entries
        await ledger.close()


@pytest.mark.parametrize("payload", ["text", 5, None, [1]])
async def test_a_payload_that_is_no_bytes_is_a_type_error(payload: object) -> None:
    async with mock_cluster() as cluster, cluster.connect() as bk:
        async with await bk.create_ledger() as ledger:
            with pytest.raises(TypeError):
                ledger.append_nowait(payload)  # type: ignore[arg-type]
            with pytest.raises(TypeError):
                ledger.append_many([b"fine", payload])  # type: ignore[list-item]
            assert await ledger.append(b"first") == 0


async def test_an_entry_beyond_the_limit_is_refused_and_the_largest_one_is_not() -> None:
    largest = MAX_FRAME_SIZE_BYTES - FRAME_OVERHEAD_BYTES
    async with mock_cluster() as cluster, cluster.connect() as bk:
        async with await bk.create_ledger() as ledger:
            with pytest.raises(LocalProtocolError, match="larger"):
                await ledger.append(bytes(largest + 1))
            with pytest.raises(LocalProtocolError, match="larger"):
                ledger.append_many([b"x", bytes(largest + 1)])
            assert await ledger.append(bytes(largest)) == 0
            assert ledger.pending_entries == 0


async def test_cancelling_an_append_does_not_take_the_entry_back() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        for bookie in cluster.bookies:
            bookie.hold_adds()
        task = asyncio.create_task(ledger.append(b"x"))
        await until(lambda: cluster.bookies[0].entry_ids(ledger.id) == [0])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for bookie in cluster.bookies:
            bookie.release_adds()
        assert await ledger.append(b"y") == 1
        await ledger.close()
        assert ledger.metadata.last_entry_id == 1


# The window ------------------------------------------------------------------------------------


async def test_a_full_window_refuses_and_drain_waits_for_room() -> None:
    async with (
        mock_cluster() as cluster,
        cluster.connect(max_pending_entries=3, **QUIET) as bk,
    ):
        ledger = await bk.create_ledger()
        for bookie in cluster.bookies:
            bookie.hold_adds()
        for _ in range(3):
            ledger.append_nowait(b"x")
        with pytest.raises(BackpressureError, match="max_pending_entries"):
            ledger.append_nowait(b"x")
        with pytest.raises(BackpressureError):
            ledger.append_many([b"x"])
        drained = asyncio.create_task(ledger.drain())
        waiting = [asyncio.create_task(ledger.append(b"%d" % i)) for i in range(10)]
        await until(lambda: cluster.bookies[0].entry_ids(ledger.id) == [0, 1, 2])
        assert not drained.done()
        assert ledger.pending_entries == 3
        for bookie in cluster.bookies:
            bookie.release_adds()
        await drained
        # Those who wait get their turn in the order they came.
        assert [await task for task in waiting] == list(range(3, 13))
        await ledger.close()
        assert ledger.pending_entries == 0


async def test_an_append_that_waits_fails_when_the_writer_ends() -> None:
    async with (
        mock_cluster() as cluster,
        cluster.connect(max_pending_entries=1, **QUIET) as bk,
    ):
        ledger = await bk.create_ledger()
        for bookie in cluster.bookies:
            bookie.hold_adds()
        first = ledger.append_nowait(b"x")
        waiting = asyncio.create_task(ledger.append(b"y"))
        draining = asyncio.create_task(ledger.drain())
        await until(lambda: cluster.bookies[0].entry_ids(ledger.id) == [0])
        await ledger.abort()
        for task in (first, waiting, draining):
            with pytest.raises(LedgerClosedError):
                await task


async def test_an_entry_larger_than_the_window_goes_when_the_window_is_empty() -> None:
    async with (
        mock_cluster() as cluster,
        cluster.connect(max_pending_bytes=1000, **QUIET) as bk,
    ):
        async with await bk.create_ledger() as ledger:
            assert await ledger.append(bytes(5000)) == 0
            assert await ledger.append(bytes(5000)) == 1
            with pytest.raises(BackpressureError):
                ledger.append_many([bytes(5000)] * 2)


async def test_s84_one_slow_bookie_holds_no_more_than_the_byte_budget() -> None:
    budget = 8 * 1024 * 1024
    async with (
        mock_cluster() as cluster,
        cluster.connect(max_pending_bytes=budget, add_timeout_s=60.0, **QUIET) as bk,
    ):
        ledger = await bk.create_ledger(ack_quorum_size=2)
        await ledger.append(b"connect")
        slow = cluster.members(ledger)[2]
        slow.stop_reading()
        payload = bytes(200_000)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                while True:  # the quorum of the others would confirm for ever
                    await ledger.append(payload)
        channel = bk._context.bookies.fast(slow.bookie_id)
        assert budget // 2 < channel.unsent_bytes <= budget + len(payload) + 1000
        assert ledger.pending_bytes <= budget + len(payload) + ENTRY_OVERHEAD_BYTES
        with pytest.raises(BackpressureError):
            ledger.append_nowait(payload)
        await ledger.abort()


async def test_s84_a_bookie_that_never_takes_its_bytes_is_replaced_and_room_comes_back() -> None:
    async with (
        mock_cluster(4) as cluster,
        cluster.connect(max_pending_bytes=4_000_000, add_timeout_s=0.3, **QUIET) as bk,
    ):
        ledger = await bk.create_ledger(ack_quorum_size=2)
        await ledger.append(b"connect")
        slow = cluster.members(ledger)[2]
        slow.stop_reading()
        async with asyncio.timeout(PATIENCE_S):
            while slow.bookie_id in ledger.metadata.ensemble:
                await ledger.append(bytes(200_000))
            for _ in range(50):
                await ledger.append(bytes(200_000))
        await ledger.close()


async def test_s85_overload_makes_appends_wait_and_memory_stays() -> None:
    def shed(request: Request):
        if isinstance(request, AddRun) and next(turns) % 3 == 0:
            return Status.TOO_MANY_REQUESTS
        return None

    turns = iter(range(1_000_000))
    async with (
        mock_cluster() as cluster,
        cluster.connect(max_pending_entries=50, **QUIET) as bk,
    ):
        for bookie in cluster.bookies:
            bookie.on_request = shed
        async with await bk.create_ledger(ack_quorum_size=3) as ledger:
            highest = 0

            async def append() -> None:
                nonlocal highest
                await ledger.append(b"x")
                highest = max(highest, ledger.pending_entries)

            await asyncio.gather(*(append() for _ in range(500)))
            assert highest <= 50
        # Overload is no reason to put the load on another bookie.
        assert len(ledger.metadata.fragments) == 1
        for bookie in cluster.bookies:
            assert bookie.entry_ids(ledger.id) == list(range(500))


# Failing bookies -------------------------------------------------------------------------------


async def test_a_bookie_that_dies_is_replaced_behind_what_was_confirmed() -> None:
    async with mock_cluster(4) as cluster, cluster.connect(**QUIET) as bk:
        async with await bk.create_ledger() as ledger:
            await ledger.append_many([b"old%d" % i for i in range(10)])
            bad = cluster.members(ledger)[1]
            (spare,) = cluster.spare(ledger)
            await bad.stop()
            for i in range(20):
                await ledger.append(b"new%d" % i)
            await until(lambda: len(ledger.metadata.fragments) == 2)
            await ledger.append(b"after")
        first, second = ledger.metadata.fragments
        assert bad.bookie_id in first.ensemble
        assert spare.bookie_id in second.ensemble
        start = second.first_entry_id
        assert start >= 10
        assert spare.entry_ids(ledger.id) == list(range(start, 31))
        assert bad.bookie_id in bk._context.bookies.quarantined


@pytest.mark.parametrize(
    "status", [Status.IO_ERROR, Status.READ_ONLY, Status.NO_LEDGER, Status.BAD_REQUEST]
)
async def test_a_bookie_that_refuses_is_replaced(status: Status) -> None:
    async with mock_cluster(4) as cluster, cluster.connect(**QUIET) as bk:
        async with await bk.create_ledger() as ledger:
            bad = cluster.members(ledger)[0]
            bad.on_request = refuse_adds(status)
            await ledger.append(b"x")
            await until(lambda: bad.bookie_id not in ledger.metadata.ensemble)
            await ledger.append(b"y")


async def test_r03_s24_nothing_is_confirmed_between_the_choice_and_its_record(
    monkeypatch,
) -> None:
    async with mock_cluster(5) as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        bad, second, third = cluster.members(ledger)
        bad.hold_adds()
        third.hold_adds()
        gate = Gate(bk, monkeypatch)
        future = ledger.append_nowait(b"zero")
        await until(lambda: all(b.count(AddRun) for b in (bad, second, third)))
        await bad.stop()
        await until(lambda: gate.waiting)
        third.release_adds()  # an ack quorum of the old ensemble, while the change is under way
        more = [ledger.append_nowait(b"%d" % i) for i in range(5)]
        await until(lambda: third.entry_ids(ledger.id) == list(range(6)))
        await asyncio.sleep(0.05)
        assert not future.done()
        assert ledger.last_add_confirmed <= 0
        gate.open()
        assert await future == 0
        assert [await f for f in more] == [1, 2, 3, 4, 5]
        fresh = next(b for b in cluster.members(ledger) if b not in (bad, second, third))
        start = ledger.metadata.last_fragment.first_entry_id
        await until(lambda: fresh.entry_ids(ledger.id) == list(range(start, 6)))
        await ledger.close()


async def test_s24_bookies_that_die_one_after_the_other_lose_nothing() -> None:
    async with mock_cluster(8) as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        done = 0
        for _ in range(5):
            for _ in range(3):
                done = await ledger.append(b"x")
            victim = cluster.members(ledger)[done % 3]
            await victim.stop()
        await ledger.append(b"end")
        await ledger.close()
        for entry_id in range(ledger.last_add_confirmed + 1):
            members = ledger.metadata.fragment_of(entry_id).ensemble
            holders = [
                b
                for b in cluster.bookies
                if b.bookie_id in members and entry_id in b.entry_ids(ledger.id)
            ]
            assert len(holders) >= 2, entry_id


async def test_s28_a_change_that_loses_to_replication_is_applied_again(monkeypatch) -> None:
    async with mock_cluster(5) as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        await ledger.append(b"zero")
        first_bad = cluster.members(ledger)[0]
        await first_bad.stop()
        await ledger.append(b"one")
        await until(lambda: len(ledger.metadata.fragments) == 2)
        # Somebody repairs the first fragment behind the writer's back.
        current, version = await bk._ledgers.read(ledger.id)
        old = current.fragments[0].ensemble
        spare = next(b for b in cluster.bookies if b.bookie_id not in (*old, *current.ensemble))
        repaired = current.replace_bookie(0, first_bad.bookie_id, spare.bookie_id)
        await bk._ledgers.write(repaired, version)
        await cluster.add()
        await cluster.members(ledger)[1].stop()
        await ledger.append(b"two")
        await until(lambda: len(ledger.metadata.fragments) == 3)
        await ledger.close()
        assert ledger.metadata.fragments[0] == repaired.fragments[0]


async def test_s29_an_entry_completes_although_one_answer_was_lost() -> None:
    lost = iter([True])

    def lose_one(request: Request):
        return SILENCE if isinstance(request, AddRun) and next(lost, False) else None

    async with (
        mock_cluster(4) as cluster,
        cluster.connect(add_timeout_s=0.3, **QUIET) as bk,
    ):
        ledger = await bk.create_ledger(ack_quorum_size=3)
        forgetful = cluster.members(ledger)[0]
        forgetful.on_request = lose_one
        future = ledger.append_nowait(b"x")
        await until(lambda: forgetful.count(AddRun) == 1)
        # Other answers of this bookie go on arriving, so that it never looks silent.
        while not future.done():
            ledger.append_nowait(b"y")
            await asyncio.sleep(0.01)
        assert await future == 0
        assert forgetful.bookie_id not in ledger.metadata.ensemble
        await ledger.close()


async def test_s29_an_add_without_ack_quorum_fails_within_its_time() -> None:
    async with (
        mock_cluster(3) as cluster,
        cluster.connect(add_quorum_timeout_s=0.4, add_timeout_s=30.0, **QUIET) as bk,
    ):
        ledger = await bk.create_ledger()
        for bookie in cluster.bookies[1:]:
            bookie.on_request = refuse_adds(SILENCE)
        cluster.bookies[0].on_request = refuse_adds(SILENCE)
        with pytest.raises(AddQuorumTimeoutError, match="unknown"):
            await ledger.append(b"x")
        with pytest.raises(AddQuorumTimeoutError):
            await ledger.flush()
        assert ledger.is_closed
        await ledger.abort()


async def test_a_silent_bookie_is_replaced_after_the_time_out() -> None:
    async with (
        mock_cluster(4) as cluster,
        cluster.connect(add_timeout_s=0.3, **QUIET) as bk,
    ):
        async with await bk.create_ledger() as ledger:
            silent = cluster.members(ledger)[0]
            silent.on_request = refuse_adds(SILENCE)
            assert await ledger.append(b"x") == 0  # the others are enough
            async with asyncio.timeout(PATIENCE_S):
                while silent.bookie_id in ledger.metadata.ensemble:
                    await ledger.append(b"y")
                    await asyncio.sleep(0.02)


async def test_s30_a_third_bookie_that_fails_after_the_quorum_is_replaced_with_the_next_add() -> (
    None
):
    async with mock_cluster(4) as cluster, cluster.connect(**QUIET) as bk:
        async with await bk.create_ledger() as ledger:
            late = cluster.members(ledger)[2]
            late.hold_adds()
            await ledger.append(b"x")
            await late.stop()
            await asyncio.sleep(0.05)
            assert len(ledger.metadata.fragments) == 1
            assert await ledger.append(b"y") == 1
            await until(lambda: late.bookie_id not in ledger.metadata.ensemble)


async def test_s31_the_number_of_ensemble_changes_is_bounded() -> None:
    async with mock_cluster(8) as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger(max_ensemble_changes=2)
        for bookie in cluster.bookies:
            bookie.on_request = refuse_adds(Status.IO_ERROR)
        with pytest.raises(NotEnoughBookiesError):
            await ledger.append(b"x")
        asked = sum(bookie.count(AddRun) > 0 for bookie in cluster.bookies)
        assert asked <= 3 + 2 * 3
        with pytest.raises(NotEnoughBookiesError):
            await ledger.close()


async def test_without_a_spare_bookie_writing_goes_on_and_takes_one_that_appears() -> None:
    async with mock_cluster(3) as cluster, cluster.connect(**QUIET) as bk:
        async with await bk.create_ledger() as ledger:
            await ledger.append(b"zero")
            dead = cluster.members(ledger)[0]
            await dead.stop()
            for i in range(5):
                await ledger.append(b"%d" % i)
            await until(lambda: ledger.is_degraded)
            (fresh,) = await cluster.add()
            await until(lambda: fresh.bookie_id in ledger.metadata.ensemble)
            assert not ledger.is_degraded
            await ledger.append(b"last")
            await until(lambda: 6 in fresh.entry_ids(ledger.id))


async def test_a_degraded_writer_takes_its_own_bookie_back() -> None:
    async with mock_cluster(3) as cluster, cluster.connect(**QUIET) as bk:
        async with await bk.create_ledger() as ledger:
            await ledger.append(b"zero")
            member = cluster.members(ledger)[0]
            await member.stop()
            await ledger.append(b"one")
            await until(lambda: ledger.is_degraded)
            await member.start()
            await until(lambda: not ledger.is_degraded)
            await ledger.append(b"two")
            await until(lambda: 2 in member.entry_ids(ledger.id))
        assert len(ledger.metadata.fragments) == 1


async def test_who_requires_a_replacement_is_closed_without_one() -> None:
    async with mock_cluster(3) as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger(require_replacement=True)
        await ledger.append(b"zero")
        await cluster.members(ledger)[0].stop()
        with pytest.raises(NotEnoughBookiesError):
            for _ in range(100):
                await ledger.append(b"x")
        with pytest.raises(NotEnoughBookiesError):
            await ledger.close()
        metadata = await bk.ledger_metadata(ledger.id)
        assert metadata.is_closed
        assert metadata.last_entry_id == ledger.last_add_confirmed >= 0


async def test_a_delayed_ensemble_change_keeps_the_ensemble_while_quorums_are_in_reach() -> None:
    async with mock_cluster(5) as cluster, cluster.connect(**QUIET) as bk:
        async with await bk.create_ledger(delay_ensemble_change=True) as ledger:
            await ledger.append(b"zero")
            first, second, _ = cluster.members(ledger)
            await first.stop()
            for _ in range(5):
                await ledger.append(b"x")
            assert len(ledger.metadata.fragments) == 1
            await second.stop()
            await ledger.append(b"y")
            assert len(ledger.metadata.fragments) == 2
            assert not {first.bookie_id, second.bookie_id} & set(ledger.metadata.ensemble)


# Fencing and the end ---------------------------------------------------------------------------


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
        current, version = await bk._ledgers.read(ledger.id)
        await bk._ledgers.write(current.in_recovery(), version)
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
        current, version = await bk._ledgers.read(ledger.id)
        await bk._ledgers.write(current.in_recovery().closed(0, 3), version)
        await ledger.close()


async def test_r05_a_ledger_closed_by_somebody_elsewhere_is_an_error() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        await ledger.append_many([b"abc", b"def"])
        current, version = await bk._ledgers.read(ledger.id)
        await bk._ledgers.write(current.in_recovery().closed(0, 3), version)
        with pytest.raises(MetadataVersionConflict):
            await ledger.close()
        current, _ = await bk._ledgers.read(ledger.id)
        assert current.last_entry_id == 0


async def test_r05_a_ledger_in_recovery_is_not_closed_by_its_writer() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        await ledger.append(b"abc")
        current, version = await bk._ledgers.read(ledger.id)
        await bk._ledgers.write(current.in_recovery(), version)
        with pytest.raises(LedgerFencedError):
            await ledger.close()
        assert (await bk.ledger_metadata(ledger.id)).state is LedgerState.IN_RECOVERY


async def test_r05_a_close_whose_answer_was_lost_is_found_done(monkeypatch) -> None:
    from quorumbook.errors import MetadataUnavailableError

    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        ledger = await bk.create_ledger()
        await ledger.append(b"abc")
        write = bk._ledgers.write
        calls = 0

        async def forgetful(metadata, version):
            nonlocal calls
            calls += 1
            await write(metadata, version)
            raise MetadataUnavailableError("the answer got lost")

        monkeypatch.setattr(bk._ledgers, "write", forgetful)
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
        for attempt in (ledger.append_nowait, lambda p: ledger.append_many([p])):
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
        unsent = ledger.append_many([b"y", b"z"])
        await ledger.abort()
        for future in (sent, unsent):
            with pytest.raises(LedgerClosedError):
                await future
        assert (await bk.ledger_metadata(ledger.id)).state is LedgerState.OPEN


async def test_a_failure_inside_the_block_is_the_one_that_is_raised() -> None:
    async with mock_cluster() as cluster, cluster.connect(**QUIET) as bk:
        with pytest.raises(ZeroDivisionError):
            async with await bk.create_ledger() as ledger:
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
        context = bk._context
        await until(lambda: not context.tasks)
        await until(lambda: not context.ticker.is_running)
        await until(lambda: len(asyncio.all_tasks()) <= before)
        gc.collect()
        assert [ref() for ref in kept] == [None] * 3


# The explicit last add confirmed ---------------------------------------------------------------


async def test_s38_an_idle_writer_publishes_what_is_confirmed_once() -> None:
    async with mock_cluster() as cluster, cluster.connect(lac_delay_s=0.01) as bk:
        async with await bk.create_ledger() as ledger:
            await ledger.append_many([b"x"] * 5)
            await until(lambda: all(b.count(WriteLAC) == 1 for b in cluster.bookies))
            seal = digester(DigestType.CRC32C, b"")
            for bookie in cluster.bookies:
                packet = bookie.ledgers[ledger.id].lac_packet or b""
                assert seal.parse_lac_packet(packet, ledger.id) == 4
            await asyncio.sleep(0.1)
            assert all(b.count(WriteLAC) == 1 for b in cluster.bookies)
            await ledger.append(b"y")
            await until(lambda: all(b.count(WriteLAC) == 2 for b in cluster.bookies))


async def test_s38_a_refused_publication_is_tried_again_and_a_silent_bookie_holds_none_up() -> None:
    attempts = iter([Status.IO_ERROR, Status.IO_ERROR])

    def refuse(request: Request):
        return next(attempts, None) if isinstance(request, WriteLAC) else None

    def ignore(request: Request):
        return SILENCE if isinstance(request, WriteLAC) else None

    async with (
        mock_cluster() as cluster,
        cluster.connect(lac_delay_s=0.01, request_timeout_s=0.2) as bk,
    ):
        ledger = await bk.create_ledger()
        first, second, third = cluster.members(ledger)
        first.on_request, second.on_request = refuse, ignore
        await ledger.append(b"x")
        await until(lambda: first.count(WriteLAC) == 3)
        assert third.ledgers[ledger.id].last_add_confirmed == 0
        await ledger.append(b"y")
        await until(lambda: third.ledgers[ledger.id].last_add_confirmed == 1)
        await ledger.close()


async def test_with_a_delay_of_zero_nothing_is_published() -> None:
    async with mock_cluster() as cluster, cluster.connect(lac_delay_s=0) as bk:
        async with await bk.create_ledger() as ledger:
            await ledger.append(b"x")
            await asyncio.sleep(0.05)
        assert all(b.count(WriteLAC) == 0 for b in cluster.bookies)


async def test_mock_cluster_is_empty_at_the_end() -> None:
    async with MockCluster() as cluster:
        assert cluster.bookies == []
