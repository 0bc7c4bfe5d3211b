"""Records that a group's member refuses: handed out again, counted, and given up at last."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from doubles.clusters import STORES, local_cluster
from doubles.waiting import until
from quorumbook.client.context import client_store
from quorumbook.errors import ConfigError, LocalProtocolError, MetadataUnavailableError
from quorumbook.streams import Consumer, Delivery, Namespace, PartitionedStream, Position
from quorumbook.streams.compaction import Compaction
from quorumbook.streams.cursors import acks
from quorumbook.streams.cursors.cursor import Cursor
from quorumbook.streams.errors import AckLimitError, PartitionLostError, WriterBusyError
from quorumbook.streams.partitions import redelivery
from quorumbook.streams.stream_context import stream_context
from quorumbook.streams.transactions import Place
from quorumbook.streams.writing.writer import StreamWriter

PATIENCE_S = 60.0


cluster = local_cluster(STORES, scope="module")


async def filled(ns: Namespace, count: int = 6) -> PartitionedStream:
    stream = await PartitionedStream.create(ns, "s", partitions=1)
    async with stream.writer() as writer:
        for n in range(count):
            await writer.append(b"%d" % n, key=b"key", headers={"n": b"%d" % n}, event_time_ms=n)
    return stream


async def take(consumer: Consumer) -> Delivery:
    async with asyncio.timeout(PATIENCE_S):
        (found,) = await consumer.read(1, wait_s=None)
    return found


def number(delivery: Delivery) -> int:
    return int(delivery.record.payload)


async def until_done(stream: PartitionedStream, records: int = 0) -> None:
    """Wait until so many records are before the group."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            cursor = (await stream.group("g")).cursors[0]
            if cursor is not None and (await cursor.lag()).records == records:
                return
            await asyncio.sleep(0.01)


async def test_a_refused_record_is_handed_out_again_until_it_is_done(
    ns: Namespace, other: Namespace
) -> None:
    stream = await filled(ns)
    seen: list[tuple[int, int]] = []
    async with stream.consumer("g", auto_commit_s=0.01) as consumer:
        while len(seen) < 6 + 3:
            each = await take(consumer)
            seen.append((number(each), each.delivery_count))
            if seen[-1] in ((2, 1), (2, 2), (4, 1)):
                await consumer.nack(each)
        # Everything is done but what is in hand.
        assert sorted(seen) == [(0, 1), (1, 1), (2, 1), (2, 2), (2, 3), (3, 1), (4, 1), (4, 2),
                                (5, 1)]  # fmt: skip
        assert [n for n, count in seen if count == 1] == list(range(6))
    await until_done(await PartitionedStream.open(other, "s"))


async def test_the_next_member_hands_out_what_the_last_refused(
    ns: Namespace, other: Namespace
) -> None:
    stream = await filled(ns)
    async with stream.consumer("g") as first:
        for n in range(6):
            each = await take(first)
            if n in (0, 3):
                await first.nack(each)
    await until_done(stream, 2)
    cursor = (await stream.group("g")).cursors[0]
    assert cursor is not None
    assert cursor.acks is not None
    assert [each.deliveries for each in cursor.acks.refused] == [1, 1]
    # A reader by the same cursor, who is no member, gets them as all that is not done.
    async with stream.partitions[0].reader(cursor="g", tail=False) as reader:
        assert [int(each.payload) async for each in reader] == [0, 3]
    theirs = await PartitionedStream.open(other, "s")
    async with theirs.consumer("g", auto_commit_s=0) as second:
        got = [await take(second), await take(second)]
        assert sorted((number(each), each.delivery_count) for each in got) == [(0, 2), (3, 2)]
        await second.commit(next(each for each in got if number(each) == 3))
        await until_done(stream, 1)  # the other one was refused, and is not done
        await second.ack(next(each for each in got if number(each) == 0))
        await until_done(stream, 0)
        with pytest.raises(LocalProtocolError, match="passed"):
            await second.nack(got[0])
        lost = got[1]
    async with stream.consumer("g"):
        with pytest.raises(PartitionLostError):
            await second.nack(lost)


async def test_a_refused_record_waits_for_its_delay(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redelivery, "_LOOK_S", 0.02)
    stream = await filled(ns)
    clock = client_store(ns.client).env.clock
    async with stream.consumer("g", auto_commit_s=0) as consumer:
        first, second = await take(consumer), await take(consumer)
        await consumer.nack(first, delay_s=7200)
        await consumer.nack(second, delay_s=3600)
        await consumer.nack(first, delay_s=0)  # it was not handed out since: that says nothing
        assert [number(await take(consumer)) for _ in range(4)] == [2, 3, 4, 5]
        assert await consumer.read(wait_s=0.1) == []
        real = clock.wall_ms
        monkeypatch.setattr(clock, "wall_ms", lambda: real() + 3_600_000)
        again = await take(consumer)
        assert (number(again), again.delivery_count) == (1, 2)
        assert await consumer.read(wait_s=0.1) == []
        monkeypatch.setattr(clock, "wall_ms", lambda: real() + 7_200_000)
        assert number(await take(consumer)) == 0


async def test_what_is_refused_too_often_goes_to_the_dead_letters(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redelivery, "_LOCK_WAIT_S", 0.05)
    stream = await filled(ns, 3)
    with pytest.raises(ConfigError, match="max_deliveries"):
        stream.consumer("g", dead_letter="dead/letters")
    options = {"max_deliveries": 2, "dead_letter": "dead/letters"}
    async with stream.consumer("g", auto_commit_s=0.01, **options) as consumer:
        await take(consumer)
        poisonous = await take(consumer)
        await consumer.nack(poisonous)
        while poisonous.delivery_count == 1:
            poisonous = await take(consumer)
        assert (number(poisonous), poisonous.delivery_count) == (1, 2)
        async with other.stream("dead/letters").writer() as busy:
            with pytest.raises(WriterBusyError):
                await consumer.nack(poisonous)
            await busy.append(b"another's")
        await consumer.nack(poisonous)
        await until_done(stream, 0)
        assert await consumer.read(wait_s=0.05) == []
    async with other.stream("dead/letters").reader(tail=False) as reader:
        (_, letter) = [record async for record in reader]
    assert (letter.payload, letter.key, letter.event_time_ms) == (b"1", b"key", 1)
    assert letter.headers == {
        "n": b"1",
        "dead-letter-group": b"g",
        "dead-letter-stream": b"s/p0",
        "dead-letter-position": str(poisonous.record.position).encode(),
        "dead-letter-sequence-id": b"1",
        "dead-letter-deliveries": b"2",
    }


async def test_a_record_is_one_dead_letter_however_often_it_takes_to_be_done(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await filled(ns, 4)
    options = {"max_deliveries": 1, "dead_letter": "dead/letters"}
    append, calls = StreamWriter.append, 0

    async def fail(*_: Any, **__: Any) -> None:
        raise MetadataUnavailableError("nobody answers")

    async def fail_at_the_second(*given: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return await (fail if calls == 2 else append)(*given, **options)

    async with stream.consumer("g", auto_commit_s=0, **options) as consumer:
        got = [await take(consumer) for _ in range(3)]
        with monkeypatch.context() as patch:
            patch.setattr(StreamWriter, "append", fail_at_the_second)
            with pytest.raises(MetadataUnavailableError):
                await consumer.nack(*got)
        with monkeypatch.context() as patch:
            patch.setattr(Cursor, "ack", fail)
            with pytest.raises(MetadataUnavailableError):
                await consumer.nack(*got)
        await consumer.nack(*got)
        await until_done(stream, 1)
    async with other.stream("dead/letters").reader(tail=False) as reader:
        assert [int(record.payload) async for record in reader] == [0, 1, 2]


async def test_what_is_given_up_without_dead_letters_is_logged_and_done(
    ns: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    stream = await filled(ns, 2)
    async with stream.consumer("g", auto_commit_s=0.01, max_deliveries=1) as consumer:
        await consumer.nack(await take(consumer))
        assert number(await take(consumer)) == 1
    await until_done(stream, 0)
    assert "gives record 1:0:1 of stream s/p0 up" in caplog.text


async def test_a_record_that_is_gone_holds_nothing_up(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await filled(ns)
    monkeypatch.setattr(acks, "MAX_REFUSED", 2)
    async with stream.consumer("g", auto_commit_s=0.01) as consumer:
        got = [await take(consumer) for _ in range(4)]
        await consumer.nack(*got[1:3], delay_s=3600)
        with pytest.raises(AckLimitError, match="2 records wait"):
            await consumer.nack(got[3], delay_s=3600)
        got += [await take(consumer) for _ in range(2)]
        await stream.partitions[0].truncate(got[4].record.position)
        clock = client_store(ns.client).env.clock
        real = clock.wall_ms
        monkeypatch.setattr(clock, "wall_ms", lambda: real() + 3_600_000)
        await consumer.read(1, wait_s=0.01)
        await until_done(stream, 0)


async def append_in_segments(stream: PartitionedStream, payloads: range) -> None:
    for n in payloads:
        async with stream.partitions[0].writer() as writer:
            await writer.append(b"%d" % n)


async def merge(ns: Namespace, stream: PartitionedStream) -> list[int]:
    """Merge all segments, as if the group had stood still for long; return which are left."""
    context = stream_context(stream.partitions[0])
    work = Compaction(Place(ns.client, ns), context, keep_s=0)
    await work.run(await work.rules(target_bytes=1 << 20, idle_cursor_s=0))
    return [segment.number for segment in await context.nodes.segments()]


def pass_an_hour(ns: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = client_store(ns.client).env.clock
    real = clock.wall_ms
    monkeypatch.setattr(clock, "wall_ms", lambda: real() + 3_600_000)


@pytest.mark.parametrize("who", ["the same member", "the next member"])
async def test_a_refused_record_is_handed_out_again_wherever_merging_put_it(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    monkeypatch.setattr(redelivery, "_LOOK_S", 0.02)
    stream = await PartitionedStream.create(ns, "s", partitions=1)
    await append_in_segments(stream, range(5))
    consumer = await stream.consumer("g", auto_commit_s=0)
    # In the place of the last of them another one is then.
    await consumer.nack(*[await take(consumer) for _ in range(5)], delay_s=3600)
    assert await merge(other, stream) == [5]
    if who == "the next member":
        await consumer.close()
        consumer = await stream.consumer("g", auto_commit_s=0)
    pass_an_hour(ns, monkeypatch)
    async with consumer:
        again = [await take(consumer) for _ in range(5)]
        assert [(number(each), each.delivery_count) for each in again] == [(n, 2) for n in range(5)]
        assert [each.record.sequence_id for each in again] == [0, 1, 2, 3, 4]
        await consumer.ack(*again)
    await until_done(stream, 0)


async def test_a_refused_record_that_moves_while_it_is_looked_for_is_looked_for_again(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redelivery, "_LOOK_S", 0.02)
    stream = await PartitionedStream.create(ns, "s", partitions=1)
    await append_in_segments(stream, range(3))
    async with stream.consumer("g", auto_commit_s=0) as consumer:
        got = [await take(consumer) for _ in range(3)]
        await consumer.nack(got[1], delay_s=3600)
        assert await merge(other, stream) == [3]
        await append_in_segments(stream, range(3, 5))
        find = redelivery.find_sequence_id
        merged = []

        async def found_too_early(*wanted: Any) -> Position:
            found = await find(*wanted)
            if not merged:
                merged.append(await merge(other, stream))
            return found

        monkeypatch.setattr(redelivery, "find_sequence_id", found_too_early)
        pass_an_hour(ns, monkeypatch)
        seen = [await take(consumer) for _ in range(3)]
        assert sorted(number(each) for each in seen) == [1, 3, 4]
        assert merged == [[5]]


@pytest.mark.parametrize(
    ("place", "behind"),
    [(Position(3, 2, 0), 0), (Position(4, 0, 0), 0), (Position(4, 0, 0), 1)],
    ids=["a part", "all", "a segment before another"],
)
async def test_a_refused_record_that_was_merged_and_truncated_is_gone(
    ns: Namespace,
    other: Namespace,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    place: Position,
    behind: int,
) -> None:
    monkeypatch.setattr(redelivery, "_LOOK_S", 0.02)
    stream = await PartitionedStream.create(ns, "s", partitions=1)
    await append_in_segments(stream, range(3))
    async with stream.consumer("g", auto_commit_s=0) as consumer:
        got = [await take(consumer) for _ in range(3)]
        await consumer.nack(got[0], delay_s=3600)
        await consumer.commit(got[2])
        assert await merge(other, stream) == [3]
        await append_in_segments(stream, range(3, 3 + behind))
        await stream.partitions[0].truncate(place)
        pass_an_hour(ns, monkeypatch)

        async def is_told() -> bool:
            assert 0 not in map(number, await consumer.read(wait_s=0))
            return "record 1:0:1 of stream s/p0 is gone" in caplog.text

        await until(is_told)
        await until_done(stream, behind)
