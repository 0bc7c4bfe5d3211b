"""How many entries come and go a second: a ring of samples, taken while somebody looks.

Bookies count; every two seconds their ``/metrics`` are read and summed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable

from quorumbook.admin.activity.counts import BookieCounts, rate, read_counts
from quorumbook.admin.facts.bookies import DOWN, BookieFacts
from quorumbook.env.tasks import cancel_and_wait

_EVERY_S = 2.0
_KEPT = 300
#: Nobody looked for so long: no more samples.
_IDLE_S = 60.0
_RATED = ("adds", "reads")


class Samples:
    """The samples of one cluster.

    Args:
        bookies: Returns the bookies that there are.
    """

    def __init__(self, bookies: Callable[[], Awaitable[tuple[BookieFacts, ...]]]) -> None:
        self._bookies = bookies
        #: How many bookies are up, and how many of them told their counts.
        self._up = self._told = 0
        self._ring: deque[tuple[int, float, float]] = deque(maxlen=_KEPT)
        self._looked_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def recent(self) -> dict[str, object]:
        """Return what there is, of how many of the bookies, and see to it that more comes."""
        self._looked_at = time.monotonic()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        rows = list(self._ring)
        return {
            "at_s": [row[0] for row in rows],
            "adds_per_s": [row[1] for row in rows],
            "reads_per_s": [row[2] for row in rows],
            "bookies_up": self._up,
            "bookies_read": self._told,
        }

    async def _run(self) -> None:
        before: dict[str, BookieCounts] = {}
        taken_at = 0.0
        while time.monotonic() - self._looked_at < _IDLE_S:
            with contextlib.suppress(Exception):
                up = [each for each in await self._bookies() if each.state != DOWN]
                urls = [each.http for each in up if each.http]
                counted = await asyncio.gather(*map(_counts, urls))
                pairs = zip(urls, counted, strict=True)
                found = {url: counts for url, counts in pairs if counts is not None}
                self._up, self._told = len(up), len(found)
                now = time.monotonic()
                if before:
                    rates = [
                        sum(
                            rate(getattr(before[url], name), getattr(counts, name), now - taken_at)
                            for url, counts in found.items()
                            if url in before
                        )
                        for name in _RATED
                    ]
                    self._ring.append((int(time.time()), round(rates[0], 1), round(rates[1], 1)))
                before, taken_at = found, now
            await asyncio.sleep(_EVERY_S)

    async def close(self) -> None:
        """Take no more."""
        if self._task is not None:
            await cancel_and_wait([self._task])


async def _counts(url: str) -> BookieCounts | None:
    try:
        return await asyncio.to_thread(read_counts, url)
    except OSError:
        return None
