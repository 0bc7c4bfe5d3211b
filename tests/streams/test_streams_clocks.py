"""Clocks that jump, of the writer, of the next one, and of whoever looks on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from doubles.inside import pump_of
from quorumbook.env import Env, RealClock
from quorumbook.streams import Namespace, Position, Stream, StreamPolicy, StreamWriter
from quorumbook.streams.errors import PositionTruncatedError, WriterBusyError
from quorumbook.streams.stream_context import stream_context
from quorumbook.testing import LocalCluster
from streams.soundness import assert_sound, read_payloads

HOUR_S = 3600
DAY_S = 24 * HOUR_S


def is_alone(cluster: LocalCluster) -> bool:
    """Tell whether a process may be in another time since boot: a file's are on one machine."""
    return cluster.metadata_uri.startswith("zk")


class Clock(RealClock):
    """A clock that is set by hand; time since boot only goes forward."""

    def __init__(self) -> None:
        self.wall_shift_s = 0.0
        self.boot_shift_s = 0.0

    def now_ns(self) -> int:
        return super().now_ns() + int(self.boot_shift_s * 1e9)

    def wall_ms(self) -> int:
        return super().wall_ms() + int(self.wall_shift_s * 1e3)


@asynccontextmanager
async def process(cluster: LocalCluster, ns: Namespace) -> AsyncIterator[tuple[Namespace, Clock]]:
    """Open the namespace as a process with a clock of its own."""
    clock = Clock()
    address = f"{cluster.metadata_uri}#{ns.path}"
    async with Namespace.open(address, env=Env(clock=clock)) as own:
        yield own, clock


async def is_completed(stream: Stream, number: int) -> None:
    """Wait until a segment is completed."""
    async with asyncio.timeout(60):
        while True:
            segments = [segment.metadata for segment in await stream.segments()]
            if any(s.number == number and not s.is_in_progress for s in segments):
                return
            await asyncio.sleep(0.01)


async def test_segments_are_rolled_by_their_age_whatever_the_time_of_day(
    cluster: LocalCluster, ns: Namespace
) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_interval_s=HOUR_S))
    async with process(cluster, ns) as (own, clock):
        stream = own.stream("s")
        async with stream.writer() as writer:
            await writer.append(b"a")
            for shift_s in (DAY_S, -DAY_S, 0):
                clock.wall_shift_s = shift_s
                pump_of(writer)._look_at_age()  # as if so much time had gone by
                assert (await writer.append(b"b")).position.segment == 1
            clock.wall_shift_s = -DAY_S
            if is_alone(cluster):
                clock.boot_shift_s = HOUR_S
            else:
                # As if so much time had gone by.
                pump_of(writer).segments._started_ns -= HOUR_S * 10**9
            pump_of(writer)._look_at_age()
            await is_completed(stream, 1)
            assert (await writer.append(b"c")).position.segment == 2
    await assert_sound(ns.stream("s"))


async def test_a_clock_that_goes_back_deletes_nothing_and_one_ahead_nothing_that_is_held(
    cluster: LocalCluster, ns: Namespace
) -> None:
    await ns.create_stream("s", policy=StreamPolicy(retain_time_s=HOUR_S, roll_entries=1))
    async with process(cluster, ns) as (own, clock):
        stream = own.stream("s")
        clock.wall_shift_s = HOUR_S
        async with stream.writer(retention_interval_s=0) as writer:
            for number in range(4):
                await writer.append(b"%d" % number)
        clock.wall_shift_s = -DAY_S
        assert (await stream.enforce_retention()).segments == []
        cursor = await stream.cursor("c", start=Position(3, 0, 0), holds_retention=True)
        clock.wall_shift_s = DAY_S
        assert [each.number for each in (await stream.enforce_retention()).segments] == [1, 2]
        assert await read_payloads(stream) == [b"2", b"3"]
        with pytest.raises(PositionTruncatedError):
            async with stream.reader(Position(1, 0, 0)) as reader:
                await anext(reader)
        await cursor.delete()
        # The last one stays, or nobody would know where the stream goes on.
        assert [each.number for each in (await stream.enforce_retention()).segments] == [3]
        assert await read_payloads(stream) == [b"3"]


async def test_the_first_record_of_a_time_or_later_is_found_although_clocks_jumped(
    cluster: LocalCluster, ns: Namespace
) -> None:
    """By the times that the records carry; within a segment they never go back."""
    await ns.create_stream("s")
    async with process(cluster, ns) as (own, clock), process(cluster, ns) as (next_one, next_clock):
        now_s = clock.wall_ms() / 1000

        async def append(writer: StreamWriter, clock: Clock, *times_s: float) -> None:
            for time_s in times_s:
                clock.wall_shift_s = time_s - RealClock().wall_ms() / 1000 + now_s
                await writer.append(b"%g" % time_s)

        writer = await own.stream("s").writer(batch_bytes=1)
        await append(writer, clock, 0, 100, 300, 200, 50, 400)
        await writer.roll()
        await append(writer, clock, 150, 10, 300)
        clock.wall_shift_s = -DAY_S
        await writer.roll()
        await append(writer, clock, 60, 5)
        await writer.abort()
        # Its clock is far behind when it completes what the other left.
        next_clock.wall_shift_s = -DAY_S
        async with next_one.stream("s").writer(takeover="force", batch_bytes=1) as writer:
            await append(writer, next_clock, 20, 700, 650)
    stream = ns.stream("s")
    times: list[tuple[int, Position]] = []
    async with stream.reader(tail=False) as reader:
        async for batch in reader.read_batches():
            assert batch.appended_at_ms is not None
            times += [(batch.appended_at_ms, batch.first_position)]
    assert len(times) == 14
    for wanted_ms in sorted({ms + delta for ms, _ in times for delta in (-1, 0, 1)}):
        due = [position for ms, position in times if ms >= wanted_ms]
        found = await stream.find(time=datetime.fromtimestamp(wanted_ms / 1000, UTC))
        if due:
            assert found == due[0]
        else:
            assert found > times[-1][1]
    await assert_sound(stream)


async def test_what_a_writer_with_a_fast_clock_left_is_completed_behind_its_records(
    cluster: LocalCluster, ns: Namespace
) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    async with process(cluster, ns) as (fast, clock):
        clock.wall_shift_s = DAY_S
        writer = await fast.stream("s").writer()
        where = (await writer.append(b"tomorrow")).position
        await writer.abort()
    async with stream.writer(takeover="force"):
        pass
    (segment,) = await stream.segments()
    record = await stream.first()
    assert record is not None
    assert record.appended_at_ms is not None
    assert segment.metadata.completed_at_ms >= record.appended_at_ms
    time = datetime.fromtimestamp(record.appended_at_ms / 1000, UTC)
    assert await stream.find(time=time) == where


async def test_no_clock_takes_a_lock_or_an_append_away(
    cluster: LocalCluster, ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    async with process(cluster, ns) as (own, clock), process(cluster, ns) as (rival, rival_clock):
        async with own.stream("s").writer(producer="p") as writer:
            await writer.append(b"0")
            for number, shift_s in enumerate((DAY_S, -DAY_S, 0), 1):
                clock.wall_shift_s = rival_clock.wall_shift_s = shift_s
                with pytest.raises(WriterBusyError):
                    await rival.stream("s").writer()
                rival_clock.wall_shift_s = -shift_s
                with pytest.raises(WriterBusyError):
                    await rival.stream("s").writer()
                await writer.append(b"%d" % number)
                assert (
                    await stream_context(own.stream("s")).lock().owner()
                    == writer._tenure._lock._client_id  # as if so much time had gone by
                )
            # As if the machine had slept: everything under way is late at once.
            futures = [writer.append_nowait(b"%d" % number) for number in range(4, 40)]
            await asyncio.sleep(0)
            if is_alone(cluster):
                clock.boot_shift_s = HOUR_S
            found = [await future for future in futures]
            assert [each.sequence_id for each in found] == list(range(4, 40))
        assert await read_payloads(other.stream("s")) == [b"%d" % number for number in range(40)]
        await assert_sound(other.stream("s"))
