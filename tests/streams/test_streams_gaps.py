"""What is missing is reported, exactly and once, by a reader that goes on behind it (G1)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator
from dataclasses import replace
from typing import Any

import pytest

from doubles.clusters import STORES, local_cluster
from doubles.inside import pump_of
from doubles.mock_bookie import PATIENCE_S, mock_cluster
from doubles.waiting import until
from quorumbook.client.context import client_context
from quorumbook.client.reading.entries import EntryBatch
from quorumbook.client.reading.reader import LedgerReader
from quorumbook.errors import LocalProtocolError, NoSuchEntryError, ReadFailedError
from quorumbook.protocol.requests import BatchRead, Read
from quorumbook.protocol.status import Status
from quorumbook.streams import (
    ControlRecord,
    Gap,
    Namespace,
    Notice,
    PartitionedStream,
    Position,
    Record,
    SequenceId,
    Stream,
    StreamItem,
    StreamPolicy,
)
from quorumbook.streams.errors import DataLossError
from quorumbook.streams.stream_context import stream_context

cluster = local_cluster(STORES, scope="module")


async def reported(stream: Stream, **options: Any) -> list[StreamItem]:
    async with stream.reader(tail=False, on_gap="report", **options) as reader:
        return [item async for item in reader]


def shape(items: Collection[StreamItem]) -> list[bytes | tuple[object, ...]]:
    """Payloads, and of gaps what is missing."""
    return [
        (item.start, item.end, item.first_sequence_id, item.next_sequence_id)
        if isinstance(item, Gap)
        else item.payload
        for item in items
    ]


async def segments_of_two(stream: Stream, count: int) -> None:
    async with stream.writer() as writer:
        for number in range(count):
            await writer.append_batch([b"%d" % number] * 2)


@contextlib.contextmanager
def without_entries(monkeypatch: pytest.MonkeyPatch, *entry_ids: int) -> Iterator[None]:
    """Have no bookie know these entries, of whichever ledger."""

    def cut(read: Any) -> Any:
        async def found(
            self: LedgerReader, first: int = 0, *last: int | None
        ) -> AsyncGenerator[EntryBatch, None]:
            async for batch in read(self, first, *last):
                start = batch.first_entry_id
                for entry_id in range(start, batch.last_entry_id + 1):
                    if entry_id not in entry_ids:
                        continue
                    if start < entry_id:
                        yield batch.part(start, entry_id - 1)
                    raise NoSuchEntryError("nobody has it", entry_id=entry_id)
                yield batch

        return found

    with monkeypatch.context() as patched:
        for name in "read_batches", "tail_batches":
            patched.setattr(LedgerReader, name, cut(getattr(LedgerReader, name)))
        yield


async def test_g1_missing_segments_are_reported_as_one_gap(ns: Namespace) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=1))
    stream = ns.stream("s")
    nodes = stream_context(stream).nodes
    await segments_of_two(stream, 7)
    segments = [segment.metadata for segment in await stream.segments()]
    # The second one is said to have had more records than it has.
    await nodes.replace_segment(segments[1], replace(segments[1], record_count=5))
    for segment in segments[2:]:
        later = replace(segment, start_sequence_id=segment.start_sequence_id + 3)
        await nodes.replace_segment(segment, later)
    segments = [segment.metadata for segment in await stream.segments()]
    tail = [b"6", b"6"]
    first = [b"0", b"0", b"1", b"1", (Position(2, 1, 0), Position(3, 0, 1), 4, 7)]
    whole = [*first, b"2", b"2", b"3", b"3", b"4", b"4", b"5", b"5", *tail]
    assert shape(await reported(stream)) == whole
    # A ledger is gone, then the segment behind it, then the ledger of the one behind that.
    await ns.client.delete_ledger(segments[2].ledger_id)
    lost = (Position(3, 0, 0), Position(4, 0, 1), 7, 9)
    items = await reported(stream, start=Position(3, 0, 0))
    assert shape(items)[0] == lost
    assert isinstance(items[0], Gap)
    assert (items[0].ledger_id, items[0].record_count) == (segments[2].ledger_id, 2)
    assert f"ledger {segments[2].ledger_id} of segment 3" in items[0].reason
    await nodes.delete_segment(segments[3])
    await ns.client.delete_ledger(segments[4].ledger_id)
    # What lies side by side is one gap; it begins where the second segment ends too early.
    found = shape(await reported(stream))
    assert found == [*first[:4], (Position(2, 1, 0), Position(6, 0, 1), 4, 13), b"5", b"5", *tail]
    # Also for who begins in the middle of it, and does not know what came before.
    assert shape(await reported(stream, start=Position(4, 0, 7))) == [
        (Position(4, 0, 7), Position(6, 0, 1), -1, 13), b"5", b"5", *tail,
    ]  # fmt: skip
    # At the end of the stream nothing follows it.
    await ns.client.delete_ledger(segments[6].ledger_id)
    assert shape(await reported(stream))[-1] == (Position(7, 0, 0), Position(8, 0, 0), 15, 17)


async def test_g1_a_jump_of_sequence_ids_is_reported(ns: Namespace) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    async with stream.writer() as writer:
        await writer.append_batch([b"a", b"b"])
        # As if an entry between had been lost on the way.
        assert pump_of(writer).state.tail is not None
        pump_of(writer).state.tail.record_count += 3
        await writer.append(b"c")
        await writer.append(b"d")
    items = await reported(stream)
    assert shape(items) == [b"a", b"b", (Position(1, 0, 3), Position(1, 1, 1), 2, 5), b"c", b"d"]


async def test_sequence_ids_that_go_back_are_no_gap(ns: Namespace) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=1))
    stream = ns.stream("s")
    await segments_of_two(stream, 2)
    (_, last) = [segment.metadata for segment in await stream.segments()]
    await stream_context(stream).nodes.replace_segment(last, replace(last, start_sequence_id=1))
    with pytest.raises(DataLossError):
        await reported(stream)


async def test_g1_missing_entries_are_reported_as_one_gap(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=10))
    stream = ns.stream("s")
    payloads = [b"%d" % number for number in range(20)]
    async with stream.writer() as writer:
        for payload in payloads:
            await writer.append(payload)
    with without_entries(monkeypatch, 0, 3, 4, 9):
        for options in {}, {"read_ahead_bytes": 0}:
            found = shape(await reported(stream, **options))
            assert found == [
                (Position(1, 0, 0), Position(1, 1, 1), 0, 1), *payloads[1:3],
                (Position(1, 3, 0), Position(1, 5, 1), 3, 5), *payloads[5:9],
                # The last of one segment and the first of the next.
                (Position(1, 9, 0), Position(2, 1, 1), 9, 11), *payloads[11:13],
                (Position(2, 3, 0), Position(2, 5, 1), 13, 15), *payloads[15:19],
                (Position(2, 9, 0), Position(3, 0, 0), 19, 20),
            ]  # fmt: skip
        # Without being asked to report, the error says the same, and where to go on.
        async with stream.reader(SequenceId(1), tail=False) as reader:
            assert (await anext(reader)).sequence_id == 1
            assert (await anext(reader)).sequence_id == 2
            for _ in range(2):
                with pytest.raises(DataLossError, match="entry 3 of segment 1") as caught:
                    await anext(reader)
                assert shape([caught.value.gap]) == [(Position(1, 3, 0), Position(1, 4, 0), 3, -1)]
            await reader.seek(Position(1, 5, 0))
            assert (await anext(reader)).payload == b"5"
    assert await reported(stream) == [record async for record in all_records(stream)]


async def test_g1_entries_that_no_bookie_has_are_reported_and_others_are_not() -> None:
    async with mock_cluster() as bookies:
        address = f"{bookies.metadata_uri}#/holes"
        async with Namespace.open(address, bind=True) as ns:
            await ns.create_stream("s")
            stream = ns.stream("s")
            async with stream.writer() as writer:
                for number in range(40):
                    await writer.append(b"%d" % number)
            (segment,) = await stream.segments()
            for number, bookie in enumerate(bookies.bookies):
                entries = bookie.ledgers[segment.metadata.ledger_id].entries
                for lost in (5, 20, 21, 39, 10 + number):  # the last one is on the others
                    entries.pop(lost, None)
            items = await reported(stream)
            ranges = [
                (item.first_sequence_id, item.next_sequence_id)
                for item in items
                if isinstance(item, Gap)
            ]
            assert ranges == [(5, 6), (20, 22), (39, 40)]
            records = [item.sequence_id for item in items if isinstance(item, Record)]
            assert records == [n for n in range(40) if n not in (5, 20, 21, 39)]
            # Who does not know what it has says nothing about what is missing.
            for bookie in bookies.bookies[:1]:
                bookie.on_request = lambda request: (
                    Status.UNKNOWN_LEDGER_STATE if isinstance(request, BatchRead | Read) else None
                )
            with pytest.raises(ReadFailedError):
                await reported(stream)


async def test_s33_g1_what_a_replaced_bookie_denies_late_is_no_gap() -> None:
    """The last replica is with its successor, which has not answered yet."""
    async with mock_cluster(4) as bookies:
        address = f"{bookies.metadata_uri}#/moved"
        async with Namespace.open(address, bind=True) as ns:
            await ns.create_stream("s")
            stream = ns.stream("s")
            async with stream.writer() as writer:
                for number in range(40):
                    await writer.append(b"%d" % number)
            (segment,) = await stream.segments()
            ledger_id = segment.metadata.ledger_id
            client: Any = ns.client
            metadata, version = await client_context(client).ledgers.read(ledger_id)
            first, second, third = map(bookies.by_id, metadata.ensemble)
            (successor,) = (b for b in bookies.bookies if b.bookie_id not in metadata.ensemble)
            # The other two lack what the first one is asked for; each knows the ledger.
            for other in (second, third):
                other.ledgers[ledger_id].entries.clear()
            first.keep(BatchRead)
            successor.keep(BatchRead)
            reading = asyncio.create_task(reported(stream))
            await until(lambda: first.count(BatchRead))
            successor.ledgers[ledger_id] = first.ledgers.pop(ledger_id)
            moved = metadata.replace_bookie(0, first.bookie_id, successor.bookie_id)
            await client_context(client).ledgers.write(moved, version)
            await until(lambda: successor.count(BatchRead))
            first.carry_out()
            for other in 4 * (first, second, third):
                await client_context(client).bookies.fast(other.bookie_id).read(0, 0)
            assert not reading.done()
            successor.carry_out()
            async with asyncio.timeout(PATIENCE_S):
                assert shape(await reading) == [b"%d" % number for number in range(40)]


async def all_records(stream: Stream) -> AsyncIterator[Record]:
    async with stream.reader(tail=False) as reader:
        async for record in reader:
            yield record


async def test_g1_a_gap_at_the_end_is_reported_before_anything_follows(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ns.create_stream("s")
    async with ns.stream("s").writer() as writer:
        for number in range(3):
            await writer.append(b"%d" % number)
        await writer.flush()
        with without_entries(monkeypatch, 1, 2, 4):
            async with other.stream("s").reader(on_gap="report") as reader:
                items = [await anext(reader) for _ in range(2)]
                # How many records were in it nobody can say yet.
                assert shape(items) == [b"0", (Position(1, 1, 0), Position(1, 3, 0), 1, -1)]
                assert reader.position == Position(1, 3, 0)
                for number in range(3, 6):
                    await writer.append(b"%d" % number)
                await writer.flush()
                items = [await anext(reader) for _ in range(3)]
                assert items[0].payload == b"3"
                assert isinstance(items[1], Gap)
                assert items[1].start == Position(1, 4, 0)
                assert items[1].first_sequence_id == 4
                last = items[2]
                if items[1].next_sequence_id < 0:  # it was at the end for a moment
                    assert items[1].end == Position(1, 5, 0)
                assert (last.payload, last.sequence_id) == (b"5", 5)


async def test_g1_a_record_that_lacks_a_chunk_is_missing_as_a_whole(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ns.create_stream("s")
    stream = ns.stream("s")
    async with stream.writer() as writer:
        await writer.append(b"before")
        await writer.append(b"x" * 3_500_000)
        await writer.append(b"after")
    (segment,) = await stream.segments()
    assert segment.metadata.record_count == 6
    for lost in 1, 2, 3, 4:
        with without_entries(monkeypatch, lost):
            items = await reported(stream)
        assert shape(items) == [b"before", (Position(1, 1, items[1].start.slot), Position(1, 5, 1),
                                            1, 5), b"after"]  # fmt: skip
        assert items[2].sequence_id == 5


async def test_control_records_are_handed_out_in_their_places(ns: Namespace) -> None:
    await ns.create_stream("s", policy=StreamPolicy(roll_entries=2))
    stream = ns.stream("s")
    async with stream.writer(producer="me") as writer:
        await writer.append_batch([b"a", b"b"])
        await writer.append(b"c")
        await writer.append(b"d")
        await writer.seal()
    async with stream.reader(include_control=True) as reader:
        items = [item async for item in reader]
    records = [item for item in items if isinstance(item, Record)]
    assert records == [record async for record in all_records(stream)]
    controls = [item for item in items if isinstance(item, ControlRecord)]
    assert [each.position for each in controls] == [
        Position(1, 0, 0), Position(1, 1, 0), Position(2, 0, 0),
    ]  # fmt: skip
    notes = [each.note for each in controls]
    assert [note and note.producer for note in notes] == ["me"] * 3
    assert notes[0] is not None
    assert notes[0].appended_at_ms == records[0].appended_at_ms
    positions = [item.position for item in items if not isinstance(item, Gap)]
    assert positions == sorted(positions)
    # From a position on, and up to one.
    async with stream.reader(
        Position(1, 0, 1), end=Position(1, 1, 1), include_control=True
    ) as reader:
        batches = [batch async for batch in reader.read_batches()]
    assert [type(batch) for batch in batches][1:] == [Notice]
    assert [list(batch) for batch in batches] == [list(records[:2]), [controls[1]]]
    # How far it is, is right behind each.
    async with stream.reader(include_control=True, tail=False) as reader:
        async for item in reader:
            assert not isinstance(item, Gap)
            assert reader.position == item.position.next
            if isinstance(item, Record):
                assert reader.next_sequence_id == item.sequence_id + 1


async def test_who_hands_out_records_only_says_so(ns: Namespace) -> None:
    await ns.create_stream("s")
    whole = await PartitionedStream.create(ns, "whole", partitions=2)
    for option in {"on_gap": "report"}, {"include_control": True}:
        for refusing in (
            lambda options: ns.stream("s").reader(cursor="c", **options),
            lambda options: whole.reader(**options),
            lambda options: whole.consumer("g", **options),
        ):
            with pytest.raises(LocalProtocolError, match="hands out records only"):
                refusing(option)


def test_a_notice_is_of_its_ledger_the_first_one_included() -> None:
    hole = Gap(Position(1, 0, 0), Position(1, 1, 0), 0, 1, "gone", 0)
    assert Notice.of_gap(hole).ledger_id == 0
    assert Notice.of_gap(hole._replace(ledger_id=None)).ledger_id == -1
