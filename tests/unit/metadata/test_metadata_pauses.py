"""Processes that stand still, and what becomes of sessions: theirs and those of others."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from doubles.virtual_time import run_virtually, virtual_loop
from quorumbook.env import Env, RealClock
from quorumbook.errors import MetadataUnavailableError, SessionExpiredError
from quorumbook.metadata.etcd.client import EtcdClient
from quorumbook.metadata.uri import open_store
from quorumbook.metadata.zookeeper import jute
from quorumbook.metadata.zookeeper.connection import ZooKeeperConnection
from quorumbook.metadata.zookeeper.jute import Op

SILENCE_S = 4
PAUSE_S = 1000


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[tuple[ZooKeeperConnection, socket.socket]]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    with theirs:
        connection = ZooKeeperConnection(lambda _: None, SILENCE_S)
        await virtual_loop().connect_accepted_socket(lambda: connection, ours)
        connection.keep_alive(SILENCE_S)
        try:
            yield connection, theirs
        finally:
            connection.end("the test is over")
            await asyncio.sleep(0)


def _answer(xid: int) -> bytes:
    body = xid.to_bytes(4, "big", signed=True) + bytes(12)
    return len(body).to_bytes(4, "big") + body


def test_a_pause_does_not_count_as_silence_of_zookeeper() -> None:
    async def main() -> None:
        async with connected() as (connection, server):
            asked = connection.request(Op.SYNC, jute.string("/"))
            await asyncio.sleep(0.1)
            await virtual_loop().pause(PAUSE_S, lambda: server.send(_answer(1)))
            await asyncio.sleep(3)
            assert not connection.lost.done()
            assert asked.done()

    run_virtually(main())


@pytest.mark.parametrize("is_there", [True, False])
def test_a_server_that_was_asked_nothing_before_a_pause_is_asked_before_it_is_judged(
    is_there: bool,
) -> None:
    async def main() -> None:
        async with connected() as (connection, server):
            await virtual_loop().pause(PAUSE_S, lambda: None)
            await asyncio.sleep(2.5)
            assert not connection.lost.done()
            assert server.recv(100), "no ping"
            if is_there:
                server.send(_answer(jute.PING_XID))
            await asyncio.sleep(SILENCE_S * 0.9)
            assert connection.lost.done() is not is_there

    run_virtually(main())


class _Clock(RealClock):
    """The machine's clock, later by as much as all processes of it say they stood still."""

    def __init__(self) -> None:
        self.paused_ns = 0

    def now_ns(self) -> int:
        return super().now_ns() + self.paused_ns


async def test_a_pause_while_the_metadata_file_is_held_costs_nobody_else_a_lease(
    tmp_path: Any,
) -> None:
    clock = _Clock()
    env = Env(clock=clock)
    uri = f"sqlite:///{tmp_path}/metadata.db"
    paused = await open_store(uri, env, create=True, session_timeout_s=60)
    other = await open_store(uri, env, session_timeout_s=60)
    await other.create("/other", ephemeral=True)
    carry_out = paused._thread._carry_out  # type: ignore[attr-defined]

    def slowly(call: Any) -> None:
        carry_out(call)
        clock.paused_ns += PAUSE_S * 1_000_000_000

    paused._thread._carry_out = slowly  # type: ignore[attr-defined]
    await paused.create("/paused")
    paused._thread._carry_out = carry_out  # type: ignore[attr-defined]
    # The one that was paused has no right to more than its own lease.
    with pytest.raises(SessionExpiredError):
        await paused.create("/late", ephemeral=True)
    node = await other.get("/other")
    assert node.owner == other.session_id
    await other.create("/on")
    await paused.close()
    await other.close()


async def _is_answered_by_etcd(*, is_paused: bool) -> bool:
    """Tell whether a call goes on after an attempt that a pause of this process has cost."""
    client = EtcdClient(["nowhere:1"])
    attempts: list[float] = []

    async def attempt(method: object, request: object, timeout_s: float) -> object:
        attempts.append(timeout_s)
        virtual_loop().pass_time(timeout_s + (PAUSE_S if is_paused else 0))
        if len(attempts) == 1:
            raise grpc.RpcError
        return "an answer"

    client._attempt = attempt  # type: ignore[method-assign]
    client._judge = client._next = lambda error: ""  # type: ignore[method-assign,assignment]
    method: Any = None
    try:
        await client.call(method, None, timeout_s=1)
    except MetadataUnavailableError:
        return False
    return True


def test_an_attempt_at_etcd_that_a_pause_has_cost_is_not_the_last() -> None:
    assert run_virtually(_is_answered_by_etcd(is_paused=True))
    assert not run_virtually(_is_answered_by_etcd(is_paused=False))
