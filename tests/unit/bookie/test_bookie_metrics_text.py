"""``/metrics`` is rendered once for all who have asked, and leaves others the loop."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

from bookie_harness import ask_http, cluster, real_bookie

from doubles.virtual_time import VirtualClock, VirtualLoop
from quorumbook.bookie.http.metrics_text import MetricsText
from quorumbook.bookie.options import HttpOptions

TOOK_NS = 3_000_000


class _Clock(VirtualClock):
    worked_ns = 0

    def now_ns(self) -> int:
        return super().now_ns() + self.worked_ns


def test_who_asks_soon_after_another_shares_the_next_rendering() -> None:
    loop = VirtualLoop()
    clock = _Clock(loop)
    renderings = 0

    def render() -> bytes:
        nonlocal renderings
        renderings += 1
        clock.worked_ns += TOOK_NS
        if renderings == 2:
            raise RuntimeError("a number is no number")
        return b"%d" % renderings

    told: list[tuple[int, bytes | None]] = []

    async def ask() -> None:
        text = MetricsText(clock, render)
        text.ask(lambda one: told.append((0, one)))
        assert told == [(0, b"1")]
        for turn in (1, 2):
            for each in range(1000):
                text.ask(partial(lambda who, one: told.append((who, one)), each))
            assert len(told) == 1 + (turn - 1) * 1000
            await asyncio.sleep(TOOK_NS / 1e9 * 8)
            assert len(told) == 1 + (turn - 1) * 1000
            await asyncio.sleep(TOOK_NS / 1e9 * 1.5)
            assert len(told) == 1 + turn * 1000
        # One who leaves while it waits is not told, and nothing is rendered for nobody.
        text.ask(lambda one: told.append((0, one)))
        text.forget()
        await asyncio.sleep(1)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(ask())
    assert renderings == 3
    assert {one for _, one in told[1:1001]} == {None}
    assert {one for _, one in told[1001:]} == {b"3"}


async def test_many_scrapers_at_once_are_all_answered(tmp_path: Path) -> None:
    async with cluster() as store, real_bookie(tmp_path, store, http=HttpOptions()) as bookie:
        assert bookie.http_port is not None
        request = "GET /metrics HTTP/1.1\r\n\r\n"
        answers = await asyncio.gather(*[ask_http(bookie.http_port, request) for _ in range(20)])
        assert {status for status, _ in answers} == {200}
        assert all("bookie_SERVER_STATUS 1.0" in text for _, text in answers)
