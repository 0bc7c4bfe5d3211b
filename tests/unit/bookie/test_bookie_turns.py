"""How long a turn of the loop works for connections, who is next, and who has room for a frame."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from bookie_harness import (
    MIB,
    RawClient,
    ScriptedStorage,
    cluster,
    real_bookie,
    serve,
    settle,
    v2_adds,
)

from doubles.inside import connections_of
from doubles.waiting import until
from quorumbook.bookie.connections import registry
from quorumbook.bookie.connections.connection import BookieConnection
from quorumbook.bookie.connections.frame_budget import FrameBudget, to_give_up
from quorumbook.bookie.connections.loop_turns import (
    Departures,
    Outbox,
    Turn,
    TurnQueue,
    TurnsBelow,
    Weight,
)
from quorumbook.storage.journal.group_commit import Journal

MS = 1_000_000
OK = 0


class _Clock:
    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns


class _Worker:
    """A connection whose every piece of work takes some time, and which has so many."""

    def __init__(self, clock: _Clock, took: list[_Worker], pieces: int = 1) -> None:
        self.clock = clock
        self.took = took
        self.pieces = pieces
        self.queue: TurnQueue | None = None
        self.unflushed_bytes = 1
        self.noted = 0

    def go_on(self) -> None:
        self.clock.ns += 2 * MS
        self.took.append(self)
        self.pieces -= 1
        if self.pieces and self.queue is not None:
            self.queue.add(cast(BookieConnection, self), Weight.MIDDLE)

    def flush(self) -> None:
        self.clock.ns += 2 * MS
        self.took.append(self)
        self.unflushed_bytes = 0

    def note_unread(self) -> None:
        self.noted += 1


async def _turns_of(took: list[Any], count: int) -> list[int]:
    """Return how much was done in each turn of the loop, until that much is done."""
    done: list[int] = []
    while sum(done) < count:
        await asyncio.sleep(0)
        if len(took) > sum(done):
            done.append(len(took) - sum(done))
    return done


async def test_a_turn_ends_when_it_has_worked_long_enough_and_small_chunks_go_first() -> None:
    clock = _Clock()
    took: list[_Worker] = []
    queue = TurnQueue(Turn(clock), lambda: True)
    busy = [_Worker(clock, took, pieces=50) for _ in range(20)]
    for one in busy:
        one.queue = queue
        queue.add(cast(BookieConnection, one), Weight.MIDDLE)
    await _turns_of(took, 3)
    small = _Worker(clock, took)
    before = len(took)
    queue.add(cast(BookieConnection, small), Weight.SMALL)
    turns = await _turns_of(took, 100)
    assert took.index(small) <= before + 1
    # One of each kind at least, and no turn more than that.
    assert max(turns[1:]) <= 2
    done = [one for one in took[:before] if one is not small]
    assert len(set(done)) == len(done), "nobody has a second turn before all have had one"


async def test_who_has_proven_nothing_waits_behind_all_others_and_gets_on_all_the_same() -> None:
    clock = _Clock()
    took: list[_Worker] = []
    queue = TurnQueue(Turn(clock), lambda: True)
    below = TurnsBelow(queue, lambda: False)
    strangers = [_Worker(clock, took) for _ in range(20)]
    for one in strangers:
        below.wait(one, 100)
    await _turns_of(took, 3)
    busy = _Worker(clock, took, pieces=50)
    busy.queue = queue
    queue.add(cast(BookieConnection, busy), Weight.MIDDLE)
    small = _Worker(clock, took)
    TurnsBelow(queue, lambda: True).wait(small, 100)
    before = len(took)
    turns = await _turns_of(took, before + 40)
    assert took[before : before + 3] == [small, busy, strangers[before]]
    assert max(turns[1:]) <= 3, "one of each kind"
    assert [one for one in took if one in strangers] == strangers, "none starves"


async def test_a_chunk_is_a_strangers_until_a_request_was_carried_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = []
    add = TurnQueue.add

    def added(queue: TurnQueue, connection: Any, weight: Weight) -> None:
        kinds.append(weight)
        add(queue, connection, weight)

    monkeypatch.setattr(TurnQueue, "add", added)
    async with serve() as server:
        client = await server.connect()
        monkeypatch.setattr(Turn, "is_over", property(lambda _: True))
        for entry_id in range(2):
            client.send(v2_adds(7, [entry_id], b"x"))
            assert await client.add_codes(1) == [(entry_id, OK)]
    assert kinds == [Weight.UNPROVEN, Weight.SMALL]


async def test_who_waits_for_the_journals_goes_on_when_they_have_room_and_holds_up_nobody() -> None:
    clock = _Clock()
    took: list[_Worker] = []
    has_room = False
    queue = TurnQueue(Turn(clock), lambda: has_room)
    heavy = [_Worker(clock, took) for _ in range(3)]
    for one in heavy:
        queue.add(cast(BookieConnection, one), Weight.HEAVY)
    others = [_Worker(clock, took) for _ in range(2)]
    for one, weight in zip(others, (Weight.MIDDLE, Weight.SMALL), strict=True):
        queue.add(cast(BookieConnection, one), weight)
    await _turns_of(took, 2)
    await settle()
    assert set(took) == set(others)
    assert queue.has_heavy
    has_room = True
    queue.wake()
    await until(lambda: not queue.has_heavy)
    assert took[2:] == heavy, "in the order of their coming"


async def test_answers_left_by_a_turn_are_counted_and_leave_in_the_next() -> None:
    clock = _Clock()
    took: list[_Worker] = []
    outbox = Outbox(Turn(clock))
    many = [_Worker(clock, took) for _ in range(5)]
    for one in many:
        outbox.add(cast(BookieConnection, one))
    assert await _turns_of(took, 5) == [1] * 5
    assert took == many
    assert [one.noted for one in many] == [0, 1, 1, 1, 1]


async def test_answers_leave_at_once_when_all_of_a_group_are_there() -> None:
    clock = _Clock()
    took: list[_Worker] = []
    outbox = Outbox(Turn(clock))
    many = [_Worker(clock, took) for _ in range(3)]
    for one in many:
        outbox.add(cast(BookieConnection, one))
    outbox.sweep()
    assert took == many[:1]  # so long one works in a turn
    assert await _turns_of(took, 3) == [2, 1]
    assert took == many


async def test_the_answers_of_a_group_leave_in_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way: list[bool] = []
    left: list[bool] = []
    # When an answer is written says nothing outside.
    group_done, write = Journal._group_done, BookieConnection._write

    def note_group(self: Journal, result: Any) -> None:
        under_way.append(True)
        group_done(self, result)
        under_way.clear()

    def note_write(self: BookieConnection, answers: list[bytes], size: int) -> None:
        left.append(bool(under_way))
        write(self, answers, size)

    monkeypatch.setattr(Journal, "_group_done", note_group)
    monkeypatch.setattr(BookieConnection, "_write", note_write)
    async with cluster() as store, real_bookie(tmp_path, store) as bookie:
        client = await RawClient.connect(bookie.address[1])
        client.send(v2_adds(1, range(3), b"x"))
        assert await client.add_codes(3) == [(number, OK) for number in range(3)]
    assert left == [True]


async def test_who_has_been_flushed_already_costs_no_turn() -> None:
    clock = _Clock()
    took: list[_Worker] = []
    outbox = Outbox(Turn(clock))
    many = [_Worker(clock, took) for _ in range(5)]
    for one in many:
        outbox.add(cast(BookieConnection, one))
    for one in many[1:4]:
        one.unflushed_bytes = 0
    assert await _turns_of(took, 2) == [1, 1]
    assert took == [many[0], many[4]]


async def test_requests_that_come_in_a_turn_that_is_over_wait_and_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serve() as server:
        clients = [await server.connect() for _ in range(4)]
        monkeypatch.setattr(Turn, "is_over", property(lambda _: True))
        for number, client in enumerate(clients):
            whole = v2_adds(number, range(300), b"x" * 20)
            client.send(whole[:-7])
            await settle()
            client.send(whole[-7:])
        for number, client in enumerate(clients):
            answers = await client.add_codes(300)
            assert answers == [(entry_id, OK) for entry_id in range(300)], number
        assert server.connections.partial_bytes == 0


class _Peer:
    """A connection in the midst of a large frame."""

    def __init__(self, pending_frame_bytes: int = 0, frame_since_ns: int = 0) -> None:
        self.add_bytes = 0
        self.pending_frame_bytes = pending_frame_bytes
        self.frame_since_ns = frame_since_ns
        self.is_open = self.is_read = True


def _admits(budget: FrameBudget, peer: _Peer, size_bytes: int, add_bytes: int = 0) -> bool:
    return budget.admits(cast(BookieConnection, peer), size_bytes, add_bytes)


class _Leaver:
    def __init__(self, gone: list[_Leaver]) -> None:
        self.gone = gone

    def depart(self) -> None:
        self.gone.append(self)


async def test_of_very_many_peers_that_leave_at_once_some_are_seen_off_in_a_turn() -> None:
    gone: list[_Leaver] = []
    departures = Departures()
    leavers = [_Leaver(gone) for _ in range(1000)]
    for leaver in leavers:
        departures.add(leaver)
    assert not gone
    turns = 0
    while len(gone) < len(leavers):
        before = len(gone)
        await asyncio.sleep(0)
        assert 0 < len(gone) - before <= 100
        turns += 1
    assert gone == leavers
    assert turns >= 10


@pytest.mark.parametrize("how", ["it says that it sends no more", "it is reset", "it is cut too"])
async def test_a_peer_that_has_left_is_forgotten_once_however_it_went(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve() as server:
        forgotten: list[BookieConnection] = []
        forget = server.operations.forget

        def noted(connection: BookieConnection) -> None:
            forgotten.append(connection)
            forget(connection)

        monkeypatch.setattr(server.operations, "forget", noted)
        clients = [await server.connect() for _ in range(200)]
        await until(lambda: len(server.connections) == 200)
        for client, connection in zip(clients, connections_of(server), strict=True):
            if how == "it says that it sends no more":
                client.writer.write_eof()
            elif how == "it is reset":
                client.writer.transport.abort()
            else:
                connection.eof_received()
                connection.drop()
        await until(lambda: not len(server.connections))
        await settle()
        assert len(forgotten) == len(set(forgotten)) == 200
        for client in clients:
            client.close()


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
