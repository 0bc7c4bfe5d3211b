"""What was found when a further read failed: it is handed out, and the next call says why."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from doubles.clusters import STORES, local_cluster
from doubles.waiting import PATIENCE_S, until
from quorumbook.errors import MetadataUnavailableError
from quorumbook.streams import (
    Namespace,
    PartitionedStream,
    PartitionRecord,
    Position,
    Record,
    Stream,
)
from quorumbook.streams.cursors import reader as cursor_reader
from quorumbook.streams.cursors.cursor import Cursor, ack_gone
from quorumbook.streams.cursors.reader import CursorReader, Unacknowledged
from quorumbook.streams.errors import StreamError
from quorumbook.streams.reading.batches import RecordBatch
from quorumbook.streams.reading.reader import StreamReader
from quorumbook.streams.reading.scanner import StreamScanner

cluster = local_cluster(STORES, scope="module")


class UnreadableError(StreamError):
    """What stands in the way once."""


class AwayError(StreamError):
    """What stands in the way for a moment."""

    retriable = True


Batches = Callable[..., AsyncGenerator[RecordBatch, None]]


def failing_once(batches: Batches, error: StreamError | None = None) -> Batches:
    """Have what yields batches fail behind the first one, and go on afterwards."""
    failures = [error or UnreadableError("not now")]

    async def read(*args: object) -> AsyncGenerator[RecordBatch, None]:
        async for batch in batches(*args):
            yield batch
            if failures:
                raise failures.pop()

    return read


def payload_of(found: Record | PartitionRecord) -> bytes:
    return found.payload if isinstance(found, Record) else found.record.payload


async def two_batches(stream: Stream) -> None:
    async with stream.writer() as writer:
        await writer.append_batch([b"0", b"1"], atomic=True)
        await writer.append_batch([b"2", b"3"], atomic=True)


@pytest.mark.parametrize("by", ["cursor", "stream"])
async def test_a_reader_hands_out_what_it_has(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    await ns.create_stream("s")
    await two_batches(ns.stream("s"))
    reader: StreamReader | CursorReader
    if by == "cursor":
        monkeypatch.setattr(
            Unacknowledged, "read_batches", failing_once(Unacknowledged.read_batches)
        )
        reader = await ns.stream("s").reader(cursor="c", tail=False)
    else:
        monkeypatch.setattr(StreamScanner, "batches", failing_once(StreamScanner.batches))
        reader = await ns.stream("s").reader(tail=False)
    found: list[bytes] = []
    failures = 0
    async with asyncio.timeout(PATIENCE_S), reader:
        while len(found) < 4:
            try:
                found += [each.payload for each in await reader.read()]
            except UnreadableError:
                failures += 1
    assert (found, failures) == ([b"0", b"1", b"2", b"3"], 1)


async def test_merged_partitions_hand_out_what_they_have(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await PartitionedStream.create(ns, "s", partitions=1)
    await two_batches(stream.partitions[0])
    monkeypatch.setattr(StreamReader, "read_batches", failing_once(StreamReader.read_batches))
    async with stream.reader() as reader:
        found = [each.record.payload for each in await reader.read()]
        assert found == [b"0", b"1"]
        with pytest.raises(UnreadableError):
            await reader.read()


async def test_a_group_counts_nothing_as_done_that_it_did_not_hand_out(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = await PartitionedStream.create(ns, "s", partitions=1)
    await two_batches(stream.partitions[0])
    monkeypatch.setattr(Unacknowledged, "read_batches", failing_once(Unacknowledged.read_batches))
    consumer = await stream.consumer("g", auto_commit_s=1000)
    async with asyncio.timeout(PATIENCE_S):
        found = [each.record.payload for each in await consumer.read(wait_s=None)]
        assert found == [b"0", b"1"]
        with pytest.raises(UnreadableError):
            await consumer.read()
        await consumer.close()


async def with_missing_ones(ns: Namespace, why: str) -> tuple[Stream, list[bytes]]:
    """A stream with sequence ids that nobody gets; return what is left behind its cursor too."""
    await ns.create_stream("s")
    stream = ns.stream("s")
    large = b"large" * 600_000 if why == "a large record" else b"small"
    async with stream.writer() as writer:
        appended = [await writer.append(each) for each in (b"0", large, b"2", b"3", b"4")]
    cursor = await stream.cursor("c")
    await cursor.commit(appended[0].position)
    if why == "a large record":
        return stream, [large, b"2", b"3", b"4"]
    await stream.truncate(appended[2].position)
    return stream, [b"2", b"3", b"4"]


class Unstored:
    """The first time that it is stored that records are missing, that does not happen."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, hangs: bool = False) -> None:
        self.is_reached = False
        self._hangs = hangs
        monkeypatch.setattr(cursor_reader, "ack_gone", self._ack_gone)

    async def _ack_gone(self, cursor: Cursor, first: int, last: int, end: Position) -> None:
        if not self.is_reached:
            self.is_reached = True
            if self._hangs:
                await asyncio.Event().wait()
            raise MetadataUnavailableError("nobody answers")
        await ack_gone(cursor, first, last, end)


async def left(stream: Stream) -> list[bytes]:
    async with stream.reader(cursor="c", tail=False, on_truncated="skip") as reader:
        return [record.payload async for record in reader]


WHY = pytest.mark.parametrize("why", ["a large record", "truncated"])


@WHY
@pytest.mark.parametrize("end", ["error", "cancelled"])
async def test_records_behind_missing_ones_are_kept_until_that_is_stored(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch, end: str, why: str
) -> None:
    stream, payloads = await with_missing_ones(ns, why)
    cursor = await stream.cursor("c")
    store = Unstored(monkeypatch, hangs=end == "cancelled")
    found: list[bytes] = []
    async with stream.reader(cursor, tail=False, on_truncated="skip") as reader:
        source = Unacknowledged(reader, cursor)

        async def read() -> None:
            async for batch in source.read_batches():
                found.extend(batch.payloads)

        reading = asyncio.ensure_future(read())
        await until(lambda: store.is_reached)
        if end == "cancelled":
            reading.cancel()
        with pytest.raises((MetadataUnavailableError, asyncio.CancelledError)):
            await reading
        await read()
    assert found == payloads
    # Nobody did anything with them: they are there for whoever comes next.
    assert await left(other.stream("s")) == payloads


@WHY
async def test_who_reads_on_by_a_cursor_after_an_error_misses_nothing(
    ns: Namespace, other: Namespace, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    stream, payloads = await with_missing_ones(ns, why)
    store = Unstored(monkeypatch)
    found: list[bytes] = []
    failures = 0
    async with stream.reader(cursor="c", tail=False, on_truncated="skip") as reader:
        while len(found) < len(payloads):
            try:
                got = await reader.read(1, wait_s=None)
            except MetadataUnavailableError:
                failures += 1
                continue
            if not got:
                break
            found += [each.payload for each in got]
    assert (found, failures, store.is_reached) == (payloads, 1, True)
    assert await left(other.stream("s")) == payloads


@pytest.mark.parametrize("by", ["group", "partitions"])
async def test_what_could_not_be_read_for_a_moment_is_read_with_the_next_call(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    stream = await PartitionedStream.create(ns, "s", partitions=1)
    await two_batches(stream.partitions[0])
    source = Unacknowledged if by == "group" else StreamReader
    reading = failing_once(source.read_batches, AwayError("not now"))
    monkeypatch.setattr(source, "read_batches", reading)
    reader = await (stream.consumer("g") if by == "group" else stream.reader())
    found: list[bytes] = []
    failures = 0
    async with asyncio.timeout(PATIENCE_S), reader:
        while len(found) < 4:
            try:
                found += [each.record.payload for each in await reader.read()]
            except AwayError:
                failures += 1
    assert (found, failures) == ([b"0", b"1", b"2", b"3"], 1)


@pytest.mark.parametrize("by", ["group", "cursor"])
async def test_what_was_read_when_a_cursor_could_not_be_moved_is_handed_out_later(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    made = await PartitionedStream.create(ns, "s", partitions=1)
    stream = made.partitions[0]
    await two_batches(stream)
    async with stream.writer() as writer:
        for payload in b"4", b"5":
            await writer.append(payload)
    async with await stream.reader(tail=False) as all_records:
        records = await all_records.read()
    cursor = await stream.cursor("c")
    await cursor.ack(records[0])
    await stream.truncate(records[2].position)
    failures = [MetadataUnavailableError("the store is away")]

    async def failing(*args: Any) -> None:
        if failures:
            raise failures.pop()
        await ack_gone(*args)

    monkeypatch.setattr(cursor_reader, "ack_gone", failing)
    if by == "group":
        reader = await made.consumer("c", on_truncated="skip")
    else:
        reader = await stream.reader(cursor="c", on_truncated="skip")
    found: list[bytes] = []
    async with asyncio.timeout(PATIENCE_S), reader:
        while len(found) < 4:
            with contextlib.suppress(MetadataUnavailableError):
                found += [payload_of(each) for each in await reader.read()]
    assert (found, failures) == ([b"2", b"3", b"4", b"5"], [])
