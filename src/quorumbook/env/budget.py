"""The one budget of a process for its background I/O, in bytes a second.

Compaction, scrubbing and the copying of replicas share ``Env.background``, so that together they
leave the disks to those who wait for an answer.  Whoever works in the background calls, for each
piece of at most about 1 MB that it reads or writes,

    await env.background.take(size_bytes, "replication")         on the event loop
    env.background.take_in_job(size_bytes, "scrub", is_over)     in a job of a worker

before the piece, or behind it where its size is known only then.  Counted are the bytes of
entries, once where they are read and once where they are written, whichever disk or connection
they go through; the word says for whom, which is what metrics show.

Whoever comes first is served first.  What is not taken is lost, but for a tenth of a second: so
timers that wake late, and work that was held up by the disk itself, still reach the rate.  The
rate may change at any time, for those who wait as well.  The program that makes the ``Env`` sets
it from ``background.io_rate_bytes``; without that there is no limit.  Who finds that the disks
have more to spare lends it (``spare_bytes``), and takes it back.

``TokenBucket`` is pure: time goes in, the time to wait comes out.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable

from quorumbook.env.interfaces import Clock, Threads

_SECOND = 1_000_000_000
#: For so long nothing that was not used is lost.
_CREDIT_S = 0.1
#: Who waits looks so often whether the rate has changed.
_LOOK_S = 0.25


class TokenBucket:
    """Bytes that may flow at a rate, granted in the order in which they were asked for.

    Args:
        rate_bytes: A second; 0 grants everything.
        now_ns: Monotonic.
    """

    def __init__(self, rate_bytes: int, now_ns: int) -> None:
        self.rate_bytes = rate_bytes
        self._now_ns = now_ns
        self._asked = 0
        self._granted = 0.0

    def ask(self, size_bytes: int, now_ns: int) -> int:
        """Stand at the end of the queue; return the ticket for ``wait_s``."""
        self._advance(now_ns)
        self._asked += size_bytes
        return self._asked

    def give_back(self, size_bytes: int) -> None:
        """Let those behind a ticket that was given up have what it asked for."""
        self._granted += size_bytes

    def wait_s(self, ticket: int, now_ns: int) -> float:
        """Return how long a ticket has to wait if the rate stays; 0 if it is granted."""
        self._advance(now_ns)
        missing = ticket - self._granted
        # Less than a byte is what rounding left: to wait for it would be to wait for nothing.
        return missing / self.rate_bytes if missing >= 1 and self.rate_bytes else 0.0

    def set_rate(self, rate_bytes: int, now_ns: int) -> None:
        """Go on at another rate, for those who wait as well."""
        self._advance(now_ns)
        self.rate_bytes = rate_bytes

    def waiting_bytes(self, now_ns: int) -> int:
        """Return what was asked for and is not granted yet."""
        self._advance(now_ns)
        return max(round(self._asked - self._granted), 0)

    def _advance(self, now_ns: int) -> None:
        passed_s = max(now_ns - self._now_ns, 0) / _SECOND
        self._now_ns = max(now_ns, self._now_ns)
        if self.rate_bytes:
            most = self._asked + self.rate_bytes * _CREDIT_S
            self._granted = min(self._granted + passed_s * self.rate_bytes, most)
        else:
            self._granted = float(self._asked)


class Budget:
    """What all background work of a process has to wait for; from the loop and from any thread.

    Args:
        clock: Its time.
        threads: Rests in jobs.
        rate_bytes: Bytes a second, read and written together; 0 sets no limit.
    """

    def __init__(self, clock: Clock, threads: Threads, rate_bytes: int = 0) -> None:
        self._clock = clock
        self._threads = threads
        self._guard = threading.Lock()
        self._bucket = TokenBucket(rate_bytes, clock.now_ns())
        self._rate_bytes, self._spare_bytes = rate_bytes, 0
        self._taken: Counter[str] = Counter()

    @property
    def rate_bytes(self) -> int:
        """Bytes a second; 0 sets no limit.  Who waits notices a change soon."""
        return self._rate_bytes

    @rate_bytes.setter
    def rate_bytes(self, rate_bytes: int) -> None:
        self._rate_bytes = rate_bytes
        self._set_rate()

    @property
    def spare_bytes(self) -> int:
        """Bytes a second that may be taken for the time being where there is a limit, beyond it."""
        return self._spare_bytes

    @spare_bytes.setter
    def spare_bytes(self, spare_bytes: int) -> None:
        self._spare_bytes = spare_bytes
        self._set_rate()

    @property
    def taken_bytes(self) -> dict[str, int]:
        """What was taken since the start, by whom."""
        with self._guard:
            return dict(self._taken)

    @property
    def waiting_bytes(self) -> int:
        """What is asked for and has to wait."""
        with self._guard:
            return self._bucket.waiting_bytes(self._clock.now_ns())

    async def take(self, size_bytes: int, whom: str = "replication") -> None:
        """Return when so many bytes may be read or written in the background."""
        ticket = self._ask(size_bytes)
        is_due = False
        try:
            while pause_s := self._pause_s(ticket):  # noqa: ASYNC110 - time has no bell
                await asyncio.sleep(pause_s)
            is_due = True
        finally:
            self._settle(size_bytes, whom, is_due=is_due)

    def take_in_job(
        self, size_bytes: int, whom: str, is_over: Callable[[], bool] = lambda: False
    ) -> None:
        """The same in a job of a worker; when ``is_over`` says so it returns and took nothing."""
        ticket = self._ask(size_bytes)
        while (pause_s := self._pause_s(ticket)) and not is_over():
            self._threads.sleep(pause_s)
        self._settle(size_bytes, whom, is_due=not pause_s)

    def _set_rate(self) -> None:
        rate_bytes = self._rate_bytes and self._rate_bytes + self._spare_bytes
        with self._guard:
            self._bucket.set_rate(rate_bytes, self._clock.now_ns())

    def _ask(self, size_bytes: int) -> int:
        with self._guard:
            return self._bucket.ask(size_bytes, self._clock.now_ns())

    def _pause_s(self, ticket: int) -> float:
        with self._guard:
            return min(self._bucket.wait_s(ticket, self._clock.now_ns()), _LOOK_S)

    def _settle(self, size_bytes: int, whom: str, *, is_due: bool) -> None:
        with self._guard:
            if is_due:
                self._taken[whom] += size_bytes
            else:
                self._bucket.give_back(size_bytes)
