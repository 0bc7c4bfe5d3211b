"""Streams beside the real DistributedLog 4.18: each side reads and continues the other's."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import AsyncIterator

import pytest

from doubles.zookeeper import made_root
from interop.peer_driver import Peer, PeerError
from interop.stream_sides import JavaStreams
from quorumbook.streams import ByteStream, Namespace, Position, SequenceId, StreamPolicy
from quorumbook.streams.compaction import Compaction
from quorumbook.streams.errors import PositionTruncatedError, StreamSealedError
from quorumbook.streams.format.attributes import Attributes
from quorumbook.streams.stream_context import stream_context
from quorumbook.streams.transactions import Application, DraftOptions, Identity, Place
from quorumbook.testing import LocalCluster
from quorumbook.zookeeper_server import ZooKeeperServer

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop")]


class Both:
    """A namespace that both sides use."""

    def __init__(self, ns: Namespace, uri: str, peer: Peer) -> None:
        self.ns, self.uri, self.peer = ns, uri, peer

    def side(self, codec: str = "none") -> JavaStreams:
        """The peer's side, without memory of what others change."""
        return JavaStreams(
            self.peer, self.uri, compressionType=codec, lockTimeoutSeconds="0",
            logSegmentCacheEnabled="false",
        )  # fmt: skip

    async def java(
        self, name: str, count: int, codec: str = "none", *, ending: str = "close_writer",
        sets: bool = False,
    ) -> list[Position]:  # fmt: skip
        """Have the peer append records named after their numbers, sets of two if wanted."""
        side = self.side(codec)
        last = (await side.call("open_writer", name))["last_txid"]
        # A sealed stream has the largest id of all.
        txid = min(max(0, last), 2**63 - 10) + 1
        found = []
        for number in range(count):
            if sets:
                pair = [b"java-%d-%d" % (number, member) for member in range(2)]
                found += (await side.write_set(name, pair, txid + number, "lz4"))[:1]
            else:
                found += await side.write(name, [b"java-%d" % number], txid + number)
        if ending == "seal":
            await side.seal(name)
            ending = "close_writer"
        await side.call(ending, name)
        return found

    async def refused(self, name: str) -> str:
        """Have the peer append, and return why it cannot."""
        with pytest.raises(PeerError) as refusal:
            await self.java(name, 1)
        with contextlib.suppress(PeerError):
            await self.side().call("abort_writer", name)
        return refusal.value.kind

    async def ours(self, name: str) -> list[str]:
        async with self.ns.stream(name).reader(tail=False) as reader:
            return [
                f"{r.position} {r.sequence_id} {r.txid} {r.payload.decode()}" async for r in reader
            ]

    async def theirs(self, name: str, count: int) -> list[str]:
        return [
            f"{r.position} {r.sequence_id} {r.txid} {r.payload.decode()}"
            for r in await self.side().read(name, count)
        ]


@pytest.fixture
async def both(zookeeper: ZooKeeperServer, peer: Peer) -> AsyncIterator[Both]:
    root = await made_root(zookeeper)
    metadata = f"zk://{zookeeper.address}{root}/ledgers"
    async with LocalCluster(bookies=3, metadata_uri=metadata) as cluster:
        address = f"{cluster.metadata_uri}#{root}/messaging"
        async with Namespace.open(address, bind=True) as ns:
            both = Both(ns, f"distributedlog://{zookeeper.address}{root}/messaging", peer)
            yield both
            await both.side().call("close_namespaces")


@pytest.mark.parametrize("codec", ["none", "lz4"])
async def test_what_ours_wrote_is_read_by_java_and_gone_on_with(both: Both, codec: str) -> None:
    policy = StreamPolicy(compression=codec, roll_entries=2)
    await both.ns.create_stream("s", policy=policy)
    stream = both.ns.stream("s")
    async with stream.writer(producer="p") as writer:
        for number in range(3):
            await writer.append_batch([b"%d.%d" % (number, k) for k in range(3)])
        await writer.flush()
        # In progress: its last record is visible to Java without another one.
        mine = await both.ours("s")
        assert len(mine) == 9
        assert await both.theirs("s", 9) == mine
        assert (await both.refused("s")).startswith("OwnershipAcquireFailed")
        await writer.abort()
    # Crashed: Java completes the segment and writes the next.
    appended = await both.java("s", 2, codec)
    assert appended[0].segment == 3
    mine = await both.ours("s")
    assert [line.split()[1] for line in mine] == [str(n) for n in range(11)]
    assert mine[-1].endswith("java-1")
    assert await both.theirs("s", 11) == mine
    async with stream.writer(producer="p") as writer:
        # Numbers are found behind what Java wrote.
        assert writer.last_number() == 8
        await writer.append(b"ours again")
    assert await both.theirs("s", 12) == await both.ours("s")


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("command", ["write", "crash", "sets"])
async def test_what_java_wrote_is_read_by_ours_and_gone_on_with(
    both: Both, command: str, codec: str
) -> None:
    await both.ns.create_stream("s")
    ending = "abort_writer" if command == "crash" else "close_writer"
    appended = await both.java("s", 3, codec, ending=ending, sets=command == "sets")
    records = 6 if command == "sets" else 3
    assert len(appended) == 3
    if command != "crash":
        mine = await both.ours("s")
        assert len(mine) == records
        assert await both.theirs("s", records) == mine
    async with both.ns.stream("s").writer() as writer:
        assert (writer.next_sequence_id, writer.last_txid) == (records, 3)
        assert (await writer.append(b"ours")).sequence_id == records
    mine = await both.ours("s")
    assert len(mine) == records + 1
    assert await both.theirs("s", records + 1) == mine


async def test_each_side_keeps_to_the_others_truncation_and_seal(both: Both) -> None:
    for name in "a", "b":
        await both.ns.create_stream(name, policy=StreamPolicy(roll_entries=1))
        async with both.ns.stream(name).writer() as writer:
            for number in range(4):
                await writer.append(b"%d" % number)
    await both.ns.stream("a").truncate(SequenceId(2))
    assert await both.theirs("a", 2) == (await both.ours("a"))[:2]
    side = both.side()
    await side.open("b")
    await side.truncate("b", Position(3, 0, 0))
    await side.close("b")
    assert [line.split()[3] for line in await both.ours("b")] == ["2", "3"]
    with pytest.raises(PositionTruncatedError):
        await both.ns.stream("b").get(SequenceId(1))

    async with both.ns.stream("a").writer() as writer:
        await writer.seal()
    assert len(await both.theirs("a", 9)) == 2  # and not one less, or an error
    assert await both.refused("a") == "EndOfStreamException"
    await both.java("b", 1, ending="seal")
    assert await both.refused("b") == "EndOfStreamException"
    async with both.ns.stream("b").reader() as reader:
        assert [record.payload async for record in reader] == [b"2", b"3", b"java-0"]
    with pytest.raises(StreamSealedError):
        await both.ns.stream("b").writer()


@pytest.mark.parametrize("codec", ["none", "lz4"])
async def test_java_reads_and_continues_what_many_processes_appended_in_one_step(
    both: Both, codec: str
) -> None:
    for name in "a", "b":
        await both.ns.create_stream(name, policy=StreamPolicy(compression=codec))
    await both.java("a", 2, codec)
    app = Application(Place(both.ns.client, both.ns), "app", Identity("query", "run"))
    await app.prepare()
    options = DraftOptions(entry_bytes=20, max_ledger_bytes=30)
    results = []
    for part in range(3):
        attempt = app.attempt(0, part, 0, options, 1000)
        for number in range(10):
            carried = Attributes(b"key", (("h", b"1"),), 1700000000000)
            await attempt.append("a", [b"%d.%d" % (part, number)] * 2, None, [carried, None])
        await attempt.append("b", [b"%d" % part])
        results.append(await attempt.finish())
    done = await app.commit(0, results)
    assert len(done.segments["a"]) > 3
    for name, count in ("a", 62), ("b", 3):
        mine = await both.ours(name)
        assert [line.split()[1] for line in mine] == [str(n) for n in range(count)]
        assert await both.theirs(name, count) == mine
    assert len(await both.java("a", 1, codec)) == 1
    mine = await both.ours("a")
    assert mine[-1].endswith("java-0")
    assert await both.theirs("a", 63) == mine
    # And what was merged of all of it, Java's own segments among them.
    work = Compaction(
        Place(both.ns.client, both.ns), stream_context(both.ns.stream("a")), keep_s=0.0
    )
    (merged,) = await work.run(await work.rules(target_bytes=1 << 20))
    assert (merged.records, await stream_context(both.ns.stream("a")).nodes.segment_count()) == (
        63,
        1,
    )
    mine = await both.ours("a")
    assert [line.split()[1] for line in mine] == [str(n) for n in range(63)]
    assert await both.theirs("a", 63) == mine


async def test_bytes_go_both_ways_as_append_only_streams(both: Both) -> None:
    await both.ns.create_stream("s", policy=StreamPolicy(roll_entries=2))
    file = ByteStream(both.ns.stream("s"))
    side = both.side()
    written = b""
    for turn in range(2):
        lines = [b"ours %d.%d\n" % (turn, n) * 50 for n in range(5)]
        async with file.writer() as out:
            assert out.tell() == len(written)
            for line in lines:
                await out.write(line)
        written += b"".join(lines)
        lines = [b"java %d.%d\n" % (turn, n) * 50 for n in range(5)]
        payloads = [base64.b64encode(line).decode() for line in lines]
        answer = await side.call("write_bytes", "s", payloads=payloads)
        assert answer["began"] == len(written)
        written += b"".join(lines)
        assert answer["ended"] == len(written) == await file.size()
    record = len(written) // 20
    for offset in 0, 5 * record, 12 * record, 12 * record + 7:
        async with file.reader(offset) as reader:
            ours = b""
            while part := await reader.read(1 << 20):
                ours += part
        assert ours == written[offset:]
        answer = await side.call("read_bytes", "s", offset=offset, count=len(written) - offset)
        assert base64.b64decode(answer["data"]) == written[offset:]
        assert answer["position"] == len(written)
