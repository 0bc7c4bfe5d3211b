"""How many entries come and go a second: a ring of samples, taken while somebody looks.

Bookies count; every two seconds their ``/metrics`` are read and summed.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
import urllib.request
from collections import deque
from collections.abc import Awaitable, Callable

from quorumbook.admin.facts.bookies import BookieFacts
from quorumbook.env.tasks import cancel_and_wait

_EVERY_S = 2.0
_KEPT = 300
#: Nobody looked for so long: no more samples.
_IDLE_S = 60.0
_TIMEOUT_S = 2.0
_BYTES_MAX = 4 << 20
_COUNTERS = {
    "adds": re.compile(rb"^bookkeeper_server_ADD_ENTRY_count\{?[^}\n]*\}? ([0-9.e+]+)", re.M),
    "reads": re.compile(rb"^bookkeeper_server_READ_ENTRY_count\{?[^}\n]*\}? ([0-9.e+]+)", re.M),
}


class Samples:
    """The samples of one cluster.

    Args:
        bookies: Returns the bookies that there are.
    """

    def __init__(self, bookies: Callable[[], Awaitable[tuple[BookieFacts, ...]]]) -> None:
        self._bookies = bookies
        self._ring: deque[tuple[int, float, float]] = deque(maxlen=_KEPT)
        self._looked_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def recent(self) -> dict[str, list[float]]:
        """Return what there is, and see to it that more comes."""
        self._looked_at = time.monotonic()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        rows = list(self._ring)
        return {
            "at_s": [row[0] for row in rows],
            "adds_per_s": [row[1] for row in rows],
            "reads_per_s": [row[2] for row in rows],
        }

    async def _run(self) -> None:
        before: dict[str, dict[str, float]] = {}
        taken_at = 0.0
        while time.monotonic() - self._looked_at < _IDLE_S:
            with contextlib.suppress(Exception):
                urls = [each.http for each in await self._bookies() if each.http]
                found = dict(
                    zip(urls, await asyncio.gather(*(_counts(url) for url in urls)), strict=True)
                )
                now = time.monotonic()
                if before:
                    rates = [
                        # A bookie that was started again counts from zero.
                        sum(
                            max(0.0, counts[name] - before[url][name])
                            for url, counts in found.items()
                            if name in counts and name in before.get(url, {})
                        )
                        / (now - taken_at)
                        for name in _COUNTERS
                    ]
                    self._ring.append((int(time.time()), round(rates[0], 1), round(rates[1], 1)))
                before, taken_at = found, now
            await asyncio.sleep(_EVERY_S)

    async def close(self) -> None:
        """Take no more."""
        if self._task is not None:
            await cancel_and_wait([self._task])


async def _counts(url: str) -> dict[str, float]:
    try:
        text = await asyncio.to_thread(_metrics, url)
    except OSError:
        return {}
    return {
        name: sum(float(value) for value in pattern.findall(text))
        for name, pattern in _COUNTERS.items()
    }


def _metrics(url: str) -> bytes:
    with urllib.request.urlopen(f"{url}/metrics", timeout=_TIMEOUT_S) as answer:  # noqa: S310
        content: bytes = answer.read(_BYTES_MAX)
    return content
