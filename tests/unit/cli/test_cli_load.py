"""What the load generators measure, on a clock that the test moves."""

from __future__ import annotations

import asyncio

import pytest

from quorumbook.cli import load


class Clock:
    """Time stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 0.0


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    real_sleep = asyncio.sleep

    async def sleep(seconds):
        clock.now += seconds
        await real_sleep(0)

    monkeypatch.setattr(load, "now", lambda: clock.now)
    monkeypatch.setattr(load.asyncio, "sleep", sleep)
    return clock


class Writer:
    """Acknowledges at once, and takes a second for its first piece."""

    def __init__(self, clock: Clock, stall_s: float) -> None:
        self.pieces: list[int] = []
        self._clock = clock
        self._stall_s = stall_s

    def append_batch_nowait(self, payloads):
        if not self.pieces:
            self._clock.now += self._stall_s
        self.pieces.append(len(payloads))
        future = asyncio.get_running_loop().create_future()
        future.set_result(range(len(payloads)))
        return future


async def test_an_open_loop_counts_from_when_an_entry_was_due(clock):
    writer = Writer(clock, stall_s=1.0)
    took, latencies = await load.write_open(writer, lambda _: b"", 2000, 5000, rate=1000.0)
    # A thousand entries came due while the writer stood still; half of all is late, the first
    # ones by nearly a second, although each was acknowledged as soon as it was sent.
    figures = latencies.percentiles_ms()
    assert figures["p99_ms"] > 900
    assert figures["p50_ms"] < 10
    assert writer.pieces[1] >= 1000
    assert took == pytest.approx(2.0, abs=0.1)


async def test_an_open_loop_without_trouble_measures_none(clock):
    _, latencies = await load.write_open(Writer(clock, 0.0), lambda _: b"", 1000, 100, 1000.0)
    assert latencies.percentiles_ms()["p999_ms"] < 5


async def test_a_closed_loop_never_has_more_in_flight_than_asked_for(clock):
    waiting: list[tuple[int, asyncio.Future[range]]] = []
    most = 0

    class Slow:
        def append_batch_nowait(self, payloads):
            nonlocal most
            future = asyncio.get_running_loop().create_future()
            waiting.append((len(payloads), future))
            most = max(most, sum(size for size, _ in waiting))
            asyncio.get_running_loop().call_soon(self.answer)
            return future

        def answer(self):
            size, future = waiting.pop(0)
            future.set_result(range(size))

    await load.write_closed([Slow()], b"", 1000, 64)
    assert 32 < most <= 64


def test_percentiles_weigh_a_duration_by_its_entries():
    latencies = load.Latencies()
    latencies.add(0.001, 989)
    latencies.add(0.5, 10)
    latencies.add(2.0, 1)
    assert latencies.percentiles_ms() == {"p50_ms": 1.0, "p99_ms": 500.0, "p999_ms": 500.0}


def test_a_stamped_payload_tells_its_age():
    payload = load.stamped(100)(load.now() - 5.0)
    assert len(payload) == 100
    assert 5.0 <= load.age_s(payload) < 65.0
