"""The promises of docs/streams.md that need something to go wrong."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from doubles.cut_network import CutNetwork
from doubles.inside import end_ledger_under, pump_of, segment_nodes_of
from quorumbook.client.context import client_store
from quorumbook.env import Env
from quorumbook.errors import (
    LedgerFencedError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
)
from quorumbook.ledger.metadata import LedgerState
from quorumbook.streams import (
    Appended,
    Namespace,
    Position,
    Record,
    SequenceId,
    Stream,
    StreamPolicy,
    StreamReader,
    TxId,
)
from quorumbook.streams.errors import (
    CorruptRecordsError,
    DataLossError,
    PositionTruncatedError,
    ReaderIdleError,
    WriterFencedError,
)
from quorumbook.streams.stream_context import stream_context
from quorumbook.testing import LocalCluster
from streams.soundness import assert_sound, unnamed_ledgers


async def read_all(stream: Stream, start: object = "earliest", **options: object) -> list[bytes]:
    async with stream.reader(start, tail=False, **options) as reader:
        return [record.payload async for record in reader]


async def test_d1_what_was_acknowledged_survives_the_death_of_all_bookies() -> None:
    async with LocalCluster(bookies=3, processes=True) as cluster:
        async with Namespace.open(cluster.metadata_uri, bind=True) as ns:
            await ns.create_stream("s")
            writer = await ns.stream("s").writer()
            await writer.append_batch([b"%d" % n for n in range(100)])
            for bookie_id in cluster.bookie_ids:
                await cluster.kill(bookie_id)
            await writer.abort()
        for bookie_id in cluster.bookie_ids:
            await cluster.restart(bookie_id)
        async with Namespace.open(cluster.metadata_uri) as ns:
            await ns.stream("s").recover()
            assert await read_all(ns.stream("s")) == [b"%d" % n for n in range(100)]


async def test_k1_what_was_read_once_is_read_for_ever(ns: Namespace, other: Namespace) -> None:
    """Readers at the tail and of the whole, while writers crash, are pushed out and fail over."""
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=4))
    stream = ns.stream("s")
    lives = 4

    async def follow(reader: StreamReader) -> list[Record]:
        return [record async for record in reader]

    async with other.stream("s").reader() as reader:
        following = asyncio.ensure_future(follow(reader))
        sent = 0
        for life in range(lives):
            writer = await stream.writer(takeover="force", batch_bytes=1)
            for _ in range(5):
                futures = [writer.append_nowait(b"%d" % n) for n in range(sent, sent + 3)]
                sent += 3
                await futures[0]
            if life % 2:
                await writer.flush()
                tail = pump_of(writer).state.tail
                if tail is not None:
                    end_ledger_under(writer, LedgerFencedError("a bookie refuses adds"))
                    await writer.append(b"%d" % sent)
                    sent += 1
            before = await records_of(stream)
            await writer.abort()
            async with other.stream("s").reader(tail=False) as late:
                again = [record async for record in late]
            assert again[: len(before)] == before
        async with stream.writer(takeover="force") as writer:
            await writer.seal()
        seen = await following
    assert len(seen) >= lives * 13
    assert seen == await records_of(stream)
    payloads = [int(record.payload) for record in seen]
    assert payloads == sorted(set(payloads))


async def records_of(stream: Stream) -> list[Record]:
    async with stream.reader(tail=False) as reader:
        return [record async for record in reader]


@pytest.mark.parametrize("in_flight", [1, 2, 7, 40])
async def test_x1_records_in_flight_when_a_segment_fails_are_stored_once(
    ns: Namespace, other: Namespace, in_flight: int
) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    async with stream.writer(batch_bytes=1, max_in_flight_entries=8) as writer:
        await writer.append(b"first")
        (segment,) = await stream.segments()
        futures = [writer.append_nowait(b"%d" % n) for n in range(in_flight)]
        await asyncio.sleep(0)
        # Nobody took the stream over: bookies refuse adds by themselves, as they do in limbo.
        end_ledger_under(writer, LedgerFencedError("a bookie refuses adds"))
        futures.append(writer.append_nowait(b"behind"))
        appended = [await future for future in futures]
        await writer.append(b"last")
        assert appended[-1].ledger_id != segment.metadata.ledger_id
    assert [each.sequence_id for each in appended] == list(range(1, in_flight + 2))
    assert appended[-1].position.segment > 1
    async with other.stream("s").reader(tail=False) as reader:
        records = [record async for record in reader]
    assert [r.payload for r in records] == [
        b"first", *[b"%d" % n for n in range(in_flight)], b"behind", b"last",
    ]  # fmt: skip
    assert [r.position for r in records[1:-1]] == [each.position for each in appended]


@pytest.mark.parametrize("in_flight", [0, 1, 40])
async def test_f1_a_fence_alone_stops_a_writer_that_has_the_lock(
    ns: Namespace, other: Namespace, in_flight: int
) -> None:
    """There are writers that take no lock: whoever recovers the ledger is one, and may go on."""
    await ns.create_stream("s")
    stream = ns.stream("s")
    writer = await stream.writer(batch_bytes=1, max_in_flight_entries=8)
    safe = [await writer.append(b"first")]
    (segment,) = await stream.segments()
    futures = [writer.append_nowait(b"%d" % n) for n in range(in_flight)]
    await asyncio.sleep(0)
    async with other.client.open_ledger(segment.metadata.ledger_id):
        with pytest.raises(WriterFencedError):
            await writer.append(b"too late")
    for future in futures:
        with contextlib.suppress(WriterFencedError):
            safe.append(await future)
    with pytest.raises(WriterFencedError):
        await writer.close()
    # It has completed nothing and begun nothing: the one that fenced it finds all as it was.
    assert await stream.segments() == [segment]
    async with other.stream("s").writer(takeover="force") as following:
        await following.append(b"next")
    records = await records_of(other.stream("s"))
    payloads = [b"first", *[b"%d" % n for n in range(in_flight)], b"too late"]
    assert [record.payload for record in records] == [*payloads[: len(records) - 1], b"next"]
    assert [r.position for r in records[: len(safe)]] == [each.position for each in safe]


async def test_f1_a_fence_stops_a_writer_also_after_a_segment_that_failed(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    writer = await ns.stream("s").writer()
    await writer.append(b"0")
    end_ledger_under(writer, LedgerFencedError("a bookie refuses adds"))
    where = await writer.append(b"1")
    async with other.client.open_ledger(where.ledger_id):
        with pytest.raises(WriterFencedError):
            await writer.append(b"too late")
    await writer.abort()


@pytest.mark.parametrize("ending", ["roll", "close"])
async def test_f1_a_writer_whose_ledger_was_recovered_rolls_and_closes_no_more(
    ns: Namespace, other: Namespace, ending: str
) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    writer = await stream.writer()
    await writer.append(b"first")
    (segment,) = await stream.segments()
    # It is to be recovered by somebody who has not come further than that.
    ledgers = other.client._running().ledgers
    metadata, version = await ledgers.read(segment.metadata.ledger_id)
    await ledgers.write(replace(metadata, state=LedgerState.IN_RECOVERY), version)
    with pytest.raises(WriterFencedError):
        await getattr(writer, ending)()
    assert await stream.segments() == [segment]
    await writer.abort()


async def test_x1_a_segment_that_failed_is_ended_in_as_many_tries_as_it_takes(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it did itself in an earlier try is not taken for another writer's work."""
    await ns.create_stream("s")
    async with ns.stream("s").writer() as writer:
        await writer.append(b"first")
        nodes = segment_nodes_of(writer)
        complete, failures = nodes.complete_segment, 2

        async def failing(*args: Any) -> None:
            nonlocal failures
            if failures:
                failures -= 1
                raise MetadataUnavailableError("nobody answers")
            await complete(*args)

        monkeypatch.setattr(nodes, "complete_segment", failing)
        end_ledger_under(writer, LedgerFencedError("a bookie refuses adds"))
        where = await writer.append(b"second")
        assert (failures, where.position.segment) == (0, 2)
    assert await read_all(ns.stream("s")) == [b"first", b"second"]


async def test_x1_a_writer_waits_for_bookies_and_goes_on(cluster: LocalCluster) -> None:
    address = f"{cluster.metadata_uri}#/patient"
    options = {"add_timeout_s": 0.2, "add_quorum_timeout_s": 0.5, "quarantine_s": 0.1}
    async with Namespace.open(address, bind=True, **options) as ns:
        await ns.create_stream("s")
        async with ns.stream("s").writer() as writer:
            await writer.append(b"a")
            for bookie_id in cluster.bookie_ids[1:]:
                await cluster.stop(bookie_id)
            futures = [writer.append_nowait(b"%d" % n) for n in range(20)]
            (first,) = await ns.stream("s").segments()
            async with asyncio.timeout(60):
                # It ends the segment behind what is safe, which needs no bookie.
                while first.metadata.is_in_progress:
                    await asyncio.sleep(0.01)
                    (first,) = await ns.stream("s").segments()
            assert not any(future.done() for future in futures)
            for bookie_id in cluster.bookie_ids[1:]:
                await cluster.restart(bookie_id)
            found = [await future for future in futures]
            assert found[-1].ledger_id != first.metadata.ledger_id
        assert await read_all(ns.stream("s")) == [b"a", *[b"%d" % n for n in range(20)]]


async def test_x1_what_was_stored_when_the_ledger_failed_is_not_sent_again(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    async with ns.stream("s").writer(batch_bytes=1) as writer:
        found = [await writer.append(b"0")]
        for in_flight in 1, 2, 9:
            futures = [writer.append_nowait(b"%d" % (len(found) + n)) for n in range(in_flight)]
            async with asyncio.timeout(60):
                while pump_of(writer).state.in_flight < in_flight:
                    assert not any(future.done() for future in futures)
                    await asyncio.sleep(0)
            # As if answers had been lost: bookies go on and store all of it.
            end_ledger_under(writer, NotEnoughBookiesError("answers are lost"))
            found += [await future for future in futures]
            assert found[-1].position.segment == found[-1 - in_flight].position.segment
            found.append(await writer.append(b"%d" % len(found)))
            assert found[-1].position.segment == found[-2].position.segment + 1
    records = await records_of(other.stream("s"))
    assert [record.payload for record in records] == [b"%d" % n for n in range(len(found))]
    assert [record.position for record in records] == [each.position for each in found]


async def test_x1_an_ensemble_that_fails_with_any_number_of_adds_in_flight(
    cluster: LocalCluster, other: Namespace
) -> None:
    """Two of three bookies, or all, are cut off some turns of the loop later."""
    network = CutNetwork()
    options = {"add_timeout_s": 0.5, "add_quorum_timeout_s": 0.5, "quarantine_s": 0.1}
    address = f"{cluster.metadata_uri}#{other.path}"
    ports = [int(bookie_id.rpartition(":")[2]) for bookie_id in cluster.bookie_ids]
    async with Namespace.open(address, env=Env(network=network), **options) as ns:
        await ns.create_stream("s")
        stream = ns.stream("s")
        found: list[Appended] = []
        async with stream.writer(batch_bytes=1, max_in_flight_entries=12) as writer:
            for in_flight in (*range(1, 13), 30):
                found.append(await writer.append(b"%d" % len(found)))
                number = found[-1].position.segment
                futures = [writer.append_nowait(b"%d" % (len(found) + n)) for n in range(in_flight)]
                for _ in range(in_flight % 5):
                    await asyncio.sleep(0)
                network.cut(ports[in_flight % 3 :] + ports[: max(0, in_flight % 3 - 1)])
                async with asyncio.timeout(60):
                    # It ends the segment behind what is safe, which needs no bookie.
                    while not all(f.done() for f in futures) and await is_open(stream, number):
                        await asyncio.sleep(0.01)
                network.heal()
                found += [await future for future in futures]
        assert found[-1].position.segment > 6
        assert [each.sequence_id for each in found] == list(range(len(found)))
        records = await records_of(other.stream("s"))
        assert [record.payload for record in records] == [b"%d" % n for n in range(len(found))]
        assert [record.position for record in records] == [each.position for each in found]
        await assert_sound(other.stream("s"))
        assert await unnamed_ledgers(other.stream("s")) == set()


async def test_a_writer_may_end_with_the_segment_that_fails(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    writer = await ns.stream("s").writer(batch_bytes=1, on_segment_error="fail")
    await writer.append(b"safe")
    # Answers are lost, and bookies store what they were sent.
    futures = [writer.append_nowait(b"%d" % n) for n in range(3)]
    end_ledger_under(writer, NotEnoughBookiesError("answers are lost"))
    with pytest.raises(NotEnoughBookiesError, match="answers are lost"):
        await asyncio.gather(*futures)
    assert all(future.exception() for future in futures)
    with pytest.raises(NotEnoughBookiesError):
        await writer.append(b"late")
    with pytest.raises(NotEnoughBookiesError):
        await writer.close()
    async with other.stream("s").writer() as following:
        stored = following.next_sequence_id - 1
        await following.append(b"next")
    # It appended nothing to another segment: there is what was stored, in order.
    payloads = [b"safe", *[b"%d" % n for n in range(stored)], b"next"]
    assert await read_all(other.stream("s")) == payloads
    assert len(await other.stream("s").segments()) == 2


async def test_a_record_that_is_safe_is_told_so_though_others_of_its_turn_are_not(
    ns: Namespace,
) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    writer = await stream.writer(batch_bytes=1, max_in_flight_entries=1, on_segment_error="fail")
    await writer.append(b"first")
    futures = [writer.append_nowait(b"%d" % n) for n in range(3)]
    async with asyncio.timeout(60):
        while pump_of(writer).state.confirmed_to < 2:
            await asyncio.sleep(0)
    end_ledger_under(writer, NotEnoughBookiesError("answers are lost"))
    assert (await futures[0]).sequence_id == 1
    with pytest.raises(NotEnoughBookiesError):
        await futures[2]
    with pytest.raises(NotEnoughBookiesError):
        await writer.close()
    async with stream.writer() as following:
        assert following.next_sequence_id >= 2


async def test_a_writer_that_ends_with_its_segment_says_that_it_was_pushed_out(
    ns: Namespace, other: Namespace
) -> None:
    await ns.create_stream("s")
    old = await ns.stream("s").writer(on_segment_error="fail")
    await old.append(b"old")
    async with other.stream("s").writer(takeover="force"):
        with pytest.raises(WriterFencedError):
            await old.append(b"late")
    await old.abort()


async def is_open(stream: Stream, number: int) -> bool:
    return any(
        segment.metadata.number == number and segment.metadata.is_in_progress
        for segment in await stream.segments()
    )


async def test_t1_truncation_is_exact_to_the_record(ns: Namespace, other: Namespace) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=2))
    stream = ns.stream("s")
    async with stream.writer() as writer:
        where = [w for n in range(9) for w in await writer.append_batch([b"%d" % n, b"+", b"-"])]
        await writer.flush()
        everything = await read_all(stream)
        assert (await stream.segments())[-1].metadata.is_in_progress
        for first in 2, 3, 6, 7, 13, 25:
            assert await stream.truncate(where[first].position, dry_run=True)
            assert await stream.truncate(SequenceId(first))
            assert await read_all(other.stream("s")) == everything[first:]
            assert (await other.stream("s").get(SequenceId(first))).sequence_id == first
            with pytest.raises(PositionTruncatedError) as caught:
                await read_all(stream, where[first - 1].position)
            assert await read_all(stream, caught.value.first) == everything[first:]
            with pytest.raises(PositionTruncatedError):
                await stream.get(SequenceId(0))
            skipping = await read_all(stream, where[0].position, on_truncated="skip")
            assert skipping == everything[first:]
            # What is truncated stays so.
            assert await stream.truncate(where[first - 1].position) == []
        await writer.append(b"more")
    # The segment that was in progress kept it when it was completed.
    assert await read_all(stream) == [*everything[25:], b"more"]
    assert (await stream.get(SequenceId(27))).payload == b"more"


async def test_a_stream_is_cut_at_every_kind_of_place(ns: Namespace) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=2))
    stream = ns.stream("s")
    async with stream.writer() as writer:
        for number in range(8):
            await writer.append(b"%d" % number, txid=10 * number)
            # The next one is appended at another time.
            await asyncio.sleep(0.002)
        await writer.flush()
        (third, *_, last) = [record async for record in records_from(stream, 3)]
        for cut, left in (
            (SequenceId(1), 7), (TxId(11), 6), (third.position, 5),
            (datetime.fromtimestamp((last.appended_at_ms or 0) / 1000, UTC), 1),
        ):  # fmt: skip
            assert await writer.truncate(cut)
            assert await read_all(stream) == [b"%d" % n for n in range(8 - left, 8)]


async def records_from(stream: Stream, first: int) -> AsyncIterator[Record]:
    async with stream.reader(SequenceId(first), tail=False) as reader:
        async for record in reader:
            yield record


async def test_g1_a_hole_is_an_error_that_names_it(ns: Namespace) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=1))
    stream = ns.stream("s")
    nodes = stream_context(stream).nodes
    async with stream.writer() as writer:
        for number in range(5):
            await writer.append_batch([b"%d" % number] * 2)
    segments = [segment.metadata for segment in await stream.segments()]
    # A segment is said to have had more records than it has.
    await nodes.replace_segment(segments[3], replace(segments[3], record_count=5))
    with pytest.raises(DataLossError, match="sequence ids 8 to 10 are missing"):
        await read_all(stream)
    await nodes.replace_segment(replace(segments[3], record_count=5), segments[3])
    # The next one begins later than the last one ended.
    await nodes.replace_segment(segments[4], replace(segments[4], start_sequence_id=10))
    with pytest.raises(DataLossError, match=r"sequence ids 8 to 9 .* missing before position 5"):
        await read_all(stream)
    await ns.client.delete_ledger(segments[2].ledger_id)
    with pytest.raises(DataLossError, match=f"ledger {segments[2].ledger_id} of segment 3"):
        await read_all(stream)
    await nodes.delete_segment(segments[2])
    with pytest.raises(DataLossError, match="segments 3 to 3 are missing"):
        await read_all(stream)


async def test_g1_an_entry_that_does_not_follow_is_refused(ns: Namespace) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    async with stream.writer() as writer:
        await writer.append_batch([b"a", b"b"])
        # As if an entry between had been lost on the way.
        assert pump_of(writer).state.tail is not None
        pump_of(writer).state.tail.record_count += 3
        await writer.append(b"c")
    with pytest.raises(CorruptRecordsError, match=r"entry 1 of segment 1 .* number 6 .* number 3"):
        await read_all(stream)


async def test_l1_a_reader_that_cannot_progress_says_so(ns: Namespace, other: Namespace) -> None:
    await ns.create_stream("s")
    async with ns.stream("s").writer() as writer:
        await writer.append(b"a")
        stream = other.stream("s")
        async with stream.reader(idle_warn_s=0.02, idle_error_s=0.05) as reader:
            assert (await anext(reader)).payload == b"a"
            # Idle for long, but everything can be asked: that is no error.
            assert await reader.read(wait_s=0.2) == []
            assert reader.caught_up

            async def unreachable(*_: object, **__: object) -> object:
                from quorumbook.errors import MetadataUnavailableError

                raise MetadataUnavailableError("nobody answers")

            stream_context(stream).nodes.segments = unreachable  # type: ignore[method-assign]
            with pytest.raises(ReaderIdleError, match="nobody answers"):
                await reader.read(wait_s=None)


async def test_a_reader_follows_across_a_hundred_rolls(ns: Namespace, other: Namespace) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=1))
    count = 100

    async def write() -> None:
        async with ns.stream("s").writer() as writer:
            for number in range(count):
                await writer.append(b"%d" % number)

    async with other.stream("s").reader() as reader:
        task = asyncio.ensure_future(write())
        for number in range(count):
            record = await anext(reader)
            assert (record.payload, record.sequence_id) == (b"%d" % number, number)
        await task
    assert reader.position >= Position(count, 0, 0)


async def test_a_session_that_ends_does_not_stop_a_writer(ns: Namespace, other: Namespace) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=2))
    async with ns.stream("s").writer() as writer:
        await writer.append(b"a")
        # What the store does when it learns that its session is over.
        member = writer._tenure._lock._member
        assert member is not None
        await client_store(ns.client).delete(member)
        writer._tenure._lock._on_session_expired()  # what the store says when a session ends
        for _ in range(5):
            await writer.append(b"b")
        async with asyncio.timeout(60):
            while not writer._tenure._lock.is_held:  # what the store says when a session ends
                await asyncio.sleep(0.01)
    assert len(await read_all(other.stream("s"))) == 6
