"""The text of ``/metrics``, rendered once for all who have asked by then.

To render it takes milliseconds of the bookie's loop, and anybody may ask.  So it rests for nine
times as long as it took, whoever asks: more than a tenth of the loop nobody has of it, and what
one is told was rendered after one asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from quorumbook.env import Clock, logger

_log = logger("bookie.http")
_RESTS = 9


class MetricsText:
    """Used on the event loop.

    Args:
        clock: Says how long a rendering took.
        render: Makes the text.
    """

    def __init__(self, clock: Clock, render: Callable[[], bytes]) -> None:
        self._clock = clock
        self._render = render
        self._waiting: list[Callable[[bytes | None], None]] = []
        self._rests_until_ns = 0

    def ask(self, tell: Callable[[bytes | None], None]) -> None:
        """Have somebody told the text, or None if it could not be rendered."""
        self._waiting.append(tell)
        if len(self._waiting) > 1:
            return
        rest_ns = self._rests_until_ns - self._clock.now_ns()
        if rest_ns > 0:
            asyncio.get_running_loop().call_later(rest_ns / 1e9, self._tell)
        else:
            self._tell()

    def forget(self) -> None:
        """Tell nobody who waits now."""
        self._waiting.clear()

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        began_ns = self._clock.now_ns()
        text: bytes | None = None
        try:
            text = self._render()
        except Exception:
            _log.exception("/metrics failed")
        ended_ns = self._clock.now_ns()
        self._rests_until_ns = ended_ns + _RESTS * (ended_ns - began_ns)
        for tell in waiting:
            tell(text)
