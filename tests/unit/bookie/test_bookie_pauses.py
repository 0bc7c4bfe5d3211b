"""A bookie that stands still for longer than its limits, on virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TypeAlias

import pytest
from bookie_harness import KEY, ScriptedStorage, Server, entry, options_in, v2_adds

from doubles.virtual_time import run_virtually, virtual_clock, virtual_loop
from quorumbook.auth.plugins import Principal, Step
from quorumbook.bookie.connections.connection import BookieConnection
from quorumbook.env import Env
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3

PAUSE_S = 1000
LARGE = bytes(64 * 1024)


class Peer:
    """The other end of a connection, which needs no loop."""

    def __init__(self, theirs: socket.socket, connection: BookieConnection) -> None:
        self._socket = theirs
        self._socket.setblocking(False)
        self.connection = connection

    def send(self, data: bytes) -> None:
        assert self._socket.send(data) == len(data)

    def take(self) -> bytes:
        """Take everything that is there."""
        parts: list[bytes] = []
        with contextlib.suppress(BlockingIOError):
            while part := self._socket.recv(1 << 20):
                parts.append(part)
        return b"".join(parts)


class Believing:
    """A plug-in that believes whoever says anything."""

    name = "believing"

    def identify(self, peer: object) -> None:
        return None

    def session(self, peer: object) -> Believing:
        return self

    def answer(self, payload: bytes) -> Step:
        return Step(principal=Principal("somebody"))


@contextlib.asynccontextmanager
async def served(*, wants_login: bool) -> AsyncIterator[tuple[Server, Peer]]:
    server = Server(ScriptedStorage(), options_in("/nowhere"))
    clock = virtual_clock()
    server.connections.env = Env(clock=clock)
    server.operations._clock = server.operations.adds._clock = clock  # a clock that was paused
    admission = server.connections.admission
    admission.clock = clock
    admission.plugin = Believing() if wants_login else None
    ours, theirs = socket.socketpair()
    with theirs:
        _, connection = await virtual_loop().connect_accepted_socket(
            server.connections.factory, ours
        )
        try:
            yield server, Peer(theirs, connection)
        finally:
            server.connections.abort()
            await asyncio.sleep(0)


#: What begins to be waited for, and what the peer does while the bookie stands still.
Begin: TypeAlias = Callable[[Server, Peer], Awaitable[Callable[[], object]]]


async def begin_frame(server: Server, peer: Peer) -> Callable[[], object]:
    frame = v2_adds(1, [0])
    peer.send(frame[:20])
    return lambda: peer.send(frame[20:])


async def leave_answers(server: Server, peer: Peer) -> Callable[[], object]:
    peer.send(v2_adds(1, [0], LARGE))
    await asyncio.sleep(0.1)
    peer.take()
    peer.send(b"".join(v2.encode_read(1, 0) for _ in range(400)))
    await asyncio.sleep(0.1)
    assert peer.connection.waits_for_peer
    return peer.take


async def wait_for_login(server: Server, peer: Peer) -> Callable[[], object]:
    assert peer.connection.gate is not None
    return lambda: peer.send(v3.encode_auth(1, Believing.name, b""))


BEGINNINGS: list[Begin] = [begin_frame, leave_answers, wait_for_login]


@pytest.mark.parametrize("begin", BEGINNINGS)
def test_a_pause_cuts_nobody_who_kept_the_limit_and_whoever_did_not_is_cut(begin: Begin) -> None:
    async def main(*, is_kept: bool) -> bool:
        async with served(wants_login=begin is wait_for_login) as (server, peer):
            keep = await begin(server, peer)
            await asyncio.sleep(3)
            await virtual_loop().pause(PAUSE_S, keep if is_kept else lambda: None)
            await asyncio.sleep(5 if is_kept else 200)
            return peer.connection.is_open

    assert run_virtually(main(is_kept=True))
    assert not run_virtually(main(is_kept=False))


def test_an_add_that_waits_for_room_is_not_refused_for_a_pause_of_the_flush_as_well() -> None:
    async def main() -> None:
        async with served(wants_login=False) as (server, peer):
            storage, loop = server.storage, virtual_loop()
            storage.room = 0
            peer.send(v2_adds(1, [0]))
            await asyncio.sleep(0.1)
            assert server.operations.adds.delayed_count == 1
            # The flush goes on when the process does.
            end_flush = partial(loop.call_later, PAUSE_S + 1, storage.make_room, None)
            await loop.pause(PAUSE_S, end_flush)
            await asyncio.sleep(5)
            assert v2.ANSWER.unpack_from(peer.take())[2] == 0

    run_virtually(main())


def test_a_long_poll_hears_of_what_came_during_a_pause() -> None:
    async def main() -> None:
        async with served(wants_login=False) as (_, peer):
            peer.send(v3.encode_add(1, 7, 0, KEY, entry(7, 0)))
            poll = v3.encode_read(2, 7, previous_lac=-1, timeout_ms=5000, is_piggyback=True)
            await asyncio.sleep(0.1)
            peer.send(poll)
            await asyncio.sleep(0.1)
            peer.take()
            news = v3.encode_add(3, 7, 1, KEY, entry(7, 1, lac=0))
            await virtual_loop().pause(PAUSE_S, lambda: peer.send(news))
            await asyncio.sleep(5)
            found = {answer.txn_id: answer for answer in v3.ResponseDecoder().feed(peer.take())}
            assert found[2].body == entry(7, 0)

    run_virtually(main())
