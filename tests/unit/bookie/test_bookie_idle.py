"""Connections that ask nothing: closed after a time if the bookie is told so, and nobody else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from bookie_harness import KEY, MIB, ScriptedStorage, Server, serve, settle, v2_adds

from doubles.inside import connections_of, unsent_bytes_of
from doubles.raw_client import RawClient
from doubles.records import lac_packet
from doubles.waiting import until
from quorumbook.bookie.connections.connection import BookieConnection
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3

LIMIT_S = 600.0
MINUTE_NS = 60_000_000_000


def _minutes_pass(server: Server, connection: BookieConnection, count: int) -> None:
    """Have the connection looked at once a minute of a time to come."""
    now_ns = server.env.clock.now_ns()
    for minute in range(1, count + 1):
        connection.check(now_ns + minute * MINUTE_NS)


async def _connected(server: Server) -> tuple[RawClient, BookieConnection]:
    before = set(connections_of(server))
    client = await server.connect()
    await until(lambda: len(server.connections) > len(before))
    (connection,) = set(connections_of(server)) - before
    return client, connection


async def _with_answers_to_take(server: Server) -> tuple[RawClient, BookieConnection]:
    client, connection = await _connected(server)
    client.send(v2_adds(1, [0], bytes(4 * MIB)))
    await client.add_codes(1)
    client.writer.transport.pause_reading()
    client.send(v2.encode_read(1, 0) * 5)
    await until(lambda: unsent_bytes_of(connection) > 0)
    await settle()
    return client, connection


@pytest.mark.parametrize("asks", [False, True])
async def test_who_asks_nothing_for_long_is_closed_whether_it_ever_asked_or_not(asks: bool) -> None:
    async with serve(idle_timeout_s=LIMIT_S) as server:
        client, connection = await _connected(server)
        if asks:
            await client.ask(v3.encode_bookie_info(1))
        _minutes_pass(server, connection, 9)
        assert not connection.is_closing
        _minutes_pass(server, connection, 12)
        assert await client.is_closed()
        assert server.metrics.connections_idle == 1
        assert not server.metrics.connections_slow


async def test_each_request_begins_the_time_anew() -> None:
    async with serve(idle_timeout_s=LIMIT_S) as server:
        client, connection = await _connected(server)
        now_ns = server.env.clock.now_ns()
        for minute in range(0, 100, 9):
            await client.ask(v3.encode_bookie_info(1))
            connection.check(now_ns + minute * MINUTE_NS)
            connection.check(now_ns + (minute + 9) * MINUTE_NS)
        assert not connection.is_closing


async def test_by_default_nobody_is_closed_for_being_idle() -> None:
    async with serve() as server:
        client, connection = await _connected(server)
        _minutes_pass(server, connection, 10_000)
        await client.ask(v3.encode_bookie_info(1))
        assert not connection.is_closing


def _add(client: RawClient) -> None:
    client.send(v2_adds(1, [0]))


def _fence(client: RawClient) -> None:
    client.send(v2.encode_read(1, 0, master_key=KEY))


def _force(client: RawClient) -> None:
    client.send(v3.encode_force(1, 1))


def _write_lac(client: RawClient) -> None:
    client.send(v3.encode_write_lac(1, 9, 5, KEY, lac_packet(9, 5)))


def _read(client: RawClient) -> None:
    client.send(v2.encode_read(9, 0))


def _long_poll(client: RawClient) -> None:
    client.send(v3.encode_read(1, 9, previous_lac=1 << 40, timeout_ms=3_600_000))


def _half_frame(client: RawClient) -> None:
    client.send(v2_adds(1, [0], bytes(1000))[:500])


@pytest.mark.parametrize("ask", [_add, _fence, _force, _write_lac, _read, _long_poll, _half_frame])
async def test_who_waits_for_something_is_not_idle(ask: Callable[[RawClient], None]) -> None:
    storage = ScriptedStorage(automatic=False)
    async with serve(storage, idle_timeout_s=LIMIT_S, frame_timeout_s=1e6) as server:
        client, connection = await _connected(server)
        other = await server.connect()
        other.send(v2_adds(9, [0]))
        await until(lambda: len(storage.group) == 1)
        storage.commit()
        await other.add_codes(1)
        storage.on_disk.update(storage.entries)
        storage.entries.clear()
        storage.held_reads = []
        ask(client)
        # It is cut while something is under way.
        await until(lambda: connection.is_at_work or bool(connection.long_polls))
        _minutes_pass(server, connection, 30)
        assert not connection.is_closing


async def test_who_has_answers_to_take_is_not_idle() -> None:
    async with serve(idle_timeout_s=LIMIT_S, answer_timeout_s=1e6) as server:
        _client, connection = await _with_answers_to_take(server)
        _minutes_pass(server, connection, 30)
        assert not connection.is_closing


async def test_who_takes_none_of_a_few_answers_is_idle() -> None:
    async with serve(
        idle_timeout_s=LIMIT_S, high_connection_answer_bytes=64 * MIB, answer_timeout_s=60.0
    ) as server:
        _client, connection = await _with_answers_to_take(server)
        _minutes_pass(server, connection, 9)
        assert connection.is_open
        assert not connection.is_closing
        _minutes_pass(server, connection, 13)
        await until(lambda: not connection.is_open)
        assert server.metrics.connections_idle == 1


def _rest(server: Server, connection: BookieConnection) -> None:
    """Have the connection looked at often enough to rest, if it asks nothing meanwhile."""
    for _ in range(6):
        connection.check(server.env.clock.now_ns())


async def _asks(client: RawClient) -> bool:
    """Ask for something; tell whether there was an answer."""
    try:
        await client.ask(v3.encode_bookie_info(1))
    except (ConnectionError, EOFError):
        return False
    return True


async def test_who_rests_makes_room_at_a_full_bookie_and_who_is_at_work_stays() -> None:
    async with serve(
        max_connections=3, max_connections_by_address=3, max_unproven_connections=3
    ) as server:
        found = [await _connected(server) for _ in range(3)]
        assert [await _asks(client) for client, _ in found] == [True] * 3
        assert not await _asks(await server.connect()), "nobody rests yet"
        for _, connection in found:
            _rest(server, connection)
        assert await _asks(found[0][0])
        half = v2_adds(1, [0], bytes(1000))
        found[1][0].send(half[:500])
        await until(lambda: bool(found[1][1].pending_frame_bytes))
        newcomer = await server.connect()
        assert await _asks(newcomer)
        assert [connection.is_open for _, connection in found] == [True, True, False]
        found[1][0].send(half[500:])
        assert await found[1][0].add_codes(1) == [(0, 0)]
        assert not await _asks(await server.connect()), "all are at work"
        assert server.metrics.connections_refused == 3
        newcomer.close()


async def test_a_poll_that_waits_for_news_keeps_no_place() -> None:
    async with serve(max_connections=1, max_connections_by_address=1) as server:
        writer = await server.connect()
        writer.send(v2_adds(9, [0]))
        await writer.add_codes(1)
        writer.close()
        await until(lambda: not server.connections)
        client, connection = await _connected(server)
        client.send(v3.encode_read(1, 9, previous_lac=5, timeout_ms=3_600_000, is_piggyback=True))
        await until(lambda: bool(connection.long_polls))
        _rest(server, connection)
        assert connection.is_open
        assert await _asks(await server.connect())
        assert not connection.is_open
