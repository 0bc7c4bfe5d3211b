"""How a writer of a stream ends, and what is there then: readers of both sides, and the metadata.

DistributedLog's own library and ours must leave the same behind, whichever wrote: the records that
readers of both sides see, and the numbers in the stream's nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from itertools import product

import pytest

from interop.peer_driver import PeerError
from interop.stream_sides import FIRST, JavaStreams, OwnStreams, Seen, fresh_name
from interop.test_interop_matrix import IS_FULL, pairwise
from interop.test_interop_stream_matrix import SIDES, namespace, side
from quorumbook.streams import Appended, Namespace, StreamWriter
from quorumbook.streams.errors import WriterFencedError
from quorumbook.streams.metadata.segment_nodes import decoded_segment
from quorumbook.streams.stream_context import stream_context

__all__ = ["namespace", "side"]

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

COUNT = 30
PAYLOADS = [b"%d" % number for number in range(COUNT)]
ENDINGS = ("closed", "aborted", "sealed", "pushed-out")
#: Whether a writer tells readers at once of its last record, or never by itself.
FLUSHES = ("prompt", "silent")
ALL = [*product(SIDES, ENDINGS, FLUSHES)]
CELLS = ALL if IS_FULL else pairwise(ALL)
#: How Java's writer sends each record by itself, and tells readers of it with the next one only.
SILENT = {
    "enableImmediateFlush": "false",
    "periodicFlushFrequencyMilliSeconds": "0",
    "writerOutputBufferSize": "0",
}
#: A Java writer that looks at no lock: nothing but the fence keeps two writers apart.
LOCKLESS = {"writeLockEnabled": "false"}


class Silent(OwnStreams):
    """Ours, as one whose last record is seen when another follows."""

    async def open(self, name: str) -> None:
        stream = self.namespace.stream(name)
        self.writers[name] = await stream.writer(takeover="force", visibility_delay_s=3600)


async def connected(side, namespace: Namespace, kind: str, flush: str) -> JavaStreams | OwnStreams:
    if kind == "java":
        return await side("java", **(SILENT if flush == "silent" else {}))
    return Silent(namespace) if flush == "silent" else OwnStreams(namespace)


async def numbers(namespace: Namespace, name: str) -> list[object]:
    """Return what a stream's nodes say, but for ledgers, times, and in which entry what is."""
    nodes = stream_context(namespace.stream(name)).nodes
    names = sorted(await nodes.store.children(nodes.paths.segments))
    found: list[object] = []
    for each in names:
        node = await nodes.store.get(f"{nodes.paths.segments}/{each}")
        text = decoded_segment(node.data, each)
        found.append((
            each, text.version, text.status, text.region, text.record_count, text.number,
            text.first_txid, text.last_txid, text.min_active_entry, text.min_active_slot,
            text.start_sequence_id,
        ))  # fmt: skip
    paths = nodes.paths.segments, nodes.paths.max_txid
    return found + [(await nodes.store.get(path)).data for path in paths]


def completed(number: int, count: int, txids: tuple[int, int], start: int) -> tuple[object, ...]:
    """Return what the node of a completed segment says."""
    return (f"logrecs_{number:018d}", 5, 0, 0, count, number, *txids, 0, 0, start)


@pytest.mark.parametrize("cell", CELLS, ids="-".join)
async def test_readers_of_both_sides_see_all_that_was_acknowledged_however_a_writer_ended(
    side, namespace, cell
):
    kind, ending, flush = cell
    name = fresh_name()
    writing = await connected(side, namespace, kind, flush)
    readers = await side("java"), await side("own")
    await namespace.create_stream(name)
    await writing.open(name)
    positions = []
    for number, payload in enumerate(PAYLOADS):
        positions += await writing.write(name, [payload], 10 + number)
    records = [Seen(p, n, 10 + n, PAYLOADS[n]) for n, p in enumerate(positions)]
    if ending == "closed":
        await writing.close(name)
    elif ending == "aborted":
        # Right behind the last acknowledgement, and nobody comes after it.
        await abort(writing, name)
    elif ending == "sealed":
        await writing.seal(name)
        await writing.close(name)
    else:
        rival = await side("own" if kind == "java" else "java", **LOCKLESS)
        await rival.open(name)
        more = await rival.write(name, [b"the rival's"], 50)
        records.append(Seen(more[0], COUNT, 50, b"the rival's"))
        await rival.close(name)
    for reader in readers:
        assert await reader.read(name, len(records)) == records
    if ending == "pushed-out":
        with pytest.raises((PeerError, WriterFencedError)):
            await writing.write(name, [b"too late"], 60)
        await abort(writing, name)
        for reader in readers:
            assert await reader.read(name, len(records)) == records
    last = 39
    if ending == "aborted":
        in_progress = (
            "inprogress_000000000000000001", 5, 0, 0, 0, 1, 10, -999, 0, 0, -1,
        )  # fmt: skip
        assert await numbers(namespace, name) == [in_progress, b"1", b"0"]
        # Whoever goes on completes it as it would have been.
        await readers[1 if kind == "java" else 0].open(name)
        await readers[1 if kind == "java" else 0].close(name)
    if ending == "sealed":
        last = 2**63 - 1
    rows = [completed(1, COUNT, (10, last), 0)]
    if ending == "pushed-out":
        rows.append(completed(2, 1, (50, 50), COUNT))
        last = 50
    assert await numbers(namespace, name) == [*rows, b"%d" % len(rows), b"%d" % last]


@pytest.mark.parametrize("kind", SIDES)
async def test_a_segment_that_only_seals_the_stream_is_recorded_alike(side, namespace, kind):
    name = fresh_name()
    await namespace.create_stream(name)
    sealing = await side(kind)
    await sealing.open(name)
    await sealing.write(name, PAYLOADS[:3], 10)
    await sealing.close(name)
    await sealing.open(name)
    await sealing.seal(name)
    await sealing.close(name)
    end = 2**63 - 1
    rows = [completed(1, 3, (10, 12), 0), completed(2, 0, (end, end), 3)]
    assert await numbers(namespace, name) == [*rows, b"2", b"%d" % end]
    for reader in await side("java"), await side("own"):
        assert [each.payload for each in await reader.read(name, 4)] == PAYLOADS[:3]


async def abort(writing: JavaStreams | OwnStreams, name: str) -> None:
    if isinstance(writing, JavaStreams):
        await writing.call("abort_writer", name)
    else:
        await writing.writers.pop(name).abort()


async def test_a_java_writer_without_a_lock_takes_over_from_a_busy_one_of_ours(side, namespace):
    java, own = await side("java", **LOCKLESS), await side("own")
    for _ in range(4):
        name = fresh_name()
        await namespace.create_stream(name)
        writer = await namespace.stream(name).writer()
        safe: list[Appended] = []
        busy = asyncio.ensure_future(keep_writing(writer, safe))
        async with asyncio.timeout(60):
            while len(safe) < 100:
                await asyncio.sleep(0)
        await java.open(name)
        (first,) = await java.write(name, [b"java"], 10**9)
        with pytest.raises(WriterFencedError):
            await busy
        with pytest.raises(WriterFencedError):
            await writer.close()
        await java.close(name)
        assert {each.position.segment for each in safe} == {1}
        assert first.segment == 2
        (segment, _) = await namespace.stream(name).segments()
        count = segment.metadata.record_count + 1
        seen = await own.read(name, count)
        assert await java.read(name, count) == seen
        assert [each.payload for each in seen[-2:]] == [b"%d" % (count - 2), b"java"]
        assert [each.position for each in seen[: len(safe)]] == [each.position for each in safe]


async def keep_writing(writer: StreamWriter, safe: list[Appended]) -> None:
    """Append until that fails, always with entries on their way."""
    under_way: deque[asyncio.Future[Appended]] = deque()
    try:
        for number in itertools.count():
            under_way.append(writer.append_nowait(b"%d" % number))
            await asyncio.sleep(0)
            if len(under_way) > 50:
                safe.append(await under_way.popleft())
    finally:
        done = [each for each in under_way if each.done() and each.exception() is None]
        safe += [each.result() for each in done]


async def test_ours_takes_over_from_a_busy_java_writer_without_a_lock(side, namespace):
    name = fresh_name()
    await namespace.create_stream(name)
    java, own = await side("java", **LOCKLESS), await side("own")
    await java.open(name)
    await java.write(name, PAYLOADS, 0)
    begun = []
    await java.call("begin_writing", name, payloads=["YQ=="] * 5000, txid=COUNT)
    await own.open(name)
    (first,) = await own.write(name, [b"ours"], 10**9)
    begun = (await java.call("written_records", name))["positions"]
    with contextlib.suppress(PeerError):
        await java.call("abort_writer", name)
    await own.close(name)
    segments = await namespace.stream(name).segments()
    count = sum(segment.metadata.record_count for segment in segments)
    seen = await own.read(name, count)
    assert await java.read(name, count) == seen
    assert (seen[-1].position, seen[-1].payload) == (first, b"ours")
    safe = seen[COUNT : COUNT + len(begun)]
    assert [[*each.position] for each in safe] == begun
    assert {each.payload for each in safe} <= {b"a"}


@pytest.mark.parametrize("kind", SIDES)
async def test_both_sides_find_the_same_record_by_its_transaction_id(side, namespace, kind):
    name = fresh_name()
    await namespace.create_stream(name)
    java = await side("java")
    records: list[Seen] = []
    for part in range(2):
        writing = await side(kind)
        await writing.open(name)
        for number in range(12):
            # Every second one leaves ids out; three share an entry where ours wrote.
            txid = 1000 * part + 10 * number
            positions = await writing.write(name, [b"x"] * 3, txid)
            records += [Seen(p, -1, txid + n, b"x") for n, p in enumerate(positions)]
        await writing.close(name)
    wanted = [each.txid for each in records]
    wanted += [txid - 1 for txid in wanted[1:]] + [500, 999]
    expected = [min(r for r in records if r.txid >= txid).position for txid in wanted]
    stream = namespace.stream(name)
    assert [await stream.find(txid=txid) for txid in wanted[::5]] == expected[::5]
    if kind == "own":
        found = (await java.call("find_txids", name, txids=wanted))["positions"]
        assert found == [[*each] for each in expected]


@pytest.mark.parametrize("layout", ["2", "3", "4"])
async def test_records_of_old_layouts_are_numbered_and_counted_as_java_does(
    side, namespace, layout
):
    name = fresh_name()
    await namespace.create_stream(name)
    old, java = await side("java", ledgerMetadataLayoutVersion=layout), await side("java")
    own, stream = await side("own"), namespace.stream(name)

    async def check(count: int) -> list[Seen]:
        seen = await java.read(name, count)
        assert await own.read(name, count) == seen
        assert await stream.count() == count
        assert (await stream.lag(FIRST)).records == count
        for each in seen[:: count // 3]:
            place = seen.index(each)
            assert await stream.count(each.position) == count - place
            assert await stream.count(end=each.position) == place
            assert await stream.find(sequence_id=each.sequence_id) == each.position
        return seen

    for part in range(2):
        await old.open(name)
        await old.write(name, PAYLOADS[:5], 10 * part)
        assert await own.read(name, 5 * part + 5) == await java.read(name, 5 * part + 5)
        await old.close(name)
    seen = await check(10)
    assert [each.sequence_id for each in seen] == [
        -(2**63) + (number << 32) + place for number in (1, 2) for place in range(5)
    ]
    # Newer writers begin at 0.
    for number, each in enumerate((java, own)):
        await each.open(name)
        await each.write(name, PAYLOADS[:5], 100 + 10 * number)
        await each.close(name)
    assert [each.sequence_id for each in (await check(20))[10:]] == [*range(10)]
    counted = await java.call("count_records", name, start=FIRST)
    assert counted["records"] == await stream.count() == 20


async def test_what_an_old_java_writer_completed_of_a_new_one_has_java_s_numbers(side, namespace):
    """It leaves the number of the first record out, as it does in its own segments."""
    name = fresh_name()
    await namespace.create_stream(name)
    old, java = await side("java", ledgerMetadataLayoutVersion="3"), await side("java")
    own, stream = await side("own"), namespace.stream(name)
    await own.open(name)
    await own.write(name, PAYLOADS[:5], 0)
    await abort(own, name)
    await old.open(name)
    await old.close(name)
    for number, each in enumerate((own, java, own)):
        await each.open(name)
        await each.write(name, PAYLOADS[:5], 10 * number + 10)
        seen = await own.read(name, 10 + 5 * number)
        assert await java.read(name, 10 + 5 * number) == seen
        await each.close(name)
    seen = await java.read(name, 20)
    assert await own.read(name, 20) == seen
    first = -(2**63) + (1 << 32)
    assert [each.sequence_id for each in seen] == [*range(first, first + 20)]
    assert await stream.count() == 20
    assert await stream.find(sequence_id=seen[12].sequence_id) == seen[12].position
