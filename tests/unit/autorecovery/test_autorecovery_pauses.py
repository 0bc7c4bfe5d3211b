"""An auto-recovery process that stands still while it waits for a ledger's writer."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

from doubles.virtual_time import run_virtually, virtual_loop
from quorumbook.autorecovery.copying.worker import ReplicationWorker


def test_a_writer_that_replaced_its_bookie_during_a_pause_had_its_time() -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        rings: list[Any] = []
        ensembles = [("lost", "a"), ("new", "a")]
        read: list[tuple[str, str]] = []

        async def look(_ledger_id: int, ring: Any) -> tuple[Any, int]:
            rings[:] = [ring]
            read.append(ensembles[min(len(read), 1)])
            return SimpleNamespace(is_closed=False, ensemble=read[-1]), 0

        worker: Any = SimpleNamespace(
            _options=SimpleNamespace(open_ledger_grace_s=30.0),
            queue=SimpleNamespace(is_held=lambda _work: True),
            _context=SimpleNamespace(
                ledgers=SimpleNamespace(read=look), unwatch=lambda _ring: None
            ),
        )
        loop = virtual_loop()
        with ours, theirs:
            ours.setblocking(False)
            loop.add_reader(ours, lambda: (ours.recv(1), rings[0]()))
            work: Any = SimpleNamespace(ledger_id=7)
            waiting = asyncio.ensure_future(
                # One wait, without a worker around it.
                ReplicationWorker._wait_for_writer(worker, work, ["lost"])
            )
            await asyncio.sleep(1)
            # The news lie in the socket when the process goes on, and the grace is over.
            await loop.pause(1000, lambda: theirs.send(b"!"))
            await waiting
            loop.remove_reader(ours)
        assert read == ensembles

    run_virtually(main())
