"""How long a turn of the loop works for connections, and who is next."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from bookie_harness import (
    RawClient,
    cluster,
    code_of,
    real_bookie,
    serve,
    settle,
    v2_adds,
)

from doubles.inside import connections_of
from doubles.waiting import until
from quorumbook.bookie.connections.connection import BookieConnection
from quorumbook.bookie.connections.loop_turns import (
    Departures,
    Outbox,
    Turn,
    TurnQueue,
    TurnsBelow,
    Weight,
)
from quorumbook.protocol.v2 import packets as v2
from quorumbook.storage.journal.group_commit import Journal

MS = 1_000_000
OK = 0


class _Clock:
    def __init__(self) -> None:
        self.ns = 0

    def now_ns(self) -> int:
        return self.ns


def _ignore(is_busy: bool) -> None:
    """Nobody listens."""


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
    queue = TurnQueue(Turn(clock), lambda: True, _ignore)
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
    # A small one and another at least, and no turn more than that.
    assert max(turns[1:]) <= 2
    done = [one for one in took[:before] if one is not small]
    assert len(set(done)) == len(done), "nobody has a second turn before all have had one"


async def test_who_has_proven_nothing_waits_behind_all_others_and_gets_on_all_the_same() -> None:
    clock = _Clock()
    took: list[_Worker] = []
    queue = TurnQueue(Turn(clock), lambda: True, _ignore)
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
    assert max(turns[1:]) <= 2, "a small one, and one of the others"
    assert [one for one in took if one in strangers] == strangers, "none starves"


async def test_those_who_ask_much_and_strangers_have_their_turns_one_after_the_other() -> None:
    clock = _Clock()
    took: list[_Worker] = []
    queue = TurnQueue(Turn(clock), lambda: True, _ignore)
    kinds = (Weight.MIDDLE, Weight.HEAVY, Weight.UNPROVEN)
    by_kind = {kind: [_Worker(clock, took) for _ in range(4)] for kind in kinds}
    for kind, workers in by_kind.items():
        for one in workers:
            queue.add(cast(BookieConnection, one), kind)
    turns = await _turns_of(took, 12)
    assert turns == [1] * 12, "however late it is, a turn carries on with one of them"
    for kind, workers in by_kind.items():
        assert [one for one in took if one in workers] == workers, f"{kind.name} in their order"
        first, *others = [took.index(one) for one in workers]
        assert first < 3, f"{kind.name} does not stand behind the others"
        assert others == [first + 3, first + 6, first + 9]


async def test_who_listens_is_told_when_somebody_waits_longer_than_a_turn_and_when_nobody() -> None:
    clock = _Clock()
    took: list[_Worker] = []
    said: list[tuple[bool, int]] = []
    queue = TurnQueue(Turn(clock), lambda: True, lambda is_busy: said.append((is_busy, len(took))))
    queue.add(cast(BookieConnection, _Worker(clock, took)), Weight.MIDDLE)
    await settle()
    assert not said, "one turn was enough"
    for _ in range(3):
        queue.add(cast(BookieConnection, _Worker(clock, took)), Weight.MIDDLE)
    await _turns_of(took, 4)
    await settle()
    assert said == [(True, 2), (False, 4)]


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
    said: list[bool] = []
    queue = TurnQueue(Turn(clock), lambda: has_room, said.append)
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
    assert said in ([], [True, False]), "the loop rests while they wait"
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


async def test_an_answer_is_sent_at_once_or_when_its_turn_is_over_behind_those_that_wait() -> None:
    clock = _Clock()
    took: list[_Worker] = []
    outbox = Outbox(Turn(clock))
    first, second, third, unasked = (_Worker(clock, took) for _ in range(4))
    unasked.unflushed_bytes = 0
    outbox.send(cast(BookieConnection, first))
    assert took == [first]
    outbox.add(cast(BookieConnection, second))
    for one in (third, unasked):  # the first has worked for as long as a turn may
        outbox.send(cast(BookieConnection, one))
    assert took == [first]
    assert await _turns_of(took, 3) == [2, 1]
    assert took == [first, second, third]


@pytest.mark.parametrize("is_over", [False, True])
async def test_what_is_answered_in_its_own_step_leaves_there_while_its_turn_lasts(
    monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    """Nobody is scheduled for it; a turn that is over leaves it to the next."""
    left_to: list[object] = []
    # When requests have been carried out, but not answered yet, says nothing outside.
    add, carry_out = Outbox.add, BookieConnection._carry_out
    has_worked: list[bool] = []

    def note_add(self: Outbox, connection: Any) -> None:
        left_to.append(connection)
        has_worked.clear()
        add(self, connection)

    def note_work(self: BookieConnection, data: bytes) -> Any:
        requests = carry_out(self, data)
        has_worked.append(True)
        return requests

    async with serve() as server:
        client = await server.connect()
        client.send(v2_adds(1, range(3), b"x"))
        assert await client.add_codes(3) == [(number, OK) for number in range(3)]
        monkeypatch.setattr(Outbox, "add", note_add)
        monkeypatch.setattr(BookieConnection, "_carry_out", note_work)
        if is_over:
            monkeypatch.setattr(Turn, "is_over", property(lambda _: bool(has_worked)))
        assert code_of(await client.ask(v2.encode_read(1, 0))) == OK
        assert len(left_to) == is_over
        client.send(v2_adds(1, [3], b"x"))  # answered in the step of its group
        assert await client.add_codes(1) == [(3, OK)]


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
