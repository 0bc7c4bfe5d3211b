"""Who has many adds under way waits for the journals; who has few stands behind a group or two."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
from bookie_harness import KEY, MIB, ScriptedStorage, Server, serve, settle, v2_adds

from doubles.raw_client import RawClient
from doubles.waiting import until
from quorumbook.bookie.connections import loop_turns
from quorumbook.bookie.connections.add_budget import AddBudget, add_weight
from quorumbook.protocol.digest import DigestType, digester
from quorumbook.protocol.status import V2_CODE, Status
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3
from quorumbook.storage.options import StorageOptions

OK, FENCED = V2_CODE[Status.OK], V2_CODE[Status.FENCED]
_RECOVERY = 2
#: Two groups of 64 KB keep the journal of these tests busy.
_SMALL_GROUPS = StorageOptions(journal_group_size_bytes=64 * 1024)


def _ids(storage: ScriptedStorage, ledger_id: int) -> list[int]:
    adds = [item for item in storage.log if item[0] == "add" and item[1] == ledger_id]
    return [entry_id for _, _, first, last in adds for entry_id in range(first, last + 1)]


@contextlib.asynccontextmanager
async def _held(
    storage: ScriptedStorage, then: bytes = b""
) -> AsyncIterator[tuple[Server, RawClient]]:
    """Serve; one client has a large add in the journal, and another, and more, at the door."""
    async with serve(storage, storage=_SMALL_GROUPS) as server:
        heavy = await server.connect()
        heavy.send(v2_adds(1, [0], bytes(MIB)))
        await until(lambda: len(storage.group) == 1)
        heavy.send(v2_adds(1, [1], bytes(MIB)) + then)
        await until(lambda: server.connections.behind.has_heavy)
        await settle()
        assert _ids(storage, 1) == [0]
        yield server, heavy


async def test_a_small_add_does_not_stand_behind_the_large_ones_of_another_client() -> None:
    storage = ScriptedStorage(automatic=False)
    async with _held(storage) as (server, heavy):
        small = await server.connect()
        small.send(v2_adds(2, [0]))
        await until(lambda: _ids(storage, 2) == [0])
        storage.commit()
        assert await small.add_codes(1) == [(0, OK)]
        assert await heavy.add_codes(1) == [(0, OK)]
        await until(lambda: _ids(storage, 1) == [0, 1])
        storage.commit()
        assert await heavy.add_codes(1) == [(1, OK)]
        assert not server.connections.behind.has_heavy
        assert server.connections.adds.used_bytes == server.connections.partial_bytes == 0


async def test_a_fence_that_comes_meanwhile_is_ahead_of_what_waits() -> None:
    storage = ScriptedStorage(automatic=False)
    async with _held(storage) as (server, heavy):
        recoverer = await server.connect()
        recoverer.send(v2.encode_read(1, -1, master_key=KEY))
        await until(lambda: ("fence", 1) in storage.log)
        storage.commit()
        await recoverer.frame()
        assert await heavy.add_codes(2) == [(0, OK), (1, FENCED)]
        assert _ids(storage, 1) == [0]
        assert (1, 1) not in storage.entries


async def test_what_a_client_sent_behind_waiting_adds_stays_behind_them() -> None:
    """R11: its own fence splits its adds at its place, also when they had to wait."""
    storage = ScriptedStorage(automatic=False)
    then = v2_adds(1, [2]) + v2.encode_read(1, -1, master_key=KEY) + v2_adds(1, [3])
    async with _held(storage, then) as (_, heavy):
        storage.commit()
        assert await heavy.add_codes(1) == [(0, OK)]
        await until(lambda: ("fence", 1) in storage.log)
        assert _ids(storage, 1) == [0, 1, 2]
        assert storage.log.index(("fence", 1)) > storage.log.index(("add", 1, 2, 2))
        assert await heavy.add_codes(1) == [(3, FENCED)]
        storage.commit()
        assert await heavy.add_codes(2) == [(1, OK), (2, OK)]


async def test_many_who_wait_go_on_one_by_one_and_none_is_lost() -> None:
    storage = ScriptedStorage(automatic=False)
    async with serve(storage, storage=_SMALL_GROUPS) as server:
        clients = [await server.connect() for _ in range(8)]
        for number, client in enumerate(clients, start=1):
            client.send(v2_adds(number, [0, 1], bytes(MIB)))
        while sum(len(_ids(storage, number)) for number in range(1, 9)) < 16 or storage.group:
            await until(lambda: bool(storage.group))
            await settle()
            # One frame, or two that came together, was let in while there was room.
            assert server.connections.adds.used_bytes < 3 * MIB
            storage.commit()
        for client in clients:
            assert await client.add_codes(2) == [(0, OK), (1, OK)]


async def test_of_many_who_wait_for_a_turn_one_goes_on_to_the_journals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They came while the loop was busy and the journals were not."""
    storage = ScriptedStorage(automatic=False)
    async with serve(storage, storage=_SMALL_GROUPS) as server:
        clients = [await server.connect() for _ in range(8)]
        await until(lambda: len(server.connections) == 8)
        monkeypatch.setattr(loop_turns, "_TURN_NS", -1)
        server.connections.turn.begin()
        # Whole and in one turn, which the network would see to only on a machine at rest.
        for number, connection in enumerate(list(server.connections._open), start=1):
            connection.data_received(v2_adds(number, [0], bytes(MIB)))
        for _ in clients:
            await until(lambda: bool(storage.group))
            await settle()
            assert len(storage.group) == 1
            storage.commit()
        for client in clients:
            assert await client.add_codes(1) == [(0, OK)]


@pytest.mark.parametrize("kind", ["adds", "fences", "last adds confirmed"])
async def test_very_many_tiny_records_of_as_many_ledgers_are_much(kind: str) -> None:
    """Each costs the loop time, however few bytes it has."""
    storage = ScriptedStorage(automatic=False)
    lac_packet = digester(DigestType.CRC32C, b"").lac_packet
    one = {
        "adds": lambda ledger_id: v2_adds(ledger_id, [0]),
        "fences": lambda ledger_id: v2.encode_read(ledger_id, -1, master_key=KEY),
        "last adds confirmed": lambda ledger_id: v3.encode_write_lac(
            1, ledger_id, 5, KEY, lac_packet(ledger_id, 5)
        ),
    }[kind]
    async with serve(storage, storage=_SMALL_GROUPS) as server:
        heavy = await server.connect()
        heavy.send(b"".join(map(one, range(10, 2010))))
        await until(lambda: server.connections.behind.has_heavy)
        await settle()
        began = len(storage.log)
        assert 0 < began < 1000
        small = await server.connect()
        small.send(v2_adds(1, [0]))
        await until(lambda: _ids(storage, 1) == [0])
        while server.connections.adds.used_bytes:
            storage.commit()
            await settle()


async def test_those_who_send_much_leave_the_journals_more_to_one_who_sends_little() -> None:
    budget = AddBudget(64 * MIB, 64 * MIB, busy_bytes=8 * MIB)

    def taken_by_heavy() -> int:
        taken = 0
        while not budget.is_busy:
            budget.hold(MIB, 1, MIB + taken)
            taken += MIB
        for left in reversed(range(taken // MIB)):
            budget.release(MIB, 1, left * MIB)
        return taken

    # Among themselves they keep the journals busy, and a small part of theirs changes nothing.
    assert taken_by_heavy() == 9 * MIB
    budget.hold(1000, 1, 1000)
    budget.release(1000, 1, 0)
    assert taken_by_heavy() == 9 * MIB
    # One that sends little comes between theirs, and they leave it more for a while.
    budget.hold(MIB, 1, MIB)
    budget.hold(1000, 1, 1000)
    budget.release(1000, 1, 0)
    budget.release(MIB, 1, 0)
    counts = [taken_by_heavy() for _ in range(200)]
    assert counts[0] == 3 * MIB
    assert counts[-1] == 9 * MIB
    assert counts == sorted(counts)


async def test_few_runs_are_left_in_the_journals_beside_one_who_sends_little() -> None:
    """A thousand fences are few bytes, but answering them keeps the loop busy for long."""
    one = add_weight(0, 1)

    def taken_beside(size_bytes: int, run_count: int) -> int:
        budget = AddBudget(64 * MIB, 64 * MIB, busy_bytes=8 * MIB)
        budget.hold(MIB, 1, MIB)
        budget.hold(size_bytes, run_count, size_bytes)
        budget.release(size_bytes, run_count, 0)
        budget.release(MIB, 1, 0)
        taken = 0
        while not budget.is_busy:
            taken += 1
            budget.hold(one, 1, MIB + taken * one)
        return taken

    assert 0 < taken_beside(add_weight(1000, 8), 8) <= 160
    # Who has more runs or bytes in a chunk sends much.
    assert taken_beside(add_weight(1000, 9), 9) > 1000
    assert taken_beside(add_weight(8 * 1024 + 1, 1), 1) > 1000


async def test_who_waits_at_the_door_and_leaves_leaves_nothing_behind() -> None:
    storage = ScriptedStorage(automatic=False)
    async with _held(storage) as (server, heavy):
        heavy.close()
        storage.commit()
        # Who is not read is not seen to be gone; what it sent is carried out.
        await until(lambda: _ids(storage, 1) == [0, 1])
        storage.commit()
        await until(lambda: not len(server.connections))
        assert server.connections.partial_bytes == server.connections.adds.used_bytes == 0
        assert not server.connections.frames.is_wanted


async def test_large_adds_leave_an_eighth_of_the_write_cache_to_small_ones() -> None:
    storage = ScriptedStorage()
    storage.room = 10_000
    async with serve(storage, storage=_SMALL_GROUPS) as server:
        heavy, small = await server.connect(), await server.connect()
        heavy.send(v2_adds(1, [0], bytes(MIB)))
        await until(lambda: server.connections.behind.has_heavy)
        small.send(v2_adds(2, [0]))
        assert await small.add_codes(1) == [(0, OK)]
        assert not server.metrics.adds_delayed
        storage.make_room(None)
        assert await heavy.add_codes(1) == [(0, OK)]


async def test_a_read_only_bookie_has_nobody_wait_for_the_write_cache() -> None:
    storage = ScriptedStorage()
    storage.room = 10_000
    async with serve(storage, storage=_SMALL_GROUPS) as server:
        server.disks.writability.is_read_only = True
        heavy = await server.connect()
        heavy.send(v2_adds(1, [0], bytes(MIB)))
        assert [code for _, code in await heavy.add_codes(1)] == [V2_CODE[Status.READ_ONLY]]
        # And recovery's have a reserve of their own.
        storage.reserve = 2 * MIB
        heavy.send(v2_adds(2, [0], bytes(MIB), flags=_RECOVERY))
        assert await heavy.add_codes(1) == [(0, OK)]


async def test_who_waits_for_the_write_cache_hears_that_the_bookie_is_read_only_now() -> None:
    storage = ScriptedStorage()
    storage.room = 10_000
    async with serve(storage, storage=_SMALL_GROUPS) as server:
        heavy = await server.connect()
        heavy.send(v2_adds(1, [0], bytes(MIB)))
        await until(lambda: server.connections.behind.has_heavy)
        server.disks.writability.is_read_only = True
        server.operations.adds.writability_changed()
        assert [code for _, code in await heavy.add_codes(1)] == [V2_CODE[Status.READ_ONLY]]


async def test_adds_that_waited_for_room_are_appended_in_pieces() -> None:
    """One group of all that waited would be written and synced in one go."""
    storage = ScriptedStorage()
    storage.room = 0
    async with serve(storage) as server:
        clients = [await server.connect() for _ in range(12)]
        for number, client in enumerate(clients, start=1):
            client.send(v2_adds(number, range(20), bytes(10_000)))
        await until(lambda: server.metrics.adds_in_progress == 240)
        storage.make_room(None)
        for client in clients:
            assert len(await client.add_codes(20)) == 20
        sizes, size = [], 0
        for item in storage.log:
            size += 10_000 * (item[3] - item[2] + 1) if item[0] == "add" else 0
            if item[0] == "append":
                sizes.append(size)
                size = 0
        assert len(sizes) >= 2
        # A chunk is up to 256 KB, and comes whole.
        assert max(sizes) < MIB + 256 * 1024
