"""Limits on the time of others, judged only when what they sent in time has been read.

A process can stop running for any time: it is stopped by a signal, its machine is frozen, or its
loop is busy with something else.  Then every limit that ran out meanwhile is over at once, while
the bytes that would have kept it lie in the sockets, and asyncio may well run the timer before it
reads them.  So whoever waits for somebody else waits with what is here:

    the timer is late      it waits as long once more, up to ``_GRACE_S``: much may have to be read
    then, late or not      the loop turns ``_TURNS`` times: everything that can be read is read,
                           and those whom it concerns hear of it
    only then              the limit is judged

That is for judging others.  What this process may do itself never lasts longer by it: a session
or a lease of its own that ran out by the clock is lost, and its server says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

#: A timer later than this was not only waiting for its turn among others.
LATE_S = 0.05
_GRACE_S = 2.0
#: One turn reads; the others are for those who wait for one another.
_TURNS = 6


def _nothing() -> None:
    """Whom a cancelled timer calls."""


class Timer:
    """Calls back once, unless cancelled, when a time is over and everything waiting is read."""

    __slots__ = ("_callback", "_due", "_handle", "_loop", "_turns")

    def __init__(self, delay_s: float, callback: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._callback = callback
        self._turns = _TURNS
        self._due = self._loop.time() + max(delay_s, 0)
        self._handle: asyncio.Handle | None = self._loop.call_at(self._due, self._over)

    def cancel(self) -> None:
        """Never call back, and forget whom: who has the timer is mostly what it would call."""
        if self._handle is not None:
            self._handle.cancel()
        self._callback = _nothing

    def _over(self) -> None:
        late_s = self._loop.time() - self._due
        if late_s > LATE_S:
            self._handle = self._loop.call_later(min(late_s, _GRACE_S), self._turn)
        else:
            self._turn()

    def _turn(self) -> None:
        if self._turns:
            self._turns -= 1
            self._handle = self._loop.call_soon(self._turn)
        else:
            # It refers to this timer: a circle, which only the garbage collector would find.
            self._handle = None
            self._callback()


class _Timeout:
    """The time that what is inside may take; a class, as every operation has one."""

    __slots__ = ("_scope", "_seconds", "_timer")

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._scope = asyncio.timeout(None)
        self._timer: Timer | None = None

    async def __aenter__(self) -> None:
        await self._scope.__aenter__()
        if self._seconds is not None:
            self._timer = Timer(self._seconds, self._over)

    async def __aexit__(self, *raised: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._scope.__aexit__(*raised)

    def _over(self) -> None:
        self._scope.reschedule(0)


def timeout(seconds: float | None) -> contextlib.AbstractAsyncContextManager[None]:
    """Give what is inside so much time, like ``asyncio.timeout``; None is no limit.

    Raises:
        TimeoutError: it took longer.
    """
    return _Timeout(seconds)


def wait(event_wait: Callable[[float | None], bool], seconds: float | None) -> bool:
    """Wait for an event of another thread, and once more if this one was not running meanwhile."""
    if seconds is None:
        return event_wait(None)
    due = time.monotonic() + seconds
    if event_wait(seconds):
        return True
    late_s = time.monotonic() - due
    return late_s > LATE_S and event_wait(min(late_s, _GRACE_S))


def timeout_at(deadline: float) -> contextlib.AbstractAsyncContextManager[None]:
    """Give what is inside until a moment of the loop's clock, like ``asyncio.timeout_at``.

    Raises:
        TimeoutError: it took longer.
    """
    return timeout(deadline - asyncio.get_running_loop().time())
