"""A client that stands still for longer than its time-outs, on virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from doubles.virtual_time import run_virtually, virtual_clock, virtual_loop
from quorumbook.client.options import ClientOptions
from quorumbook.client.transport.channels import ControlChannel, FastChannel
from quorumbook.client.transport.ticker import Ticker
from quorumbook.client.waiting.outcomes import limit
from quorumbook.env import Env
from quorumbook.env.machine import RealNetwork
from quorumbook.errors import ConnectionLostError, RequestTimeoutError
from quorumbook.protocol import answers
from quorumbook.protocol.request_decoder import RequestDecoder
from quorumbook.protocol.requests import ForceLedger
from quorumbook.protocol.status import Status
from quorumbook.protocol.v2 import packets as v2
from quorumbook.protocol.v3 import client as v3

PAUSE_S = 1000


class _Network(RealNetwork):
    """Whoever connects gets one end of a pair of sockets."""

    def __init__(self, ours: socket.socket) -> None:
        self._ours = ours

    async def connect(self, host: str, port: int, factory: Callable[[], asyncio.Protocol]) -> Any:
        return await virtual_loop().connect_accepted_socket(factory, self._ours)


@contextlib.asynccontextmanager
async def channels(kind: type[Any]) -> AsyncIterator[tuple[Any, socket.socket]]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    env = Env(clock=virtual_clock(), network=_Network(ours))

    async def resolve(bookie_id: str) -> tuple[str, int]:
        return "nowhere", 1

    ticker = Ticker(env, 0.1)
    options = ClientOptions(read_timeout_s=5, request_timeout_s=5)
    with theirs:
        channel = kind(env, "one:1", resolve, options, ticker, lambda *_: None)
        await channel.connected()
        try:
            yield channel, theirs
        finally:
            await channel.close()
            ticker.close()


async def _batch_read(*, is_answered: bool) -> object:
    async with channels(FastChannel) as (channel, bookie):
        asked = channel.batch_read(7, 0, 1, 0)
        await asyncio.sleep(0.1)
        answer = b"".join(v2.encode_batch_read_answer(7, 0, 1, 0, b""))
        await virtual_loop().pause(PAUSE_S, lambda: is_answered and bookie.send(answer))
        return await asked


async def _request(*, is_answered: bool) -> object:
    async with channels(ControlChannel) as (channel, bookie):
        asked = channel.request("a force", lambda txn_id: v3.encode_force(txn_id, 7))
        await asyncio.sleep(0.1)
        (request,) = RequestDecoder(1 << 20).feed(bookie.recv(100))
        assert isinstance(request, ForceLedger)
        answer = answers.force_answer(request, Status.OK)
        await virtual_loop().pause(PAUSE_S, lambda: is_answered and bookie.send(answer))
        return await asked


@pytest.mark.parametrize("ask", [_batch_read, _request])
def test_an_answer_that_came_during_a_pause_is_an_answer_and_silence_is_a_time_out(
    ask: Callable[..., Any],
) -> None:
    assert run_virtually(ask(is_answered=True)) is not None
    with pytest.raises((RequestTimeoutError, ConnectionLostError)):
        run_virtually(ask(is_answered=False))


def test_an_operation_that_goes_on_after_a_pause_is_not_over_by_it() -> None:
    async def main(seconds: float) -> None:
        async with limit(5, "it"):
            await virtual_loop().pause(PAUSE_S, lambda: None)
            await asyncio.sleep(seconds)

    run_virtually(main(1))
    with pytest.raises(RequestTimeoutError):
        run_virtually(main(3))
