"""Bytes over TLS are the bytes that were written, whatever pauses, breaks or comes in one piece."""

from __future__ import annotations

import asyncio
import random
import ssl
from typing import Any

import pytest
import uvloop
from security_harness import (
    PATIENCE_S,
    SOLO,
    RawConnection,
    add_frames,
    bookie_tls,
    client_tls,
    secure_cluster,
)
from tls_soak import soak

from doubles.certificates import Authority, Issued
from doubles.waiting import until
from quorumbook.env import Env
from quorumbook.protocol.status import Status
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("version", "count"), [("TLSv1.3", 100_000), ("TLSv1.2", 20_000)])
def test_s90_entries_come_back_byte_for_byte_while_answers_leave_in_groups(
    tmp_path: Any, version: str, count: int
) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(soak(str(tmp_path), count, version))
    assert found["right"] == count
    assert found["adds_per_group"] > 10
    assert found["refused"] == 0


class _End(asyncio.Protocol):
    """One end of a stream; it may read slowly."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.transport: Any = None
        self.pauses = 0
        self.is_writable = asyncio.Event()
        self.is_writable.set()
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def pause_writing(self) -> None:
        self.pauses += 1
        self.is_writable.clear()

    def resume_writing(self) -> None:
        self.is_writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(exc)


async def tls_pair(ca: Authority, good: Issued) -> tuple[_End, _End, asyncio.Server]:
    """Connect two ends by TLS."""
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(good.certificate_file, good.key_file)
    used = ssl.create_default_context(cafile=ca.ca_file)
    network = Env().network
    ends: list[_End] = []

    def accept() -> _End:
        ends.append(_End())
        return ends[0]

    server = await network.listen("127.0.0.1", 0, accept)
    port = server.sockets[0].getsockname()[1]
    _, client = await network.connect("127.0.0.1", port, _End)
    assert isinstance(client, _End)
    await until(lambda: bool(ends) and ends[0].transport is not None)
    done = [asyncio.get_running_loop().create_future() for _ in range(2)]
    for end, context, side, future in (
        (ends[0], served, True, done[0]),
        (client, used, False, done[1]),
    ):
        end.transport = network.start_tls(
            end.transport,
            end,
            context,
            server_side=side,
            server_hostname=None if side else "127.0.0.1",
            done=future.set_result,
        )
    async with asyncio.timeout(PATIENCE_S):
        assert await asyncio.gather(*done) == [None, None]
    return ends[0], client, server


@pytest.mark.parametrize("loop", LOOPS)
def test_pieces_of_any_size_pass_in_both_directions_under_back_pressure(
    ca: Authority, good: Issued, loop: str
) -> None:
    async def run() -> None:
        one, other, server = await tls_pair(ca, good)
        dice = random.Random(7)
        sizes = [0, 1, 16383, 16384, 16385, 262_143, 262_144, 262_145, 3_000_000]
        sizes += [dice.randrange(70_000) for _ in range(100)]
        dice.shuffle(sizes)
        sent = {one: bytearray(), other: bytearray()}

        async def send(end: _End) -> None:
            end.transport.set_write_buffer_limits(64 * 1024)
            for number, size in enumerate(sizes):
                await end.is_writable.wait()
                piece = dice.randbytes(size)
                sent[end] += piece
                if number % 3:
                    end.transport.write(memoryview(piece))
                else:
                    end.transport.writelines([piece[: size // 2], b"", piece[size // 2 :]])

        async def hinder(end: _End) -> None:
            for _ in range(20):
                end.transport.pause_reading()
                await asyncio.sleep(0.002)
                end.transport.resume_reading()
                await asyncio.sleep(0)

        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(send(one), send(other), hinder(one), hinder(other))
            await until(lambda: len(other.received) == len(sent[one]))
            await until(lambda: len(one.received) == len(sent[other]))
        assert other.received == sent[one]
        assert one.received == sent[other]
        assert one.pauses
        assert other.pauses
        one.transport.close()
        assert await asyncio.wait_for(other.lost, PATIENCE_S) is None
        assert await asyncio.wait_for(one.lost, PATIENCE_S) is None
        server.close()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(run())


async def test_what_was_written_before_a_close_arrives(ca: Authority, good: Issued) -> None:
    one, other, server = await tls_pair(ca, good)
    one.transport.write(b"x" * 5_000_000)
    one.transport.close()
    one.transport.write(b"nobody hears this")
    assert await asyncio.wait_for(other.lost, PATIENCE_S) is None
    assert other.received == b"x" * 5_000_000
    server.close()


async def test_a_changed_byte_ends_the_stream_and_is_never_delivered(
    ca: Authority, good: Issued
) -> None:
    one, other, server = await tls_pair(ca, good)
    one.transport.write(b"good")
    await until(lambda: other.received == b"good")
    below = one.transport._below  # the wire beneath TLS is changed
    write = below.write
    below_write = []

    def changed(data: bytes) -> None:
        below_write.append(data)
        damaged = bytearray(data)
        damaged[len(damaged) // 2] ^= 1
        write(bytes(damaged))

    one.transport._below = _Changed(below, changed)  # the wire beneath TLS is changed
    one.transport.write(b"y" * 100)
    error = await asyncio.wait_for(other.lost, PATIENCE_S)
    assert isinstance(error, ssl.SSLError)
    assert other.received == b"good"
    server.close()


class _Changed:
    def __init__(self, below: Any, write: Any) -> None:
        self._below = below
        self.write = write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)


async def test_a_handshake_with_something_else_fails_and_says_so(ca: Authority) -> None:
    server = await asyncio.start_server(_say_hello, "127.0.0.1", 0)
    end = _End()
    transport, _ = await Env().network.connect(
        "127.0.0.1", server.sockets[0].getsockname()[1], lambda: end
    )
    done = asyncio.get_running_loop().create_future()
    context = ssl.create_default_context(cafile=ca.ca_file)
    Env().network.start_tls(
        transport, end, context, server_side=False, server_hostname="x", done=done.set_result
    )
    assert isinstance(await asyncio.wait_for(done, PATIENCE_S), ssl.SSLError)
    assert isinstance(await asyncio.wait_for(end.lost, PATIENCE_S), ssl.SSLError)
    server.close()


async def _say_hello(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")


async def test_s84_a_reader_that_never_reads_is_cut_under_tls_too(
    ca: Authority, good: Issued, tmp_path: Any
) -> None:
    served = {
        "tls": bookie_tls(ca, good),
        "high_connection_answer_bytes": 64 * 1024,
        "answer_timeout_s": 0.3,
    }
    async with secure_cluster(tmp_path, **served) as cluster:
        raw = await cluster.raw()
        await raw.start_tls(ssl.create_default_context(cafile=ca.ca_file))
        raw.send(add_frames(3, 200, b"z" * 100_000))
        for _ in range(200):
            await raw.frame()
        raw.writer.transport.pause_reading()
        for _ in range(20):
            raw.send(v2.encode_batch_read(3, 0, 1, 0, 5_000_000))
        await until(lambda: cluster.bookie.metrics.connections_slow == 1)
        raw.close()
        async with cluster.connect(tls=client_tls(ca)) as bk:
            async with bk.create_ledger(**SOLO) as ledger:
                assert await ledger.append(b"others go on") == 0


async def test_frames_cut_anywhere_mean_the_same_under_tls(
    ca: Authority, good: Issued, tmp_path: Any
) -> None:
    async with secure_cluster(tmp_path, tls=bookie_tls(ca, good)) as cluster:
        raw: RawConnection = await cluster.raw()
        await raw.start_tls(ssl.create_default_context(cafile=ca.ca_file))
        data = add_frames(3, 50, b"q" * 300)
        dice = random.Random(5)
        while data:
            size = dice.randrange(1, 700)
            raw.send(data[:size])
            data = data[size:]
            await asyncio.sleep(0)
        for entry_id in range(50):
            assert v2.AnswerDecoder().feed(await raw.frame()) == [
                v2.AddAnswers(3, entry_id, entry_id, 0)
            ]
        raw.close()
        raw = await cluster.raw()
        await raw.start_tls(ssl.create_default_context(cafile=ca.ca_file))
        assert (await raw.ask_v3(v3.encode_read(1, 3, 49))).status is Status.OK
        raw.close()
