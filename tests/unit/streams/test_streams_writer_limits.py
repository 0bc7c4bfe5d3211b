"""How fast a stream's writer may go, and how much the stream may hold."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from quorumbook.errors import MetadataUnavailableError
from quorumbook.streams.errors import QuotaExceededError
from quorumbook.streams.format.segment_text import SegmentMetadata, Truncation
from quorumbook.streams.writing import limits
from quorumbook.streams.writing.limits import Quota, RateLimit

SECOND = 1_000_000_000


def test_a_rate_that_was_not_used_for_long_does_not_add_up() -> None:
    limit = RateLimit(100, 0, 0)
    assert limit.wait_s(3600 * SECOND) == 0
    limit.take(10, 0)  # what a tenth of a second allows
    assert limit.wait_s(3600 * SECOND) > 0
    assert limit.wait_s(3601 * SECOND) == 0


def test_what_is_overdrawn_is_waited_for_by_the_slower_of_two_rates() -> None:
    limit = RateLimit(100, 1000, 0)
    limit.take(60, 300)
    assert limit.wait_s(0) == pytest.approx(0.5, abs=1e-3)
    assert limit.wait_s(SECOND // 2 + SECOND // 100) == 0
    limit.take(1, 1100)
    assert limit.wait_s(SECOND // 2 + SECOND // 100) == pytest.approx(1, abs=1e-2)


class World:
    """Segments and how large they are."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: dict[int, int] = {}
        self.segments: list[SegmentMetadata] = []
        self.now_ns = 0
        clock = SimpleNamespace(now_ns=lambda: self.now_ns)

        async def segments() -> list[SegmentMetadata]:
            return self.segments

        async def extent(_: Any, segment: SegmentMetadata) -> tuple[int, int]:
            return self.sizes[segment.ledger_id], 0

        monkeypatch.setattr(limits, "segment_extent", extent)
        self.context: Any = SimpleNamespace(
            name="s",
            nodes=SimpleNamespace(segments=segments),
            store=SimpleNamespace(env=SimpleNamespace(clock=clock)),
        )

    def hold(self, number: int, size_bytes: int, *, is_open: bool = False, status: int = 0) -> None:
        """Have a segment, in place of what had its number."""
        self.sizes[number] = size_bytes
        kept = [each for each in self.segments if each.number != number]
        self.segments = [*kept, SegmentMetadata(
            number=number, ledger_id=number, first_txid=0, is_in_progress=is_open, status=status,
        )]  # fmt: skip


def room_of(quota: Quota) -> int:
    """Return how much more may be appended."""
    for room in range(200):
        try:
            quota.check(room)
        except QuotaExceededError:
            return room - 1
    raise AssertionError("no limit")


async def test_a_segment_that_is_written_is_measured_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.hold(1, 30)
    world.hold(2, 10, is_open=True)
    quota = Quota(world.context, 100)
    found = []
    for size in 10, 20, 35:
        world.hold(2, size, is_open=True)
        await quota.measure()
        found.append(room_of(quota))
    world.hold(2, 40)
    await quota.measure()
    found.append(room_of(quota))
    assert found == [60, 50, 35, 30]
    world.hold(1, 30, status=Truncation.TRUNCATED)
    await quota.measure()
    assert room_of(quota) == 60
    await quota.stop()


async def test_what_is_on_its_way_counts_until_it_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.hold(1, 10, is_open=True)
    quota = Quota(world.context, 100)
    await quota.measure()
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    quota.take(20, future)
    assert room_of(quota) == 70
    # Nobody knows whether the ledger has it already.
    await quota.measure()
    assert room_of(quota) == 70
    future.set_result(None)
    await asyncio.sleep(0)
    world.hold(1, 30, is_open=True)
    await quota.measure()
    assert room_of(quota) == 70
    await quota.stop()


async def test_a_measurement_that_fails_forgets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.hold(1, 10, is_open=True)
    quota = Quota(world.context, 100)
    await quota.measure()
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    quota.take(50, future)
    future.set_result(None)
    await asyncio.sleep(0)
    segments = world.context.nodes.segments

    async def away() -> list[SegmentMetadata]:
        raise MetadataUnavailableError("the store is away")

    world.context.nodes.segments = away
    for _ in range(2):
        with pytest.raises(MetadataUnavailableError):
            await quota.measure()
        assert room_of(quota) == 40
    world.context.nodes.segments = segments
    world.hold(1, 60, is_open=True)
    await quota.measure()
    assert room_of(quota) == 40
    await quota.stop()


async def test_what_is_added_while_it_is_measured_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(monkeypatch)
    world.hold(1, 10, is_open=True)
    quota = Quota(world.context, 100)
    await quota.measure()
    loop = asyncio.get_running_loop()
    before, on_its_way, during = (loop.create_future() for _ in range(3))
    quota.take(5, before)
    before.set_result(None)
    await asyncio.sleep(0)
    quota.take(20, on_its_way)
    segments = world.context.nodes.segments
    rooms: list[int] = []

    async def adding() -> list[SegmentMetadata]:
        quota.take(30, during)
        for future in on_its_way, during:
            future.set_result(None)
        await asyncio.sleep(0)
        rooms.append(room_of(quota))
        found: list[SegmentMetadata] = await segments()
        return found

    world.context.nodes.segments = adding
    world.hold(1, 15, is_open=True)  # nobody knows whether the ledger has the others already
    await quota.measure()
    rooms.append(room_of(quota))
    assert rooms == [35, 35]
    world.context.nodes.segments = segments
    world.hold(1, 65, is_open=True)
    await quota.measure()
    assert room_of(quota) == 35
    await quota.stop()
