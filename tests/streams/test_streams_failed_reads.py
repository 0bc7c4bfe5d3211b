"""What was found when a further read failed: it is handed out, and the next call says why."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest

from doubles.clusters import STORES, local_cluster
from quorumbook.streams import Namespace, PartitionedStream, Stream
from quorumbook.streams.cursors.reader import CursorReader, Unacknowledged
from quorumbook.streams.errors import StreamError
from quorumbook.streams.reading.batches import RecordBatch
from quorumbook.streams.reading.reader import StreamReader
from quorumbook.streams.reading.scanner import StreamScanner

PATIENCE_S = 60.0


cluster = local_cluster(STORES, scope="module")


class UnreadableError(StreamError):
    """What stands in the way once."""


Batches = Callable[..., AsyncGenerator[RecordBatch, None]]


def failing_once(batches: Batches) -> Batches:
    """Have what yields batches fail behind the first one, and go on afterwards."""
    failures = [UnreadableError("not now")]

    async def read(*args: object) -> AsyncGenerator[RecordBatch, None]:
        async for batch in batches(*args):
            yield batch
            if failures:
                raise failures.pop()

    return read


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
