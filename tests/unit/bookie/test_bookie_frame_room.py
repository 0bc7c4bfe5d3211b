"""Who has room for a large frame, and whose frame is given up where there is none."""

from __future__ import annotations

from typing import Any, cast

import pytest
from bookie_harness import (
    MIB,
    ScriptedStorage,
    serve,
    settle,
    v2_adds,
)

from doubles.waiting import until
from quorumbook.bookie.connections import registry
from quorumbook.bookie.connections.connection import BookieConnection
from quorumbook.bookie.connections.frame_budget import FrameBudget, to_give_up

OK = 0


class _Peer:
    """A connection in the midst of a large frame."""

    def __init__(self, pending_frame_bytes: int = 0, frame_since_ns: int = 0) -> None:
        self.add_bytes = 0
        self.pending_frame_bytes = pending_frame_bytes
        self.frame_since_ns = frame_since_ns
        self.is_open = self.is_read = True


def _admits(budget: FrameBudget, peer: _Peer, size_bytes: int, add_bytes: int = 0) -> bool:
    return budget.admits(cast(BookieConnection, peer), size_bytes, add_bytes)


def test_large_frames_have_room_one_behind_the_other() -> None:
    budget = FrameBudget(100)
    first, second, extra, last = (_Peer() for _ in range(4))
    assert _admits(budget, first, 60)
    assert _admits(budget, second, 40)
    # However much others hold, one at a time is let in.
    assert _admits(budget, extra, 60)
    assert not _admits(budget, last, 10)
    assert budget.let_in(0) == []
    extra.add_bytes = 60
    budget.leave(cast(BookieConnection, extra))
    assert budget.let_in(60) == [], "its add is not answered yet"
    extra.add_bytes = 0
    assert budget.let_in(0) == [last]
    budget.leave(cast(BookieConnection, first))
    assert not budget.is_wanted


def test_who_is_gone_leaves_its_room_and_its_place() -> None:
    budget = FrameBudget(100)
    holder, extra, waiting, next_one = (_Peer() for _ in range(4))
    for peer in (holder, extra):
        assert _admits(budget, peer, 90)
    for peer in (waiting, next_one):
        assert not _admits(budget, peer, 90)
    waiting.is_open = extra.is_open = False
    extra.add_bytes = 90
    budget.leave(cast(BookieConnection, waiting))
    budget.leave(cast(BookieConnection, extra))
    assert budget.let_in(0) == [next_one]


def test_who_sends_next_to_nothing_while_others_wait_is_cut_and_nobody_else() -> None:
    budget = FrameBudget(100)
    still, moving, waiting, held = (_Peer() for _ in range(4))
    assert _admits(budget, held, 9)
    assert _admits(budget, still, 80)
    assert _admits(budget, moving, 90)
    # What has come of it waits here, and it could not send more.
    held.is_read = False
    assert budget.standing_still() == budget.standing_still() == []
    assert not _admits(budget, waiting, 90)
    assert budget.standing_still() == []
    moving.pending_frame_bytes += 64 * 1024
    still.pending_frame_bytes += 64 * 1024 - 1
    assert budget.standing_still() == [still]


async def test_frames_of_many_connections_take_no_more_room_than_there_is() -> None:
    storage = ScriptedStorage(automatic=False)
    async with serve(storage, max_add_bytes=8 * MIB, frame_timeout_s=60) as server:
        clients = [await server.connect() for _ in range(12)]
        frames = [v2_adds(number, [0], bytes(2 * MIB)) for number in range(12)]
        for client, data in zip(clients, frames, strict=True):
            client.send(data)
        answered = 0
        while answered < 12:
            # Three have room; a fourth comes without, unless one of the three did.
            there = min(12 - answered, 3)
            await until(lambda there=there: server.connections.adds.used_bytes >= there * 2 * MIB)
            for _ in range(20):
                await settle()
            assert server.connections.adds.used_bytes <= 8 * MIB + 3 * MIB
            answered += len(storage.group)
            storage.commit()
        for client in clients:
            assert await client.add_codes(1) == [(0, OK)]
        assert not server.connections.frames.is_wanted


async def test_begun_frames_of_many_connections_take_no_more_room_than_there_is() -> None:
    async with serve(max_add_bytes=8 * MIB, frame_timeout_s=60, answer_timeout_s=60) as server:
        clients = [await server.connect() for _ in range(12)]
        for number, client in enumerate(clients):
            client.send(v2_adds(number, [0], bytes(2 * MIB))[:-1])
        connections, before = server.connections, -1
        while before < connections.partial_bytes:
            before = connections.partial_bytes
            for _ in range(20):
                await settle()
        # Four have room, or three and one without; of each other one a chunk has come.
        assert 4 * MIB < connections.partial_bytes <= 8 * MIB + 3 * MIB


async def test_half_frames_that_stand_still_make_room_for_whole_ones() -> None:
    async with serve(max_add_bytes=4 * MIB, answer_timeout_s=0.2) as server:
        for number in range(4):
            half = await server.connect()
            half.send(v2_adds(number, [0], bytes(3 * MIB))[:-1])
        await until(lambda: server.connections.frames.is_wanted)
        honest = await server.connect()
        honest.send(v2_adds(9, [0], bytes(3 * MIB)))
        assert await honest.add_codes(1) == [(0, OK)]
        assert server.metrics.connections_slow >= 1


def _given_up(frames: dict[_Peer, tuple[bool, str]], excess_bytes: int) -> list[_Peer]:
    return list(to_give_up(cast(Any, frames), excess_bytes, cast(Any, frames.__getitem__)))


def test_many_frames_of_one_address_do_not_cost_anothers_which_is_older() -> None:
    honest = _Peer(500, frame_since_ns=1)
    many = [_Peer(200, frame_since_ns=2 + number) for number in range(4)]
    frames = {honest: (True, "a")} | dict.fromkeys(many, (True, "b"))
    assert _given_up(frames, 0) == []
    # Their 800 are more than 500, and 600 are still; 400 are not.
    assert _given_up(frames, 1) == many[:1]
    assert _given_up(frames, 400) == many[:2]
    assert _given_up(frames, 401) == [*many[:2], honest]
    assert _given_up(frames, 10_000) == [*many[:2], honest, *many[2:]]


def test_frames_of_who_has_asked_nothing_yet_go_first() -> None:
    honest = [_Peer(500, frame_since_ns=1), _Peer(500, frame_since_ns=2)]
    stranger = [_Peer(10, frame_since_ns=9), _Peer(10, frame_since_ns=8)]
    frames = dict.fromkeys(honest, (True, "a")) | dict.fromkeys(stranger, (False, "b"))
    assert _given_up(frames, 15) == [stranger[1], stranger[0]]
    assert _given_up(frames, 21) == [stranger[1], stranger[0], honest[0]]


async def test_only_those_with_begun_frames_are_looked_at_and_some_more_room_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at: list[int] = []
    choose = registry.to_give_up

    def chosen(begun: list[Any], excess_bytes: int, source_of: Any) -> Any:
        looked_at.append(len(begun))
        return choose(begun, excess_bytes, source_of)

    monkeypatch.setattr(registry, "to_give_up", chosen)
    async with serve(max_partial_frame_bytes=1 << 20) as server:
        idle = [await server.connect() for _ in range(20)]
        finished = await server.connect()
        finished.send(v2_adds(1, [0], bytes(5000))[:-1])
        await until(lambda: server.connections.partial_bytes > 0)
        finished.send(b"\0")
        assert await finished.add_codes(1)
        piece = v2_adds(2, [0], bytes(200_000))[:20_000]
        strangers = [await server.connect() for _ in range(53)]
        for stranger in strangers:
            stranger.send(piece)
        # A megabyte is 52.4 of them, and a little more than the excess goes.
        left = len([*idle, finished, *strangers]) - 2
        await until(lambda: len(server.connections) == left)
        assert looked_at == [53]
        assert server.metrics.connections_slow == 2


async def test_a_client_at_work_finishes_its_frame_beside_strangers_who_begin_many() -> None:
    async with serve(max_partial_frame_bytes=1 << 20) as server:
        honest = await server.connect()
        honest.send(v2_adds(1, [0]))
        await honest.add_codes(1)
        large = v2_adds(1, [1], bytes(700_000))
        honest.send(large[:600_000])
        await until(lambda: server.connections.partial_bytes == 600_000)
        strangers = [await server.connect() for _ in range(6)]
        for stranger in strangers:
            stranger.send(v2_adds(2, [0], bytes(200_000))[:190_000])
        await until(lambda: server.metrics.connections_slow == 4)
        honest.send(large[600_000:])
        assert await honest.add_codes(1) == [(1, OK)]
