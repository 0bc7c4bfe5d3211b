"""Streams of DistributedLog's own library and of ours: each writes what the other reads.

A few combinations in which each pair of choices occurs are run always; ``make interop-full`` runs
them all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import product
from pathlib import Path

import pytest

from interop.clusters import Cluster
from interop.peer_driver import Peer, PeerError, payload
from interop.peer_java import Java
from interop.stream_sides import JavaStreams, OwnStreams, Seen, fresh_name
from interop.test_interop_matrix import IS_FULL, pairwise
from quorumbook.streams import Namespace, Position, SequenceId, StreamPolicy
from quorumbook.streams.errors import (
    CursorConflictError,
    PositionTruncatedError,
    StreamSealedError,
    WriterBusyError,
    WriterFencedError,
)
from quorumbook.streams.stream_context import stream_context

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]

SIDES = ("java", "own")
SHAPES = ("none", "lz4", "set-none", "set-lz4")
ENDINGS = ("closed", "in-progress", "crashed")
ALL = [*product(SIDES, SIDES, SHAPES, ENDINGS)]
#: The library has its own way with sets, so ours are read by it in every combination.
OWN_SETS = [cell for cell in ALL if cell[:2] == ("own", "java") and cell[2].startswith("set")]
SOME = list(dict.fromkeys([*pairwise(ALL), *OWN_SETS]))
PAYLOADS = [payload("stream", n, size) for n, size in enumerate([0, 1, 30, 500, 3000, 20_000, 7])]


#: What opens a side: its name, and options of the peer's namespace.
Connect = Callable[..., Awaitable[JavaStreams | OwnStreams]]


def address(cluster: Cluster) -> str:
    """Return the namespace of the tests in the peer's form."""
    servers, _, root = cluster.uri.partition("://")[2].partition("/")
    return f"distributedlog://{servers}/streams-{root}"


@pytest.fixture
async def namespace(cluster_of: Callable[[str], Awaitable[Cluster]]) -> AsyncIterator[Namespace]:
    cluster = await cluster_of("mixed")
    path = address(cluster).rpartition("/")[2]
    await Namespace.bind(f"{cluster.uri}#/{path}", exist_ok=True)
    async with Namespace.open(address(cluster), client_id="own") as opened:
        yield opened


@pytest.fixture
async def side(
    java: Java,
    peer: Peer,
    cluster_of: Callable[[str], Awaitable[Cluster]],
    namespace: Namespace,
    tmp_path: Path,
) -> AsyncIterator[Connect]:
    """Return what connects a side; a mortal one of the peer has a process of its own."""
    mortals: list[Peer] = []

    async def connect(name: str, *, is_mortal: bool = False, **conf: str) -> object:
        if name == "own":
            return OwnStreams(namespace)
        process = peer
        if is_mortal:
            process = Peer(java, tmp_path / "mortal")
            mortals.append(process)
        return JavaStreams(process, address(await cluster_of("mixed")), **conf)

    yield connect
    for process in mortals:
        process.stop()


def expected(positions: list[Position], txids: list[int], first: int = 0) -> list[Seen]:
    """Return what readers must see of ``PAYLOADS``."""
    assert positions == sorted(set(positions))
    return [
        Seen(position, first + n, txid, PAYLOADS[n])
        for n, (position, txid) in enumerate(zip(positions, txids, strict=True))
    ]


async def write(side: JavaStreams | OwnStreams, name: str, shape: str, txid: int) -> list[Seen]:
    """Append ``PAYLOADS``, and return what readers must see of them but for their ids."""
    if shape.startswith("set"):
        codec = shape.removeprefix("set-")
        positions = await side.write_set(name, PAYLOADS, txid, codec)
        assert len({position.entry for position in positions}) == 1
        return expected(positions, [txid] * len(PAYLOADS))
    return expected(await side.write(name, PAYLOADS, txid), [*range(txid, txid + len(PAYLOADS))])


def behind(records: list[Seen], first: int) -> list[Seen]:
    """Return records with the sequence ids they have from one on."""
    return [each._replace(sequence_id=first + n) for n, each in enumerate(records)]


@pytest.mark.parametrize("cell", ALL if IS_FULL else SOME, ids="-".join)
async def test_a_stream_is_read_as_it_was_written(side, namespace, cell):
    writer, reader, shape, ending = cell
    name, count = fresh_name(), len(PAYLOADS)
    conf = {"compressionType": "lz4"} if shape == "lz4" else {}
    writing = await side(writer, is_mortal=ending == "crashed", **conf)
    reading = await side(reader)
    if writer == "java":
        await writing.create(name)
    else:
        compression = shape.removeprefix("set-")
        await namespace.create_stream(name, policy=StreamPolicy(compression=compression))
    await writing.open(name)
    records = await write(writing, name, shape, 10)
    if ending == "in-progress":
        assert await reading.read(name, count) == records
    records += behind(await write(writing, name, shape, 20), count)
    if ending == "closed":
        await writing.close(name)
    assert await reading.read(name, 2 * count) == records
    if ending == "crashed":
        await writing.crash(name)
    for start in (1, count - 1, count, 2 * count - 1):
        assert (
            await reading.read(name, 2 * count - start, records[start].position)
            == (records[start:])
        )
    if ending == "in-progress":
        await writing.close(name)
    # Whoever goes on knows how many there are.
    await reading.open(name)
    records += behind(await write(reading, name, "none", 30), 2 * count)
    await reading.seal(name)
    await reading.close(name)
    for each in await side("java"), await side("own"):
        assert await each.read(name, 99) == records
    stream = namespace.stream(name)
    for sequence_id in 0, count, 3 * count - 1:
        assert await stream.find(sequence_id=sequence_id) == records[sequence_id].position
    segments = [segment.metadata.record_count for segment in await stream.segments()]
    assert segments == [2 * count, count]


async def test_what_goes_beside_payloads_and_chunks_are_no_trouble_to_java(side, namespace):
    """It reads the same payloads, and the chunks of what is larger than an entry."""
    name, large = fresh_name(), PAYLOADS[5] * 60
    java = await side("java")
    await namespace.create_stream(name)
    async with namespace.stream(name).writer() as writer:
        await writer.append(b"first", key=b"k", headers={"h": b"v"}, event_time_ms=1)
        await writer.append(large, key=b"k")
        await writer.append(b"last")
    seen = await java.read(name, 4)
    assert [each.payload for each in seen] == [b"first", large[:917_504], large[917_504:], b"last"]
    async with namespace.stream(name).reader(tail=False) as reader:
        own = [Seen(*record[:4]) async for record in reader]
    assert own == [seen[0], seen[1]._replace(payload=large), seen[3]]
    # Who goes on takes chunks for records, and is right.
    await java.open(name)
    await java.write(name, [b"more"], 10)
    await java.close(name)
    assert (await namespace.stream(name).get(SequenceId(4))).payload == b"more"


@pytest.mark.parametrize("kind", SIDES)
async def test_a_writer_shuts_the_other_side_out(side, namespace, kind):
    """The lock keeps one out while the other lives; who takes over fences it."""
    name = fresh_name()
    java, own = await side("java", lockTimeoutSeconds="0"), await side("own")
    await namespace.create_stream(name)
    stream = namespace.stream(name)
    if kind == "java":
        await java.open(name)
        records = await write(java, name, "none", 10)
        with pytest.raises(WriterBusyError) as busy:
            await stream.writer()
        assert busy.value.owner == "java"
        await own.open(name)
        with pytest.raises(PeerError):
            await java.write(name, [b"too late"], 20)
        await java.call("abort_writer", name)
        records += behind(await write(own, name, "none", 30), len(PAYLOADS))
        await own.close(name)
    else:
        await own.open(name)
        records = await write(own, name, "none", 10)
        with pytest.raises(PeerError) as refused:
            await java.open(name)
        assert refused.value.kind == "OwnershipAcquireFailedException"
        # As if our session had ended without our knowing: the lock is free, and we go on.
        nodes = stream_context(stream).nodes
        for member in await nodes.store.children(nodes.paths.lock):
            await nodes.store.delete(f"{nodes.paths.lock}/{member}")
        await java.open(name)
        with pytest.raises(WriterFencedError):
            await own.write(name, [b"too late"], 20)
        with pytest.raises(WriterFencedError):
            await own.close(name)
        records += behind(await write(java, name, "none", 30), len(PAYLOADS))
        await java.close(name)
    for each in java, own:
        assert await each.read(name, 2 * len(PAYLOADS)) == records


@pytest.mark.parametrize("kind", SIDES)
async def test_what_one_side_truncates_is_gone_for_the_other(side, namespace, kind):
    name, count = fresh_name(), len(PAYLOADS)
    sides = {each: await side(each) for each in SIDES}
    truncating = sides[kind]
    await namespace.create_stream(name)
    records: list[Seen] = []
    for number, each in enumerate((sides["own"], sides["java"], sides["own"])):
        await each.open(name)
        records += behind(await write(each, name, "none", 20 * number), len(records))
        if each is sides["java"]:
            records += behind(await write(each, name, "set-lz4", 30), len(records))
        if number < 2:
            await each.close(name)
    await sides["own"].close(name)
    if kind == "java":
        await truncating.open(name)
    # The first of an entry: within one, the peer does not look.
    before = records[2 * count].position
    await truncating.truncate(name, before)
    if kind == "java":
        await truncating.close(name)
    assert [s.metadata.truncation for s in await namespace.stream(name).segments()] == [2, 1, 0]
    # The peer keeps completed segments in memory, as its own writer left them.
    sides["java"] = await side("java", logSegmentCacheEnabled="false")
    shown = await sides["java"].call("show_segments", name)
    assert [segment[4] for segment in shown["segments"]] == [2, 1, 0]
    for each in sides.values():
        assert await each.read(name, 2 * count, before) == records[2 * count :]
    assert await sides["java"].read(name, 2 * count) == records[2 * count :]
    with pytest.raises(PositionTruncatedError):
        await sides["own"].read(name, 1)
    assert await namespace.stream(name).find(sequence_id=2 * count) == before
    with pytest.raises(PositionTruncatedError):
        await namespace.stream(name).get(SequenceId(2 * count - 1))


async def test_truncating_within_an_entry_is_exact_for_our_readers(side, namespace):
    name = fresh_name()
    await namespace.create_stream(name)
    own, java = await side("own"), await side("java")
    await own.open(name)
    records = await write(own, name, "none", 0)
    await own.truncate(name, records[3].position)  # while it is written
    await own.close(name)
    async with namespace.stream(name).reader(tail=False, on_truncated="skip") as reader:
        assert [record.payload async for record in reader] == PAYLOADS[3:]
    # The peer applies it by entry, and then counts as before.
    assert await java.read(name, len(PAYLOADS)) == records


@pytest.mark.parametrize("kind", SIDES)
async def test_what_one_side_seals_the_other_cannot_write(side, namespace, kind):
    name = fresh_name()
    sealing = await side(kind)
    await namespace.create_stream(name)
    await sealing.open(name)
    records = await write(sealing, name, "none", 0)
    await sealing.seal(name)
    await sealing.close(name)
    java, own = await side("java"), await side("own")
    for each in java, own:
        assert await each.read(name, len(PAYLOADS) + 1) == records
    with pytest.raises(StreamSealedError):
        await own.open(name)
    with pytest.raises(PeerError) as refused:
        await java.open(name)
        await java.write(name, [b"more"], 99)
    assert refused.value.kind == "EndOfStreamException"
    assert (await namespace.stream(name).info()).is_sealed


async def test_each_side_reads_on_where_the_other_committed(side, namespace):
    name, count = fresh_name(), len(PAYLOADS)
    java = await side("java")
    await namespace.create_stream(name)
    await java.open(name)
    records = await write(java, name, "none", 0)
    await java.close(name)
    stream = namespace.stream(name)
    cursor = await stream.cursor("ours", holds_retention=True)
    await cursor.commit(records[2].position, state=b"three")
    await java.call("commit_position", name, subscriber="theirs", position=records[4].position)
    committed = (await java.call("committed_positions", name))["positions"]
    assert committed == {
        "ours": [*records[2].position.next],
        "theirs": [*records[4].position],
    }
    assert await java.read(name, count - 3, Position(*committed["ours"])) == records[3:]
    theirs = await stream.cursor("theirs")
    assert theirs.position == records[4].position
    assert (await theirs.lag()).records == count - 4
    # Theirs set it without looking; ours notice, and go on from there.
    await java.call("commit_position", name, subscriber="ours", position=records[5].position)
    with pytest.raises(CursorConflictError):
        await cursor.commit(records[3].position)
    await cursor.refresh()
    assert (cursor.position, cursor.state) == (records[5].position, None)
    assert cursor.holds_retention
    await theirs.commit(records[6].position)
    committed = (await java.call("committed_positions", name))["positions"]
    assert committed["theirs"] == [*records[6].position.next]


async def test_a_writer_of_the_peer_goes_on_while_segments_go(side, namespace):
    name, count = fresh_name(), len(PAYLOADS)
    java, own = await side("java", logSegmentCacheEnabled="false"), await side("own")
    await namespace.create_stream(name, policy=StreamPolicy(retain_records=1))
    stream = namespace.stream(name)
    for number in range(3):
        await java.open(name)
        await write(java, name, "none", 10 * number)
        await java.close(name)
    await java.open(name)
    await write(java, name, "none", 30)
    report = await stream.enforce_retention()
    assert [segment.number for segment in report.segments] == [1, 2]
    await write(java, name, "none", 40)
    await java.close(name)
    seen = [await each.read(name, 3 * count, Position(3, 0, 0)) for each in (java, own)]
    assert seen[0] == seen[1]
    assert [record.sequence_id for record in seen[0]] == [*range(2 * count, 5 * count)]
