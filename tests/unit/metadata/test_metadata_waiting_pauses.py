"""A process that stands still while it waits for somebody else's ephemeral node to go."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

from doubles.virtual_time import run_virtually, virtual_loop
from quorumbook.errors import NodeExistsError
from quorumbook.metadata.bookies.registration import BookieRegistration
from quorumbook.streams.metadata.lock import StreamLock


async def through_a_pause(waiting: Coroutine[Any, Any, Any], hear: Any) -> Any:
    """Have the news of the node come during a pause that is longer than the wait."""
    ours, theirs = socket.socketpair()
    loop = virtual_loop()
    with ours, theirs:
        ours.setblocking(False)
        loop.add_reader(ours, lambda: (ours.recv(1), hear()))
        task = asyncio.ensure_future(waiting)
        await asyncio.sleep(1)
        await loop.pause(1000, lambda: theirs.send(b"!"))
        try:
            return await task
        finally:
            loop.remove_reader(ours)


def test_a_bookie_registers_whose_old_session_ended_during_its_pause() -> None:
    async def main() -> None:
        watches: list[Any] = []
        made: list[str] = []

        async def create(path: str, _data: bytes, **_: Any) -> str:
            if not watches:
                raise NodeExistsError(path)
            made.append(path)
            return path

        async def exists(_path: str, watch: Any) -> Any:
            watches.append(watch)
            return SimpleNamespace(owner=1)

        store = SimpleNamespace(
            session_timeout_s=10.0, session_id=2, create=create, exists=exists,
            unwatch=lambda _watch: None,
        )  # fmt: skip
        bookie: Any = SimpleNamespace(_store=store)
        # One wait, and what it leaves.
        waiting = BookieRegistration._create(bookie, "/available/b1", b"", take_over=False)
        await through_a_pause(waiting, lambda: [watch() for watch in watches])
        assert made == ["/available/b1"]

    run_virtually(main())


def test_a_writer_gets_a_lock_that_was_given_back_during_its_pause() -> None:
    async def main() -> None:
        given_back = asyncio.Event()

        async def join() -> tuple[str, int, int]:
            return "/lock/mine", 2, 0

        async def wait_for_turn(_member: str, *, may_wait: bool) -> bool:
            assert may_wait
            await given_back.wait()
            return True

        lock: Any = SimpleNamespace(
            _sessions_ended=0, _join=join, _wait_for_turn=wait_for_turn, _member=None
        )
        # One wait, and what it leaves.
        waiting = StreamLock._try(lock, 30.0, may_wait=True, by_force=False)
        assert await through_a_pause(waiting, given_back.set)
        assert lock._member == "/lock/mine"  # one wait, and what it leaves

    run_virtually(main())
