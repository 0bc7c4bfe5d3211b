"""Records that are put one a call, without a future each: the same records, in the same order."""

from __future__ import annotations

import asyncio
import random

import pytest
from test_streams_write_read import read_all

from doubles.inside import end_ledger_under
from quorumbook.errors import (
    BackpressureError,
    LedgerClosedError,
    LedgerFencedError,
    LocalProtocolError,
)
from quorumbook.streams import Namespace, Record, Stream, StreamPolicy, StreamWriter
from quorumbook.streams.errors import (
    QuotaExceededError,
    RecordTooLargeError,
    SequenceConflictError,
    WriterFencedError,
)


async def records_of(stream: Stream) -> list[Record]:
    async with stream.reader(tail=False) as reader:
        return [record async for record in reader]


async def put(writer: StreamWriter, payload: bytes, **options: object) -> int:
    while True:
        try:
            return writer.put(payload, **options)
        except BackpressureError:
            await writer.drain()


@pytest.mark.parametrize("seed", range(4))
async def test_calls_of_every_kind_keep_their_order(ns: Namespace, seed: int) -> None:
    """Sizes from nothing to chunks, with and without what records carry, in any order of calls."""
    dice = random.Random(seed)
    await ns.create_stream("s", policy=StreamPolicy(roll_bytes=2_000_000))
    expected: list[tuple[bytes, bytes | None]] = []
    told: list[tuple[int, object]] = []
    async with ns.stream("s").writer(
        batch_bytes=dice.choice([200, 4096, 65536]), max_pending_records=50, retention_interval_s=0
    ) as writer:
        for number in range(600):
            size = dice.choice([0, 1, 50, 50, 50, 3000, 70_000])
            payload = b"%d " % number + bytes(size)
            key = dice.choice([None, None, b"key%d" % number])
            expected.append((payload, key))
            try:
                way = dice.randrange(4)
                if way < 2:
                    told.append((number, await put(writer, payload, key=key)))
                elif way == 2:
                    told.append((number, writer.append_nowait(payload, key=key)))
                else:
                    told.append((number, await writer.append(payload, key=key)))
            except BackpressureError:
                await writer.drain()
                told.append((number, await put(writer, payload, key=key)))
            if not dice.randrange(30):
                await asyncio.sleep(0)
            if not dice.randrange(100):
                await writer.confirmed(writer.next_sequence_id - 1)
                assert writer.pending_records == 0
        await writer.flush()
    found = await records_of(ns.stream("s"))
    assert [(record.payload, record.key) for record in found] == expected
    for number, what in told:
        record = found[number]
        if isinstance(what, int):
            assert what == record.sequence_id
        else:
            where = await what if isinstance(what, asyncio.Future) else what
            assert where[:3] == record[:3]


async def test_a_ticket_is_the_sequence_id_of_the_record_or_of_its_last_chunk(
    ns: Namespace,
) -> None:
    await ns.create_stream("s")
    async with ns.stream("s").writer() as writer:
        assert [writer.put(b"a"), writer.put(bytes(3_000_000)), writer.put(b"b")] == [0, 4, 5]
        assert (writer.next_sequence_id, writer.last_txid) == (6, 2)
        await writer.confirmed(4)
        await writer.confirmed(-1)
        with pytest.raises(LocalProtocolError, match="no record has sequence id 6"):
            await writer.confirmed(6)
    assert await read_all(ns.stream("s")) == [b"a", bytes(3_000_000), b"b"]


async def test_what_is_confirmed_is_stored_and_what_comes_later_is_not_waited_for(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    async with ns.stream("s").writer() as writer:
        first = writer.put(b"a")
        await writer.confirmed(first)
        waiting = [asyncio.ensure_future(writer.confirmed(writer.put(b"b"))) for _ in range(3)]
        cancelled = asyncio.ensure_future(writer.confirmed(3))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(*waiting)
        assert writer.pending_records == 0
    assert await read_all(other.stream("s")) == [b"a", b"b", b"b", b"b"]


async def test_small_entries_give_the_window_back_while_others_are_on_their_way(
    ns: Namespace,
) -> None:
    await ns.create_stream("s")
    options = {"batch_bytes": 1, "max_in_flight_entries": 1, "max_pending_records": 80}
    async with ns.stream("s").writer(**options) as writer:
        last = [writer.put(b"%d" % number) for number in range(80)][-1]
        with pytest.raises(BackpressureError):
            writer.put(b"one too many")
        await writer.confirmed(last // 2)
        assert writer.pending_records < 80
    assert await read_all(ns.stream("s")) == [b"%d" % number for number in range(80)]


async def test_a_writer_that_was_pushed_out_says_so_to_whoever_put(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    old = await ns.stream("s").writer()
    await old.confirmed(old.put(b"old"))
    async with other.stream("s").writer(takeover="force") as new:
        lost = old.put(b"too late")
        with pytest.raises(WriterFencedError):
            await old.confirmed(lost)
        await old.confirmed(lost - 1)
        for call in (old.drain, old.flush, old.close):
            with pytest.raises(WriterFencedError):
                await call()
        with pytest.raises(WriterFencedError):
            old.put(b"too late")
        await new.append(b"new")
    assert await read_all(other.stream("s")) == [b"old", b"new"]


async def test_an_aborted_writer_takes_nothing_and_fails_what_was_gathered(ns: Namespace) -> None:
    await ns.create_stream("s")
    writer = await ns.stream("s").writer()
    ticket = writer.put(b"a")
    waiting = asyncio.ensure_future(writer.confirmed(ticket))
    await asyncio.sleep(0)
    later = writer.put(b"b")
    await writer.abort()
    for call in (waiting, writer.confirmed(later)):
        with pytest.raises(LedgerClosedError):
            await call
    with pytest.raises(LedgerClosedError):
        writer.put(b"c")


async def test_what_was_put_before_a_close_is_stored(ns: Namespace) -> None:
    await ns.create_stream("s")
    writer = await ns.stream("s").writer()
    writer.put(b"a")
    await writer.roll()
    writer.put(b"b")
    await writer.close()
    with pytest.raises(LedgerClosedError):
        writer.put(b"c")
    assert await read_all(ns.stream("s")) == [b"a", b"b"]
    async with ns.stream("s").writer() as second:
        assert second.put(b"c") == 2
        with pytest.raises(SequenceConflictError, match="gets sequence id 3, not 2"):
            await second.append(b"d", expected_sequence=2)
        await second.seal()
    assert await read_all(ns.stream("s")) == [b"a", b"b", b"c"]


async def test_the_window_is_never_overdrawn(ns: Namespace) -> None:
    await ns.create_stream("s")
    async with ns.stream("s").writer(max_pending_records=100, max_pending_bytes=50_000) as writer:
        for size, most in ((0, 100), (1000, 50_000 // 1300), (60_000, 1)):
            count = 0
            with pytest.raises(BackpressureError, match="max_pending_records is 100"):
                while True:
                    writer.put(bytes(size))
                    count += 1
            assert count == most
            assert writer.pending_records == most
            await writer.flush()


@pytest.mark.parametrize("max_record_bytes", [100, 100_000])
async def test_what_the_policy_refuses_is_refused_by_the_call(
    ns: Namespace, max_record_bytes: int
) -> None:
    await ns.create_stream("s", policy=StreamPolicy(max_record_bytes=max_record_bytes))
    async with ns.stream("s").writer() as writer:
        for _ in range(3):
            writer.put(bytes(max_record_bytes))
            writer.put(bytes(max_record_bytes - 60), key=b"k")
            with pytest.raises(RecordTooLargeError, match="max_record_bytes"):
                writer.put(bytes(max_record_bytes + 1))
            with pytest.raises(RecordTooLargeError, match="max_record_bytes"):
                writer.put(bytes(max_record_bytes), key=b"k")
    assert len(await read_all(ns.stream("s"))) == 6


async def test_a_quota_is_never_overdrawn(ns: Namespace) -> None:
    await ns.create_stream("s", policy=StreamPolicy(max_total_bytes=100_000))
    async with ns.stream("s").writer() as writer:
        count = 0
        with pytest.raises(QuotaExceededError):
            while True:
                writer.put(bytes(700))
                count += 1
    assert count * 700 <= 100_000 < (count + 1) * 700 + 1000
    assert len(await read_all(ns.stream("s"))) == count


async def test_a_segment_that_fails_loses_and_doubles_nothing_of_what_was_put(
    ns: Namespace,
) -> None:
    await ns.create_stream("s")
    async with ns.stream("s").writer(batch_bytes=500) as writer:
        for number in range(400):
            ticket = await put(writer, b"%d" % number)
            assert ticket == number
            if number % 100 == 50:
                await writer.confirmed(ticket)
            if number % 100 == 80:
                await asyncio.sleep(0)
                end_ledger_under(writer, LedgerFencedError("a bookie refuses adds"))
        await writer.confirmed(399)
    assert await read_all(ns.stream("s")) == [b"%d" % number for number in range(400)]
    assert len(await ns.stream("s").segments()) > 1


async def test_a_producers_numbers_go_with_what_is_put(ns: Namespace) -> None:
    await ns.create_stream("s")
    async with ns.stream("s").writer(producer="p") as writer:
        assert [writer.put(b"%d" % number) for number in range(3)] == [0, 1, 2]
        assert writer.put(b"3", producer_seq=3) == 3
        # Used before, on its way or stored: what was appended up to now covers the original.
        assert writer.put(b"again", producer_seq=3) == 3
        assert writer.put(b"again", producer_seq=0) == 3
        assert writer.put(b"10", producer_seq=10) == 4
        assert (await writer.append(b"again", producer_seq=10)).duplicate
        await writer.flush()
        assert writer.put(b"again", producer_seq=2) == 4
        assert writer.put(b"11") == 5
        assert writer.last_number() == 11
        with pytest.raises(LocalProtocolError, match="must not be negative"):
            writer.put(b"x", producer_seq=-1)
    async with ns.stream("s").writer(producer="p") as second:
        assert second.last_number() == 11
        where = await second.append(b"again", producer_seq=10)
        assert (where.duplicate, where.sequence_id) == (True, 4)
    assert await read_all(ns.stream("s")) == [b"0", b"1", b"2", b"3", b"10", b"11"]
    async with ns.stream("s").writer() as plain:
        with pytest.raises(LocalProtocolError, match="needs a writer with a producer"):
            plain.put(b"x", producer_seq=1)


async def test_times_of_a_stream_by_timestamp_do_not_go_back(ns: Namespace) -> None:
    await ns.create_stream("s", policy=StreamPolicy(txid="timestamp"))
    async with ns.stream("s").writer() as writer:
        for _ in range(50):
            writer.put(b"x")
            await asyncio.sleep(0)
    txids = [record.txid for record in await records_of(ns.stream("s"))]
    assert txids == sorted(txids)
    assert txids[0] > 1_600_000_000_000
