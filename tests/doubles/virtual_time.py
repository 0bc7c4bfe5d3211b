"""An event loop whose time passes only when everybody waits: minutes cost nothing.

For code that touches no thread, and no socket but a pair that the test fills itself: nothing else
but timers can wake it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualClock:
    """The clock of a ``VirtualLoop``, as an ``Env`` has it."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.boot = "a boot"

    def now_ns(self) -> int:
        return round(self._loop.time() * 1e9)

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + round(self._loop.time() * 1e3)

    def boot_id(self) -> str:
        return self.boot


class _Jumping(selectors.DefaultSelector):
    """Waits for nothing, and says how long it would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_s = 0.0
        self.pause: tuple[float, Callable[[], object]] | None = None

    def select(self, timeout: float | None = None) -> list[Any]:
        if self.pause is not None:
            # As the system's own does that was stopped beyond its time: it tells of nothing.
            (paused_s, meanwhile), self.pause = self.pause, None
            meanwhile()
            self.waited_s += paused_s
            return []
        if timeout is None:
            raise RuntimeError("everybody waits, and no timer is set")
        self.waited_s += max(timeout, 0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.waited_s

    async def pause(self, seconds: float, meanwhile: Callable[[], object]) -> None:
        """Stand still for so long, as a process that is stopped, while others do something."""
        self._jumping.pause = (seconds, meanwhile)
        await asyncio.sleep(0)

    def pass_time(self, seconds: float) -> None:
        """Let time pass while a job rests."""
        self._jumping.waited_s += seconds


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def virtual_loop() -> VirtualLoop:
    """Return the running virtual loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


def virtual_clock() -> VirtualClock:
    """Return the clock of the running virtual loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return VirtualClock(loop)
