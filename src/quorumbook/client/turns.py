"""Lets a few do something at a time, and the others in turn."""

from __future__ import annotations

from collections import deque
from typing import Protocol


class Beginner(Protocol):
    """Who waits for its turn."""

    def begin(self) -> bool:
        """Begin, or return False if there is nothing to do any more; ``leave`` ends it."""
        ...


class Turns:
    """A queue in front of a few places."""

    def __init__(self, at_a_time: int) -> None:
        self._free = at_a_time
        self._waiting: deque[Beginner] = deque()

    def enter(self, beginner: Beginner) -> None:
        """Have somebody begin, now or when it is its turn."""
        self._waiting.append(beginner)
        self._go_on()

    def leave(self) -> None:
        """One that began has ended."""
        self._free += 1
        self._go_on()

    def _go_on(self) -> None:
        while self._free and self._waiting:
            if self._waiting.popleft().begin():
                self._free -= 1
