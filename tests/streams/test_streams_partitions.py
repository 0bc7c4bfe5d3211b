"""Partitioned streams: where a key's records are, and reading and writing all of them."""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections import defaultdict
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles.clusters import STORES, local_cluster
from quorumbook.errors import BackpressureError, ConfigError, LocalProtocolError
from quorumbook.streams import Namespace, PartitionedStream, Position, StreamCut, StreamPolicy
from quorumbook.streams.errors import (
    CorruptRecordsError,
    PartlySealedError,
    StreamExistsError,
    StreamNotFoundError,
    UnsupportedFormatError,
    WriterBusyError,
    WriterFencedError,
)
from quorumbook.streams.partitions.partition_node import partitioned_among
from quorumbook.streams.partitions.partitioning import partition_of
from quorumbook.streams.stream_context import stream_context

cluster = local_cluster(STORES, scope="module")


@given(st.binary(max_size=40), st.integers(1, 1000))
def test_a_key_stays_in_its_partition(key: bytes, count: int) -> None:
    assert partition_of(key, count) == zlib.crc32(key) % count
    assert 0 <= partition_of(key, count) < count


def test_the_hash_of_keys_never_changes() -> None:
    keys = b"", b"a", b"customer-7", "größe".encode(), b"\0" * 20
    assert [partition_of(key, 7) for key in keys] == [0, 4, 5, 3, 5]
    # CRC-32 of the customary check, as every other language has it.
    assert partition_of(b"123456789", 2**32) == 0xCBF43926
    spread = defaultdict(int)
    for number in range(8000):
        spread[partition_of(b"user-%d" % number, 8)] += 1
    assert min(spread.values()) > 900


def test_a_cut_goes_through_json() -> None:
    cut = StreamCut({3: Position(1, 2, 3), 0: Position(4, 0, 0)})
    assert StreamCut.from_json(json.loads(json.dumps(cut.to_json()))) == cut


async def test_records_of_a_key_come_in_the_order_they_were_appended(
    ns: Namespace, other: Namespace
) -> None:
    orders = await PartitionedStream.create(
        ns, "eu/orders", partitions=4, policy=StreamPolicy(roll_entries=5)
    )
    keys = [b"key-%d" % n for n in range(10)]
    async with orders.writer() as writer:
        for n in range(20):
            appended = await writer.append(b"key-%d %d" % (n % 10, n), key=keys[n % 10])
            assert appended.partition == orders.partition_of(keys[n % 10])
        batch = [(keys[n % 10], b"key-%d %d" % (n % 10, n)) for n in range(20, 60)]
        stored = await writer.append_batch([p for _, p in batch], keys=[k for k, _ in batch])
        assert [each.partition for each in stored] == [orders.partition_of(k) for k, _ in batch]
        futures = [
            writer.append_nowait(b"key-%d %d" % (n % 10, n), key=keys[n % 10])
            for n in range(60, 100)
        ]
        last = (await asyncio.gather(*futures))[-1]
        found = await orders.partitions[last.partition].get(last.appended.position)
        assert found.payload == b"key-9 99"
    seen = await PartitionedStream.open(other, "/eu/orders")
    by_key: dict[bytes, list[int]] = defaultdict(list)
    async with seen.reader(tail=False) as reader:
        async for partition, record in reader:
            key, number = record.payload.split()
            assert partition == seen.partition_of(key)
            assert record.key == key
            by_key[key].append(int(number))
    assert by_key == {key: list(range(n, 100, 10)) for n, key in enumerate(keys)}


async def test_a_cut_is_where_reading_goes_on_and_where_it_ends(ns: Namespace) -> None:
    stream = await PartitionedStream.create(ns, "s", partitions=3)
    async with stream.writer() as writer:
        for n in range(30):
            await writer.append(b"%d" % n)
        await writer.flush()
        end = await stream.end()
        for n in range(30, 40):
            await writer.append(b"%d" % n)
        await writer.flush()
        got: list[int] = []
        async with stream.reader(end=end) as reader:
            got += [int(each.record.payload) for each in await reader.read(7, wait_s=None)]
            assert len(got) <= 7
            cut = reader.position
        async with stream.reader(StreamCut.from_json(cut.to_json()), end=end) as reader:
            got += [int(each.record.payload) async for each in reader]
        assert sorted(got) == list(range(30))
        async with stream.reader(end) as reader:
            late: list[int] = []
            while len(late) < 10:
                late += [int(each.record.payload) for each in await reader.read()]
            assert sorted(late) == list(range(30, 40))
            assert await reader.read(wait_s=0.01) == []
        await stream.truncate(end)
    async with stream.reader("earliest", tail=False, partitions=[1]) as reader:
        only = [each async for each in reader]
    assert {each.partition for each in only} == {1}
    assert min(int(each.record.payload) for each in only) >= 30


async def test_writers_share_the_partitions_out(ns: Namespace, other: Namespace) -> None:
    mine = await PartitionedStream.create(ns, "s", partitions=3)
    theirs = await PartitionedStream.open(other, "s")
    async with mine.writer(partitions=[0, 2]) as writer:
        with pytest.raises(WriterBusyError):
            await theirs.writer()
        async with theirs.writer(partitions=[1], max_pending_records=2) as second:
            assert (await second.append(b"x")).partition == 1
            held = [second.append_nowait(b"y") for _ in range(2)]
            with pytest.raises(BackpressureError):
                second.append_nowait(b"y")
            await second.drain()
            await asyncio.gather(*held)
        with pytest.raises(LocalProtocolError, match="holds: 0, 2"):
            await writer.append(b"x", partition=1)
        assert [(await writer.append(b"x")).partition for _ in range(4)] in (
            [0, 2, 0, 2], [2, 0, 2, 0],
        )  # fmt: skip
        await writer.seal()
    with pytest.raises(LocalProtocolError, match="no partition 3"):
        mine.writer(partitions=[3])
    async with mine.writer(partitions=[1]) as writer:
        await writer.seal()
    async with theirs.reader() as reader:
        assert len([each async for each in reader]) == 7


async def test_all_partitions_are_sealed_or_those_that_are_not_are_named(
    ns: Namespace, other: Namespace
) -> None:
    mine = await PartitionedStream.create(ns, "s", partitions=3)
    theirs = await PartitionedStream.open(other, "s")

    async def sealed() -> list[bool]:
        return [(await part.info()).is_sealed for part in theirs.partitions]

    await mine.grow(4)
    async with mine.partitions[3].writer() as busy:
        await busy.append(b"x")
        # Nothing is sealed while one of them is written, of those added meanwhile, too.
        with pytest.raises(WriterBusyError):
            await theirs.seal()
        assert await sealed() == [False] * 4
    writer = await mine.writer()
    async with theirs.partitions[1].writer(takeover="force"):
        with pytest.raises(PartlySealedError, match=r"1 of 4 partitions .* p1: another") as caught:
            await writer.seal()
    assert isinstance(caught.value.failed[1], WriterFencedError)
    assert await sealed() == [True, False, True, True]
    for _ in range(2):
        await theirs.seal()
        assert await sealed() == [True] * 4
    async with theirs.reader() as reader:
        assert [record.payload async for _, record in reader] == [b"x"]


async def test_all_partitions_are_cut_at_a_time(ns: Namespace) -> None:
    stream = await PartitionedStream.create(ns, "s", partitions=3)
    async with stream.writer() as writer:
        for number in range(2):
            await writer.append(b"old", partition=number)
        await writer.flush()
        found = [await part.last() for part in stream.partitions[:2]]
        last_ms = max(each.appended_at_ms or 0 for each in found if each is not None)
        between = datetime.fromtimestamp((last_ms + 1) / 1000, UTC)
        while time.time() < between.timestamp():
            await asyncio.sleep(0.001)
        for number in range(3):
            await writer.append(b"new", partition=number)
        await writer.flush()
        would = await stream.truncate(between, dry_run=True)
        assert list(would) == [0, 1, 2]
        assert [await part.count() for part in stream.partitions] == [2, 2, 1]
        assert await stream.truncate(between) == would
        assert await stream.truncate(between) == {0: [], 1: [], 2: []}
    async with stream.reader(tail=False) as reader:
        assert [record.payload async for _, record in reader] == [b"new"] * 3


async def test_an_error_of_one_partition_reaches_the_reader_of_all(ns: Namespace) -> None:
    stream = await PartitionedStream.create(ns, "s", partitions=3)
    async with stream.writer() as writer:
        stored = [await writer.append(b"%d" % n, partition=2) for n in range(4)]
    await ns.client.delete_ledger(stored[0].appended.ledger_id)
    async with stream.reader() as reader:
        with pytest.raises(Exception, match="is gone"):
            await anext(reader)


async def test_partitioned_streams_are_made_found_and_deleted(ns: Namespace) -> None:
    stream = await PartitionedStream.create(ns, "a/s", partitions=2)
    assert [part.name for part in stream.partitions] == ["a/s/p0", "a/s/p1"]
    assert [name async for name in ns.streams()] == ["a/s/p0", "a/s/p1"]
    await PartitionedStream.create(ns, "a/s", partitions=2, exist_ok=True)
    for again in {"partitions": 2}, {"partitions": 3, "exist_ok": True}:
        with pytest.raises(StreamExistsError, match="with 2 partitions"):
            await PartitionedStream.create(ns, "a/s", **again)
    await ns.create_stream("plain/p0")
    with pytest.raises(StreamExistsError, match="without partitions"):
        await PartitionedStream.create(ns, "plain/p0", partitions=2)
    assert await partitioned_among(ns, [name async for name in ns.streams()]) == ["a/s"]
    with pytest.raises(StreamNotFoundError, match="--partitions"):
        await PartitionedStream.open(ns, "plain")
    for wrong in 0, 10_001:
        with pytest.raises(ConfigError):
            await PartitionedStream.create(ns, "t", partitions=wrong)
    # A creation that was interrupted half way is completed by the next.
    await ns.delete_stream("a/s/p1")
    await PartitionedStream.create(ns, "a/s", partitions=2, exist_ok=True)
    assert (await stream.partitions[1].info()).segments == []
    store = stream_context(stream.partitions[0]).store
    for data, error in (
        (b"", CorruptRecordsError),
        (b'{"version":1,"partitions":2,"hash":"murmur2"}', UnsupportedFormatError),
    ):
        await store.set(stream.node, data)
        with pytest.raises(error):
            await PartitionedStream.open(ns, "a/s")
    await stream.delete()
    assert [name async for name in ns.streams()] == ["plain/p0"]
    assert await partitioned_among(ns, [name async for name in ns.streams()]) == []


async def test_partitions_are_added_and_never_taken_away(ns: Namespace, other: Namespace) -> None:
    policy = StreamPolicy(roll_entries=5)
    orders = await PartitionedStream.create(ns, "orders", partitions=2, policy=policy)
    theirs = await PartitionedStream.open(other, "orders")
    keys = [b"key-%d" % (n % 10) for n in range(60)]
    payloads = [b"%s %d" % (key, n) for n, key in enumerate(keys)]
    async with orders.writer() as writer:
        before = await writer.append_batch(payloads[:30], keys=keys[:30])
        await writer.flush()
    end = await orders.end()
    await theirs.grow(5)
    assert len(theirs.partitions) == 5
    await theirs.grow(5)
    with pytest.raises(ConfigError, match="can grow"):
        await orders.grow(4)
    assert await theirs.partitions[4].policy() == policy
    # Whoever knew it before goes on, and knows them when it looks.
    assert len(orders.partitions) == 2
    assert [part.name for part in await orders.refresh()] == [f"orders/p{n}" for n in range(5)]
    async with orders.writer() as writer:
        after = await writer.append_batch(payloads[30:], keys=keys[30:])
    for stored, key, count in (
        *((each, key, 2) for each, key in zip(before, keys, strict=False)),
        *((each, key, 5) for each, key in zip(after, keys[30:], strict=True)),
    ):
        assert stored.partition == partition_of(key, count)
    # In each partition a key's records have their order, and nothing moved.
    order: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    async with theirs.reader(tail=False) as reader:
        async for partition, record in reader:
            key, number = record.payload.split()
            order[partition, key].append(int(number))
    assert sum(map(len, order.values())) == 60
    assert all(numbers == sorted(numbers) for numbers in order.values())
    # A cut of before says nothing of the new ones: they are read from their first record on.
    async with theirs.reader(end, tail=False) as reader:
        assert {record.payload async for _, record in reader} == set(payloads[30:])
    await orders.delete()
    assert [name async for name in ns.streams()] == []


async def test_two_that_add_partitions_at_a_time_add_them_once(
    ns: Namespace, other: Namespace
) -> None:
    mine = await PartitionedStream.create(ns, "s", partitions=1)
    theirs = await PartitionedStream.open(other, "s")
    done = await asyncio.gather(mine.grow(3), theirs.grow(4), return_exceptions=True)
    assert [each for each in done if each is not None and not isinstance(each, ConfigError)] == []
    assert len(await mine.refresh()) == len(await theirs.refresh()) == 4
