"""What is appended is read: one order, dense ids, across segments, by one writer at a time."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime

import pytest

from doubles.inside import pump_of
from quorumbook.errors import NoSuchEntryError
from quorumbook.streams import Namespace, Position, SequenceId, Stream, StreamPolicy, TxId
from quorumbook.streams.errors import (
    RecordTooLargeError,
    SequenceConflictError,
    StreamNotFoundError,
    StreamSealedError,
    TxidOutOfOrderError,
    WriterBusyError,
    WriterFencedError,
)
from quorumbook.streams.reading import seek
from quorumbook.streams.stream_context import StreamContext


async def read_all(stream: Stream, start: object = "earliest", **options: object) -> list[bytes]:
    async with stream.reader(start, tail=False, **options) as reader:
        return [record.payload async for record in reader]


@pytest.mark.parametrize("compression", ["none", "lz4"])
async def test_o1_records_come_out_in_order_with_dense_ids(ns: Namespace, compression: str) -> None:
    await ns.create_stream("s", policy=StreamPolicy(compression=compression, roll_entries=3))
    stream = ns.stream("s")
    payloads = [b"%d" % n * (n % 40) for n in range(200)]
    async with stream.writer(batch_bytes=300) as writer:
        appended = [await writer.append(payload) for payload in payloads[:20]]
        futures = [writer.append_nowait(payload) for payload in payloads[20:60]]
        batch = writer.append_batch_nowait(payloads[60:])
        appended += [await future for future in futures]
        appended += await batch
    assert [each.sequence_id for each in appended] == list(range(200))
    assert sorted(each.position for each in appended) == [each.position for each in appended]
    async with stream.reader(tail=False) as reader:
        records = [record async for record in reader]
    assert [record.payload for record in records] == payloads
    assert [record[:3] for record in records] == [
        (each.position, each.sequence_id, each.txid) for each in appended
    ]
    segments = await stream.segments()
    assert len(segments) > 5
    assert sum(s.metadata.record_count for s in segments) == 200
    assert not any(s.metadata.is_in_progress for s in segments)


async def test_a_stream_goes_on_where_the_last_writer_stopped(ns: Namespace) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    for number in range(3):
        async with stream.writer() as writer:
            assert writer.next_sequence_id == number
            where = await writer.append(b"%d" % number)
            assert (where.position.segment, where.sequence_id) == (number + 1, number)
    async with stream.writer():
        pass  # who appends nothing leaves no segment behind
    assert await read_all(stream) == [b"0", b"1", b"2"]
    assert len(await stream.segments()) == 3


async def test_one_writer_at_a_time(ns: Namespace, other: Namespace) -> None:
    await ns.create_stream("s")
    async with ns.stream("s").writer() as writer:
        await writer.append(b"x")
        with pytest.raises(WriterBusyError, match="test-") as busy:
            await other.stream("s").writer()
        assert busy.value.owner.startswith("test-")
        waiting = asyncio.ensure_future(other.stream("s").writer(wait_for_lock_s=60).__aenter__())
        await asyncio.sleep(0.05)
        assert not waiting.done()
    second = await waiting
    assert (await second.append(b"y")).sequence_id == 1
    await second.close()
    with pytest.raises(StreamNotFoundError):
        await ns.stream("none").writer()


async def test_f1_a_writer_that_was_pushed_out_appends_nothing_more(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    old = await ns.stream("s").writer()
    await old.append(b"old")
    async with other.stream("s").writer(takeover="force") as new:
        with pytest.raises(WriterFencedError):
            await old.append(b"too late")
        with pytest.raises(WriterFencedError):
            old.append_nowait(b"too late")
        assert (await new.append(b"new")).sequence_id == 1
    with pytest.raises(WriterFencedError):
        await old.close()
    assert await read_all(other.stream("s")) == [b"old", b"new"]


async def test_an_epoch_grows_with_every_takeover_and_with_nothing_else(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=1))
    epochs: list[int] = []
    for _ in range(3):
        async with ns.stream("s").writer() as writer:
            epochs.append(writer.epoch)
            for _ in range(len(epochs) - 1):  # the first one writes nothing, the others do
                await writer.append_batch([b"x"] * 3)
            assert writer.epoch == epochs[-1]
    crashed = await ns.stream("s").writer()
    await crashed.append(b"old")
    await crashed.abort()
    silent = await ns.stream("s").writer()
    async with other.stream("s").writer(takeover="force") as new:
        epochs += crashed.epoch, silent.epoch, new.epoch
        # Whoever kept the greatest epoch it has seen knows the old one by its own.
        assert epochs == sorted(set(epochs))
        with pytest.raises(WriterFencedError):
            await silent.append(b"too late")
    await silent.abort()


async def test_what_a_crashed_writer_left_is_completed(ns: Namespace, other: Namespace) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    crashed = await stream.writer()
    await crashed.append_batch([b"a", b"b"])
    await crashed.abort()
    empty = await stream.writer(takeover="if_expired")
    assert empty.next_sequence_id == 2
    # A segment in which nothing was ever stored is dropped, and its number is used again.
    await pump_of(empty).segments.ensure(pump_of(empty).state)
    await empty.abort()
    with pytest.raises(WriterBusyError, match="takeover"):
        await other.stream("s").writer(takeover="never")
    async with other.stream("s").writer() as writer:
        where = await writer.append(b"c")
    assert (where.position.segment, where.sequence_id) == (2, 2)
    assert await read_all(stream) == [b"a", b"b", b"c"]
    ledgers = [metadata.ledger_id async for metadata in ns.client.list_ledgers()]
    assert ledgers == [s.metadata.ledger_id for s in await stream.segments()]


async def test_v1_a_tailing_reader_sees_the_last_record_without_another(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=2))
    async with ns.stream("s").writer() as writer, other.stream("s").reader() as reader:
        for number in range(7):
            where = await writer.append(b"%d" % number)
            record = await anext(reader)
            assert (record.payload, record.position) == (b"%d" % number, where.position)
            assert record.appended_at_ms is not None


async def test_flush_makes_what_was_appended_visible(ns: Namespace, other: Namespace) -> None:
    await ns.create_stream("s")
    async with ns.stream("s").writer(visibility_delay_s=3600) as writer:
        writer.append_nowait(b"x")
        await writer.flush()
        assert await read_all(other.stream("s")) == [b"x"]


async def test_a_reader_begins_where_it_is_told(ns: Namespace) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=4))
    stream = ns.stream("s")
    async with stream.writer() as writer:
        for number in range(20):
            await writer.append_batch([b"%d.%d" % (number, k) for k in range(3)],
                                      txids=[10 * number] * 3)  # fmt: skip
        await writer.flush()
        everything = await read_all(stream)
        assert len(everything) == 60
        for sequence_id in 0, 1, 11, 12, 35, 59:
            assert await read_all(stream, SequenceId(sequence_id)) == everything[sequence_id:]
            assert (await stream.get(SequenceId(sequence_id))).payload == everything[sequence_id]
        for txid, first in (0, 0), (10, 3), (11, 6), (120, 36), (190, 57), (191, 60):
            assert await read_all(stream, TxId(txid)) == everything[first:]
        last = await stream.get(SequenceId(59))
        assert await read_all(stream, last.position) == everything[59:]
        assert await read_all(stream, "latest") == []
        with pytest.raises(NoSuchEntryError):
            await stream.get(SequenceId(60))
        assert await read_all(stream, datetime(2020, 1, 1, tzinfo=UTC)) == everything
        assert await read_all(stream, datetime(2200, 1, 1, tzinfo=UTC)) == []
        async with stream.reader(tail=False) as reader:
            for place, first in (SequenceId(35), 35), (TxId(120), 36), ("earliest", 0):
                await reader.seek(place)
                assert [record.payload async for record in reader] == everything[first:]
        # Who has read nothing yet says so by its position, from which it goes on all the same.
        async with stream.reader() as reader:
            unread = reader.position
        assert await read_all(stream, unread) == everything
        async with stream.reader("latest") as reader:
            await writer.append(b"new", txid=200)
            assert (await anext(reader)).payload == b"new"


@pytest.mark.parametrize("already", [0, 2])
@pytest.mark.parametrize("start", [TxId(10), SequenceId(2), datetime(2000, 1, 1, tzinfo=UTC)])
async def test_what_is_looked_for_may_be_in_a_segment_that_begins_meanwhile(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch, already: int, start: object
) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")

    async def write(first: int, count: int) -> None:
        async with stream.writer() as writer:
            for number in range(first, first + count):
                await writer.append(b"%d" % number, txid=number * 5)

    await write(0, already)
    end_of = seek.end_position
    late = [(already, 3)]

    async def end_position(context: StreamContext) -> Position:
        if late:
            await write(*late.pop())
        return await end_of(context)

    monkeypatch.setattr(seek, "end_position", end_position)
    first = 0 if isinstance(start, datetime) else 2
    found = await read_all(stream, start)
    if late:  # there was a record to be led to
        assert (already, first) == (2, 0)
    else:
        assert found == [b"%d" % number for number in range(first, already + 3)]


async def test_a_reader_stops_before_its_end_and_goes_on_after_a_break(ns: Namespace) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=2))
    stream = ns.stream("s")
    async with stream.writer() as writer:
        where = [w for n in range(5) for w in await writer.append_batch([b"%d" % n] * 3)]
        await writer.flush()
        for first, last in (0, 15), (4, 7), (7, 7), (3, 13):
            end = where[last].position if last < 15 else Position(99, 0, 0)
            async with stream.reader(where[first].position, end=end, tail=last < 15) as reader:
                found = [record.sequence_id async for record in reader]
            assert found == list(range(first, last))
        async with stream.reader(tail=False) as reader:
            async for record in reader:
                if record.sequence_id == 4:
                    break
            assert reader.position == where[5].position
            chunk = await reader.read(3)
            assert [record.sequence_id for record in chunk] == [5, 6, 7]
            assert [r.sequence_id for r in await reader.read(100, wait_s=None)] == [*range(8, 15)]
            assert await reader.read(100) == []
            await reader.seek(where[14].position)
            assert [r.sequence_id for r in await reader.read()] == [14]


async def test_a_chunk_waits_no_longer_than_it_may_and_loses_nothing(ns: Namespace) -> None:
    await ns.create_stream("s")
    async with ns.stream("s").writer() as writer, ns.stream("s").reader() as reader:
        assert await reader.read(wait_s=0.01) == []
        await writer.append(b"a")
        assert [r.payload for r in await reader.read(wait_s=None)] == [b"a"]
        assert await reader.read(wait_s=0.01) == []
        await writer.append(b"b")
        assert (await anext(reader)).payload == b"b"


async def test_transaction_ids_are_held_to_their_order(ns: Namespace) -> None:
    await ns.create_stream("s")
    async with ns.stream("s").writer() as writer:
        assert (await writer.append(b"a")).txid == 0
        assert (await writer.append(b"b", txid=7)).txid == 7
        with pytest.raises(TxidOutOfOrderError):
            writer.append_nowait(b"c", txid=6)
        with pytest.raises(TxidOutOfOrderError):
            writer.append_batch_nowait([b"c", b"d"], txids=[9, 8])
        assert (await writer.append(b"c")).txid == 8
    async with ns.stream("s").writer() as writer:
        with pytest.raises(TxidOutOfOrderError):
            writer.append_nowait(b"d", txid=7)
        assert (await writer.append(b"d", txid=8)).sequence_id == 3


async def test_x3_an_expected_sequence_id_is_a_condition(ns: Namespace) -> None:
    await ns.create_stream("s")
    async with ns.stream("s").writer() as writer:
        await writer.append(b"a", expected_sequence=0)
        with pytest.raises(SequenceConflictError) as conflict:
            await writer.append(b"b", expected_sequence=0)
        assert conflict.value.actual == 1
        await writer.append_batch([b"b", b"c"], expected_sequence=1)
        assert writer.next_sequence_id == 3


async def test_an_atomic_batch_is_one_entry_or_refused(ns: Namespace) -> None:
    await ns.create_stream("s", policy=StreamPolicy(max_record_bytes=1_040_364))
    async with ns.stream("s").writer(batch_bytes=100) as writer:
        writer.append_nowait(b"before")
        batch = await writer.append_batch([b"x" * 60] * 50, atomic=True)
        assert len({each.position.entry for each in batch}) == 1
        loose = await writer.append_batch([b"x" * 60] * 50)
        assert len({each.position.entry for each in loose}) == 50
        with pytest.raises(RecordTooLargeError):
            await writer.append_batch([b"x" * 600_000] * 2, atomic=True)
        largest = 1_040_364
        await writer.append(b"y" * largest)
        with pytest.raises(RecordTooLargeError):
            await writer.append(b"y" * (largest + 1))


@pytest.mark.parametrize("compression", ["none", "lz4"])
async def test_a_record_set_is_one_record_to_the_format(ns: Namespace, compression: str) -> None:
    await ns.create_stream("s", policy=StreamPolicy(compression=compression))
    stream, payloads = ns.stream("s"), [b"%d" % n * 30 for n in range(40)]
    async with stream.writer(producer="p") as writer:
        await writer.append(b"before")
        stored = await writer.append_batch(payloads, atomic="set")
        assert len({each.position.entry for each in stored}) == 1
        assert {each.txid for each in stored} == {1}
        assert (await writer.append_batch(payloads, producer_seq=1))[39].position == (
            stored[39].position
        )
        with pytest.raises(TxidOutOfOrderError, match="one transaction id"):
            await writer.append_batch([b"a", b"b"], txids=[5, 6], atomic="set")
        with pytest.raises(RecordTooLargeError):
            await writer.append_batch([os.urandom(520_000)] * 2 + [os.urandom(9000)], atomic="set")
        assert (await writer.append(b"after")).sequence_id == 41
    async with stream.reader(tail=False) as reader:
        records = [record async for record in reader]
    assert [record.payload for record in records] == [b"before", *payloads, b"after"]
    assert [record.sequence_id for record in records] == list(range(42))
    assert [record.position for record in records[1:41]] == [each.position for each in stored]


async def test_e1_a_sealed_stream_ends(ns: Namespace, other: Namespace) -> None:
    await ns.create_stream("s")
    async with other.stream("s").reader() as reader:
        async with ns.stream("s").writer() as writer:
            await writer.append(b"last")
            await writer.seal()
            with pytest.raises(StreamSealedError):
                await writer.append(b"more")
        assert [record.payload async for record in reader] == [b"last"]
    with pytest.raises(StreamSealedError):
        await ns.stream("s").writer()
    info = await ns.stream("s").info()
    assert info.is_sealed
    assert not info.writer
    # One that begins behind the end has nothing to wait for either.
    async with other.stream("s").reader("latest") as reader:
        assert [record async for record in reader] == []


async def test_a_segment_is_rolled_by_bytes_by_count_by_hand_and_by_age(ns: Namespace) -> None:
    await ns.create_stream("bytes", policy=StreamPolicy(roll_bytes=1000))
    async with ns.stream("bytes").writer() as writer:
        for _ in range(10):
            await writer.append(b"x" * 300)
    assert len(await ns.stream("bytes").segments()) == 4
    await ns.create_stream("hand")
    async with ns.stream("hand").writer() as writer:
        await writer.append(b"a")
        await writer.roll()
        await writer.roll()
        await writer.append(b"b")
    assert len(await ns.stream("hand").segments()) == 2
    await ns.create_stream("age", policy=StreamPolicy(roll_interval_s=0.05))
    stream = ns.stream("age")
    async with stream.writer() as writer:
        await writer.append(b"a")
        async with asyncio.timeout(60):
            while (await stream.segments())[0].metadata.is_in_progress:
                await asyncio.sleep(0.01)
        assert (await writer.append(b"b")).position.segment == 2


async def test_ledgers_say_whose_they_are_and_none_is_left_behind(ns: Namespace) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=4))
    async with ns.stream("s").writer() as writer:
        for _ in range(7):  # the next ledger is made ahead by then
            await writer.append(b"x")
    segments = await ns.stream("s").segments()
    found = [metadata async for metadata in ns.client.list_ledgers()]
    assert {m.ledger_id for m in found} == {s.metadata.ledger_id for s in segments}
    assert {m.custom_metadata["stream"] for m in found} == {b"s"}
    await ns.delete_stream("s")
    assert [metadata async for metadata in ns.client.list_ledgers()] == []


async def test_c1_cancelling_an_append_does_not_take_it_back(ns: Namespace) -> None:
    await ns.create_stream("s")
    async with ns.stream("s").writer() as writer:
        task = asyncio.ensure_future(writer.append(b"x"))
        await asyncio.sleep(0)
        task.cancel()
        await writer.append(b"y")
    assert await read_all(ns.stream("s")) == [b"x", b"y"]
