"""How a command that runs for long is told to stop."""

from __future__ import annotations

import asyncio
import signal
import sys


async def stop_wanted(*, with_parent: bool = False) -> asyncio.Event:
    """Return an event that Ctrl-C and SIGTERM set.

    Args:
        with_parent: Also the end of standard input: the process at its other end is gone, however
            it went.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)

    class Pipe(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            stop.set()

    if with_parent:
        await loop.connect_read_pipe(Pipe, sys.stdin)
    return stop
