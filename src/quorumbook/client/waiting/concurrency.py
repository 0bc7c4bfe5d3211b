"""Lets a few do something at a time, and the others in turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol


class Waiter(Protocol):
    """Who waits for its turn."""

    def begin(self) -> bool:
        """Begin, or return False if there is nothing to do any more; ``leave`` ends it."""
        ...


class ConcurrencyLimit:
    """A queue in front of a few places."""

    def __init__(self, at_a_time: int) -> None:
        self._free = at_a_time
        self._waiting: deque[Waiter] = deque()

    def enter(self, waiter: Waiter) -> None:
        """Have somebody begin, now or when it is its turn."""
        self._waiting.append(waiter)
        self._go_on()

    def leave(self) -> None:
        """One that began has ended."""
        self._free += 1
        self._go_on()

    def _go_on(self) -> None:
        while self._free and self._waiting:
            if self._waiting.popleft().begin():
                self._free -= 1


class LoopTurns:
    """Calls at the end of a loop turn, some for each turn.

    What a thousand writers have to send leaves piece by piece, so that the bookies work on the
    first entries while the last ones are being packed.
    """

    def __init__(self, at_a_time: int) -> None:
        self._at_a_time = at_a_time
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    def call(self, callback: Callable[[], None]) -> None:
        """Call when the present turn is over, or a few turns later if many wait."""
        self._waiting.append(callback)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        waiting = self._waiting
        try:
            for _ in range(min(len(waiting), self._at_a_time)):
                waiting.popleft()()
        finally:
            # One that raised does not cost the others their turn.
            if waiting:
                asyncio.get_running_loop().call_soon(self._run)
            else:
                self._is_scheduled = False
