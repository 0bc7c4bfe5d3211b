"""Records that are larger than an entry: stored in chunks, read as one, never in part."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from unittest import mock

import pytest

from doubles.inside import pump_of
from quorumbook.client.writing.pending import Watcher
from quorumbook.streams import (
    Appended,
    Namespace,
    Position,
    SequenceId,
    Stream,
    StreamPolicy,
    StreamWriter,
)
from quorumbook.streams.cursors import lag
from quorumbook.streams.errors import RecordTooLargeError
from quorumbook.streams.format.control import CHUNK_SIZE_BYTES
from quorumbook.streams.writing import intake, pending

LARGE = bytes(range(250)) * 10


@pytest.fixture
def small_entries() -> Iterator[None]:
    """Entries so small that records of some bytes need chunks."""
    with (
        mock.patch.object(pending, "MAX_PAYLOAD_SIZE_BYTES", 1000),
        mock.patch.object(intake, "MAX_PAYLOAD_SIZE_BYTES", 1000),
        mock.patch.object(pending, "CHUNK_SIZE_BYTES", 900),
    ):
        yield


async def read_all(stream: Stream, *where: object, **options: object) -> list[bytes]:
    async with stream.reader(*where, tail=False, **options) as reader:
        return [record.payload async for record in reader]


async def leave_unfinished(writer: StreamWriter, payload: bytes) -> Appended:
    """Crash a writer behind two of a record's chunks; return where a record before it is."""
    before = await writer.append(b"before")
    pump, count = pump_of(writer), 0
    append_all = pump.segments.append_all

    def send_two(entries: list[pending.PackedRun], watcher: Watcher) -> None:
        nonlocal count
        sent = entries[: 2 - count]
        count += len(sent)
        if sent:
            append_all(sent, watcher)

    pump.segments.append_all = send_two
    lost = writer.append_nowait(payload)
    while pump.state.tail.confirmed_count < 3:
        await asyncio.sleep(0.01)
    await pump.segments.publish()
    await writer.abort()
    assert lost.exception() is not None
    return before


async def test_a_record_of_megabytes_is_read_as_it_was_written(ns: Namespace) -> None:
    await ns.create_stream("s", policy=StreamPolicy(compression="lz4"))
    stream, large = ns.stream("s"), os.urandom(3_000_000)
    async with stream.writer() as writer:
        await writer.append(b"a")
        where = await writer.append(large, key=b"k", txid=7)
        after = await writer.append(b"b")
        with pytest.raises(RecordTooLargeError, match="append it alone"):
            await writer.append_batch([large])
        with pytest.raises(RecordTooLargeError, match="max_record_bytes"):
            await writer.append(bytes(65 * 1024 * 1024))
    async with stream.reader(tail=False) as reader:
        a, record, b = [each async for each in reader]
    assert (a.payload, record.payload, b.payload) == (b"a", large, b"b")
    assert (record.position, record.sequence_id, record.txid, record.key) == (*where[:2], 7, b"k")
    assert (b.position, b.sequence_id) == after[:2]
    assert (await stream.get(where.position)).payload == large


@pytest.mark.parametrize("chunks", [2, 3])
async def test_a_record_of_few_chunks_is_one_record(ns: Namespace, chunks: int) -> None:
    await ns.create_stream("s")
    large = os.urandom(chunks * CHUNK_SIZE_BYTES - 100_000)
    async with ns.stream("s").writer() as writer:
        await asyncio.gather(*map(writer.append, (b"a", large)))
        await writer.append(b"b")
    assert await read_all(ns.stream("s")) == [b"a", large, b"b"]


async def test_positions_of_large_records_are_exact(ns: Namespace, small_entries: None) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=2))
    stream = ns.stream("s")
    async with stream.writer(batch_bytes=2000) as writer:
        for n in range(6):
            await writer.append(b"%d" % n)
            await writer.append(LARGE + b"%d" % n)
    everything = [part for n in range(6) for part in (b"%d" % n, LARGE + b"%d" % n)]
    async with stream.reader(tail=False) as reader:
        records = [record async for record in reader]
    assert [record.payload for record in records] == everything
    for number, record in enumerate(records):
        # What was processed last says where to go on, and a record lies where it begins.
        assert await read_all(stream, record.position.next) == everything[number + 1 :]
        assert await read_all(stream, record.position) == everything[number:]
        assert await read_all(stream, end=record.position) == everything[:number]
        assert await read_all(stream, end=record.position.next) == everything[: number + 1]
    snapshot = await stream.snapshot()
    for target_bytes in 1, 3000, 10**6:
        found: list[bytes] = []
        for split in snapshot.splits(target_bytes):
            async for batch in stream.read_split(split):
                found += batch.payloads
        assert found == everything
    await stream.truncate(records[3].position)
    assert await read_all(stream) == everything[3:]
    # Without its beginning it is gone.
    await stream.truncate(SequenceId(records[3].sequence_id + 1))
    assert await read_all(stream) == everything[4:]


async def test_what_a_crashed_writer_left_of_a_record_is_not_given_out(
    ns: Namespace, other: Namespace, small_entries: None
) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    writer = await stream.writer(producer="p", visibility_delay_s=0).__aenter__()
    before = await leave_unfinished(writer, LARGE)
    snapshot = await stream.snapshot()
    unfinished = Position(before.position.segment, before.position.entry + 1, 1)
    assert snapshot.end == unfinished
    assert await stream.cursor("latest", start="latest") is not None
    assert (await stream.cursor("latest")).position == unfinished
    assert await read_all(stream) == [b"before"]
    async with stream.reader(tail=False) as reader:
        assert len(await reader.read()) == 1
        assert await reader.read(wait_s=None) == []
        assert reader.position == unfinished  # from here on nothing can be missed
    async with other.stream("s").writer(producer="p", takeover="force") as second:
        assert second.last_number() == 0
        again = await second.append(LARGE, producer_seq=1)
        assert not again.duplicate
        assert again.sequence_id == before.sequence_id + 3
        # The original is where it begins.
        known = await second.append(LARGE, producer_seq=1)
        assert (known.duplicate, known.position) == (True, again.position)
    async with other.stream("s").writer(producer="p") as third:
        known = await third.append(LARGE, producer_seq=1)
        assert (known.duplicate, known.position) == (True, again.position)
        assert known.sequence_id == again.sequence_id
    assert await read_all(stream) == [b"before", LARGE]
    assert await read_all(stream, snapshot.end) == [LARGE]
    assert await read_all(stream, end=snapshot.end) == [b"before"]


async def test_a_segment_that_fails_within_a_record_does_not_split_it(
    ns: Namespace, small_entries: None
) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    async with stream.writer() as writer:
        await writer.append(b"a")
        segments, count, has_failed = pump_of(writer).segments, 0, False
        append_all = segments.append_all

        def fail_third(entries: list[pending.PackedRun], watcher: Watcher) -> None:
            nonlocal count, has_failed
            sent = entries if has_failed else entries[: 2 - count]
            count += len(sent)
            if sent:
                append_all(sent, watcher)
            if len(sent) < len(entries):
                has_failed = True
                watcher.on_entries_failed(RecordTooLargeError("this ledger takes no more"))

        segments.append_all = fail_third
        where = await writer.append(LARGE)
        await writer.append(b"b")
    assert len(await stream.segments()) == 2
    async with stream.reader(tail=False) as reader:
        records = [record async for record in reader]
    assert [record.payload for record in records] == [b"a", LARGE, b"b"]
    assert records[1][:2] == where[:2]
    found: list[bytes] = []
    for split in (await stream.snapshot()).splits(1):
        async for batch in stream.read_split(split):
            found += batch.payloads
    assert found == [b"a", LARGE, b"b"]


async def test_lag_counts_records_as_they_were_appended(
    ns: Namespace, small_entries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag, "CHUNK_SIZE_BYTES", 900)
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=12))
    stream = ns.stream("s")
    places: list[Position] = []
    async with stream.writer(visibility_delay_s=0) as writer:
        for number in range(20):
            payload = LARGE if number % 3 == 1 else b"%d" % number
            places.append((await writer.append(payload)).position)
            if number in (5, 19):
                await writer.flush()
                await check_lags(stream, places)
    await check_lags(stream, places)
    assert len(await stream.segments()) > 2
    assert sum(each.metadata.record_count for each in await stream.segments()) == 20 + 2 * 7
    async with stream.writer() as writer:
        await writer.seal()
    await check_lags(stream, places)


async def check_lags(stream: Stream, places: list[Position]) -> None:
    for number, place in enumerate(places):
        assert (await stream.lag(place)).records == len(places) - number
        assert (await stream.lag(place.next)).records == len(places) - number - 1
        assert await stream.count(place) == len(places) - number
        assert await stream.count(end=place) == number


async def test_chunks_of_a_record_that_is_not_complete_are_no_lag(
    ns: Namespace, small_entries: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lag, "CHUNK_SIZE_BYTES", 900)
    await ns.create_stream("s")
    stream = ns.stream("s")
    writer = await stream.writer(visibility_delay_s=0).__aenter__()
    before = await leave_unfinished(writer, LARGE)
    assert (await stream.lag(before.position)).records == 1
    async with stream.writer(takeover="force") as second:
        await second.append(LARGE)
    assert (await stream.lag(before.position)).records == 2


async def test_large_records_in_a_segment_of_small_ones_cost_no_look_at_its_end(
    ns: Namespace,
) -> None:
    """The first segment of a lag is looked at, those behind it if chunks may be many of it."""
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=1))
    stream = ns.stream("s")
    async with stream.writer(batch_bytes=1) as writer:
        for number in range(4):
            await writer.append(b"%d" % number)
    with mock.patch.object(lag, "open_segment", wraps=lag.open_segment) as opened:
        assert (await stream.lag(Position(1, 0, 0))).records == 4
    assert {call.args[1].number for call in opened.call_args_list} <= {1}
