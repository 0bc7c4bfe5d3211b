"""A writer that dies between any two of its steps, and what the next one and readers find.

The steps are counted, not listed: each sweep begins with death before the first write to the
metadata store or a bookie, then before the second, until nothing is left to die of.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Awaitable, Callable

import pytest

from doubles.inside import pump_of
from doubles.mortal import died
from quorumbook.streams import Appended, Namespace, OrphanState, Stream, StreamPolicy, StreamWriter
from quorumbook.streams.errors import StreamSealedError
from quorumbook.streams.stream_context import stream_context
from quorumbook.testing import LocalCluster
from streams.soundness import assert_sound, read_payloads, unnamed_ledgers

PAYLOADS = [b"%d" % number for number in range(8)]


class Life:
    """What a writer does before somebody else goes on, and what it was promised."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, Appended] = {}

    async def append(self, writer: StreamWriter, *numbers: int) -> None:
        """Append some records at once."""
        futures = {n: writer.append_nowait(PAYLOADS[n], producer_seq=n) for n in numbers}
        for number, future in futures.items():
            self.acknowledged[number] = await future

    async def write(self, stream: Stream) -> None:
        """Take over, write, roll by hand and by count, complete."""
        writer = await go_on(stream)
        await self.append(writer, 0)
        await self.append(writer, *range(1, 6))
        await writer.roll()
        await self.append(writer, 6, 7)
        await writer.close()

    async def seal(self, stream: Stream) -> None:
        """Take over, write and seal."""
        writer = await go_on(stream)
        await self.append(writer, 0, 1)
        await writer.seal()


def stride_of(cluster: LocalCluster) -> int:
    """Return which steps are died at: each; every fourth on ZooKeeper, unless `KILLS=all`."""
    is_slow = cluster.metadata_uri.startswith("zk") and os.environ.get("KILLS") != "all"
    return 4 if is_slow else 1


async def left_records(stream: Stream) -> list[bytes]:
    """Leave a completed segment, and one in progress with records."""
    async with stream.writer() as writer:
        await writer.append(b"a")
    writer = await stream.writer()
    await writer.append_batch([b"b", b"c"])
    await writer.abort()
    return [b"a", b"b", b"c"]


async def left_an_empty_segment(stream: Stream) -> list[bytes]:
    """Leave a segment in progress to which nothing was appended, and a ledger allocated."""
    async with stream.writer() as writer:
        await writer.append(b"a")
    writer = await stream.writer()
    segments = pump_of(writer).segments
    await segments.ensure(pump_of(writer).state)
    # It dies between two steps.
    await segments._allocate()
    segments._ahead = None
    await writer.abort()
    return [b"a"]


async def go_on(stream: Stream) -> StreamWriter:
    """Become the next writer; the session of the one before may live on."""
    return await stream.writer(
        takeover="force", producer="p", batch_bytes=1, retention_interval_s=0
    )


@pytest.mark.parametrize("leave", [left_records, left_an_empty_segment])
async def test_a_writer_killed_between_any_two_steps_loses_and_doubles_nothing(
    cluster: LocalCluster,
    ns: Namespace,
    leave: Callable[[Stream], Awaitable[list[bytes]]],
) -> None:
    """Of a takeover, of rolls by hand and by count, and of a completion (O1, K1, X2)."""
    address = f"{cluster.metadata_uri}#{ns.path}"
    leaked: set[int] = set()
    for dies_before in itertools.count(1, stride_of(cluster)):
        name = f"s{dies_before}"
        others = {ledger_id async for ledger_id in ns.client.list_ledger_ids()}
        await ns.create_stream(name, policy=StreamPolicy(roll_entries=3))
        stream = ns.stream(name)
        before = await leave(stream)
        life = Life()
        async with died(address, name, life.write, dies_before) as mortal:
            seen = await read_payloads(stream)
            async with await go_on(stream) as writer:
                assert writer.last_number() >= max(life.acknowledged, default=-1)
                everything = await writer.append_batch(PAYLOADS, producer_seq=0)
            assert await read_payloads(stream) == [*before, *PAYLOADS]
            assert seen == [*before, *PAYLOADS][: len(seen)]
            for number, appended in life.acknowledged.items():
                assert everything[number].duplicate
                record = await stream.get(appended.position)
                assert (record.payload, record.sequence_id) == (
                    PAYLOADS[number], appended.sequence_id,
                )  # fmt: skip
            await assert_sound(stream)
            # One that was just made, or just dropped.
            unnamed = await unnamed_ledgers(stream, others)
            assert len(unnamed) <= 1
            leaked |= unnamed
        if not mortal.died.is_set():
            break
    assert dies_before > 40
    # Where not every step is died at, it may be that none was left.
    assert leaked or stride_of(cluster) > 1
    # They are found, and nothing else: marked first, and deleted then.
    for state in OrphanState.MARKED, OrphanState.DELETED:
        orphans = await ns.orphans(delete=True, grace_s=0)
        assert {each.ledger_id for each in orphans} == leaked
        assert {each.state for each in orphans} == ({state} if leaked else set())
    assert await ns.orphans() == []
    async for name in ns.streams():
        assert await read_payloads(ns.stream(name)) == [*before, *PAYLOADS]


async def test_a_writer_killed_while_it_seals_seals_or_does_not(
    cluster: LocalCluster, ns: Namespace
) -> None:
    address = f"{cluster.metadata_uri}#{ns.path}"
    ends = set()
    for dies_before in itertools.count(1):
        name = f"s{dies_before}"
        await ns.create_stream(name)
        stream = ns.stream(name)
        life = Life()
        async with died(address, name, life.seal, dies_before) as mortal:
            try:
                async with await go_on(stream) as writer:
                    await writer.append_batch(PAYLOADS[:2], producer_seq=0)
                    await writer.seal()
                ends.add("not sealed")
            except StreamSealedError:
                ends.add("sealed")
            async with stream.reader() as reader:  # comes to an end by itself
                assert [record.payload async for record in reader] == PAYLOADS[:2]
            with pytest.raises(StreamSealedError):
                await go_on(stream)
            await assert_sound(stream)
        if not mortal.died.is_set():
            break
    assert ends == {"sealed", "not sealed"}


async def test_what_one_that_died_began_to_delete_or_rename_is_deleted_by_the_next(
    cluster: LocalCluster, ns: Namespace
) -> None:
    async def rename_and_delete(stream: Stream) -> None:
        namespace = stream_context(stream).namespace_policy.__self__  # type: ignore[attr-defined]
        await namespace.rename_stream(stream.name, f"{stream.name}/new")
        await namespace.delete_stream(f"{stream.name}/new")

    address = f"{cluster.metadata_uri}#{ns.path}"
    for dies_before in itertools.count(1):
        name = f"s{dies_before}"
        await ns.create_stream(name)
        await left_records(ns.stream(name))
        async with died(address, name, rename_and_delete, dies_before) as mortal:
            pass  # its session ends, and its locks with it
        for each in f"{name}/new", name:
            await ns.delete_stream(each, missing_ok=True)
        assert [name async for name in ns.streams()] == []
        assert [metadata async for metadata in ns.client.list_ledgers()] == []
        if not mortal.died.is_set():
            break
    assert dies_before > 8
