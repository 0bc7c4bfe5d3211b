"""What a connection may have a bookie do at a time, and keep: turns, and the budget of answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from bookie_harness import KEY, MIB, ScriptedStorage, code_of, entry, serve, settle, v2_adds

from doubles.inside import connections_of, unsent_bytes_of
from doubles.waiting import until
from quorumbook.bookie.connections.answer_budget import AnswerBudget
from quorumbook.bookie.connections.connection import BookieConnection
from quorumbook.bookie.connections.loop_turns import Turn
from quorumbook.protocol.frames import FrameBuffer
from quorumbook.protocol.request_decoder import RequestDecoder
from quorumbook.protocol.requests import REQUESTS_MAX
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3

_KINDS = {
    "read": v2.encode_read(1, 5),
    "v3 read": v3.encode_read(1, 1, 5),
    "fence": v2.encode_read(7, 5, master_key=KEY),
    "batch read": v2.encode_batch_read(1, 0, 1, 0, 0),
    "long poll": v3.encode_read(1, 1, previous_lac=1 << 40, timeout_ms=1000),
    "read LAC": v3.encode_read_lac(1, 1),
    "write LAC": v3.encode_write_lac(1, 1, 5, KEY, bytes(8) + (5).to_bytes(8, "big")),
    "force": v3.encode_force(1, 1),
    "info": v3.encode_bookie_info(1),
    "list": v3.encode_list_entries(1, 1),
    "add": v2_adds(1, [0]),
}


@pytest.mark.parametrize("kind", list(_KINDS))
async def test_no_turn_carries_out_more_than_its_share_of_a_chunk(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = 3 * REQUESTS_MAX
    async with serve() as server:
        counts: list[int] = []
        handle = server.operations.handle

        def counting(connection: BookieConnection, requests: list[object]) -> None:
            counts.append(len(requests))
            handle(connection, requests)  # type: ignore[arg-type]

        monkeypatch.setattr(server.operations, "handle", counting)
        clients = [await server.connect() for _ in range(3)]
        # Two kinds in turn, so that no row of equal ones counts as one request.
        data = (_KINDS[kind] + v3.encode_bookie_info(1)) * many
        if _KINDS[kind][4] < 8:
            data = (_KINDS[kind] + v2.encode_read(99, 5)) * many
        for client in clients:
            client.send(data)
        await until(lambda: sum(counts) >= many)
        assert max(counts) <= REQUESTS_MAX + 1


@pytest.mark.parametrize("is_over", [False, True])
async def test_what_is_left_of_a_chunk_when_its_turn_is_over_waits_for_the_next(
    is_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = 0
    in_the_turn: list[int] = []
    async with serve() as server:
        client = await server.connect()
        handle = server.operations.handle

        def handling(connection: BookieConnection, requests: list[Any]) -> None:
            nonlocal pieces
            if not pieces:
                loop = asyncio.get_running_loop()
                loop.call_soon(lambda: in_the_turn.append(pieces))
            pieces += 1
            handle(connection, requests)

        monkeypatch.setattr(server.operations, "handle", handling)
        monkeypatch.setattr(Turn, "is_over", property(lambda _: is_over and pieces > 0))
        client.send(v3.encode_bookie_info(1) * (3 * REQUESTS_MAX))
        await until(lambda: pieces == 3)
        assert in_the_turn == [1 if is_over else 3]


def test_a_chunk_of_many_requests_is_decoded_in_pieces_and_loses_none() -> None:
    decoder = RequestDecoder()
    frames = [v3.encode_read_lac(index, 1) for index in range(1000)]
    last = v3.encode_read_lac(1000, 1)
    found = list(decoder.feed(b"".join(frames) + last[:5]))
    assert len(found) == REQUESTS_MAX
    assert decoder.is_behind
    while decoder.is_behind:
        piece = decoder.feed(b"")
        assert len(piece) <= REQUESTS_MAX
        found += piece
    found += decoder.feed(last[5:])
    assert [request.token for request in found] == list(range(1001))


def test_a_few_bytes_of_a_frame_do_not_keep_the_chunk_they_came_in() -> None:
    buffer = FrameBuffer(5 * MIB)
    frame = (1000).to_bytes(4, "big") + bytes(1000)
    chunk = frame * 200 + frame[:5]
    assert buffer.take(chunk) is chunk
    buffer.keep(chunk, len(chunk) - 5)
    # How bytes lie in memory, and when it looks, is its own affair.
    assert [len(memoryview(part).obj) for part in buffer._parts] == [5]


@pytest.mark.parametrize("first", [1, 4, 5, 5000, 300_000])
@pytest.mark.parametrize("piece", [1000, 262_144])
def test_a_large_frame_is_gathered_in_one_place_and_comes_whole(first: int, piece: int) -> None:
    size = 2 * MIB + 77
    frame = size.to_bytes(4, "big") + bytes(range(256)) * (size // 256) + bytes(size % 256)
    behind = b"\0\0\0\x09next"
    data = frame + behind
    buffer = FrameBuffer(5 * MIB, gathers=True)
    start = 0
    for stop in (first, *range(first + piece, len(data) + piece, piece)):
        whole = buffer.take(data[start:stop])
        start = stop
        if len(whole) >= len(frame):
            break
        if whole:
            buffer.keep(whole, 0)
        elif stop > 5 + piece:
            # One object, however many pieces came.
            assert not buffer._parts
            assert (buffer.pending_bytes, buffer.missing_bytes) == (stop, len(frame) - stop)
    assert whole == data[:start]
    assert buffer._gathered is None  # how bytes lie in memory, and when it looks, is its own affair
    assert not buffer.pending_bytes


async def test_readers_who_never_read_have_the_budget_and_stop_nobody() -> None:
    storage = ScriptedStorage()
    async with serve(storage, max_answer_bytes=4 * MIB) as server:
        good = await server.connect()
        good.send(v2_adds(1, [0], bytes(MIB)))
        await good.add_codes(1)
        silent = [await server.connect() for _ in range(20)]
        for one in silent:
            one.writer.transport.pause_reading()
            one.send(v2.encode_read(1, 0) * 50)
        budget = server.connections.answer_budget
        await until(lambda: budget.used_bytes > 3 * MIB)
        await settle()
        # The system's own buffers take some; what is here has an end.
        assert budget.used_bytes <= 8 * MIB + 5 * MIB
        for _ in range(3):
            good.send(v2.encode_read(1, 0))
            assert code_of(await good.frame()) == 0


async def test_lists_and_last_adds_confirmed_wait_while_their_peer_does_not_read() -> None:
    storage = ScriptedStorage()
    async with serve(storage, high_connection_answer_bytes=256 * 1024) as server:
        writer = await server.connect()
        writer.send(v2_adds(1, [0], bytes(MIB)))
        await writer.add_codes(1)
        writer.close()
        await until(lambda: len(server.connections) == 0)
        client = await server.connect()
        client.writer.transport.pause_reading()
        client.send(b"".join(v3.encode_read_lac(index, 1) for index in range(20)))
        await until(lambda: server.metrics.pauses >= 1)
        await settle()
        (connection,) = connections_of(server)
        assert unsent_bytes_of(connection) < 4 * MIB
        client.writer.transport.resume_reading()
        for _ in range(20):
            assert entry(1, 0, bytes(MIB)) in await client.frame()
        assert server.metrics.reads_in_progress == 0
        assert connection.read_bytes == 0


class _Clock:
    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns


class _Peer:
    """A connection whose peer has not taken some bytes."""

    def __init__(self, budget: AnswerBudget, unread: int = 0) -> None:
        self.budget = budget
        self.unread = unread
        self.read_bytes = 0
        self.is_cut = False
        self.unflushed_bytes = 0
        self.note_unread()

    def flush(self) -> None:
        pass

    def note_unread(self) -> None:
        self.budget.note(self, self.unread, 0)  # type: ignore[arg-type]

    def stands_in_the_way(self) -> None:
        self.is_cut = True


async def test_who_has_answers_waits_and_who_has_none_is_admitted_one() -> None:
    resumed: list[object] = []
    budget = AnswerBudget(_Clock(), Turn(_Clock()), 100, resumed.append)  # type: ignore[arg-type]
    silent, fresh = _Peer(budget, 90), _Peer(budget)
    assert budget.admits(fresh, 20)  # type: ignore[arg-type]
    assert not budget.admits(silent, 20)  # type: ignore[arg-type]
    silent.unread = 0
    await until(lambda: resumed == [silent])
    assert budget.used_bytes == 0
    assert budget.admits(silent, 20)  # type: ignore[arg-type]


async def test_who_has_stood_still_longest_makes_room_for_who_has_nothing() -> None:
    clock = _Clock()
    budget = AnswerBudget(clock, Turn(_Clock()), 100, lambda _: None)  # type: ignore[arg-type]
    first = _Peer(budget, 90)

    def watch(ms: int) -> None:
        for _ in range(ms // 50):
            clock.ns += 50_000_000
            budget._look_again()  # how bytes lie in memory, and when it looks, is its own affair

    watch(900)
    second = _Peer(budget, 90)
    fresh = _Peer(budget)
    assert not budget.admits(fresh, 50)  # type: ignore[arg-type]
    assert not first.is_cut
    watch(200)
    assert budget.admits(fresh, 50)  # type: ignore[arg-type]
    assert (first.is_cut, second.is_cut) == (True, False)


async def test_a_pause_of_the_bookie_is_not_held_against_readers() -> None:
    clock = _Clock()
    budget = AnswerBudget(clock, Turn(_Clock()), 100, lambda _: None)  # type: ignore[arg-type]
    reader, other, fresh = _Peer(budget, 90), _Peer(budget, 90), _Peer(budget)
    clock.ns += 60_000_000_000
    budget._look_again()  # how bytes lie in memory, and when it looks, is its own affair
    assert not budget.admits(fresh, 50)  # type: ignore[arg-type]
    assert not reader.is_cut
    assert not other.is_cut
