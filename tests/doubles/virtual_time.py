"""An event loop whose time passes only when everybody waits: minutes cost nothing.

For code that touches no socket and no thread: nothing but timers can wake it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
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


class _Jumping(selectors.SelectSelector):
    """Waits for nothing, and says how long it would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
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

    def pass_time(self, seconds: float) -> None:
        """Let time pass while a job rests."""
        self._jumping.waited_s += seconds


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def virtual_clock() -> VirtualClock:
    """Return the clock of the running virtual loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return VirtualClock(loop)
