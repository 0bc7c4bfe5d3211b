"""Limits on others on virtual time, with pauses: what is read before they are judged."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from doubles.virtual_time import run_virtually, virtual_loop
from quorumbook.env import patience


class Heard(asyncio.Protocol):
    def __init__(self) -> None:
        self.event = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.event.set()


@contextlib.asynccontextmanager
async def pair() -> AsyncIterator[tuple[asyncio.Event, Callable[[], int]]]:
    """Yield what is set when a byte is read, and what sends one."""
    ours, theirs = socket.socketpair()
    with theirs:
        transport, heard = await virtual_loop().connect_accepted_socket(Heard, ours)
        try:
            yield heard.event, lambda: theirs.send(b"x")
        finally:
            transport.abort()
            await asyncio.sleep(0)


async def _in_time(limit: Callable[[float], Any], pause_s: float) -> bool:
    """Wait ten seconds for what comes while this process stands still."""
    async with pair() as (event, send):

        async def paused() -> None:
            await virtual_loop().pause(pause_s, send)

        task = asyncio.create_task(paused())
        try:
            async with limit(10):
                await event.wait()
        except TimeoutError:
            return False
        finally:
            await task
        return True


@pytest.mark.parametrize("pause_s", [9.999, 10, 10.01, 12, 100_000])
def test_what_came_while_the_process_stood_still_is_read_before_it_is_judged(
    pause_s: float,
) -> None:
    assert run_virtually(_in_time(patience.timeout, pause_s))
    # What comes with asyncio does not do that.
    assert pause_s < 10 or not run_virtually(_in_time(asyncio.timeout, pause_s))


def test_a_limit_ends_to_the_moment_while_nobody_stands_still() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with patience.timeout(10):
                await asyncio.sleep(60)
        assert 10 <= virtual_loop().time() < 10.01

    run_virtually(main())


def test_after_a_pause_there_is_time_to_read_much_and_no_end_of_patience() -> None:
    async def main(answers_after_s: float) -> None:
        loop = virtual_loop()
        begin = asyncio.Event()

        async def paused() -> None:
            await loop.pause(100, lambda: loop.call_later(100 + answers_after_s, begin.set))

        task = asyncio.create_task(paused())
        async with patience.timeout(10):
            await begin.wait()
        await task

    run_virtually(main(1.5))
    with pytest.raises(TimeoutError):
        run_virtually(main(2.5))


def test_a_timer_that_is_cancelled_at_any_step_never_calls() -> None:
    async def main() -> None:
        called: list[int] = []
        for turns in range(12):
            timer = patience.Timer(1, lambda: called.append(1))
            await virtual_loop().pause(5, lambda: None)
            for _ in range(turns):
                await asyncio.sleep(0)
            if not called:
                timer.cancel()
            await asyncio.sleep(10)
            assert not called

    run_virtually(main())


def test_no_limit_is_none() -> None:
    async def main() -> None:
        async with patience.timeout(None):
            await asyncio.sleep(1e6)

    run_virtually(main())


class _Event:
    """An event that is set while the thread that waits for it stands still."""

    def __init__(self, pause_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self._pause_s = pause_s
        self._is_set = False
        monkeypatch.setattr("quorumbook.env.patience.time.monotonic", lambda: self.now_s)

    def wait(self, seconds: float | None) -> bool:
        assert seconds is not None
        found, self._is_set = self._is_set, True
        self.now_s += 0 if found else seconds + self._pause_s
        return found


def test_a_thread_that_stood_still_looks_again_before_it_gives_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    event: Any = _Event(100, monkeypatch)
    assert patience.wait(event.wait, 1)
    event = _Event(0, monkeypatch)
    assert not patience.wait(event.wait, 1)


async def test_a_timer_that_is_over_is_gone_without_the_garbage_collector() -> None:
    over = asyncio.Event()

    class Called:
        def __call__(self) -> None:
            over.set()

    called = Called()
    kept = weakref.ref(called)
    timers = [patience.Timer(0, called)]
    del called
    gc.disable()
    try:
        await over.wait()
        await asyncio.sleep(0)
        timers[0].cancel()  # too late, and no error
        timers.clear()
        assert kept() is None
    finally:
        gc.enable()


async def test_a_cancelled_timer_lets_go_of_whom_it_would_have_called() -> None:
    """Whoever has the timer is mostly whom it calls: a circle that no count of references ends."""

    class Owner:
        def __init__(self) -> None:
            self.timer = patience.Timer(3600, self.too_late)

        def too_late(self) -> None:
            pass

    gc.disable()
    try:
        owner = Owner()
        owner.timer.cancel()
        alive = weakref.ref(owner)
        del owner
        assert alive() is None
    finally:
        gc.enable()
