"""What reads a bookie's whole index over HTTP: one at a time, and no longer than somebody waits."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from bookie_harness import ask_http, cluster, real_bookie

from doubles.waiting import until
from quorumbook.bookie.options import HttpOptions
from quorumbook.bookie.server import Bookie
from quorumbook.storage.index.reader import IndexReader

LOGS = "GET /api/v1/bookie/gc_logs HTTP/1.1\r\n\r\n"
PLAN = "GET /api/v1/bookie/gc_plan HTTP/1.1\r\n\r\n"


class _Index:
    """Stands for an index of very many entry logs; each page of it waits for the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pages: int) -> None:
        self._pages = pages
        self._may_go_on = threading.Semaphore(0)
        self.begun = 0
        monkeypatch.setattr(IndexReader, "live_bytes", self._live_bytes)

    def _live_bytes(self, behind: int = -1, logs_max: int = -1) -> dict[int, tuple[int, int, int]]:
        self.begun += 1
        self._may_go_on.acquire()
        return {behind + 1: (1, 1, 1)} if behind + 1 < self._pages else {}

    def go_on(self, pages: int) -> None:
        self._may_go_on.release(pages)


def _port(bookie: Bookie) -> int:
    assert bookie.http_port is not None
    return bookie.http_port


@pytest.mark.parametrize("request_", [LOGS, PLAN])
async def test_the_index_is_read_for_one_at_a_time_and_no_further_when_that_one_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_: str
) -> None:
    async with cluster() as store, real_bookie(tmp_path, store, http=HttpOptions()) as bookie:
        port = _port(bookie)
        assert bookie.collector is not None
        index = _Index(monkeypatch, 100)
        try:
            _, first = await asyncio.open_connection("127.0.0.1", port)
            first.write(request_.encode())
            await until(lambda: index.begun == 1)
            for other in (LOGS, PLAN):
                status, text = await ask_http(port, other)
                assert (status, "somebody else" in text) == (503, True)
            index.go_on(1)
            await until(lambda: index.begun == 2)
            first.transport.abort()
            # The page that is read now is still under way.
            status, _ = await ask_http(port, request_)
            assert (status, index.begun) == (503, 2)
            index.go_on(1)
            looked_at = bookie.collector
            await until(lambda: not looked_at.is_looked_at)
            assert index.begun == 2
            index.go_on(101)
            assert (await ask_http(port, request_))[0] == 200
            assert index.begun == 2 + 101
        finally:
            index.go_on(1000)
