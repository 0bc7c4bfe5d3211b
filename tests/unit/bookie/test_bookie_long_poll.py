"""Long polls and the last add confirmed."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest
from bookie_harness import DIGESTER, KEY, WRONG_KEY, ScriptedStorage, entry, serve, settle, v2_adds

from doubles.waiting import until
from quorumbook.bookie.connections.add_budget import add_weight
from quorumbook.protocol.status import Status
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3

FOREVER_MS = 60_000


def write_lac(txn: int, lac: int, ledger_id: int = 1, key: bytes = KEY) -> bytes:
    return v3.encode_write_lac(txn, ledger_id, lac, key, DIGESTER.lac_packet(ledger_id, lac))


def poll(txn: int, previous_lac: int, timeout_ms: int = FOREVER_MS) -> bytes:
    return v3.encode_read(
        txn, 1, previous_lac=previous_lac, timeout_ms=timeout_ms, is_piggyback=True
    )


async def test_a_poll_behind_the_lac_is_answered_at_once_with_the_next_entry() -> None:
    async with serve() as server:
        client = await server.connect()
        client.send(v2_adds(1, [0, 1, 2], lac=1))
        await client.add_codes(3)
        reader = await server.connect()
        answer = await reader.ask_v3(poll(7, 0))
        assert (answer.status, answer.entry_id, answer.max_lac) == (Status.OK, 1, 1)
        assert answer.body == entry(1, 1, lac=1)
        assert answer.lac_update_ms is None


async def test_a_poll_is_woken_by_the_add_that_raises_the_lac() -> None:
    async with serve() as server:
        client, reader = await server.connect(), await server.connect()
        client.send(v2_adds(1, [0, 1], lac=-1))
        await client.add_codes(2)
        reader.send(poll(7, 0))
        await until(lambda: server.metrics.long_polls_waiting == 1)
        client.send(v2_adds(1, [2], lac=0))
        await client.add_codes(1)
        await settle()
        assert server.metrics.long_polls_waiting == 1
        client.send(v2_adds(1, [3], lac=1))
        answer = await reader.v3_answer()
        assert (answer.txn_id, answer.entry_id, answer.max_lac) == (7, 1, 1)
        assert answer.body == entry(1, 1)
        assert server.metrics.long_polls_waiting == 0


async def test_r15_a_lac_that_is_not_durable_wakes_nobody() -> None:
    storage = ScriptedStorage()
    async with serve(storage) as server:
        client, reader = await server.connect(), await server.connect()
        client.send(v2_adds(1, [0, 1]))
        await client.add_codes(2)
        reader.send(poll(7, 0))
        await until(lambda: server.metrics.long_polls_waiting == 1)
        storage.automatic = False
        client.send(v2_adds(1, [2], lac=1))
        writer = await server.connect()
        writer.send(write_lac(8, 1))
        await until(lambda: len(storage.group) == 2)
        await settle()
        assert server.metrics.long_polls_waiting == 1
        other = await server.connect()
        assert (await other.ask_v3(v3.encode_read(1, 1, 0))).max_lac == -1
        storage.commit()
        assert (await reader.v3_answer()).max_lac == 1


async def test_s38_an_explicit_lac_wakes_a_poll() -> None:
    async with serve() as server:
        client, reader = await server.connect(), await server.connect()
        client.send(v2_adds(1, [0]))
        await client.add_codes(1)
        reader.send(poll(7, -1))
        await until(lambda: server.metrics.long_polls_waiting == 1)
        writer = await server.connect()
        assert (await writer.ask_v3(write_lac(1, 0))).status is Status.OK
        answer = await reader.v3_answer()
        assert (answer.entry_id, answer.body, answer.max_lac) == (0, entry(1, 0), 0)


async def test_a_poll_whose_time_is_over_says_so_without_an_entry() -> None:
    async with serve() as server:
        client, reader = await server.connect(), await server.connect()
        client.send(v2_adds(1, [0], lac=-1))
        await client.add_codes(1)
        answer = await reader.ask_v3(poll(7, 0, timeout_ms=10))
        assert (answer.status, answer.entry_id, answer.body) == (Status.OK, -1, None)
        assert answer.max_lac == -1
        # Without a time to wait there is no wait.
        assert (await reader.ask_v3(poll(8, 0, timeout_ms=0))).entry_id == -1


async def test_a_poll_brings_no_entry_that_is_striped_to_others() -> None:
    async with serve() as server:
        client, reader = await server.connect(), await server.connect()
        client.send(v2_adds(1, [0, 4], lac=3))
        await client.add_codes(2)
        answer = await reader.ask_v3(poll(7, 0))
        assert (answer.status, answer.entry_id, answer.body) == (Status.OK, -1, None)
        assert answer.max_lac == 3


async def test_a_poll_without_piggyback_reads_its_entry_after_the_wait() -> None:
    async with serve() as server:
        client, reader = await server.connect(), await server.connect()
        client.send(v2_adds(1, [0, 1]))
        await client.add_codes(2)
        reader.send(v3.encode_read(7, 1, 1, previous_lac=0, timeout_ms=FOREVER_MS))
        await until(lambda: server.metrics.long_polls_waiting == 1)
        client.send(v2_adds(1, [2], lac=1))
        answer = await reader.v3_answer()
        assert (answer.entry_id, answer.body, answer.max_lac) == (1, entry(1, 1), 1)


async def test_s39_a_fence_ends_waits_and_recovery_adds_wake_later_ones() -> None:
    async with serve() as server:
        client, reader = await server.connect(), await server.connect()
        client.send(v2_adds(1, [0, 1]))
        await client.add_codes(2)
        reader.send(poll(7, 0))
        await until(lambda: server.metrics.long_polls_waiting == 1)
        await client.ask(v2.encode_read(1, -1, master_key=KEY))
        answer = await reader.v3_answer()
        assert (answer.status, answer.entry_id, answer.max_lac) == (Status.OK, -1, -1)
        reader.send(poll(8, 0))
        await until(lambda: server.metrics.long_polls_waiting == 1)
        client.send(v2_adds(1, [2], flags=2, lac=1))
        assert (await reader.v3_answer()).max_lac == 1


async def test_a_poll_of_a_deleted_ledger_ends() -> None:
    storage = ScriptedStorage()
    async with serve(storage) as server:
        client, reader = await server.connect(), await server.connect()
        client.send(v2_adds(1, [0]))
        await client.add_codes(1)
        reader.send(poll(7, 0))
        await until(lambda: server.metrics.long_polls_waiting == 1)
        handle = storage.handles.pop(1)
        handle.delete()
        for callback in handle.take_woken(1000):
            callback()
        assert (await reader.v3_answer()).status is Status.NO_LEDGER


async def test_bad_and_unknown_polls_are_answered_at_once() -> None:
    async with serve() as server:
        client, reader = await server.connect(), await server.connect()
        assert (await reader.ask_v3(poll(1, 0))).status is Status.NO_LEDGER
        client.send(v2_adds(1, [0]))
        await client.add_codes(1)
        bad = v3.encode_read(2, 1, 0, previous_lac=0, timeout_ms=9, is_piggyback=True)
        assert (await reader.ask_v3(bad)).status is Status.BAD_REQUEST


async def test_polls_of_a_connection_are_bounded_and_go_with_it() -> None:
    async with serve(max_connection_long_polls=2) as server:
        client, reader = await server.connect(), await server.connect()
        client.send(v2_adds(1, [0]))
        await client.add_codes(1)
        reader.send(poll(1, 0) + poll(2, 0) + poll(3, 0))
        answer = await reader.v3_answer()
        assert (answer.txn_id, answer.status) == (3, Status.TOO_MANY_REQUESTS)
        assert server.metrics.long_polls_waiting == 2
        reader.writer.transport.abort()
        await until(lambda: server.metrics.long_polls_waiting == 0)
        assert not server.storage.handles[1].has_waiters


@pytest.mark.parametrize("event", ["fence", "time", "connection lost"])
async def test_very_many_polls_end_some_in_each_turn(event: str) -> None:
    count, of_others = 1000, 3
    async with serve() as server:
        client, reader, other = [await server.connect() for _ in range(3)]
        client.send(v2_adds(1, [0, 1], lac=-1))
        await client.add_codes(2)
        reader.send(
            b"".join(poll(n, 0, 300 if event == "time" else FOREVER_MS) for n in range(count))
        )
        other.send(b"".join(poll(n, 0) for n in range(of_others)))
        await until(lambda: server.metrics.long_polls_waiting == count + of_others)
        most, before = 0, count + of_others
        left = 0 if event == "fence" else of_others
        if event == "fence":
            client.send(v2.encode_read(1, 0, master_key=KEY))
        elif event == "connection lost":
            reader.writer.transport.abort()
        while before > left:
            await asyncio.sleep(0)
            now = server.metrics.long_polls_waiting
            most, before = max(most, before - now), now
        assert before == left
        assert most <= 250
        if event != "connection lost":
            assert {(await reader.v3_answer()).txn_id for _ in range(count)} == set(range(count))


async def test_each_poll_ends_when_its_own_time_is_over() -> None:
    async with serve() as server:
        client, reader = await server.connect(), await server.connect()
        client.send(v2_adds(1, [0, 1], lac=-1))
        await client.add_codes(2)
        for txn, timeout_ms in enumerate([FOREVER_MS, 400, 100, FOREVER_MS, 200]):
            reader.send(poll(txn, 0, timeout_ms))
        assert [(await reader.v3_answer()).txn_id for _ in range(3)] == [2, 4, 1]
        await settle()
        assert server.metrics.long_polls_waiting == 2


@pytest.fixture
def few_objects() -> Iterator[None]:
    """Have the collector know of what a test makes alone, not of all that others have left."""
    gc.freeze()
    yield
    gc.unfreeze()


async def test_polls_that_are_over_are_not_kept_for_their_times(few_objects) -> None:
    async with serve() as server:
        client = await server.connect()
        client.send(v2_adds(1, [0, 1], lac=-1))
        await client.add_codes(2)
        before = _polls_in_memory()
        for _ in range(5):
            reader = await server.connect()
            reader.send(b"".join(poll(n, 0) for n in range(1000)))
            await until(lambda: server.metrics.long_polls_waiting == 1000)
            reader.writer.transport.abort()
            await until(lambda: server.metrics.long_polls_waiting == 0)
        assert _polls_in_memory() == before


def _polls_in_memory() -> int:
    gc.collect()
    return sum(type(one).__name__ == "_Poll" for one in gc.get_objects())


async def test_s40_the_stored_lac_never_goes_back() -> None:
    async with serve() as server:
        client = await server.connect()
        client.send(b"".join(write_lac(lac, lac) for lac in (3, 9, 5, 1)))
        for _ in range(4):
            assert (await client.v3_answer()).status is Status.OK
        answer = await client.ask_v3(v3.encode_read_lac(20, 1))
        assert DIGESTER.parse_lac_packet(answer.lac_body or b"", 1) == 9


async def test_a_lac_is_refused_with_another_key_and_on_a_read_only_bookie() -> None:
    async with serve() as server:
        client = await server.connect()
        assert (await client.ask_v3(write_lac(1, 0))).status is Status.OK
        refused = await client.ask_v3(write_lac(2, 1, key=WRONG_KEY))
        assert refused.status is Status.UNAUTHORIZED
        short = await client.ask_v3(v3.encode_write_lac(3, 1, 5, KEY, b"short"))
        assert short.status is Status.BAD_REQUEST
        server.disks.writability.is_read_only = True
        assert (await client.ask_v3(write_lac(4, 1))).status is Status.READ_ONLY


async def test_a_lac_may_be_written_to_a_fenced_ledger() -> None:
    async with serve() as server:
        client = await server.connect()
        await client.ask_v3(v3.encode_read(1, 1, master_key=KEY))
        assert (await client.ask_v3(write_lac(2, 4))).status is Status.OK


async def test_reading_the_lac_says_what_is_there() -> None:
    async with serve() as server:
        client = await server.connect()
        answer = await client.ask_v3(v3.encode_read_lac(1, 1))
        assert answer.status is Status.NO_ENTRY
        await client.ask_v3(write_lac(2, 4))
        # The peer says EIO here; that the explicit one alone is an answer hurts no client.
        answer = await client.ask_v3(v3.encode_read_lac(3, 1))
        assert (answer.status, answer.last_entry) == (Status.OK, None)
        assert answer.lac_body == DIGESTER.lac_packet(1, 4)
        await client.ask_v3(v3.encode_add(4, 1, 7, KEY, entry(1, 7)))
        answer = await client.ask_v3(v3.encode_read_lac(5, 1))
        assert answer.last_entry == entry(1, 7)


async def test_a_last_add_confirmed_in_a_large_packet_is_refused_and_not_kept() -> None:
    async with serve() as server:
        client = await server.connect()
        for size, status in ((1024, Status.OK), (1025, Status.BAD_REQUEST)):
            padded = DIGESTER.lac_packet(size, 5).ljust(size, b"x")
            answer = await client.ask_v3(v3.encode_write_lac(1, size, 5, KEY, padded))
            assert answer.status is status
        assert server.storage.handle(1025) is None
        assert server.connections.adds.used_bytes == 0


async def test_a_last_add_confirmed_on_its_way_counts_as_an_add() -> None:
    storage = ScriptedStorage(automatic=False)
    async with serve(storage, max_connection_add_bytes=2500) as server:
        client = await server.connect()
        for n in range(1, 3):
            packet = DIGESTER.lac_packet(n, 5).ljust(1000, b"x")
            client.send(v3.encode_write_lac(n, n, 5, KEY, packet))
        await until(lambda: server.metrics.pauses == 1)
        assert server.connections.adds.used_bytes == 2 * add_weight(1000, 1) > 2500
        storage.commit()
        for _ in range(2):
            assert (await client.v3_answer()).status is Status.OK
        assert server.connections.adds.used_bytes == 0
