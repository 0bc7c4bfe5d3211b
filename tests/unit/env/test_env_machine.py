"""What this machine gives the process: connections that notice a peer's end, open files."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import select
import socket
import subprocess
import sys
from typing import Any

from quorumbook.env.machine import RealNetwork, RealThreads

#: After a minute of silence the system asks four times, so two minutes in all.
KEPT_ALIVE = {
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): 60,
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): 15,
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): 4,
}


async def test_a_peer_that_went_without_a_word_is_noticed_on_both_sides() -> None:
    made: asyncio.Queue[Any] = asyncio.Queue()

    class Accepted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.put_nowait(transport)

    network = RealNetwork()
    server = await network.listen("127.0.0.1", 0, Accepted)
    ours, _ = await network.connect(*server.sockets[0].getsockname(), asyncio.Protocol)
    theirs = await made.get()
    for end in (ours, theirs):
        of_system = end.get_extra_info("socket")
        assert {each: of_system.getsockopt(*each) for each in KEPT_ALIVE} == KEPT_ALIVE
        end.abort()
    server.close()
    await server.wait_closed()


def test_while_one_of_several_loops_is_busy_threads_wait_less_for_the_interpreter() -> None:
    usual = sys.getswitchinterval()
    one, other = RealThreads(), RealThreads()
    one.loop_is_busy(is_busy=True)
    busy = sys.getswitchinterval()
    assert busy < usual
    other.loop_is_busy(is_busy=True)
    one.loop_is_busy(is_busy=False)
    assert sys.getswitchinterval() == busy, "the other one is busy still"
    other.loop_is_busy(is_busy=False)
    assert sys.getswitchinterval() == usual


def test_the_soft_limit_of_open_files_becomes_the_hard_one() -> None:
    code = (
        "import resource as r; from quorumbook.env.machine import raise_descriptor_limit as f\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (128, 500)); print(f(), *r.getrlimit(r.RLIMIT_NOFILE))"
    )
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[1] >= 500
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["500"] * 3


async def test_a_burst_waits_at_the_kernel_and_is_accepted_a_few_at_a_time() -> None:
    made: list[int] = []

    class Kept(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.append(transport.get_extra_info("socket").fileno())

    server = await RealNetwork().listen("127.0.0.1", 0, Kept)
    address = server.sockets[0].getsockname()
    with contextlib.ExitStack() as stack:
        burst = [stack.enter_context(socket.socket()) for _ in range(120)]
        for each in burst:
            each.setblocking(False)
            each.connect_ex(address)
        # The loop has not turned since; whoever had no place in the queue would try again later.
        looking = select.poll()
        for each in burst:
            looking.register(each, select.POLLOUT)
        assert [event for _, event in looking.poll(0)] == [select.POLLOUT] * len(burst)
        before = 0
        while len(made) < len(burst):
            await asyncio.sleep(0)
            assert len(made) - before <= 5
            before = len(made)
    server.close()
    await server.wait_closed()
