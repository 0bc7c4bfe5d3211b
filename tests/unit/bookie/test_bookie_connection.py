"""Connections: frames in any pieces, garbage, peers that are slow or do not read."""

from __future__ import annotations

import pytest
from bookie_harness import KEY, MIB, ScriptedStorage, entry, serve, settle, v2_adds

from doubles.waiting import until
from quorumbook.protocol.status import Status
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3


async def test_frames_may_come_byte_by_byte_and_many_at_once() -> None:
    async with serve() as server:
        client = await server.connect()
        data = v2_adds(1, [0]) + v2.encode_read(1, 0)
        for position in range(len(data)):
            client.send(data[position : position + 1])
            await client.writer.drain()
            if position % 16 == 0:
                await settle(1)
        assert await client.add_codes(1) == [(0, 0)]
        frame = await client.frame()
        # The read may have been decoded before the add was durable.
        assert v2.ANSWER.unpack_from(frame)[2] in (0, 1, 2)
        client.send(v2_adds(2, range(5000), b""))
        assert len(await client.add_codes(5000)) == 5000


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET /metrics HTTP/1.1\r\nHost: bookie\r\n\r\n",
        (5 * MIB - 3).to_bytes(4, "big") + bytes(100),
        b"\x7f\xff\xff\xff" + bytes(100),
        b"\xff\xff\xff\xff" + bytes(100),
        bytes(4),
        b"\x00\x00\x00\x04\xff\x01\x02\x03",
        b"\x00\x00\x00\x14\x02\x09" + bytes(18),
        b"\x00\x00\x00\x22\x02\x01\x00\x00" + KEY + bytes(10),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    ],
    ids=[
        "http",
        "one byte over the limit",
        "huge length",
        "negative length",
        "empty frame",
        "garbage",
        "unknown opcode",
        "add without ids",
        "tls hello",
    ],
)
async def test_s86_garbage_costs_its_own_connection_and_nothing_else(garbage: bytes) -> None:
    async with serve() as server:
        bad, good = await server.connect(), await server.connect()
        good.send(v2_adds(1, [0]))
        assert await good.add_codes(1) == [(0, 0)]
        bad.send(garbage)
        assert await bad.is_closed()
        good.send(v2_adds(1, [1]))
        assert await good.add_codes(1) == [(1, 0)]
        assert server.metrics.connections_broken_protocol == 1
        assert server.metrics.connections == 1


async def test_a_frame_of_exactly_the_limit_is_taken() -> None:
    async with serve() as server:
        client = await server.connect()
        overhead = len(v2_adds(1, [0], b""))
        client.send(v2_adds(1, [0], bytes(5 * MIB - overhead)))
        assert await client.add_codes(1) == [(0, 0)]


async def test_a_truncated_frame_waits_for_its_rest() -> None:
    async with serve() as server:
        client = await server.connect()
        data = v2_adds(1, [0], bytes(100_000))
        client.send(data[:50_000])
        await settle()
        assert not server.storage.log
        client.send(data[50_000:])
        assert await client.add_codes(1) == [(0, 0)]


async def test_a_slow_loris_is_cut_and_an_idle_connection_is_not() -> None:
    async with serve(frame_timeout_s=0.1) as server:
        loris, idle = await server.connect(), await server.connect()
        data = v2_adds(1, [0])
        loris.send(data[:10])
        await until(lambda: server.metrics.connections_slow == 1)
        assert await loris.is_closed()
        idle.send(v2_adds(1, [0]))
        assert await idle.add_codes(1) == [(0, 0)]


async def test_a_slow_loris_that_sends_a_byte_now_and_then_is_cut_too() -> None:
    async with serve(frame_timeout_s=0.2) as server:
        loris = await server.connect()
        position = 0
        data = v2_adds(1, [0], bytes(1000))
        while server.metrics.connections_slow == 0 and position < len(data) - 1:
            loris.send(data[position : position + 1])
            position += 1
            await settle(1)
        assert server.metrics.connections_slow == 1


async def test_begun_frames_of_all_connections_are_bounded_together() -> None:
    async with serve(max_partial_frame_bytes=MIB, answer_timeout_s=0.1) as server:
        clients = [await server.connect() for _ in range(4)]
        for client in clients:
            client.send(v2_adds(1, [0], bytes(600_000))[:500_000])
        await until(lambda: server.metrics.connections == 2)
        assert server.metrics.connections_slow == 2


async def test_s84_a_peer_that_never_reads_its_answers_is_cut() -> None:
    storage = ScriptedStorage()
    async with serve(
        storage, answer_timeout_s=0.1, high_connection_answer_bytes=64 * 1024
    ) as server:
        client = await server.connect()
        client.send(v2_adds(1, [0], bytes(MIB)))
        await client.add_codes(1)
        client.writer.transport.pause_reading()
        client.send(b"".join(v2.encode_read(1, 0) for _ in range(100)))
        await until(lambda: server.metrics.connections_slow == 1)
        await until(lambda: server.metrics.connections == 0)
        assert server.metrics.reads_in_progress == 0


async def test_s84_answers_that_pile_up_beyond_the_limit_cut_the_connection() -> None:
    async with serve(
        answer_timeout_s=1000,
        high_connection_answer_bytes=64 * 1024,
        max_connection_answer_bytes=128 * 1024,
    ) as server:
        client = await server.connect()
        client.send(v2_adds(1, [0], bytes(4 * MIB)))
        await client.add_codes(1)
        client.writer.transport.pause_reading()
        client.send(b"".join(v2.encode_read(1, 0) for _ in range(10)))
        await until(lambda: server.metrics.connections_slow == 1)
        await until(lambda: server.metrics.connections == 0)


async def test_a_peer_that_reads_slowly_keeps_its_connection() -> None:
    async with serve(answer_timeout_s=0.3, high_connection_answer_bytes=64 * 1024) as server:
        client = await server.connect()
        client.send(v2_adds(1, [0], bytes(200_000)))
        await client.add_codes(1)
        client.send(b"".join(v2.encode_read(1, 0) for _ in range(20)))
        for _ in range(20):
            assert len(await client.frame()) > 200_000
            await settle(2)
        assert server.metrics.connections_slow == 0


async def test_both_protocols_are_spoken_and_v2_is_for_ever() -> None:
    async with serve() as server:
        client = await server.connect()
        answer = await client.ask_v3(v3.encode_add(1, 1, 0, KEY, entry(1, 0)))
        assert answer.status is Status.OK
        assert (await client.ask(v2.encode_read(1, 0))).endswith(entry(1, 0))
        client.send(v3.encode_read(2, 1, 0))
        assert await client.is_closed()


async def test_a_client_with_authentication_is_told_that_there_is_none() -> None:
    async with serve() as server:
        client = await server.connect()
        answer = await client.ask_v3(v3.encode_auth(1, "SASL", b"hello"))
        assert (answer.status, answer.auth_plugin) == (Status.OK, "AuthDisabledPlugin")
        assert (await client.ask_v3(v3.encode_start_tls(2))).status is Status.BAD_REQUEST
        v2_client = await server.connect()
        assert await v2_client.ask(v2.encode_auth("SASL", b"hello")) == v2.encode_auth(
            "AuthDisabledPlugin", b""
        )


async def test_s89_a_deep_pipeline_on_one_connection_never_stops_itself() -> None:
    async with serve(max_connection_add_bytes=10_000, max_read_bytes=10_000) as server:
        client = await server.connect()
        for start in range(0, 2000, 20):
            client.send(v2_adds(1, range(start, start + 20)))
            client.send(b"".join(v2.encode_read(1, max(0, start - 40 + i)) for i in range(20)))
        for _ in range(4000):
            await client.frame()
